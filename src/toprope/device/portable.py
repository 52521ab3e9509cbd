"""What programs that `toprope port` rewrote call: torch.cuda's names, for the device in use on this machine.

    from toprope.device import portable

    model.to(portable.device())          # torch.device("npu"), ("cuda") or ("cpu"); portable.device(1) is the second
    with portable.autocast():
        ...
    portable.synchronize()

It is the very text that `toprope port --vendor` puts into a project (toprope/port/runtime.py), except that the device
is chosen by `toprope.device`, once: its settings hold, and where a device that was asked for is missing its errors say
why. The text is run at the first question, so that importing this imports no torch.
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

__all__: list[str] = []

_TEXT = Path(__file__).parent.parent / "port" / "runtime.py"


def __getattr__(name: str) -> Any:
    if name.startswith("__") or name not in _names():
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return globals().setdefault(name, _names()[name])


@functools.cache
def _names() -> dict[str, Any]:
    """Everything that the text defines, with toprope's choice of the device in the place of its own."""
    names: dict[str, Any] = {"__name__": __name__}
    exec(compile(_TEXT.read_text(encoding="utf-8"), _TEXT, "exec"), names)
    names["_chosen"] = _of_toprope
    return names


@functools.cache
def _of_toprope() -> torch.device:
    """The device that toprope chooses: with an index where one was asked for, so that "the current one" stays so."""
    import torch

    from toprope.device.names import read_name
    from toprope.device.select import choose

    choice = choose(quiet=True)
    named = read_name(choice.asked).index is not None
    return choice.device.torch_device if named else torch.device(choice.device.kind)
