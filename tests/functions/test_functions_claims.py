"""Programs that share the cards of `toprope start` (`deployment.reservations`): no card is granted twice."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toprope.functions.deployment import state_file
from toprope.functions.deployment.reservations import Reservations
from toprope.functions.deployment.start_options import Deployment
from toprope.functions.scheduling.cards import Card, Share, Use
from toprope.functions.scheduling.ledger import Ledger, Node
from toprope.functions.scheduling.requests import parse

pytestmark = [pytest.mark.native, pytest.mark.process]

NODE = Node("here", 8000, 8000, tuple(Card(id, "NPU", "910B3", 65536) for id in range(2)), {}, {})
SHARES = st.builds(Share, st.integers(0, 1), *[st.integers(0, 50)] * 3, st.integers(0, 3))


@given(SHARES, st.lists(SHARES, max_size=4))
def test_what_others_hold_comes_and_goes_and_leaves_ones_own(own, elsewhere):
    use = Use(7 if own.wholes else None, own.hbm, own.stream, own.latency, own.sharers)
    for share in elsewhere:
        use.share_with(share)
        assert use.own == own
    use.share_with(Share())
    assert use == Use(7 if own.wholes else None, own.hbm, own.stream, own.latency, own.sharers)


def asks(ledger, reservations, amount):
    """A program asks for cards: the ids that it gets, None where it has to wait."""
    number = ledger.ask(parse({"NPU/.+/count": amount}, 0, 0))
    with reservations.synchronized(ledger, "here"):
        granted = {grant.number: grant for grant in ledger.serve()}
    return granted.get(number)


def test_a_card_of_one_is_no_card_of_another(tmp_path):
    programs = [(Ledger([NODE]), Reservations(tmp_path / "held.json", "cards")) for _ in range(2)]
    other = Ledger([NODE]), Reservations(tmp_path / "held.json", "other cards")
    first = asks(*programs[0], 1)
    second = asks(*programs[1], 1)
    assert [first.cards["NPU"], second.cards["NPU"]] == [(0,), (1,)]
    assert asks(*programs[0], 1) is None
    assert asks(*other, 2).cards["NPU"] == (0, 1)
    ledger, reservations = programs[1]
    ledger.release(second.number)
    with reservations.synchronized(ledger, "here"):
        ledger.serve()
    ledger, reservations = programs[0]
    with reservations.synchronized(ledger, "here"):
        assert [grant.cards["NPU"] for grant in ledger.serve()] == [(1,)]


def test_shares_of_a_card_add_up_over_programs(tmp_path):
    programs = [(Ledger([NODE]), Reservations(tmp_path / "held.json", "")) for _ in range(3)]
    granted = [asks(*program, 0.5) for program in programs]
    assert [grant.cards["NPU"] for grant in granted] == [(0,), (0,), (1,)]
    assert asks(*programs[0], 1) is None


def test_an_entry_of_a_process_that_is_gone_is_ignored(tmp_path):
    file = tmp_path / "held.json"
    gone = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, text=True)
    entry = ["", [["NPU", 0, 1, 0, 0, 0, 0], ["NPU", 1, 1, 0, 0, 0, 0]]]
    file.write_text(json.dumps({f"{gone.stdout.strip()} 1 1": entry, f"{os.getpid()} 1 1": entry}))
    assert asks(Ledger([NODE]), Reservations(file, ""), 2).cards["NPU"] == (0, 1)


PROGRAM = """
import os, sys, yr

@yr.instance
class Holder:
    def cards(self):
        import os
        return os.environ["ASCEND_RT_VISIBLE_DEVICES"]

yr.init()
options = yr.InvokeOptions(custom_resources={"NPU/.+/count": 1})
print(os.getpid(), yr.get(Holder.options(options).invoke().cards.invoke()), flush=True)
sys.stdin.readline()
yr.finalize()
"""


@pytest.fixture
def runtime(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    state_file.keep(Deployment(sim="910B3x2", cards=state_file.share_cards("")))
    yield tmp_path / "toprope"
    state_file.end()


@pytest.mark.slow
def test_two_programs_after_one_start_get_cards_of_their_own(runtime, tmp_path):
    """Each handed out every card: two programs at once were both given card 0."""
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)

    def start():
        return subprocess.Popen(
            [sys.executable, "-m", "toprope", "run", "--quiet", str(program)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip

    first, second = start(), start()
    (pid, card), (_, other) = first.stdout.readline().split(), second.stdout.readline().split()
    assert sorted([card, other]) == ["0", "1"]
    assert oct((runtime / "held.json").stat().st_mode & 0o777) == "0o600"
    third = start()
    time.sleep(1)
    os.kill(int(pid), signal.SIGKILL)
    assert third.stdout.readline().split()[1] == card
    for each in (second, third):
        each.communicate("\n", timeout=60)
        assert each.returncode == 0
    first.communicate()
    assert json.loads((runtime / "held.json").read_text()) == {}
