"""Quantised weights by a model's configuration: which are stored, in how many bits; pure.

Used by model/configs.py and recorder.py. The fields are those that transformers reads
(transformers/utils/quantization_config.py) and that compressed-tensors writes. Scales and zero points are counted;
kernels' own layouts are not known, nor are methods without a case here: a new one is a case of `_of_method`. Tests:
tests/estimate/test_paper.py.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from toprope.errors import UsageError

__all__ = ["Quantised", "quantised_of"]

_SCALE_BITS = 16
_HEAD = ("lm_head",)
"""Modules that these methods leave alone where the configuration names none."""
_SKIPPED = ("modules_to_not_convert", "llm_int8_skip_modules", "ignore", "ignored_layers")


@dataclass(frozen=True)
class Quantised:
    """How the weights of linear layers and experts are stored.

    Attributes:
        method: as the configuration names it, such as "gptq".
        bits: of an element.
        group: elements that share a scale and a zero point; 0 where these are too few to count.
        skipped: names of modules that are not quantised, or patterns that begin with "re:".
        products: dtype that products are computed in, where activations are quantised too; "" for the dtype of the
            activations.
    """

    method: str
    bits: float
    group: int = 0
    skipped: tuple[str, ...] = _HEAD
    products: str = ""

    @property
    def bits_in_memory(self) -> float:
        """Bits of an element with its part of scales and zero points."""
        return self.bits + ((_SCALE_BITS + self.bits) / self.group if self.group else 0.0)

    def covers(self, module: str) -> bool:
        """Return True for a module whose weights are quantised, by its name in the model."""
        parts = module.split(".")
        for each in self.skipped:
            if each.startswith("re:"):
                if re.match(each[3:], module):
                    return False
            elif each == module or each in parts or module.startswith(f"{each}.") or module.endswith(f".{each}"):
                return False
        return True

    @property
    def text(self) -> str:
        """The method for a reader."""
        how = f"{self.bits:g} bits" + (f", a scale for {self.group}" if self.group else "")
        return f"{self.method} ({how}; products in {self.products or 'the dtype of the activations'})"


def quantised_of(config: Mapping[str, Any]) -> Quantised | None:
    """The quantization_config of a configuration; None where it has none, or one of a method that is not known.

    Raises:
        UsageError: a field is not what the method has there.
    """
    data = config.get("quantization_config")
    if not isinstance(data, Mapping) or not data:
        return None
    method = str(data.get("quant_method") or ("bitsandbytes" if _is_bitsandbytes(data) else "")).lower()
    try:
        return _of_method(method, data)
    except (TypeError, ValueError, AttributeError, KeyError, re.error) as error:
        raise UsageError(
            f"quantization_config of the method {method!r} cannot be read.",
            looked_at=f"{type(error).__name__}: {error}",
            do="compare it with the one that the library of that method writes",
        ) from None


def _of_method(method: str, data: Mapping[str, Any]) -> Quantised | None:
    skipped = next((tuple(map(str, data[name])) for name in _SKIPPED if data.get(name)), _HEAD)
    for each in skipped:
        if each.startswith("re:"):
            re.compile(each[3:])
    match method:
        case "gptq" | "awq":
            bits = float(data.get("bits") or data["w_bit"])
            group = int(data.get("group_size") or data.get("q_group_size") or 0)
            return Quantised(method, _possible(bits), max(group, 0), skipped)
        case "bitsandbytes":
            if data.get("load_in_4bit"):
                return Quantised(method, 4, 64, skipped)
            return Quantised(method, 8, 0, skipped)  # activations are quantised by columns, and put together again
        case "fp8" | "fbgemm_fp8":
            return Quantised(method, 8, 0, skipped, "float8_e4m3fn")
        case "mxfp4":
            return Quantised(method, 4, 32, skipped)
        case "compressed-tensors":
            return _compressed(data)
    return None


def _compressed(data: Mapping[str, Any]) -> Quantised:
    groups = [dict(group) for group in data["config_groups"].values()]
    weights = max((dict(group["weights"]) for group in groups), key=lambda each: float(each["num_bits"]))
    bits = _possible(float(weights["num_bits"]))
    taken = [group.get("input_activations") for group in groups]
    products = ""
    if all(taken) and bits == 8:
        products = "float8_e4m3fn" if weights.get("type") == "float" else "int8"
    return Quantised(
        "compressed-tensors", bits, max(int(weights.get("group_size") or 0), 0),
        tuple(map(str, data.get("ignore") or ())), products,
    )  # fmt: skip


def _possible(bits: float) -> float:
    if not 1 <= bits <= 16:
        raise ValueError(f"{bits:g} bits")
    return bits


def _is_bitsandbytes(data: Mapping[str, Any]) -> bool:
    return bool(data.get("load_in_4bit") or data.get("load_in_8bit"))
