"""Estimate of a model's memory in training, for `vb_global.estimate_model_resources` of the apt_model facade.

Counted from a module's parameters, or, for a configuration, from a transformer of these sizes. Imports no torch. Keys
of the result are apt_model's; names of sizes are those of transformers' configurations, and more may be added. Tests:
tests/compat/test_apt_vb_global.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from toprope.errors import UsageError

__all__ = ["estimate", "estimate_text"]

_MIB = 2**20
_BYTES = 4
"""Of a value: fp32, as both Adam's states are."""

_NAMES = {
    "hidden": ("hidden_size", "d_model", "n_embd"),
    "layers": ("num_hidden_layers", "num_layers", "n_layers", "n_layer"),
    "vocabulary": ("vocab_size",),
}
_OPTIONAL = {
    "inner": ("intermediate_size", "d_ff", "n_inner"),
    "length": ("max_position_embeddings", "max_seq_len", "seq_len", "n_positions"),
}


def estimate(model: Any, batch_size: int = 8) -> dict[str, Any]:
    """MiB in training with Adam in fp32. See `estimate_model_resources`.

    Raises:
        UsageError: a figure is missing, or is no positive number.
    """
    if hasattr(model, "parameters"):
        from toprope.tiers.modes.models import needs_of

        needs = needs_of(model)
        count = sum(each.numel() for each in model.parameters())
        parts = (needs.weights, needs.trained, 2 * needs.trained)
        return _figures(count, parts, None, "counted")
    figures = {name: _figure(model, known) for name, known in (_NAMES | _OPTIONAL).items()}
    missing = [_NAMES[name][0] for name in _NAMES if figures[name] is None]
    if missing:
        raise UsageError(
            f"the configuration has no {', '.join(missing)}.",
            looked_at=f"also under {', '.join(each for name in _NAMES for each in _NAMES[name][1:])}",
            do="give a mapping or an object with these figures, or the model itself",
        )
    hidden, layers, vocabulary = (int(figures[name]) for name in ("hidden", "layers", "vocabulary"))  # type: ignore[arg-type]
    inner = int(figures["inner"] or 4 * hidden)
    length = int(figures["length"] or 1024)
    # attention, the two layers behind it, their biases, two norms; the embedding, tied to the head, and a last norm
    a_layer = 4 * hidden * hidden + 2 * hidden * inner + 9 * hidden + inner
    count = layers * a_layer + vocabulary * hidden + 2 * hidden
    # what is saved for a token: inputs of two norms, of three products and of attention (3), the inner ones twice
    activations = layers * batch_size * length * (8 * hidden + 2 * inner) * _BYTES
    size = count * _BYTES
    return _figures(
        count, (size, size, 2 * size), activations, f"estimated for a transformer, {length} tokens a sequence"
    )


def _figure(model: Any, names: tuple[str, ...]) -> float | None:
    for name in names:
        found = model.get(name) if isinstance(model, Mapping) else getattr(model, name, None)
        if found is not None:
            if isinstance(found, bool) or not isinstance(found, (int, float)) or found <= 0:
                raise UsageError(f"{name}={found!r} is no positive number.")
            return found
    return None


def _figures(count: int, parts: tuple[int, int, int], activations: int | None, source: str) -> dict[str, Any]:
    weights, gradients, states = (each / _MIB for each in parts)
    more = None if activations is None else activations / _MIB
    return {
        "parameters": count,
        "weights_mb": weights,
        "gradients_mb": gradients,
        "optimizer_mb": states,
        "activations_mb": more,
        "total_mb": weights + gradients + states + (more or 0.0),
        "source": source,
    }


def estimate_text(name: str, found: Mapping[str, Any]) -> str:
    """The figures in one line, as the original prints its own."""
    parts = [f"权重 {found['weights_mb']:.1f} MB", f"梯度 {found['gradients_mb']:.1f} MB"]
    parts.append(f"优化器状态 {found['optimizer_mb']:.1f} MB")
    if found["activations_mb"] is not None:
        parts.append(f"激活值 {found['activations_mb']:.1f} MB")
    total = f"合计 {found['total_mb']:.1f} MB（{found['source']}）"
    return "，".join([f"{name}: 参数 {found['parameters']:,}", *parts, total])
