"""Device tensors between processes: one memory, seen by both, for as long as either holds it.

Holds sim/sharing.py and csrc/core/sharing.h against the other process's values. tests/sim/test_simulated.py runs this
module in a process with simulated cards.
"""

import gc
import pickle
import queue
import subprocess
import sys
from collections.abc import Iterator

import pytest
import torch
from torch.multiprocessing import reductions

from sharing_workers import SPAWN, Other, facts, train

SIM = "910B3x2,hbm=1GiB"


@pytest.fixture(scope="module")
def other() -> Iterator[Other]:
    made = Other()
    yield made
    made.end()


@pytest.fixture(autouse=True)
def nothing_left_over() -> Iterator[None]:
    yield
    gc.collect()
    torch.npu.ipc_collect()
    torch.npu.empty_cache()


def test_the_receiver_has_the_senders_tensor(other: Other) -> None:
    sent = torch.arange(6.0, device="npu").reshape(2, 3)
    assert other("keep", "t", sent) == facts(sent)
    assert other("read", "t") == [[0, 1, 2], [3, 4, 5]]
    other("drop", "t")


def test_both_write_into_one_memory(other: Other) -> None:
    sent = torch.zeros(4, device="npu")
    other("keep", "t", sent)
    sent.fill_(7)
    torch.npu.synchronize()
    assert other("read", "t") == [7, 7, 7, 7]
    other("fill", "t", 9)
    assert sent.tolist() == [9, 9, 9, 9]
    other("drop", "t")


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.int64, torch.bool, torch.uint8])
def test_dtypes(other: Other, dtype: torch.dtype) -> None:
    sent = torch.tensor([0, 1, 1, 0], device="npu").to(dtype)
    assert other("keep", "t", sent)["dtype"] == str(dtype)
    assert other("read", "t") == [0, 1, 1, 0]
    other("drop", "t")


def test_a_view_of_a_larger_storage_stays_one(other: Other) -> None:
    whole = torch.zeros(4, 6, device="npu")
    part = whole[1:3, ::2].t()
    seen = other("keep", "t", part)
    assert seen == facts(part)
    assert (seen["shape"], seen["stride"], seen["offset"], seen["storage"]) == ((3, 2), (2, 6), 6, 96)
    other("fill", "t", 5)
    assert whole.sum().item() == 30
    assert whole[1].tolist() == [5, 0, 5, 0, 5, 0]
    other("drop", "t")


def test_tensors_that_share_a_storage_share_it_there_too(other: Other) -> None:
    whole = torch.zeros(6, device="npu")
    other("keep", "whole", whole)
    other("keep", "tail", whole[4:])
    other("fill", "tail", 3)
    assert other("read", "whole") == [0, 0, 0, 0, 3, 3]
    other("drop", "tail")
    assert other("read", "whole") == [0, 0, 0, 0, 3, 3]
    other("drop", "whole")


def test_two_tensors_of_one_piece_of_memory_are_let_go_each_by_itself(other: Other) -> None:
    """Small tensors lie in one piece, which is one file; the count is kept for each of them."""
    first, second = torch.ones(8, device="npu"), torch.full((8,), 2.0, device="npu")
    other("keep", "first", first)
    other("keep", "second", second)
    other("drop", "first")
    assert other("read", "second") == [2] * 8
    other("drop", "second")


def test_a_tensor_without_bytes(other: Other) -> None:
    assert other("keep", "t", torch.empty(0, 3, device="npu"))["shape"] == (0, 3)
    other("drop", "t")


def test_a_large_tensor_and_another_card(other: Other) -> None:
    sent = torch.arange(2**21, device="npu:1", dtype=torch.float32)  # 8 MiB, a piece of its own
    assert other("keep", "t", sent)["device"] == "npu:1"
    other("fill", "t", 1)
    assert sent.sum().item() == 2**21
    other("drop", "t")


@pytest.mark.parametrize("requires_grad", [True, False])
def test_gradients_are_wanted_there_as_here(other: Other, requires_grad: bool) -> None:
    leaf = torch.ones(2, device="npu", requires_grad=requires_grad)
    assert other("keep", "t", leaf)["requires_grad"] is requires_grad
    parameter = torch.nn.Parameter(torch.ones(2, device="npu"), requires_grad=requires_grad)
    seen = other("keep", "t", parameter)
    assert (seen["type"], seen["requires_grad"], seen["leaf"]) == ("Parameter", requires_grad, True)
    other("drop", "t")


def test_a_tensor_in_the_middle_of_a_graph_is_refused_as_torch_does(other: Other) -> None:
    middle = torch.ones(2, device="npu", requires_grad=True) * 2
    box = SPAWN.SimpleQueue()
    with pytest.raises(RuntimeError, match="Cowardly refusing to serialize non-leaf tensor which requires_grad"):
        box.put(middle)
    assert other("keep", "t", middle.detach())["requires_grad"] is False
    other("drop", "t")


def test_host_tensors_go_torchs_own_way(other: Other) -> None:
    sent = torch.zeros(3)
    assert other("keep", "t", sent)["device"] == "cpu"
    other("fill", "t", 4)
    assert sent.tolist() == [4, 4, 4]
    other("drop", "t")


def test_a_block_is_not_used_again_while_the_receiver_holds_it(other: Other) -> None:
    begin = torch.npu.memory_allocated()
    sent = torch.full((2**20,), 3.0, device="npu")
    other("keep", "t", sent)
    del sent
    gc.collect()
    assert torch.npu.memory_allocated() - begin >= 4 * 2**20, "the sender keeps it for the receiver"
    others = [torch.zeros(2**20, device="npu") for _ in range(8)]
    torch.npu.synchronize()
    assert set(other("read", "t")) == {3.0}
    del others
    # once the receiver lets go, the sender's next look frees it
    other("drop", "t")
    torch.npu.ipc_collect()
    assert torch.npu.memory_allocated() == begin


def test_a_tensor_sent_twice_is_kept_until_both_are_dropped(other: Other) -> None:
    begin = torch.npu.memory_allocated()
    sent = torch.ones(2**18, device="npu")
    other("keep", "first", sent)
    other("keep", "second", sent)
    del sent
    gc.collect()
    other("drop", "first")
    torch.npu.ipc_collect()
    assert torch.npu.memory_allocated() > begin
    other("fill", "second", 2)
    assert other("read", "second")[0] == 2
    other("drop", "second")
    torch.npu.ipc_collect()
    assert torch.npu.memory_allocated() == begin


def test_the_memory_is_the_owners(other: Other) -> None:
    before = other("allocated")
    sent = torch.ones(2**20, device="npu")
    other("keep", "t", sent)
    assert other("allocated") == before
    other("drop", "t")


def test_what_the_receiver_sends_on_or_back_is_the_same_memory(other: Other) -> None:
    received = other("make", 5)
    assert received.tolist() == [0, 1, 2, 3, 4]
    assert str(received.device) == "npu:0"
    other("keep", "again", received * 1)
    received.fill_(6)
    torch.npu.synchronize()
    assert other("read", "made") == [6] * 5
    assert other("read", "again") == [0, 1, 2, 3, 4]
    other("drop", "again")
    other("drop", "made")


def test_the_owner_dies_first_and_the_receiver_still_reads() -> None:
    owner = Other()
    received = owner("make", 1000)
    part = received[10:20]
    owner.process.kill()
    owner.process.join(timeout=100)
    assert owner.process.exitcode == -9
    assert part.tolist() == list(range(10, 20))
    received.add_(1)
    assert part.sum().item() == 155
    del received
    gc.collect()
    assert (part * 2).tolist()[0] == 22


def test_a_model_is_trained_by_another_process() -> None:
    """As torch's Hogwild example: the parameters are handed over when the process starts."""
    torch.manual_seed(1)
    model = torch.nn.Linear(3, 2).npu()
    model.share_memory()
    before = [parameter.detach().cpu() for parameter in model.parameters()]
    process = SPAWN.Process(target=train, args=(model, 3))
    process.start()
    process.join(timeout=100)
    assert process.exitcode == 0
    trained = [parameter.detach().cpu() for parameter in model.parameters()]
    assert not any(torch.equal(old, new) for old, new in zip(before, trained, strict=True))
    twin = torch.nn.Linear(3, 2)
    for parameter, value in zip(twin.parameters(), before, strict=True):
        parameter.data.copy_(value)
    train(twin.npu(), 3)
    for parameter, value in zip(twin.parameters(), trained, strict=True):
        torch.testing.assert_close(parameter.detach().cpu(), value)


def test_within_one_process_a_queue_gives_the_same_memory() -> None:
    box = SPAWN.Queue()
    sent = torch.zeros(3, device="npu")
    box.put(sent)
    received = box.get(timeout=60)
    received.fill_(2)
    assert sent.tolist() == [2, 2, 2]
    with pytest.raises(queue.Empty):
        box.get(timeout=0.01)


READER = """
import pickle, sys, torch
function, arguments = pickle.load(sys.stdin.buffer)
tensor = function(*arguments)
print(tensor.device, tensor.tolist())
"""


def read(reduced: object) -> subprocess.CompletedProcess[bytes]:
    """Rebuild a tensor in a process that is no child of torch.multiprocessing's."""
    return subprocess.run(
        [sys.executable, "-c", READER], input=pickle.dumps(reduced), capture_output=True, timeout=100, check=False
    )


def test_reduce_tensor_has_torch_npus_order_and_goes_through_any_pickle() -> None:
    """Programs such as verl send the result of reduce_tensor by sockets of their own, and replace argument 6."""
    function, arguments = reductions.reduce_tensor(torch.arange(3.0, device="npu:1")[1:])
    assert function.__name__ == "rebuild_npu_tensor"
    assert arguments[0] is torch.Tensor
    assert arguments[1:4] == (torch.Size([2]), (1,), 1)
    assert arguments[5:7] == (torch.float32, 1)
    assert read((function, arguments)).stdout.decode().split(maxsplit=1) == ["npu:1", "[1.0, 2.0]\n"]
    function, arguments = reductions.reduce_tensor(torch.ones(2, device="npu:1"))
    assert read((function, (*arguments[:6], 0, *arguments[7:]))).stdout.split()[0] == b"npu:0"


def test_a_shared_tensor_that_the_sender_freed_is_an_error_that_says_so() -> None:
    function, arguments = reductions.reduce_tensor(torch.ones(2**20, device="npu"))
    torch.UntypedStorage._release_ipc_counter_npu(*arguments[11:13], device=arguments[6])
    torch.npu.ipc_collect()
    torch.npu.empty_cache()
    with pytest.raises(RuntimeError, match=r"cannot be mapped: .*the sender must keep the tensor"):
        function(*arguments)


def test_storages_on_a_card_are_refused_as_torch_npu_does() -> None:
    with pytest.raises(RuntimeError, match="Cannot pickle NPU storage; try pickling a NPU tensor instead"):
        reductions.reduce_storage(torch.UntypedStorage(8, device="npu"))
    with pytest.raises(RuntimeError, match="_share_npu_: only available on NPU"):
        torch.UntypedStorage(8)._share_npu_()
