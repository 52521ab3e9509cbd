"""The assertions of the yr model, by their numbers, on every backend, with two cards, 0 and 1, of the model 910B4.

Those that need a machine of their own are in test_functions_assertions_machines.py.
"""

import os
import signal
import threading
import time
from pathlib import Path

import pytest

from functions_world import (
    ANY,
    BACKENDS,
    Thing,
    add,
    alive,
    ended,
    env,
    fail,
    free_cards,
    numbers,
    opt,
    session,
    sleep,
    until,
)
from toprope import functions as yr

pytestmark = pytest.mark.process

MASK = "ASCEND_RT_VISIBLE_DEVICES"
IN_TIME = {"local": 10, "ray": 60}
"""Seconds in which something has come to hold; a process of Ray's takes long to begin next to other programs."""
AT_ONCE = {"local": 5, "ray": 25}
"""Seconds of what waits for nothing: less than the 30 s of the shortest wait that it could be taken for."""


@pytest.fixture(scope="module", params=BACKENDS)
def backend(request):
    with session(request.param):
        yield request.param


@pytest.fixture(autouse=True)
def _all_cards_come_back(backend):
    yield
    assert until(lambda: free_cards() == 2, IN_TIME[backend]), (yr.resources(), yr.list_instances())


@pytest.mark.slow
def test_02_the_mask_is_the_first_free_card_and_of_two_rises_without_spaces(backend):
    one = Thing.options(opt(1)).invoke()
    with ended(one):
        assert yr.get(one.getEnv.invoke()) == "ASCEND_RT_VISIBLE_DEVICES: 0"
        assert yr.get(one.run.invoke()) == ("npu:0", 1)
    both = Thing.options(opt(2)).invoke()
    with ended(both):
        assert yr.get(both.getEnv.invoke()) == "ASCEND_RT_VISIBLE_DEVICES: 0,1"
        assert yr.get(both.run.invoke(1)) == ("npu:1", 2)


def test_03_a_second_card_that_was_not_asked_for_raises_the_vendors_code(backend):
    one = Thing.options(opt(1)).invoke()
    with ended(one):
        with pytest.raises(yr.YRInvokeError) as caught:
            yr.get(one.run.invoke(1))
        assert isinstance(caught.value, RuntimeError)
        text = str(caught.value)
        assert "107001" in text
        assert "in run" in text
        assert "functions_world.py" in text


@pytest.mark.parametrize("value", ["1", "0", ""])
def test_04_the_opt_out_takes_the_mask_away_and_the_card_is_held_all_the_same(backend, value):
    one = Thing.options(opt(1, env_vars={f"YR_NOSET_{MASK}": value})).invoke()
    with ended(one):
        assert yr.get(one.env.invoke(MASK)) == [None]
        assert free_cards() == 1


def test_05_two_instances_see_different_cards(backend):
    first, second = (Thing.options(opt(1)).invoke() for _ in range(2))
    with ended(first, second):
        names = (MASK, "NPU-DEVICE-IDS")
        assert sorted(yr.get([first.env.invoke(*names), second.env.invoke(*names)])) == [["0", "0"], ["1", "1"]]
        assert free_cards() == 0


def test_06_a_shortage_is_told_after_its_time_and_not_before(backend):
    both = Thing.options(opt(2)).invoke()
    with ended(both):
        yr.get(both.pid.invoke())
        begin = time.monotonic()
        third = Thing.options(opt(1, schedule_timeout_ms=2000)).invoke()
        with pytest.raises(yr.YRequestError) as caught:
            yr.get(third.pid.invoke())
        assert 1.9 < time.monotonic() - begin < IN_TIME[backend]
        assert caught.value.code == 1002
        assert "the instance cannot be scheduled within 2000 ms" in str(caught.value)
        assert "card count: Not Enough" in str(caught.value)


def test_07_who_waits_gets_the_card_that_is_given_back(backend):
    first, second = (Thing.options(opt(1)).invoke() for _ in range(2))
    with ended(first, second):
        yr.get([first.pid.invoke(), second.pid.invoke()])
        third = Thing.options(opt(1, schedule_timeout_ms=20000)).invoke()
        with ended(third):
            waiting = third.env.invoke(MASK)
            assert yr.wait(waiting, timeout=0.2)[0] == []
            second.terminate()
            assert yr.get(waiting, 60) == ["1"]


@pytest.mark.parametrize("how", ["terminate", "crash"])
def test_08_an_end_gives_the_cards_back_and_leaves_no_child(backend, how):
    """The third way, finalize, is in test_functions_assertions_machines.py."""
    one = Thing.options(opt(2)).invoke()
    with ended(one):
        pid, spawned = yr.get([one.pid.invoke(), one.spawn.invoke()])
        assert free_cards() == 0
        assert all(map(alive, spawned))
        if how == "terminate":
            one.terminate()
        else:
            os.kill(pid, signal.SIGKILL)
        assert until(lambda: free_cards() == 2, IN_TIME[backend])
        assert until(lambda: not any(map(alive, [pid, *spawned])), IN_TIME[backend])
        with pytest.raises(RuntimeError, match="this instance is terminated" if how == "terminate" else "SIGKILL"):
            yr.get(one.pid.invoke())


@pytest.mark.parametrize("model", ["910B4", "910.*", "(910B3|910B4)", "Ascend910B4"])
def test_09_models_that_match(backend, model):
    one = Thing.options(opt(custom_resources={f"NPU/{model}/count": 1})).invoke()
    with ended(one):
        assert yr.get(one.env.invoke(MASK)) == ["0"]


def test_09_models_that_do_not_match_end_with_the_models_that_there_are(backend):
    calls = []
    for model in ("910", "^910.*", "910b4"):
        asked = opt(custom_resources={f"NPU/{model}/count": 1}, schedule_timeout_ms=100)
        calls.append(Thing.options(asked).invoke().pid.invoke())
    for call in calls:
        with pytest.raises(yr.YRequestError, match="Card Type Not Found") as caught:
            yr.get(call)
        assert caught.value.code == 1002
        assert "NPU/910B4" in str(caught.value)


@pytest.mark.parametrize(("asked", "message"), [
    ({"NPU/(Ascend910/count": 1}, "Heterogeneous product regex syntax error"),
    ({ANY: 0}, "being 0 is invalid"),
    ({ANY: 1, "NPU/.+/HBM": 100}, "count being non-zero and other heterogeneous resources exist"),
    ({"NPU/.+/HBM": 100}, "must be 3, but now have 2 missing"),
    ({ANY: 1.5}, "quantity >1 must be whole numbers"),
], ids=["10", "11", "12 both", "12 alone", "13"])  # fmt: skip
def test_10_to_13_what_makes_no_sense_is_refused_at_once(backend, asked, message):
    begin = time.monotonic()
    for call in (Thing.options(opt(custom_resources=asked)).invoke().pid.invoke,):
        with pytest.raises(yr.YRequestError, match=message) as caught:
            yr.get(call())
        assert caught.value.code == 1006
    assert time.monotonic() - begin < AT_ONCE[backend]  # and not the 30 s that resources are waited for


def test_13_shares_of_a_card(backend):
    first, second, third = (Thing.options(opt(share)).invoke() for share in (0.5, 0.5, 0.6))
    with ended(first, second, third):
        masks = yr.get([each.env.invoke(MASK) for each in (first, second, third)])
        assert masks == [["0"], ["0"], ["1"]]
        whole = Thing.options(opt(1, schedule_timeout_ms=100)).invoke()
        with pytest.raises(yr.YRequestError, match="card count: Not Enough") as caught:
            yr.get(whole.pid.invoke())
        assert caught.value.code == 1002


def test_14_who_asks_for_none_has_no_mask_and_takes_no_card(backend):
    one = Thing.invoke()
    with ended(one):
        assert yr.get(one.env.invoke(MASK, "NPU-DEVICE-IDS")) == [None, None]
        assert free_cards() == 2
        assert yr.get(one.run.invoke(1)) == ("npu:1", 2)


@pytest.mark.parametrize("key", ["NPU", "tape"])
def test_15_a_plain_key_that_no_node_has_is_not_found(backend, key):
    one = Thing.options(opt(custom_resources={key: 1}, schedule_timeout_ms=100)).invoke()
    with pytest.raises(yr.YRequestError, match=f"{key}: Not Found") as caught:
        yr.get(one.pid.invoke())
    assert caught.value.code == 1002


def test_15_five_of_a_named_resource_are_given_and_the_sixth_waits(backend):
    things = [Thing.options(opt(custom_resources={"ssd": 1})).invoke() for _ in range(6)]
    with ended(*things):
        calls = [each.pid.invoke() for each in things]
        ready, waiting = yr.wait(calls, 5, 60)
        assert (len(ready), waiting) == (5, calls[5:])
        assert yr.wait(calls[5], timeout=0.2)[0] == []
        things[0].terminate()
        assert yr.get(calls[5], 60)


def test_19_a_name_means_one_instance(backend):
    named = opt(name="one-name", namespace="here")
    first, second = Thing.options(named).invoke(5), Thing.options(named).invoke(7)
    with ended(first):
        assert yr.get(first.pid.invoke()) == yr.get(second.pid.invoke())
        assert yr.get(second.add.invoke(0)) == 5
        third = yr.get_instance("one-name", "here")
        assert yr.get(third.add.invoke(1)) == 6
        assert third == first
        assert yr.list_named_instances(True) == [{"namespace": "here", "name": "one-name"}]
    with pytest.raises(RuntimeError, match="failed to get instance: here-one-name"):
        yr.get_instance("one-name", "here", 0)
    with pytest.raises(yr.YRequestError, match="ID size is 65, exceeds the maximum length of 64 bytes") as caught:
        yr.get(Thing.options(opt(name="n" * 60, namespace="here")).invoke().pid.invoke())
    assert caught.value.code == 1001


def test_20_calls_of_one_run_in_the_order_in_which_they_were_made(backend):
    @yr.instance
    class Order:
        def __init__(self):
            self.seen = []

        def see(self, number):
            self.seen.append(number)
            return self.seen

    one = Order.invoke()
    with ended(one):
        assert yr.get([one.see.invoke(number) for number in range(100)])[-1] == list(range(100))


@pytest.mark.parametrize("concurrency", [0, 1001])
def test_20_concurrency_has_a_range(backend, concurrency):
    with pytest.raises(yr.YRequestError, match=f"concurrency: {concurrency}, please set") as caught:
        yr.get(Thing.options(opt(concurrency=concurrency)).invoke().pid.invoke())
    assert caught.value.code == 1001


def test_20_an_order_of_two_at_once_is_refused(backend):
    with pytest.raises(ValueError, match="need_order=True is mutually exclusive with concurrency > 1"):
        Thing.options(opt(concurrency=2, need_order=True)).invoke()


def test_20_threads_and_coroutines_overlap(backend):
    @yr.instance
    class Threads:
        def __init__(self):
            self.all = threading.Barrier(8)

        def meet(self):
            self.all.wait()

    @yr.instance
    class Coroutines:
        def __init__(self):
            self.running = 0

        async def meet(self):
            import asyncio

            self.running += 1
            while self.running < 50:
                await asyncio.sleep(0.01)

    threads, coroutines = Threads.options(opt(concurrency=8)).invoke(), Coroutines.invoke()
    with ended(threads, coroutines):  # each call ends only if all run at once
        yr.get([threads.meet.invoke() for _ in range(8)] + [coroutines.meet.invoke() for _ in range(50)], 60)


def test_21_objects_refuse_what_cannot_be(backend):
    ref = yr.put(1)
    for nothing in (None, b"", bytearray()):
        with pytest.raises(yr.YRValueError, match="value is None or has zero length"):
            yr.put(nothing)
    with pytest.raises(yr.YRTypeError, match="Calling 'put' on an ObjectRef is not allowed"):
        yr.put(ref)
    for timeout in (0, -2):
        with pytest.raises(ValueError, match="Parameter 'timeout' should be greater than 0 or equal to -1"):
            yr.get(ref, timeout)
    with pytest.raises(TypeError, match="obj_refs type error, actual: <class 'tuple'>"):
        yr.get((ref,))
    with pytest.raises(yr.YRValueError, match="duplicates"):
        yr.wait([ref, ref])
    with pytest.raises(yr.YRTypeError):
        yr.wait([ref], 1.0)
    for wrong in (-1, 2):
        with pytest.raises(yr.YRValueError):
            yr.wait([ref], wrong)
    assert yr.wait([ref], 0) == ([], [ref])
    assert yr.wait([ref], timeout=0) == ([], [ref])
    assert yr.get([]) == []


def test_21_waiting_is_for_all_and_keeps_the_order(backend):
    slow, quick, failed = sleep.invoke(0.5, 1), add.invoke(1), fail.invoke("x")
    assert yr.wait([slow, quick, failed]) == ([slow, quick, failed], [])
    refs = [sleep.invoke(30 if number == 1 else 0) for number in range(3)]
    ready, unready = yr.wait(refs, 2, 20)
    assert (ready, unready) == ([refs[0], refs[2]], [refs[1]])
    assert yr.wait(refs, 1) == ([refs[0]], refs[1:])
    begin = time.monotonic()
    assert yr.wait(refs, 3, 0.3) == ([refs[0], refs[2]], [refs[1]])
    assert 0.3 <= time.monotonic() - begin < AT_ONCE[backend]
    with pytest.raises(yr.YRTimeoutError, match="failed to get object, code: 4005, module code: 30, msg: ") as caught:
        yr.get(refs, 0.2)
    assert isinstance(caught.value, TimeoutError)
    assert yr.get(refs, 0.2, True) == [None, None, None]
    assert yr.get([quick, refs[1], failed], 0.2, allow_partial=True) == [1, None, None]
    yr.cancel(refs[1])


def test_22_what_the_user_raised_is_caught_by_its_own_class_and_by_ours(backend):
    one = Thing.invoke()
    with ended(one):
        for call in (lambda: fail.invoke("why"), lambda: one.fail.invoke("why")):
            for kind in (ValueError, yr.YRInvokeError, RuntimeError):
                with pytest.raises(kind, match="ValueError: why"):
                    yr.get(call())
            with pytest.raises(yr.YRInvokeError) as caught:
                yr.get(call())
            assert type(caught.value.origin_error()) is ValueError
            assert caught.value.origin_error().args == ("why",)
            assert "functions_world.py" in caught.value.traceback_str


@pytest.mark.parametrize(("retries", "runs"), [(2, 3), (1, 2), (0, 1)])
def test_23_a_function_that_fails_runs_again_so_often_as_was_said(backend, tmp_path, retries, runs):
    @yr.invoke
    def third_time(path):
        with open(path, "a") as file:
            file.write("x")
        if os.path.getsize(path) < 3:
            raise ValueError("not yet")
        return "done"

    path = str(tmp_path / "runs")
    call = third_time.options(opt(retry_times=retries)).invoke(path)
    if runs == 3:
        assert yr.get(call) == "done"
    else:
        with pytest.raises(ValueError, match="not yet"):
            yr.get(call)
    assert len(Path(path).read_text()) == runs


def test_23_a_function_that_runs_again_has_its_arguments_again(backend, tmp_path):
    """What it had been given by reference was gone the second time once."""

    @yr.invoke
    def second_time(path, *values):
        with open(path, "a") as file:
            file.write("x")
        if os.path.getsize(path) < 2:
            raise ValueError("not yet")
        return values

    large = list(range(20000))
    call = second_time.options(opt(retry_times=1)).invoke(str(tmp_path / "runs"), yr.put(large), add.invoke(1, 2), [4])
    assert yr.get(call) == (large, 3, [4])


def test_24_an_instance_that_crashes_comes_back_as_it_was_saved(backend, tmp_path):
    @yr.instance
    class Saved:
        def __init__(self, path):
            self.path = path
            self.number = 0
            with open(path, "a") as file:
                file.write("x")

        def count(self, save=False):
            self.number += 1
            if save:
                yr.save_state()
            return self.number

        def back(self):
            yr.load_state()
            return self.number

        def pid(self):
            return os.getpid()

        def __yr_shutdown__(self, seconds):
            with open(self.path, "a") as file:
                file.write(f"end {seconds:g}")

    path = tmp_path / "made"
    one = Saved.options(opt(1, recover_retry_times=1, custom_extensions={"GRACEFUL_SHUTDOWN_TIME": "9"})).invoke(
        str(path)
    )
    with ended(one):
        pid = yr.get([*(one.count.invoke(save=number == 4) for number in range(5)), one.pid.invoke()])[-1]
        yr.get(one.count.invoke())
        os.kill(pid, signal.SIGKILL)
        assert yr.get(one.count.invoke(), 60) == 6
        assert yr.get(one.back.invoke()) == 5
        assert yr.get(one.pid.invoke()) != pid
        assert path.read_text() == "x"
        one.terminate()
        assert path.read_text() == "xend 9"
        with pytest.raises(RuntimeError, match="this instance is terminated"):
            one.count.invoke()


def test_24_a_crash_without_recovery_calls_no_hook_and_ends_the_instance(backend, tmp_path):
    @yr.instance
    class Plain:
        def __init__(self, path):
            self.path = path

        def pid(self):
            return os.getpid()

        def load(self):
            yr.load_state()

        def __yr_shutdown__(self, seconds):
            open(self.path, "w").close()

    path = tmp_path / "hook"
    one = Plain.invoke(str(path))
    with ended(one):
        with pytest.raises(RuntimeError, match="Failed to load state"):
            yr.get(one.load.invoke())
        os.kill(yr.get(one.pid.invoke()), signal.SIGKILL)
        with pytest.raises(yr.YRequestError, match="SIGKILL") as caught:
            yr.get(one.pid.invoke())
        assert caught.value.code == 1007
        assert not path.exists()
        second = Plain.invoke(str(path))
        os.kill(yr.get(second.pid.invoke()), signal.SIGTERM)
        assert until(path.exists, IN_TIME[backend])


def test_25_options_stay_with_functions_and_not_with_instances(backend):
    try:
        assert env.options(opt(env_vars={"MARK": "1"})) is env
        assert yr.get(env.invoke("MARK")) == ["1"]
        assert yr.get(env.invoke("MARK")) == ["1"]
    finally:
        env.options(opt())
    assert yr.get(env.invoke("MARK")) == [None]
    marked, plain = Thing.options(opt(env_vars={"MARK": "1"})).invoke(), Thing.invoke()
    with ended(marked, plain):
        assert yr.get([marked.env.invoke("MARK"), plain.env.invoke("MARK")]) == [["1"], [None]]


def test_25_bundles_that_are_to_lie_on_two_nodes_never_do_on_one(backend):
    group = yr.create_resource_group([{"CPU": 500}, {"CPU": 500}], "apart", "STRICT_SPREAD")
    try:
        with pytest.raises(yr.YRError):
            group.wait(1)
    finally:
        yr.remove_resource_group(group)


@pytest.mark.parametrize("of", ["function", "instance"])
def test_25_a_generator_that_raises_gives_its_items_then_the_error_then_the_end(backend, of):
    one = Thing.invoke()
    with ended(one):
        items = numbers.invoke(3, "at last") if of == "function" else one.items.invoke(3, "at last")
        refs = list(items)
        assert len(refs) == 4
        assert yr.get(refs[:3]) == [0, 1, 2]
        with pytest.raises(ValueError, match="at last"):
            yr.get(refs[3])
        with pytest.raises(StopIteration):
            next(items)
        assert [yr.get(ref) for ref in one.items.invoke(2)] == [0, 1]
