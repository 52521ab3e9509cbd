"""Record which attention kernel runs in an edit, from the operators that are called and not from the settings.

`torch.nn.functional.scaled_dot_product_attention` chooses by device, dtype, shapes and mask, and does not report it. On
a card, the difference between a fused kernel and the plain one is memory that grows with the square of the pixels.

`images.engine` wraps every edit in it; the result is "attention" in the record and in the page's panel. The operators'
names are torch's and torch_npu's: a new fused operator needs a row in the table below; the words for users are free.
Tests: tests/images/simulated/test_images_attention.py, tests/images/test_images_engine.py.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode

__all__ = ["FUSED", "PATHS", "AttentionWatch", "chosen_backend"]

FUSED = "fused by the NPU"

PATHS = {
    "_scaled_dot_product_flash_attention": "flash",
    "_scaled_dot_product_flash_attention_for_cpu": "flash on the CPU",
    "_scaled_dot_product_efficient_attention": "memory-efficient",
    "_scaled_dot_product_cudnn_attention": "cuDNN",
    "_scaled_dot_product_fused_attention_overrideable": "fused by the device",
    "scaled_dot_product_attention": "the device's own kernel",  # registered for the whole operator, as torch_npu does
    "_scaled_dot_product_attention_math": "math",
    "_scaled_dot_product_attention_math_for_mps": "math on MPS",
    "npu_fusion_attention": FUSED,
    "npu_fusion_attention_v2": FUSED,
    "npu_fused_infer_attention_score": FUSED,
    "npu_prompt_flash_attention": FUSED,
    "_flash_attention_forward": "flash",
    "_flash_attn_forward": "flash (flash_attn)",
    "_efficient_attention_forward": "memory-efficient",
}
"""Attention operators, with their names for users."""


class AttentionWatch(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Context that counts the attention operators that run.

    Attributes:
        seen: number of calls of the operators of `PATHS`, by their full name.
        softmaxes: number of softmaxes outside of them, which are attention in plain products if there is no other.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.seen: Counter[str] = Counter()
        self.softmaxes = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func._schema.name.partition("::")[2]
        if name in PATHS:
            self.seen[func._schema.name] += 1
        elif name in ("_softmax", "_safe_softmax"):
            self.softmaxes += 1
        return func(*args, **(kwargs or {}))

    def describe(self) -> dict[str, Any]:
        """The result for JSON: "path" in words, "operators" with their counts."""
        names = {PATHS[name.partition("::")[2]] for name in self.seen}
        if not names:
            names = {"plain products and softmax"} if self.softmaxes else {"none"}
        return {
            "path": " and ".join(sorted(names)),
            "operators": dict(sorted(self.seen.items())),
            "softmaxes": self.softmaxes,
            "diffusers_backend": chosen_backend(),
        }


def chosen_backend() -> str | None:
    """The backend that diffusers' dispatcher is set to; None if it has none. Older models do not use it."""
    try:
        from diffusers.models.attention_dispatch import _AttentionBackendRegistry

        return str(_AttentionBackendRegistry._active_backend.value)
    except (ImportError, AttributeError):
        return None
