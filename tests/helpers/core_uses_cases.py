"""Cases of the C++ core: blocks that streams still use, and many threads.

Each case is a process, python FILE CASE LIBRARY, which tests/sim/simulated/test_core.py starts.
"""

import random
import sys
import threading
import time

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from core_library import MIB, TASK, Core, Pattern, block_size, piece_size, run_case, soak
from core_settings import LARGE, MIDDLE, SETTINGS, SMALL

LIBRARY = sys.argv[2]


def uses():
    core = Core(LIBRARY)
    gates = {}  # stream -> threading.Event that its first task waits for
    kept = []  # callbacks must outlive their calls

    def launch(stream, function):
        task = TASK(lambda _: function() or 0)
        kept.append(task)
        assert core.launch(0, stream, task, None) == 0

    def hold(stream):
        gate = gates[stream] = threading.Event()
        launch(stream, lambda: gate.wait() and 0)

    def let_go(stream):
        gates.pop(stream).set()
        assert core.wait_for_stream(0, stream) == 0

    class Machine(RuleBasedStateMachine):
        def __init__(self):
            super().__init__()
            kept.clear()
            self.live = []  # [address, size, stream, pattern, streams it is marked for]
            self.awaited = []  # the same for freed blocks, with the streams that still have to get there
            self.number = 0
            self.addresses = set()  # all that has to be given back, whatever a check may say

        @rule(size=SMALL | MIDDLE | LARGE, stream=st.integers(0, 2))
        def allocate(self, size, stream):
            piece = piece_size(block_size(size))
            if gates and core.current("reserved_bytes") + piece > 64 * MIB:
                return  # the card would wait for its streams before it gave up
            address = core.allocate(size, stream)
            if address is None:
                assert core.current("reserved_bytes") + piece > 64 * MIB
                return
            self.addresses.add(address)
            others = self.live + self.awaited
            self.number += 1
            pattern = Pattern(address, size, self.number)
            self.live.append([address, size, stream, pattern, set()])
            for other, length, *_ in others:
                assert address + block_size(size) <= other or other + block_size(length) <= address
            pattern.write()

        @precondition(lambda self: self.live)
        @rule(data=st.data(), stream=st.integers(0, 2))
        def use(self, data, stream):
            block = data.draw(st.sampled_from(self.live))
            core.used_by_stream(block[0], stream)
            block[4].add(stream)

        @precondition(lambda self: self.live)
        @rule(data=st.data())
        def release(self, data):
            block = self.live.pop(data.draw(st.integers(0, len(self.live) - 1)))
            block[3].check()
            core.release(block[0])
            self.addresses.remove(block[0])
            block[4] = (block[4] - {block[2]}) & set(gates)
            if block[4]:
                self.awaited.append(block)

        @precondition(lambda self: len(gates) < 3)
        @rule(data=st.data())
        def hold(self, data):
            hold(data.draw(st.sampled_from(sorted({0, 1, 2} - set(gates)))))

        @precondition(lambda self: gates)
        @rule(data=st.data())
        def let_go(self, data):
            stream = data.draw(st.sampled_from(sorted(gates)))
            let_go(stream)
            for block in self.awaited:
                block[4].discard(stream)
            self.awaited = [block for block in self.awaited if block[4]]

        @precondition(lambda self: not gates)
        @rule()
        def empty_cache(self):
            core.empty_cache(0)
            assert core.current("active_bytes") == core.current("allocated_bytes")

        @invariant()
        def figures(self):
            stats = core.stats()
            allocated = sum(block_size(size) for _, size, *_ in self.live)
            # The rest of a large block is not always worth cutting off.
            most = sum(block_size(size) + (MIB if block_size(size) > MIB else 0) for _, size, *_ in self.live)
            assert allocated <= stats["allocated_bytes.all.current"] <= most
            assert stats["allocation.all.current"] == len(self.live)
            assert stats["requested_bytes.all.current"] == sum(size for _, size, *_ in self.live)
            awaited = sum(block_size(size) for _, size, *_ in self.awaited)
            assert stats["active_bytes.all.current"] >= stats["allocated_bytes.all.current"] + awaited
            assert stats["active_bytes.all.current"] <= stats["reserved_bytes.all.current"] <= 64 * MIB
            for block in self.awaited:
                block[3].check()  # nobody was given a block that a stream still uses

        def teardown(self):
            while gates:
                let_go(next(iter(gates)))
            for address in self.addresses:
                core.release(address)
            core.empty_cache(0)
            stats = core.stats()
            assert {name: value for name, value in stats.items() if name.endswith("current") and value} == {}

    run_state_machine_as_test(Machine, settings=SETTINGS)


def a_use_holds_a_block_until_the_work_before_its_release_is_done():
    """What the other stream is given between the mark and the release counts as well."""
    core = Core(LIBRARY)
    gate = threading.Event()
    task = TASK(lambda _: int(not gate.wait(30)))
    address = core.allocate(20 * MIB - 32)  # a piece of its own
    core.used_by_stream(address, 5)
    core.launch(0, 5, task, None)
    core.release(address)
    assert core.allocate(20 * MIB - 32) != address
    gate.set()
    assert core.wait_for_device(0) == 0


def memory_that_a_stream_gives_up_later_is_waited_for_before_memory_runs_out():
    core = Core(LIBRARY)
    task = TASK(lambda _: time.sleep(0.2) or 0)
    address = core.allocate(40 * MIB)
    core.launch(0, 5, task, None)
    core.used_by_stream(address, 5)
    core.release(address)
    assert core.allocate(40 * MIB) is not None
    assert core.stats()["num_ooms"] == 0


def empty_cache_waits_for_memory_that_streams_still_use():
    core = Core(LIBRARY)
    task = TASK(lambda _: time.sleep(0.2) or 0)
    address = core.allocate(40 * MIB)
    core.launch(0, 5, task, None)
    core.used_by_stream(address, 5)
    core.release(address)
    core.empty_cache(0)
    assert core.current("reserved_bytes") == 0


def threads():
    core = Core(LIBRARY, cards=2, capacity=256 * MIB)
    rounds = 20_000 if soak() else 1500
    failures = []
    shared = []  # blocks that any thread may release
    guard = threading.Lock()

    def work(number):
        try:
            chance = random.Random(number)
            mine = []
            for turn in range(rounds):
                card, stream = chance.randrange(2), chance.randrange(3)
                limit = chance.choice([600, 70_000, 3 * MIB])
                if len(mine) < 20 and chance.random() < 0.6:
                    size = chance.randint(1, limit)
                    address = core.allocate(size, stream, card)
                    assert address is not None
                    assert core.device_of(address) == card
                    pattern = Pattern(address, size, number * 2**20 + turn)
                    pattern.write()
                    mine.append((address, pattern))
                elif mine:
                    address, pattern = mine.pop(chance.randrange(len(mine)))
                    pattern.check()
                    if chance.random() < 0.3:
                        core.used_by_stream(address, stream)
                    if chance.random() < 0.3:
                        with guard:
                            shared.append((address, pattern))
                    else:
                        core.release(address)
                if chance.random() < 0.2:
                    with guard:
                        given = shared.pop() if shared else None
                    if given:
                        given[1].check()
                        core.release(given[0])
                if chance.random() < 0.01:
                    core.empty_cache(chance.choice([-1, 0, 1]))
            for address, pattern in mine:
                pattern.check()
                core.release(address)
        except BaseException as error:
            failures.append(error)
            raise

    workers = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert failures == []
    for address, pattern in shared:
        pattern.check()
        core.release(address)
    core.empty_cache(-1)
    for card in (0, 1):
        stats = core.stats(card)
        assert {name: value for name, value in stats.items() if name.endswith("current") and value} == {}
        assert stats["allocation.all.allocated"] == stats["allocation.all.freed"] > 0
        assert 0 < stats["reserved_bytes.all.peak"] <= 256 * MIB


if __name__ == "__main__":
    run_case(globals())
