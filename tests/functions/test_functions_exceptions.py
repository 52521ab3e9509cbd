"""The exceptions of the yr API: their base classes, codes and texts, which are the vendor's, also after a pickle."""

import pickle
import threading

import cloudpickle
import pytest

from toprope import functions as yr
from toprope.functions.exception_pickle import Portable
from toprope.functions.exceptions import CODES, describe, fresh, invoke_error


class Own(Exception):
    def __init__(self, first: int, second: int) -> None:
        super().__init__(first, second)
        self.first = first
        self.second = second

    def both(self) -> int:
        return self.first + self.second


class Awkward(Exception):
    def __init__(self, first: int, second: int) -> None:
        super().__init__(f"{first} {second}")


class Locked(Exception):
    def __reduce__(self):
        raise TypeError("not to be pickled")


class Made(Exception):
    def __new__(cls, first):
        return super().__new__(cls, first)


@pytest.mark.parametrize(("kind", "also"), [
    (yr.YRError, Exception), (yr.YRRuntimeError, RuntimeError), (yr.YRValueError, ValueError),
    (yr.YRTypeError, TypeError), (yr.YRTimeoutError, TimeoutError), (yr.YRTimeoutError, RuntimeError),
    (yr.YRInvokeError, RuntimeError), (yr.YRequestError, RuntimeError), (yr.GetTimeoutError, yr.YRTimeoutError),
    (yr.CancelError, yr.YRError), (yr.CancelError, RuntimeError),
])  # fmt: skip
def test_what_each_is(kind, also):
    assert issubclass(kind, also)
    assert issubclass(kind, yr.YRError)


@pytest.mark.parametrize("error", [
    yr.YRRuntimeError("what", 1002), yr.YRValueError("what", 1001), yr.YRTypeError("what", 1001, 30),
    yr.YRTimeoutError("what", 4005), yr.YRequestError("what", 1007, 22), yr.GetTimeoutError("what", 4005),
    yr.CancelError("what"),
])  # fmt: skip
def test_text_code_and_module_survive_a_pickle(error):
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is type(error)
    assert (again.code, again.module_code, again.message) == (error.code, error.module_code, "what")
    assert str(again) == str(error)
    assert f"code: {error.code}, module code: {error.module_code}, m" in str(error)
    assert str(error).endswith(": what")
    assert error.error_info == "what"


def test_codes_and_parts_are_the_vendors():
    assert CODES["resource not enough"] == 1002
    assert CODES["resource config"] == 1006
    assert CODES["instance exited"] == 1007
    assert CODES["finalized"] == 9000
    assert yr.CancelError("x").code == 3003
    assert [kind("x").module_code for kind in (yr.YRError, yr.YRequestError, yr.YRTimeoutError)] == [10, 21, 30]
    assert str(yr.YRError("plain")) == "plain"
    assert str(yr.YRTimeoutError("x", 4005)).startswith("failed to get object, code: 4005, module code: 30, msg: x")


@pytest.mark.parametrize("origin", [
    ValueError("a", 2), KeyError("k"), ZeroDivisionError(), StopIteration(4), Own(1, 2), Made(1),
    UnicodeDecodeError("utf8", b"a", 0, 1, "why"), FileNotFoundError(2, "no", "file"), ImportError("m", name="n"),
], ids=repr)  # fmt: skip
def test_what_the_user_raised_is_caught_by_its_own_class_and_by_ours(origin):
    error = invoke_error(origin, "Traceback ...\nit")
    assert isinstance(error, type(origin))
    assert isinstance(error, yr.YRInvokeError)
    assert isinstance(error, RuntimeError)
    assert error.origin_error() is origin
    assert error.cause is origin
    assert error.args == origin.args
    assert (error.code, error.module_code, error.traceback_str) == (2002, 22, "Traceback ...\nit")
    assert str(error) == "Traceback ...\nit"
    assert type(error).__name__ == f"YRInvokeError({type(origin).__name__})"


def test_attributes_of_what_was_raised_are_there():
    error = invoke_error(Own(1, 2))
    assert (error.first, error.second, error.both()) == (1, 2, 3)
    with pytest.raises(AttributeError, match="third"):
        error.third  # noqa: B018
    missing = invoke_error(FileNotFoundError(2, "no", "file"))
    assert (missing.errno, missing.strerror, missing.filename) == (2, "no", "file")
    text = invoke_error(UnicodeDecodeError("utf8", b"a", 0, 1, "why"))
    assert (text.encoding, text.reason) == ("utf8", "why")
    assert invoke_error(StopIteration(4)).value == 4
    assert invoke_error(ImportError("m", name="n")).name == "n"


def test_notes_cause_and_context_of_what_was_raised_are_there_and_in_each_callers_copy():
    origin, cause, context = ValueError("a"), KeyError("cause"), KeyError("context")
    origin.add_note("noted")
    origin.__cause__, origin.__context__ = cause, context
    error = invoke_error(origin)
    for each in (error, fresh(error)):
        assert each.__notes__ == ["noted"]
        assert (each.__cause__, each.__context__, each.__suppress_context__) == (cause, context, True)


def test_a_context_that_is_shown_next_to_a_cause_stays_so():
    origin = ValueError("a")
    origin.__cause__, origin.__context__ = KeyError("cause"), KeyError("context")
    origin.__suppress_context__ = False
    for each in (invoke_error(origin), fresh(invoke_error(origin))):
        assert (each.__cause__ is not None, each.__suppress_context__) == (True, False)


def test_groups_and_causes_are_kept_to_a_depth_and_the_rest_is_text():
    group, chain = ValueError("inmost"), ValueError("first")
    for _ in range(100):
        group = ExceptionGroup("layer", [group])
        after = ValueError("next")
        after.__cause__, chain = chain, after
    found, _ = pickle.loads(cloudpickle.dumps(describe(group)))
    depth = 0
    while isinstance(found, ExceptionGroup):
        (found,), depth = found.exceptions, depth + 1
    assert 10 <= depth <= 30
    assert type(found) is RuntimeError
    assert str(found).startswith("ExceptionGroup: layer")
    found, _ = pickle.loads(cloudpickle.dumps(describe(chain)))
    depth = 0
    while found.__cause__ is not None:
        found, depth = found.__cause__, depth + 1
    assert 10 <= depth <= 30


@pytest.mark.parametrize(
    "origin", [SystemExit(3), KeyboardInterrupt(), BaseExceptionGroup("g", [KeyboardInterrupt()])], ids=repr
)
def test_what_would_end_the_caller_or_cannot_be_both_is_ours_alone(origin):
    error = invoke_error(origin, "text")
    assert type(error) is yr.YRInvokeError
    assert error.origin_error() is origin


def test_our_own_errors_are_handed_on_as_they_are():
    error = yr.YRValueError("what", 1001)
    assert invoke_error(error) is error
    twice = invoke_error(invoke_error(ValueError("a")))
    assert twice.origin_error().args == ("a",)


def test_an_error_of_both_classes_survives_a_pickle():
    error = pickle.loads(pickle.dumps(invoke_error(Own(1, 2), "text")))
    assert isinstance(error, Own)
    assert isinstance(error, yr.YRInvokeError)
    assert (error.both(), str(error)) == (3, "text")
    assert type(error) is type(invoke_error(Own(3, 4)))


@pytest.mark.parametrize("error", [Awkward(1, 2), Locked("x"), Own(1, 2)], ids=repr)
def test_an_error_keeps_its_class_whatever_its_constructor_wants_and_it_holds(error):
    found, trace = pickle.loads(cloudpickle.dumps(describe(error)))
    assert type(found) is type(error)
    assert str(found) == str(error)
    assert type(error).__name__ in trace


def test_an_error_whose_class_cannot_be_sent_becomes_its_text():
    class Unsendable(Exception):
        lock = threading.Lock()

    found, _ = pickle.loads(cloudpickle.dumps(describe(Unsendable("x"))))
    assert type(found) is RuntimeError
    assert str(found) == "Unsendable: x"


def test_a_cause_that_cannot_be_sent_costs_no_more_than_itself():
    class Unsendable(Exception):
        lock = threading.Lock()

    error, loop = Own(1, 2), ValueError("loop")
    error.__cause__, loop.__cause__ = Unsendable("x"), loop
    found, _ = pickle.loads(cloudpickle.dumps(describe(error)))
    assert found.both() == 3
    assert str(found.__cause__) == "Unsendable: x"
    found, _ = pickle.loads(cloudpickle.dumps(describe(loop)))
    assert found.__cause__ is None


@pytest.mark.parametrize(
    "error",
    [
        TimeoutError("late"), ConnectionError("gone"), OSError(), OSError(5, "five"), FileNotFoundError(2, "no", "f"),
        OSError(5, "five", "a", None, "b"), UnicodeDecodeError("utf-8", b"x", 0, 1, "no"), SystemExit(3),
        StopIteration(4), ImportError("no", name="n", path="p"), SyntaxError("no"), KeyError("k"),
    ],
    ids=lambda each: type(each).__name__,
)  # fmt: skip
def test_the_text_of_built_in_exceptions_travels(error):
    """Of an OSError with one argument it became "[Errno None] None: None -> None"."""
    assert str(pickle.loads(cloudpickle.dumps(Portable(error)))) == str(error)
    assert str(error) in str(invoke_error(error))
