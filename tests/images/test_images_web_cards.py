"""A batch of the page on several cards: spread over their engines, each picture with its status, cancelled as one.

Holds `images.web.controller` with several workers.
"""

import os
import subprocess
import sys
import time

import pytest

from images_tiny import QUIET, picture, tiny
from images_web_stand_in import StandIn
from toprope.cli.ui import _devices
from toprope.errors import EditError, UsageError
from toprope.images.web import Controller
from toprope.images.web.job_queue import State
from toprope.images.web.sessions import StepState

pytestmark = QUIET

LONG = 30.0


def until(true):
    end = time.monotonic() + LONG
    while not true():
        assert time.monotonic() < end
        time.sleep(0.005)


@pytest.fixture
def batch(tmp_path):
    """A function that makes a controller over engines and asks for a batch of four, of which one is broken."""
    made = []

    def begin(*engines, **values):
        def opener(engine):
            def open_engine(tell):
                if isinstance(engine, Exception):
                    raise engine
                return engine

            return open_engine

        first, *others = map(opener, engines)
        controller = Controller("tiny", first, others=others, out_dir=tmp_path / f"out{len(made)}")
        made.append((controller, engines))
        controller.load()
        images = []
        for name in "abcd":
            picture(40, 30, shift=ord(name)).save(tmp_path / f"{name}.png")
            images.append(str(tmp_path / f"{name}.png"))
        (tmp_path / "b.png").write_bytes(b"no picture")
        mine = controller.join()
        return controller, mine, controller.edit_all(mine, {"instruction": "snow", "seed": "3", **values}, images)

    yield begin
    for controller, engines in made:
        for engine in engines:
            if isinstance(engine, StandIn) and engine._go is not None:
                engine.let_go(99)
        assert controller.close(LONG)
        assert all(engine.closed for engine in engines if isinstance(engine, StandIn) and engine.edits)


def test_the_pictures_of_a_batch_are_spread_over_all_cards_and_come_back_in_order(batch):
    engines = StandIn(steps=1, held=True), StandIn(steps=1, held=True)
    controller, mine, job = batch(*engines)
    until(lambda: len(job.view().running) == 2 and len(engines[0].edits) == len(engines[1].edits) == 1)
    assert set(job.view().running) | {row.at for row in job.parts} <= {0, 1, 2}
    for engine in engines[::-1]:
        engine.let_go(9)
    assert job.wait(LONG)
    assert job.state is State.DONE
    assert sorted((row.at, row.name, row.entry is not None) for row in job.parts) == [
        (0, "a.png", True), (1, "b.png", False), (2, "c.png", True), (3, "d.png", True),
    ]  # fmt: skip
    assert [entry.name for entry in job.result.entries] == ["a.png", "c.png", "d.png"]
    assert job.view().running == ()
    assert sum(len(engine.edits) for engine in engines) == 3
    assert len(engines[0].threads | engines[1].threads) == 2
    states = [step.state for step in controller.sessions.steps(mine) if step.request]
    assert states == [StepState.DONE] * 3


def test_a_card_whose_model_cannot_be_loaded_is_left_out_with_a_warning(batch, caplog):
    engine = StandIn(steps=1)
    _, _, job = batch(engine, EditError("no memory on that card."))
    assert job.wait(LONG)
    assert job.state is State.DONE
    assert len(engine.edits) == 3
    until(lambda: "no memory on that card" in caplog.text or len(job.parts) == 4)


def test_cancelling_a_batch_stops_all_cards_after_their_step(batch):
    engines = StandIn(steps=9, held=True), StandIn(steps=9, held=True)
    controller, mine, job = batch(*engines)
    until(lambda: engines[0].edits and engines[1].edits)
    job.cancel()
    for engine in engines:
        engine.let_go(1)
    assert job.wait(LONG)
    assert job.state is State.CANCELLED
    assert {step.state for step in controller.sessions.steps(mine) if step.request} == {StepState.CANCELLED}
    assert sum(len(engine.edits) for engine in engines) == 2


def test_an_edit_of_one_picture_uses_the_first_card_alone(batch, tmp_path):
    engines = StandIn(steps=1), StandIn(steps=1)
    controller, mine, job = batch(*engines)
    assert job.wait(LONG)
    before = len(engines[1].edits)
    controller.bring(mine, str(tmp_path / "a.png"))
    assert controller.edit(mine, {"instruction": "rain"}).wait(LONG)
    assert len(engines[1].edits) == before


ON_CARDS = """
import hashlib, sys
from pathlib import Path
from images_tiny import picture
from toprope.images import Engine
from toprope.images.web import Controller

folder, model = Path(sys.argv[1]), sys.argv[2]
images = []
for at in range(4):
    picture(40, 30, shift=40 * at).save(folder / f"{at}.png")
    images.append(str(folder / f"{at}.png"))
openers = [
    lambda tell, device=device: Engine.open(model, device=device, dtype="fp32", progress=tell)
    for device in ("npu:0", "npu:1")
]
for cards in (1, 2):
    controller = Controller("tiny", openers[0], others=openers[1:cards], out_dir=folder / f"out{cards}")
    controller.load()
    for worker in controller._workers:
        worker.loader.start()
        worker.loader.wait(240)
    job = controller.edit_all(controller.join(), {"instruction": "snow", "seed": "3", "steps": 2}, images)
    assert job.wait(240)
    assert job.state == "done", job.problem
    for row in sorted(job.parts, key=lambda row: row.at):
        assert row.entry is not None, row.problem
        print(cards, row.entry.record["engine"]["device"], hashlib.sha256(row.entry.picture.read_bytes()).hexdigest())
    assert controller.close(60)
"""


@pytest.mark.slow
@pytest.mark.native
@pytest.mark.process
def test_two_simulated_cards_in_one_server_give_the_bytes_of_one(tmp_path):
    environment = {**os.environ, "TOPROPE_SIM": "910B3x2,hbm=1GiB", "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    environment["PYTHONPATH"] = os.pathsep.join([*sys.path])
    command = [sys.executable, "-c", ON_CARDS, str(tmp_path), str(tiny("ip2p"))]
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=250)
    assert ran.returncode == 0, ran.stderr[-3000:]
    lines = [line.split() for line in ran.stdout.splitlines() if line[:2] in ("1 ", "2 ")]
    made = {cards: [digest for number, _, digest in lines if number == cards] for cards in "12"}
    assert len(set(made["1"])) == 4
    assert made["1"] == made["2"]
    assert {device for number, device, _ in lines if number == "2"} == {"npu:0", "npu:1"}


def test_more_cards_than_there_are_is_one_error():
    assert _devices(1, "npu:1") == ["npu:1"]
    with pytest.raises(UsageError, match="99 cards were asked for"):
        _devices(99, "npu")
    with pytest.raises(UsageError, match="several cards were asked for"):
        _devices(2, "cpu")
