"""torch.profiler sees what runs on the card.

Holds csrc/torch/profiler.cpp against what torch.profiler shows for a device. tests/sim/test_simulated.py runs this
module in a process with simulated cards.
"""

import json
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile, record_function, schedule

from against_cpu import CARD, assert_same

ACTIVITIES = [[ProfilerActivity.CPU], [ProfilerActivity.CPU, ProfilerActivity.PrivateUse1]]

pytestmark = pytest.mark.filterwarnings("ignore:.*(PrivateUse1|CUDA is not available|privateuse1).*:UserWarning")


def work() -> torch.Tensor:
    return torch.ones(64, 64, device=CARD) @ torch.ones(64, 64, device=CARD)


@pytest.mark.parametrize("activities", ACTIVITIES)
def test_operators_are_counted(activities: list[ProfilerActivity]) -> None:
    with profile(activities=activities, record_shapes=True) as seen:
        for _ in range(3):
            result = work()
    assert_same(result, torch.full((64, 64), 64.0))
    averages = {event.key: event for event in seen.key_averages()}
    assert averages["aten::mm"].count == 3
    assert averages["aten::mm"].cpu_time_total > 0
    table = seen.key_averages(group_by_input_shape=True).table(sort_by="cpu_time_total", row_limit=5)
    assert "aten::mm" in table
    assert "[[64, 64], [64, 64]]" in table


@pytest.mark.parametrize("activities", ACTIVITIES)
def test_a_trace_can_be_opened_elsewhere(activities: list[ProfilerActivity], tmp_path: Path) -> None:
    with profile(activities=activities) as seen, record_function("my part"):
        work()
    seen.export_chrome_trace(str(tmp_path / "trace.json"))
    names = [event.get("name") for event in json.loads((tmp_path / "trace.json").read_text())["traceEvents"]]
    assert "aten::mm" in names
    assert "my part" in names


def device_memory(seen: profile) -> int:
    return sum(each.self_device_memory_usage for each in seen.key_averages())


def test_memory_of_the_card_is_seen() -> None:
    """The card told the profiler of no memory."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
        kept = torch.empty(2**20, dtype=torch.uint8, device=CARD)
    assert kept.device == CARD
    (empty,) = [each for each in seen.key_averages() if each.key == "aten::empty"]
    assert 2**20 <= empty.self_device_memory_usage < 2**20 + 2**12
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
        twice = kept * 2
    assert 2**20 <= device_memory(seen) < 2**20 + 2**12
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
        del kept, twice
        (torch.ones(2**20, device=CARD) + 1).sum()
    assert device_memory(seen) <= -(2**21) + 2**12


def test_steps_of_a_schedule() -> None:
    tables: list[str] = []
    model = nn.Linear(8, 8).to(CARD)
    with profile(
        activities=ACTIVITIES[1],
        schedule=schedule(wait=1, warmup=1, active=2),
        on_trace_ready=lambda seen: tables.append(seen.key_averages().table()),
    ) as seen:
        for _ in range(4):
            model(torch.ones(2, 8, device=CARD)).sum().backward()
            seen.step()
    assert len(tables) == 1
    assert "aten::addmm" in tables[0]
    assert "ProfilerStep" in tables[0]


def test_backward_runs_in_the_profile_with_its_names() -> None:
    with profile(activities=[ProfilerActivity.CPU], with_stack=True) as seen:
        x = torch.ones(4, 4, device=CARD, requires_grad=True)
        x.mm(x).sum().backward()
    assert any("MmBackward0" in event.key for event in seen.key_averages())


def test_the_old_profiler() -> None:
    with torch.autograd.profiler.profile(use_device="npu", use_kineto=False) as seen:
        work()
    events = {event.key: event for event in seen.key_averages()}
    assert events["aten::mm"].count == 1
    assert "npu" in seen.key_averages().table().lower()


def test_ranges_are_marked() -> None:
    with torch.autograd.profiler.record_function("range"):
        result = work()
    assert_same(result, torch.full((64, 64), 64.0))
