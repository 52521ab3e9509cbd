"""The four modes by name, their effects, and the variables that ask for one. Pure.

Read by `modes.switch` and, without torch, by `toprope run`. Names of modes and effects are public; the variables are
those of APT-Transformer's vb_global. A new mode is a row of `MODES`, and of docs/tiers.md. Tests:
tests/tiers/test_tiers_modes.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from toprope.errors import SettingError, UsageError

__all__ = ["MODE", "MODES", "SWITCH", "Effects", "asked_for", "effects_of"]

SWITCH, MODE = "ENABLE_VIRTUAL_BLACKWELL", "VB_MODE"
"""Variables of APT-Transformer: one enables a mode, the other names it."""

_SWITCH = {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False, "off": False}


@dataclass(frozen=True)
class Effects:
    """Effects of a mode on models.

    Attributes:
        attention: use torch's scaled_dot_product_attention where a module computes attention otherwise.
        recompute: compute blocks again in backward instead of keeping the activations that they save.
        offload: move activations that forward saves for backward out of the device's memory.
        mixed: compute products in bf16.
        quantise: keep weights of linear layers in few bits in inference.

    Weights that do not fit into the device are offloaded in every mode.
    """

    attention: bool = False
    recompute: bool = False
    offload: bool = False
    mixed: bool = False
    quantise: bool = False


MODES: Mapping[str, Effects] = {
    "full": Effects(attention=True, recompute=True, offload=True, mixed=True, quantise=True),
    "speed": Effects(quantise=True),
    "memory": Effects(attention=True, recompute=True, offload=True, mixed=True),
    "balanced": Effects(attention=True),
}
"""The effects of each mode."""


def effects_of(mode: str) -> Effects:
    """The effects of a mode.

    Raises:
        UsageError: there is no mode of this name.
    """
    found = MODES.get(mode.strip().lower())
    if found is None:
        raise UsageError(f"there is no mode {mode!r}.", do=f"give {', '.join(MODES)}")
    return found


def asked_for(environment: Mapping[str, str]) -> str | None:
    """The mode that the variables ask for; None where they ask for none.

    Raises:
        SettingError: a variable cannot be read, or names no mode.
    """
    text = environment.get(SWITCH, "").strip()
    wanted = _SWITCH.get(text.lower()) if text else False
    if wanted is None:
        raise SettingError(
            f"{text!r} is not a truth value.", looked_at=f"{SWITCH}={text}", do="give 1, or leave it out"
        )
    if not wanted:
        return None
    mode = environment.get(MODE, "").strip().lower() or "balanced"
    if mode not in MODES:
        raise SettingError(f"there is no mode {mode!r}.", looked_at=f"{MODE}={mode}", do=f"give {', '.join(MODES)}")
    return mode
