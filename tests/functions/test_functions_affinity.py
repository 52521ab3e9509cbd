"""Affinity on processes of this machine: to labels of the node, and to labels of instances (`scheduling.affinity`)."""

import pytest

from functions_session import free, session, within
from toprope import functions as yr
from toprope.functions import AffinityKind, AffinityType, OperatorType

pytestmark = [pytest.mark.native, pytest.mark.process]


@yr.instance
class Plain:
    def hello(self):
        return "hello"


@yr.invoke
def hello():
    return "hello"


@pytest.fixture(scope="module", autouse=True)
def running():
    with session(labels={"zone": "a", "ssd": ""}):
        yield


def near(kind, strength, operator, key, *values, **options):
    wanted = yr.Affinity(kind, strength, [yr.LabelOperator(operator, key, list(values))])
    return yr.InvokeOptions(schedule_affinities=[wanted], schedule_timeout_ms=100, **options)


def started(options):
    """Whether an instance with these options starts; where not, it must be 1006 and say why."""
    instance = Plain.options(options).invoke()
    error = instance.hello.invoke().exception(60)
    instance.terminate()
    if error is None:
        return True
    assert isinstance(error, yr.YRequestError)
    assert (error.code, "Affinity can't be Satisfied" in str(error)) == (1006, True)
    assert "cannot be scheduled within 100 ms" in str(error)
    return False


@pytest.mark.slow
@pytest.mark.parametrize(
    ("strength", "operator", "key", "values", "starts"),
    [
        (AffinityType.REQUIRED, OperatorType.LABEL_IN, "zone", ("a", "b"), True),
        (AffinityType.REQUIRED, OperatorType.LABEL_IN, "zone", ("b",), False),
        (AffinityType.REQUIRED, OperatorType.LABEL_NOT_IN, "zone", ("b",), True),
        (AffinityType.REQUIRED, OperatorType.LABEL_EXISTS, "ssd", (), True),
        (AffinityType.REQUIRED, OperatorType.LABEL_EXISTS, "master", (), False),
        (AffinityType.REQUIRED, OperatorType.LABEL_NOT_EXISTS, "ssd", (), False),
        (AffinityType.REQUIRED, OperatorType.LABEL_EXISTS, "NODE_ID", (), True),
        (AffinityType.REQUIRED_ANTI, OperatorType.LABEL_EXISTS, "ssd", (), False),
        (AffinityType.PREFERRED, OperatorType.LABEL_EXISTS, "master", (), True),
        (AffinityType.PREFERRED_ANTI, OperatorType.LABEL_EXISTS, "ssd", (), True),
    ],
)
def test_labels_of_the_node(strength, operator, key, values, starts):
    assert started(near(AffinityKind.RESOURCE, strength, operator, key, *values)) is starts


def test_a_function_whose_affinity_is_not_met():
    f = hello.options(near(AffinityKind.RESOURCE, AffinityType.REQUIRED, OperatorType.LABEL_EXISTS, "master"))
    with pytest.raises(yr.YRequestError, match="Affinity can't be Satisfied") as error:
        yr.get(f.invoke(), 60)
    assert error.value.code == 1006
    hello.options(yr.InvokeOptions())


@pytest.mark.slow
def test_labels_of_instances():
    close = near(AffinityKind.INSTANCE, AffinityType.REQUIRED, OperatorType.LABEL_IN, "stage", "first")
    away = near(AffinityKind.INSTANCE, AffinityType.REQUIRED_ANTI, OperatorType.LABEL_EXISTS, "stage")
    assert not started(close)
    assert started(away)
    first = Plain.options(yr.InvokeOptions(labels=["stage:first", "big"])).invoke()
    yr.get(first.hello.invoke())
    assert started(close)
    assert not started(away)
    assert started(near(AffinityKind.INSTANCE, AffinityType.REQUIRED, OperatorType.LABEL_EXISTS, "big"))
    first.terminate()
    assert not started(close)


def test_an_instance_waits_for_the_one_that_it_wants_to_be_near():
    close = near(AffinityKind.INSTANCE, AffinityType.REQUIRED, OperatorType.LABEL_EXISTS, "late")
    close.schedule_timeout_ms = 20000
    waiting = Plain.options(close).invoke()
    result = waiting.hello.invoke()
    with pytest.raises(yr.YRTimeoutError, match="Affinity can't be Satisfied"):
        yr.get(result, 0.2)
    late = Plain.options(yr.InvokeOptions(labels=["late"])).invoke()
    assert yr.get(result, 60) == "hello"
    waiting.terminate()
    late.terminate()


def test_one_that_is_away_from_others_starts_when_they_are_gone():
    first = Plain.options(yr.InvokeOptions(labels=["loud"])).invoke()
    yr.get(first.hello.invoke())
    away = near(AffinityKind.INSTANCE, AffinityType.REQUIRED_ANTI, OperatorType.LABEL_EXISTS, "loud", labels=["loud"])
    away.schedule_timeout_ms = 20000
    second = Plain.options(away).invoke()
    result = second.hello.invoke()
    first.terminate()
    assert yr.get(result, 60) == "hello"
    second.terminate()


def test_affinity_and_a_shortage_of_cards_are_told_apart():
    options = near(AffinityKind.RESOURCE, AffinityType.REQUIRED, OperatorType.LABEL_EXISTS, "ssd")
    options.custom_resources = {"NPU/.+/count": 3}
    with pytest.raises(yr.YRequestError, match="card count: Not Enough") as error:
        yr.get(Plain.options(options).invoke().hello.invoke())
    assert error.value.code == 1002
    within(60, lambda: free() == 2)


def test_an_affinity_that_cannot_be():
    with pytest.raises(ValueError, match="invalid affinity of label x: often"):
        yr.get(Plain.options(yr.InvokeOptions(affinity={"x": "often"})).invoke().hello.invoke())
