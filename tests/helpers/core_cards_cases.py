"""Cases of the C++ core: which cards there are, forks, streams.

Each case is a process, python FILE CASE LIBRARY, which tests/sim/simulated/test_core.py starts.
"""

import os
import signal
import sys
import threading
import time

import hypothesis
from hypothesis import strategies as st

from core_library import MIB, TASK, Core, Pattern, block_size, run_case, soak
from core_settings import SETTINGS

LIBRARY = sys.argv[2]


def _visible(mask, cards):
    """The rule in words: reading stops at the first character that is neither digit nor comma and at an empty number;
    an order that does not rise gives no card, the first number that is not there ends the list."""
    if mask is None:
        return list(range(cards))
    text = ""
    for character in mask:
        if character not in "0123456789,":
            break
        text += character
    numbers = []
    for part in text.split(","):
        if not part:
            break
        numbers.append(int(part))
    found = []
    for number in numbers:
        if found and number <= found[-1]:
            return []
        if number >= cards:
            break
        found.append(number)
    return found


def _in_child(function):
    """What a forked child returns, which must end well."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            os.write(write, repr(function()).encode())
            status = 0
        finally:
            os._exit(status)
    os.close(write)
    with os.fdopen(read, "rb") as stream:
        text = stream.read().decode()
    assert os.waitpid(child, 0)[1] == 0
    return eval(text)


def masks():
    core = Core(LIBRARY, cards=4)

    def seen(mask):
        def look():
            if mask is None:
                os.environ.pop("ASCEND_RT_VISIBLE_DEVICES", None)
            else:
                os.environ["ASCEND_RT_VISIBLE_DEVICES"] = mask
            return [core.physical_id(index) for index in range(core.device_count())]

        return _in_child(look)

    examples = {
        None: [0, 1, 2, 3], "1,3": [1, 3], "3,1": [], "": [], "0,99": [0], "0,1x,2": [0, 1], " 1": [], "2": [2],
        "0,1,2,3": [0, 1, 2, 3], "1,1": [], "0,2,1": [], "0,,1": [0], ",0": [], "0,": [0], "-1": [], "4": [],
        "x": [], "01,002": [1, 2], "0,9,1": [0], "0;1": [0], "0, 1": [0], "99999999999999999999": [],
        "0,99999999999999999999": [0], "0,18446744073709551617": [0],
    }  # fmt: skip
    for mask, cards in examples.items():
        assert _visible(mask, 4) == cards, mask
        assert seen(mask) == cards, mask

    @hypothesis.settings(SETTINGS, max_examples=3000 if soak() else 150)
    @hypothesis.given(st.text(alphabet="0123459,,,x- ", max_size=12) | st.lists(st.integers(0, 5)).map(
        lambda numbers: ",".join(map(str, numbers))
    ))  # fmt: skip
    def any_mask(mask):
        assert seen(mask) == _visible(mask, 4)

    any_mask()


def the_mask_is_read_at_first_use():
    core = Core(LIBRARY, cards=4)
    assert not core.is_initialised()
    os.environ["ASCEND_RT_VISIBLE_DEVICES"] = "1,3"
    assert core.device_count() == 2
    assert not core.is_initialised()  # asking is no use
    core.use_cards()
    assert core.is_initialised()
    for later in ("0", "", "0,1,2"):
        os.environ["ASCEND_RT_VISIBLE_DEVICES"] = later
        assert core.device_count() == 2
        assert [core.physical_id(index) for index in (0, 1, 2)] == [1, 3, -1]


def no_cards():
    os.environ["ASCEND_RT_VISIBLE_DEVICES"] = ""
    core = Core(LIBRARY, cards=4)
    assert core.device_count() == 0
    assert core.status_of_allocation(10) == (107001, None)
    assert core.set_device(0) == 107001
    assert core.device_of(id(core)) == -1
    core.empty_cache(-1)


def each_thread_has_its_card():
    core = Core(LIBRARY, cards=4)
    assert core.set_device(2) == 0
    seen = []
    thread = threading.Thread(target=lambda: seen.append(core.current_device()) or core.set_device(1))
    thread.start()
    thread.join()
    assert (seen, core.current_device()) == ([0], 2)
    assert core.exchange_device(3) == 2
    assert core.exchange_device(-1) == 3
    assert core.exchange_device(7) == 3
    assert core.current_device() == 3


def forks():
    core = Core(LIBRARY, cards=2)
    assert _in_child(lambda: (core.forked_after_use(), core.allocate(100, 0, 1) is not None)) == (0, True)
    address = core.allocate(4096)
    pattern = Pattern(address, 4096, 1)
    pattern.write()

    def child():
        pattern.check()  # a copy of the memory at the time of the fork
        core.release(address)
        return core.forked_after_use()

    assert _in_child(child) == 1
    assert not core.forked_after_use()
    pattern.check()
    assert core.current("allocated_bytes") == block_size(4096)


def forks_while_threads_hold_locks():
    """A child may free what it got from its parent and empty the cache, whatever other threads were doing."""
    core = Core(LIBRARY)
    stop = threading.Event()

    def work():
        while not stop.is_set():
            core.release(core.allocate(3 * MIB))
            core.empty_cache(0)

    threads = [threading.Thread(target=work) for _ in range(3)]
    address = core.allocate(1000)
    for thread in threads:
        thread.start()
    ended = []
    for _ in range(2000 if soak() else 100):
        child = os.fork()
        if child == 0:
            signal.alarm(60)
            core.release(address)
            core.used_by_stream(address, 1)
            core.empty_cache(-1)
            os._exit(0)
        ended.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        if ended[-1]:
            break
    stop.set()
    for thread in threads:
        thread.join()
    assert not any(ended), ended


def streams():
    core = Core(LIBRARY, cards=2)
    order = []
    kept = []

    def launch(card, stream, function):
        kept.append(TASK(lambda _: function() or 0))
        assert core.launch(card, stream, kept[-1], None) == 0

    for number in range(200):
        launch(0, 3, lambda number=number: order.append(number))
    assert core.wait_for_device(0) == 0
    assert order == list(range(200))

    # Two streams of one card, and two cards, go on while another waits.
    gate, passed = threading.Event(), threading.Event()
    launch(0, 1, lambda: gate.wait(30) and 0)
    launch(0, 2, lambda: passed.set())
    assert passed.wait(30)
    passed.clear()
    launch(1, 1, lambda: passed.set())
    assert passed.wait(30)
    assert core.wait_for_device(1) == 0
    gate.set()
    assert core.wait_for_device(0) == 0

    # The first failure since the last wait is told, once.
    kept += [TASK(lambda _: 107003), TASK(lambda _: 507015)]
    for task in kept[-2:]:
        assert core.launch(0, 4, task, None) == 0
    assert core.wait_for_device(0) == 107003
    assert core.wait_for_device(0) == 0

    # Forty at once.
    everyone = threading.Barrier(41)
    for stream in range(40):
        launch(0, stream, lambda: everyone.wait(30) and 0)
    everyone.wait(30)
    assert core.wait_for_device(0) == 0


def a_wait_ends_in_time():
    core = Core(LIBRARY, limit_s=1)
    gate = threading.Event()
    task = TASK(lambda _: gate.wait(30) and 0)
    core.launch(0, 0, task, None)
    begin = time.monotonic()
    assert core.wait_for_device(0) == 107019
    assert 0.9 < time.monotonic() - begin < 25  # the task waits for 30
    gate.set()
    core.set_wait_limit_ms(60_000)  # it is woken as soon as this machine gets round to it
    assert core.wait_for_device(0) == 0


if __name__ == "__main__":
    run_case(globals())
