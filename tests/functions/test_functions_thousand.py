"""A thousand instances on this machine, as many at once as its memory takes, and a thousand calls at once of one.

An instance costs a process: a few MB of its own after the fork, and descriptors of the driver. So the number of those
alive at once is a matter of memory, and of `ulimit -n` and `ulimit -u`.
"""

import gc
import os
import resource
from pathlib import Path

import psutil
import pytest

from functions_session import session, within
from toprope import functions as yr

pytestmark = [pytest.mark.native, pytest.mark.process, pytest.mark.slow]

COUNT = 1000
SHARE = 0.5
"""Part of the memory that is free, and of the processes and descriptors that a user may have, which a turn takes."""
MOST = 250
"""Instances of a turn at most: a machine that runs a soak has other things to do than to switch between them."""
LEAST = 300, 128
"""The least millicores and MB that an instance may ask for. The ledger counts them, whatever the instance uses."""
GROWTH = 8 * 2**20
"""Bytes that the driver may have more than before: what is remembered of the last 500 instances."""


@yr.instance
class Small:
    def __init__(self, number):
        self.number = number

    def twice(self):
        return os.getpid(), 2 * self.number

    def own_memory(self):
        """Bytes that nobody shares with this process."""
        rows = Path("/proc/self/smaps_rollup").read_text().splitlines()
        return 1024 * sum(int(row.split()[1]) for row in rows if row.startswith(("Private_Clean", "Private_Dirty")))


def options():
    return yr.InvokeOptions(cpu=LEAST[0], memory=LEAST[1], schedule_timeout_ms=-1)


def holdings():
    """Descriptors and children of this process, and its memory."""
    gc.collect()
    me = psutil.Process()
    return me.num_fds(), len(me.children(recursive=True)), me.memory_info().rss


def turns(count, size):
    """Make instances, as many at once as `size`, each asked once, and end them: the processes that they had."""
    pids = set()
    for begin in range(0, count, size):
        made = [Small.options(options()).invoke(number) for number in range(begin, min(begin + size, count))]
        answers = yr.get([each.twice.invoke() for each in made])
        assert [value for _, value in answers] == [2 * number for number in range(begin, begin + len(made))]
        assert len({pid for pid, _ in answers}) == len(made)
        pids.update(pid for pid, _ in answers)
        for each in made:
            each.terminate()
    return pids


def size_of_a_turn():
    """Instances that may be alive at once here."""
    one = Small.options(options()).invoke(0)
    own = yr.get(one.own_memory.invoke())
    one.terminate(is_sync=True)
    files, processes = (resource.getrlimit(kind)[0] for kind in (resource.RLIMIT_NOFILE, resource.RLIMIT_NPROC))
    room = yr.context.backend().ledger.nodes[0].memory // LEAST[1] / SHARE
    limits = [psutil.virtual_memory().available // own, files // 3, room]
    limits += [] if processes == resource.RLIM_INFINITY else [processes]
    return max(2, min(int(SHARE * each) for each in limits))


def has_no_more(before):
    return all(now <= then for now, then in zip(holdings()[:2], before[:2], strict=True))


def check(count, most, record_property):
    with session(num_cpus=1000):
        size = min(most, size_of_a_turn())
        record_property("instances at once", size)
        turns(size, size)  # what is imported, and kept for later, at the first use
        within(120, lambda: not yr.list_instances())
        before = holdings()
        pids = turns(count, size)
        within(120, lambda: not yr.list_instances())
        within(120, lambda: has_no_more(before))
        assert holdings()[2] - before[2] <= GROWTH, (before, holdings())
        assert len(pids) > count // 2  # numbers of processes are used again some day


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_a_thousand_instances_in_turns_leave_nothing(record_property):
    check(COUNT, MOST, record_property)


def test_some_instances_in_turns_leave_nothing(record_property):
    check(8, 4, record_property)


@yr.instance
class Coroutines:
    def __init__(self, count):
        self.count = count
        self.there = 0

    async def arrived(self):
        return self.there

    async def meet(self):
        import asyncio

        self.there += 1
        while self.there < self.count:
            await asyncio.sleep(0.01)
        return self.there


@pytest.mark.parametrize("count", [65, 250, pytest.param(COUNT, marks=pytest.mark.soak)])
def test_calls_that_wait_for_each_other_are_all_sent(count):
    with session():
        one = Coroutines.options(yr.InvokeOptions(concurrency=count)).invoke(count)
        assert yr.get(one.arrived.invoke()) == 0
        before = holdings()
        assert yr.get([one.meet.invoke() for _ in range(count)], 120) == [count] * count
        within(60, lambda: has_no_more(before))
        one.terminate()


def test_functions_that_wait_for_each_other_are_all_sent(tmp_path):
    count = 250

    @yr.invoke
    def meet(number):
        (tmp_path / str(number)).touch()
        within(60, lambda: len(os.listdir(tmp_path)) == count)
        return os.getpid()

    with session():
        together = meet.options(yr.InvokeOptions(concurrency=count, cpu=LEAST[0], memory=LEAST[1]))
        assert len(set(yr.get([together.invoke(number) for number in range(count)], 120))) == 1
