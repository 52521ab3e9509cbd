"""What programs of openYuanrong rely on, on both backends: references, nested calls, chains, errors, generators."""

import asyncio
import itertools
import sys
import threading
import time
from pathlib import Path

import pytest

from functions_world import BACKENDS, session, until
from toprope import functions as yr

pytestmark = pytest.mark.process


@pytest.fixture(scope="module", params=BACKENDS)
def kind(request):
    with session(request.param, yr.Config(num_cpus=16)):
        yield request.param


@yr.invoke
def one(value):
    return value


@yr.invoke
def total(refs):
    return sum(yr.get(refs))


@yr.invoke
def kinds(*values, **named):
    return [type(each).__name__ for each in (*values, *named.values())]


class Box:
    def __init__(self, content):
        self.content = content


@pytest.mark.usefixtures("kind")
def test_references_inside_of_containers_stay_references():
    refs = [one.invoke(1), one.invoke(2)]
    assert yr.get(total.invoke(refs)) == 3
    assert yr.get(kinds.invoke(refs[0], [refs[0]], deep={"a": (refs[0],)}, own=refs[1])) == [
        "int",
        "list",
        "dict",
        "int",
    ]

    @yr.invoke
    def inside(box, listed):
        return yr.get(box.content), yr.get(listed[0])

    assert yr.get(inside.invoke(Box(refs[0]), [refs[1]])) == (1, 2)


def test_a_failure_of_a_reference_inside_of_an_argument_fails_the_call(kind):
    """As openYuanrong's test_invoke_with_raise_runtime_error; on Ray the callee sees it where it gets the object."""

    @yr.invoke
    def fail():
        raise ValueError("inside")

    if kind == "local":
        with pytest.raises(ValueError, match="inside"):
            yr.get(one.invoke([fail.invoke()]), 60)
    with pytest.raises(ValueError, match="inside"):
        yr.get(total.invoke([fail.invoke()]), 60)


@pytest.mark.usefixtures("kind")
@pytest.mark.parametrize("returns", [0, 3])
def test_a_function_returns_as_many_values_as_it_says(returns):
    @yr.invoke(return_nums=returns)
    def several():
        return 1, 2, 3

    got = several.invoke()
    assert got is None if returns == 0 else yr.get(got, 60) == [1, 2, 3]


def test_a_call_waits_for_references_inside_of_its_arguments_and_not_on_ray(kind, tmp_path):
    @yr.invoke
    def late(path):
        while not path.exists():
            time.sleep(0.01)
        return 7

    @yr.invoke
    def count(refs):
        return len(refs)

    ref = late.invoke(tmp_path / "go")
    counted = count.invoke([ref])
    try:
        if kind == "ray":
            assert yr.get(counted, 60) == 1
        else:
            assert not counted.wait(0.3)
    finally:
        (tmp_path / "go").touch()
    assert yr.get([ref, counted], 60) == [7, 1]


@pytest.mark.usefixtures("kind")
def test_instances_take_references_as_functions_do():
    @yr.instance
    class Sum:
        def __init__(self, first, refs):
            self.total = first + sum(yr.get(refs))

        def add(self, first, refs):
            return self.total + first + sum(yr.get(refs))

        def make(self):
            return [one.invoke(each) for each in (1, 2)]

    instance = Sum.invoke(one.invoke(1), [one.invoke(2)])
    assert yr.get(instance.add.invoke(one.invoke(3), [one.invoke(4)])) == 10
    assert yr.get(total.invoke(yr.get(instance.make.invoke()))) == 3
    instance.terminate()


@pytest.mark.usefixtures("kind")
@pytest.mark.parametrize("count", [1, 8])
def test_a_worker_may_run_what_it_has_called(count):
    @yr.invoke
    def leaf(value):
        return value * 10

    @yr.invoke
    def fan(count):
        return [leaf.invoke(each) for each in range(count)]

    for _ in range(2):
        assert yr.get(yr.get(fan.invoke(count))) == [each * 10 for each in range(count)]


def test_a_failure_reaches_the_end_of_a_long_chain(kind, tmp_path):
    length = 100_000 if kind == "local" else 200

    @yr.instance
    class Gate:
        def fail(self, path):
            while not path.exists():
                time.sleep(0.01)
            raise ValueError("no")

    gate = Gate.invoke()
    ref = gate.fail.invoke(tmp_path / "go")
    for _ in range(length):
        ref = one.invoke(ref)
    (tmp_path / "go").touch()
    with pytest.raises(ValueError, match="no"):
        yr.get(ref, 120)
    gate.terminate()


@pytest.mark.usefixtures("kind")
def test_a_worker_that_exits_takes_no_other_call():
    @yr.invoke
    def leave():
        sys.exit(3)

    for number in range(10):
        with pytest.raises(yr.YRError) as caught:
            yr.get(leave.invoke(), 60)
        assert caught.value.code == 2002
        assert yr.get(one.invoke(number), 60) == number


class TwoArguments(Exception):
    def __init__(self, first, second):
        super().__init__(f"{first} and {second}")
        self.first, self.second = first, second


class Changed(Exception):
    """Its text would be changed by a second call of its constructor."""

    def __init__(self, text, more=None):
        super().__init__(f"bad {text}")


class WithLock(ValueError):
    def __init__(self, text):
        super().__init__(text)
        self.lock, self.kept = threading.Lock(), 5


class Ours(Exception):
    """Its attributes have the names of ours."""

    code = property(lambda self: 17)
    message = property(lambda self: "user's")


class Textless(Exception):
    def __str__(self):
        raise RuntimeError("no text")


@yr.invoke
def fails(how):
    if how == "noted":
        error = TwoArguments(1, 2)
        error.add_note("look here")
        raise error
    if how == "chained":
        try:
            raise TwoArguments(3, 4)
        except TwoArguments as error:
            raise KeyError("outer") from error
    if how == "group":
        raise ExceptionGroup("several", [TwoArguments(5, 6), ExceptionGroup("inner", [ValueError("deep")])])
    if how == "system":
        Path("/nowhere/at all").read_bytes()
    if how == "unicode":
        b"\xff".decode()
    raise {"changed": Changed("x"), "lock": WithLock("locked"), "ours": Ours("own"), "textless": Textless()}[how]


@pytest.fixture
def caught(kind):
    def catch(how):
        with pytest.raises(Exception) as found:  # noqa: PT011 - each test says which
            yr.get(fails.invoke(how), 60)
        return found.value

    return catch


def test_an_error_keeps_its_class_arguments_attributes_and_notes(caught):
    error = caught("noted")
    assert isinstance(error, TwoArguments)
    assert isinstance(error, yr.YRInvokeError)
    assert (error.first, error.second, error.args) == (1, 2, ("1 and 2",))
    assert type(error.origin_error()) is TwoArguments
    assert error.__notes__ == ["look here"]
    assert caught("changed").args == ("bad x",)


def test_an_error_keeps_what_it_came_from(caught):
    error = caught("chained")
    assert isinstance(error, KeyError)
    assert isinstance(error.__cause__, TwoArguments)
    assert error.__cause__.second == 4


def test_a_group_of_errors_keeps_its_members(caught):
    error = caught("group")
    assert isinstance(error, ExceptionGroup)
    assert isinstance(error, yr.YRInvokeError)
    matched, _ = error.split(ValueError)
    assert str(matched.exceptions[0].exceptions[0]) == "deep"
    assert error.exceptions[0].first == 5


def test_errors_of_the_system_keep_their_fields(caught):
    assert caught("system").errno == 2
    assert caught("system").filename == "/nowhere/at all"
    assert caught("unicode").reason == "invalid start byte"


def test_an_attribute_that_cannot_be_pickled_is_left_out_and_said(caught):
    error = caught("lock")
    assert isinstance(error, WithLock)
    assert error.kept == 5
    assert "left out: lock" in str(error)


def test_classes_that_get_in_the_way_of_ours_do_no_harm(caught):
    assert isinstance(caught("ours"), Ours)
    assert caught("ours").code == 2002
    assert isinstance(caught("textless"), Textless)


@pytest.mark.usefixtures("kind")
def test_an_error_keeps_its_class_through_several_calls():
    @yr.invoke
    def outer(how):
        return yr.get(fails.invoke(how))

    with pytest.raises(TwoArguments) as found:
        yr.get(outer.invoke("noted"), 60)
    assert found.value.second == 2
    with pytest.raises(TwoArguments):
        yr.get(one.invoke(fails.invoke("noted")), 60)


@pytest.mark.usefixtures("kind")
def test_a_result_that_cannot_be_read_is_said_to_be_so():
    class Broken:
        def __reduce__(self):
            return int, ("not a number",)

    @yr.invoke
    def broken():
        return Broken()

    with pytest.raises(yr.YRError, match="not a number") as found:
        yr.get(broken.invoke(), 60)
    assert found.value.code in (4003, 4005)  # Ray says it in its own way


@yr.instance
class Source:
    def items(self, count):
        yield from range(count)

    def fail(self):
        yield 1
        raise TwoArguments(1, 2)

    async def later(self, count):
        for each in range(count):
            await asyncio.sleep(0.01)
            yield each


async def collected(stream):
    return [await ref async for ref in stream]


@pytest.mark.usefixtures("kind")
def test_items_of_a_generator_come_in_a_coroutine_without_blocking_it():
    source = Source.invoke()

    async def both():
        return await asyncio.gather(collected(source.items.invoke(5)), collected(source.later.invoke(5)))

    assert asyncio.run(both()) == [[0, 1, 2, 3, 4]] * 2
    stream = source.fail.invoke()
    assert yr.get(next(stream)) == 1
    with pytest.raises(TwoArguments):
        yr.get(next(stream))
    assert next(stream, None) is None
    source.terminate()


@pytest.mark.usefixtures("kind")
def test_items_of_a_generator_come_in_a_coroutine_of_an_instance():
    @yr.instance
    class Reader:
        async def read(self, source, count):
            return await collected(source.items.invoke(count))

    source, reader = Source.invoke(), Reader.invoke()
    assert yr.get(reader.read.invoke(source, 4), 60) == [0, 1, 2, 3]
    assert yr.get([reader.read.invoke(source, 2) for _ in range(3)], 60) == [[0, 1]] * 3
    for each in (source, reader):
        each.terminate()


def endless(path):
    """Numbers without end; the file says that the generator was closed."""
    try:
        for number in itertools.count():
            time.sleep(0.05)
            yield number
    finally:
        Path(path).touch()


@yr.instance
class Endless:
    def items(self, path):
        yield from endless(path)

    def ready(self):
        return "ready"


@pytest.mark.usefixtures("kind")
@pytest.mark.parametrize("how", ["close", "delete"])
def test_a_generator_that_nobody_wants_ends(how, tmp_path):
    """It produced for ever, and its instance took no other call."""
    source = Endless.invoke()
    for name, call in (("function", yr.invoke(endless)), ("instance", source.items)):
        items = call.invoke(str(tmp_path / name))
        assert yr.get(next(items)) == 0
        if how == "close":
            items.close()
        del items
        assert until((tmp_path / name).exists, 60)
    assert yr.get(source.ready.invoke()) == "ready"
    source.terminate()


@pytest.mark.usefixtures("kind")
def test_a_stream_that_nobody_reads_on_is_let_go():
    source = Source.invoke()

    async def first():
        return await (await anext(source.later.invoke(10_000)))

    assert asyncio.run(first()) == 0
    source.terminate()
    assert until(lambda: not source.is_activate())


@pytest.mark.usefixtures("kind")
def test_an_instance_is_waited_for_until_its_constructor_has_run(tmp_path):
    @yr.instance
    class Slow:
        def __init__(self, path):
            while not path.exists():
                time.sleep(0.01)

        def answer(self):
            return 5

    slow = Slow.options(yr.InvokeOptions(name="slow")).invoke(tmp_path / "go")
    with pytest.raises(TimeoutError, match="slow"):
        yr.get_instance("slow", timeout=1)
    threading.Timer(0.5, (tmp_path / "go").touch).start()
    assert yr.get(yr.get_instance("slow", timeout=60).answer.invoke(), 60) == 5
    slow.terminate()


@pytest.mark.usefixtures("kind")
def test_pairs_live_as_long_as_they_were_to():
    yr.kv_write("short", b"1", yr.ExistenceOpt.NONE, yr.WriteMode.NONE_L2_CACHE, 1)
    yr.kv_set("kept", b"2", yr.SetParam(ttl_second=1000))
    assert yr.kv_read("short") == b"1"
    assert until(lambda: _is_gone("short"))
    yr.kv_write("short", b"3", yr.ExistenceOpt.NX)
    assert yr.kv_get(["short", "kept"]) == [b"3", b"2"]
    assert yr.kv_del(["short", "kept"]) == []


def _is_gone(key):
    try:
        yr.kv_read(key, 0)
    except RuntimeError:
        return True
    return False


@pytest.mark.usefixtures("kind")
def test_a_key_is_waited_for():
    threading.Timer(0.3, yr.kv_set, ["late", b"x"]).start()
    assert yr.kv_read("late", 60) == b"x"
    yr.kv_del("late")


@pytest.mark.usefixtures("kind")
def test_a_worker_knows_its_id():
    import os

    @yr.invoke
    def own():
        return os.environ["INSTANCE_ID"]

    @yr.instance
    class Knows:
        def own(self):
            return os.environ["INSTANCE_ID"]

    instance = Knows.invoke()
    assert yr.get(instance.own.invoke()) == instance.real_id()
    assert yr.get(own.invoke())
    instance.terminate()


def test_settings_of_all_workers_reach_them():
    config = yr.Config(num_cpus=16, runtime_env={"env_vars": {"FOR_ALL": "1"}})
    config.custom_envs = {"LD_LIBRARY_PATH": "${NOT_THERE_AT_ALL}/depend"}

    @yr.invoke
    def variables():
        import os

        return os.environ["FOR_ALL"], os.environ["LD_LIBRARY_PATH"]

    yr.finalize()
    with session("local", config):
        assert yr.get(variables.invoke()) == ("1", "/depend")
        assert yr.get(variables.options(yr.InvokeOptions(env_vars={"FOR_ALL": "2"})).invoke())[0] == "2"


def test_calls_of_a_function_share_a_worker_as_its_concurrency_says(tmp_path):
    @yr.invoke(invoke_options=yr.InvokeOptions(concurrency=3, max_instances=1))
    def meet(path, number, count):
        import os
        import time

        (path / str(number)).touch()
        while len(list(path.iterdir())) < count:
            time.sleep(0.01)
        return os.getpid()

    with session("local", yr.Config(num_cpus=16)):
        assert len(set(yr.get([meet.invoke(tmp_path, each, 3) for each in range(3)], 60))) == 1
        assert len(set(yr.get([meet.invoke(tmp_path, each, 3) for each in range(9)], 60))) == 1


@yr.instance
class Kid:
    def hold(self, seconds):
        time.sleep(seconds)
        return seconds


@pytest.mark.usefixtures("kind")
def test_instances_are_listed_without_a_handle_too():
    kid = Kid.options(yr.InvokeOptions(cpu=700)).invoke()
    assert yr.get(kid.hold.invoke(0), 60) == 0
    (found,) = [each for each in yr.list_instances() if each["id"] == kid.real_id()]
    assert (found["class"], found["resources"]["CPU"], found["handles"]) == (found["class"], 700, 1)
    assert found["class"].endswith("Kid")
    assert found["pid"]
    id = kid.real_id()
    del kid
    assert until(lambda: [each["handles"] for each in yr.list_instances() if each["id"] == id] == [0])
    yr.kill_instance(id)
    assert until(lambda: id not in [each["id"] for each in yr.list_instances()])


def test_a_shortage_names_the_holders():
    with session("local", yr.Config(num_cpus=2)):
        kids = [Kid.invoke() for _ in range(4)]
        yr.get([each.hold.invoke(0) for each in kids])
        late = Kid.options(yr.InvokeOptions(schedule_timeout_ms=500)).invoke()
        with pytest.raises(yr.YRError, match=r"4 x Kid .*: 500 millicores, 500 MB each\n") as caught:
            yr.get(late.hold.invoke(0))
        assert caught.value.code == 1002
        del kids
        late = Kid.options(yr.InvokeOptions(schedule_timeout_ms=500)).invoke()
        with pytest.raises(yr.YRError, match="no handle any more"):
            yr.get(late.hold.invoke(0))


def test_an_instance_without_a_handle_is_freed_where_that_is_asked_for():
    from toprope.functions.local.listing import listed

    def there():
        return {each["id"] for each in yr.list_instances()}

    with session("local", yr.Config(num_cpus=8, free_unreferenced=True)):
        kids = [Kid.invoke() for _ in range(3)]
        kept, named = kids[0], Kid.options(yr.InvokeOptions(name="kept")).invoke()
        ref = kids[1].hold.invoke(1)
        keep = {kept.real_id(), named.real_id()}
        assert until(lambda: {each["id"] for _, found in listed() for each in found} >= keep)
        del kids, named
        assert yr.get(ref) == 1  # what was called is finished first
        assert until(lambda: there() == keep)
        sent = kept.real_id()
        yr.put([kept])
        del kept
        time.sleep(0.5)
        assert sent in there()  # another process may have a handle
