"""Meaning of the vendor's error codes and messages: usual causes, what to try, and the public sources of it.

For `toprope doctor` and `toprope cores explain`. Only the public names are here. Data in TOML, where a new code or
message is an entry with its source; nothing here imports torch, and the files are read when a code is first asked for.
Tests: tests/base/test_codes.py, tests/device/test_doctor_families.py.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from toprope.codes.catalogue import codes, explain
    from toprope.codes.messages import in_log, in_text
    from toprope.codes.model import Explanation, Seen, Source

__all__ = ["Explanation", "Seen", "Source", "codes", "explain", "in_log", "in_text"]

_HOMES = {
    "Explanation": "model",
    "Seen": "model",
    "Source": "model",
    "codes": "catalogue",
    "explain": "catalogue",
    "in_log": "messages",
    "in_text": "messages",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return globals().setdefault(name, getattr(import_module(f"{__name__}.{_HOMES[name]}"), name))
