"""Instances and functions in a session on this machine: their lives, names, state, variables, and ends."""

import logging
import os
import signal
import sys
import threading
import time
from pathlib import Path

import pytest

from functions_world import Thing, add, ended, env, numbers, opt, session, sleep, until
from toprope import functions as yr
from toprope.functions import context

pytestmark = pytest.mark.process


@pytest.fixture(scope="module", autouse=True)
def _session():
    with session("local", yr.Config(num_cpus=8, recycle_time=0.5, custom_resources={"ssd": 2}, ns="mine")):
        yield


@yr.instance
class Life:
    """Writes down what happens to it."""

    def __init__(self, path, fail=""):
        self.path = path
        self.note("made ")
        if fail == "crash":
            os.kill(os.getpid(), signal.SIGKILL)
        if fail == "hang":
            time.sleep(600)
        if fail:
            raise KeyError(fail)
        self.number = 0

    def note(self, text):
        with open(self.path, "a") as file:
            file.write(text)

    def pid(self):
        return os.getpid()

    def count(self, save=False):
        self.number += 1
        if save:
            yr.save_state()
        return self.number

    def crash_once(self, number):
        self.note(f"run{number} ")
        if self.number == 0 and not Path(self.path + ".crashed").exists():
            Path(self.path + ".crashed").touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return number

    def items_and_crash(self):
        yield 1
        time.sleep(0.1)
        os.kill(os.getpid(), signal.SIGKILL)

    def back(self):
        yr.load_state()
        return self.number

    def sleep(self, seconds):
        time.sleep(seconds)
        return "slept"

    def leave(self, how=None):
        yr.exit() if how is None else sys.exit(how)

    def where(self):
        return os.getcwd()

    def __yr_shutdown__(self, seconds):
        self.note(f"hook{seconds:g} ")
        if os.environ.get("BAD_HOOK"):
            raise ValueError("in the hook")


def text(path: Path) -> str:
    return path.read_text() if path.exists() else ""


def free(key: str) -> float:
    (node,) = yr.resources()
    return node["allocatable"][key]


# Beginnings


def test_creation_returns_at_once_and_what_goes_wrong_is_told_with_a_result(tmp_path):
    one = Life.invoke(str(tmp_path / "a"), "why")
    for _ in range(2):
        with pytest.raises(KeyError, match="why") as caught:
            yr.get(one.pid.invoke())
        assert isinstance(caught.value, yr.YRInvokeError)
        assert "in __init__" in caught.value.traceback_str
    assert not one.is_activate()
    crashed = Life.invoke(str(tmp_path / "b"), "crash")
    with pytest.raises(yr.YRequestError, match=r"exited: its process was killed by SIGKILL") as caught:
        yr.get(crashed.pid.invoke())
    assert caught.value.code == 1007
    assert until(lambda: free("CPU") == 8000)


def test_a_constructor_that_hangs_ends_with_its_time_of_grace(tmp_path):
    hung = Life.options(opt(1, custom_extensions={"GRACEFUL_SHUTDOWN_TIME": "0.2"})).invoke(str(tmp_path / "a"), "hang")
    assert until(lambda: text(tmp_path / "a") == "made ")
    with pytest.raises(yr.YRTimeoutError, match=r"instance-\d+ \(its constructor runs\) had not answered"):
        yr.get(hung.pid.invoke(), 0.2)
    waiting = hung.pid.invoke()
    begin = time.monotonic()
    hung.terminate()
    assert time.monotonic() - begin < 5
    with pytest.raises(yr.YRError):
        waiting.get(5)
    assert until(lambda: free("NPU/910B4") == 2)


def test_an_instance_that_ends_before_it_has_begun_is_ended():
    for _ in range(3):
        one = Thing.options(opt(custom_extensions={"GRACEFUL_SHUTDOWN_TIME": "0"})).invoke()
        one.terminate()
        assert not one.is_activate()
    holder = Thing.options(opt(2)).invoke()
    with ended(holder):
        waiting = Thing.options(opt(1)).invoke()
        call = waiting.pid.invoke()
        waiting.terminate()
        with pytest.raises(RuntimeError, match="this instance is terminated"):
            call.get(5)
    assert until(lambda: free("CPU") == 8000)


def test_a_folder_that_is_not_there_is_an_error_and_nothing_runs_elsewhere(tmp_path):
    """A function ran once in another folder, and without its cards, where its worker could not be set up."""
    missing = {"working_dir": str(tmp_path / "none")}
    one = Life.options(opt(runtime_env=missing)).invoke(str(tmp_path / "a"))
    with pytest.raises(FileNotFoundError, match="none"):
        yr.get(one.pid.invoke())
    assert text(tmp_path / "a") == ""

    @yr.invoke
    def touch(path):
        Path(path).touch()

    call = touch.options(opt(runtime_env=missing)).invoke(str(tmp_path / "b"))
    with pytest.raises(FileNotFoundError, match="none"):
        call.get(20)
    assert not (tmp_path / "b").exists()


def test_folder_and_variables_are_the_instances_own(tmp_path, monkeypatch):
    one = Life.options(opt(runtime_env={"working_dir": str(tmp_path), "env_vars": {"A": "1", "B": "1"}},
                           env_vars={"B": "2"})).invoke("a")  # fmt: skip
    with ended(one):
        assert yr.get(one.where.invoke()) == str(tmp_path)
        assert text(tmp_path / "a") == "made "
    two = Thing.options(opt(env_vars={"A": "1", "B": "2"})).invoke()
    with ended(two):
        assert yr.get(two.env.invoke("A", "B")) == ["1", "2"]
    assert yr.get(env.invoke("A", "B")) == [None, None]


def test_a_variable_that_is_no_text_is_an_error():
    one = Thing.options(opt(env_vars={"A": 1})).invoke()
    with pytest.raises(TypeError, match="str expected"):
        yr.get(one.pid.invoke())


# Names


def test_names_with_hyphens_and_namespaces_are_listed_as_they_are():
    first = Thing.options(opt(name="a-b-c")).invoke()
    second = Thing.options(opt(name="x-y", namespace="other")).invoke()
    third = Thing.options(name="z", namespace="").invoke()
    with ended(first, second, third):
        assert sorted(yr.list_named_instances()) == ["a-b-c", "z"]
        assert sorted(yr.list_named_instances(True), key=str) == sorted([
            {"namespace": "mine", "name": "a-b-c"}, {"namespace": "other", "name": "x-y"},
            {"namespace": "mine", "name": "z"},
        ], key=str)  # fmt: skip
        assert first.instance_id == "mine-a-b-c"
        assert yr.get_instance("a-b-c") == first
        assert yr.get_instance("x-y", "other") == second
        assert Thing.get_instance("z") == third
    assert yr.list_named_instances(True) == []


def test_a_name_is_waited_for():
    found = []
    thread = threading.Thread(target=lambda: found.append(yr.get_instance("late", timeout=20)))
    thread.start()
    time.sleep(0.1)
    one = Thing.options(opt(name="late")).invoke()
    with ended(one):
        thread.join(60)
        assert found == [one]
        begin = time.monotonic()
        with pytest.raises(TimeoutError, match="failed to get instance: mine-none by name") as caught:
            yr.get_instance("none", timeout=0.2)
        assert isinstance(caught.value, RuntimeError)
        assert 0.2 <= time.monotonic() - begin < 5
    for wrong in ((3,), ("a", 3), ("a", "", -1), ("a", "", "1")):
        with pytest.raises(TypeError):
            yr.get_instance(*wrong)


def test_a_name_is_free_again_after_its_instance():
    first = Thing.options(opt(name="again")).invoke(1)
    pid = yr.get(first.pid.invoke())
    first.terminate()
    second = Thing.options(opt(name="again")).invoke(2)
    with ended(second):
        assert yr.get(second.add.invoke(0)) == 2
        assert yr.get(second.pid.invoke()) != pid
        yr.kill_instance(second.instance_id)
        with pytest.raises(RuntimeError, match="this instance is terminated"):
            yr.get(second.pid.invoke())


def test_get_if_exists_needs_a_name():
    with pytest.raises(ValueError, match="The actor name must be specified"):
        yr.get(Thing.options(opt(get_if_exists=True)).invoke().pid.invoke())


def test_a_detached_instance_ends_with_this_program_and_that_is_said(caplog):
    with caplog.at_level(logging.WARNING, "toprope"):
        one = Thing.options(name="stays", lifetime="detached").invoke()
    with ended(one):
        assert "it ends with this program" in caplog.text
        assert yr.get(yr.get_instance("stays").pid.invoke()) == yr.get(one.pid.invoke())


# State


def test_a_class_with_slots_is_saved_and_brought_back():
    @yr.instance
    class Slots:
        __slots__ = ("number",)

        def __init__(self):
            self.number = 1

        def change(self):
            yr.save_state()
            self.number = 5
            yr.load_state()
            return self.number

    one = Slots.invoke()
    with ended(one):
        assert yr.get(one.change.invoke()) == 1


def test_calls_that_a_crash_interrupts_run_again_in_their_order(tmp_path):
    path = tmp_path / "a"
    one = Life.options(opt(recover_retry_times=1)).invoke(str(path))
    with ended(one):
        assert yr.get([one.crash_once.invoke(number) for number in range(4)], 60) == [0, 1, 2, 3]
        assert text(path) == "made run0 run0 run1 run2 run3 "


def test_lives_run_out(tmp_path):
    one = Life.options(opt(1, recover_retry_times=1)).invoke(str(tmp_path / "a"))
    with ended(one):
        for life in range(2):
            os.kill(yr.get(one.pid.invoke(), 60), signal.SIGKILL)
            if life == 0:
                assert until(lambda: free("NPU/910B4") == 1)
        with pytest.raises(yr.YRequestError, match="SIGKILL"):
            yr.get(one.pid.invoke())
        assert until(lambda: free("NPU/910B4") == 2)
        assert text(tmp_path / "a") == "made "


def test_a_generator_whose_instance_crashes_ends_with_that(tmp_path):
    for options in (opt(), opt(recover_retry_times=1)):
        one = Life.options(options).invoke(str(tmp_path / "a"))
        with ended(one):
            first, second = one.items_and_crash.invoke()
            assert first.get() == 1
            with pytest.raises(yr.YRequestError, match="SIGKILL"):
                second.get()


def test_state_is_of_instances_alone():
    @yr.invoke
    def save():
        yr.save_state()

    for call in (save.invoke().get, yr.save_state, yr.load_state):
        with pytest.raises(RuntimeError, match="is only supported on cloud with posix api"):
            call()


# Ends


@pytest.mark.parametrize("how", [None, 3])
@pytest.mark.parametrize("concurrency", [1, 4])
def test_an_instance_that_leaves_is_gone_and_calls_no_hook(tmp_path, how, concurrency):
    one = Life.options(opt(1, concurrency=concurrency)).invoke(str(tmp_path / "a"))
    with ended(one):
        with pytest.raises(yr.YRError):
            yr.get(one.leave.invoke(how), 60)
        with pytest.raises(yr.YRequestError, match=f"exit status {how or 0}") as caught:
            yr.get(one.pid.invoke(), 60)
        assert caught.value.code == 1007
        assert until(lambda: free("NPU/910B4") == 2)
    assert text(tmp_path / "a") == "made "


def test_who_leaves_by_itself_does_not_come_back(tmp_path):
    one = Life.options(opt(recover_retry_times=3)).invoke(str(tmp_path / "a"))
    with ended(one):
        with pytest.raises(yr.YRError):
            yr.get(one.leave.invoke(), 60)
        with pytest.raises(yr.YRequestError, match="exit status 0"):
            yr.get(one.pid.invoke(), 60)


@pytest.mark.parametrize("concurrency", [1, 4])
def test_the_hook_is_called_on_terminate_and_sigterm_with_its_time(tmp_path, concurrency):
    grace = {"GRACEFUL_SHUTDOWN_TIME": "7"}
    one, two = (
        Life.options(opt(concurrency=concurrency, custom_extensions=grace)).invoke(str(tmp_path / name))
        for name in "ab"
    )
    with ended(one, two):
        os.kill(yr.get(two.pid.invoke()), signal.SIGTERM)
        yr.get(one.pid.invoke())
        one.terminate(is_sync=True)
        assert text(tmp_path / "a") == "made hook7 "
        one.terminate()
        assert until(lambda: text(tmp_path / "b") == "made hook30 ")
        with pytest.raises(yr.YRequestError, match="exit status 143"):
            yr.get(two.pid.invoke(), 60)


def test_a_hook_that_raises_ends_the_instance_all_the_same(tmp_path):
    one = Life.options(opt(env_vars={"BAD_HOOK": "1"})).invoke(str(tmp_path / "a"))
    yr.get(one.pid.invoke())
    one.terminate()
    assert text(tmp_path / "a") == "made hook30 "
    assert not one.is_activate()


def test_an_end_lets_calls_that_were_sent_finish_and_has_a_limit(tmp_path):
    one = Life.invoke(str(tmp_path / "a"))
    yr.get(one.pid.invoke())  # calls are sent from now on
    call = one.sleep.invoke(0.3)
    one.terminate()
    assert call.get(5) == "slept"
    two = Life.options(opt(custom_extensions={"GRACEFUL_SHUTDOWN_TIME": "0.3"})).invoke(str(tmp_path / "b"))
    yr.get(two.pid.invoke())
    call = two.sleep.invoke(60)
    begin = time.monotonic()
    two.terminate()
    assert time.monotonic() - begin < 5
    with pytest.raises(RuntimeError):
        call.get(5)
    assert text(tmp_path / "b") == "made "


def test_ends_seen_through_other_handles():
    one = Thing.options(opt(name="shared")).invoke()
    other = yr.get_instance("shared")
    assert other.is_activate()
    one.terminate()
    assert not one.is_activate()
    assert not other.is_activate()
    with pytest.raises(RuntimeError, match="this instance is terminated"):
        one.pid.invoke()
    with pytest.raises(RuntimeError, match="this instance is terminated"):
        yr.get(other.pid.invoke())


# Functions


def test_generators_run_again_only_while_nothing_of_them_was_given(tmp_path):
    @yr.invoke
    def items(path, given):
        with open(path, "a") as file:
            file.write("x")
        if given:
            yield given
        if os.path.getsize(path) < 3:
            raise ValueError("not yet")
        yield "last"

    for given, result in ((0, ["last"]), (1, [1, "ValueError"])):
        path = str(tmp_path / f"runs{given}")
        got = []
        for ref in items.options(opt(retry_times=5)).invoke(path, given):
            try:
                got.append(ref.get())
            except ValueError:
                got.append("ValueError")
        assert got == result
        assert text(Path(path)) == ("x" if given else "xxx")


def test_a_function_whose_worker_dies_runs_again_or_says_so(tmp_path):
    @yr.invoke
    def die(path):
        with open(path, "a") as file:
            file.write("x")
        if os.path.getsize(path) < 2:
            os.kill(os.getpid(), signal.SIGKILL)
        return "alive"

    with pytest.raises(yr.YRequestError, match="a function exited: its process was killed by SIGKILL") as caught:
        die.invoke(str(tmp_path / "a")).get(20)
    assert caught.value.code == 1007
    assert die.options(opt(retry_times=1)).invoke(str(tmp_path / "b")).get(20) == "alive"


def test_functions_have_cards_of_their_own_and_give_them_back(tmp_path):
    mask = "ASCEND_RT_VISIBLE_DEVICES"

    @yr.invoke
    def card(folder, number):
        Path(folder, str(number)).touch()
        while len(list(Path(folder).iterdir())) < 2:  # until both run, or one worker might do both
            time.sleep(0.01)
        return os.environ.get("ASCEND_RT_VISIBLE_DEVICES")

    card.options(opt(1))
    assert sorted(yr.get([card.invoke(tmp_path, number) for number in range(2)], 60)) == ["0", "1"]
    assert until(lambda: free("NPU/910B4") == 2)
    assert yr.get(env.invoke(mask)) == [None]
    short = card.options(opt(3, schedule_timeout_ms=100)).invoke(tmp_path, 3)
    with pytest.raises(yr.YRequestError, match="card count: Not Enough") as caught:
        short.get(10)
    assert caught.value.code == 1002


def test_idle_workers_of_functions_make_room_for_instances():
    assert yr.get([sleep.invoke(0.05, number) for number in range(16)]) == list(range(16))  # all cores
    begin = time.monotonic()
    things = [Thing.options(opt(cpu=4000, schedule_timeout_ms=5000)).invoke() for _ in range(2)]
    with ended(*things):
        assert all(yr.get([each.pid.invoke() for each in things]))
    assert time.monotonic() - begin < 5


def test_idle_workers_of_functions_make_room_for_others_of_other_options():
    assert yr.get([sleep.invoke(0.05, number) for number in range(16)]) == list(range(16))
    marked = env.options(opt(env_vars={"MARK": "1"}, schedule_timeout_ms=5000)).invoke("MARK")
    try:
        assert marked.get(5) == ["1"]
    finally:
        env.options(opt())


# The rest


def test_pairs_are_kept_for_all(tmp_path):
    @yr.instance
    class Pairs:
        def use(self):
            yr.kv_set("theirs", b"2")
            return yr.kv_get("ours")

    one = Pairs.invoke()
    with ended(one):
        yr.kv_set("ours", b"1")
        assert yr.get(one.use.invoke()) == b"1"
        assert yr.kv_get(["ours", "none", "theirs"], 0) == [b"1", None, b"2"]
        assert yr.kv_read("ours") == b"1"
        yr.kv_write("ours", bytearray(b"3"))
        assert yr.kv_get("ours") == b"3"
        with pytest.raises(yr.YRRuntimeError, match="ours exists"):
            yr.kv_write("ours", b"4", yr.ExistenceOpt.NX)
        assert yr.kv_del(["ours", "none"]) == ["none"]
        assert yr.kv_del("theirs") == []
        with pytest.raises(yr.YRRuntimeError, match="all failed: there is no key ours") as caught:
            yr.kv_get("ours", 0.1)
        assert caught.value.code == 4005
        with pytest.raises(TypeError, match="invalid value type"):
            yr.kv_set("ours", "text")


def test_resources_tell_what_is_free():
    assert until(lambda: free("CPU") == 8000)
    (node,) = yr.resources()
    assert node["status"] == 0
    assert node["capacity"] == node["allocatable"]
    assert (node["capacity"]["CPU"], node["capacity"]["ssd"], node["capacity"]["NPU/910B4"]) == (8000, 2, 2)
    assert node["labels"]["NODE_ID"] == node["id"]
    one = Thing.options(opt(custom_resources={"NPU/.+/count": 2, "ssd": 0.5}, cpu=1500, memory=700)).invoke()
    with ended(one):
        yr.get(one.pid.invoke())
        (used,) = yr.resources()
        assert used["capacity"] == node["capacity"]
        gone = {key: amount - used["allocatable"][key] for key, amount in node["allocatable"].items()}
        assert gone == {"CPU": 1500, "Memory": 700, "ssd": 0.5, "NPU/910B4": 2}
    assert until(lambda: yr.resources() == [node])


def test_what_can_never_be_had_here_is_said_at_once(caplog):
    @yr.invoke
    def function():
        pass

    with caplog.at_level(logging.WARNING, "toprope"):
        one = Thing.options(opt(3, schedule_timeout_ms=300)).invoke()
        assert f"instance {one.instance_id} requests what this machine does not have: " in caplog.text
        assert "card count: Not Enough" in caplog.text
        two = function.options(opt(custom_resources={"GPU/.+/count": 1}, schedule_timeout_ms=300)).invoke()
        assert "a function requests what this machine does not have: " in caplog.text
        caplog.clear()
        both = Thing.options(opt(2)).invoke()
        with ended(both):
            three = Thing.options(opt(2, schedule_timeout_ms=100)).invoke()
            for call in (one.pid.invoke(), two, three.pid.invoke()):
                with pytest.raises(yr.YRequestError, match="cannot be scheduled within"):
                    call.get(20)
        assert caplog.text == ""  # what is only held by others is waited for in silence


def test_a_second_session_is_refused_and_the_first_goes_on():
    with pytest.raises(RuntimeError, match=r"yr\.init cannot be called twice"):
        yr.init()
    assert yr.is_initialized()
    assert yr.get(add.invoke(1, 2)) == 3


@pytest.mark.slow
def test_after_its_end_a_session_is_of_no_use_and_a_new_one_is(tmp_path):
    """The last test of this module: it ends the session of all others."""
    path = tmp_path / "a"
    one = Life.options(opt(1)).invoke(str(path))
    ref, pending, large = add.invoke(1), one.sleep.invoke(0.2), yr.put(b"x" * 1_000_000)
    items = numbers.invoke(3)
    assert ref.get() == 1
    assert until(lambda: text(path) == "made ")
    callback = []
    sleep.invoke(60).on_complete(lambda each: callback.append(each.exception()))
    yr.finalize()
    yr.finalize()
    assert text(path) == "made hook30 "
    assert not yr.is_initialized()
    for call in (
        lambda: yr.get(ref), lambda: ref.get(), lambda: large.get(), lambda: pending.get(5), lambda: yr.put(1),
        lambda: add.invoke(1), lambda: one.pid.invoke(), Thing.invoke, yr.resources,
        lambda: yr.get(list(items)), lambda: yr.kv_get("a"), lambda: yr.wait([ref]), lambda: yr.cancel(ref),
    ):  # fmt: skip
        with pytest.raises(yr.YRRuntimeError, match="already finalized") as caught:
            call()
        assert caught.value.code == 9000
    assert until(lambda: len(callback) == 1)
    yr.init(yr.Config(num_cpus=2))
    assert yr.get(add.invoke(1, 2)) == 3
    with pytest.raises(yr.YRRuntimeError, match="an object of a session that has ended"):
        add.invoke(ref)
    with pytest.raises(yr.YRRuntimeError):
        ref.get()
    with pytest.raises(yr.YRequestError, match="not found"):
        yr.get(one.pid.invoke())
    assert context.backend().job_id


@pytest.mark.parametrize("concurrency", [None, 4])
def test_sigterm_ends_an_instance_wherever_it_is_in_its_work(tmp_path, concurrency):
    """Right after an answer a worker is still at work: the end was lost there, or waited for a thread for ever."""
    for number in range(12):
        one = Life.options(opt(concurrency=concurrency)).invoke(str(tmp_path / str(number)))
        with ended(one):
            os.kill(yr.get(one.pid.invoke()), signal.SIGTERM)
            with pytest.raises(yr.YRequestError, match="exit status 143"):
                yr.get(one.pid.invoke(), 60)
