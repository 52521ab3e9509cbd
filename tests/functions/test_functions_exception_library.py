"""Each exception class of the standard library that can be made is caught as itself after its way between processes."""

import importlib
import io
import json
import os
import pkgutil
import subprocess
import sys
import urllib.error
import warnings
from dataclasses import dataclass
from email.message import Message
from pathlib import Path
from typing import Any

import pytest

from toprope.functions.exceptions import describe, fresh, read_error
from toprope.functions.transport.serialization import dumps

SKIPPED = {"antigravity", "idlelib", "lib2to3", "pydoc_data", "test", "this", "tkinter", "turtle", "turtledemo"}
"""Modules that do something when they are imported, or need a display."""

ARGUMENTS: list[tuple[Any, ...]] = [
    ("a text",), (), *(("a text",) * count for count in range(2, 8)), *((1,) * count for count in range(1, 7)),
    ("utf-8", b"\xff", 0, 1, "invalid"), ("ascii", "é", 0, 1, "invalid"), ("é", 0, 1, "invalid"),
    ("a text", "a document", 3), (ValueError, ValueError("one"), "a.py"), ("a text", [ValueError("one")]),
    ("a.py", (ValueError, ValueError("one"), None)), (None, "a text"),
]  # fmt: skip
"""What constructors are tried with."""

NOT_MADE = {
    "builtins.RecursingInfinitelyError", "tarfile.AbsoluteLinkError", "tarfile.AbsolutePathError",
    "tarfile.LinkOutsideDestinationError", "tarfile.OutsideDestinationError", "tarfile.SpecialFileError",
    "xml.dom.DOMException", "xml.sax._exceptions.SAXParseException",
}  # fmt: skip
"""Abstract ones, and those that want an object with methods of its own; Python 3.11 to 3.13 together."""


def received(error: BaseException) -> BaseException:
    """What a caller gets for an error that a function raised."""
    return read_error(dumps(describe(error)))


def made(kind: type[BaseException]) -> BaseException | None:
    """An exception of a class, None where no arguments fit."""
    for arguments in ARGUMENTS:
        try:
            error = kind(*arguments)
            str(error)
        except Exception:
            continue
        return error
    return None


def import_all() -> None:
    """Import the standard library."""
    for name in sorted(set(sys.stdlib_module_names) - SKIPPED):
        if name.startswith("__"):
            continue
        try:
            module = importlib.import_module(name)
        except ImportError:
            continue  # of another system
        for each in pkgutil.walk_packages(getattr(module, "__path__", []), f"{name}.", onerror=lambda _: None):
            if not {"__main__", "test", "tests"} & set(each.name.split(".")):
                try:
                    importlib.import_module(each.name)
                except ImportError:
                    continue


def can_be_found(kind: type) -> bool:
    """True if a class is where its name says: others cannot be pickled by anyone."""
    found: Any = sys.modules.get(kind.__module__)
    for part in kind.__qualname__.split("."):
        found = getattr(found, part, None)
    return found is kind


def below(kind: type[BaseException]) -> set[type[BaseException]]:
    """A class and all that are derived from it."""
    return {kind}.union(*map(below, type.__subclasses__(kind)))


def differences(error: BaseException) -> list[str]:
    """What a caller sees of an error that is not as it was raised."""
    kind, found = type(error), received(error)
    origin = getattr(found, "origin", found)
    wrong = []
    if type(origin) is not kind or (issubclass(kind, Exception) and not isinstance(found, kind)):
        wrong.append(f"is a {type(found).__mro__[:3]} of {origin!r}")
    elif str(origin) != str(error) or repr(origin.args) != repr(error.args):
        wrong.append(f"is {origin!r}, not {error!r}")
    if set(vars(origin)) != set(vars(error)):
        wrong.append(f"has {sorted(vars(origin))}, not {sorted(vars(error))}")
    return wrong


def examine() -> dict[str, Any]:
    """The classes that are not the same on the other side, those that could not be made, and the number of others."""
    warnings.simplefilter("ignore")
    import_all()
    wrong, not_made, count = {}, [], 0
    for kind in below(BaseException):
        if kind.__module__.split(".")[0] not in sys.stdlib_module_names or not can_be_found(kind):
            continue
        name, error = f"{kind.__module__}.{kind.__qualname__}", made(kind)
        if error is None:
            not_made.append(name)
        elif found := differences(error):
            wrong[name] = found
        else:
            count += 1
    return {"wrong": wrong, "not made": not_made, "count": count}


def test_each_exception_of_the_standard_library_is_caught_as_itself() -> None:
    """MemoryError was caught as YRInvokeError alone, and HTTPError came as a text."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(each for each in sys.path if each)}
    run = subprocess.run(
        [sys.executable, str(Path(__file__))], capture_output=True, text=True, timeout=300, env=environment, check=False
    )
    assert run.returncode == 0, run.stderr[-2000:]
    found = json.loads(run.stdout.splitlines()[-1])
    assert found["wrong"] == {}
    assert set(found["not made"]) <= NOT_MADE
    assert found["count"] > 300


def test_an_http_error_keeps_its_status_headers_and_body() -> None:
    headers = Message()
    headers["Retry-After"] = "3"
    error = urllib.error.HTTPError("http://a/b", 418, "teapot", headers, io.BytesIO(b"short and stout"))
    with pytest.raises(urllib.error.HTTPError) as caught:
        raise received(error)
    origin = caught.value.origin  # type: ignore[attr-defined]
    assert (origin.code, origin.reason, origin.headers["Retry-After"]) == (418, "teapot", "3")
    assert origin.read() == b"short and stout"


def test_an_http_error_whose_body_cannot_be_sent_can_be_printed() -> None:
    """Its class looks in an attribute that was left out, and Python asks it for its notes."""

    class Connection(io.RawIOBase):
        def __reduce__(self) -> Any:
            raise TypeError("a connection")

    found = received(urllib.error.HTTPError("http://a/b", 418, "teapot", Message(), Connection()))
    assert isinstance(found, urllib.error.HTTPError)
    assert getattr(found, "no_such_attribute", None) is None
    assert "attributes that cannot be pickled were left out" in str(found)
    assert getattr(found.origin, "__notes__", None) is None  # type: ignore[attr-defined]


@dataclass(frozen=True)
class Frozen(Exception):
    """An exception that refuses assignments."""

    reason: str


def test_an_exception_that_refuses_assignments_is_received() -> None:
    first = Frozen("first")
    BaseException.__setattr__(first, "__cause__", ValueError("why"))
    found = fresh(received(first))
    assert isinstance(found, Frozen)
    assert found.reason == "first"
    assert str(found.__cause__) == "why"


if __name__ == "__main__":
    print(json.dumps(examine()))
