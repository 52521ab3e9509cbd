"""The life cycles (`functions.lifecycle`) as pure state machines, against every order of events; without processes.

Hypothesis chooses the orders. Single rules are in test_functions_lifecycle_rules.py.
"""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from lifecycle_calls import ASKED, CRASH, Call, Process
from toprope.functions.exceptions import YRequestError
from toprope.functions.lifecycle import Do, End, Fail, Gone, GroupLife, Kill, Life, PoolLife, Stage, State
from toprope.functions.options import GroupOptions

pytestmark = pytest.mark.pure

LONG = settings(stateful_step_count=60)
RARELY = st.sampled_from([False] * 7 + [True])
"""Whether an event that ends things happens: most runs are to get far."""


class Instances(RuleBasedStateMachine):
    """One instance, its resources, its processes and its calls, as a backend would have them."""

    @initialize(lives=st.integers(0, 2))
    def begin(self, lives):
        self.life = Life(lives=lives)
        self.lives = lives
        self.calls, self.sent_in_order = [], []
        self.process = None
        self.requested, self.held, self.freed, self.gone, self.starts = True, False, 0, 0, 0
        self.hangs = False  # whether a process was asked to end
        self.blocked = False  # whether the first call of the queue waits for an object

    def do(self, commands):
        for command in commands:
            match command:
                case Do.START:
                    assert self.process is None
                    assert self.held, "a process starts without resources"
                    self.process, self.starts, self.hangs = Process(), self.starts + 1, False
                case Do.GIVE_BACK:
                    assert self.life.state is not State.WAITING
                    self.held = False
                case Do.WITHDRAW:
                    self.requested = False
                case Do.SEND:
                    while self.life.state is State.READY and self.life.queue and not self.blocked:
                        call = self.life.queue.popleft()
                        call.runs += 1
                        assert call.number > self.process.last, "a process gets calls in another order"
                        self.process.last = call.number
                        self.process.calls.append(call)
                        self.sent_in_order.append(call.number)
                case Fail(calls, error):
                    for call in calls:
                        call.ends.append(error)
                case Do.STOP:
                    assert self.process is not None
                    self.hangs = True
                case Gone():
                    self.gone += 1
                case Do.FREE:
                    assert self.process is None, "resources are released while a process has them"
                    self.freed, self.held = self.freed + 1, False
                case _:
                    raise AssertionError(command)

    @precondition(lambda self: self.requested)
    @rule()
    def granted(self):
        self.requested, self.held = False, True
        self.do(self.life.granted())

    @precondition(lambda self: self.requested)
    @rule(happens=RARELY)
    def too_late(self, happens):
        if happens:
            self.do(self.life.late(CRASH))

    @precondition(lambda self: self.life.state is State.DEAD)
    @rule()
    def granted_although_withdrawn(self):
        assert self.life.granted() == [Do.GIVE_BACK]

    @precondition(lambda self: self.process is not None and not self.process.is_made)
    @rule(checkpoint=st.sampled_from([b"state", b"state", None]))
    def constructed(self, checkpoint):
        self.process.is_made, before = True, self.life.state
        self.do(self.life.constructed(checkpoint))
        assert self.life.state is (State.READY if before is State.STARTING else before)

    @rule()
    def an_object_is_waited_for(self):
        self.blocked = not self.blocked
        if not self.blocked:
            self.do([Do.SEND])

    @precondition(lambda self: self.process is not None and self.life.state is State.STARTING)
    @rule(happens=RARELY)
    def constructor_raises(self, happens):
        if happens:
            self.do(self.life.fail(CRASH))

    @precondition(lambda self: self.process is not None and self.life.state is State.STARTING)
    @rule(happens=RARELY)
    def no_process(self, happens):
        if happens:
            self.process = None
            self.do(self.life.not_started(CRASH))

    @rule(items=st.booleans())
    def call(self, items):
        call = Call(len(self.calls), items=items)
        self.calls.append(call)
        self.do(self.life.submit(call))

    @precondition(lambda self: self.process is not None and self.process.calls)
    @rule()
    def answered(self):
        self.process.calls.pop(0).ends.append("result")

    @rule(happens=RARELY)
    def end(self, happens):
        if happens:
            self.do(self.life.end(ASKED))

    @rule(is_busy=st.sampled_from([True] * 7 + [False]))
    def unused(self, is_busy):
        was, waiting = self.life.state, bool(self.life.queue)
        self.do(self.life.unused(is_busy=is_busy))
        assert self.life.state is was or not (is_busy or waiting)

    @precondition(lambda self: self.process is not None)
    @rule(may_return=st.sampled_from([True] * 7 + [False]))
    def lost(self, may_return):
        process, self.process = self.process, None
        over = self.life.is_over
        self.do(self.life.lost(process.calls, CRASH, may_return=may_return))
        if over or not may_return:
            assert self.process is None, "it came back though it was to end"

    @invariant()
    def every_call_has_one_end(self):
        for call in self.calls:
            assert len(call.ends) <= 1, call
            at = (call in self.life.queue) + (self.process is not None and call in self.process.calls) + len(call.ends)
            assert at == 1, f"{call} is in {at} places"

    @invariant()
    def calls_run_in_their_order_and_as_often_as_it_lives(self):
        first = list(dict.fromkeys(self.sent_in_order))
        assert first == sorted(first)
        assert all(call.runs <= self.lives + 1 for call in self.calls)
        assert self.starts <= self.lives + 1

    @invariant()
    def the_dead_hold_nothing(self):
        assert self.freed <= 1
        assert self.gone <= 1
        if self.life.state is State.DEAD:
            assert self.gone == 1
            assert not self.life.queue
            assert self.freed == (self.process is None)
            assert self.process is None or self.hangs, "a process is left that nobody ends"
        if self.life.state is State.ENDING:
            assert self.hangs
        assert self.life.is_over == (self.life.state in (State.ENDING, State.DEAD))
        if self.life.is_over:
            assert not self.requested or self.life.state is not State.DEAD


class Groups(RuleBasedStateMachine):
    """A group, whose members come up and end in any order."""

    @initialize(members=st.integers(1, 3), together=st.booleans())
    def begin(self, members, together):
        self.group = GroupLife("g", options=GroupOptions())
        self.together = together
        for number in range(members):
            self.group.join(number)
        self.members, self.alive, self.up = members, set(range(members)), set()
        self.placed = self.launched = self.ready = self.failed = self.dissolved = 0
        self.ended = None

    def do(self, commands):
        for command in commands:
            match command:
                case Do.PLACE:
                    self.placed += 1
                case Do.LAUNCH:
                    self.launched += 1
                case Do.READY:
                    assert len(self.up) == self.members
                    self.ready += 1
                case End(error, failed):
                    self.failed += failed
                    self.ended = error
                    for member in sorted(self.alive):
                        self.gone(member, crashed=self.group.stage is Stage.WAITING, error=error)
                    self.is_free()
                case Do.DISSOLVE:
                    assert not self.alive
                    self.dissolved += 1
                case _:
                    raise AssertionError(command)

    def gone(self, member, *, crashed, error=CRASH):
        self.alive.discard(member)
        self.do(self.group.gone(member, str(member), Gone(error, crashed)))
        self.is_free()

    def is_free(self):
        if not self.alive:
            self.do(self.group.freed())

    @precondition(lambda self: not self.dissolved)
    @rule(timeout=st.sampled_from([-1, 0, 5, -2]))
    def start(self, timeout):
        options, stage = GroupOptions(timeout=timeout, same_lifecycle=self.together), self.group.stage
        if timeout == -2:
            with pytest.raises(ValueError, match="invalid timeout -2"):
                self.group.start(options)
        elif stage is not Stage.GATHERING:
            with pytest.raises(YRequestError, match="cannot be started"):
                self.group.start(options)
        else:
            self.do(self.group.start(options))

    @rule()
    def granted(self):
        self.do(self.group.granted())

    @rule(happens=RARELY)
    def late(self, happens):
        if happens:
            self.do(self.group.late("no room"))

    @precondition(lambda self: self.launched and self.alive - self.up)
    @rule(which=st.integers(0, 2))
    def member_is_up(self, which):
        left = sorted(self.alive - self.up)
        member = left[which % len(left)]
        self.up.add(member)
        self.do(self.group.up(member))

    @precondition(lambda self: self.alive)
    @rule(which=st.integers(0, 2), crashed=st.booleans(), happens=RARELY)
    def member_ends(self, which, crashed, happens):
        if not happens:
            return
        stage, member = self.group.stage, sorted(self.alive)[which % len(self.alive)]
        self.gone(member, crashed=crashed)
        if crashed and stage in (Stage.WAITING, Stage.STARTING):
            assert self.failed == 1, "a member is missing, and its group starts"
        if crashed and stage is Stage.RUNNING:
            assert (self.ended is not None) == self.together

    @rule(happens=RARELY)
    def terminate(self, happens):
        if happens:
            self.do(self.group.terminate())

    @rule()
    def a_latecomer_is_refused(self):
        if self.group.stage is not Stage.GATHERING:
            with pytest.raises(YRequestError, match="nobody can join it"):
                self.group.join(9)

    @invariant()
    def all_or_none(self):
        assert max(self.placed, self.launched, self.ready, self.failed) <= 1
        assert self.launched <= self.placed
        assert self.ready <= self.launched
        assert not (self.ready and self.failed), "a group that ran has failed to start"
        if self.ready:
            assert self.launched
        if self.ended is not None:
            assert not self.alive
            assert self.dissolved


class Pools(RuleBasedStateMachine):
    """Calls of functions, and workers that come, work, fail and go."""

    @initialize(at_once=st.integers(1, 2), most=st.integers(1, 3))
    def begin(self, at_once, most):
        self.pool = PoolLife(at_once=at_once, most=most)
        self.calls, self.closed = [], False
        self.waiting = []  # calls whose arguments are not there
        self.granted_workers = 0

    def do(self, commands):
        for command in commands:
            match command:
                case Do.SEND:
                    self.advance()
                case Fail(calls, error):
                    for call in calls:
                        call.ends.append(error)
                case Kill(workers):
                    for worker in workers:
                        worker.is_open = False
                        worker.killed = True
                case Do.WITHDRAW:
                    self.pool.asked.clear()
                case _:
                    raise AssertionError(command)

    def advance(self):
        while (found := self.pool.next_call()) is not None:
            self.send(*found)
        for _ in range(self.pool.wanted):
            self.pool.asked.append(object())

    def send(self, worker, call):
        assert worker.is_open, "a call goes to a worker that ends"
        assert worker in self.pool.up, "a call goes to a worker that is not set up"
        assert worker.load < self.pool.at_once
        assert not call.cancelled, "a cancelled call begins"
        call.process = worker
        call.runs += 1
        worker.calls.append(call)

    def workers(self, up=None):
        return [each for each in self.pool.workers if up is None or (each in self.pool.up) == up]

    @rule(tries=st.integers(0, 2), items=st.booleans(), ready=st.booleans())
    def call(self, tries, items, ready):
        call = Call(len(self.calls), tries, items)
        self.calls.append(call)
        if ready:
            self.do(self.pool.submit(call))
        else:
            self.waiting.append(call)

    @precondition(lambda self: self.waiting)
    @rule()
    def arguments_are_there(self):
        self.do(self.pool.submit(self.waiting.pop(0)))

    @precondition(lambda self: self.pool.asked)
    @rule(starts=RARELY.map(lambda rarely: not rarely))
    def granted(self, starts):
        if Do.START in self.pool.granted(self.pool.asked[0]):
            if starts:
                self.pool.workers[Process()] = None
            else:
                self.do(self.pool.refused(CRASH))

    @precondition(lambda self: self.pool.asked)
    @rule(happens=RARELY)
    def too_late(self, happens):
        if happens and self.pool.late(self.pool.asked[0]):
            self.do(self.pool.refused(CRASH))

    @precondition(lambda self: self.workers(up=False))
    @rule(fails=RARELY)
    def set_up(self, fails):
        worker = self.workers(up=False)[0]
        if fails or not worker.is_open:
            self.do(self.pool.refused(CRASH))
            worker.is_open = False
        else:
            self.pool.up.add(worker)
            self.feed(worker)

    def feed(self, worker):
        while (call := self.pool.next_call_for(worker)) is not None:
            self.send(worker, call)

    @precondition(lambda self: any(each.calls for each in self.workers()))
    @rule(
        which=st.integers(0, 5), error=st.sampled_from([CRASH, CRASH, None, ValueError("of no kind that runs again")])
    )
    def done(self, which, error):
        busy = [each for each in self.workers() if each.calls]
        worker = busy[which % len(busy)]
        call = worker.calls.pop(which % len(worker.calls))
        commands = []
        if error is None:
            call.ends.append("result")
        else:
            commands = self.pool.failed(call, error)
            assert Do.SEND not in commands or not call.cancelled, "a cancelled call is to run again"
        self.feed(worker)
        self.do(commands)

    @precondition(lambda self: self.workers())
    @rule(which=st.integers(0, 5), happens=RARELY)
    def leaves(self, which, happens):
        if happens:
            self.workers()[which % len(self.workers())].is_open = False

    @precondition(lambda self: self.workers())
    @rule(which=st.integers(0, 5), begun=st.integers(0, 2), happens=RARELY)
    def lost(self, which, begun, happens):
        if not happens:
            return
        worker = self.workers()[which % len(self.workers())]
        worker.is_open = False
        calls, worker.calls = worker.calls, []
        for call in calls[begun:]:
            call.runs -= 1
        self.do(self.pool.lost(worker, calls[:begun], calls[begun:], CRASH))
        self.advance()

    @precondition(lambda self: any(not each.ends for each in self.calls))
    @rule(which=st.integers(0, 20), force=st.booleans())
    def cancel(self, which, force):
        left = [each for each in self.calls if not each.ends]
        self.do(self.pool.cancel(left[which % len(left)], force=force))

    @precondition(lambda self: not self.closed)
    @rule(happens=st.sampled_from([False] * 30 + [True]))
    def close(self, happens):
        if not happens:
            return
        self.closed = True
        self.do(self.pool.close(CRASH))

    @invariant()
    def every_call_is_in_one_place(self):
        for call in self.calls:
            at_work = sum(call in each.calls for each in self.workers())
            cancelled_before = call in self.waiting and call.cancelled
            places = (call in self.pool.queue) + at_work + len(call.ends) + (call in self.waiting and not call.ends)
            assert places == 1 or cancelled_before, f"{call} is in {places} places"
            assert call.runs <= call.runs_left + 1, f"{call} ran {call.runs} times"

    @invariant()
    def nobody_is_idle_while_there_is_work(self):
        assert len(self.pool.workers) + len(self.pool.asked) <= self.pool.most
        assert not (self.closed and self.pool.queue)
        if self.pool.queue:
            assert not any(each.is_open and each.load < self.pool.at_once for each in self.workers(up=True))
            assert not any(each.is_open for each in self.pool.idle)
        assert all(each in self.pool.workers for each in self.pool.idle), "a worker that is gone is idle"


def _test_case(machine):
    case = machine.TestCase
    case.settings = LONG
    return case


TestInstances = _test_case(Instances)
TestGroups = _test_case(Groups)
TestPools = _test_case(Pools)


def test_a_call_that_runs_again_goes_to_an_idle_worker_when_its_own_ends():
    """Only its own worker, which took no more calls, was given it: it waited while another one was idle."""
    state = Pools()
    state.begin(at_once=1, most=2)
    for tries in (0, 1):
        state.call(tries=tries, items=False, ready=True)
        state.granted(starts=True)
        state.set_up(fails=False)
    first, second = state.workers()
    state.done(error=None, which=0)
    second.is_open = False
    state.done(error=CRASH, which=0)
    assert state.calls[1] in first.calls
    state.nobody_is_idle_while_there_is_work()
