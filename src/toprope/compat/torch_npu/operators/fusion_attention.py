"""The operator npu_fusion_attention: its arguments, its refusals and its seven results."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from .attention import Dropout, attention
from .attention_layout import LAYOUTS, Segment, Sizes, from_bnsd, segments, sizes, to_bnsd
from .attention_mask import Sparse, check_mask, masked_scores
from .checks import floating, refuse, same_dtype
from .registry import operator

__all__ = ["npu_fusion_attention"]

_OPERATOR = "npu_fusion_attention"
_NO_LIMIT = 2147483647
_COPIES = 8  # the kernel writes maximum and sum of a row eight times, one block of 32 bytes
_ZERO_EMPTY_ROWS = 2  # inner_precise

_Result = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, int, int, int]


@dataclass(frozen=True)
class _Call:
    """What the batches of one call have in common."""

    scale: float
    sparse: Sparse
    zero_empty_rows: bool
    keep: float
    generator: torch.Generator | None

    def attend(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        bias: torch.Tensor | None,
        mask: torch.Tensor | None,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Attention of [B, N, S, D] tensors; the mask is that of these queries and keys, or the compressed one."""
        queries, keys = query.shape[2], key.shape[2]
        masked, zero = None, self.zero_empty_rows
        if mask is not None:
            masked = masked_scores(mask, self.sparse, queries, keys)
            zero = zero or self.sparse.leaves_rows_empty(queries, keys)
        return attention(
            query,
            key,
            value,
            self.scale,
            bias=bias,
            masked=masked,
            zero_empty_rows=zero,
            keep=self.keep,
            generator=self.generator,
        )


@operator("npu_fusion_attention")
def npu_fusion_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    head_num: int,
    input_layout: str,
    pse: torch.Tensor | None = None,
    padding_mask: torch.Tensor | None = None,
    atten_mask: torch.Tensor | None = None,
    scale: float = 1.0,
    keep_prob: float = 1.0,
    pre_tockens: int = _NO_LIMIT,
    next_tockens: int = _NO_LIMIT,
    inner_precise: int = 0,
    prefix: Sequence[int] | None = None,
    actual_seq_qlen: Sequence[int] | None = None,
    actual_seq_kvlen: Sequence[int] | None = None,
    sparse_mode: int = 0,
    gen_mask_parallel: bool = True,
    sync: bool = False,
    softmax_layout: str = "",
    sink: torch.Tensor | None = None,
    dropout_mask: torch.Tensor | None = None,
    seed: int = 0,
    offset: int = 0,
) -> _Result:
    """Fused attention, softmax(mask(scale * (pse + query key^T))) value with dropout of the weights.

    Args:
        query: in the layout of `input_layout`; float16, bfloat16 or float32.
        key: like query, with as many heads or a divisor of them.
        value: like key; a head may be smaller.
        head_num: number of heads of query.
        input_layout: BSH, SBH, BSND, BNSD or TND.
        pse: position bias, added before the scale: [B or 1, N, Sq or 1, Skv].
        padding_mask: torch_npu does not take it.
        atten_mask: bool or uint8; True leaves a score out. Without it sparse_mode, pre_tockens and next_tockens have
            no effect.
        scale: factor of the scores.
        keep_prob: probability that dropout keeps a weight, in (0, 1].
        pre_tockens: keys before the diagonal that are computed, in modes 0 and 4.
        next_tockens: keys after the diagonal that are computed, in modes 0 and 4.
        inner_precise: 2 gives zeros for rows whose scores are all masked; 0 and 1 are the same.
        prefix: belongs to sparse modes 5 and 6, which this facade does not have.
        actual_seq_qlen: running sums of the lengths of the queries of each batch, for TND.
        actual_seq_kvlen: the same for key and value.
        sparse_mode: 0 mask and band, 1 whole mask, 2 causal from the upper left, 3 causal from the lower right,
            4 band from the lower right.
        gen_mask_parallel: without effect here.
        sync: without effect here.
        softmax_layout: "TND" lays out maximum and sum of a TND call by row; by default every batch lies by head.
        sink: not in this facade.
        dropout_mask: not in this facade.
        seed: seed of the dropout of this call alone; 0 takes the device's generator.
        offset: position that goes with `seed`.

    Returns:
        (attention_out, softmax_max, softmax_sum, softmax_out, seed, offset, numels). Only the first has a gradient.
        softmax_max and softmax_sum are float32, [B, N, Sq, 8] or [T, N, 8]; softmax_out is empty; numels is the number
        of scores. The dropout's numbers are not those of the card.

    Raises:
        RuntimeError: the kernel would not take the arguments, or this facade does not have that form of the operator.
    """
    layout = input_layout.upper()
    _check_arguments(layout, sparse_mode, keep_prob, softmax_layout)
    _check_missing(padding_mask=padding_mask, prefix=prefix, sink=sink, dropout_mask=dropout_mask)
    floating(_OPERATOR, query=query, key=key, value=value, pse=pse)
    same_dtype(_OPERATOR, query=query, key=key, value=value, pse=pse)
    found = sizes(query, key, value, head_num, layout)
    sparse = Sparse(sparse_mode, pre_tockens, next_tockens)
    dropout = Dropout(keep_prob, seed, offset)
    call = _Call(scale, sparse, inner_precise == _ZERO_EMPTY_ROWS, keep_prob, dropout.generator(query.device))
    tensors = (
        to_bnsd(query, layout, head_num),
        to_bnsd(key, layout, found.shared_heads),
        to_bnsd(value, layout, found.shared_heads),
    )
    if layout == "TND":
        if pse is not None:
            refuse(_OPERATOR, "toprope's facade does not have pse for layout TND yet")
        batches = segments(actual_seq_qlen, actual_seq_kvlen, found)
        out, largest, total = _attend_segments(call, tensors, atten_mask, batches, found, by_row=bool(softmax_layout))
        numels = head_num * sum(batch.queries * batch.keys for batch in batches)
    else:
        _check_bias(pse, found)
        if atten_mask is not None:
            check_mask(atten_mask, sparse, _mask_shapes(found))
            sparse.check_band(found.queries, found.keys)
        out, largest, total = call.attend(*tensors, pse, atten_mask)
        numels = found.batch * head_num * found.queries * found.keys
    if keep_prob < 1.0 and not seed:
        seed = _initial_seed(query.device)
    return from_bnsd(out, layout), _copies(largest), _copies(total), query.new_empty(0), seed, offset, numels


def _check_arguments(layout: str, sparse_mode: int, keep_prob: float, softmax_layout: str) -> None:
    if layout not in LAYOUTS:
        refuse(_OPERATOR, f"input_layout should be one of {', '.join(LAYOUTS)}, but got {layout!r}")
    if not 0 < keep_prob <= 1:
        refuse(_OPERATOR, f"keep_prob must be in (0, 1], but got {keep_prob}")
    if softmax_layout not in ("", "TND") or (softmax_layout and layout != "TND"):
        refuse(_OPERATOR, f"softmax_layout {softmax_layout!r}: only 'TND' is taken, and only with input_layout TND")
    allowed = (0, 1, 2, 3, 4, 6, 7, 8) if layout == "TND" else (0, 1, 2, 3, 4, 5, 6)
    if sparse_mode not in allowed:
        refuse(_OPERATOR, f"sparse_mode {sparse_mode}: layout {layout} takes {', '.join(map(str, allowed))}")
    if sparse_mode > 4:
        names = {5: "prefix", 6: "compressed prefix", 7: "causal in pieces", 8: "causal in pieces, upper left"}
        refuse(_OPERATOR, f"toprope's facade does not have sparse_mode {sparse_mode} ({names[sparse_mode]}) yet")


def _check_missing(**arguments: object) -> None:
    for name, value in arguments.items():
        if value is None:
            continue
        if name == "padding_mask":
            refuse(_OPERATOR, "torch_npu does not take padding_mask; use atten_mask")
        refuse(_OPERATOR, f"toprope's facade does not have the argument {name} yet")


def _check_bias(pse: torch.Tensor | None, found: Sizes) -> None:
    if pse is None:
        return
    shape = list(pse.shape)
    batches, rows = (1, found.batch), (1, found.queries)
    if len(shape) == 4 and shape[0] in batches and shape[1] == found.heads and shape[3] == found.keys:
        if shape[2] in rows:
            return
        if shape[2] == 1024 < found.queries:
            refuse(_OPERATOR, "toprope's facade does not have the compressed pse (its last 1024 rows alone) yet")
    refuse(
        _OPERATOR,
        f"pse has shape {shape}; these inputs take [{found.batch} or 1, {found.heads}, {found.queries} or 1, "
        f"{found.keys}]",
    )


def _mask_shapes(found: Sizes) -> list[list[int]]:
    scores = [found.queries, found.keys]
    return [[found.batch, found.heads, *scores], [found.batch, 1, *scores], [1, 1, *scores], scores]


def _attend_segments(
    call: _Call,
    tensors: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    mask: torch.Tensor | None,
    batches: list[Segment],
    found: Sizes,
    by_row: bool,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Attention of every batch of a TND call on its own; rows that belong to no batch are zeros."""
    masks = _segment_masks(mask, call.sparse, batches)
    results = [
        _attend_segment(call, tensors, part, batch, found)
        for part, batch in zip(masks, batches, strict=True)
        if batch.queries
    ]
    rest = found.queries - sum(batch.queries for batch in batches)
    if rest or not results:
        results.append(_zeros(tensors[0], rest, found))
    outs, largests, totals = zip(*results, strict=True)
    out = torch.cat(outs, dim=2)
    statistics = [torch.cat([_laid_out(part, by_row) for part in parts]) for parts in (largests, totals)]
    rows = (found.queries, found.heads)
    return out, statistics[0].reshape(rows), statistics[1].reshape(rows)


def _attend_segment(
    call: _Call,
    tensors: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    mask: torch.Tensor | None,
    batch: Segment,
    found: Sizes,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    if not batch.keys:
        return _zeros(tensors[0], batch.queries, found)
    rows, columns = slice(batch.query_start, batch.query_end), slice(batch.key_start, batch.key_end)
    query, key, value = tensors[0][:, :, rows], tensors[1][:, :, columns], tensors[2][:, :, columns]
    if mask is not None:
        call.sparse.check_band(batch.queries, batch.keys)
    return call.attend(query, key, value, None, mask)


def _zeros(query: torch.Tensor, rows: int, found: Sizes) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    statistic = query.new_zeros((1, found.heads, rows), dtype=torch.float32)
    return query.new_zeros((1, found.heads, rows, found.value_head)), statistic, statistic


def _segment_masks(mask: torch.Tensor | None, sparse: Sparse, batches: list[Segment]) -> list[torch.Tensor | None]:
    """The mask of every batch: its corner of one mask for the longest, or its block of one mask for all."""
    if mask is None:
        return [None] * len(batches)
    queries, keys = [batch.queries for batch in batches], [batch.keys for batch in batches]
    longest, together = [max(queries), max(keys)], [sum(queries), sum(keys)]
    check_mask(mask, sparse, [longest, together])
    if sparse.compressed:
        return [mask] * len(batches)
    if list(mask.shape) == longest:
        return [mask[: batch.queries, : batch.keys] for batch in batches]
    return [mask[batch.query_start : batch.query_end, batch.key_start : batch.key_end] for batch in batches]


def _laid_out(statistic: torch.Tensor, by_row: bool) -> torch.Tensor:
    """Maximum or sum of one batch, [1, N, S], in the order in which the kernel writes it: by head, or by row."""
    statistic = statistic.squeeze(0)
    return (statistic.transpose(0, 1) if by_row else statistic).reshape(-1)


def _copies(statistic: torch.Tensor) -> torch.Tensor:
    return statistic.float().unsqueeze(-1).expand(*statistic.shape, _COPIES).contiguous()


def _initial_seed(device: torch.device) -> int:
    """Seed of the device's generator as a signed number of 64 bits, which is what the operator returns."""
    seed = torch.initial_seed() if device.type == "cpu" else int(torch.get_device_module(device).initial_seed())
    return (seed + 2**63) % 2**64 - 2**63
