"""Objects in a session on this machine: references, nested calls, large values, and that nothing grows."""

import asyncio
import gc
import os
import signal
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from functions_world import Thing, add, ended, fail, held, numbers, session, sleep, until
from toprope import functions as yr
from toprope.functions import context
from toprope.functions.transport import wire

pytestmark = pytest.mark.process


@pytest.fixture(scope="module", autouse=True)
def _session():
    """Its sockets to workers hold little, as on most machines, so that they are full now and then."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(wire, "BUFFER", 32 * 1024)
        with session("local", yr.Config(num_cpus=16, recycle_time=1)):
            yield


@pytest.fixture(scope="module")
def thing(_session):
    return Thing.invoke()


def store() -> tuple[int, int]:
    """Bytes of the driver's memory, and blocks of workers, that hold values."""
    gc.collect()
    backend = context.backend()
    return backend.store.used, sum(backend.reactor._owned.values())


def empty() -> bool:
    return store() == (0, 0)


LARGE = 400_000  # bytes; far above what travels in a message


def large() -> np.ndarray:
    return np.arange(LARGE, dtype=np.uint8)


# References


@pytest.mark.slow
def test_a_reference_tells_of_its_object(thing, tmp_path):
    ref, failed, slow = add.invoke(1, 2), fail.invoke("why"), held.invoke(tmp_path, "late")
    assert ref.get() == 3
    assert ref.done()
    assert not ref.is_exception()
    assert ref.exception() is None
    assert failed.wait(10)
    assert failed.is_exception()
    assert isinstance(failed.exception(), ValueError)
    assert until((tmp_path / "begun").exists)
    assert not slow.done()
    assert not slow.is_exception()
    assert not slow.wait(0.05)
    with pytest.raises(yr.YRTimeoutError, match=r"the function had not returned within 0\.05 s"):
        slow.get(0.05)
    (tmp_path / "go").touch()
    assert slow.get() == "late"
    assert len({ref.id, failed.id, slow.id}) == 3
    assert ref.id == ref.task_id
    assert ref.id in repr(ref)
    assert ref == ref
    assert ref != failed
    assert len({ref, ref, failed}) == 2


def test_callbacks_and_futures_have_threads_of_their_own(thing):
    called = []

    def callback(ref):
        # whoever brought the news once waited here for itself
        called.append((ref.get(), yr.get(thing.add.invoke(0)) is not None, threading.current_thread().name))

    slow = sleep.invoke(0.1, "late")
    slow.on_complete(callback)
    futures = [slow.get_future(), fail.invoke("why").get_future()]
    assert futures[0].result(60) == "late"
    with pytest.raises(ValueError, match="why"):
        futures[1].result(60)
    assert until(lambda: called == [("late", True, "toprope callback")])
    done = add.invoke(1)
    done.get()
    done.on_complete(callback)
    assert until(lambda: len(called) == 2)


def test_references_are_awaited_in_the_driver(thing):
    async def main():
        first = await add.invoke(1, 2)
        others = await asyncio.gather(*(thing.echo.invoke(number) for number in range(20)))
        with pytest.raises(ValueError, match="why"):
            await fail.invoke("why")
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(sleep.invoke(5).as_future(), 0.05)
        return first, others

    assert asyncio.run(main()) == (3, list(range(20)))


@pytest.mark.parametrize("returns", [0, 1, 3])
def test_so_many_values_as_were_said(returns):
    @yr.instance
    class Many:
        @yr.method(return_nums=returns)
        def give(self, value):
            return value

    @yr.invoke(return_nums=returns)
    def give(value):
        return value

    many = Many.invoke()
    with ended(many):
        for call in (give.invoke, many.give.invoke):
            if returns == 0:
                assert call([1, 2, 3]) is None
            elif returns == 1:
                assert call([1, 2, 3]).get() == [1, 2, 3]
            else:
                assert yr.get(call([1, 2, 3])) == [1, 2, 3]
                for wrong, kind, text in (
                    ([1, 2], ValueError, r"not enough values to unpack \(expected 3, got 2\)"),
                    ([1, 2, 3, 4], ValueError, r"not enough values to unpack \(expected 3, got 4\)"),
                    (5, TypeError, "cannot unpack non-iterable <class 'int'> object"),
                ):
                    for ref in call(wrong):
                        with pytest.raises(kind, match=text):
                            ref.get()


def test_arguments_are_checked_at_once():
    thing = Thing.invoke()
    with ended(thing):
        for call in (
            add.invoke, lambda: add.invoke(1, c=2), lambda: thing.add.invoke(1, 2, 3), lambda: Thing.invoke(1, 2, 3),
            lambda: thing.echo.invoke(),
        ):  # fmt: skip
            with pytest.raises(TypeError, match="argument"):
                call()
        with pytest.raises(AttributeError, match="Thing has no method 'nothing'"):
            thing.nothing  # noqa: B018
        with pytest.raises(RuntimeError, match="cannot be called directly"):
            thing.add(1)
        assert yr.get(thing.add.invoke(more=4)) == 4


# Nested


def test_references_that_are_arguments_are_objects_and_others_come_back_as_they_were(thing):
    one, two = add.invoke(1), yr.put(large())
    got = yr.get(thing.echo.invoke({"a": [one, (two, {"b": one})], "c": 3}))
    assert got == {"a": [one, (two, {"b": one})], "c": 3}
    assert (yr.get(got["a"][1][0]) == large()).all()
    assert (yr.get(thing.echo.invoke(two)) == large()).all()
    assert yr.get(add.invoke(add.invoke(add.invoke(1, 1), 1), b=add.invoke(1))) == 4
    with pytest.raises(ValueError, match="why"):
        yr.get(thing.echo.invoke(fail.invoke("why")))


def test_who_waits_for_an_argument_keeps_the_order(thing):
    slow = sleep.invoke(0.2, "first")
    assert yr.get([thing.echo.invoke(slow), thing.echo.invoke("second")]) == ["first", "second"]


@yr.instance
class Nested:
    """Uses the whole API from inside."""

    def __init__(self):
        self.kept = None

    def all_of_it(self, thing, ref):
        import numpy as np

        from functions_world import Thing, add, fail, numbers, sleep

        assert yr.is_initialized()
        told = {}
        told["argument"] = ref
        told["call"] = yr.get(thing.echo.invoke("from inside"))
        told["function"] = yr.get([add.invoke(1, 2), add.invoke(add.invoke(3), 4)])
        array = np.ones(500_000)
        put = yr.put({"array": array})
        told["put"] = bool((yr.get(put)["array"] == array).all())
        told["put as argument"] = yr.get(thing.echo.invoke(put))["array"].sum()
        told["wait"] = [len(part) for part in yr.wait([add.invoke(1), sleep.invoke(5)], 1, 30)]
        told["items"] = [yr.get(each) for each in numbers.invoke(3)]
        try:
            yr.get(fail.invoke("inside"))
        except ValueError as error:
            told["error"] = (type(error.origin_error()).__name__, error.args)
        mine = Thing.invoke(5)
        told["own instance"] = yr.get(mine.add.invoke(2))
        told["alive"] = mine.is_activate()
        mine.terminate()
        told["ended"] = mine.is_activate()
        done = add.invoke(1)
        yr.get(done)
        told["partial"] = yr.get([done, sleep.invoke(5)], 0.2, True)
        try:
            yr.get(sleep.invoke(5), 0.2)
        except TimeoutError as error:
            told["timeout"] = str(error)
        slow = sleep.invoke(30)
        slow.cancel()
        try:
            slow.get(10)
        except yr.CancelError as error:
            told["cancelled"] = error.code
        told["future"] = add.invoke(1, 1).get_future().result(60)
        seen = []
        add.invoke(2, 2).on_complete(lambda ref: seen.append(ref.get()))
        end = time.monotonic() + 10
        while not seen and time.monotonic() < end:
            time.sleep(0.01)
            yr.get(add.invoke(1))
        told["callback"] = seen
        return told

    def keep(self, value):
        self.kept = [yr.put(value)]
        return self.kept

    def give(self):
        return self.kept

    def refuse(self):
        results = []
        for call in (lambda: yr.init(), lambda: yr.finalize(), lambda: yr.put(None)):
            try:
                call()
                results.append("")
            except Exception as error:
                results.append(f"{type(error).__name__} {error}")
        return results

    def many(self, count):
        from functions_world import add

        return sum(yr.get([add.invoke(number) for number in range(count)]))

    def bad_options(self):
        from functions_world import add

        wrong = yr.InvokeOptions(runtime_env={"nothing": 1})
        try:
            add.options(wrong)
            return yr.get(add.invoke(1), 60)
        except Exception as error:
            return f"{type(error).__name__}: {error}"


def test_the_whole_api_works_inside_of_an_instance(thing):
    one = Nested.invoke()
    with ended(one):
        told = yr.get(one.all_of_it.invoke(thing, add.invoke(7)), 60)
        assert told == {
            "argument": 7, "call": "from inside", "function": [3, 7], "put": True, "put as argument": 500_000,
            "wait": [1, 1], "items": [0, 1, 2], "error": ("ValueError", ("inside",)), "own instance": 7, "alive": True,
            "ended": False, "partial": [1, None], "timeout": told["timeout"], "cancelled": 3003, "future": 2,
            "callback": [4],
        }  # fmt: skip
        assert "failed to get object, code: 4005" in told["timeout"]


def test_an_object_that_a_worker_gets_again_while_it_drops_it_is_held():
    """Its release of the first reference comes after the second one was sent."""
    session, process = context.backend(), SimpleNamespace(held={}, backlog=[])
    entry = yr.put(1)._entry
    first, second = session.expose(entry, process), session.expose(entry, process)
    assert first == second
    for left in ([first], []):
        session.handle(process, [wire.Message(wire.Kind.REFS, 0, ((first, 1),), [])])
        assert list(process.held) == left


def test_a_fork_of_the_program_has_no_session_and_leaves_its_parents():
    ref = yr.put(1)
    read, write = os.pipe()
    if not (child := os.fork()):
        try:
            for use in (lambda: yr.put(2), ref.get):  # by the API, and by what is left of the session
                try:
                    use()
                except yr.YRRuntimeError as error:
                    os.write(write, str(error).encode())
        finally:
            os._exit(0)
    os.close(write)
    os.waitpid(child, 0)
    with open(read, encoding="utf-8") as file:
        assert file.read().count("this process is a fork of the one that called yr.init: call yr.init in it too") == 2
    assert yr.get(ref) == 1


def test_only_the_program_begins_and_ends_a_session(thing):
    one = Nested.invoke()
    with ended(one):
        first, second, third = yr.get(one.refuse.invoke())
        assert "cannot be called twice" in first
        assert "yr.finalize is for the program that called yr.init" in second
        assert "value is None or has zero length" in third
        assert yr.get(thing.echo.invoke(1)) == 1


def test_a_reference_that_a_worker_made_outlives_what_it_was_made_in(thing):
    one = Nested.invoke()
    with ended(one):
        (ref,) = yr.get(one.keep.invoke(large()))
        assert isinstance(ref, yr.ObjectRef)
        (again,) = yr.get(one.give.invoke())
        assert again == ref
    assert until(lambda: not one.is_activate())
    assert (yr.get(ref) == large()).all()
    assert (yr.get(thing.echo.invoke(ref)) == large()).all()
    del ref, again
    assert until(empty)


def test_what_is_wrong_with_a_call_from_inside_is_told_with_its_result():
    """The caller waited for ever once."""
    one = Nested.invoke()
    with ended(one):
        assert "runtime_env.get('nothing') is not supported" in yr.get(one.bad_options.invoke(), 60)


def test_functions_that_call_themselves_do_not_wait_for_each_others_cores():
    """Each waits for the next one, and all held cores once: with so many of them nobody could go on."""

    @yr.invoke
    def depth(number):
        return 0 if number == 0 else 1 + yr.get(depth.invoke(number - 1))

    assert yr.get(depth.invoke(34), 60) == 34  # 16 cores have room for 32


def test_a_worker_that_has_waited_holds_its_cores_again():
    @yr.instance
    class Waits:
        def wait(self):
            return yr.get(sleep.invoke(0.1))

    def taken() -> float:
        (node,) = yr.resources()
        return node["capacity"]["CPU"] - node["allocatable"]["CPU"]

    one = Waits.options(yr.InvokeOptions(cpu=1777)).invoke()  # no sum of workers for functions
    with ended(one):
        yr.get(one.wait.invoke(), 60)
        assert until(lambda: taken() == sum(each["resources"]["CPU"] for each in yr.list_instances()))


@pytest.mark.slow
def test_a_worker_may_ask_for_very_much_at_once():
    """The answers filled the socket once, while the questions filled the other, and both sides waited."""
    one = Nested.invoke()
    with ended(one):
        assert yr.get(one.many.invoke(1500), 60) == sum(range(1500))


def test_handles_are_arguments_and_results(thing):
    @yr.invoke
    def use(handle, number):
        return yr.get(handle.add.invoke(number)), handle

    other = Thing.invoke(1)
    with ended(other):
        result, again = yr.get(use.invoke(other, 4))
        assert result == 5
        assert again == other
        assert hash(again) == hash(other)
        assert yr.get(again.add.invoke(1)) == 6
        assert again.real_id() == again.instance_id == other.instance_id


# Coroutines


@yr.instance
class Coroutines:
    def __init__(self):
        self.running = 0
        self.most = 0

    async def meet(self, others):
        """Goes on a moment after so many have run at once; gives the most that have."""
        self.running += 1
        self.most = max(self.most, self.running)
        while self.most < others:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.02)
        self.running -= 1
        return self.most

    async def ask(self, thing, number):
        from functions_world import add

        return await thing.echo.invoke(number) + await add.invoke(0)

    async def items(self, count, error=""):
        for number in range(count):
            await asyncio.sleep(0)
            yield number
        if error:
            raise ValueError(error)

    async def iterate(self, count):
        from functions_world import numbers

        return [await ref for ref in numbers.invoke(count)]

    async def fail(self):
        raise KeyError("async")

    async def leave(self):
        yr.exit()

    def plain(self):
        return self.most

    async def __yr_shutdown__(self, seconds):
        await asyncio.sleep(0)
        Path(self.path).touch()

    async def at_end(self, path):
        self.path = path


def test_coroutines_overlap_await_and_raise(thing, tmp_path):
    one = Coroutines.invoke()
    with ended(one):
        assert max(yr.get([one.meet.invoke(30) for _ in range(30)], 60)) == 30
        assert yr.get([one.ask.invoke(thing, number) for number in range(30)]) == list(range(30))
        assert yr.get(list(one.items.invoke(3))) == [0, 1, 2]
        *items, last = one.items.invoke(2, "at last")
        assert yr.get(items) == [0, 1]
        with pytest.raises(ValueError, match="at last"):
            last.get()
        assert yr.get(one.iterate.invoke(4)) == [0, 1, 2, 3]
        with pytest.raises(KeyError, match="async"):
            yr.get(one.fail.invoke())
        assert yr.get(one.plain.invoke()) == 30
        yr.get(one.at_end.invoke(str(tmp_path / "ended")))
    assert (tmp_path / "ended").exists()


def test_a_coroutine_that_leaves_ends_its_instance():
    one = Coroutines.invoke()
    with ended(one):
        with pytest.raises(yr.YRError):
            one.leave.invoke().get(20)
        with pytest.raises(yr.YRequestError, match="exit status 0"):
            one.plain.invoke().get(20)


def test_few_coroutines_at_once_where_that_was_said():
    one = Coroutines.options(yr.InvokeOptions(concurrency=3)).invoke()
    with ended(one):
        yr.get(one.at_end.invoke("/dev/null"))
        assert max(yr.get([one.meet.invoke(3) for _ in range(12)], 60)) == 3


def test_functions_may_be_coroutines_and_generators():
    @yr.invoke
    async def later(value):
        await asyncio.sleep(0)
        return value

    @yr.invoke
    async def items(count):
        for number in range(count):
            yield number

    assert yr.get(later.invoke(3)) == 3
    assert yr.get(list(items.invoke(3))) == [0, 1, 2]


def test_a_generator_of_which_only_the_beginning_is_taken_leaves_nothing():
    @yr.invoke
    def begin():
        items = numbers.invoke(50)
        return yr.get(next(items))

    @yr.invoke
    def arrays(count):
        import numpy as np

        for _ in range(count):
            yield np.ones(100_000)

    assert yr.get(begin.invoke()) == 0
    items = arrays.invoke(10)
    assert yr.get(next(items)).sum() == 100_000
    del items
    assert until(empty)
    assert until(lambda: not any(each.streams for each in context.backend().reactor._all.values()))


# Large values


def test_large_values_by_value_and_by_reference_are_given_back(thing):
    array = large()
    for _ in range(5):
        assert (yr.get(thing.echo.invoke(array)) == array).all()
        ref = yr.put(array)
        assert (yr.get(thing.echo.invoke(ref)) == array).all()
        assert (yr.get(yr.get(thing.echo.invoke([ref, ref]))[1]) == array).all()
    del ref
    assert until(empty)


@pytest.mark.slow
def test_what_is_read_lies_in_shared_memory_and_stays_as_long_as_it_is_read(thing):
    ref = thing.echo.invoke(large())
    first = yr.get(ref)
    assert not first.flags.owndata
    assert not first.flags.writeable
    with pytest.raises(ValueError, match="read-only"):
        first[0] = 1
    del ref
    gc.collect()
    for _ in range(10):
        yr.get(thing.echo.invoke(np.zeros(LARGE, np.uint8)))
    assert (first == large()).all()
    assert not empty()
    del first
    assert until(empty)


@pytest.mark.parametrize("how", ["lets go", "is killed"])
def test_what_a_worker_reads_is_freed_when_it_does_no_longer(how):
    @yr.instance
    class Keeps:
        def keep(self, value):
            self.value = value

        def total(self):
            return int(self.value.sum()), os.getpid()

    assert until(empty)
    one, ref = Keeps.invoke(), yr.put(large())
    with ended(one):
        yr.get(one.keep.invoke(ref), 60)
        del ref
        assert not empty()
        total, pid = yr.get(one.total.invoke())
        assert total == large().sum()
        if how == "lets go":
            yr.get(one.keep.invoke(None))
        else:
            os.kill(pid, signal.SIGKILL)
        assert until(empty)


def test_what_a_worker_has_asked_for_and_does_not_take_is_freed():
    @yr.instance
    class Asks:
        def both(self, refs):
            try:
                yr.get([fail.invoke("first"), *refs])
            except ValueError:
                return True

    assert until(empty)
    one, refs = Asks.invoke(), [yr.put(large())]
    with ended(one):
        assert yr.get(one.both.invoke(refs), 60)
        del refs
        assert yr.get(one.both.invoke([]), 60)  # with its result, at the latest, the release is sent
        assert until(empty)


def test_tensors_travel_as_arrays_do_and_are_the_receivers_own(thing):
    torch = pytest.importorskip("torch")

    @yr.invoke
    def change(tensor):
        tensor += 1
        return tensor

    tensor = torch.arange(200_000.0)
    ref = yr.put(tensor)
    assert torch.equal(yr.get(change.invoke(ref)), tensor + 1)
    assert torch.equal(yr.get(change.invoke(ref)), tensor + 1)
    mine = yr.get(ref)
    mine.zero_()
    assert torch.equal(yr.get(ref), tensor)
    model = torch.nn.Linear(300, 300)
    assert torch.equal(yr.get(thing.echo.invoke(model)).weight, model.weight)
    del ref, mine
    assert until(empty)


def test_a_simulated_cards_tensor_comes_from_a_worker_and_goes_to_another():
    @yr.instance
    class Card:
        def make(self, number):
            import torch

            return [torch.full((300, 300), float(number), device="npu:0")]

        def sum(self, tensors):
            (tensor,) = tensors
            return str(tensor.device), tensor.sum().item()

    cards = yr.InvokeOptions(custom_resources={"NPU/.+/count": 1})
    first, second = (Card.options(cards).invoke() for _ in range(2))
    with ended(first, second):
        assert yr.get(second.sum.invoke(first.make.invoke(2))) == ("npu:0", 180_000)


@pytest.mark.slow
def test_what_calls_were_given_is_let_go_when_they_are_over(thing):
    kept = [sleep.invoke(0.2, large()) for _ in range(3)]
    yr.wait(kept)
    del kept
    failing = [fail.invoke("x" * 100_000) for _ in range(3)]
    yr.wait(failing)
    del failing
    other = Thing.invoke(large())
    with ended(other):
        assert yr.get(other.pid.invoke())
    assert until(empty)


@yr.instance
class Locked:
    """Cannot be pickled, nor can what it gives."""

    def lock(self):
        return threading.Lock()

    def three(self):
        return [large_array(), threading.Lock(), 3]

    def items(self):
        yield 1
        yield threading.Lock()

    def raise_lock(self):
        raise ValueError(threading.Lock())

    def ok(self):
        return "ok"


def large_array():
    return np.ones(100_000)


def test_what_cannot_be_pickled_is_an_error_where_it_is_given(thing):
    with pytest.raises(TypeError, match="cannot pickle"):
        thing.echo.invoke(threading.Lock())
    with pytest.raises(TypeError, match="cannot pickle"):
        add.invoke(threading.Lock())
    with pytest.raises(TypeError, match="cannot pickle"):
        yr.put([large(), threading.Lock()])
    assert yr.get(thing.echo.invoke(1)) == 1
    assert until(empty)


def test_results_and_errors_that_cannot_be_pickled_are_errors_of_the_call():
    Locked._code.target.three = yr.method(return_nums=3)(Locked._code.target.three)
    one = Locked.invoke()
    with ended(one):
        with pytest.raises(TypeError, match="cannot pickle"):
            yr.get(one.lock.invoke())
        for ref in one.three.invoke():
            with pytest.raises(TypeError, match="cannot pickle"):
                ref.get()
        first, second = one.items.invoke()
        assert first.get() == 1
        with pytest.raises(TypeError, match="cannot pickle"):
            second.get()
        with pytest.raises(RuntimeError, match="ValueError: <unlocked"):
            yr.get(one.raise_lock.invoke())
        assert yr.get(one.ok.invoke()) == "ok"
    with pytest.raises(yr.YRError, match="cannot pickle"):
        yr.get(Recoverable.options(yr.InvokeOptions(recover_retry_times=1)).invoke().ok.invoke())
    assert until(empty)


@yr.instance
class Recoverable:
    def __init__(self):
        self.lock = threading.Lock()

    def ok(self):
        return "ok"


def test_what_cannot_be_unpickled_is_an_error_of_the_call_and_of_no_other(thing):
    class Bomb:
        def __reduce__(self):
            return int, ("not a number",)

    with pytest.raises(ValueError, match="not a number"):
        yr.get(thing.echo.invoke(Bomb()))
    assert yr.get(thing.echo.invoke(1)) == 1
    bad = yr.put(Bomb())
    with pytest.raises(yr.YRError, match=r"cannot be read here: ValueError: .*not a number"):
        yr.get(bad)


def test_a_class_of_the_program_is_the_same_class_there_and_back(thing):
    class Own(Exception):
        def __init__(self, code):
            super().__init__(code)
            self.code_of_mine = code

    @yr.invoke
    def raise_own(value):
        assert isinstance(value, Own)
        raise Own(7)

    with pytest.raises(Own) as caught:
        yr.get(raise_own.invoke(Own(1)))
    assert caught.value.code_of_mine == 7
    assert type(yr.get(thing.echo.invoke(Own(1)))) is Own


# Cancelling


def test_calls_are_cancelled_queued_running_and_done(tmp_path):
    path = str(tmp_path / "runs")

    @yr.invoke
    def note(number, seconds):
        with open(path, "a") as file:
            file.write(f"{number} ")
        time.sleep(seconds)
        return number

    note.options(yr.InvokeOptions(max_instances=1))
    running, queued, last = note.invoke(1, 30), note.invoke(2, 0), note.invoke(3, 0)
    waiting = note.invoke(sleep.invoke(30), 0)
    assert until(lambda: Path(path).exists() and Path(path).read_text())  # made, then written
    queued.cancel()
    yr.cancel([running, waiting])
    for ref in (running, queued, waiting):
        with pytest.raises(yr.CancelError, match="invalid get obj, the obj has been cancelled") as caught:
            ref.get(20)
        assert caught.value.code == 3003
        assert isinstance(caught.value, RuntimeError)
    assert last.get(20) == 3
    last.cancel()
    assert last.get() == 3
    assert Path(path).read_text() == "1 3 "


def test_without_force_a_running_call_goes_on_and_calls_of_instances_always_do(thing, tmp_path):
    slow = held.invoke(tmp_path, "done")
    assert until((tmp_path / "begun").exists)
    yr.cancel(slow, allow_force=False)
    (tmp_path / "go").touch()
    assert slow.get(10) == "done"
    ref = thing.sleep.invoke(0.1)
    yr.cancel(ref)
    assert ref.get(10) == 0.1


# Much of it


def test_sixteen_threads_call_one_instance():
    one = Thing.invoke()
    wrong = []

    def work(name):
        for number in range(100):
            if yr.get(one.echo.invoke((name, number)), 60) != (name, number):
                wrong.append((name, number))

    with ended(one):
        threads = [threading.Thread(target=work, args=(name,)) for name in range(16)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(100)
        assert wrong == []


def test_a_busy_instance_with_many_large_calls_keeps_nobody_else_waiting(thing, tmp_path):
    """Sending to it waited once with the session's lock held, and everybody with it."""
    busy = Thing.invoke()
    with ended(busy):
        yr.get(busy.pid.invoke())
        refs = [busy.hold.invoke(tmp_path)] + [busy.echo.invoke([b"x" * 30_000] * 20) for _ in range(190)]
        assert yr.get(thing.echo.invoke(1), 60) == 1
        (tmp_path / "go").touch()
        assert all(value == [b"x" * 30_000] * 20 for value in yr.get(refs[1:], 60))


def descriptors(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))


def resident(pid: int) -> int:
    """Bytes of a process's own memory; the shared memory of objects is not among them."""
    (line,) = (line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("RssAnon"))
    return int(line.split()[1]) * 1024


COUNTS = [pytest.param(3000, id="short"), pytest.param(100_000, id="full", marks=pytest.mark.soak)]


@pytest.mark.slow
@pytest.mark.parametrize("count", COUNTS)
def test_many_calls_leave_neither_memory_nor_descriptors(count):
    one = Thing.invoke()
    with ended(one):
        pids = [os.getpid(), yr.get(one.pid.invoke())]

        def work(times):
            for _ in range(times // 100):
                yr.get([one.echo.invoke(number) for number in range(60)])
                for number in range(36):
                    yr.get(one.echo.invoke(number))
                yr.get([add.invoke(1), add.invoke(2)])
                yr.get([one.echo.invoke(large()), one.echo.invoke(yr.put(large()))])

        work(count // 3)
        gc.collect()
        before = [(descriptors(pid), resident(pid)) for pid in pids]
        work(count)
        assert until(empty)
        for pid, (files, memory) in zip(pids, before, strict=True):
            assert descriptors(pid) <= files + 4
            assert resident(pid) < memory + 16 * 2**20
        backend = context.backend()
        assert len(backend.reactor._timers) < 1000
        assert not any(each.streams for each in backend.reactor._all.values())


INSTANCES = [pytest.param(40, id="short"), pytest.param(1000, id="full", marks=pytest.mark.soak)]


@pytest.mark.slow
@pytest.mark.parametrize("count", INSTANCES)
def test_instances_that_come_and_go_leave_nothing(count):
    def work(times):
        for _ in range(times // 10):
            things = [Thing.invoke(large()) for _ in range(10)]
            yr.get([each.pid.invoke() for each in things])
            for each in things:
                each.terminate()

    work(10)
    gc.collect()
    assert until(empty)
    backend = context.backend()
    before = descriptors(os.getpid()), resident(os.getpid()), threading.active_count(), len(backend.reactor._all)
    work(count)
    gc.collect()
    assert until(empty)
    assert until(lambda: len(backend.reactor._all) <= before[3] + 1)
    assert descriptors(os.getpid()) <= before[0] + 4
    assert resident(os.getpid()) < before[1] + 8 * 2**20
    assert threading.active_count() <= before[2] + 1
    assert len(backend.instances._by_id) < 1000
