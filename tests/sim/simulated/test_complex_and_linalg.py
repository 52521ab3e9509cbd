"""Complex numbers, Fourier transforms and linear algebra.

Holds csrc/torch and its host operators against the CPU's results. tests/sim/test_simulated.py runs this module in a
process with simulated cards.
"""

from collections.abc import Callable

import pytest
import torch
from torch.testing import assert_close

from against_cpu import CARD, assert_same, compare

CLOSE = {"rtol": 1e-4, "atol": 1e-4}

COMPLEX: dict[str, Callable[[torch.Tensor], object]] = {
    "conjugate": lambda z: (z.conj() @ z, z.conj().resolve_conj(), z.conj().sin(), z.mH, z.adjoint()),
    "parts": lambda z: (z.real * 2, z.imag * 2, z.conj().imag.clone(), z.angle(), z.abs(), z.sgn()),
    "arithmetic": lambda z: (z * (1 + 2j), z / z, z**2, z + 1, 2j - z, z * z.real, z.exp(), z.sqrt(), z.tanh()),
    "reductions": lambda z: (z.sum(), z.mean(0), z.prod(1), z.cumsum(0), torch.linalg.vector_norm(z, dim=0)),
    "made of reals": lambda z: (torch.complex(z.real, z.imag), torch.polar(z.abs(), z.angle())),
    "views as reals and back": lambda z: torch.view_as_complex(torch.view_as_real(z) * 2),
    "choice": lambda z: (torch.where(z.real > 0, z, z.conj()), torch.cat([z, z.conj()]), z[1:, ::2], z.T.contiguous()),
}


@pytest.mark.parametrize("name", COMPLEX)
def test_complex(name: str) -> None:
    compare(COMPLEX[name], torch.randn(4, 4, dtype=torch.complex64, requires_grad=True), **CLOSE)


def test_bits_of_conjugate_and_negative_views() -> None:
    z = torch.randn(3, dtype=torch.complex64)
    card = z.to(CARD)
    assert card.conj().is_conj()
    assert card.conj().imag.is_neg()
    assert_same(card.conj().imag.resolve_neg(), z.conj().imag.resolve_neg())
    assert_close(card.conj().cpu().resolve_conj(), z.conj().resolve_conj())
    assert_close(card.conj().imag.cpu().resolve_neg(), z.conj().imag.resolve_neg())
    card.conj().mul_(1j)
    z.conj().mul_(1j)
    assert_same(card, z)
    card.real.zero_()
    z.real.zero_()
    assert_same(card, z)
    torch.view_as_real(card)[:, 0] = 5
    torch.view_as_real(z)[:, 0] = 5
    assert_same(card, z)
    target = torch.empty(3, dtype=torch.complex64, device=CARD)
    target.conj().copy_(card)
    assert_same(target, z.conj().resolve_conj())
    assert z.conj().to(CARD).cpu().resolve_conj()[0] == z.conj()[0]


def test_conjugates_in_place() -> None:
    z = torch.randn(3, dtype=torch.complex64)
    assert_same(z.to(CARD).conj_physical_(), z.conj_physical())
    assert_same(torch.conj_physical(z.to(CARD), out=torch.empty(0, dtype=z.dtype, device=CARD)), z.conj_physical())


FOURIER: dict[str, Callable[[torch.Tensor], object]] = {
    "fft": lambda t: torch.fft.fft(t),
    "rfft and back": lambda t: torch.fft.irfft(torch.fft.rfft(t), n=t.size(-1)),
    "fft2": lambda t: torch.fft.fft2(t, norm="ortho"),
    "fftn over some dimensions": lambda t: torch.fft.fftn(t, s=(4, 7), dim=(0, 2)),
    "ifft of shifted": lambda t: torch.fft.ifft(torch.fft.fftshift(t, dim=1), dim=1),
    "hfft": lambda t: torch.fft.hfft(torch.complex(t, t)),
    "stft": lambda t: torch.stft(t[0], 4, 2, window=torch.ones(4, device=t.device), return_complex=True),
    "frequencies": lambda t: (torch.fft.fftfreq(5, device=t.device) * t.sum(), torch.hann_window(6, device=t.device)),
}


@pytest.mark.parametrize("name", FOURIER)
def test_fourier(name: str) -> None:
    compare(FOURIER[name], torch.randn(3, 4, 6, requires_grad=True), **CLOSE)


LINALG: dict[str, Callable[[torch.Tensor], object]] = {
    "inv": torch.linalg.inv,
    "cholesky": torch.linalg.cholesky,
    "cholesky solve": lambda a: torch.cholesky_solve(a[..., :2], torch.linalg.cholesky(a)),
    "solve": lambda a: torch.linalg.solve(a, a + 1),
    "triangular solve": lambda a: torch.linalg.solve_triangular(a.tril(), a, upper=False),
    "det": lambda a: (torch.linalg.det(a), torch.linalg.slogdet(a)),
    "eigenvalues of symmetric": torch.linalg.eigvalsh,
    "eigenvalues": lambda a: torch.linalg.eigvals(a).abs().sort(-1).values,
    "singular values": torch.linalg.svdvals,
    "pinv": torch.linalg.pinv,
    "qr": lambda a: torch.linalg.qr(a),
    "lu": lambda a: torch.linalg.lu(a),
    "lu_factor": lambda a: torch.linalg.lu_factor(a)[0],
    "lstsq": lambda a: torch.linalg.lstsq(a, a[..., :2] + 1).solution,
    "exponential": lambda a: torch.linalg.matrix_exp(a / 10),
    "powers": lambda a: (torch.linalg.matrix_power(a, 3), torch.linalg.matrix_power(a, -1)),
    "norms": lambda a: (torch.linalg.matrix_norm(a), torch.linalg.matrix_norm(a, 2), torch.linalg.norm(a[0], 1)),
    "cross": lambda a: torch.linalg.cross(a[..., :3], a[..., 1:4] + 1),
    "vander": lambda a: torch.linalg.vander(a[0]),
    "multi_dot": lambda a: torch.linalg.multi_dot([a[0], a[1], a[0]]),
}


def symmetric(count: int = 2, size: int = 5) -> torch.Tensor:
    a = torch.randn(count, size, size, dtype=torch.float64)
    return (a @ a.mT + torch.eye(size)).requires_grad_()


@pytest.mark.parametrize("name", LINALG)
def test_linear_algebra(name: str) -> None:
    compare(LINALG[name], symmetric())


def test_decompositions_give_the_matrix_back() -> None:
    a = symmetric().detach()
    card = a.to(CARD)
    u, s, vh = torch.linalg.svd(card)
    assert_same(u @ torch.diag_embed(s) @ vh, a)
    values, vectors = torch.linalg.eigh(card)
    assert_same(vectors @ torch.diag_embed(values) @ vectors.mT, a)
    q, r = torch.linalg.qr(card)
    assert_same(q @ r, a)
    values, vectors = torch.linalg.eig(card)
    assert_same((vectors @ torch.diag_embed(values) @ torch.linalg.inv(vectors)).real.contiguous(), a)
    pivots, lower, upper = torch.linalg.lu(card)
    assert_same(pivots @ lower @ upper, a)


@pytest.mark.parametrize("decompose", [torch.linalg.svd, torch.linalg.eigh])
def test_gradients_of_decompositions(decompose: Callable[[torch.Tensor], tuple[torch.Tensor, ...]]) -> None:
    compare(lambda a: [part.abs() for part in decompose(a)], symmetric(1, 4))


@pytest.mark.parametrize("adjoint", [False, True])
@pytest.mark.parametrize("left", [False, True])
def test_solving_with_factors(left: bool, adjoint: bool) -> None:
    a, b = torch.randn(3, 3, dtype=torch.complex128), torch.randn(3, 3, dtype=torch.complex128)
    factors, pivots = torch.linalg.lu_factor(a)
    compare(lambda *given: torch.linalg.lu_solve(*given, left=left, adjoint=adjoint), factors, pivots, b)


def test_singular_values_into_given_tensors() -> None:
    a = torch.randn(3, 3, dtype=torch.complex128)
    out = [torch.empty(0, dtype=dtype, device=CARD) for dtype in (a.dtype, torch.float64, a.dtype)]
    torch.svd(a.to(CARD), out=tuple(out))
    assert_same(out[1], torch.svd(a).S)


def test_least_squares_of_a_tall_matrix() -> None:
    a, b = torch.randn(6, 3, dtype=torch.float64), torch.randn(6, 2, dtype=torch.float64)
    ours, theirs = torch.linalg.lstsq(a.to(CARD), b.to(CARD)), torch.linalg.lstsq(a, b)
    assert_same(ours.solution, theirs.solution)
    assert_same(ours.residuals, theirs.residuals)


def test_a_singular_matrix_is_an_error_of_the_cpu() -> None:
    with pytest.raises(torch.linalg.LinAlgError, match="singular"):
        torch.linalg.inv(torch.zeros(2, 2, device=CARD))
    with pytest.raises(torch.linalg.LinAlgError, match="not positive-definite"):
        torch.linalg.cholesky(-torch.eye(2, device=CARD))
    factor, info = torch.linalg.cholesky_ex(-torch.eye(2, device=CARD))
    assert info.device == factor.device == CARD
    assert info.item() == 1


def test_out_of_several_results() -> None:
    a = symmetric().detach()
    out = (torch.empty(0, dtype=a.dtype, device=CARD), torch.empty(0, dtype=a.dtype, device=CARD))
    torch.linalg.qr(a.to(CARD), out=out)
    assert_same(out, tuple(torch.linalg.qr(a)))


def test_plans_of_fourier_transforms_are_counted_and_the_oldest_goes_first() -> None:
    """Nothing was counted."""
    plans = torch.npu.backends.fft_plan_cache
    plans.clear()
    x = torch.randn(3, 7, dtype=torch.complex64).to(CARD)
    torch.fft.ifft(x)
    torch.fft.ifft(x)
    assert plans.size == 1
    torch.fft.fft(x)
    torch.fft.fft2(x)  # one more: its axis of 7 has a plan
    torch.fft.rfft(x.real)
    assert plans.size == 4
    torch.fft.fft(x[:1], dim=0)  # an axis of one element needs none
    assert plans.size == 4
    try:
        plans.max_size = 2
        assert plans.size == 2
        plans.max_size = 0  # passed over, as on a card
        assert plans.max_size == 2
    finally:
        plans.max_size = 10
    plans.clear()
    assert plans.size == 0
    with pytest.raises(RuntimeError, match="read-only"):
        plans.size = 1
