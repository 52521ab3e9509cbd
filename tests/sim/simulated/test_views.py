"""Views and writes in place: the card's views share memory exactly as the CPU's do.

Holds csrc/torch against the CPU's views. tests/sim/test_simulated.py runs this module in a process with simulated
cards.
"""

from collections.abc import Callable

import hypothesis
import pytest
import torch
from hypothesis import strategies

from against_cpu import CARD, assert_same, compare

VIEWS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "transpose": lambda t: t.transpose(0, 2)[1:],
    "permute": lambda t: t.permute(2, 0, 1),
    "select": lambda t: t[:, 1],
    "slice with a step": lambda t: t[:, ::2, 1:],
    "slice from behind": lambda t: t[..., -2:],
    "narrow": lambda t: t.narrow(1, 0, 2),
    "chunk": lambda t: t.chunk(2, 2)[1],
    "split": lambda t: t.split([1, 2], 1)[1],
    "unbind": lambda t: t.unbind(1)[2],
    "view": lambda t: t.view(-1)[3:7],
    "reshape without a copy": lambda t: t.reshape(6, 4).t(),
    "flatten and unflatten": lambda t: t.flatten(1).unflatten(1, (2, 6)),
    "unsqueeze and squeeze": lambda t: t[:1].squeeze(0).unsqueeze(1),
    "diagonal": lambda t: t.diagonal(dim1=0, dim2=1),
    "unfold": lambda t: t.unfold(2, 2, 2),
    "as_strided": lambda t: t.as_strided((3, 2), (8, 3), 1),
    "movedim and swapaxes": lambda t: t.movedim(0, -1).swapaxes(0, 1),
    "tensor_split": lambda t: t.tensor_split((1, 3), 2)[1],
    "tensor_split by a tensor of the host": lambda t: t.tensor_split(torch.tensor([1, 3]), 2)[1],
    "hsplit": lambda t: t.hsplit(3)[0],
    "detach": lambda t: t.detach()[0],
    "view of another dtype": lambda t: t.view(torch.int32).view(torch.float32)[1],
    "view_as": lambda t: t.view_as(torch.empty(3, 8))[1],
    "T and mT": lambda t: t.mT[0].T,
}

WRITES: dict[str, Callable[[torch.Tensor], object]] = {
    "add_": lambda t: t.add_(1),
    "mul_": lambda t: t.mul_(2),
    "neg_": lambda t: t.neg_(),
    "zero_": lambda t: t.zero_(),
    "fill_": lambda t: t.fill_(9),
    "clamp_": lambda t: t.clamp_(2, 11),
    "copy_ from the host": lambda t: t.copy_(torch.arange(float(t.numel())).view(t.shape)),
    "copy_ broadcast": lambda t: t.copy_(t.new_tensor(5.0)),
    "masked_fill_": lambda t: t.masked_fill_(t > 6, 0),
    "set by index": lambda t: t.__setitem__(0, -1),
    "iadd": lambda t: t.__iadd__(t),
    "cumsum_": lambda t: t.cumsum_(0),
    "index_add_": lambda t: t.index_add_(0, torch.tensor([0], device=t.device), torch.ones_like(t[:1])),
    "out=": lambda t: torch.add(t, 3, out=t),
    "sort into": lambda t: t.copy_(t.sort(0, descending=True).values),
}


@pytest.mark.parametrize("name", VIEWS)
def test_a_view_has_the_cpus_shape_and_shares_memory(name: str) -> None:
    host = torch.arange(24.0).reshape(2, 3, 4)
    card = host.to(CARD)
    of_host, of_card = VIEWS[name](host), VIEWS[name](card)
    assert of_card.untyped_storage().data_ptr() == card.untyped_storage().data_ptr()
    assert of_card.storage_offset() == of_host.storage_offset()
    assert_same(of_card, of_host)
    of_host.mul_(2)
    of_card.mul_(2)
    assert_same(card, host)


@pytest.mark.parametrize("name", [name for name in VIEWS if name not in ("detach", "view of another dtype")])
def test_gradients_go_through_a_view(name: str) -> None:
    compare(lambda t: VIEWS[name](t.clone()) ** 2, torch.arange(24.0).reshape(2, 3, 4).requires_grad_())


@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize("view", ["select", "slice with a step", "transpose", "diagonal", "view"])
def test_a_write_goes_through_a_view(view: str, write: str) -> None:
    def go(base: torch.Tensor) -> torch.Tensor:
        WRITES[write](VIEWS[view](base))
        return base

    compare(go, torch.arange(24.0).reshape(2, 3, 4))


def test_gradients_go_through_writes_into_views() -> None:
    def go(leaf: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        base = leaf * 1
        base[:, 1].mul_(other)
        base[0].copy_(other.expand(3, 4))
        base.transpose(0, 1)[2].add_(other)
        return base**2

    compare(go, torch.randn(2, 3, 4, requires_grad=True), torch.randn(4, requires_grad=True))


def test_shapes_changed_in_place() -> None:
    def go(t: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return t.transpose_(0, 1).unsqueeze_(0).squeeze_(0), t.new_empty(0).resize_(2, 3).fill_(1), t.t_().contiguous()

    compare(go, torch.arange(12.0).view(3, 4))


def test_results_that_share_a_storage_still_do() -> None:
    first, second = torch.ones(4, 2, device=CARD).chunk(2)
    assert first.untyped_storage().data_ptr() == second.untyped_storage().data_ptr()
    whole = torch.complex(torch.ones(3, device=CARD), torch.zeros(3, device=CARD))
    whole.real.add_(1)
    assert_same(whole, torch.full((3,), 2.0 + 0j))


def test_a_view_outlives_its_base() -> None:
    base = torch.arange(6.0, device=CARD)
    view = base[2:4]
    del base
    torch.zeros(6, device=CARD)  # would take the memory, were it free
    assert_same(view, torch.tensor([2.0, 3.0]))


def test_uninitialised_memory_was_not_filled_in_deterministic_mode() -> None:
    torch.use_deterministic_algorithms(True)
    try:
        x = torch.ones(3, device=CARD)
        made = [
            torch.empty(3, device=CARD),
            torch.empty_like(x),
            x.new_empty(3),
            torch.empty_strided((3,), (1,), device=CARD),
        ]
        assert all(each.isnan().all() for each in made)
        assert torch.empty(2, dtype=torch.int32, device=CARD).tolist() == [2**31 - 1] * 2
    finally:
        torch.use_deterministic_algorithms(False)


def test_memory_formats() -> None:
    x = torch.randn(2, 3, 4, 5)
    compare(lambda t: t * 2, x.to(memory_format=torch.channels_last))
    for call, text in (
        (x.to(CARD).contiguous, "NPU contiguous operator only supported contiguous memory format."),
        (x.to(CARD).to, "Only contiguous_format or preserve_format is supported."),
    ):
        with pytest.raises(RuntimeError, match=text) as caught:
            call(memory_format=torch.channels_last)
        assert "ERR01007 OPS feature not supported" in str(caught.value)
    for refused in (
        lambda: torch.empty(1, 2, 3, 4, device=CARD, memory_format=torch.channels_last),
        lambda: x.to(CARD, memory_format=torch.channels_last),
    ):
        with pytest.raises(
            RuntimeError, match=r"Only (c10::MemoryFormat::Contiguous|contiguous_format or preserve_format) is"
        ):
            refused()
    with pytest.raises(RuntimeError, match="NPU only support format is contiguous_format or preserve_format"):
        x.to(CARD).resize_as_(x.to(CARD), memory_format=torch.channels_last)
    for made in (torch.empty_like, torch.clone):  # torch_npu passes it over
        assert made(x.to(CARD), memory_format=torch.channels_last).is_contiguous()
    laid_out = x.to(memory_format=torch.channels_last).to(CARD)
    assert laid_out.contiguous(memory_format=torch.channels_last) is laid_out
    assert torch.empty_strided((2, 3), (1, 2), device=CARD).stride() == (1, 2)


def test_storages_are_resized_and_set() -> None:
    t = torch.arange(4.0, device=CARD)
    t.untyped_storage().resize_(32)
    assert t.untyped_storage().nbytes() == 32
    assert_same(t, torch.arange(4.0))
    window = torch.empty(0, device=CARD).set_(t.untyped_storage(), 1, (2,))
    window.fill_(7)
    assert_same(t, torch.tensor([0.0, 7, 7, 3]))
    other = torch.empty(0, dtype=torch.uint8, device=CARD).set_(torch.UntypedStorage(64, device=CARD)).fill_(3)
    assert_same(other, torch.full((64,), 3, dtype=torch.uint8))
    t.untyped_storage().resize_(0)
    t.untyped_storage().resize_(16)
    assert_same(t.fill_(1), torch.ones(4))


# ---- any chain of views and writes

Step = Callable[[torch.Tensor, int, int], torch.Tensor]


def _wrote(write: Callable[[torch.Tensor], object]) -> Step:
    def go(t: torch.Tensor, _a: int, _b: int) -> torch.Tensor:
        write(t)
        return t

    return go


def _diagonal(t: torch.Tensor, a: int, b: int) -> torch.Tensor:
    return t.diagonal(a % 3 - 1, b % t.dim(), (b + 1) % t.dim()) if t.dim() > 1 else t


STEPS: list[Step] = [
    lambda t, a, b: t.transpose(a % t.dim(), b % t.dim()),
    lambda t, a, b: t.select(a % t.dim(), b % t.size(a % t.dim())) if t.dim() > 1 and t.numel() else t,
    lambda t, a, b: t.narrow(a % t.dim(), 0, max(t.size(a % t.dim()) - b % 2, 0)),
    lambda t, a, b: t[(slice(None),) * (a % t.dim()) + (slice(b % 2, None, 1 + b % 3),)],
    lambda t, a, b: t.unsqueeze(a % (t.dim() + 1)),
    lambda t, a, b: t.unfold(a % t.dim(), min(1 + b % 2, t.size(a % t.dim())), 1),
    lambda t, a, b: t.chunk(2, a % t.dim())[-1],
    lambda t, a, b: t.reshape(-1),
    lambda t, a, b: t.expand(2, *t.shape),
    lambda t, a, b: t.contiguous(),
    lambda t, a, b: t.flip(a % t.dim()),
    lambda t, a, b: t[a % t.size(0) :] if t.size(0) else t,
    _diagonal,
    _wrote(lambda t: t.add_(1)),
    _wrote(lambda t: t.mul_(t)),
    _wrote(lambda t: t.copy_(torch.arange(t.numel()).view(t.shape))),
    _wrote(lambda t: t.fill_(3)),
    _wrote(lambda t: t.masked_fill_(t > 5, -1)),
    _wrote(lambda t: t.clamp_(max=7)),
]


def follow(base: torch.Tensor, chain: list[tuple[int, int, int]]) -> tuple[torch.Tensor, list[str]]:
    """The last view of a chain, and the errors on the way (a write into memory that overlaps is refused)."""
    view, errors = base, []
    for which, a, b in chain:
        try:
            taken = STEPS[which](view, a, b)
        except RuntimeError as error:
            errors.append(str(error))
            continue
        view = taken if taken.dim() <= 5 else view
    return view, errors


@pytest.mark.filterwarnings("ignore:Use of masked_fill_ on expanded tensors is deprecated")
@hypothesis.given(
    strategies.lists(strategies.integers(1, 4), min_size=1, max_size=3),
    strategies.lists(
        strategies.tuples(strategies.integers(0, len(STEPS) - 1), strategies.integers(0, 3), strategies.integers(0, 3)),
        max_size=8,
    ),
)
def test_any_chain_of_views_and_writes_is_as_on_the_cpu(shape: list[int], chain: list[tuple[int, int, int]]) -> None:
    host = torch.arange(torch.Size(shape).numel(), dtype=torch.float64).view(shape)
    card = host.to(CARD)
    of_host, errors = follow(host, chain)
    of_card, errors_of_card = follow(card, chain)
    assert errors_of_card == errors
    assert of_card.storage_offset() == of_host.storage_offset()
    assert_same(of_card, of_host)
    assert_same(card, host)
