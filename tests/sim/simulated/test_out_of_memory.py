"""When a card's memory runs out: the vendor's error, before anything is taken, and a program that goes on.

Holds csrc/core/memory.h and csrc/torch/errors.cpp against the vendor's error text. tests/sim/test_simulated.py runs
this module in a process with simulated cards.
"""

import re
import threading
import time

import pytest
import torch

from card_memory import empty, left_over, start_afresh
from core_library import MIB, block_size
from queued import Gate, queue

SIM = "910B3x2,hbm=64MiB"

SIZE = r"\d+ bytes|\d+\.\d\d [KMG]iB"
TEXT = re.compile(
    rf"NPU out of memory\. Tried to allocate (?P<asked>{SIZE}) \(NPU (?P<card>\d+); (?P<total>{SIZE}) total capacity; "
    rf"(?P<allocated>{SIZE}) already allocated; (?P<active>{SIZE}) current active; (?P<free>{SIZE}) free; "
    rf"((?P<allowed>{SIZE}) allowed; )?(?P<reserved>{SIZE}) reserved in total by PyTorch\)\.? ?If reserved memory is "
    r">> allocated memory try setting max_split_size_mb to avoid fragmentation\."
)


def out_of_memory(function) -> dict[str, str]:
    """The parts of the message; nothing of what the function had is kept alive by the error."""
    with pytest.raises(torch.OutOfMemoryError) as caught:
        function()
    found = TEXT.match(str(caught.value))
    assert found, str(caught.value)
    return found.groupdict()


@pytest.fixture(autouse=True)
def nothing_left():
    """Each test begins and ends with cards that hold nothing at all."""
    start_afresh()
    yield
    assert not any(left_over())


def test_the_text():
    kept = empty(30 * MIB - 32)
    assert out_of_memory(lambda: empty(40 * MIB - 32)) == {
        "asked": "40.00 MiB", "card": "0", "total": "64.00 MiB", "allocated": "30.00 MiB", "active": "30.00 MiB",
        "free": "34.00 MiB", "allowed": None, "reserved": "30.00 MiB",
    }  # fmt: skip
    other = empty(60 * MIB, "npu:1")
    assert out_of_memory(lambda: empty(5 * MIB, "npu:1"))["card"] == "1"
    del kept, other


def test_the_text_names_the_piece_that_was_asked_of_the_card():
    # Not the tensor's size: a tensor of 4 KiB takes a piece of 2 MiB.
    kept = empty(64 * MIB - 32)
    assert out_of_memory(lambda: empty(4096))["asked"] == "2.00 MiB"
    assert out_of_memory(lambda: empty(3 * MIB))["asked"] == "20.00 MiB"
    assert out_of_memory(lambda: empty(33 * MIB))["asked"] == "34.00 MiB"
    del kept


def test_the_kinds_of_error():
    with pytest.raises(RuntimeError) as caught:
        empty(65 * MIB)
    assert type(caught.value) is torch.OutOfMemoryError
    assert torch.cuda.OutOfMemoryError is torch.OutOfMemoryError
    del caught


def test_the_whole_card_can_be_used():
    whole = empty(64 * MIB - 32)
    assert torch.npu.mem_get_info() == (0, 64 * MIB)
    assert torch.npu.memory_allocated() == torch.npu.memory_reserved() == 64 * MIB
    out_of_memory(lambda: empty(1))
    assert empty(60 * MIB, "npu:1").numel() == 60 * MIB
    del whole


def test_nothing_changes_and_the_program_goes_on():
    x = torch.ones(1000, 1000, device="npu")
    before = torch.npu.memory_stats()
    out_of_memory(lambda: torch.zeros(64 * MIB, dtype=torch.uint8, device="npu"))
    out_of_memory(lambda: x.expand(20, 1000, 1000).contiguous())
    out_of_memory(lambda: torch.ones(20 * MIB).to("npu"))
    out_of_memory(lambda: torch.ones(20 * MIB).npu())
    out_of_memory(lambda: x.repeat(20, 1))
    out_of_memory(lambda: torch.rand(20 * MIB, device="npu"))
    out_of_memory(lambda: torch.ones(5, device="npu").resize_(20 * MIB))
    after = torch.npu.memory_stats()
    for name in before:
        if name.startswith(("allocated_bytes", "requested_bytes", "active_bytes")) and name.endswith("current"):
            assert before[name] == after[name], name
    assert after["num_ooms"] - before["num_ooms"] == 7
    assert after["num_alloc_retries"] - before["num_alloc_retries"] == 7
    assert x.shape == (1000, 1000)
    assert (x @ x).mean() == 1000


def test_a_size_that_no_machine_has():
    assert out_of_memory(lambda: empty(2**40))["asked"].endswith("GiB")
    with pytest.raises(torch.OutOfMemoryError, match="Tried to allocate more than 1EB memory"):
        empty(2**62)
    with pytest.raises(RuntimeError):
        torch.empty(2**62, dtype=torch.float64, device="npu")
    with pytest.raises(RuntimeError):
        torch.empty(2**40, 2**40, device="npu")


def test_cached_memory_is_given_back_before_it_runs_out():
    first, second = empty(20 * MIB), empty(20 * MIB)
    del first
    assert torch.npu.memory_reserved() == 44 * MIB
    third = empty(42 * MIB - 32)
    stats = torch.npu.memory_stats()
    assert (stats["num_alloc_retries"], stats["num_ooms"]) == (1, 0)
    assert torch.npu.memory_reserved() == 64 * MIB
    del second, third


def test_pieces_that_are_partly_in_use_stay():
    kept = [empty(1000), empty(2 * MIB)]
    cut = empty(5 * MIB)  # from the second's piece of 20 MiB
    del cut
    assert out_of_memory(lambda: empty(43 * MIB))["reserved"] == "22.00 MiB"
    assert empty(41 * MIB).numel() == 41 * MIB
    del kept


def test_memory_of_another_stream_is_given_back_too():
    side = torch.npu.Stream()
    with torch.npu.stream(side):
        tensor = empty(40 * MIB)
    del tensor
    assert empty(40 * MIB).numel() == 40 * MIB
    assert torch.npu.memory_stats()["num_alloc_retries"] == 1


def test_memory_that_a_stream_still_uses_is_waited_for():
    # On a card, the allocator waits for its streams before it gives up.
    side = torch.npu.Stream()
    tensor = empty(40 * MIB)
    queue(lambda: time.sleep(0.2), side)
    tensor.record_stream(side)
    del tensor
    assert empty(40 * MIB).numel() == 40 * MIB
    tensor = empty(40 * MIB)
    queue(lambda: time.sleep(0.2), side)
    tensor.record_stream(side)
    del tensor
    torch.npu.empty_cache()
    assert torch.npu.memory_reserved() == 0


def test_what_a_kernel_needs_meanwhile_can_be_too_much():
    x = torch.rand(1900, 1900, device="npu")  # 14 MiB; kthvalue copies them and numbers them (28 MiB)
    kept = empty(10 * MIB)
    before = torch.npu.memory_allocated()
    out_of_memory(lambda: x.kthvalue(5, dim=1))
    assert torch.npu.memory_allocated() == before
    del kept
    assert x.kthvalue(5, dim=1).values.shape == (1900,)


def test_backward_can_run_out_on_its_own_thread():
    x = torch.ones(4 * MIB, device="npu", requires_grad=True)  # 16 MiB
    y = (x * 2).exp()  # saves 16 MiB and gives 16 MiB
    kept = empty(10 * MIB)
    with pytest.raises(torch.OutOfMemoryError, match="NPU out of memory"):
        y.sum().backward()
    del kept, y
    assert x.grad is None
    (x * 2).sum().backward()
    assert x.grad.sum() == 8 * MIB
    x.grad = None


def test_a_loop_that_halves_its_batch_until_it_fits():
    tried = []
    batch = 1024
    while True:
        tried.append(batch)
        try:
            result = torch.randn(batch, 100_000, device="npu").sum().item()
            break
        except torch.OutOfMemoryError:
            batch //= 2
    assert tried == [1024, 512, 256, 128]
    assert isinstance(result, float)
    assert torch.npu.max_memory_allocated() >= 128 * 400_000


def test_a_part_of_the_card():
    torch.npu.set_per_process_memory_fraction(0.5)
    try:
        assert torch.npu.get_per_process_memory_fraction() == 0.5
        assert torch.npu.get_per_process_memory_fraction(1) == 1.0
        parts = out_of_memory(lambda: empty(32 * MIB))
        assert parts["total"] == "64.00 MiB"
        assert parts["allowed"] == "32.00 MiB"
        half = empty(32 * MIB - 32)
        out_of_memory(lambda: empty(1))
        assert empty(50 * MIB, "npu:1").numel() == 50 * MIB
        del half
    finally:
        torch.npu.set_per_process_memory_fraction(1.0)
    assert empty(60 * MIB).numel() == 60 * MIB
    for wrong, error in (
        (1, TypeError),
        ("0.5", TypeError),
        (1.5, ValueError),
        (-0.1, ValueError),
        (float("nan"), ValueError),
    ):
        with pytest.raises(error):
            torch.npu.set_per_process_memory_fraction(wrong)
    assert torch.npu.get_per_process_memory_fraction() == 1.0


def test_threads_that_run_out_together():
    outcomes = []

    def work(card: int) -> None:
        try:
            for _ in range(50):
                try:
                    tensors = [empty(15 * MIB, f"npu:{card}") for _ in range(4)]
                    outcomes.append(tensors[0].numel())
                except torch.OutOfMemoryError:
                    outcomes.append(0)
                tensors = None
        except BaseException as error:
            outcomes.append(error)

    threads = [threading.Thread(target=work, args=(card % 2,)) for card in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(outcomes) == 200
    assert set(outcomes) <= {0, 15 * MIB}
    for card in (0, 1):
        assert torch.npu.memory_reserved(card) <= 64 * MIB
        assert torch.npu.max_memory_reserved(card) <= 64 * MIB
        assert empty(64 * MIB - 32, f"npu:{card}").numel() == 64 * MIB - 32


def test_a_message_while_work_is_queued_does_not_hang():
    # Memory runs out while another stream is held up that has nothing to do with it.
    side = torch.npu.Stream()
    with Gate(side, limit=1.0):
        out_of_memory(lambda: empty(65 * MIB))


def test_the_figures_of_both_views_agree():
    tensor = empty(5 * MIB)
    out_of_memory(lambda: empty(60 * MIB))
    assert torch.accelerator.memory_stats()["num_ooms"] == torch.npu.memory_stats()["num_ooms"] == 1
    assert torch.npu.memory_allocated() == block_size(5 * MIB)
    assert torch.accelerator.get_memory_info() == (44 * MIB, 64 * MIB)
    del tensor
