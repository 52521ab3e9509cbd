"""What of the card Python's other worlds may see: host views, numpy, lists, DLPack; and what is refused clearly.

Holds csrc/torch and sim/installation/dlpack.py against the bytes of the card. tests/sim/test_simulated.py runs this
module in a process with simulated cards.
"""

import gc

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from against_cpu import CARD, assert_same

SECOND = torch.device("npu:1")
host_view = torch.ops.toprope_sim.host_view


def test_a_host_view_shares_the_cards_bytes() -> None:
    card = torch.arange(6.0, device=CARD).view(2, 3)
    view = host_view(card)
    assert view.device.type == "cpu"
    assert view.data_ptr() == card.data_ptr()
    assert_close(view, card.cpu())
    view[0, 0] = 7
    assert card[0, 0].item() == 7
    card[1, 2] = -1
    assert view[1, 2] == -1


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.int8, torch.bool, torch.complex64, torch.float8_e4m3fn])
def test_a_host_view_has_shape_strides_and_dtype(dtype: torch.dtype) -> None:
    card = torch.ones(4, 6, device=CARD).to(dtype)[1:, ::2].t()
    view = host_view(card)
    assert (view.dtype, view.shape, view.stride(), view.storage_offset()) == (
        card.dtype, card.shape, card.stride(), card.storage_offset(),
    )  # fmt: skip


def test_a_host_view_keeps_the_memory() -> None:
    before = torch.npu.memory_allocated(1)
    view = host_view(torch.full((1000,), 3.0, device=SECOND))
    gc.collect()
    assert torch.npu.memory_allocated(1) > before
    torch.zeros(1000, device=SECOND)
    assert_close(view, torch.full((1000,), 3.0))
    array = view.numpy()
    del view
    torch.zeros(1000, device=SECOND)
    assert array.sum() == 3000
    del array
    gc.collect()
    assert torch.npu.memory_allocated(1) == before


def test_numpy_works_on_a_host_view() -> None:
    card = torch.zeros(4, device=CARD)
    host_view(card).numpy()[:] = np.arange(4)
    assert_same(card, torch.arange(4.0))


def test_a_host_view_of_views_and_of_nothing() -> None:
    card = torch.arange(6.0, device=CARD)
    host_view(card[2:4]).fill_(0)
    assert_same(card, torch.tensor([0.0, 1, 0, 0, 4, 5]))
    assert host_view(torch.empty(0, 3, device=CARD)).shape == (0, 3)
    conjugate = torch.tensor([1 + 2j], device=CARD).conj()
    assert host_view(conjugate).resolve_conj()[0] == 1 - 2j


def test_a_host_view_is_of_a_card() -> None:
    with pytest.raises((NotImplementedError, RuntimeError), match="host_view"):
        host_view(torch.ones(2))


def test_numpy_is_refused_with_the_remedy() -> None:
    with pytest.raises(TypeError, match=r"can't convert npu:0 device type tensor to numpy. Use Tensor.cpu\(\)"):
        torch.ones(2, device=CARD).numpy()
    with pytest.raises(TypeError, match=r"can't convert npu:0 device type tensor to numpy"):
        np.asarray(torch.ones(2, device=CARD))
    assert torch.ones(2, device=CARD).numpy(force=True).tolist() == [1.0, 1.0]


def test_numpy_arrays_go_to_the_card() -> None:
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    card = torch.from_numpy(array).to(CARD)
    array[0, 0] = 9
    assert_same(card, torch.arange(6.0).view(2, 3))
    assert_same(torch.tensor(array, device=CARD), torch.from_numpy(array))
    assert_same(torch.as_tensor(array.T, device=CARD), torch.from_numpy(array.T))


def test_lists_and_numbers() -> None:
    assert torch.arange(4, device=CARD).view(2, 2).tolist() == [[0, 1], [2, 3]]
    assert torch.tensor(1.5, device=CARD).tolist() == 1.5
    assert torch.tensor(True, device=CARD).item() is True
    assert torch.tensor(1 + 2j, device=CARD).item() == 1 + 2j
    assert torch.tensor(1.5, dtype=torch.bfloat16, device=CARD).item() == 1.5
    assert torch.empty(0, device=CARD).tolist() == []
    assert int(torch.tensor([7], device=CARD)) == 7
    assert list(map(float, torch.ones(2, device=CARD))) == [1.0, 1.0]
    with pytest.raises(RuntimeError, match="a Tensor with 2 elements cannot be converted to Scalar"):
        torch.ones(2, device=CARD).item()


def test_dlpack() -> None:
    card = torch.arange(3.0, device=SECOND)
    assert card.__dlpack_device__() == (12, 1)  # kDLExtDev of the standard
    assert torch.ones(1).__dlpack_device__() == (1, 0)
    for again in (torch.from_dlpack(card), torch.utils.dlpack.from_dlpack(torch.utils.dlpack.to_dlpack(card))):
        assert again.data_ptr() == card.data_ptr()
        assert_same(again, torch.arange(3.0), SECOND)


def test_addresses_belong_to_their_card() -> None:
    first, second = torch.ones(10, device=CARD), torch.ones(10, device=SECOND)
    assert first.data_ptr() != second.data_ptr()
    assert first.data_ptr() % 512 == 0
    assert first[2:].data_ptr() == first.data_ptr() + 8
    assert torch.empty(0, device=CARD).data_ptr() == 0


def test_quantized_tensors_and_those_of_mkldnn_are_refused() -> None:
    with pytest.raises(NotImplementedError, match="quantized, is not supported on npu"):
        torch.quantize_per_tensor(torch.ones(2, device=CARD), 0.1, 0, torch.qint8)
    with pytest.raises(NotImplementedError, match="Mkldnn is not supported on npu"):
        torch.ones(2, device=CARD).to_mkldnn()
    assert_same(torch.ones(2, device=CARD) + 1, torch.full((2,), 2.0))
