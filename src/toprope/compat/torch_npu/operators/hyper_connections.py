"""Manifold-constrained hyper-connections (mHC): n residual streams that are mixed before and after each layer.

Part of the torch_npu facade: programs call these operators as `torch_npu.NAME`. registry.py finds the lines
`@operator(...)` as text, and imports this file at the first call. Names and parameters follow
support/npu_operators.toml, results and refusals the vendor's documents and code; how a value is composed of torch's
operators is free, but must stay differentiable where that table says so. Tests:
tests/compat/operators/test_hyper_connections.py for values and refusals.

The kernels are those of the Ascend 950. Streams are [B, S, n, D] or [T, n, D]; what mixes them is float32.
"""

from __future__ import annotations

from typing import cast

import torch

from .._error_codes import ErrCode, ops_error
from .checks import refuse
from .registry import operator

__all__ = [
    "npu_mhc_post",
    "npu_mhc_post_backward",
    "npu_mhc_pre",
    "npu_mhc_pre_backward",
    "npu_mhc_sinkhorn",
    "npu_mhc_sinkhorn_backward",
]

_STREAMS = (4, 6, 8)
_ALIGN = 8

Triple = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
Four = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]
Five = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]
Six = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]


def _fail(reason: str, error: ErrCode = ErrCode.PARAM) -> None:
    raise RuntimeError(reason + ops_error(error))


def _check_post(
    name: str, x: torch.Tensor, h_res: torch.Tensor | None, h_out: torch.Tensor, h_post: torch.Tensor
) -> None:
    if x.dtype not in (torch.float16, torch.bfloat16) or h_out.dtype != x.dtype:
        refuse(name, f"x is {x.dtype} and h_out {h_out.dtype}; the kernel takes float16 or bfloat16 for both")
    if x.dim() not in (3, 4):
        refuse(name, f"x has {x.dim()} dimensions; the kernel takes 3 and 4")
    lead, (streams, width) = list(x.shape[:-2]), x.shape[-2:]
    expected = {
        "h_res": (h_res, [*lead, streams, streams], torch.float32),
        "h_out": (h_out, [*lead, width], x.dtype),
        "h_post": (h_post, [*lead, streams], torch.float32),
    }
    for what, (tensor, shape, dtype) in expected.items():
        if tensor is not None and (list(tensor.shape) != shape or tensor.dtype != dtype):
            refuse(name, f"{what} is {list(tensor.shape)} {tensor.dtype}; {shape} {dtype} is expected")


@operator("npu_mhc_post")
def npu_mhc_post(
    x: torch.Tensor, h_res: torch.Tensor | None, h_out: torch.Tensor, h_post: torch.Tensor
) -> torch.Tensor:
    """Streams after a layer: stream j is sum over i of h_res[i, j] * x[i], plus h_post[j] * h_out.

    Args:
        x: streams before the layer, [B, S, n, D] or [T, n, D]; float16 or bfloat16.
        h_res: mixes the streams, [..., n, n] in float32; None to keep them.
        h_out: result of the layer, [..., D], in the dtype of `x`.
        h_post: weight of the result in each stream, [..., n] in float32.

    Returns:
        the new streams, like `x`.

    Raises:
        RuntimeError: the kernel would not take the input.

    Source: torch_npu-npu_mhc_post.md; which index of h_res is summed, from test_npu_mhc_post.py of op-plugin.
    """
    _check_post("npu_mhc_post", x, h_res, h_out, h_post)
    wide = x.float()
    mixed = wide if h_res is None else h_res.mT @ wide
    return (mixed + h_post.unsqueeze(-1) * h_out.float().unsqueeze(-2)).to(x.dtype)


def _check_post_backward(
    grad_y: torch.Tensor,
    x: torch.Tensor,
    h_res: torch.Tensor | None,
    h_out: torch.Tensor,
    h_post: torch.Tensor,
) -> None:
    for what, tensor in (("grad_y", grad_y), ("x", x), ("h_out", h_out), ("h_post", h_post), ("h_res", h_res)):
        if tensor is not None and not tensor.numel():
            _fail(f"Tensor {what} is empty.")
    if x.dtype not in (torch.float16, torch.bfloat16):
        _fail(f"x dtype must be FLOAT16 or BFLOAT16, but got {x.dtype}")
    for what, tensor in (("grad_y", grad_y), ("h_out", h_out)):
        if tensor.dtype != x.dtype:
            _fail(f"{what} dtype must be the same as x, but got {tensor.dtype}")
    for what, mix in (("h_post", h_post), ("h_res", h_res)):
        if mix is not None and mix.dtype != torch.float32:
            _fail(f"{what} dtype must be FLOAT32, but got {mix.dtype}")
    if x.dim() not in (3, 4):
        _fail(f"x dim must be 3 or 4, but got {x.dim()}")
    if grad_y.shape != x.shape:
        _fail("grad_y shape must be the same as x shape.")
    for what, tensor in (("h_out", h_out), ("h_post", h_post)):
        if tensor.dim() != x.dim() - 1:
            _fail(f"{what} dim must be {x.dim() - 1}, but got {tensor.dim()}")
    square = [*x.shape[:-1], x.shape[-2]]
    if h_res is not None and list(h_res.shape) != square:
        _fail(f"h_res shape must be {square}, but got {list(h_res.shape)}")
    _check_post("npu_mhc_post_backward", x, h_res, h_out, h_post)


@operator("npu_mhc_post_backward")
def npu_mhc_post_backward(
    grad_y: torch.Tensor,
    x: torch.Tensor,
    h_res: torch.Tensor | None,
    h_out: torch.Tensor,
    h_post: torch.Tensor,
) -> Four:
    """Gradient of npu_mhc_post.

    Args:
        grad_y: gradient of the result, like `x`.
        x, h_res, h_out, h_post: as for npu_mhc_post.

    Returns:
        the gradients of x, h_res, h_out and h_post. Without h_res its gradient is zero (unwritten memory on the card).

    Raises:
        RuntimeError: the kernel would not take the input.
    """
    _check_post_backward(grad_y, x, h_res, h_out, h_post)
    grad, wide = grad_y.float(), x.float()
    to_x = grad if h_res is None else h_res @ grad
    shape = (*x.shape[:-1], x.shape[-2])
    to_res = wide @ grad.mT if h_res is not None else torch.zeros(shape, dtype=torch.float32, device=x.device)
    to_out = (h_post.unsqueeze(-1) * grad).sum(-2)
    to_post = (h_out.float().unsqueeze(-2) * grad).sum(-1)
    return to_x.to(x.dtype), to_res, to_out.to(h_out.dtype), to_post


def _hf32(x: torch.Tensor) -> torch.Tensor:
    """float32 values rounded to 10 bits of mantissa; the gradient passes."""
    bits = x.detach().contiguous().view(torch.int32)
    rounded = (((bits >> 12) + 1) >> 1 << 13).view(torch.float32)
    return x + (rounded - x.detach())


def _check_pre(
    x: torch.Tensor,
    phi: torch.Tensor,
    alpha: torch.Tensor,
    bias: torch.Tensor,
    gamma: torch.Tensor | None,
    out_flag: int,
    inner_precise: int,
) -> None:
    value = ErrCode.VALUE
    for what, tensor in (("x", x), ("phi", phi)):
        if not tensor.numel():
            _fail(f"Input {what} should not be empty.", value)
    if alpha.numel() not in (2, 3):
        _fail(f"Input alpha must have 3 or 2 elements, but got {alpha.numel()}.", value)
    if not bias.numel():
        _fail("Input bias should not be empty.", value)
    if x.dim() not in (3, 4):
        _fail(f"Input x must be 3D or 4D, but got {x.dim()}D.", value)
    if inner_precise not in (0, 1):
        modes = "0 (Cube uses FP32) or 1 (Cube uses HF32)"
        _fail(f"Input inner_precise must be {modes}, but got {inner_precise}.", value)
    if out_flag not in (0, 1):
        _fail(f"Input out_flag must be 0 or 1, but got {out_flag}.", value)
    name, (streams, width) = "npu_mhc_pre", x.shape[-2:]
    rows = 2 * streams + (streams * streams if alpha.numel() == 3 else 0)
    if x.dtype not in (torch.float16, torch.bfloat16):
        refuse(name, f"x is {x.dtype}; the kernel takes float16 and bfloat16")
    if streams not in _STREAMS or width % 16 or width > 16384:
        refuse(name, f"x has {streams} streams of {width} elements; the kernel takes 4, 6 or 8 of a multiple of 16")
    for what, given, shape in (
        ("phi", phi, [rows, streams * width]),
        ("bias", bias, [rows]),
        ("gamma", gamma, [streams, width]),
    ):
        if given is not None and (list(given.shape) != shape or given.dtype != torch.float32):
            refuse(name, f"{what} is {list(given.shape)} {given.dtype}; {shape} torch.float32 is expected")


@operator("npu_mhc_pre")
def npu_mhc_pre(
    x: torch.Tensor,
    phi: torch.Tensor,
    alpha: torch.Tensor,
    bias: torch.Tensor,
    *,
    gamma: torch.Tensor | None = None,
    norm_eps: float = 1e-6,
    hc_eps: float = 1e-6,
    out_flag: int = 0,
    inner_precise: int = 0,
) -> Six:
    """Input of a layer from the streams, and how its result and the streams are mixed after it.

    With h = phi @ (all streams as one vector, normalised by their root mean square and scaled by gamma) in three
    parts: h_pre = sigmoid(alpha[0] h + bias) + hc_eps, h_post = 2 sigmoid(alpha[1] h + bias),
    h_res = alpha[2] h + bias, and h_in = sum over the streams of h_pre[i] * x[i].

    Args:
        x: streams, [B, S, n, D] or [T, n, D], n = 4, 6 or 8 and D a multiple of 16; float16 or bfloat16.
        phi: [n + n + n * n, n * D] in float32; [n + n, n * D] for two elements of `alpha`.
        alpha: 3 elements, or 2 to leave out h_res; float32.
        bias: one element for each row of `phi`; float32.
        gamma: [n, D] in float32; None for 1.
        norm_eps: added to the mean square.
        hc_eps: added to h_pre.
        out_flag: 1 to return the last three results.
        inner_precise: 1 to round what is multiplied by `phi`, and `phi`, to HF32 (10 bits of mantissa).

    Returns:
        (h_in, h_post, h_res, inv_rms, h_mix, h_pre): h_in [..., D] in the dtype of `x`, the others in float32. h_post
        is [..., n] and h_res [..., n, n], or one zero. For out_flag 1 the reciprocal of the root mean square [...],
        the product before normalisation [..., rows] and h_pre [..., n], without gradients; else None.

    Raises:
        RuntimeError: the kernel would not take the input.

    Source: torch_npu-npu_mhc_pre.md and test_npu_mhc_pre.py of op-plugin.
    """
    _check_pre(x, phi, alpha, bias, gamma, out_flag, inner_precise)
    streams = x.shape[-2]
    wide = x.float()
    vector = wide.flatten(-2)
    inverse = torch.rsqrt(vector.square().mean(-1) + norm_eps)
    left, right = vector if gamma is None else vector * gamma.reshape(-1), phi
    if inner_precise:
        left, right = _hf32(left), _hf32(right)
    mix = left @ right.mT
    weights = mix * inverse.unsqueeze(-1)
    pre = torch.sigmoid(weights[..., :streams] * alpha[0] + bias[:streams]) + hc_eps
    post = 2 * torch.sigmoid(weights[..., streams : 2 * streams] * alpha[1] + bias[streams : 2 * streams])
    if alpha.numel() == 3:
        res = weights[..., 2 * streams :] * alpha[2] + bias[2 * streams :]
        res = res.reshape(*res.shape[:-1], streams, streams)
    else:
        res = torch.zeros(1, dtype=torch.float32, device=x.device)
    h_in = (pre.unsqueeze(-1) * wide).sum(-2).to(x.dtype)
    if not out_flag:
        return cast(Six, (h_in, post, res, None, None, None))
    return h_in, post, res, inverse.detach(), mix.detach(), pre.detach()


@operator("npu_mhc_pre_backward")
def npu_mhc_pre_backward(
    x: torch.Tensor,
    phi: torch.Tensor,
    alpha: torch.Tensor,
    grad_h_in: torch.Tensor,
    grad_h_post: torch.Tensor,
    grad_h_res: torch.Tensor,
    inv_rms: torch.Tensor,
    h_mix: torch.Tensor,
    h_pre: torch.Tensor,
    h_post: torch.Tensor,
    gamma: torch.Tensor | None = None,
    hc_eps: float = 1e-6,
    grad_x_post: torch.Tensor | None = None,
    inner_precise: int = 0,
) -> Five:
    """Gradient of npu_mhc_pre with three elements of alpha.

    Args:
        x, phi, alpha, gamma, hc_eps: as for npu_mhc_pre.
        grad_h_in, grad_h_post, grad_h_res: gradients of its first three results.
        inv_rms, h_mix, h_pre, h_post: its other results, and the second.
        grad_x_post: a gradient of `x` from elsewhere, which is added; None for zero.
        inner_precise: as for npu_mhc_pre; only 0 is simulated.

    Returns:
        the gradients of x (in its dtype), phi, alpha, bias and gamma (float32; zero without it).

    Raises:
        RuntimeError: the kernel would not take the input.

    Source: MhcPreBackwardNpuOpapi.cpp and test_npu_mhc_pre_backward.py of op-plugin.
    """
    given = {
        "x": x, "phi": phi, "alpha": alpha, "grad_h_in": grad_h_in, "grad_h_post": grad_h_post,
        "grad_h_res": grad_h_res, "inv_rms": inv_rms, "h_mix": h_mix, "h_pre": h_pre, "h_post": h_post,
    }  # fmt: skip
    for what, tensor in given.items():
        if not tensor.numel():
            raise RuntimeError(f"Tensor {what} is empty.")
    if x.dim() not in (3, 4):
        raise RuntimeError(f"Input x must be 3D or 4D, but got {x.dim()}D.")
    if alpha.numel() != 3 or inner_precise:
        refuse("npu_mhc_pre_backward", "two elements of alpha, and inner_precise 1, are not simulated")
    streams, width = x.shape[-2:]
    vector = x.float().reshape(-1, streams * width)
    tokens = vector.shape[0]
    inverse, mix = inv_rms.reshape(tokens, 1), h_mix.reshape(tokens, -1)
    pre, post = h_pre.reshape(tokens, streams), h_post.reshape(tokens, streams)
    to_in = grad_h_in.float().reshape(tokens, 1, width)

    sigmoid = pre - hc_eps
    to_pre = (to_in * vector.reshape(tokens, streams, width)).sum(-1) * sigmoid * (1 - sigmoid)
    to_post = grad_h_post.float().reshape(tokens, streams) * post * (1 - post / 2)
    to_res = grad_h_res.float().reshape(tokens, streams * streams)
    parts = (streams, streams, streams * streams)
    before = torch.cat((to_pre, to_post, to_res), -1)
    to_alpha = torch.stack([part.sum() for part in (before * mix * inverse).split_with_sizes(parts, -1)])
    scaled = torch.cat([part * alpha[i] for i, part in enumerate(before.split_with_sizes(parts, -1))], -1)

    to_mix = scaled * inverse
    factor = None if gamma is None else gamma.float().reshape(1, -1)
    to_phi = to_mix.mT @ (vector if factor is None else vector * factor)
    through = to_mix @ phi.float()
    to_inverse = (scaled * mix).sum(-1, keepdim=True)
    to_x = through if factor is None else through * factor
    to_x = to_x - to_inverse * inverse**3 / (streams * width) * vector
    to_x = to_x + (pre.unsqueeze(-1) * to_in).flatten(1)
    if grad_x_post is not None:
        to_x = to_x + grad_x_post.float().reshape(to_x.shape)
    to_gamma = torch.zeros(streams * width, dtype=torch.float32, device=x.device)
    if factor is not None:
        to_gamma = (vector * through).sum(0)
    return to_x.reshape(x.shape).to(x.dtype), to_phi, to_alpha, before.sum(0), to_gamma.reshape(streams, width)


@operator("npu_mhc_sinkhorn")
def npu_mhc_sinkhorn(x: torch.Tensor, *, eps: float = 1e-6, num_iters: int = 20, out_flag: int = 0) -> Triple:
    """Doubly stochastic matrices: softmax of the rows, then columns and rows divided by their sums in turn.

    Args:
        x: [B, S, n, n] or [T, n, n] with n = 4, 6 or 8; float32.
        eps: added to the softmax and to each sum.
        num_iters: number of rounds, 1 to 100; the first one divides the columns alone.
        out_flag: 1 to return what the gradient needs.

    Returns:
        (y, norm, sum): y like `x`. For out_flag 1 the matrices and the sums after each step, in one dimension with
        rows padded to 8: [2 * num_iters, T, n, 8] and [2 * num_iters, T, 8] (the card orders them by core); else
        None.

    Raises:
        RuntimeError: the kernel would not take the input.

    Source: torch_npu-npu_mhc_sinkhorn.md.
    """
    name = "npu_mhc_sinkhorn"
    if x.dtype != torch.float32:
        refuse(name, f"x is {x.dtype}; the kernel takes float32")
    if x.dim() not in (3, 4) or x.shape[-1] != x.shape[-2] or x.shape[-1] not in _STREAMS or not x.numel():
        refuse(name, f"x has shape {list(x.shape)}; the kernel takes [B, S, n, n] and [T, n, n] with n = 4, 6 or 8")
    if not 1 <= num_iters <= 100 or out_flag not in (0, 1):
        refuse(name, f"num_iters is {num_iters} and out_flag {out_flag}; the kernel takes 1 to 100, and 0 or 1")
    y = torch.softmax(x, -1) + eps
    norms, sums = [y], [torch.zeros_like(y[..., 0])]
    for step in range(1, 2 * num_iters):
        axis = -2 if step % 2 else -1
        total = y.sum(axis, keepdim=True) + eps
        y = y / total
        norms.append(y)
        sums.append(total.squeeze(axis))
    if not out_flag:
        return cast(Triple, (y, None, None))
    pad = _ALIGN - x.shape[-1]
    norm = torch.nn.functional.pad(torch.stack(norms), (0, pad))
    total = torch.nn.functional.pad(torch.stack(sums), (0, pad))
    return y, norm.flatten().detach(), total.flatten().detach()


@operator("npu_mhc_sinkhorn_backward")
def npu_mhc_sinkhorn_backward(grad_y: torch.Tensor, norm: torch.Tensor, sum: torch.Tensor) -> torch.Tensor:
    """Gradient of npu_mhc_sinkhorn.

    Args:
        grad_y: gradient of y.
        norm, sum: second and third result of npu_mhc_sinkhorn with out_flag 1, of this simulation.

    Returns:
        the gradient of x, like it.

    Raises:
        RuntimeError: the sizes do not fit.
    """
    streams = grad_y.shape[-1]
    tokens = grad_y.numel() // (streams * streams)
    steps = norm.numel() // max(tokens * streams * _ALIGN, 1)
    if not steps or steps % 2 or norm.numel() != steps * tokens * streams * _ALIGN:
        refuse("npu_mhc_sinkhorn_backward", f"norm with {norm.numel()} elements does not fit {list(grad_y.shape)}")
    if sum.numel() != steps * tokens * _ALIGN:
        refuse("npu_mhc_sinkhorn_backward", f"sum with {sum.numel()} elements does not fit {list(grad_y.shape)}")
    norms = norm.reshape(steps, tokens, streams, _ALIGN)[..., :streams]
    sums = sum.reshape(steps, tokens, _ALIGN)[..., :streams]
    grad = grad_y.reshape(tokens, streams, streams)
    for step in range(steps - 1, 0, -1):
        axis = -2 if step % 2 else -1
        inner = (grad * norms[step]).sum(axis, keepdim=True)
        grad = (grad - inner) / sums[step].unsqueeze(axis)
    softmax = norms[0]
    inner = (grad * softmax).sum(-1, keepdim=True)
    return (softmax * (grad - inner)).reshape(grad_y.shape)
