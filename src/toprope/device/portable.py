"""Runtime of programs that `toprope port` rewrote: torch.cuda's names, for the device in use on this machine.

    from toprope.device import portable

    model.to(portable.device())          # torch.device("npu"), ("cuda") or ("cpu"); portable.device(1) is the second
    with portable.autocast():
        ...
    portable.synchronize()

The functions are in `_portable_runtime.py`, the very file that `toprope port --vendor` puts into a project, except that
the device is chosen by `toprope.device`: its settings hold, and where a device that was asked for is missing its errors
say why. That file is imported at the first question, so that importing this one imports no torch.

Called by programs that `toprope port` rewrote without `--vendor`: no name may go. A name that is added to the runtime
file also needs the rule of `toprope.port` that writes it. Tests: tests/port/test_portable.py, which runs both forms.
"""

from __future__ import annotations

from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

    from toprope.device._portable_runtime import *  # noqa: F403

__all__: list[str] = []

if not TYPE_CHECKING:  # a type checker and an editor see the names above, and no others

    def __getattr__(name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        _bind()
        if name in globals():
            return globals()[name]
        from toprope.device import _portable_runtime

        return getattr(_portable_runtime, name)  # a class that depends on the error that is handled

    def __dir__() -> list[str]:
        _bind()
        return sorted(globals())


def _bind() -> None:
    """Take the names of the runtime for this module's own, and have it ask toprope for the device."""
    from toprope.device import _portable_runtime

    _portable_runtime._choose = _choose
    globals().update({
        name: value
        for name, value in vars(_portable_runtime).items()
        if not name.startswith("_")
        and not isinstance(value, ModuleType)
        and getattr(value, "__module__", "") not in ("typing", "__future__")
    })  # fmt: skip


def _choose() -> torch.device:
    """The device that toprope chooses: with an index where one was asked for, so that "the current one" stays so."""
    import torch

    from toprope.device.device_string import read_name
    from toprope.device.select import choose

    choice = choose(quiet=True)
    named = read_name(choice.asked).index is not None
    return choice.device.torch_device if named else torch.device(choice.device.kind)
