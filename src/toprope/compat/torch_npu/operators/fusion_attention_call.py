"""One call of npu_fusion_attention: its checked arguments, cut into batches, and their results put together.

Used by fusion_attention.py and fusion_attention_grad.py, which read their arguments in the same way, and by nsa.py. A
call of layout TND is cut into its batches; every other call is one part. Arguments, refusals and the form of the
statistics (each value eight times) are the kernel's; what the facade lacks says so. Tests:
tests/compat/test_npu_fusion_attention.py, tests/compat/operators/test_fusion_attention_training.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from .attention import Dropout, Gradients, attention, attention_grad, kept_weights
from .attention_layout import LAYOUTS, Segment, Sizes, from_bnsd, segments, sizes, to_bnsd
from .attention_mask import Sparse, check_mask, masked_scores
from .checks import floating, refuse, same_dtype

__all__ = ["Arguments", "Call", "prepare", "without_rope"]

_COPIES = 8  # the kernel writes maximum and sum of a row eight times, one block of 32 bytes
_ZERO_EMPTY_ROWS = 2  # inner_precise
_OUTER_AFTER, _OUTER_BEFORE, _ALIBI, _ALIBI_ROOT = range(4)  # pse_type

_Three = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


@dataclass(frozen=True)
class Arguments:
    """Arguments that the operators of all versions share. npu_fusion_attention_v2 explains them."""

    operator: str
    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor
    head_num: int
    input_layout: str
    pse: torch.Tensor | None
    padding_mask: torch.Tensor | None
    atten_mask: torch.Tensor | None
    scale: float
    keep_prob: float
    pre_tokens: int
    next_tokens: int
    inner_precise: int
    prefix: Sequence[int] | None
    actual_seq_qlen: Sequence[int] | None
    actual_seq_kvlen: Sequence[int] | None
    sparse_mode: int
    softmax_layout: str
    sink: torch.Tensor | None
    query_rope: torch.Tensor | None = None
    key_rope: torch.Tensor | None = None
    pse_type: int = _OUTER_BEFORE
    q_start_idx: Sequence[int] | None = None
    kv_start_idx: Sequence[int] | None = None


@dataclass(frozen=True)
class Call:
    """A checked call.

    Attributes:
        arguments: as they were given.
        found: their sizes.
        tensors: query, key and value as [B, N, S, D]; rope, if any, is the last part of the heads.
        batches: those of TND, None for the other layouts.
    """

    arguments: Arguments
    found: Sizes
    tensors: _Three
    batches: list[Segment] | None

    @property
    def numels(self) -> int:
        """Number of scores."""
        parts = [(self.found.queries, self.found.keys)]
        if self.batches is not None:
            parts = [(batch.queries, batch.keys) for batch in self.batches]
        return self.found.batch * self.found.heads * sum(queries * keys for queries, keys in parts)

    def attend(self, dropout: Dropout, dropout_mask: torch.Tensor | None) -> _Three:
        """The result in the layout of the call, and the statistics of the softmax with their copies."""
        kept = self._kept(dropout, dropout_mask)
        results = []
        for part in self._parts():
            masked, zero = part.masked(self)
            result = attention(
                *part.of(self.tensors),
                self.arguments.scale,
                bias=self._bias(part),
                bias_after_scale=self._bias_after_scale,
                masked=masked,
                zero_empty_rows=zero,
                sink=self.arguments.sink,
                kept=part.kept(kept, self.found),
                keep=dropout.keep,
            )
            results.append(result)
        outs, largest, total = self._with_rest(results)
        layout = self.arguments.input_layout.upper()
        statistics = [self._laid_out(parts) for parts in (largest, total)]
        return from_bnsd(torch.cat(outs, dim=2), layout), statistics[0], statistics[1]

    def gradients(
        self, grad: torch.Tensor, out: torch.Tensor, largest: torch.Tensor, total: torch.Tensor, dropout: Dropout
    ) -> Gradients:
        """Gradients of query, key and value in the layout of the call, of the bias and of the sink."""
        kept = self._kept(dropout, None)
        layout, found = self.arguments.input_layout.upper(), self.found
        grad, out = (to_bnsd(tensor, layout, found.heads) for tensor in (grad, out))
        largest, total = (self._by_head(statistic[..., 0]) for statistic in (largest, total))
        parts = [
            attention_grad(
                *part.of(self.tensors),
                self.arguments.scale,
                *(tensor[:, :, part.rows] for tensor in (grad, out, largest, total)),
                bias=self._bias(part),
                bias_after_scale=self._bias_after_scale,
                masked=part.masked(self)[0],
                sink=self.arguments.sink,
                kept=part.kept(kept, found),
                keep=dropout.keep,
            )
            for part in self._parts()
        ]
        query, key, value = (
            from_bnsd(self._padded([getattr(part, name) for part in parts], like), layout)
            for name, like in zip(("query", "key", "value"), self.tensors, strict=True)
        )
        sink, bias = self.arguments.sink, self.arguments.pse
        if bias is not None:
            # The bias that the kernel makes of slopes has no gradient.
            bias = torch.zeros_like(bias) if self.arguments.pse_type >= _ALIBI else parts[0].bias
        if sink is not None:
            sink = sum((part.sink for part in parts if part.sink is not None), torch.zeros_like(sink))
        return Gradients(query, key, value, bias, sink)

    @property
    def _bias_after_scale(self) -> bool:
        return self.arguments.pse_type != _OUTER_BEFORE

    def _kept(self, dropout: Dropout, mask: torch.Tensor | None) -> torch.Tensor | None:
        if dropout.keep == 1.0:
            return None
        return kept_weights(self.arguments.operator, self.numels, dropout, mask, self.tensors[0].device)

    def _parts(self) -> list[_Part]:
        mask = self.arguments.atten_mask
        if self.batches is None:
            return [_Part(Segment(0, self.found.queries, 0, self.found.keys), mask, 0)]
        masks = _segment_masks(mask, self._sparse, self.batches)
        found, start = [], 0
        for batch, part in zip(self.batches, masks, strict=True):
            if batch.queries and batch.keys:
                if mask is not None:
                    self._sparse.check_band(batch.queries, batch.keys)
                found.append(_Part(batch, part, start))
            start += self.found.heads * batch.queries * batch.keys
        return found

    @property
    def _sparse(self) -> Sparse:
        return Sparse(self.arguments.sparse_mode, self.arguments.pre_tokens, self.arguments.next_tokens)

    def _bias(self, part: _Part) -> torch.Tensor | None:
        given, kind = self.arguments.pse, self.arguments.pse_type
        if given is None or kind < _ALIBI:
            return given
        shift = (self.arguments.kv_start_idx or [0])[0] - (self.arguments.q_start_idx or [0])[0]
        columns = torch.arange(part.batch.keys, device=given.device, dtype=torch.float32)
        rows = torch.arange(part.batch.queries, device=given.device, dtype=torch.float32)
        distance = (columns - rows[:, None] + shift).abs()
        return -given.reshape(-1, self.found.heads, 1, 1) * (distance.sqrt() if kind == _ALIBI_ROOT else distance)

    def _with_rest(self, results: list[_Three]) -> tuple[list[torch.Tensor], list[torch.Tensor], list[torch.Tensor]]:
        """The results of the batches with zeros for rows that see no key or belong to no batch, in their order."""
        if self.batches is None:
            out, largest, total = results[0]
            return [out], [largest], [total]
        left, ordered = list(results), []
        for batch in self.batches:
            if batch.queries:
                ordered.append(left.pop(0) if batch.keys else self._zeros(batch.queries))
        rest = self.found.queries - sum(batch.queries for batch in self.batches)
        if rest or not ordered:
            ordered.append(self._zeros(rest))
        return [one for one, _, _ in ordered], [one for _, one, _ in ordered], [one for _, _, one in ordered]

    def _zeros(self, rows: int) -> _Three:
        query = self.tensors[0]
        statistic = query.new_zeros((1, self.found.heads, rows), dtype=torch.float32)
        return query.new_zeros((1, self.found.heads, rows, self.found.value_head)), statistic, statistic

    def _padded(self, parts: list[torch.Tensor], like: torch.Tensor) -> torch.Tensor:
        """The gradients of the batches at their rows; the other rows are zeros."""
        if self.batches is None:
            return parts[0]
        padded = torch.zeros_like(like)
        for part, gradient in zip(self._parts(), parts, strict=True):
            padded[:, :, part.rows if like is self.tensors[0] else part.columns] = gradient
        return padded

    def _laid_out(self, statistics: list[torch.Tensor]) -> torch.Tensor:
        """Maximum or sum as the kernel writes it; for TND batch by batch, each by head, or by row."""
        if self.batches is None:
            (whole,) = statistics
        else:
            by_row = bool(self.arguments.softmax_layout)
            flat = [(part[0].transpose(0, 1) if by_row else part[0]).reshape(-1) for part in statistics]
            whole = torch.cat(flat).reshape(self.found.queries, self.found.heads)
        return whole.float().unsqueeze(-1).expand(*whole.shape, _COPIES).contiguous()

    def _by_head(self, statistic: torch.Tensor) -> torch.Tensor:
        """The inverse of _laid_out: [B, N, S]."""
        if self.batches is None:
            return statistic
        heads = self.found.heads
        if self.arguments.softmax_layout:
            return statistic.reshape(-1, heads).transpose(0, 1).unsqueeze(0)
        flat = statistic.reshape(-1)
        ends = [batch.query_end for batch in self.batches if batch.queries] + [self.found.queries]
        starts = [0, *ends[:-1]]
        parts = [flat[a * heads : b * heads].reshape(heads, b - a) for a, b in zip(starts, ends, strict=True)]
        return torch.cat(parts, dim=1).unsqueeze(0)


@dataclass(frozen=True)
class _Part:
    """Queries and keys that see each other: a whole call, or one batch of TND.

    Attributes:
        batch: its rows in the query, and in key and value.
        mask: atten_mask of this part.
        start: number of scores before it.
    """

    batch: Segment
    mask: torch.Tensor | None
    start: int

    @property
    def rows(self) -> slice:
        return slice(self.batch.query_start, self.batch.query_end)

    @property
    def columns(self) -> slice:
        return slice(self.batch.key_start, self.batch.key_end)

    def of(self, tensors: _Three) -> _Three:
        query, key, value = tensors
        return query[:, :, self.rows], key[:, :, self.columns], value[:, :, self.columns]

    def masked(self, call: Call) -> tuple[torch.Tensor | None, bool]:
        """Mask of the scores to leave out, and whether rows without a score give zeros."""
        zero = call.arguments.inner_precise == _ZERO_EMPTY_ROWS
        if self.mask is None:
            return None, zero
        sparse, queries, keys = call._sparse, self.batch.queries, self.batch.keys
        return masked_scores(self.mask, sparse, queries, keys), zero or sparse.leaves_rows_empty(queries, keys)

    def kept(self, kept: torch.Tensor | None, found: Sizes) -> torch.Tensor | None:
        if kept is None:
            return None
        shape = (found.batch, found.heads, self.batch.queries, self.batch.keys)
        count = found.batch * found.heads * self.batch.queries * self.batch.keys
        return kept[self.start : self.start + count].reshape(shape)


def prepare(arguments: Arguments) -> Call:
    """Check the arguments of a call and bring its tensors into one layout.

    Raises:
        RuntimeError: the kernel would not take the arguments, or this facade does not have that form of the operator.
    """
    layout, operator = arguments.input_layout.upper(), arguments.operator
    _check_arguments(arguments, layout)
    query, key, value, pse = arguments.query, arguments.key, arguments.value, arguments.pse
    floating(operator, query=query, key=key, value=value, pse=pse)
    same_dtype(operator, query=query, key=key, value=value, pse=pse if arguments.pse_type < _ALIBI else None)
    found = sizes(query, key, value, arguments.head_num, layout)
    tensors = (
        to_bnsd(query, layout, found.heads),
        to_bnsd(key, layout, found.shared_heads),
        to_bnsd(value, layout, found.shared_heads),
    )
    tensors = _with_rope(arguments, found, tensors, layout)
    _check_sink(arguments, found)
    batches = None
    if layout == "TND":
        if pse is not None and arguments.pse_type < _ALIBI:
            refuse(operator, "toprope's facade does not have pse for layout TND yet")
        batches = segments(arguments.actual_seq_qlen, arguments.actual_seq_kvlen, found)
    elif pse is not None:
        _check_bias(arguments, found)
    call = Call(arguments, found, tensors, batches)
    mask = arguments.atten_mask
    if mask is not None and batches is None:
        check_mask(mask, call._sparse, _mask_shapes(found))
        call._sparse.check_band(found.queries, found.keys)
    return call


def _check_arguments(arguments: Arguments, layout: str) -> None:
    operator, sparse_mode, softmax_layout = arguments.operator, arguments.sparse_mode, arguments.softmax_layout
    if layout not in LAYOUTS:
        refuse(operator, f"input_layout should be one of {', '.join(LAYOUTS)}, but got {layout!r}")
    if not 0 < arguments.keep_prob <= 1:
        refuse(operator, f"keep_prob must be in (0, 1], but got {arguments.keep_prob}")
    if softmax_layout not in ("", "TND") or (softmax_layout and layout != "TND"):
        refuse(operator, f"softmax_layout {softmax_layout!r}: only 'TND' is taken, and only with input_layout TND")
    allowed = (0, 1, 2, 3, 4, 6, 7, 8) if layout == "TND" else (0, 1, 2, 3, 4, 5, 6)
    if sparse_mode not in allowed:
        refuse(operator, f"sparse_mode {sparse_mode}: layout {layout} takes {', '.join(map(str, allowed))}")
    if sparse_mode > 4:
        names = {5: "prefix", 6: "compressed prefix", 7: "causal in pieces", 8: "causal in pieces, upper left"}
        refuse(operator, f"toprope's facade does not have sparse_mode {sparse_mode} ({names[sparse_mode]}) yet")
    if arguments.padding_mask is not None:
        refuse(operator, "torch_npu does not take padding_mask; use atten_mask")
    if arguments.prefix:
        refuse(operator, "toprope's facade does not have the argument prefix yet")
    if arguments.pse_type not in (_OUTER_AFTER, _OUTER_BEFORE, _ALIBI, _ALIBI_ROOT):
        refuse(operator, f"pse_type {arguments.pse_type}: the kernel takes 0, 1, 2 and 3")


def _with_rope(arguments: Arguments, found: Sizes, tensors: _Three, layout: str) -> _Three:
    """Query and key with their rotated parts at the end of each head."""
    operator, ropes = arguments.operator, (arguments.query_rope, arguments.key_rope)
    if ropes == (None, None):
        return tensors
    query_rope, key_rope = ropes
    if query_rope is None or key_rope is None:
        refuse(operator, "query_rope and key_rope belong together, but only one of them was given")
    if layout != "TND":
        refuse(operator, f"query_rope and key_rope take layout TND, but got {layout}")
    same_dtype(operator, query=arguments.query, query_rope=query_rope, key_rope=key_rope)
    for name, rope, base in (("query_rope", query_rope, arguments.query), ("key_rope", key_rope, arguments.key)):
        if rope.dim() != base.dim() or rope.shape[:-1] != base.shape[:-1]:
            refuse(operator, f"{name} has shape {list(rope.shape)}; but for the last axis it takes {list(base.shape)}")
    if query_rope.shape[-1] != key_rope.shape[-1]:
        refuse(operator, f"query_rope has heads of {query_rope.shape[-1]}, key_rope of {key_rope.shape[-1]}")
    query, key, value = tensors
    query = torch.cat((query, to_bnsd(query_rope, layout, found.heads)), dim=-1)
    key = torch.cat((key, to_bnsd(key_rope, layout, found.shared_heads)), dim=-1)
    return query, key, value


def _check_sink(arguments: Arguments, found: Sizes) -> None:
    sink = arguments.sink
    if sink is None:
        return
    if sink.dtype != torch.float32 or list(sink.shape) != [found.heads]:
        refuse(
            arguments.operator,
            f"sink has shape {list(sink.shape)} and {sink.dtype}; these inputs take [{found.heads}] in float32",
        )


def _check_bias(arguments: Arguments, found: Sizes) -> None:
    pse, operator = arguments.pse, arguments.operator
    if pse is None:
        return
    shape = list(pse.shape)
    if arguments.pse_type >= _ALIBI:
        if found.queries != found.keys:
            refuse(operator, f"pse_type {arguments.pse_type} takes as many queries as keys")
        if shape not in ([found.heads], [found.batch, found.heads]) or pse.dtype != torch.float32:
            text = f"[{found.heads}] or [{found.batch}, {found.heads}] in float32"
            refuse(operator, f"pse_type {arguments.pse_type} takes slopes, {text}, but got {shape} {pse.dtype}")
        return
    batches, rows = (1, found.batch), (1, found.queries)
    if len(shape) == 4 and shape[0] in batches and shape[1] == found.heads and shape[3] == found.keys:
        if shape[2] in rows:
            return
        if shape[2] == 1024 < found.queries:
            refuse(operator, "toprope's facade does not have the compressed pse (its last 1024 rows alone) yet")
    refuse(
        operator,
        f"pse has shape {shape}; these inputs take [{found.batch} or 1, {found.heads}, {found.queries} or 1, "
        f"{found.keys}]",
    )


def _mask_shapes(found: Sizes) -> list[list[int]]:
    scores = [found.queries, found.keys]
    return [[found.batch, found.heads, *scores], [found.batch, 1, *scores], [1, 1, *scores], scores]


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


def without_rope(gradients: Gradients, rope: int) -> tuple[Gradients, torch.Tensor | None, torch.Tensor | None]:
    """Gradients of query and key, and those of their rotated parts, which are the last `rope` of a head."""
    if not rope:
        return gradients, None, None
    found = replace(
        gradients, query=gradients.query[..., :-rope].contiguous(), key=gradients.key[..., :-rope].contiguous()
    )
    return found, gradients.query[..., -rope:].contiguous(), gradients.key[..., -rope:].contiguous()
