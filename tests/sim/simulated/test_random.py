"""Random numbers: seeds repeat them, each card has its own generator, the CPU's is never touched.

Holds csrc/torch/random.cpp and sim/npu/random.py against torch's rules for generators. tests/sim/test_simulated.py runs
this module in a process with simulated cards.
"""

import threading
from collections.abc import Callable, Iterator

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from against_cpu import CARD, HostGeneratorUntouched

SECOND = torch.device("npu:1")

DRAWS: dict[str, Callable[[], torch.Tensor]] = {
    "rand": lambda: torch.rand(50, device=CARD),
    "randn": lambda: torch.randn(50, device=CARD),
    "randint": lambda: torch.randint(0, 1000, (50,), device=CARD),
    "randperm": lambda: torch.randperm(50, device=CARD),
    "rand_like": lambda: torch.rand_like(torch.zeros(50, device=CARD)),
    "normal": lambda: torch.normal(torch.zeros(50, device=CARD), 2.0),
    "normal with two numbers": lambda: torch.normal(0.0, 1.0, (50,), device=CARD),
    "bernoulli": lambda: torch.bernoulli(torch.full((50,), 0.5, device=CARD)),
    "multinomial": lambda: torch.multinomial(torch.ones(50, device=CARD), 20),
    "multinomial with replacement": lambda: torch.multinomial(torch.ones(50, device=CARD), 20, replacement=True),
    "poisson": lambda: torch.poisson(torch.full((50,), 9.0, device=CARD)),
    "in place": lambda: torch.zeros(50, device=CARD).uniform_(-1, 1) + torch.zeros(50, device=CARD).normal_(),
    "exponential": lambda: torch.zeros(50, device=CARD).exponential_(),
    "cauchy and geometric": lambda: (
        torch.zeros(50, device=CARD).cauchy_() + torch.zeros(50, device=CARD).geometric_(0.3)
    ),
    "log_normal and random": lambda: (
        torch.zeros(50, device=CARD).log_normal_() + torch.zeros(50, device=CARD).random_()
    ),
    "dropout": lambda: F.dropout(torch.ones(50, device=CARD)),
    "dropout in place": lambda: F.dropout(torch.ones(50, device=CARD), inplace=True),
    "native_dropout": lambda: torch.native_dropout(torch.ones(50, device=CARD), 0.5, True)[0],
    "alpha_dropout": lambda: F.alpha_dropout(torch.ones(50, device=CARD), training=True),
    "dropout of channels": lambda: F.dropout2d(torch.ones(1, 50, 1, 1, device=CARD)),
    "rrelu": lambda: F.rrelu(-torch.ones(50, device=CARD), training=True),
    "gumbel_softmax": lambda: F.gumbel_softmax(torch.zeros(50, device=CARD)),
    "initialisation": lambda: nn.init.trunc_normal_(torch.empty(50, device=CARD)),
    "a new layer": lambda: nn.Linear(5, 5, device=CARD).weight.detach(),
    "distribution": lambda: torch.distributions.Gamma(torch.ones(50, device=CARD), 1.0).sample(),
    "categorical": lambda: torch.distributions.Categorical(logits=torch.zeros(50, 9, device=CARD)).sample(),
}


@pytest.fixture(autouse=True)
def host_generator_untouched(known_state: None) -> Iterator[None]:
    with HostGeneratorUntouched():
        yield


@pytest.mark.parametrize("name", DRAWS)
def test_a_seed_repeats_a_draw(name: str) -> None:
    torch.npu.manual_seed(7)
    first = DRAWS[name]()
    second = DRAWS[name]()
    torch.npu.manual_seed(7)
    again = DRAWS[name]()
    assert first.device == CARD
    assert torch.equal(first, again)
    assert not torch.equal(first, second)


def test_draws_have_the_right_distribution() -> None:
    uniform, normal = torch.rand(4000, device=CARD), torch.randn(4000, device=CARD)
    assert 0 <= uniform.min() < 0.01 < 0.99 < uniform.max() < 1
    assert abs(uniform.mean().item() - 0.5) < 0.03
    assert abs(normal.mean().item()) < 0.06
    assert abs(normal.std().item() - 1) < 0.06
    assert sorted(torch.randperm(100, device=CARD).tolist()) == list(range(100))


def test_torch_manual_seed_seeds_every_card() -> None:
    state = torch.get_rng_state()
    torch.manual_seed(5)
    first = [torch.rand(4, device=f"npu:{index}").cpu() for index in range(4)]
    torch.manual_seed(5)
    assert all(torch.equal(torch.rand(4, device=f"npu:{index}").cpu(), first[index]) for index in range(4))
    torch.manual_seed(6)
    assert not torch.equal(torch.rand(4, device=CARD).cpu(), first[0])
    torch.set_rng_state(state)


def test_cards_draw_independently() -> None:
    torch.npu.manual_seed_all(3)
    expected = torch.rand(4, device=SECOND)
    torch.npu.manual_seed_all(3)
    torch.rand(100, device=CARD)
    assert torch.equal(torch.rand(4, device=SECOND), expected)
    with torch.npu.device(1):
        torch.npu.manual_seed(3)
        assert torch.npu.initial_seed() == 3
    assert torch.equal(torch.rand(4, device=SECOND), expected)


def test_seeds_from_the_system() -> None:
    torch.npu.seed()
    first = torch.npu.initial_seed()
    torch.npu.seed_all()
    assert torch.npu.initial_seed() != first
    with torch.npu.device(2):
        assert torch.npu.initial_seed() == torch.npu.default_generators[0].initial_seed()


def test_states_are_kept_and_set() -> None:
    state = torch.npu.get_rng_state()
    assert state.device.type == "cpu"
    assert state.dtype == torch.uint8
    first = torch.rand(4, device=CARD)
    torch.npu.set_rng_state(state)
    assert torch.equal(torch.rand(4, device=CARD), first)
    states = torch.npu.get_rng_state_all()
    assert len(states) == 4
    first, second = torch.rand(4, device=CARD), torch.rand(4, device=SECOND)
    torch.npu.set_rng_state_all(states)
    assert torch.equal(torch.rand(4, device=CARD), first)
    assert torch.equal(torch.rand(4, device=SECOND), second)
    torch.npu.set_rng_state(states[1], "npu:1")
    assert torch.equal(torch.rand(4, device=SECOND), second)
    torch.npu.set_rng_state(torch.npu.get_rng_state("npu:1"), SECOND)


def test_generators() -> None:
    generator = torch.Generator("npu:1")
    assert generator.device == SECOND
    assert generator.manual_seed(3) is generator
    before = torch.npu.get_rng_state(1)
    first = torch.randn(4, device=SECOND, generator=generator)
    assert torch.equal(torch.npu.get_rng_state(1), before)
    generator.manual_seed(3)
    assert torch.equal(torch.randn(4, device=SECOND, generator=generator), first)
    state = generator.get_state()
    first = torch.randperm(9, device=SECOND, generator=generator)
    generator.set_state(state)
    assert torch.equal(torch.randperm(9, device=SECOND, generator=generator), first)
    assert generator.initial_seed() == 3
    copy = generator.clone_state()
    assert torch.equal(
        torch.zeros(3, device=SECOND).normal_(generator=copy),
        torch.zeros(3, device=SECOND).normal_(generator=generator),
    )
    assert torch.Generator("npu").device == CARD
    assert torch.multinomial(torch.ones(5, device=SECOND), 2, generator=generator).device == SECOND


def test_a_state_is_a_seed_and_an_offset() -> None:
    """As on a card (NPUGeneratorImpl.cpp), so that states of checkpoints go both ways."""
    generator = torch.Generator(CARD).manual_seed(3)
    assert (generator.initial_seed(), generator.get_offset()) == (3, 0)
    first = torch.randn(8, device=CARD, generator=generator)
    second = torch.randn(8, device=CARD, generator=generator)
    assert generator.get_offset() == 24
    assert generator.get_state().tolist() == [3, *[0] * 7, 24, *[0] * 7]
    generator.set_state(torch.tensor([3, *[0] * 7, 12, *[0] * 7], dtype=torch.uint8))
    assert torch.equal(torch.randn(8, device=CARD, generator=generator), second)
    generator.set_offset(0)
    assert torch.equal(torch.randn(8, device=CARD, generator=generator), first)
    generator.set_state(torch.tensor([3, *[0] * 7], dtype=torch.uint8))  # without an offset, as of old
    assert generator.get_offset() == 0
    generator.set_offset(2**40)
    assert not torch.equal(torch.randn(8, device=CARD, generator=generator), first)


def test_wrong_states_and_offsets() -> None:
    generator = torch.Generator(CARD).manual_seed(3)
    with pytest.raises(RuntimeError, match=r"offset must be a multiple of 4\n.* ERR00003 PTA invalid value"):
        generator.set_offset(10)
    with pytest.raises(RuntimeError, match=r"RNG state is wrong size\n.* ERR00001 PTA invalid parameter"):
        torch.npu.set_rng_state(torch.zeros(5056, dtype=torch.uint8))
    with pytest.raises(TypeError, match="RNG state must be a torch"):
        generator.set_state(torch.zeros(16))


def test_copies_of_generators() -> None:
    generator = torch.Generator(CARD).manual_seed(3)
    torch.randn(8, device=CARD, generator=generator)
    copy = generator.clone_state()
    assert copy.get_offset() == generator.get_offset()
    assert torch.equal(torch.rand(3, device=CARD, generator=copy), torch.rand(3, device=CARD, generator=generator))
    copy.set_offset(0)
    assert generator.get_offset() == 24
    shared = torch.Generator(CARD)
    shared.graphsafe_set_state(generator.graphsafe_get_state())
    torch.rand(3, device=CARD, generator=shared)
    assert generator.get_offset() == 36
    with pytest.raises(RuntimeError, match="Expected a NPU Generator"):
        generator.graphsafe_set_state(torch.Generator())


def test_the_offset_of_a_card() -> None:
    torch.npu.manual_seed(4)
    assert torch.npu._get_rng_state_offset() == 0
    drawn = torch.rand(3, device=CARD), torch.rand(3, device=CARD)
    assert torch.npu._get_rng_state_offset() == 24
    torch.npu._set_rng_state_offset(12)
    assert torch.equal(torch.rand(3, device=CARD), drawn[1])
    torch.npu._set_rng_state_offset(100, SECOND)
    assert torch.npu._get_rng_state_offset("npu:1") == 100


def test_threads_that_share_a_generator_never_draw_the_same() -> None:
    drawn: list[float] = []
    threads = [
        threading.Thread(target=lambda: drawn.extend(torch.rand(1, device=CARD).item() for _ in range(50)))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(drawn)) == 200


def test_generators_of_another_device_are_refused() -> None:
    with pytest.raises(RuntimeError, match="Expected a 'npu' device type for generator but found 'cpu'"):
        torch.randn(4, device=CARD, generator=torch.Generator())
    with pytest.raises(RuntimeError, match="Expected a 'cpu' device type for generator but found 'npu'"):
        torch.randn(4, generator=torch.Generator("npu"))
    host = torch.zeros(4)
    with pytest.raises(RuntimeError, match="Expected a 'cpu' device type for generator but found 'npu'"):
        host.uniform_(generator=torch.Generator("npu"))
    assert host.data_ptr() != 0


def test_default_generators() -> None:
    assert len(torch.npu.default_generators) == 4
    torch.npu.manual_seed(9)
    assert torch.npu.default_generators[0].initial_seed() == 9
    first = torch.rand(3, device=CARD)
    torch.npu.default_generators[0].manual_seed(9)
    assert torch.equal(torch.rand(3, device=CARD), first)


def test_fork_rng() -> None:
    torch.npu.manual_seed_all(1)
    expected = torch.rand(3, device=CARD), torch.rand(3, device=SECOND)
    torch.npu.manual_seed_all(1)
    with torch.random.fork_rng(devices=[0, 1], device_type="npu"):
        torch.rand(7, device=CARD)
        torch.manual_seed(12)
        torch.rand(7, device=SECOND)
    assert torch.equal(torch.rand(3, device=CARD), expected[0])
    assert torch.equal(torch.rand(3, device=SECOND), expected[1])


def test_dropout() -> None:
    x = torch.ones(1000, device=CARD, requires_grad=True)
    y = nn.Dropout(0.25)(x)
    kept = y != 0
    assert 650 < kept.sum() < 850
    assert torch.equal(y[kept], torch.full_like(y[kept], 1 / 0.75))
    y.sum().backward()
    assert x.grad is not None
    assert torch.equal(x.grad != 0, kept)
    assert nn.Dropout(0.25).eval()(x) is not None
    assert torch.equal(nn.Dropout(0.25).eval()(x), x)
    assert not F.dropout(x, 1.0).any()
    assert torch.equal(F.dropout(x, 0.0), x)
    values, mask = torch.native_dropout(x, 0.5, True)
    assert torch.equal(values != 0, mask)
    assert torch.native_dropout(x, 0.5, False)[1].all()


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_a_checkpoint_repeats_its_dropout(use_reentrant: bool) -> None:
    x = torch.randn(200, device=CARD, requires_grad=True)
    torch.npu.manual_seed(2)
    plain = F.dropout(x * 2)
    (expected,) = torch.autograd.grad(plain.sum(), x)
    torch.npu.manual_seed(2)
    again = checkpoint(lambda t: F.dropout(t * 2), x, use_reentrant=use_reentrant)
    again.sum().backward()
    assert torch.equal(again, plain)
    assert torch.equal(x.grad, expected)
