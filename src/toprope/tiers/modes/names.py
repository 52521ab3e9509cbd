"""The four modes by name, and the variables that ask for one. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from toprope.errors import SettingError, UsageError

__all__ = ["MODE", "MODES", "SWITCH", "Effects", "asked_for", "effects_of"]

SWITCH, MODE = "ENABLE_VIRTUAL_BLACKWELL", "VB_MODE"
"""The variables of APT-Transformer: whether a mode is wanted, and which."""

_SWITCH = {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False, "off": False}


@dataclass(frozen=True)
class Effects:
    """What a mode does to models.

    Attributes:
        attention: attention goes through torch's scaled_dot_product_attention where a module computes it otherwise.
        recompute: blocks are computed again in backward; what they save for it is not kept.
        offload: what forward saves for backward is moved out of the device's memory.
        mixed: products are computed in bf16.
        quantise: weights of linear layers are kept in few bits in inference.

    Weights that do not fit the device come and go in every mode.
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
