"""Choice of experts for each token, and of candidates for sampling: top-k over groups, softmax and sigmoid.

Part of the torch_npu facade: programs call these operators as `torch_npu.NAME`. registry.py finds the lines
`@operator(...)` as text, and imports this file at the first call. Names and parameters follow
support/npu_operators.toml, results and refusals the vendor's documents and code; how a value is composed of torch's
operators is free, but must stay differentiable where that table says so. Tests:
tests/compat/operators/test_moe_gating.py for values and refusals, tests/sim/simulated/test_npu_operators.py for shapes
and the card.

Equal values are taken in the order of their indices.

Source: the operators' pages of op-plugin with their equivalent computations, the C++ of op_plugin/ops/opapi for shapes
and checks, moe/moe_gating_top_k* of hicann/ops-transformer; for ATB's operators, op_plugin/python/atb/ _atb_api_docs.py
and the reference formulas of test/test_custom_ops.
"""

from __future__ import annotations

import torch

from .._error_codes import ErrCode
from .checks import floating, refuse
from .moe_checks import float_expected, known, require
from .registry import operator

__all__ = [
    "npu_fused_add_topk_div",
    "npu_fused_add_topk_div_out",
    "npu_group_topk",
    "npu_moe_gating_top_k",
    "npu_moe_gating_top_k_backward",
    "npu_moe_gating_top_k_softmax",
    "npu_moe_gating_top_k_softmax_v2",
    "npu_top_k_top_p",
]

_MAX_EXPERTS = 2048


def _top(values: torch.Tensor, k: int) -> torch.Tensor:
    """Indices of the k greatest values of the last axis, the first ones of equal values first."""
    return torch.argsort(values, dim=-1, descending=True, stable=True)[..., :k]


def _outside_groups(values: torch.Tensor, groups: int, kept: int, summed: int) -> torch.Tensor:
    """(rows, groups, 1): whether a group is not among the `kept` ones of greatest sum of their `summed` maxima."""
    of_groups = values.view(values.shape[0], groups, -1)
    scores = torch.topk(of_groups, summed, dim=-1).values.sum(-1)
    outside = torch.ones(scores.shape, dtype=torch.bool, device=values.device)
    return outside.scatter(1, _top(scores, kept), False).unsqueeze(-1)


@operator("npu_moe_gating_top_k")
def npu_moe_gating_top_k(
    x: torch.Tensor,
    k: int,
    *,
    bias: torch.Tensor | None = None,
    input_ids: torch.Tensor | None = None,
    tid2eid: torch.Tensor | None = None,
    k_group: int = 1,
    group_count: int = 1,
    group_select_mode: int = 0,
    renorm: int = 0,
    norm_type: int = 0,
    out_flag: bool = False,
    routed_scaling_factor: float = 1.0,
    eps: float = 1e-20,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Choose k experts for each token, from the best groups of experts.

    n = softmax(x) or sigmoid(x). Of the groups with the greatest score, `k_group` stay; in them the k greatest
    n + bias are chosen. y = n of those, for the sigmoid divided by their sum + eps, times `routed_scaling_factor`.

    Args:
        x: (N, E) scores; float16, bfloat16 or float32; E at most 2048.
        k: experts of a token.
        bias: (E,) in the dtype of `x`, added for the choice, or None.
        input_ids: (N,) row of `tid2eid` for each token, which gives its experts without a choice; int32 or int64.
        tid2eid: (rows, k) experts; int32 or int64.
        k_group: groups that stay.
        group_count: number of groups.
        group_select_mode: score of a group: 0 for its maximum, 1 for the sum of its two greatest.
        renorm: the kernel takes only 0.
        norm_type: 0 for the softmax, 1 for the sigmoid.
        out_flag: whether n is wanted.
        routed_scaling_factor: see above.
        eps: see above.

    Returns:
        (y, expert_idx, n): (N, k) in the dtype of x, (N, k) int32, and (N, E) float32, zeros without `out_flag`.
        Only y has a gradient.

    Raises:
        RuntimeError: the operator would not take the input.
    """
    name = "npu_moe_gating_top_k"
    require(x.dim() == 2, "The x should be 2D")
    float_expected(x, "float16、float32 or bfloat16")
    rows, experts = x.shape
    if bias is not None:
        require(bias.dtype == x.dtype, "The dtype of x and bias should be same")
        require(bias.dim() == 1, "The bias should be 1D")
        require(bias.shape[0] == experts, "The bias first dim should be same as x second dim")
    _check_hash(x, k, input_ids, tid2eid)
    known(name, "renorm", renorm, (0,))
    known(name, "norm_type", norm_type, (0, 1))
    known(name, "group_select_mode", group_select_mode, (0, 1))
    if experts > _MAX_EXPERTS:
        refuse(name, f"x has {experts} experts; the kernel takes at most {_MAX_EXPERTS}")
    if group_count <= 0 or experts % group_count or not 1 <= k_group <= group_count:
        refuse(name, f"{experts} experts cannot be chosen from {k_group} of {group_count} groups")
    if group_count > 1 and experts // group_count <= 2:
        refuse(name, f"a group has {experts // group_count} experts; it must have more than 2")
    if not 1 <= k <= experts // group_count * k_group:
        refuse(
            name, f"k is {k}, which is not between 1 and the {experts // group_count * k_group} experts of the groups"
        )

    wide = x.float()
    normed = torch.softmax(wide, -1) if norm_type == 0 else torch.sigmoid(wide)
    if input_ids is not None and tid2eid is not None:
        indices = tid2eid[input_ids.long()].long()
    else:
        biased = normed.detach() if bias is None else normed.detach() + bias.detach().float()
        if k_group < group_count:
            outside = _outside_groups(biased, group_count, k_group, 1 + group_select_mode)
            biased = biased.view(rows, group_count, -1).masked_fill(outside, float("-inf")).view(rows, experts)
        indices = _top(biased, k)
    y = normed.gather(1, indices)
    if norm_type == 1:
        y = y / (y.sum(-1, keepdim=True) + eps)
    norm_out = normed.detach() if out_flag else torch.zeros_like(normed)
    return (y * routed_scaling_factor).to(x.dtype), indices.to(torch.int32), norm_out


@operator("npu_moe_gating_top_k_backward")
def npu_moe_gating_top_k_backward(
    x_norm: torch.Tensor,
    grad_y: torch.Tensor,
    expertIdx: torch.Tensor,  # noqa: N803
    *,
    renorm: int = 0,
    norm_type: int = 0,
    routed_scaling_factor: float = 1.0,
    eps: float = 1e-20,
) -> torch.Tensor:
    """Gradient of npu_moe_gating_top_k for `x`.

    Args:
        x_norm: (N, E) its third result; float32.
        grad_y: (N, k).
        expertIdx: (N, k) its second result; int32.
        renorm: the kernel takes only 0.
        norm_type: 0 for the softmax, 1 for the sigmoid.
        routed_scaling_factor: as in the forward pass.
        eps: as in the forward pass.

    Returns:
        (N, E) in the dtype of `grad_y`.

    Raises:
        RuntimeError: an argument is not known.
    """
    if renorm != 0 or norm_type not in (0, 1):
        refuse("npu_moe_gating_top_k_backward", f"renorm {renorm} with norm_type {norm_type}; known are 0 with 0 or 1")
    normed, indices = x_norm.float(), expertIdx.long()
    grad = grad_y.float() * routed_scaling_factor
    chosen = normed.gather(1, indices)
    if norm_type == 1:
        total = chosen.sum(-1, keepdim=True) + eps
        grad = (grad - (grad * chosen).sum(-1, keepdim=True) / total) / total
        out = torch.zeros_like(normed).scatter(1, indices, grad * chosen * (1 - chosen))
        return out.to(grad_y.dtype)
    spread = torch.zeros_like(normed).scatter(1, indices, grad)
    return (normed * (spread - (grad * chosen).sum(-1, keepdim=True))).to(grad_y.dtype)


@operator("npu_moe_gating_top_k_softmax")
def npu_moe_gating_top_k_softmax(
    x: torch.Tensor, finished: torch.Tensor | None = None, k: int = 1
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The k greatest probabilities of each row, with their experts and the numbers of their slots.

    Args:
        x: (N, E) or (B, S, E) scores; float16, bfloat16 or float32.
        finished: rows that take no part, whose experts are E; bool, the shape of x without its last axis.
        k: 0 to E.

    Returns:
        (y, expert_idx, row_idx): x's shape with k for E; y in x's dtype, int32, and int32 with i + j * rows for
        choice j of row i.

    Raises:
        RuntimeError: the operator would not take the input.
    """
    require(x.dim() in (2, 3), "The x should be 2D or 3D", ErrCode.PARAM)
    float_expected(x, "float16, float32 or bfloat16", ErrCode.PARAM)
    require(0 <= k <= x.shape[-1], f"The k should be in [0, {x.shape[-1]}]", ErrCode.PARAM)
    texts = ("x dims shoud be largs finished dims than 1.", "Input rows shoud be same.")
    _check_finished(x, finished, *texts)
    probabilities = torch.softmax(x.float(), -1)
    if x.dtype == torch.float16:  # the kernel sorts in float16
        probabilities = probabilities.half()
    indices = _top(probabilities, k)
    y = probabilities.gather(-1, indices).to(x.dtype)
    rows = y.numel() // k if k else 0
    slots = torch.arange(rows * k, dtype=torch.int32, device=x.device).view(k, rows).T.reshape(y.shape)
    return y, _unfinished(indices, finished, x.shape[-1]), slots


@operator("npu_moe_gating_top_k_softmax_v2")
def npu_moe_gating_top_k_softmax_v2(
    x: torch.Tensor,
    *,
    k: int = 1,
    finished: torch.Tensor | None = None,
    renorm: int | None = 0,
    output_softmax: bool | None = False,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The k greatest probabilities of each row, with their experts; or the softmax of the k greatest scores.

    Args:
        x: (N, E) or (B, S, E) scores; float16, bfloat16 or float32.
        k: 0 to E.
        finished: rows that take no part, whose experts are E; bool, the shape of x without its last axis.
        renorm: 0 for top-k of the softmax, 1 for the softmax of the top-k.
        output_softmax: whether the softmax of all scores is wanted, with `renorm` 0.

    Returns:
        (y, expert_idx, softmax_result): x's shape with k for E, in x's dtype and int32; x's shape in float32, or [0].

    Raises:
        RuntimeError: the operator would not take the input.
    """
    require(x.dim() in (2, 3), "The x's shape should be 2D or 3D", ErrCode.PARAM)
    float_expected(x, "float16, float32 or bfloat16", ErrCode.PARAM)
    require(0 <= k <= x.shape[-1], f"The k's shape should be in [0, {x.shape[-1]}]", ErrCode.PARAM)
    mode = renorm or 0
    require(mode in (0, 1), f"renorm must be 0 or 1, but got: {mode}", ErrCode.PARAM)
    texts = ("x.dim() should be 1 more than finished.dim().", "Input rows should be same as finished rows.")
    _check_finished(x, finished, *texts)
    wide = x.float()
    probabilities = wide.new_zeros(0)
    if mode == 1:
        indices = _top(wide, k)
        y = torch.softmax(wide.gather(-1, indices), -1)
    else:
        softmax = torch.softmax(wide, -1)
        indices = _top(softmax, k)
        y = softmax.gather(-1, indices)
        probabilities = softmax if output_softmax else probabilities
    return y.to(x.dtype), _unfinished(indices, finished, x.shape[-1]), probabilities


@operator("_npu_group_topk")
def npu_group_topk(self: torch.Tensor, k: int = 0, group_num: int = 1, n: int = 1) -> None:
    """Set the scores of all groups to zero but those of the k groups with the greatest sum of their n maxima.

    Args:
        self: (N, E) scores, changed in place; float16 or bfloat16; E at most 1024.
        k: groups that stay.
        group_num: number of groups.
        n: values of a group that are summed.

    Raises:
        RuntimeError: the kernel would not take the input.
    """
    name = "_npu_group_topk"
    if self.dim() != 2 or self.dtype not in (torch.float16, torch.bfloat16):
        refuse(name, f"the input has {self.dim()} dimensions and {self.dtype}; wanted 2, float16 or bfloat16")
    _check_groups(name, self.shape[1], group_num, k, n)
    outside = _outside_groups(self.float(), group_num, k, n)
    kept = (
        self.view(self.shape[0], group_num, -1) if self.is_contiguous() else self.reshape(self.shape[0], group_num, -1)
    )
    self.copy_(kept.masked_fill(outside, 0).view(self.shape))


@operator("npu_fused_add_topk_div")
def npu_fused_add_topk_div(
    x: torch.Tensor,
    add_num: torch.Tensor,
    *,
    mapping_num: torch.Tensor | None = None,
    mapping_table: torch.Tensor | None = None,
    activation_type: str | None = None,
    group_num: int = 1,
    group_topk: int = 1,
    n: int = 1,
    k: int = 1,
    is_norm: bool = True,
    scale: float = 1,
    enable_expert_mapping: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Choose k experts for each token, from the best groups of experts, as DeepSeek-V3 does.

    s = sigmoid(x). In the `group_topk` groups with the greatest sum of their n maxima of s + add_num, the k greatest
    s + add_num are chosen; those of the other groups count as 0. y = s of the chosen, divided by their sum where
    `is_norm`, and times `scale`. With a mapping, expert e of token i becomes table[e, i % max(1, num[e])].

    Args:
        x: (N, E) scores; float16, bfloat16 or float32.
        add_num: (E,) in the same dtype.
        mapping_num: (E,) number of logical experts of each; int32.
        mapping_table: (E, at most 128) the logical experts; int32.
        activation_type: "activation_sigmoid", or None for it.
        group_num: number of groups.
        group_topk: groups that stay.
        n: values of a group that are summed.
        k: experts of a token.
        is_norm: see above.
        scale: see above; only with `is_norm`.
        enable_expert_mapping: whether the mapping is used.

    Returns:
        (y, indices): (N, k) in float32 and int32.

    Raises:
        RuntimeError: the kernel would not take the input.
    """
    name = "npu_fused_add_topk_div"
    floating(name, x=x, add_num=add_num)
    if x.dim() != 2 or add_num.shape != x.shape[1:] or add_num.dtype != x.dtype:
        found = f"x {list(x.shape)} {x.dtype}, add_num {list(add_num.shape)} {add_num.dtype}"
        refuse(name, f"x must be [a, b] and add_num [b], of one dtype, but got {found}")
    if activation_type not in (None, "activation_sigmoid"):
        refuse(name, f"activation_type is {activation_type}; the kernel takes activation_sigmoid")
    rows, experts = x.shape
    _check_groups(name, experts, group_num, group_topk, n)
    if not 1 <= k <= experts:
        refuse(name, f"k is {k}; there are {experts} experts")
    if enable_expert_mapping and (mapping_num is None or mapping_table is None):
        refuse(name, "enable_expert_mapping needs mapping_num and mapping_table")
    scores = torch.sigmoid(x.float())
    biased = scores + add_num.float()
    outside = _outside_groups(biased, group_num, group_topk, n)
    indices = _top(biased.view(rows, group_num, -1).masked_fill(outside, 0).view(rows, experts), k)
    y = scores.gather(1, indices)
    if is_norm:
        y = y / y.sum(-1, keepdim=True) * scale
    if enable_expert_mapping and mapping_num is not None and mapping_table is not None:
        tokens = torch.arange(rows, device=x.device).unsqueeze(1)
        column = tokens % mapping_num.long().clamp(min=1)[indices]
        return y, mapping_table[indices, column].to(torch.int32)
    return y, indices.to(torch.int32)


@operator("npu_fused_add_topk_div.out")
def npu_fused_add_topk_div_out(
    x: torch.Tensor,
    add_num: torch.Tensor,
    *,
    mapping_num: torch.Tensor | None = None,
    mapping_table: torch.Tensor | None = None,
    activation_type: str | None = None,
    group_num: int = 1,
    group_topk: int = 1,
    n: int = 1,
    k: int = 1,
    is_norm: bool = True,
    scale: float = 1,
    enable_expert_mapping: bool = False,
    y: torch.Tensor,
    indices: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """npu_fused_add_topk_div into tensors of float32 and int32."""
    found = npu_fused_add_topk_div(
        x,
        add_num,
        mapping_num=mapping_num,
        mapping_table=mapping_table,
        activation_type=activation_type,
        group_num=group_num,
        group_topk=group_topk,
        n=n,
        k=k,
        is_norm=is_norm,
        scale=scale,
        enable_expert_mapping=enable_expert_mapping,
    )
    return y.copy_(found[0]), indices.copy_(found[1])


@operator("npu_top_k_top_p")
def npu_top_k_top_p(logits: torch.Tensor, p: torch.Tensor | None = None, k: torch.Tensor | None = None) -> torch.Tensor:
    """Set to -inf the logits that are not among the k greatest, or not in the smallest set of probability p.

    Values equal to the k-th greatest stay. With the rest in rising order, those whose running sum of probabilities is
    at most 1 - p are taken out; the greatest stays.

    Args:
        logits: (B, V); float16, bfloat16 or float32.
        p: (B,) in the dtype of the logits, or None.
        k: (B,) int32, or None.

    Returns:
        Like the logits.

    Raises:
        RuntimeError: the kernel would not take the input.
    """
    name = "npu_top_k_top_p"
    floating(name, logits=logits)
    if logits.dim() != 2:
        refuse(name, f"logits has {logits.dim()} dimensions; the kernel takes 2")
    if p is not None and (p.dtype != logits.dtype or p.shape != logits.shape[:1]):
        refuse(name, f"p is {list(p.shape)} {p.dtype}; the kernel takes [{logits.shape[0]}] {logits.dtype}")
    if k is not None and (k.dtype != torch.int32 or k.shape != logits.shape[:1]):
        refuse(name, f"k is {list(k.shape)} {k.dtype}; the kernel takes [{logits.shape[0]}] torch.int32")
    if p is None and k is None:
        return logits.clone()
    ordered, order = torch.sort(logits, dim=-1, stable=True)
    size = logits.shape[1]
    if k is not None:
        place = (size - k.long()).clamp(0, max(size - 1, 0)).unsqueeze(1)
        ordered = ordered.masked_fill(ordered < ordered.gather(1, place), float("-inf"))
    if p is not None:
        sums = torch.softmax(ordered.float(), -1).cumsum(-1)
        out = sums <= 1 - p.float().unsqueeze(1)
        last = torch.arange(size, device=logits.device) == size - 1
        ordered = ordered.masked_fill(out & ~last, float("-inf"))
    return torch.empty_like(ordered).scatter(1, order, ordered)


def _check_hash(x: torch.Tensor, k: int, input_ids: torch.Tensor | None, tid2eid: torch.Tensor | None) -> None:
    both = (input_ids is None) == (tid2eid is None)
    require(both, "input_ids and tid2eid must be both provided or both omitted")
    for key, tensor in (("input_ids", input_ids), ("tid2eid", tid2eid)):
        if tensor is None:
            continue
        right = tensor.dtype in (torch.int32, torch.int64)
        require(right, f"int32 or int64 tensor expected for {key} but got a tensor with dtype: {tensor.dtype}")
        dims = 1 if key == "input_ids" else 2
        require(tensor.dim() == dims, f"The {key} should be {dims}D")
    if input_ids is not None and tid2eid is not None:
        require(input_ids.shape[0] == x.shape[0], "The input_ids first dim should be same as x first dim")
        require(tid2eid.shape[1] == k, "The tid2eid second dim should be same as k")


def _check_finished(x: torch.Tensor, finished: torch.Tensor | None, dims: str, rows: str) -> None:
    if finished is None:
        return
    text = f"bool tensor expected but got a tensor with dtype: {finished.dtype}"
    require(finished.dtype == torch.bool, text, ErrCode.PARAM)
    require(finished.dim() == x.dim() - 1, dims, ErrCode.PARAM)
    require(finished.shape == x.shape[:-1], rows, ErrCode.PARAM)


def _unfinished(indices: torch.Tensor, finished: torch.Tensor | None, experts: int) -> torch.Tensor:
    narrow = indices.to(torch.int32)
    return narrow if finished is None else narrow.masked_fill(finished.unsqueeze(-1), experts)


def _check_groups(name: str, experts: int, groups: int, kept: int, summed: int) -> None:
    if groups <= 0 or experts % groups:
        refuse(name, f"{experts} experts cannot be parted in {groups} groups")
    if not 0 <= kept <= groups or not 1 <= summed <= experts // groups:
        refuse(
            name, f"{kept} of {groups} groups, with {summed} of the {experts // groups} experts of each, are not there"
        )
