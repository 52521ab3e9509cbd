"""Deprecated name of `toprope.visible_devices`; it works for one more minor version, with a DeprecationWarning.

Nothing is added here; the file goes with that version. Tests: tests/base/test_visible_devices.py.
"""

import warnings

from toprope import visible_devices

__all__: list[str] = []


def __getattr__(name: str) -> object:
    if name not in visible_devices.__all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    warnings.warn("toprope.visible is toprope.visible_devices now", DeprecationWarning, stacklevel=2)
    return getattr(visible_devices, name)
