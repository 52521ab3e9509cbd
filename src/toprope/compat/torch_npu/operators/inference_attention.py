"""Attention for inference: the computation behind npu_fused_infer_attention_score, its second version and forerunners.

Used by fused_infer_attention.py, which has the operators. Scores are scale * query key^T + pse_shift; a masked score
counts nothing. Refusals, the order of quantising and what an empty row gives are the kernels'; in which pieces it is
computed is free. Tests: tests/compat/operators/test_inference_attention.py.

Source: the operators' pages in op-plugin, the documents aclnnFusedInferAttentionScoreV2 to V4 and the kernels of
ops-transformer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from .attention_mask import COMPRESSED, Sparse, masked_scores
from .checks import compute_dtype, refuse
from .evaluation import has_values
from .inference_layout import InferLayout, Segment, check_value, infer_layout, segments
from .kv_blocks import blocks_of, read_blocks, tokens_per_block
from .sequence_attention import IntegerScales, attend

__all__ = ["NO_LIMIT", "InferenceCall", "Quantised", "attention_result"]

NO_LIMIT = 2147483647
_PER_CHANNEL, _PER_TOKEN, _PER_HEAD, _PER_TOKEN_AND_HEAD, _PER_TOKEN_IN_BLOCKS, _PER_TOKEN_AND_HEAD_IN_BLOCKS = range(6)
_ALL = 1
_HALF_SCORES, _ZERO_EMPTY_ROWS = 1, 2  # bits of inner_precise


@dataclass(frozen=True)
class Quantised:
    """Scale and offset of an int8 key or value: the number is (stored + offset) * scale.

    Attributes:
        scale: one number, or one for each channel, token, head, or token and head.
        offset: of the same shape; None for 0.
        mode: which of these, 0 to 5 as key_antiquant_mode counts them.
    """

    scale: torch.Tensor
    offset: torch.Tensor | None
    mode: int


@dataclass(frozen=True, kw_only=True)
class InferenceCall:
    """Arguments of one call; their names are those of npu_fused_infer_attention_score where it has them."""

    operator: str
    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor
    input_layout: str
    num_heads: int
    num_key_value_heads: int
    scale: float
    pse_shift: torch.Tensor | None = None
    atten_mask: torch.Tensor | None = None
    query_lengths: Sequence[int] | None = None
    key_lengths: Sequence[int] | None = None
    sparse_mode: int = 0
    pre_tokens: int = NO_LIMIT
    next_tokens: int = NO_LIMIT
    inner_precise: int = 0
    block_table: torch.Tensor | None = None
    block_size: int = 0
    query_padding: torch.Tensor | None = None
    key_padding: torch.Tensor | None = None
    key_prefix: torch.Tensor | None = None
    value_prefix: torch.Tensor | None = None
    prefix_length: Sequence[int] | None = None
    query_rope: torch.Tensor | None = None
    key_rope: torch.Tensor | None = None
    key_scales: Quantised | None = None
    value_scales: Quantised | None = None
    integer_scales: IntegerScales | None = None
    out_scale: torch.Tensor | None = None
    out_offset: torch.Tensor | None = None
    sink: torch.Tensor | None = None
    lse: bool = False

    @property
    def layout(self) -> InferLayout:
        """Axes of the inputs and of the result."""
        return infer_layout(self.query, self.input_layout, self.num_heads)

    @property
    def key_heads(self) -> int:
        """Heads of key and value."""
        return self.num_key_value_heads or self.num_heads

    def run(self) -> tuple[torch.Tensor, torch.Tensor]:
        """The result, and softmax_lse, which is empty if it is not asked for.

        Raises:
            RuntimeError: the kernel would not take the arguments.
        """
        layout = self.layout
        head = check_value(self.query, self.value, layout, self.block_table is not None, self.key_heads)
        self._check(layout)
        out, lse = attention_result(
            self.query,
            layout,
            self.num_heads,
            head,
            quantised=self.out_scale is not None,
            lse=self.lse,
            query_rope=self.query_rope,
        )
        if not has_values(self.query, self.key):
            return out, lse
        query = _with_rope(
            layout.to_bnsd(self.query, self.num_heads),
            None if self.query_rope is None else layout.to_bnsd(self.query_rope, self.num_heads),
        )
        batches, heads, length, _ = query.shape
        wide = compute_dtype(query)
        several = length > 1 or layout.packed  # the kernel of single tokens computes in float32 here
        half = several and bool(self.inner_precise & _HALF_SCORES) and query.dtype == torch.float16
        result = query.new_zeros((batches, heads, length, head), dtype=wide)
        logarithm = query.new_full((batches, heads, length, 1), torch.inf, dtype=wide)
        for segment in self._segments(layout, batches, length):
            rows = slice(segment.query_start, segment.query_start + segment.queries)
            bias, masked, zero = self._left_out(layout, segment, length)
            part = attend(
                query[segment.query_batch, :, rows],
                self._keys(layout, segment),
                self._values(layout, segment),
                self.scale,
                bias=bias,
                masked=masked,
                zero_empty_rows=zero,
                sink=self.sink,
                scales=self.integer_scales,
                half_scores=half,
            )
            result[segment.query_batch, :, rows] = part[0]
            logarithm[segment.query_batch, :, rows] = part[1]
        found = layout.from_bnsd(self._quantise(result, layout).to(out.dtype))
        return found, layout.logarithm(logarithm).to(torch.float32) if self.lse else lse

    # -- which arguments the kernel takes

    def _check(self, layout: InferLayout) -> None:
        heads, name = self.key_heads, self.operator
        batches, queried, _, size = layout.sizes(self.query, self.num_heads)
        if self.query.dtype not in (torch.float16, torch.bfloat16, torch.int8):
            refuse(name, f"query is {self.query.dtype}; the kernel takes float16, bfloat16 and int8")
        if queried != self.num_heads:
            refuse(name, f"num_heads is {self.num_heads}, but the query has {queried} heads in {layout.inputs}")
        if layout.inputs == "BSH" and self.query.shape[2] % self.num_heads:
            refuse(name, f"the query's last axis, {self.query.shape[2]}, must be a multiple of {self.num_heads} heads")
        if heads < 0 or self.num_heads % heads:
            refuse(name, f"the query's {self.num_heads} heads must be a multiple of the {heads} of key and value")
        if self.num_heads > 256 or size > 512:
            refuse(name, f"the kernel takes 256 heads of 512 elements at most, but got {self.num_heads} of {size}")
        if not 0 <= self.inner_precise <= 3:
            refuse(name, f"inner_precise is {self.inner_precise}; the kernel takes 0 to 3")
        if not 0 <= self.sparse_mode <= 4:
            refuse(name, f"sparse_mode {self.sparse_mode} is not simulated; 0 to 4 are")
        self._check_keys(layout, batches, size)
        self._check_bias()
        self._check_mask()
        self._check_pairs()

    def _check_keys(self, layout: InferLayout, batches: int, size: int) -> None:
        name, key, value = self.operator, self.key, self.value
        if key.dtype != value.dtype:
            refuse(name, f"key is {key.dtype} and value {value.dtype}; they must have one dtype")
        if key.dtype in (torch.int8, torch.int32) and self.query.dtype != torch.int8:
            if self.key_scales is None or self.value_scales is None:
                refuse(name, f"key and value are {key.dtype}: their scales are missing")
        elif key.dtype != self.query.dtype:
            refuse(name, f"query is {self.query.dtype} and key {key.dtype}; they must have one dtype")
        if self.query.dtype == torch.int8 and self.integer_scales is None:
            refuse(name, "query is int8: dequant_scale1, quant_scale1 and dequant_scale2 are missing")
        if self.block_table is None:
            if key.dim() != self.query.dim():
                refuse(name, f"key has {key.dim()} dimensions and query {self.query.dim()}")
            there = layout.sizes(key, self.key_heads)
            if not layout.packed and there[0] != batches:
                refuse(name, f"query has {batches} batches and key {there[0]}")
            if there[1] != self.key_heads:
                refuse(name, f"num_key_value_heads is {self.key_heads}, but key has {there[1]} heads")
            found = there[3] * (8 if key.dtype == torch.int32 else 1)
            if found != size and there[2]:
                refuse(name, f"heads of query and key must have one size, but got {size} and {found}")
            if layout.sizes(value, self.key_heads)[:3] != there[:3]:
                refuse(name, f"key {list(key.shape)} and value {list(value.shape)} do not fit each other")
            return
        if self.block_table.dim() != 2:
            refuse(name, f"block_table must have 2 dimensions, but got {list(self.block_table.shape)}")
        if self.block_table.dtype != torch.int32:
            refuse(name, f"block_table is {self.block_table.dtype}; the kernel takes int32")
        if self.key_lengths is None:
            refuse(name, "block_table takes the lengths of key and value as well")
        held = tokens_per_block(name, key)
        if self.block_size != held:
            refuse(name, f"block_size is {self.block_size}, but the blocks of key {list(key.shape)} hold {held} tokens")
        if self.query_padding is not None or self.key_padding is not None or self.key_prefix is not None:
            refuse(name, "a cache in blocks takes neither left padding nor a shared prefix")

    def _check_bias(self) -> None:
        """Refuse a pse_shift without an axis of the heads: a card reads it as if it had one, and says nothing."""
        bias = self.pse_shift
        if bias is not None and (bias.dim() != 4 or bias.shape[1] != self.num_heads):
            refuse(
                self.operator,
                f"pse_shift is {list(bias.shape)}; the kernel takes [B or 1, {self.num_heads} heads, queries, keys]",
            )

    def _check_mask(self) -> None:
        mask = self.atten_mask
        if mask is None:
            if self.sparse_mode:
                refuse(self.operator, f"sparse_mode {self.sparse_mode} takes an atten_mask")
            return
        if mask.dtype not in (torch.bool, torch.int8, torch.uint8):
            refuse(self.operator, f"atten_mask is {mask.dtype}; the kernel takes bool, int8 and uint8")
        if not 2 <= mask.dim() <= 4:
            refuse(self.operator, f"atten_mask has {mask.dim()} dimensions; the kernel takes 2 to 4")
        if mask.dim() == 4 and mask.shape[1] != 1:
            refuse(
                self.operator, f"atten_mask is {list(mask.shape)}; the kernel takes one mask for all heads, [B, 1, ...]"
            )
        if self.sparse_mode > _ALL and (mask.shape[-2:] != (COMPRESSED, COMPRESSED) or mask.numel() != COMPRESSED**2):
            refuse(
                self.operator,
                f"sparse_mode {self.sparse_mode} takes the compressed atten_mask, {COMPRESSED} x {COMPRESSED}, "
                f"but got {list(mask.shape)}",
            )

    def _check_pairs(self) -> None:
        for first, second, names in (
            (self.query_rope, self.key_rope, "query_rope and key_rope"),
            (self.key_prefix, self.value_prefix, "key_shared_prefix and value_shared_prefix"),
            (self.key_scales, self.value_scales, "the scales of key and of value"),
        ):
            if (first is None) != (second is None):
                refuse(self.operator, f"{names} belong together")
        if self.query_rope is not None and self.key_prefix is not None:
            refuse(self.operator, "query_rope and key_rope do not take a shared prefix")
        if self.sink is not None and self.sink.numel() != self.num_heads:
            refuse(self.operator, f"learnable_sink has {self.sink.numel()} elements for {self.num_heads} heads")

    # -- one sequence

    def _segments(self, layout: InferLayout, batches: int, length: int) -> list[Segment]:
        sizes = None
        if self.block_table is None:
            there = layout.sizes(self.key, self.key_heads)
            sizes = (there[0], there[2])
        single = length == 1 and not layout.packed  # the kernel ignores the query's length then
        padding = tuple(
            -1 if tensor is None or lengths is None else max(int(tensor), 0)
            for tensor, lengths in (
                (None if single else self.query_padding, self.query_lengths),
                (self.key_padding, self.key_lengths),
            )
        )
        lengths = None if single else self.query_lengths
        found = segments(
            self.operator, layout, (batches, length), sizes, lengths, self.key_lengths, (padding[0], padding[1])
        )
        if self.block_table is not None and len(found) > self.block_table.shape[0]:
            refuse(self.operator, f"block_table has {self.block_table.shape[0]} rows for {len(found)} sequences")
        return found

    def _keys(self, layout: InferLayout, segment: Segment) -> torch.Tensor:
        key = self._read(layout, self.key, segment, self.key_scales)
        if self.key_rope is not None:
            key = _with_rope(key, self._read(layout, self.key_rope, segment, None).to(key.dtype))
        return self._after_prefix(layout, self.key_prefix, key, self.key_scales)

    def _values(self, layout: InferLayout, segment: Segment) -> torch.Tensor:
        value = self._read(layout, self.value, segment, self.value_scales)
        return self._after_prefix(layout, self.value_prefix, value, self.value_scales)

    def _read(
        self, layout: InferLayout, tensor: torch.Tensor, segment: Segment, scales: Quantised | None
    ) -> torch.Tensor:
        blocks = None
        if self.block_table is None:
            end = segment.key_start + segment.keys
            whole = layout.to_bnsd(tensor, self.key_heads)[segment.key_batch]
            found = whole[:, segment.key_start : end]
        else:
            table = self.block_table[segment.index]
            blocks = blocks_of(table, segment.keys, tokens_per_block(self.operator, tensor))
            found = read_blocks(self.operator, tensor, blocks, segment.keys, self.key_heads)
        if scales is None:
            return found
        start = 0 if layout.packed else segment.key_start
        return self._dequantise(found, scales, segment.index, start, blocks)

    def _dequantise(
        self, stored: torch.Tensor, scales: Quantised, index: int, start: int, blocks: torch.Tensor | None
    ) -> torch.Tensor:
        numbers = _unpack_int4(stored) if stored.dtype == torch.int32 else stored.float()
        if scales.offset is not None:
            numbers = numbers + self._spread(scales.offset, scales.mode, numbers, index, start, blocks)
        return numbers * self._spread(scales.scale, scales.mode, numbers, index, start, blocks)

    def _spread(
        self,
        scale: torch.Tensor,
        mode: int,
        numbers: torch.Tensor,
        index: int,
        start: int,
        blocks: torch.Tensor | None,
    ) -> torch.Tensor:
        """A scale or an offset as a tensor that broadcasts to [N, S, D]."""
        heads, length, head = numbers.shape
        scale = scale.float()
        if mode == _PER_CHANNEL and scale.numel() in (1, heads * head):
            return scale.reshape(1) if scale.numel() == 1 else scale.reshape(heads, 1, head)
        if mode == _PER_HEAD and scale.numel() == heads:
            return scale.reshape(heads, 1, 1)
        if mode == _PER_TOKEN and scale.dim() >= 2:
            return scale.reshape(-1, scale.shape[-1])[index, start : start + length, None]
        if mode == _PER_TOKEN_AND_HEAD and scale.dim() >= 3:
            return scale.reshape(-1, heads, scale.shape[-1])[index, :, start : start + length, None]
        if mode == _PER_TOKEN_IN_BLOCKS and blocks is not None:
            return scale[blocks].reshape(-1)[:length, None]
        if mode == _PER_TOKEN_AND_HEAD_IN_BLOCKS and blocks is not None:
            return scale[blocks].transpose(0, 1).reshape(heads, -1)[:, :length, None]
        shape = list(scale.shape)
        return refuse(self.operator, f"scales {shape} of mode {mode} do not fit {heads} heads of {head} elements")

    def _after_prefix(
        self, layout: InferLayout, prefix: torch.Tensor | None, tensor: torch.Tensor, scales: Quantised | None
    ) -> torch.Tensor:
        if prefix is None:
            return tensor
        shared = layout.to_bnsd(prefix, self.key_heads)[0]
        if self.prefix_length is not None:
            shared = shared[:, : int(self.prefix_length[0])]
        if scales is not None:
            shared = self._dequantise(shared, scales, 0, 0, None)
        return torch.cat((shared, tensor), 1)

    def _left_out(
        self, layout: InferLayout, segment: Segment, length: int
    ) -> tuple[torch.Tensor | None, torch.Tensor | None, bool]:
        """Bias, mask and treatment of empty rows of one sequence."""
        keys = segment.keys + self._prefix_tokens(layout)
        row = 0 if layout.packed else segment.query_start
        column = 0 if layout.packed or self.key_prefix is not None else segment.key_start
        zero = bool(self.inner_precise & _ZERO_EMPTY_ROWS)
        bias, masked = None, None
        if self.pse_shift is not None:
            bias = self._part("pse_shift", self.pse_shift, segment.index, (row, segment.queries), (column, keys))
        if self.atten_mask is not None:
            single = length == 1 and not layout.packed
            free = single or (self.sparse_mode == 0 and self.query_padding is not None)
            sparse = Sparse(
                self.sparse_mode, NO_LIMIT if free else self.pre_tokens, NO_LIMIT if free else self.next_tokens
            )
            zero = zero or sparse.leaves_rows_empty(segment.queries, keys)
            if self.sparse_mode > _ALL:
                mask = self.atten_mask.reshape(COMPRESSED, COMPRESSED)
            else:
                mask = self._mask_of(segment, single, (row, segment.queries), (column, keys))
            masked = masked_scores(mask, sparse, segment.queries, keys)
        return bias, masked, zero

    def _prefix_tokens(self, layout: InferLayout) -> int:
        if self.key_prefix is None:
            return 0
        there = layout.to_bnsd(self.key_prefix, self.key_heads).shape[2]
        return there if self.prefix_length is None else min(int(self.prefix_length[0]), there)

    def _mask_of(self, segment: Segment, single: bool, rows: tuple[int, int], columns: tuple[int, int]) -> torch.Tensor:
        assert self.atten_mask is not None
        mask = self.atten_mask
        if mask.dim() == 2:
            mask = mask[:, None, None] if single else mask[None, None]
        elif mask.dim() == 3:
            mask = mask[:, None]
        return self._part("atten_mask", mask, segment.index, rows, columns)[0]

    def _part(
        self, name: str, whole: torch.Tensor, index: int, rows: tuple[int, int], columns: tuple[int, int]
    ) -> torch.Tensor:
        """The part of a [B or 1, N or 1, Sq, Skv] tensor that belongs to one sequence."""
        if whole.dim() != 4 or (whole.shape[0] != 1 and whole.shape[0] <= index):
            refuse(self.operator, f"{name} {list(whole.shape)} has no batch {index}")
        part = whole[index if whole.shape[0] > 1 else 0]
        last_row, last_column = sum(rows), sum(columns)
        if part.shape[1] < last_row or part.shape[2] < last_column:
            refuse(
                self.operator,
                f"{name} {list(whole.shape)} is smaller than the {last_row} queries and {last_column} keys of a "
                "sequence",
            )
        return part[:, rows[0] : last_row, columns[0] : last_column]

    def _quantise(self, result: torch.Tensor, layout: InferLayout) -> torch.Tensor:
        """int8 of a [B, N, S, D] result, where the call asks for it."""
        if self.out_scale is None:
            return result
        _, heads, _, head = result.shape
        numbers = result * self._out_part(self.out_scale, heads, head)
        if self.out_offset is not None:
            numbers = numbers + self._out_part(self.out_offset, heads, head)
        return numbers.round().clamp(-128, 127)

    def _out_part(self, tensor: torch.Tensor, heads: int, head: int) -> torch.Tensor:
        if tensor.numel() not in (1, heads * head):
            refuse(
                self.operator,
                f"the scale of the result has {tensor.numel()} elements for {heads} heads of {head} elements",
            )
        tensor = tensor.float()
        return tensor.reshape(1) if tensor.numel() == 1 else tensor.reshape(heads, 1, head)


def attention_result(
    query: torch.Tensor,
    layout: InferLayout,
    heads: int,
    head: int,
    *,
    quantised: bool,
    lse: bool,
    query_rope: torch.Tensor | None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Empty tensors of the shapes and dtypes of the two results.

    Args:
        query: of the call.
        layout: of the call.
        heads: of the query.
        head: size of a head of the value; 0 takes the query's.
        quantised: whether the result is int8.
        lse: whether softmax_lse is asked for.
        query_rope: of the call.
    """
    batches, heads, length, size = layout.sizes(query, heads)
    head = head if head and size else size
    shapes = {
        "BSH": (batches, length, heads * head),
        "BSND": (batches, length, heads, head),
        "BNSD": (batches, heads, length, head),
        "NBSD": (heads, batches, length, head),
        "TND": (length, heads, head),
        "NTD": (heads, length, head),
        "NSD": (heads, length, head),
    }
    dtype = query.dtype
    if quantised:
        dtype = torch.int8
    elif dtype == torch.int8:
        dtype = torch.float16 if query_rope is None else query_rope.dtype
    logarithm: tuple[int, ...] = (length, heads, 1) if layout.packed else (batches, heads, length, 1)
    return (
        query.new_empty(shapes[layout.result], dtype=dtype),
        query.new_empty(logarithm if lse else (0,), dtype=torch.float32),
    )


def _with_rope(tensor: torch.Tensor, rope: torch.Tensor | None) -> torch.Tensor:
    return tensor if rope is None else torch.cat((tensor, rope), -1)


def _unpack_int4(stored: torch.Tensor) -> torch.Tensor:
    """Eight int4 of each int32, the lowest bits first, in float32."""
    shifts = torch.arange(0, 32, 4, device=stored.device, dtype=torch.int32)
    nibbles = (stored[..., None] >> shifts) & 15
    return (nibbles - 16 * (nibbles >= 8)).flatten(-2).float()
