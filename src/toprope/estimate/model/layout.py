"""Division of a model among cards, on paper: degrees, divisibility, and what the cards send; pure.

Called by estimate.py and cli/estimate.py. Names of a configuration's fields are those of transformers; what is divided
follows Megatron-LM and ZeRO; the size of buffers is HCCL's. Beyond a node no figure is known, and a range has no upper
end. Tests: tests/estimate/test_paper.py.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from math import inf
from typing import Any

from toprope.errors import UsageError
from toprope.estimate.cost.rates import Rates
from toprope.estimate.cost.span import NOTHING, Span

__all__ = ["BUFFER_BYTES", "Layout", "collective", "divided", "exposed", "gradient_time", "send"]

BUFFER_BYTES = 2 * 200 * 2**20
"""Of a communicator of HCCL: one buffer to send, one to receive, HCCL_BUFFSIZE (200 MB where it is not set) each."""

_HEADS = "num_attention_heads"
_COLUMNS = ("intermediate_size", "moe_intermediate_size", "shared_expert_intermediate_size")
_LAYERS = "num_hidden_layers"


@dataclass(frozen=True)
class Layout:
    """Degrees of parallelism.

    Attributes:
        dp: copies of the model, each with its part of the batch.
        tp: cards that share each layer: attention heads, and columns of the MLP (Megatron-LM).
        pp: stages of consecutive layers.
        ep: cards, of those of `dp`, that share the experts of a layer.
        zero: of `dp`, what each copy keeps only a part of: 1 optimizer states, 2 gradients too, 3 weights too (FSDP).
        micro_batches: parts of the batch of one copy, one after the other, in a training step.
    """

    dp: int = 1
    tp: int = 1
    pp: int = 1
    ep: int = 1
    zero: int = 0
    micro_batches: int = 1

    def __post_init__(self) -> None:
        for name in ("dp", "tp", "pp", "ep", "micro_batches"):
            if getattr(self, name) < 1:
                raise UsageError(f"{name} is {getattr(self, name)}, and is at least 1.", do="write 1 or more")
        if self.zero not in range(4):
            raise UsageError(f"zero is {self.zero}.", do="write 0, 1, 2 or 3")
        if self.zero and self.dp == 1:
            raise UsageError(
                "zero divides among the copies of --dp, and there is one.", do="set --dp, or leave --zero out"
            )
        if self.dp % self.ep:
            raise UsageError(
                f"{self.ep} cards cannot share experts among {self.dp} copies of a model.",
                do="experts are divided among the cards of --dp: let --ep divide it",
            )

    @property
    def cards(self) -> int:
        """Cards in all."""
        return self.dp * self.tp * self.pp

    @property
    def communicators(self) -> int:
        """Groups of cards that a card belongs to, each with buffers of HCCL."""
        return sum(each > 1 for each in (self.dp, self.tp, self.pp, self.ep))

    @property
    def bubble(self) -> float:
        """Share of a training step in which a stage has no work: (p - 1) / (m + p - 1)."""
        return (self.pp - 1) / (self.micro_batches + self.pp - 1)


def _of(value: int, parts: int, what: str, option: str = "--tp") -> int:
    if value % parts:
        possible = ", ".join(str(each) for each in range(2, min(value, 64) + 1) if value % each == 0)
        raise UsageError(
            f"{value} {what} cannot be divided by {parts}.",
            do=f"choose a degree that divides them: {option} {possible}" if possible else f"leave {option} out",
        )
    return value // parts


def divided(config: Any, layout: Layout) -> Any:
    """A configuration of transformers for the part of a model that one card has: a stage's layers, a card's heads.

    Attention heads, heads of keys and values (each at least once), columns of the MLP and the vocabulary are divided
    by `tp`, layers by `pp`. Experts are divided when the model is there.

    Args:
        config: is not changed.

    Raises:
        UsageError: something cannot be divided, or the configuration has no such numbers.
    """
    made = copy.deepcopy(config)
    text = made.get_text_config()
    if layout.tp > 1:
        _divide_tensors(text, layout.tp)
    if layout.pp > 1:
        _divide_layers(text, layout.pp)
    return made


def _divide_tensors(text: Any, parts: int) -> None:
    heads = getattr(text, _HEADS, None)
    if heads is None or getattr(text, "hidden_size", None) is None:
        raise UsageError(
            f"--tp divides {_HEADS}, which the configuration of {text.model_type} does not have.", do="leave it out"
        )
    shared = getattr(text, "num_key_value_heads", None) or heads
    if getattr(text, "head_dim", None) is None:
        text.head_dim = text.hidden_size // heads
    if shared % parts and parts % shared:
        raise UsageError(
            f"{shared} heads of keys and values cannot be divided by {parts}.",
            do=f"choose a --tp that divides {shared}, or a multiple of it",
        )
    setattr(text, _HEADS, _of(heads, parts, "attention heads"))
    if hasattr(text, "num_key_value_heads"):
        text.num_key_value_heads = max(shared // parts, 1)
    for name in _COLUMNS:
        if getattr(text, name, None):
            setattr(text, name, _of(getattr(text, name), parts, f"columns ({name})"))
    text.vocab_size = -(-text.vocab_size // parts)
    for name in ("pad_token_id", "bos_token_id", "eos_token_id"):
        setattr(text, name, None)  # they may be in the part of another card


def _divide_layers(text: Any, parts: int) -> None:
    layers = getattr(text, _LAYERS, None)
    if layers is None:
        raise UsageError(f"--pp divides {_LAYERS}, which the configuration does not have.", do="leave it out")
    kept = _of(layers, parts, "layers", "--pp")
    setattr(text, _LAYERS, kept)
    if getattr(text, "layer_types", None):
        text.layer_types = list(text.layer_types)[:kept]


def cards_per_node(rates: Rates) -> int:
    """Cards that are linked with each other inside a node: 8, or 16 dies of an A3."""
    return 16 if "910C" in rates.chip.family else 8


def collective(rates: Rates, name: str, size: int, ranks: int, extent: int) -> Span:
    """A collective of ranks that lie within `extent` cards; beyond a node no figure bounds it above."""
    span = rates.collective(name, size, ranks)
    return span if extent <= cards_per_node(rates) else Span(span.low, span.likely, inf)


def send(rates: Rates, size: int, extent: int) -> Span:
    """A message from one card to another that lies within `extent` cards."""
    return collective(rates, "broadcast", 2 * size, 2, extent)


def exposed(span: Span, hidden_by: Span) -> Span:
    """Return the part of a collective that is waited for: none that fits next to other work, or all of it."""
    return Span(max(0.0, span.low - hidden_by.low), max(0.0, span.likely - hidden_by.likely), span.high)


def gradient_time(
    rates: Rates, layout: Layout, gradients: tuple[int, int], weights: tuple[int, int]
) -> list[tuple[str, Span]]:
    """The collectives of data parallelism of one step, each by name, before any is hidden.

    Args:
        rates: of the chip.
        layout: the degrees.
        gradients, weights: bytes that one card has before ZeRO divides them, of experts and of all others. Copies of
            an expert are fewer than copies of the model.
    """
    extent = layout.dp * layout.tp

    def all_of(name: str, sizes: tuple[int, int], times: int = 1) -> Span:
        both = zip(sizes, (layout.dp // layout.ep, layout.dp), strict=True)
        spans = [collective(rates, name, size, ranks, extent) for size, ranks in both if size and ranks > 1]
        total = NOTHING
        for each in spans:
            total = total.plus(each.times(times))
        return total

    if layout.dp == 1:
        return []
    if layout.zero == 0:
        return [("gradients: all-reduce", all_of("allreduce", gradients))]
    scattered = all_of("reducescatter", gradients, layout.micro_batches if layout.zero > 1 else 1)
    # with ZeRO 3 before forward, and again before backward
    gathered = all_of("allgather", weights, 2 * layout.micro_batches if layout.zero == 3 else 1)
    return [("gradients: reduce-scatter", scattered), ("weights: all-gather", gathered)]
