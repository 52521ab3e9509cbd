"""The life cycle rule by rule, by hand; test_functions_lifecycle.py tries every order of events."""

import pytest

from lifecycle_calls import ASKED, CRASH, Call, Process
from toprope.functions.exceptions import YRequestError, YRInvokeError, YRRuntimeError
from toprope.functions.lifecycle import (
    GRACE,
    Do,
    End,
    Fail,
    Gone,
    GroupLife,
    Kill,
    Life,
    PoolLife,
    Stage,
    State,
    admitted,
    freed,
    grace_of,
    is_detached,
    terminated,
    too_late,
)  # fmt: skip
from toprope.functions.options import GroupOptions, InvokeOptions
from toprope.functions.scheduling.requests import Request

pytestmark = pytest.mark.pure


def fails(commands, *calls):
    """The error that a command has these calls raise."""
    (error,) = [each.error for each in commands if isinstance(each, Fail) and [*each.calls] == [*calls]]
    return error


def test_an_instance_lives_from_its_grant_to_its_end():
    life, first, second = Life(), Call(0), Call(1)
    assert life.submit(first) == []
    assert life.granted() == [Do.START]
    assert life.state is State.STARTING
    assert life.granted() == [Do.GIVE_BACK]  # a second time is too late
    assert life.constructed(b"one") == [Do.SEND]
    assert life.constructed(b"two") == []
    assert (life.state, life.saved) == (State.READY, b"one")
    assert life.submit(second) == [Do.SEND]
    commands = life.end(ASKED)
    assert fails(commands, first, second) is ASKED
    assert commands[-1] is Do.STOP
    assert (life.state, life.is_over, [*life.queue]) == (State.ENDING, True, [])
    assert life.end(CRASH) == []
    assert fails(life.submit(first), first) is ASKED
    assert life.lost([], CRASH, may_return=True) == [Fail([], CRASH), Gone(ASKED, False), Do.FREE]
    assert life.state is State.DEAD
    assert life.fail(CRASH) == []
    assert fails(life.lost([second], CRASH, may_return=True), second) is CRASH


def test_an_instance_that_waits_for_resources_gives_up_its_request():
    late, asked, refused = Life(), Life(), Life()
    expected = [Do.WITHDRAW, Gone(CRASH, True), Do.FREE]
    assert late.late(CRASH) == asked.end(CRASH) == refused.fail(CRASH) == expected
    assert late.late(CRASH) == []


def test_a_time_limit_for_resources_does_not_end_what_has_them():
    life = Life()
    life.granted()
    assert life.late(CRASH) == []
    life.constructed()
    assert life.late(CRASH) == []
    assert life.state is State.READY


def test_an_instance_whose_constructor_raises_ends_its_process():
    life = Life()
    life.granted()
    assert life.fail(CRASH) == [Gone(CRASH, True), Do.STOP]
    other = Life()
    other.granted()
    assert other.not_started(CRASH) == [Gone(CRASH, True), Do.FREE]


def test_an_instance_returns_as_often_as_it_has_lives_with_its_first_checkpoint_or_a_newer():
    life, done, partly, queued = Life(lives=1), Call(0), Call(1, items=True), Call(2)
    life.granted()
    life.constructed(b"first")
    life.saved = b"newer"
    life.queue.append(queued)
    commands = life.lost([done, partly], CRASH, may_return=True)
    assert fails(commands, partly) is CRASH  # a part of its result has been delivered
    assert commands[-1] is Do.START
    assert [*life.queue] == [done, queued]
    assert (life.state, life.lives) == (State.STARTING, 0)
    assert life.constructed(b"third") == [Do.SEND]
    assert life.saved == b"newer"
    life.queue.clear()
    commands = life.lost([done], CRASH, may_return=True)
    assert (life.state, life.lives) == (State.DEAD, 0)
    assert fails(commands, done) is CRASH


@pytest.mark.parametrize(("lives", "saved", "may_return"), [(0, b"", True), (1, None, True), (1, b"", False)])
def test_an_instance_does_not_return_without_a_life_a_checkpoint_or_a_session(lives, saved, may_return):
    life = Life(lives=lives)
    life.granted()
    life.constructed(saved)
    assert life.lost([], CRASH, may_return=may_return) == [Fail([], CRASH), Gone(CRASH, True), Do.FREE]


def test_an_instance_whose_end_was_asked_for_does_not_return():
    """Its process may be killed while its hook runs."""
    life, call = Life(lives=1), Call(0)
    life.granted()
    life.constructed(b"state")
    assert life.end(CRASH) == [Do.STOP]
    assert Do.START not in life.lost([call], RuntimeError("killed"), may_return=True)
    assert life.state is State.DEAD
    assert life.error is CRASH
    assert life.lives == 1


def test_an_instance_without_handles_ends_once_its_calls_have():
    life = Life()
    life.granted()
    assert life.unused(is_busy=False) == []  # its constructor runs
    life.constructed()
    assert life.unused(is_busy=True) == []
    life.queue.append(Call(0))
    assert life.unused(is_busy=False) == []
    life.queue.clear()
    assert life.unused(is_busy=False) == [Do.STOP]
    assert (str(life.error), life.error.code) == (str(freed()), 1007)
    assert life.unused(is_busy=False) == []
    assert Life().unused(is_busy=False)[0] is Do.WITHDRAW


def group(members=2, **options):
    made = GroupLife("g")
    for number in range(members):
        made.join(number)
    return made, GroupOptions(**options)


def test_a_group_runs_once_all_its_members_are_up():
    life, options = group()
    assert life.up(0) == []  # before it has begun
    assert life.granted() == []
    assert life.start(options) == [Do.PLACE]
    assert life.options is options
    assert life.granted() == [Do.LAUNCH]
    assert life.granted() == []
    assert life.up(0) == []  # a second time is no other member
    assert life.up(1) == [Do.READY]
    assert life.stage is Stage.RUNNING
    with pytest.raises(YRequestError, match="group g runs, nobody can join it") as caught:
        life.join(2)
    assert caught.value.code == 1010
    with pytest.raises(YRequestError, match="group g cannot be started: it runs"):
        life.start(options)


def test_a_member_that_went_before_the_others_came_up_is_not_counted():
    life, options = group()
    life.start(options)
    life.granted()
    life.up(0)
    assert life.gone(0, "first", Gone(ASKED, False)) == []
    assert life.up(1) == []
    assert life.up(0) == [Do.READY]


@pytest.mark.parametrize("timeout", [-0.5, -2])
def test_a_group_with_a_time_limit_that_cannot_be_is_refused(timeout):
    life, options = group(timeout=timeout)
    with pytest.raises(ValueError, match=f"invalid timeout {timeout} in GroupOptions"):
        life.start(options)
    assert life.start(GroupOptions(timeout=0)) == [Do.PLACE]


def test_a_group_of_nobody_and_a_strategy_that_there_is_not_are_refused():
    with pytest.raises(YRequestError, match="it has no members") as caught:
        GroupLife("g").start(GroupOptions())
    assert caught.value.code == 1010
    life, options = group(strategy="SIDEWAYS")
    with pytest.raises(ValueError, match="SIDEWAYS"):
        life.start(options)
    assert life.stage is Stage.GATHERING


def test_a_group_whose_members_have_no_room_in_time_fails():
    life, options = group(timeout=7)
    assert life.late("why") == []
    life.start(options)
    (end,) = life.late("no room")
    assert end == End(life.error, failed=True)
    assert life.error.message == "group g failed to start: it cannot be scheduled within 7 s. no room"
    assert life.error.code == 1010
    assert life.late("no room") == []


def test_a_group_whose_member_crashes_before_it_runs_fails():
    life, options = group()
    life.start(options)
    (end,) = life.gone(1, "second", Gone(CRASH, True))
    assert (end.failed, life.stage) == (True, Stage.ENDED)
    assert end.error.message == "group g failed to start: instance second: the process was killed"
    assert life.gone(0, "first", Gone(ASKED, False)) == []


def test_a_group_whose_member_was_refused_before_its_start_fails_at_its_start_with_the_first_error():
    life, options = group()
    assert life.gone(0, "first", Gone(CRASH, True)) == []
    assert life.gone(1, "second", Gone(ASKED, True)) == []
    assert life.freed() == []  # its name is kept until then
    (end,) = life.start(options)
    assert end.failed
    assert end.error.message == "group g failed to start: the process was killed"
    assert life.freed() == [Do.DISSOLVE]


@pytest.mark.parametrize("together", [True, False])
def test_members_of_a_group_that_runs_end_together_if_asked_to(together):
    life, options = group(same_lifecycle=together)
    life.start(options)
    life.granted()
    life.up(0)
    life.up(1)
    assert life.gone(0, "first", Gone(ASKED, False)) == []  # it was asked to end
    commands = life.gone(1, "second", Gone(CRASH, True))
    assert len(commands) == together
    for end in commands:
        assert (end.error.code, end.error.module_code, end.failed) == (1011, 22, False)
        assert end.error.message == "instance second of group g has exited, and the members of the group end together"
    assert life.stage is (Stage.ENDED if together else Stage.RUNNING)
    assert life.gone(1, "second", Gone(CRASH, True)) == [] or not together


def test_a_group_that_is_ended_ends_its_members():
    life, _ = group()
    (end,) = life.terminate()
    assert (end.failed, str(end.error)) == (False, str(terminated()))
    assert life.freed() == [Do.DISSOLVE]
    assert life.stage is Stage.ENDED


def busy_worker(pool, calls=0):
    worker = Process()
    worker.calls = [Call(-1)] * calls
    pool.workers[worker] = None
    pool.up.add(worker)
    return worker


def test_a_pool_asks_for_as_many_workers_as_its_calls_fill():
    pool = PoolLife(at_once=2, most=3)
    assert pool.wanted == 0
    for number in range(3):
        assert pool.submit(Call(number)) == [Do.SEND]
    assert pool.wanted == 2
    pool.asked.append("first")
    assert pool.wanted == 1
    pool.workers[Process()] = None  # on its way
    assert pool.wanted == 0
    for number in range(20):
        pool.submit(Call(number))
    assert pool.wanted == 1  # three at most
    pool.asked += ["second", "third"]
    assert pool.wanted == 0
    pool.queue.clear()
    pool.asked.clear()
    busy_worker(pool)
    assert pool.wanted == 0


def test_a_call_goes_to_the_worker_that_was_idle_last_or_to_one_with_room():
    pool = PoolLife(at_once=2)
    first, second = busy_worker(pool), busy_worker(pool)
    pool.idle.extend([first, second])
    calls = [Call(number) for number in range(3)]
    for call in calls:
        pool.submit(call)
    assert pool.next_call() == (second, calls[0])
    second.calls.append(calls[0])
    assert pool.next_call() == (first, calls[1])
    first.calls += [calls[1], Call(9)]
    assert pool.next_call() == (second, calls[2])
    assert pool.next_call() is None


def test_a_worker_that_ends_or_is_not_set_up_gets_no_call():
    pool = PoolLife(at_once=2)
    ends, new = busy_worker(pool), busy_worker(pool, calls=1)
    ends.is_open = False
    pool.idle.append(ends)
    pool.up.discard(new)
    pool.submit(Call(0))
    assert pool.next_call() is None
    assert pool.next_call_for(ends) is None
    assert not pool.idle
    single = PoolLife(at_once=1)
    busy_worker(single)  # neither idle nor with room for a second call
    single.submit(Call(0))
    assert single.next_call() is None


def test_a_worker_that_is_done_takes_the_next_call_or_is_idle():
    pool = PoolLife(at_once=2)
    worker, call = busy_worker(pool, calls=1), Call(0)
    assert pool.next_call_for(worker) is None  # one call more would fit, and there is none
    assert not pool.idle
    pool.submit(call)
    assert pool.next_call_for(worker) is call
    pool.submit(call)
    worker.calls.append(call)
    assert pool.next_call_for(worker) is None  # it is full
    worker.calls.clear()
    pool.queue.clear()
    assert pool.next_call_for(worker) is None
    assert [*pool.idle] == [worker]


def test_a_worker_that_nobody_needs_any_more_is_not_started():
    pool = PoolLife(asked=["first", "second", "third"])
    assert pool.granted("second") == [Do.GIVE_BACK]
    pool.submit(Call(0))
    assert pool.granted("third") == [Do.START]
    assert pool.asked == ["first"]


def test_calls_fail_for_want_of_a_worker_only_where_there_is_none():
    pool, call = PoolLife(asked=["first", "second", "third"]), Call(0)
    assert not pool.late("first")  # nobody waits
    pool.submit(call)
    assert pool.late("second")
    assert fails(pool.refused(CRASH), call) is CRASH
    assert pool.refused(CRASH) == []
    pool.submit(call)
    busy_worker(pool)
    assert not pool.late("third")
    assert pool.asked == []


@pytest.mark.parametrize("code", [1003, 1007, 1009, 2002, 3001, 3002, 3008, 4202, 4203, 4204])
def test_a_call_runs_again_after_errors_that_may_pass(code):
    pool, call = PoolLife(), Call(0, tries=2)
    assert pool.failed(call, YRRuntimeError("", code)) == [Do.SEND]
    assert (call.tries, [*pool.queue]) == (1, [call])


@pytest.mark.parametrize("error", [YRRuntimeError("", 1001), YRRuntimeError("", 1008), ValueError("2002")])
def test_a_call_does_not_run_again_after_errors_that_stay(error):
    pool, call = PoolLife(), Call(0, tries=2)
    assert fails(pool.failed(call, error), call) is error
    assert not pool.queue


def test_a_call_runs_again_after_an_error_of_its_own_while_it_has_tries():
    pool, call, error = PoolLife(), Call(0, tries=1), YRInvokeError(ValueError("mine"))
    assert pool.failed(call, error) == [Do.SEND]
    assert fails(pool.failed(call, error), call) is error
    begun, cancelled = Call(1, tries=1, items=True), Call(2, tries=1)
    cancelled.cancelled = True
    assert fails(pool.failed(begun, error), begun) is error
    assert fails(pool.failed(cancelled, error), cancelled) is error
    pool.close(CRASH)
    late = Call(3, tries=1)
    assert fails(pool.failed(late, error), late) is CRASH


def test_calls_of_a_lost_worker_run_elsewhere_first_unless_they_had_begun():
    pool, queued = PoolLife(), Call(9)
    worker = busy_worker(pool)
    pool.idle.append(worker)
    pool.submit(queued)
    begun, again, left, other = Call(0), Call(1, tries=1), Call(2), Call(3)
    gone = [Call(4), Call(5)]
    for call in (begun, again, left, other, *gone):
        call.process, call.cancelled = worker, call in gone
    commands = pool.lost(worker, [begun, again, gone[0]], [left, other, gone[1]], CRASH)
    assert fails(commands, begun) is CRASH
    assert [fails(commands, call).code for call in gone] == [3003, 3003]
    assert [*pool.queue] == [left, other, queued, again]
    assert (left.process, other.process) == (None, None)
    assert not pool.workers
    assert not pool.up
    assert not pool.idle
    assert (len(commands), commands.count(Do.SEND)) == (4, 1)


def test_calls_of_a_worker_that_is_lost_after_the_end_of_its_pool_raise_the_error_of_the_end():
    pool, begun, left = PoolLife(), Call(0, tries=1), Call(1)
    worker = busy_worker(pool)
    assert pool.close(ASKED) == [Do.WITHDRAW, Kill([worker])]
    commands = pool.lost(worker, [begun], [left], CRASH)
    assert fails(commands, begun) is ASKED
    assert fails(commands, left) is ASKED
    late = Call(2)
    assert fails(pool.submit(late), late) is ASKED
    assert not pool.queue


def test_a_cancelled_call_raises_at_once_unless_it_runs():
    pool, queued, running, elsewhere = PoolLife(), Call(0), Call(1), Call(2)
    pool.submit(queued)
    assert fails(pool.cancel(queued, force=False), queued).code == 3003
    assert not pool.queue
    assert pool.submit(queued) == []  # its arguments came after that
    running.process = busy_worker(pool)
    assert pool.cancel(running, force=False) == []
    assert pool.cancel(running, force=True) == [Kill([running.process])]
    assert running.cancelled
    assert fails(pool.cancel(elsewhere, force=True), elsewhere).code == 3003
    shared = PoolLife(at_once=2)
    running.process = busy_worker(shared)
    assert shared.cancel(running, force=True) == []  # others run in that worker


@pytest.mark.parametrize(("given", "seconds"), [
    (None, GRACE), ("", GRACE), ("soon", GRACE), ("-1", GRACE), ("0", 0.0), ("2.5", 2.5), ("600", 600.0),
])  # fmt: skip
def test_an_instance_has_the_time_to_end_that_it_was_given(given, seconds):
    extensions = {} if given is None else {"GRACEFUL_SHUTDOWN_TIME": given}
    assert grace_of(InvokeOptions(custom_extensions=extensions)) == seconds


def test_a_detached_instance_says_so():
    assert is_detached(InvokeOptions(custom_extensions={"lifecycle": "detached"}))
    assert not is_detached(InvokeOptions(custom_extensions={"lifecycle": "attached"}))
    assert not is_detached(InvokeOptions())


def test_errors_of_ends_have_the_vendors_codes():
    assert (freed().code, terminated().code) == (1007, 1007)
    error = too_late(30, "no room", 1002)
    assert (error.code, error.message) == (1002, "the instance cannot be scheduled within 30 ms. no room")


def test_a_request_is_what_the_options_ask_for_and_is_checked():
    seen = []
    options = InvokeOptions(cpu=700, memory=900, custom_resources={"ssd": 2.0})
    assert admitted(options, seen.append) == (Request(700, 900, (), {"ssd": 2.0}), None)
    assert seen == [Request(700, 900, (), {"ssd": 2.0})]


def refused(options, check=lambda request: None, **more):
    return admitted(options, check, **more)[1]


def test_a_request_that_cannot_be_is_refused_with_its_error():
    error = refused(InvokeOptions(cpu=1))
    assert (type(error), error.code) == (YRequestError, 1006)
    assert refused(InvokeOptions(custom_resources={"NPU/.+/HBM": 1.0})).message.count("do: ") == 1  # the advice, too
    error = refused(InvokeOptions(retry_times=-1))
    assert "invalid opts retry_times" in str(error)
    assert isinstance(refused(InvokeOptions(cpu="1")), TypeError)

    def check(request):
        raise NotImplementedError("no such card here")

    assert str(refused(InvokeOptions(), check)) == "no such card here"


@pytest.mark.parametrize(("name", "id", "is_refused"), [
    ("n", "x" * 64, False), ("n", "x" * 65, True), ("n", "ü" * 33, True), ("", "x" * 65, False),
])  # fmt: skip
def test_the_id_of_a_named_instance_has_64_bytes_at_most(name, id, is_refused):
    error = refused(InvokeOptions(name=name), id=id)
    assert (error is not None) == is_refused
    if error is not None:
        assert (error.code, error.module_code) == (1001, 10)
        assert f"size is {len(id.encode())}, exceeds the maximum length of 64 bytes" in error.message


def test_calls_in_order_exclude_coroutines_that_run_at_once():
    options = InvokeOptions(need_order=True)
    assert refused(options) is None
    assert "mutually exclusive" in str(refused(options, is_async=True))
