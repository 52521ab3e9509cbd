"""Root mean square normalisation with a quantised result: npu_rms_norm_quant and its relatives.

Part of the torch_npu facade: programs call these operators as `torch_npu.NAME`. registry.py finds the lines
`@operator(...)` as text, and imports this file at the first call. Names and parameters follow
support/npu_operators.toml, results and refusals the vendor's documents and code; how a value is composed of torch's
operators is free. Tests: tests/compat/operators/test_norm_quant.py for values and refusals,
tests/sim/simulated/test_npu_operators.py for shapes and the card.
"""

from __future__ import annotations

import torch

from .._error_codes import ErrCode, ops_error
from ..dtype_numbers import CardDtype, kept_dtype
from .checks import floating, refuse
from .dynamic_quant import dynamic_tokens
from .low_precision import FP4, FP8, only_950, quantised_to, wanted_dtype
from .mx_quant import check_mx, mx_quantised
from .registry import operator

__all__ = [
    "npu_add_rms_norm_dynamic_mx_quant",
    "npu_add_rms_norm_dynamic_quant",
    "npu_add_rms_norm_quant",
    "npu_quant_rms_norm",
    "npu_rms_norm_backward_quant",
    "npu_rms_norm_dynamic_mx_quant",
    "npu_rms_norm_quant",
    "npu_rms_norm_quant_v2",
]

_QUINT4X2 = 16
_HALF = (torch.float16, torch.bfloat16)
_EIGHT_BITS = (CardDtype.int8, CardDtype.hifloat8, *FP8)


@operator("npu_add_rms_norm_quant")
def npu_add_rms_norm_quant(
    x1: torch.Tensor,
    x2: torch.Tensor,
    gamma: torch.Tensor,
    scales1: torch.Tensor,
    zero_points1: torch.Tensor | None,
    beta: torch.Tensor | None = None,
    scales2: torch.Tensor | None = None,
    zero_points2: torch.Tensor | None = None,
    *,
    axis: int = -1,
    epsilon: float = 1e-06,
    div_mode: bool = True,
    dst_type: int | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Root mean square normalisation of x1 + x2, quantised: round(y / scales + zero_points).

    Args:
        x1: first addend; 1 to 8 dimensions; float16 or bfloat16, on the Ascend 950 also float32.
        x2: second addend, of the same shape and dtype.
        gamma: scale of the normalisation; its shape is the last part of the shape of `x1`; of the dtype of `x1`.
        scales1: divisors (factors if not `div_mode`), of the shape of `gamma` or one for all.
        zero_points1: added after that; None for 0.
        beta: added to the normalised values.
        scales2: for a second result.
        zero_points2: for a second result.
        axis: -1.
        epsilon: added to the mean square.
        div_mode: True; False only on the Ascend 950.
        dst_type: int8 (None); on the Ascend 950 also hifloat8, float8_e5m2 and float8_e4m3fn.

    Returns:
        (y1, y2, x): the results, where `scales2` is 1 if it is left out, and the sum.

    Raises:
        RuntimeError: an argument that the kernel does not take.

    Source: aclnnAddRmsNormQuantV2.md of ops-nn, AddRmsNormQuantKernelOpApi.cpp and test_npu_add_rms_norm_quant.py.
    """
    name = "npu_add_rms_norm_quant"
    if axis != -1:
        raise RuntimeError("axis only support -1." + ops_error(ErrCode.PARAM))
    dtype = wanted_dtype(name, 1 if dst_type is None else dst_type, _EIGHT_BITS)
    if dtype != CardDtype.int8:
        only_950(name, x1, f"dst_type {dtype.name}")
    if not div_mode:
        only_950(name, x1, "div_mode=False")
    if x1.dtype == torch.float32:
        only_950(name, x1, "float32")
    _same(name, x1, x2)
    _check_norm(name, x1, gamma, beta, gamma.dim())
    total = x1.to(torch.float32) + x2.to(torch.float32)
    y, _ = _normed(total, gamma, beta, epsilon, gamma.dim())
    first = _static(name, y, scales1, zero_points1, dtype, div_mode)
    second = _static(name, y, y.new_ones(1) if scales2 is None else scales2, zero_points2, dtype, div_mode)
    return first, second, total.to(x1.dtype)


@operator("npu_add_rms_norm_dynamic_quant")
def npu_add_rms_norm_dynamic_quant(
    x1: torch.Tensor,
    x2: torch.Tensor,
    gamma: torch.Tensor,
    *,
    smooth_scale1: torch.Tensor | None = None,
    smooth_scale2: torch.Tensor | None = None,
    beta: torch.Tensor | None = None,
    epsilon: float = 1e-6,
    output_mask: list[bool] | None = None,
    y_dtype: int | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Root mean square normalisation of x1 + x2, quantised by a scale for each token: once or twice.

    Args:
        x1: first addend; 2 to 8 dimensions; float16 or bfloat16.
        x2: second addend, of the same shape and dtype.
        gamma: (H,) scale of the normalisation over the last axis, of the dtype of `x1`.
        smooth_scale1: (H,) factors before the first quantisation.
        smooth_scale2: (H,) factors before the second one.
        beta: (H,) added to the normalised values.
        epsilon: added to the mean square.
        output_mask: which of the two are wanted; None for the first, and the second where both smooth scales are given.
        y_dtype: int8 (None), or quint4x2 and torch_npu.int4 for int4, eight values in an int32; on the Ascend 950 also
            hifloat8, float8_e5m2 and float8_e4m3fn.

    Returns:
        (y1, y2, x, scale1, scale2): the quantised values, the sum, and the scales in float32 without the last axis.
        What is not wanted is a tensor without dimensions that holds 0.

    Raises:
        RuntimeError: an argument that the kernel does not take.

    Source: aclnnAddRmsNormDynamicQuantV2.md of ops-nn, AddRmsNormDynamicQuantKernelNpuOpApi.cpp.
    """
    name = "npu_add_rms_norm_dynamic_quant"
    wanted = [True, smooth_scale1 is not None and smooth_scale2 is not None]
    if output_mask is not None:
        wanted = list(output_mask)
        if not any(wanted):
            text = "When the output_mask is not empty, at least one of y1 and y2 must be output. "
            raise RuntimeError(text + ops_error(ErrCode.PARAM))
        if (smooth_scale1 is not None and not wanted[0]) or (smooth_scale2 is not None and not wanted[1]):
            refuse(name, "there is a smooth scale for a result that output_mask leaves out")
    elif smooth_scale2 is not None and smooth_scale1 is None:
        refuse(name, "smooth_scale2 needs smooth_scale1 without output_mask")
    for label, tensor in (("x1", x1), ("x2", x2)):
        if not 2 <= tensor.dim() <= 8:
            raise RuntimeError(f"The {label} should be in 2~8D" + ops_error(ErrCode.PARAM))
    if x1.shape != x2.shape:
        raise RuntimeError("The shape of x1 and x2 must be the same" + ops_error(ErrCode.PARAM))
    dtype = _dynamic_dtype(name, x1, y_dtype)
    _same(name, x1, x2)
    if x1.dtype not in _HALF:
        refuse(name, f"x1 is {x1.dtype}; the kernel takes float16 and bfloat16")
    _check_norm(name, x1, gamma, beta, 1)
    total = x1.to(torch.float32) + x2.to(torch.float32)
    y, _ = _normed(total, gamma, beta, epsilon, 1)
    results = []
    for is_wanted, smooth in zip(wanted, (smooth_scale1, smooth_scale2), strict=True):
        if not is_wanted:
            kept = torch.int32 if dtype == CardDtype.int4 else kept_dtype(dtype)
            results.append((torch.zeros((), dtype=kept, device=x1.device), y.new_zeros(())))
            continue
        if smooth is not None and (smooth.shape != gamma.shape or smooth.dtype != gamma.dtype):
            found = f"{smooth.dtype} {list(smooth.shape)}"
            refuse(name, f"a smooth scale is {found}; it must be like gamma, {gamma.dtype} {list(gamma.shape)}")
        results.append(dynamic_tokens(y if smooth is None else y * smooth.to(torch.float32), dtype))
    (first, scale1), (second, scale2) = results
    return first, second, total.to(x1.dtype), scale1, scale2


@operator("npu_rms_norm_quant")
def npu_rms_norm_quant(
    x: torch.Tensor,
    gamma: torch.Tensor,
    beta: torch.Tensor,
    scale: torch.Tensor,
    offset: torch.Tensor,
    epsilon: float = 1e-06,
    *,
    dst_dtype: int | None = None,
) -> torch.Tensor:
    """Root mean square normalisation over the last axis, quantised: round((y + beta) / scale + offset).

    Args:
        x: 1 to 8 dimensions; float16 or bfloat16, on the Ascend 950 also float32.
        gamma: (H,) or (1, H), of the dtype of `x`.
        beta: like `gamma`.
        scale: (1,).
        offset: (1,); int8, on the Ascend 950 also floating.
        epsilon: added to the mean square.
        dst_dtype: int8 (None), or quint4x2 for int4, eight values in an int32; on the Ascend 950 also hifloat8,
            float8_e5m2 and float8_e4m3fn.

    Raises:
        RuntimeError: an argument that the kernel does not take.

    Source: aclnnRmsNormQuant.md of ops-nn, RmsNormQuantKernelOpApi.cpp.
    """
    name = "npu_rms_norm_quant"
    dtype = _static_dtype(name, x, dst_dtype)
    if x.dtype == torch.float32:
        only_950(name, x, "float32")
    if offset.dtype != torch.int8:
        only_950(name, x, f"offset {offset.dtype}")
    flat_gamma, flat_beta = _row(name, x, gamma, "gamma"), _row(name, x, beta, "beta")
    _check_norm(name, x, flat_gamma, flat_beta, 1)
    if scale.numel() != 1 or offset.numel() != 1:
        refuse(name, f"scale {list(scale.shape)} and offset {list(offset.shape)} must have one value")
    y, _ = _normed(x.to(torch.float32), flat_gamma, flat_beta, epsilon, 1)
    return _static(name, y, scale.reshape(1), offset.reshape(1), dtype, True)


@operator("npu_rms_norm_quant_v2")
def npu_rms_norm_quant_v2(
    x: torch.Tensor,
    gamma: torch.Tensor,
    scale: torch.Tensor,
    *,
    offset: torch.Tensor | None = None,
    beta: torch.Tensor | None = None,
    epsilon: float = 1e-06,
    div_mode: bool = True,
    dst_dtype: int | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """npu_rms_norm_quant on the Ascend 950, with a scale for each channel if wanted, and the reciprocal of the root.

    Args:
        x: 1 to 8 dimensions; float16, bfloat16 or float32.
        gamma: (H,) or (1, H), of the dtype of `x`.
        scale: (1,) or (H,): divisors, or factors if not `div_mode`.
        offset: like `scale`; None for 0.
        beta: like `gamma`; None for 0.
        epsilon: added to the mean square.
        div_mode: whether `scale` divides.
        dst_dtype: as npu_rms_norm_quant.

    Returns:
        (y, rstd): rstd in float32 with size 1 on the last axis if `x` requires a gradient, else empty.

    Raises:
        RuntimeError: an argument that the kernel does not take, or another chip than the Ascend 950.

    Source: aclnnRmsNormQuantV3.md of ops-nn, RmsNormQuantKernelOpApiV2.cpp.
    """
    name = "npu_rms_norm_quant_v2"
    only_950(name, x)
    dtype = _static_dtype(name, x, dst_dtype)
    flat_gamma = _row(name, x, gamma, "gamma")
    flat_beta = None if beta is None else _row(name, x, beta, "beta")
    _check_norm(name, x, flat_gamma, flat_beta, 1)
    y, rstd = _normed(x.to(torch.float32), flat_gamma, flat_beta, epsilon, 1)
    return _static(name, y, scale, offset, dtype, div_mode), _rstd(x, rstd)


@operator("npu_rms_norm_dynamic_mx_quant")
def npu_rms_norm_dynamic_mx_quant(
    x: torch.Tensor,
    gamma: torch.Tensor,
    *,
    beta: torch.Tensor | None = None,
    epsilon: float = 1e-06,
    scale_alg: int = 0,
    round_mode: str = "rint",
    dst_type: int = 296,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Root mean square normalisation over the last axis, then npu_dynamic_mx_quant.

    Args:
        x: 1 to 7 dimensions; float16 or bfloat16.
        gamma: (H,), of the dtype of `x` or float32.
        beta: (H,), of the dtype of `gamma`; added to the normalised values.
        epsilon: added to the mean square.
        scale_alg: 0; 1 for FP8.
        round_mode: as npu_dynamic_mx_quant.
        dst_type: as npu_dynamic_mx_quant.

    Returns:
        (y, mxscale, rstd): as npu_dynamic_mx_quant, and the reciprocal of the root in float32 with size 1 on the last
        axis if `x` requires a gradient, else an empty tensor.

    Raises:
        RuntimeError: an argument that the kernel does not take, or another chip than the Ascend 950.

    Source: aclnnRmsNormDynamicMxQuant.md of ops-nn, RmsNormDynamicMxQuantKernelNpuOpApi.cpp.
    """
    name = "npu_rms_norm_dynamic_mx_quant"
    if not 1 <= x.dim() <= 7:
        raise RuntimeError("The x should be in 1~7D" + ops_error(ErrCode.PARAM))
    y, scale, rstd = _mx_normed(name, x, x.to(torch.float32), gamma, beta, epsilon, (scale_alg, round_mode, dst_type))
    return y, scale, _rstd(x, rstd)


@operator("npu_add_rms_norm_dynamic_mx_quant")
def npu_add_rms_norm_dynamic_mx_quant(
    x1: torch.Tensor,
    x2: torch.Tensor,
    gamma: torch.Tensor,
    *,
    beta: torch.Tensor | None = None,
    epsilon: float = 1e-06,
    scale_alg: int = 0,
    round_mode: str = "rint",
    dst_type: int = 296,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """npu_rms_norm_dynamic_mx_quant of x1 + x2, which have one shape and dtype.

    Returns:
        (y, x, mxscale, rstd): with the sum second.

    Source: aclnnAddRmsNormDynamicMxQuant.md of ops-nn, AddRmsNormDynamicMxQuantKernelNpuOpApi.cpp.
    """
    name = "npu_add_rms_norm_dynamic_mx_quant"
    for label, tensor in (("x1", x1), ("x2", x2)):
        if not 1 <= tensor.dim() <= 7:
            raise RuntimeError(f"The {label} should be in 1~7D" + ops_error(ErrCode.PARAM))
    if x1.shape != x2.shape:
        raise RuntimeError("The shape of x1 and x2 must be the same" + ops_error(ErrCode.PARAM))
    if x1.requires_grad != x2.requires_grad:
        raise RuntimeError("The requires_grad of x1 and x2 must be consistent" + ops_error(ErrCode.PARAM))
    _same(name, x1, x2)
    total = x1.to(torch.float32) + x2.to(torch.float32)
    y, scale, rstd = _mx_normed(name, x1, total, gamma, beta, epsilon, (scale_alg, round_mode, dst_type))
    return y, total.to(x1.dtype), scale, _rstd(x1, rstd)


@operator("_npu_quant_rms_norm")
def npu_quant_rms_norm(
    self: torch.Tensor,
    gamma: torch.Tensor,
    beta: torch.Tensor,
    scale: torch.Tensor,
    offset: torch.Tensor,
    output: torch.Tensor,
    eps: float = 1e-05,
) -> None:
    """Root mean square normalisation over the last axis, quantised to int8: round((y + beta) / scale + offset).

    Args:
        self: float16 or bfloat16.
        gamma: (H,) or (1, H).
        beta: like `gamma`.
        scale: one value.
        offset: one value, int8.
        output: int8, of the shape of `self`; the result is written into it.
        eps: added to the mean square.

    Raises:
        RuntimeError: an argument that the kernel does not take.

    Source: QuantRmsNormAtb.cpp and test__npu_quant_rms_norm.py of op-plugin.
    """
    name = "_npu_quant_rms_norm"
    if output.shape != self.shape or output.dtype != torch.int8:
        refuse(name, f"output is {output.dtype} {list(output.shape)}; it must be int8 {list(self.shape)}")
    flat_gamma, flat_beta = _row(name, self, gamma, "gamma"), _row(name, self, beta, "beta")
    _check_norm(name, self, flat_gamma, flat_beta, 1)
    y, _ = _normed(self.to(torch.float32), flat_gamma, flat_beta, eps, 1)
    output.copy_(_static(name, y, scale.reshape(-1), offset.reshape(-1), CardDtype.int8, True))


@operator("_npu_rms_norm_backward_quant")
def npu_rms_norm_backward_quant(
    dy: torch.Tensor,
    x: torch.Tensor,
    rstd: torch.Tensor,
    gamma: torch.Tensor,
    scale_x: torch.Tensor,
    *,
    offset_x: torch.Tensor | None = None,
    div_mode: bool | None = True,
    quant_mode: str = "static",
    dst_type: int | None = 1,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Gradients of npu_rms_norm; the input's is quantised.

    With n = x * rstd: dx = (dy * gamma - n * mean(dy * gamma * n)) * rstd and dgamma = sum(dy * n).

    Args:
        dy: gradient of the result; 2 to 8 dimensions; float16, bfloat16 or float32.
        x: input of npu_rms_norm, like `dy`.
        rstd: float32, the reciprocal of the root as npu_rms_norm gave it.
        gamma: its scale, of the dtype of `dy` or float32.
        scale_x: one value: divides the gradient, or is a factor if not `div_mode`.
        offset_x: int32, one value, added after that.
        div_mode: whether the scale divides.
        quant_mode: "static".
        dst_type: int8 or hifloat8.

    Returns:
        (dx, dgamma): dx in the dtype, dgamma in float32.

    Raises:
        RuntimeError: an argument that the kernel does not take, or another chip than the Ascend 950.

    Source: aclnnRmsNormGradQuant.md of ops-nn.
    """
    name = "_npu_rms_norm_backward_quant"
    only_950(name, dy)
    _same(name, dy, x)
    _check_norm(name, x, gamma, None, gamma.dim(), wide_gamma=True)
    dtype = wanted_dtype(name, 1 if dst_type is None else dst_type, (CardDtype.int8, CardDtype.hifloat8))
    if quant_mode != "static" or scale_x.numel() != 1 or (offset_x is not None and offset_x.numel() != 1):
        refuse(name, f'quant_mode is "{quant_mode}"; the kernel takes "static", and one value of scale_x and offset_x')
    dims = gamma.dim()
    lead = x.shape[: x.dim() - dims]
    root = rstd.to(torch.float32).reshape(*lead, *[1] * dims)
    wide = x.to(torch.float32) * root
    scaled = dy.to(torch.float32) * gamma.to(torch.float32)
    axes = tuple(range(x.dim() - dims, x.dim()))
    dx = (scaled - wide * (scaled * wide).mean(dim=axes, keepdim=True)) * root
    dgamma = (dy.to(torch.float32) * wide).reshape(-1, *gamma.shape).sum(dim=0)
    return _static(name, dx, scale_x.reshape(1), offset_x, dtype, div_mode is not False), dgamma


def _mx_normed(
    operator: str,
    x: torch.Tensor,
    wide: torch.Tensor,
    gamma: torch.Tensor,
    beta: torch.Tensor | None,
    epsilon: float,
    mode: tuple[int, str, int],
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    scale_alg, round_mode, dst_type = mode
    algorithms: dict[CardDtype, tuple[int, ...]] = {FP4[0]: (0,), FP4[1]: (0,), FP8[0]: (0, 1), FP8[1]: (0, 1)}
    dtype = check_mx(operator, x, dst_type, round_mode, scale_alg, algorithms)
    if x.dtype not in _HALF:
        refuse(operator, f"x is {x.dtype}; the kernel takes float16 and bfloat16")
    _check_norm(operator, x, gamma, beta, 1, wide_gamma=True)
    y, rstd = _normed(wide, gamma, beta, epsilon, 1)
    return (*mx_quantised(y, -1, dtype, round_mode, scale_alg), rstd)


def _normed(
    wide: torch.Tensor, gamma: torch.Tensor, beta: torch.Tensor | None, epsilon: float, dims: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Normalised values over the last axes, and the reciprocal of the root; float32."""
    axes = tuple(range(wide.dim() - dims, wide.dim()))
    mean = wide.square().mean(dim=axes, keepdim=True) + epsilon
    rough = torch.rsqrt(mean)
    rstd = rough + rough * (0.5 * (1 - mean * rough * rough))  # a Newton step: the kernel's root is the nearest float32
    rstd = torch.where(torch.isfinite(rstd), rstd, rough)
    y = wide * rstd * gamma.to(torch.float32)
    return (y if beta is None else y + beta.to(torch.float32)), rstd


def _rstd(x: torch.Tensor, rstd: torch.Tensor) -> torch.Tensor:
    return rstd if x.requires_grad else rstd.new_empty(0)


def _static(
    operator: str,
    y: torch.Tensor,
    scale: torch.Tensor,
    offset: torch.Tensor | None,
    dtype: CardDtype,
    div_mode: bool,
) -> torch.Tensor:
    floating(operator, scale=scale)
    for label, tensor in (("scale", scale), ("offset", offset)):
        if tensor is not None and tensor.numel() != 1 and tensor.shape != y.shape[y.dim() - tensor.dim() :]:
            refuse(operator, f"the {label} of shape {list(tensor.shape)} must have one value, or the shape of gamma")
    factor = scale.to(torch.float32)
    scaled = y / factor if div_mode else y * factor
    return quantised_to(scaled if offset is None else scaled + offset.to(torch.float32), dtype)


def _static_dtype(operator: str, x: torch.Tensor, number: int | None) -> CardDtype:
    if number == _QUINT4X2:
        if x.shape[-1] % 8:
            text = "x shape last dim must be divded by 8 when int4 quantization"  # spelled as torch_npu prints it
            raise RuntimeError(text + ops_error(ErrCode.PARAM))
        return CardDtype.int4
    dtype = wanted_dtype(operator, 1 if number is None else number, _EIGHT_BITS, "dst_dtype")
    if dtype != CardDtype.int8:
        only_950(operator, x, f"dst_dtype {dtype.name}")
    return dtype


def _dynamic_dtype(operator: str, x: torch.Tensor, number: int | None) -> CardDtype:
    if number in (_QUINT4X2, 256 + CardDtype.int4.value):
        if x.shape[-1] % 8:
            text = "The last dim input shape must be divisible by 8 if y dtype is torch_npu.int4 or torch.quint4x2"
            raise RuntimeError(text + ops_error(ErrCode.PARAM))
        return CardDtype.int4
    dtype = wanted_dtype(operator, 1 if number is None else number, _EIGHT_BITS, "y_dtype")
    if dtype != CardDtype.int8:
        only_950(operator, x, f"y_dtype {dtype.name}")
    return dtype


def _row(operator: str, x: torch.Tensor, tensor: torch.Tensor, label: str) -> torch.Tensor:
    """The (H,) tensor of (H,) or (1, H)."""
    if tensor.dim() not in (1, 2) or tensor.shape[-1] != x.shape[-1] or tensor.numel() != tensor.shape[-1]:
        refuse(operator, f"{label} of shape {list(tensor.shape)} must be [{x.shape[-1]}] or [1, {x.shape[-1]}]")
    return tensor.reshape(-1)


def _same(operator: str, x1: torch.Tensor, x2: torch.Tensor) -> None:
    if x1.shape != x2.shape or x1.dtype != x2.dtype:
        first, second = f"{list(x1.shape)} {x1.dtype}", f"{list(x2.shape)} {x2.dtype}"
        refuse(operator, f"x1 ({first}) and x2 ({second}) must have one shape and dtype")


def _check_norm(
    operator: str,
    x: torch.Tensor,
    gamma: torch.Tensor,
    beta: torch.Tensor | None,
    dims: int,
    *,
    wide_gamma: bool = False,
) -> None:
    floating(operator, x=x, gamma=gamma, beta=beta)
    if not 1 <= x.dim() <= 8:
        refuse(operator, f"the input has {x.dim()} dimensions; the kernel takes 1 to 8")
    if gamma.dim() != dims or not 1 <= dims <= x.dim() or gamma.shape != x.shape[x.dim() - dims :]:
        refuse(operator, f"gamma of shape {list(gamma.shape)} is not the last part of the shape {list(x.shape)}")
    if gamma.dtype != x.dtype and not (wide_gamma and gamma.dtype == torch.float32):
        refuse(operator, f"gamma is {gamma.dtype} and the input {x.dtype}")
    if beta is not None and (beta.shape != gamma.shape or beta.dtype != gamma.dtype):
        found = f"{beta.dtype} {list(beta.shape)}"
        refuse(operator, f"beta is {found}; it must be like gamma, {gamma.dtype} {list(gamma.shape)}")
