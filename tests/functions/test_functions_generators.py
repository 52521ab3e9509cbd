"""Generators that are closed, deleted or left by the worker that reads them: their calls end, and nothing is kept."""

import asyncio
import itertools
import os
import signal
import time
from pathlib import Path

import pytest

from functions_world import session, sleep, until
from toprope import functions as yr
from toprope.functions import context

pytestmark = pytest.mark.process


@pytest.fixture(scope="module", autouse=True)
def _session():
    with session("local", yr.Config(num_cpus=16, recycle_time=1)):
        yield


def produce(path):
    """Numbers without end; the file says that the generator was closed."""
    try:
        for number in itertools.count():
            time.sleep(0.01)
            yield number
    finally:
        Path(path).touch()


@yr.invoke
def endless(path):
    yield from produce(path)


@yr.invoke
async def endless_async(path):
    for number in produce(path):
        await asyncio.sleep(0)
        yield number


@yr.instance
class Source:
    def items(self, path, *waited_for):
        yield from produce(path)

    def ping(self):
        return "here"


@yr.instance
class AsyncSource:
    async def items(self, path):
        try:
            for number in itertools.count():
                await asyncio.sleep(0.01)
                yield number
        finally:
            Path(path).touch()

    async def ping(self):
        return "here"


def unwanted_is_empty() -> bool:
    """True once no worker is to be told of generators, and none has streams."""
    backend = context.backend()
    return not backend.unwanted and not any(each.streams for each in backend.reactor._all.values())


def leave(items, how):
    """Take an item, and close or delete the generator."""
    assert yr.get(next(items), 30) == 0
    if how == "close":
        items.close()
        assert next(items, None) is None


@pytest.mark.parametrize("how", ["close", "delete"])
@pytest.mark.parametrize("function", [endless, endless_async], ids=["generator", "async generator"])
def test_a_generator_of_a_function_ends_when_nobody_wants_its_items(function, how, tmp_path):
    """It produced for ever, and its items were kept."""
    leave(function.invoke(str(tmp_path / "closed")), how)
    assert until((tmp_path / "closed").exists)
    assert until(unwanted_is_empty)


@pytest.mark.parametrize("how", ["close", "delete"])
@pytest.mark.parametrize("kind", [Source, AsyncSource])
def test_a_generator_of_an_instance_ends_when_nobody_wants_its_items(kind, how, tmp_path):
    source = kind.invoke()
    leave(source.items.invoke(str(tmp_path / "closed")), how)
    assert until((tmp_path / "closed").exists)
    assert yr.get(source.ping.invoke(), 30) == "here"
    source.terminate()


def test_a_generator_in_threads_ends_alone(tmp_path):
    source = Source.options(yr.InvokeOptions(concurrency=3)).invoke()
    left, kept = source.items.invoke(str(tmp_path / "left")), source.items.invoke(str(tmp_path / "kept"))
    leave(left, "close")
    assert until((tmp_path / "left").exists)
    assert [yr.get(next(kept), 30) for _ in range(50)] == list(range(50))
    assert not (tmp_path / "kept").exists()
    kept.close()
    assert until((tmp_path / "kept").exists)
    source.terminate()


def test_a_generator_that_has_not_begun_never_runs(tmp_path):
    """In the queue of a function, of an instance, before its arguments, and behind another call in a worker."""
    one = yr.InvokeOptions(max_instances=1)
    function = yr.invoke(invoke_options=one)(endless.get_original_func())
    running, source = function.invoke(str(tmp_path / "running")), Source.invoke()
    slow = sleep.invoke(60)
    waiting = [
        function.invoke(str(tmp_path / "queued")), function.invoke(slow), source.items.invoke(str(tmp_path / "a"), slow)
    ]  # fmt: skip
    behind = source.ping.invoke()
    assert yr.get(next(running), 30) == 0
    for each in waiting:
        each.close()
    assert yr.get(behind, 30) == "here", "a call waits behind one that nobody wants"
    yr.cancel(slow)
    first = source.items.invoke(str(tmp_path / "first"))
    source.items.invoke(str(tmp_path / "second")).close()
    leave(first, "close")
    assert yr.get(source.ping.invoke(), 30) == "here"
    running.close()
    assert until((tmp_path / "running").exists)
    assert not list(tmp_path.glob("[qas]*"))
    source.terminate()


def test_an_ended_generator_whose_items_were_not_taken_is_closed_for_good():
    items = numbers_of(3)
    refs = [next(items)]
    items.close()
    items.close()
    assert yr.get(refs, 30) == [0]
    assert next(items, None) is None
    assert until(unwanted_is_empty)


@yr.invoke
def few(count):
    yield from range(count)


def numbers_of(count):
    """A generator whose call has ended."""
    items = few.invoke(count)
    assert until(lambda: items._items._stream.ended)
    return items


@yr.instance
class Reader:
    def begin(self, path, how):
        self.items = endless.invoke(path)
        value = yr.get(next(self.items))
        if how == "close":
            self.items.close()
        elif how == "delete":
            del self.items
        elif how == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        return value


@pytest.mark.parametrize("how", ["close", "delete", "die"])
def test_a_generator_that_a_worker_reads_ends_with_its_wish_and_with_the_worker(how, tmp_path):
    reader = Reader.invoke()
    begun = reader.begin.invoke(str(tmp_path / "closed"), how)
    if how == "die":
        with pytest.raises(yr.YRequestError, match="SIGKILL"):
            yr.get(begun, 30)
    else:
        assert yr.get(begun, 30) == 0
    assert until((tmp_path / "closed").exists)
    assert until(unwanted_is_empty)
    reader.terminate()


def test_a_closed_generator_is_not_run_again(tmp_path):
    """Its function may run again after a crash, which nobody wants."""

    @yr.invoke(invoke_options=yr.InvokeOptions(retry_times=3))
    def crash(path):
        with open(path, "a") as file:
            file.write("x")
        while not Path(f"{path}-go").exists():
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGKILL)
        yield 1

    path = tmp_path / "runs"
    items = crash.invoke(str(path))
    assert until(path.exists)
    items.close()
    assert until(unwanted_is_empty)
    Path(f"{path}-go").touch()
    yr.get(sleep.invoke(0.5), 30)
    assert path.read_text() == "x"


@pytest.mark.parametrize("wrong", [5, [5], "ref", None, (), {}])
def test_cancel_refuses_what_is_no_reference(wrong):
    with pytest.raises(TypeError, match=r"obj_refs type error, actual: .*, expect: ObjectRef or list of ObjectRef"):
        yr.cancel(wrong)


@pytest.mark.parametrize("call", [yr.cancel, yr.get, yr.wait])
def test_a_generator_where_references_are_expected_is_refused_and_keeps_its_items(call):
    """`yr.cancel` ran it to its end, and its items were lost."""
    items = numbers_of(3)
    for wrong in (items, [items]):
        with pytest.raises(TypeError, match=r"ObjectRefGenerator.*do: list\(generator\) .*generator.close\(\)"):
            call(wrong)
    assert yr.get(list(items)) == [0, 1, 2]
