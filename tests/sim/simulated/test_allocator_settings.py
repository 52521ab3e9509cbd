"""PYTORCH_NPU_ALLOC_CONF: what it changes in the sizes that the allocator takes and hands out.

Holds csrc/torch/allocator_settings.cpp against torch_npu's documented options and its allocator's sizes.
tests/sim/test_simulated.py runs this module in a process with simulated cards.
"""

import json

import pytest
import torch

from children import facts, run
from toprope.sim.npu.history import warn_of_expandable

SIM = "910B3,refuse=off"
MIB = 2**20

RESERVED = """
import json, torch
kept = torch.empty({bytes}, dtype=torch.uint8, device="npu")
print(json.dumps([torch.npu.memory_reserved() // 2**20, torch.npu.memory_allocated() // 2**20]))
"""


@pytest.mark.parametrize(
    ("settings", "asked", "reserved", "allocated"),
    [
        ("large_segment_size_mb:50", 5, 50, 5),
        ("expandable_segments:True,segment_size_mb:128", 8, 128, 8),
        ("roundup_power2_divisions:[64:4,128:8,>:16]", 65, 80, 80),
        ("roundup_power2_divisions:[64:4,128:8,>:16]", 200, 208, 208),
    ],
)
def test_sizes_follow_the_settings(settings: str, asked: int, reserved: int, allocated: float) -> None:
    done = run(RESERVED.format(bytes=asked * MIB), sim="910B3", PYTORCH_NPU_ALLOC_CONF=settings)
    assert json.loads(done.stdout.splitlines()[-1]) == [reserved, allocated]
    assert (done.stderr != "") == ("expandable_segments:True" in settings)


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ("per_process_memory_fraction:2.0", "per_process_memory_fraction is invalid"),
        ("per_process_memory_fraction:0.1", "NPU out of memory"),
        ("large_segment_size_mb:5", "large_segment_size_mb"),
        ("max_split:128", "Unrecognized key 'max_split' in NPU allocator config, \n[ERROR]"),
    ],
)
def test_the_first_allocation_refuses_what_they_do_not_allow(settings: str, text: str) -> None:
    body = """
import json, torch
try:
    torch.empty(20 * 2**30, dtype=torch.uint8, device="npu")
except (RuntimeError, ValueError) as error:
    print(json.dumps(str(error)))
"""
    assert text in facts(body, sim="910B3", PYTORCH_NPU_ALLOC_CONF=settings)


@pytest.mark.parametrize("other", ["max_split_size_mb:128", "garbage_collection_threshold:0.6"])
def test_settings_that_exclude_each_other_were_taken(other: str) -> None:
    """https://github.com/vllm-project/vllm-ascend/pull/5855: neither goes with expandable segments."""
    body = """
import torch
try:
    torch.empty(1, device="npu")
except RuntimeError as error:
    print(error)
"""
    done = run(body, sim="910B3", PYTORCH_NPU_ALLOC_CONF=f"{other},expandable_segments:True")
    assert "cannot be enabled with `expandable_segments`, please set `expandable_segments` to `False`." in done.stdout
    assert "ERR01001 OPS invalid parameter" in done.stdout


def test_large_blocks_are_not_split_for_smaller_ones() -> None:
    torch.npu.memory._set_allocator_settings("max_split_size_mb:50,max_non_split_rounding_mb:20")
    try:
        kept = torch.empty(100 * MIB, dtype=torch.uint8, device="npu")
        del kept
        before = torch.npu.memory_reserved()
        kept = torch.empty(75 * MIB, dtype=torch.uint8, device="npu")
        assert (kept.nbytes, torch.npu.memory_reserved() - before) == (75 * MIB, 76 * MIB)
    finally:
        torch.npu.memory._set_allocator_settings("max_split_size_mb:1048576")


def test_more_than_the_host_has_is_refused_before_it_is_written() -> None:
    body = """
import json, torch
try:
    torch.ones(60 * 2**30, dtype=torch.uint8, device="npu").add_(1)
except torch.OutOfMemoryError as error:
    print(json.dumps([str(error), torch.npu.memory_allocated()]))
else:
    print(json.dumps(["the host has so much", 0]))
"""
    with open("/proc/meminfo") as file:
        available = next(int(line.split()[1]) for line in file if line.startswith("MemAvailable"))
    if available > 50 * 2**20:
        pytest.skip("the host has the memory")
    text, left = facts(body, sim="910B3")
    assert text.startswith("NPU out of memory. Tried to allocate 60.00 GiB (NPU 0; the host that simulates it has")
    assert left == 0


def test_expandable_segments_were_taken_without_a_word(caplog: pytest.LogCaptureFixture) -> None:
    warn_of_expandable.cache_clear()
    for _ in range(2):
        torch.npu.memory._set_allocator_settings("expandable_segments:True")
    assert [record.getMessage().partition(" is not simulated")[0] for record in caplog.records] == [
        "expandable_segments:True of PYTORCH_NPU_ALLOC_CONF"
    ]
    torch.npu.memory._set_allocator_settings("expandable_segments:False")
    assert len(caplog.records) == 1


def test_the_variable_is_warned_of_when_the_card_is_installed() -> None:
    body = "import torch; torch.ones(1, device='npu')"
    said = run(body, sim="910B3", PYTORCH_NPU_ALLOC_CONF="expandable_segments:True").stderr
    assert said.count("expandable_segments:True of PYTORCH_NPU_ALLOC_CONF is not simulated") == 1
    assert run(body, sim="910B3", PYTORCH_NPU_ALLOC_CONF="pin_memory_expandable_segments:False").stderr == ""
