"""Pickled exceptions (`functions.exception_pickle`): class, arguments, attributes and text, for all that Python has."""

import builtins
import pickle

import pytest

from toprope.functions.exception_pickle import Portable

CLASSES = sorted(
    (each for each in vars(builtins).values() if isinstance(each, type) and issubclass(each, BaseException)),
    key=lambda each: each.__name__,
)
ARGUMENTS = {
    "UnicodeDecodeError": ("utf-8", b"\xff", 0, 1, "invalid"),
    "UnicodeEncodeError": ("ascii", "é", 0, 1, "invalid"),
    "UnicodeTranslateError": ("é", 0, 1, "invalid"),
    "BaseExceptionGroup": ("several", [ValueError("one"), KeyboardInterrupt()]),
    "ExceptionGroup": ("several", [ValueError("one"), KeyError("two")]),
}


def sent(error: BaseException) -> BaseException:
    received = pickle.loads(pickle.dumps(Portable(error)))
    assert isinstance(received, BaseException)
    return received


@pytest.mark.parametrize("kind", CLASSES, ids=lambda each: each.__name__)
def test_an_exception_of_python_is_the_same_on_the_other_side(kind: type[BaseException]) -> None:
    """An OSError with a text alone became "[Errno None] None: None -> None"."""
    error = kind(*ARGUMENTS.get(kind.__name__, ("a text",)))
    received = sent(error)
    assert type(received) is kind
    assert str(received) == str(error)
    assert repr(received) == repr(error)


@pytest.mark.parametrize(
    "error",
    [
        OSError(),
        OSError(2, "No such file or directory"),
        OSError(2, "No such file or directory", "a.txt"),
        OSError(18, "Invalid cross-device link", "a.txt", None, "b.txt"),
        BlockingIOError(11, "would block", 3),
        ImportError("no", name="numpy", path="numpy.py"),
        AttributeError("no", name="x"),
        StopIteration(3),
        SystemExit(None),
        SyntaxError("bad", ("a.py", 1, 2, "x =", 1, 3)),
        KeyError(None),
    ],
    ids=repr,
)
def test_attributes_of_pythons_own_exceptions_are_kept(error: BaseException) -> None:
    received = sent(error)
    assert (type(received), str(received), received.args) == (type(error), str(error), error.args)
    for name in ("errno", "strerror", "filename", "filename2", "name", "path", "value", "code", "lineno", "offset"):
        assert getattr(received, name, "none") == getattr(error, name, "none"), name
