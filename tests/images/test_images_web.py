"""The controller of the page: queue, progress, history, panel and form, without a browser, a model or Gradio.

Holds `images.web` but for the page itself; the engine is a stand-in (helpers/images_web_stand_in.py).
"""

import asyncio
import json
import logging
import os
import re
import socket
import subprocess
import sys
import threading
import time
import zipfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from images_tiny import picture
from images_web_stand_in import StandIn
from toprope.errors import (
    EditCancelled,
    EditError,
    ImageError,
    LoraError,
    PackageError,
    SeedError,
    TopropeError,
    UsageError,
)
from toprope.extras import advice
from toprope.images.runs.output import SOURCES
from toprope.images.web import Controller, Limits, Row, serve
from toprope.images.web.controller import FORGET_AFTER
from toprope.images.web.entries import Entry, form_of, loras_of, parameters, settings_missing
from toprope.images.web.form import dice, knobs, picked_loras, read_form, read_seed, seed_text
from toprope.images.web.job_queue import JobQueue, Problem, State, View, follow
from toprope.images.web.loading import Loader
from toprope.images.web.page.panel import bar, panel_html, progress_html, status_html
from toprope.images.web.page.tables import ended_html, parameters_html, refined_text, rows_html
from toprope.images.web.page.tree import last_request, nodes, without_picture
from toprope.images.web.serving import is_local, quiet_environment
from toprope.images.web.sessions import Step as Kept
from toprope.images.web.sessions import StepState
from toprope.progress import Step

pytestmark = pytest.mark.process

LONG = 30.0
HELPERS = Path(__file__).resolve().parents[1] / "helpers"
"""Seconds to wait for what comes at once on a machine that is not busy."""


def collect(job):
    async def all_of():
        return [view async for view in follow(job, every=0.002)]

    return asyncio.run(asyncio.wait_for(all_of(), LONG))


@pytest.fixture
def job_queue():
    made = JobQueue(most=4, most_each=3)
    yield made
    assert made.close(LONG)


class Held:
    """A job's function that runs until it is released."""

    def __init__(self, steps=0):
        self.began, self.go, self.steps = threading.Event(), threading.Event(), steps

    def __call__(self, job):
        self.began.set()
        while not self.go.wait(0.002):
            job.check()
        for number in range(1, self.steps + 1):
            job.step(Step(number, self.steps, number / 10))
        return "made"


# The queue of jobs


def test_a_job_tells_every_step_once_and_in_order(job_queue):
    def work(job):
        job.tell("encoding")
        for number in range(1, 201):
            job.step(Step(number, 200, number / 100))
        return 42

    job = job_queue.submit("a", work)
    views = collect(job)
    assert [view.step.number for view in views if view.step and view.state is State.RUNNING] == list(range(1, 201))
    assert "encoding" in [view.note for view in views]
    assert views[-1].state is State.DONE
    assert views[-1].step.number == 200
    assert job.result == 42
    assert job_queue.describe()["done"] == 1


def test_steps_that_begin_again_are_reported_again_after_the_reason(job_queue):
    def work(job):
        job.step(Step(1, 2, 0.1))
        job.tell("the model gave black in fp16; it goes on in fp32")
        job.step(Step(1, 2, 0.2))

    views = collect(job_queue.submit("a", work))
    told = [(view.note, view.step.number if view.step else None) for view in views if view.state is State.RUNNING]
    reason = "the model gave black in fp16; it goes on in fp32"
    assert told == [("", 1), (reason, None), (reason, 1)]
    assert reason in progress_html(next(view for view in views if view.note == reason))


def test_jobs_run_one_at_a_time_in_the_order_they_came_and_know_their_place(job_queue):
    first, second = Held(), Held()
    jobs = [job_queue.submit("a", first), job_queue.submit("b", second), job_queue.submit("c", Held())]
    assert first.began.wait(LONG)
    assert [job.view().ahead for job in jobs] == [0, 1, 2]
    assert [job.state for job in jobs] == [State.RUNNING, State.WAITING, State.WAITING]
    assert job_queue.describe() | {"step": None, "of": None} == {
        "waiting": 2, "running": True, "step": None, "of": None, "done": 0, "failed": 0, "cancelled": 0,
    }  # fmt: skip
    places = []

    async def watch():
        async for view in follow(jobs[2], every=0.002):
            places.append((view.state, view.ahead))
            if (view.state, view.ahead) == (State.WAITING, 2):
                first.go.set()
            if (view.state, view.ahead) == (State.WAITING, 1):
                jobs[2].cancel()  # before its turn comes
                second.go.set()

    asyncio.run(asyncio.wait_for(watch(), LONG))
    assert places == [(State.WAITING, 2), (State.WAITING, 1), (State.CANCELLED, 0)]
    assert jobs[1].wait(LONG)
    assert jobs[1].result == "made"


def test_a_job_that_waits_leaves_the_queue_at_once(job_queue):
    held = Held()
    running, waiting = job_queue.submit("a", held), job_queue.submit("b", Held())
    assert held.began.wait(LONG)
    assert job_queue.cancel("b") == 1
    assert waiting.state is State.CANCELLED
    assert waiting.wait(0)
    assert running.state is State.RUNNING
    assert job_queue.describe()["waiting"] == 0
    held.go.set()
    assert running.wait(LONG)
    assert running.state is State.DONE
    running.cancel()
    assert running.state is State.DONE  # too late, and no harm
    assert job_queue.cancel("b") == 0


def test_a_cancelled_job_that_was_never_run_lets_go_of_what_it_was_given(job_queue):
    import gc
    import weakref

    held, given_to_it = Held(), Held()
    gone = weakref.ref(given_to_it)
    job_queue.submit("a", held)
    job = job_queue.submit("b", given_to_it)
    job.cancel()
    del given_to_it
    gc.collect()
    assert gone() is None
    held.go.set()


def test_an_error_fails_its_job_alone_and_says_what_helps(job_queue, caplog):
    def bad(job):
        raise UsageError("no.", looked_at="steps=0", do="give 1")

    def unforeseen(job):
        raise ZeroDivisionError("by  zero")

    jobs = [job_queue.submit("a", work) for work in (bad, unforeseen)]
    good = job_queue.submit("b", lambda job: "made")
    with caplog.at_level(logging.ERROR, "toprope"):
        assert good.wait(LONG)
        assert good.result == "made"
    assert jobs[0].problem == Problem("no.", "steps=0", "give 1")
    assert jobs[1].problem.what == "ZeroDivisionError: by zero"
    assert "terminal" in jobs[1].problem.do
    assert [job.state for job in jobs] == [State.FAILED] * 2
    assert "ZeroDivisionError" in caplog.text
    assert "unforeseen" in caplog.text
    assert job_queue.describe()["failed"] == 2


def test_limits_of_the_queue(job_queue):
    held = Held()
    job_queue.submit("a", held)
    assert held.began.wait(LONG)
    job_queue.submit("a", Held()), job_queue.submit("a", Held())
    with pytest.raises(UsageError, match="3 of your edits"):
        job_queue.submit("a", Held())
    job_queue.submit("b", Held()), job_queue.submit("b", Held())
    with pytest.raises(UsageError, match="the queue is full"):
        job_queue.submit("c", Held())
    assert job_queue.cancel("a") == 3


def test_closing_cancels_what_waits_and_what_runs():
    job_queue, held = JobQueue(), Held()
    jobs = [job_queue.submit("a", held), job_queue.submit("b", Held())]
    assert held.began.wait(LONG)
    assert job_queue.close(LONG)
    assert [job.state for job in jobs] == [State.CANCELLED] * 2
    with pytest.raises(UsageError, match="stopping"):
        job_queue.submit("a", held)


@given(st.lists(st.sampled_from(["submit", "cancel", "go"]), max_size=12))
def test_whatever_comes_every_job_ends_once_and_is_counted(actions):
    job_queue, jobs, held = JobQueue(most=50, most_each=50), [], []
    for at, action in enumerate(actions):
        if action == "submit":
            held.append(Held(steps=2))
            jobs.append(job_queue.submit(str(at % 2), held[-1]))
        elif action == "cancel" and jobs:
            jobs[at % len(jobs)].cancel()
        elif held:
            held[at % len(held)].go.set()
    for each in held:
        each.go.set()
    assert all(job.wait(LONG) for job in jobs)
    assert job_queue.close(LONG)
    ends = [job.state for job in jobs]
    assert job_queue.ended == {state: ends.count(state) for state in job_queue.ended}
    assert all((job.result == "made") == (job.state is State.DONE) for job in jobs)


# Loading in the background


def test_a_model_loads_while_others_look():
    go = threading.Event()

    def open_it(tell):
        tell("reading weights")
        assert go.wait(LONG)
        return "model"

    loader = Loader(open_it)
    assert loader.state == "loading"
    loader.start()
    loader.start()  # once is enough
    while loader.note == "starting":
        time.sleep(0.001)
    assert (loader.state, loader.note, loader.opened) == ("loading", "reading weights", None)

    def give_up():
        raise EditCancelled("stop")

    with pytest.raises(EditCancelled):
        loader.get(give_up, every=0.001)
    go.set()
    assert loader.get(every=0.001) == "model"
    assert loader.state == "ready"
    assert loader.problem is None
    assert loader.close(LONG) == "model"
    assert loader.opened is None


def test_a_model_that_cannot_be_loaded_says_so_to_every_edit():
    def open_it(tell):
        raise UsageError("no model there.", looked_at="/nowhere", do="name a folder")

    loader = Loader(open_it)
    assert loader.state == "loading"
    loader.start()
    loader.start()  # once is enough
    assert loader.wait(LONG)
    assert loader.state == "failed"
    with pytest.raises(EditError, match=r"could not be loaded: no model there.(?s:.)*name a folder"):
        loader.get()
    assert 'class="problem"' in status_html(
        {"model": {"name": "m", "state": "failed", "problem": vars(loader.problem)}}
    )


# The form


def test_seeds_are_texts_so_that_all_64_bits_survive():
    assert read_seed(str(2**64 - 1)) == 2**64 - 1
    assert [read_seed(any_of) for any_of in ("", " ", None, "random", "-1")] == [None] * 5
    assert read_seed(seed_text(12)) == 12
    assert seed_text(None) == ""
    for bad in ("1.5", "x", str(2**64), "-2", "٣"):
        with pytest.raises(SeedError):
            read_seed(bad)
    assert len({read_seed(dice()) for _ in range(50)}) > 40


def test_the_form_becomes_a_request_with_the_knobs_that_the_model_has():
    values = {"instruction": " snow ", "seed": "5", "steps": 3.0, "guidance": 2.5, "cfg_norm": False, "refine": True,
              "num_images": 2, "size": "keep", "fit": "pad", "negative": ""}  # fmt: skip
    request = read_form(values, "cat.png", ["steps", "guidance", "negative"], refiner=False)
    assert (request.instruction, request.seed, request.steps, request.guidance) == ("snow", 5, 3, 2.5)
    assert request.cfg_norm is None
    assert request.refine is None
    assert request.negative == ""
    assert (request.size, request.fit, request.num_images) == ("keep", "pad", 2)
    assert read_form(values, "cat.png", [], refiner=True).refine is True
    for change, said in (({"instruction": " "}, "no instruction"), ({"steps": 0}, "steps is 0"), ({"fit": "x"}, "fit")):
        with pytest.raises(UsageError, match=said):
            read_form(values | change, "cat.png", ["steps"], refiner=False)
    with pytest.raises(UsageError, match="no picture"):
        read_form(values, None, [], refiner=False)


def test_knobs_shown_are_those_of_the_model():
    shown = knobs({"steps": 250, "guidance": 7.5, "negative": ""})
    assert {name for name, knob in shown.items() if knob.shown} == {"steps", "guidance", "negative"}
    assert shown["steps"].most == 250
    assert shown["guidance"].most == 20
    assert shown["negative"].most is None


def test_loras_are_picked_by_name_with_their_scales():
    known = {"snow": "/l/snow.safetensors", "rain": "/l/rain.safetensors"}
    assert picked_loras(["rain", "snow"], [0.5, 1, 1, 1], known) == [
        "/l/rain.safetensors:0.5", "/l/snow.safetensors:1",
    ]  # fmt: skip
    assert picked_loras(["rain"], [0, 1], known) == [] == picked_loras(None, [], known)
    with pytest.raises(UsageError, match="no LoRA 'x'"):
        picked_loras(["x"], [1], known)
    with pytest.raises(LoraError, match="None is no scale"):  # its number was emptied
        picked_loras(["rain"], [None], known)


# History


def entry(number=1, **request):
    return Entry("cat.png", Path(f"cat-{number:04}.png"), Path(f"cat-{number:04}.json"), number, {"request": request})


def kept(number, parent=None, state=StepState.DONE, **request):
    return Kept(number, parent, state, "cat.png", {}, request or None)


def test_the_tree_has_each_step_before_what_was_made_from_it():
    steps = [
        kept(1, state=StepState.SOURCE), kept(2, 1, instruction="snow", seed="5"), kept(3, 2, instruction="x" * 90),
        kept(4, 1, instruction="rain"), kept(5, state=StepState.SOURCE), kept(6, 2, instruction="fog"),
        kept(7, 2, StepState.FAILED, instruction="no"), kept(8, 5, StepState.INTERRUPTED, instruction="stopped"),
        kept(9, 5, StepState.RUNNING, instruction="now"), kept(10, 5, StepState.WAITING, instruction="then"),
    ]  # fmt: skip
    found = nodes(steps)
    assert [(each.step.number, each.depth) for each in found] == [(1, 0), (2, 1), (3, 2), (6, 2), (4, 1), (5, 0)]
    assert found[0].caption == "cat.png"
    assert found[1].caption == "1. snow · seed 5"
    assert len(found[2].caption) < 60
    assert [each.number for each in without_picture(steps)] == [9, 10, 8, 7]
    assert last_request(steps) == {"instruction": "then"}
    assert nodes([]) == [] == without_picture([])
    assert last_request([]) == {}


def test_edits_without_a_picture_say_why():
    failed = Kept(1, 2, StepState.FAILED, "a.png", {}, {"instruction": "<b>"}, {"what": "full <i>", "do": "free it"})
    shown = ended_html([failed])
    assert "&lt;b&gt;" in shown
    assert "full &lt;i&gt;" in shown
    assert "free it" in shown
    assert ended_html([]) == ""


def test_a_record_fills_the_form_and_names_what_the_form_has_not():
    record = {
        "seed": 2**64 - 1, "engine": {"loras": [{"name": "snow", "path": "snow.safetensors", "scale": 0.5},
                                                {"name": "gone", "path": "gone.safetensors", "scale": 1}]},
        "request": {"instruction": "snow", "steps": 4, "num_images": 3, "sampler": "euler", "image": "image.png",
                    "generator_device": "cpu", "cfg_norm": True},
    }  # fmt: skip
    known = {"snow": "/l/snow.safetensors"}
    found = form_of(record, known)
    assert found["seed"] == str(2**64 - 1)
    assert (found["steps"], found["num_images"], found["refine"]) == (4, 1, False)
    assert (found["loras"], found["scales"]) == (["snow"], [0.5])
    assert settings_missing(record, known, ["steps"]) == ["sampler euler", "cfg_norm True", "LoRA gone"]
    assert form_of({}, {}) == {"seed": "", "num_images": 1, "refine": False, "loras": [], "scales": []}


def test_parameters_are_what_was_in_use():
    made = Entry("cat.png", Path("c.png"), Path("c.json"), 2**64 - 1, {
        "request": {"instruction": "make it snow " * 9, "steps": 4, "negative": "", "guidance": 1.5},
        "engine": {"device": "npu:1", "dtype": "bfloat16", "attention": {"path": "flash"}, "loras": []},
        "refinement": {"given": "snow", "refined": False, "reason": "no answer"},
        "seconds": 1.25,
    })  # fmt: skip
    found = parameters(made)
    assert found["seed"] == str(2**64 - 1)
    assert found["steps"] == 4
    assert found["attention"] == "flash"
    assert (found["instruction as written"], found["reworded"]) == ("snow", "no: no answer")
    assert "negative" not in found
    assert "loras" not in found
    assert "<td>18446744073709551615</td>" in parameters_html(found)
    assert "Choose a picture" in parameters_html(None)


# What is drawn


FACTS = {
    "model": {"name": "<m>", "state": "ready", "note": "", "seconds": 2.0, "problem": None},
    "device": "npu:1", "device_name": "Ascend910B3", "simulated": True, "dtype": "bfloat16", "attention": None,
    "rung": "none", "loras": ["snow"], "pipeline": "P",
    "memory": {"allocated": 2**20, "reserved": 2**21, "peak": 2**22, "free": 2**30, "total": 2**32},
    "queue": {"waiting": 2, "running": True, "step": 3, "of": 28, "done": 1, "failed": 0, "cancelled": 0},
}  # fmt: skip


def test_the_panel_says_what_is_in_use_and_how_full_the_device_is():
    shown = panel_html(FACTS)
    for words in ("npu:1 · Ascend910B3 (simulated)", "bfloat16", "3.0 GiB of 4.0 GiB", "4.0 MiB", "width:75.0%",
                  "one runs, step 3 of 28; 2 waiting; 1 done", "not known before the first edit", "snow"):  # fmt: skip
        assert words in shown
    cpu = FACTS | {"memory": {"allocated": 5, "reserved": None, "peak": None, "free": None, "total": None}}
    assert 'data-what="peak"' not in panel_html(cpu)
    assert 'data-what="used"' not in panel_html(cpu)
    assert "nothing runs; 0 waiting" in panel_html({"queue": JobQueue().describe()})
    ready = status_html(FACTS)
    assert "&lt;m&gt;" in ready
    assert "<m>" not in ready
    assert "simulated card" in ready
    loading = {"model": FACTS["model"] | {"state": "loading", "note": "reading", "seconds": 3.4}}
    assert "is loading: reading · 3 s" in status_html(loading)


def test_progress_says_where_an_edit_is():
    assert "2 edits before this one" in progress_html(View(State.WAITING, ahead=2))
    assert "1 edit before" in progress_html(View(State.WAITING, ahead=1))
    running = progress_html(View(State.RUNNING, step=Step(7, 28, 14.0)))
    assert 'data-step="7" data-of="28"' in running
    assert "step 7 of 28 · 2 s/step · 42 s left" in running
    assert "width:25.0%" in running
    assert "refine" in progress_html(View(State.RUNNING, step=Step(7, 28, 14.0, "refine")))
    batch = progress_html(View(State.RUNNING, step=Step(1, 2, 1.0), parts=1), parts=4)
    assert "picture 2 of 4" in batch
    assert "width:37.5%" in batch
    assert "cancelled after step 2 of 4" in progress_html(View(State.CANCELLED, step=Step(2, 4, 1.0)))
    failed = progress_html(View(State.FAILED, problem=Problem("<x>", "seen", "try y")))
    assert "&lt;x&gt;" in failed
    assert "try y" in failed
    assert 'role="alert"' in failed
    done = progress_html(View(State.DONE, seconds=3.5), notes=["memory ran out on <none>"])
    assert "done in 3.5 s" in done
    assert "memory ran out on &lt;none&gt;" in done
    assert 'data-state="none"' in progress_html(None)


@given(st.floats(allow_nan=False))
def test_a_bar_is_never_wider_than_its_frame(part):
    wide = float(bar(part).partition("width:")[2].partition("%")[0])
    assert 0 <= wide <= 100


def contrast(one, other):
    """The ratio of WCAG 2 between two colours."""

    def light(colour):
        parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
        linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        return sum(share * part for share, part in zip((0.2126, 0.7152, 0.0722), linear, strict=True))

    lights = sorted((light(one), light(other)))
    return (lights[1] + 0.05) / (lights[0] + 0.05)


def test_texts_have_the_contrast_of_wcag_aa():
    """The Edit button had 2.49, the status line 2.56; 4.5 is asked for."""
    pytest.importorskip("gradio")
    from toprope.images.web.page.theme import DARK, LIGHT, theme

    made = theme()

    def colour(name, mode):
        value = f"*{name}"
        while value.startswith("*"):
            value = getattr(made, f"{value[1:]}{mode}", None) or getattr(made, value[1:])
        return {"white": "#ffffff"}.get(value, value)

    assert contrast("#ffffff", "#000000") == pytest.approx(21)
    texts = ("body_text_color", "body_text_color_subdued", "block_label_text_color", "block_title_text_color")
    for mode, own in (("", LIGHT), ("_dark", DARK)):
        grounds = [colour(name, mode) for name in ("body_background_fill", "block_background_fill")]
        for text in [*(colour(name, mode) for name in texts), *own.values()]:
            assert min(contrast(text, ground) for ground in grounds) >= 4.5, (mode, text, grounds)
        words = colour("button_primary_text_color", mode)
        for fill in ("button_primary_background_fill", "button_primary_background_fill_hover"):
            assert contrast(words, colour(fill, mode)) >= 4.5


@pytest.mark.parametrize(
    ("state", "left"),
    [
        (State.RUNNING, ["running", "waiting"]), (State.CANCELLED, ["cancelled"] * 2),
        (State.FAILED, ["cancelled"] * 2),
    ],
)  # fmt: skip
def test_each_picture_of_a_batch_has_its_status_also_after_an_early_end(state, left):
    """The picture that ran was called waiting, and so were those of a batch that was cancelled."""
    shown = rows_html([Row("a.png", entry(4))], ["a.png", "b.png", "c.png"], state=state, running=(1,))
    assert re.findall(r'data-state="(\w+)"', shown) == ["done", *left]


def test_rows_of_a_batch_and_refined_texts():
    shown = rows_html([Row("a.png", entry(4)), Row("b.png", problem=Problem("it is <broken>.", do="fix it"), at=1)],
                      ["a.png", "b.png", "c.png"])  # fmt: skip
    assert [shown.count(f'data-state="{state}"') for state in ("done", "failed", "waiting")] == [1, 1, 1]
    assert "&lt;broken&gt;" in shown
    assert "fix it" in shown
    assert rows_html([], []) == ""
    assert refined_text("words", None) == "words" == refined_text("words", {"refined": True})
    assert "time-out" in refined_text("words", {"refined": False, "reason": "time-out"})


# The controller


@pytest.fixture
def cat(tmp_path):
    path = tmp_path / "cat.png"
    picture(40, 30).save(path)
    return str(path)


@pytest.fixture(autouse=True)
def same_environment(monkeypatch):
    """`serve` sets variables of its process."""
    for name in ("NO_PROXY", "no_proxy", "GRADIO_ANALYTICS_ENABLED", "GRADIO_TEMP_DIR", "HF_HUB_OFFLINE"):
        monkeypatch.setenv(name, "")
    monkeypatch.setenv("DO_NOT_TRACK", "1")


@pytest.fixture
def make_controller(tmp_path):
    made = []

    def make(engine, **options):
        made.append(Controller("m", lambda tell: engine, out_dir=tmp_path / "out", **options))
        made[-1].load()
        return made[-1]

    yield make
    for controller in made:
        assert controller.close(LONG)
        assert not controller.scratch.exists()


def values(**changed):
    return {"instruction": "snow", "seed": "5", "num_images": 1, "size": "model", "fit": "stretch"} | changed


def brought(controller, *images):
    """A session with these pictures; the last is its current step."""
    session = controller.join()
    for image in images:
        controller.bring(session, image)
    return session


def test_an_edit_leaves_a_picture_and_its_record(make_controller, cat, tmp_path):
    engine = StandIn(steps=5)
    controller = make_controller(engine)
    mine = brought(controller, cat)
    job = controller.edit(mine, values(num_images=2))
    views = collect(job)
    assert [view.step.number for view in views if view.step and view.state is State.RUNNING] == [1, 2, 3, 4, 5]
    made = job.result.entries
    assert [(each.picture.name, each.seed) for each in made] == [("cat-0001.png", 5), ("cat-0002.png", 6)]
    record = json.loads(made[1].sidecar.read_text(encoding="utf-8"))
    assert (record["picture"], record["request"]["image"]) == ("cat-0002.png", "cat.png")
    assert record["seed"] == 6
    assert record["request"]["instruction"] == "snow"
    source, *steps = controller.sessions.steps(mine)
    assert [(each.state, each.request["seed"], each.parent) for each in steps] == [
        (StepState.DONE, "5", source.number), (StepState.DONE, "6", source.number),
    ]  # fmt: skip
    assert controller.sessions.current(mine) == steps[0]
    assert controller.sessions.steps(controller.join()) == []
    assert made[0].before.exists()
    assert len(list((tmp_path / "out" / SOURCES).iterdir())) == 1
    assert sorted(path.name for path in (tmp_path / "out").iterdir() if path.suffix in (".png", ".json")) == [
        "cat-0001.json",
        "cat-0001.png",
        "cat-0002.json",
        "cat-0002.png",
    ]
    # what pages show are copies: the folder may hold what is nobody's business
    assert (tmp_path / "out") not in made[0].picture.parents
    assert controller.scratch in made[0].picture.parents
    assert controller.scratch in made[0].before.parents
    assert controller.close(LONG)
    assert engine.closed
    assert not made[0].picture.exists()
    assert sorted(path.name for path in (tmp_path / "out").iterdir())[4:] == [
        "sessions.lock", "sessions.sqlite", SOURCES,
    ]  # fmt: skip
    assert made[1].record["job"]["of"] == 2
    assert job.result.notes == ["cat.png: turned upright", "the stand-in is no model"]


def test_the_source_of_a_dropped_result_has_the_name_that_the_result_was_made_from(make_controller, cat, tmp_path):
    """It was named by its hash, and so was every result that was made from it."""
    controller = make_controller(StandIn())
    mine = brought(controller, cat)
    assert controller.edit(mine, values()).wait(LONG)
    kept = controller.sessions.steps(mine)[0].files["picture"]
    digest = next(iter(json.loads((tmp_path / "out" / "cat-0001.json").read_text())["source"]["sha256"].split()))
    found = controller.bring(mine, str(tmp_path / "out" / "cat-0001.png"))
    assert found.step.name == "cat-0001.png"
    source = controller.bring_kept(mine, digest)
    assert (source.name, source.files["picture"]) == ("cat.png", kept)


def test_a_batch_with_a_drawn_seed_leaves_the_seed_of_the_form_empty(make_controller, cat):
    """After a reload the form had the seed that was drawn for one picture of a batch, and all edits had it then."""
    controller = make_controller(StandIn())
    mine = controller.join()
    assert controller.edit_all(mine, values(seed=""), [cat]).wait(LONG)
    assert last_request(controller.sessions.steps(mine))["seed"] == ""
    assert controller.edit_all(mine, values(seed="9"), [cat]).wait(LONG)
    assert last_request(controller.sessions.steps(mine))["seed"] == "9"


def test_copies_that_were_made_room_for_are_made_again(make_controller, cat, tmp_path):
    controller = make_controller(StandIn())
    mine = brought(controller, cat)
    assert controller.edit(mine, values()).wait(LONG)
    controller._copies._most = 3
    step = controller.sessions.current(mine)
    first = controller.entry(mine, step)
    assert controller.small(step).is_file()
    assert not all(path.exists() for path in (first.picture, first.sidecar, first.before))
    again = controller.entry(mine, step)
    assert all(path.exists() for path in (again.picture, again.sidecar, again.before))
    assert len(list((controller.scratch / "made").iterdir())) == 3
    (tmp_path / "out" / "cat-0001.png").unlink()
    controller._copies.drop(["cat-0001.png"])
    with pytest.raises(ImageError, match=r"cat-0001.png is no longer in the folder"):
        controller.entry(mine, step)
    with pytest.raises(ImageError, match="no longer"):
        controller.edit(mine, values())


def test_cancel_stops_within_one_step_and_the_next_one_runs(make_controller, cat):
    engine = StandIn(steps=10, held=True)
    controller = make_controller(engine)
    mine = brought(controller, cat)
    job = controller.edit(mine, values())
    seen = []

    async def watch():
        engine.let_go(2)
        async for view in follow(job, every=0.002):
            if view.step and view.state is State.RUNNING:
                seen.append(view.step.number)
            if seen == [1, 2] and not job.cancelled():
                assert controller.cancel(mine) == 1
                engine.let_go()

    asyncio.run(asyncio.wait_for(watch(), LONG))
    assert job.state is State.CANCELLED
    assert seen == [1, 2, 3]
    assert controller.sessions.steps(mine)[1].state is StepState.CANCELLED
    after = controller.edit(mine, values(steps=1))
    engine.let_go(1)
    assert after.wait(LONG)
    assert after.state is State.DONE


def test_two_clients_are_queued_and_one_thread_does_the_work(make_controller, cat):
    engine = StandIn(steps=1, held=True)
    controller = make_controller(engine)
    mine, other = brought(controller, cat), brought(controller, cat)
    first, second = controller.edit(mine, values()), controller.edit(other, values())
    while not engine.edits:
        time.sleep(0.001)
    assert second.view().state is State.WAITING
    assert second.view().ahead == 1
    facts = controller.facts()
    assert facts["queue"]["waiting"] == 1
    assert facts["queue"]["running"]
    engine.let_go(2)
    assert first.wait(LONG)
    assert second.wait(LONG)
    assert len(engine.threads) == 1
    assert len(controller.sessions.steps(mine)) == len(controller.sessions.steps(other)) == 2


def test_the_panel_changes_while_edits_are_done(make_controller, cat):
    controller = make_controller(StandIn())
    assert controller.loader.wait(LONG)
    before = json.loads(json.dumps(controller.facts()))
    assert before["device"] == "npu:1"
    assert before["model"]["state"] == "ready"
    assert before["memory"]["peak"] == 0
    assert controller.edit(brought(controller, cat), values()).wait(LONG)
    after = controller.facts()
    assert after["memory"]["peak"] > 0
    assert after["queue"]["done"] == 1
    assert panel_html(before) != panel_html(after)


def test_the_panel_lives_while_the_model_is_loaded_again(make_controller):
    engine = StandIn()
    controller = make_controller(engine)
    assert controller.loader.wait(LONG)
    assert controller.options()["steps"] == 3
    engine.gone = True
    facts = controller.facts()
    assert facts["model"]["state"] == "loading"
    assert "device" not in facts
    assert controller.options() is None
    assert controller.refiner() is None
    engine.gone = False


def test_what_cannot_be_is_refused_before_it_waits(make_controller, cat, tmp_path):
    engine = StandIn(held=True)
    controller = make_controller(engine, limits=Limits(files=2))
    assert controller.loader.wait(LONG)
    broken = tmp_path / "broken.png"
    broken.write_bytes(b"no picture")
    mine = brought(controller, cat)
    for change, kind in (
        ({"instruction": ""}, UsageError), ({"seed": "x"}, SeedError), ({"steps": 0}, UsageError),
        ({"loras": ["x"], "scales": [1]}, UsageError),
    ):  # fmt: skip
        with pytest.raises(kind):
            controller.edit(mine, values(**change))
    for image in (None, str(broken)):
        with pytest.raises(UsageError) as caught:
            controller.bring(mine, image)
        assert str(tmp_path) not in str(caught.value)  # a picture is called by its name
    with pytest.raises(UsageError, match="there is no picture"):
        controller.edit(controller.join(), values())
    assert len(controller.sessions.steps(mine)) == 1
    with pytest.raises(UsageError, match="3 pictures are too many"):
        controller.edit_all(mine, values(), [cat] * 3)
    with pytest.raises(UsageError, match="no picture"):
        controller.edit_all(mine, values(), [])
    assert controller.facts()["queue"] | {"step": None, "of": None} == JobQueue().describe()
    assert engine.edits == []


def test_a_corrupt_file_stops_no_other_of_a_batch(make_controller, cat, tmp_path):
    broken = tmp_path / "broken.png"
    broken.write_bytes(b"no picture")
    dog = tmp_path / "dog.png"
    picture(20, 20).save(dog)
    controller = make_controller(StandIn(steps=2))
    mine = brought(controller, cat)
    job = controller.edit_all(mine, values(), [cat, str(broken), str(dog)])
    views = collect(job)
    assert job.state is State.DONE
    assert [(row.name, row.problem is None) for row in job.parts] == [
        ("cat.png", True), ("broken.png", False), ("dog.png", True),
    ]  # fmt: skip
    assert job.parts[1].problem.what.startswith("broken.png cannot be read")
    assert job.parts[1].problem.do
    # one goes on from the results, and what was looked at stays
    steps = controller.sessions.steps(mine)
    assert [(each.name, each.state) for each in steps[1:]] == [
        ("cat.png", StepState.SOURCE), ("cat.png", StepState.DONE), ("dog.png", StepState.SOURCE),
        ("dog.png", StepState.DONE),
    ]  # fmt: skip
    assert controller.sessions.current(mine) == steps[0]
    steps = [(view.parts, view.step.number) for view in views if view.step and view.state is State.RUNNING]
    assert steps == [(0, 1), (0, 2), (2, 1), (2, 2)]
    with zipfile.ZipFile(job.result.packed) as packed:
        assert sorted(packed.namelist()) == ["cat-0001.json", "cat-0001.png", "dog-0001.json", "dog-0001.png"]
        assert packed.testzip() is None


def test_a_cancelled_batch_keeps_what_was_done(make_controller, cat):
    engine = StandIn(steps=1, held=True)
    controller = make_controller(engine)
    job = controller.edit_all(controller.join(), values(), [cat, cat, cat])
    engine.let_go()
    while len(engine.edits) < 2:
        time.sleep(0.001)
    job.cancel()
    engine.let_go()
    assert job.wait(LONG)
    assert job.state is State.CANCELLED
    assert len(job.parts) == 1
    assert len(job.result.entries) == 1
    assert job.result.packed.exists()


def test_a_page_that_is_closed_and_opened_again_finds_its_edit(make_controller, cat):
    """A reload cancelled the running edit and lost the picture, the form and the history."""
    engine = StandIn(steps=1, held=True)
    controller = make_controller(engine)
    mine = brought(controller, cat)
    job = controller.edit(mine, values())
    assert controller.join(mine) == mine  # the page was loaded again
    assert controller.job_queue.jobs_of(mine) == [job]
    engine.let_go()
    assert job.wait(LONG)
    assert controller.sessions.current(mine).state is StepState.DONE
    assert last_request(controller.sessions.steps(mine))["instruction"] == "snow"


@pytest.mark.parametrize("session", [None, "", "a", 7, "../../etc/passwd"])
def test_what_is_no_session_begins_a_new_one(make_controller, session):
    controller = make_controller(StandIn())
    assert controller.join(session) != session
    with pytest.raises(UsageError, match="no session"):
        controller.edit(session, values())


def test_a_result_is_edited_further_and_a_branch_begins_at_its_parent(make_controller, cat, tmp_path):
    engine = StandIn()
    controller = make_controller(engine)
    mine = brought(controller, cat)
    source = controller.sessions.current(mine)
    for words in ("snow", "night"):
        assert controller.edit(mine, values(instruction=words)).wait(LONG)
    night = controller.sessions.current(mine)
    assert Path(engine.edits[1].image).name == "cat-0001.png"
    assert night.files["picture"] == "cat-0002.png"
    assert night.name == "cat.png"
    # a result that is edited further takes no space twice
    assert (tmp_path / "out" / "cat-0001.png").stat().st_nlink == 2
    assert controller.branch(mine, values(instruction="fog"), night.number).wait(LONG)
    assert controller.sessions.current(mine).request["instruction"] == "fog"  # it was not shown: its parent was not
    assert controller.branch(mine, values(instruction="rain"), source.number).wait(LONG)
    found = [(each.step.request or {}).get("instruction") for each in nodes(controller.sessions.steps(mine))]
    assert found == [None, "snow", "night", "fog", "rain"]
    assert controller.sessions.current(mine).request["instruction"] == "rain"
    with pytest.raises(UsageError):
        controller.branch(mine, values(instruction=""), night.number)
    assert controller.sessions.current(mine).request["instruction"] == "rain"  # what is refused moves nothing


def test_a_seed_that_is_drawn_is_known_before_the_edit_and_kept(make_controller, cat):
    engine = StandIn()
    controller = make_controller(engine)
    mine = brought(controller, cat)
    assert controller.edit(mine, values(seed="")).wait(LONG)
    step = controller.sessions.current(mine)
    assert engine.edits[0].seed == int(step.request["seed"]) == controller.entry(mine, step).seed


def test_a_mask_by_rectangle_or_file_is_kept_with_the_edit_and_comes_back(make_controller, cat, tmp_path):
    from PIL import Image

    engine = StandIn()
    controller = make_controller(engine)
    mine = brought(controller, cat)
    source = controller.sessions.current(mine)
    assert controller.edit(mine, values(box=[50, 0, 100, 50]), source.number).wait(LONG)
    with Image.open(engine.edits[0].mask) as made:
        assert made.size == (40, 30)
        assert made.getbbox() == (20, 0, 40, 15)
    step = controller.sessions.current(mine)
    assert (tmp_path / "out" / step.request["mask"]).is_file()
    form = controller.form_of(controller.entry(mine, step).record)
    assert Path(form["mask"]).read_bytes() == (tmp_path / "out" / step.request["mask"]).read_bytes()
    assert controller.mask_of(step) == Path(form["mask"])
    assert controller.edit(mine, values(mask=form["mask"], box=[0, 0, 100, 100]), source.number).wait(LONG)
    assert engine.edits[1].mask == engine.edits[0].mask  # each content is kept once
    assert controller.edit(mine, values(box=[None] * 4), source.number).wait(LONG)
    assert engine.edits[2].mask is None
    found = controller.bring(mine, str(controller.entry(mine, step).picture))
    assert Path(found.values["mask"]).is_file()
    assert found.missing == []
    for change, said in (({"box": [60, 0, 40, 100]}, "no inside"), ({"box": [0, 0, 9, 9], "mask": cat}, "a rectangle"),
                         ({"mask": __file__}, "test_images_web.py cannot be read")):  # fmt: skip
        with pytest.raises(UsageError, match=said):
            controller.edit(mine, values(**change), source.number)
    with pytest.raises(UsageError, match="a batch has no mask"):
        controller.edit_all(mine, values(box=[0, 0, 50, 50]), [cat])
    assert not list(controller.scratch.glob("mask-*"))


def test_failed_and_cancelled_edits_keep_their_reasons(make_controller, cat):
    engine = StandIn(steps=1, held=True)
    controller = make_controller(engine)
    mine = brought(controller, cat)
    runs, fails, waits = (controller.edit(mine, values(instruction=words)) for words in ("snow", "fail", "wait"))
    waits.cancel()
    assert controller.sessions.steps(mine)[3].state is StepState.CANCELLED
    engine.let_go()
    assert runs.wait(LONG)
    assert fails.wait(LONG)
    failed = controller.sessions.steps(mine)[2]
    assert failed.state is StepState.FAILED
    assert failed.problem["what"] == "it cannot be."
    assert failed.problem["do"] == "try something else"


def test_a_full_queue_leaves_no_edit_that_waits_for_ever(make_controller, cat):
    engine = StandIn(steps=1, held=True)
    controller = make_controller(engine, limits=Limits(waiting_each=1))
    mine = brought(controller, cat)
    job = controller.edit(mine, values())
    with pytest.raises(UsageError, match="wait or run already"):
        controller.edit(mine, values())
    engine.let_go()
    assert job.wait(LONG)
    assert not any(each.state.is_open for each in controller.sessions.steps(mine))


def test_after_a_restart_the_tree_is_there_and_what_ran_can_be_asked_for_again(make_controller, cat, tmp_path):
    engine = StandIn(steps=1, held=True)
    first = make_controller(engine)
    mine = brought(first, cat)
    engine.let_go()
    assert first.edit(mine, values()).wait(LONG)
    first.edit(mine, values(instruction="night", seed=""))
    first.edit(mine, values(instruction="fog", seed="9"))
    while len(engine.edits) < 2:
        time.sleep(0.001)
    threading.Timer(0.1, engine.let_go).start()  # the step that runs
    assert first.close(LONG)
    second = make_controller(StandIn())
    assert second.join(mine) == mine
    source, snow, night, fog = second.sessions.steps(mine)
    assert [each.state for each in (snow, night, fog)] == [StepState.DONE, *[StepState.INTERRUPTED] * 2]
    assert second.entry(mine, snow).picture.is_file()
    assert second.large(source).is_file()
    seed = night.request["seed"]
    jobs = second.again(mine)
    assert all(job.wait(LONG) for job in jobs)
    assert second.again(mine) == []
    states = [each.state for each in second.sessions.steps(mine)]
    assert states == [StepState.SOURCE, *[StepState.DONE] * 3]
    made = second.sessions.step(mine, night.number)
    assert str(second.entry(mine, made).seed) == seed  # the same edit as the one that was interrupted


def test_a_session_that_nobody_opened_for_a_month_is_forgotten_and_its_pictures_stay(make_controller, cat, tmp_path):
    first = make_controller(StandIn())
    mine, other = brought(first, cat), brought(first, cat)
    assert first.edit(mine, values()).wait(LONG)
    with first.sessions._changing() as db:
        db.execute("UPDATE sessions SET seen = seen - ? WHERE id = ?", (FORGET_AFTER + 60, mine))
    assert first.close(LONG)
    second = make_controller(StandIn())
    assert second.sessions.steps(mine) == []
    assert len(second.sessions.steps(other)) == 1
    assert (tmp_path / "out" / "cat-0001.png").is_file()


def test_without_a_folder_sessions_live_as_long_as_the_server(cat):
    controller = Controller("m", lambda tell: StandIn())
    controller.load()
    mine = brought(controller, cat)
    assert controller.edit(mine, values()).wait(LONG)
    assert controller.edit(mine, values(instruction="night")).wait(LONG)
    assert controller.entry(mine, controller.sessions.current(mine)).before.is_file()
    assert controller.close(LONG)
    assert not controller.scratch.exists()


def test_a_dropped_result_brings_its_settings_and_its_source(make_controller, cat, tmp_path):
    controller = make_controller(StandIn(), loras={"snow": "/l/snow.safetensors"})
    assert controller.loader.wait(LONG)
    mine = brought(controller, cat)
    assert controller.edit(mine, values(seed="77", steps=2, loras=["snow"], scales=[0.5])).wait(LONG)
    entry = controller.entry(mine, controller.sessions.current(mine))
    dropped = tmp_path / "from a friend.png"
    dropped.write_bytes(entry.picture.read_bytes())
    other = controller.join()
    found = controller.bring(other, str(dropped))
    assert found.step.name == "from a friend.png"
    assert (found.values["instruction"], found.values["seed"], found.values["steps"]) == ("snow", "77", 2)
    assert (found.values["loras"], found.values["scales"]) == (["snow"], [0.5])
    assert found.missing == []
    source = controller.bring_kept(other, found.source)
    assert (tmp_path / "out" / source.files["picture"]).read_bytes() == Path(cat).read_bytes()
    assert controller.edit(other, values(**found.values)).wait(LONG)
    again = controller.entry(other, controller.sessions.current(other))
    assert again.picture.read_bytes() == entry.picture.read_bytes()
    assert controller.bring(other, cat).values is None
    with pytest.raises(UsageError, match="not kept here"):
        controller.bring_kept(other, "0" * 64)
    with pytest.raises(UsageError, match="not kept here"):
        controller.bring_kept(other, "*")


def test_errors_of_an_edit_reach_the_page_with_what_helps(make_controller, cat, caplog):
    controller = make_controller(StandIn())
    mine = brought(controller, cat)
    job = controller.edit(mine, values(instruction="fail"))
    last = collect(job)[-1]
    assert last.state is State.FAILED
    assert last.problem == Problem("it cannot be.", "this <b>", "try something else")
    assert "this &lt;b&gt;" in progress_html(last)
    assert "try something else" in progress_html(last)
    with caplog.at_level(logging.ERROR, "toprope"):
        assert controller.edit(mine, values(instruction="break")).wait(LONG)
    assert "ZeroDivisionError" in caplog.text
    assert controller.edit(mine, values()).wait(LONG)
    assert controller.facts()["queue"]["done"] == 1


def test_loras_are_changed_only_where_others_are_picked(make_controller, cat):
    engine = StandIn()
    controller = make_controller(engine, loras={"snow": "/l/snow.safetensors"})
    mine = brought(controller, cat)
    picked = {"loras": ["snow"], "scales": [0.5, 1, 1, 1]}
    for change in (picked, picked, {}, picked | {"scales": [0.25]}):
        assert controller.edit(mine, values(**change)).wait(LONG)
    assert engine.loras_set == 3
    assert engine.loras == ["/l/snow.safetensors:0.25"]
    assert controller.facts()["loras"] == ["snow"]
    newest = controller.entry(mine, controller.sessions.current(mine))
    assert loras_of(newest.record, controller.loras) == [("snow", 0.25)]
    assert loras_of(newest.record, {"other": "/l/other.safetensors"}) == []
    assert parameters(newest)["loras"] == "snow at 0.25"


def test_a_refiner_can_be_switched_and_its_words_are_shown(make_controller, cat):
    controller = make_controller(StandIn(refiner={"provider": "openai:http://localhost"}))
    assert controller.loader.wait(LONG)
    assert controller.refiner() == "openai:http://localhost"
    mine = brought(controller, cat)
    jobs = [controller.edit(mine, values(refine=refine)) for refine in (True, False)]
    assert all(job.wait(LONG) for job in jobs)
    assert jobs[0].result.instruction == "refined: snow"
    assert jobs[0].result.refinement["refined"]
    assert jobs[1].result.instruction == "snow"
    assert jobs[1].result.refinement is None


def test_an_edit_waits_for_the_model_and_hears_when_it_cannot_be_loaded(tmp_path, cat):
    go = threading.Event()

    def open_engine(tell):
        tell("reading weights")
        assert go.wait(LONG)
        raise UsageError("the weights are cut short.", do="copy them again")

    controller = Controller("m", open_engine, out_dir=tmp_path / "out")
    job = controller.edit(brought(controller, cat), values())
    controller.load()
    while "waiting for the model to be loaded" not in [view.note for view in job.views(0)]:
        time.sleep(0.001)
    assert job.view().note in ("waiting for the model to be loaded", "reading weights")
    assert controller.facts()["model"]["state"] == "loading"
    go.set()
    assert job.wait(LONG)
    assert job.state is State.FAILED
    assert "cut short" in job.problem.what
    assert job.problem.do == "copy them again"
    assert controller.facts()["model"]["problem"]["do"] == "copy them again"
    assert controller.close(LONG)


def test_a_studio_that_never_loaded_can_be_closed(tmp_path, cat):
    controller = Controller("m", lambda tell: 1 / 0)
    job = controller.edit(brought(controller, cat), values())
    assert controller.facts()["model"]["state"] == "loading"
    assert controller.close(LONG)
    assert job.state is State.CANCELLED


# The server's edges


def test_addresses_that_others_can_reach_are_told_apart():
    assert all(is_local(host) for host in ("127.0.0.1", "localhost", "::1", "127.3.2.1"))
    assert not any(is_local(host) for host in ("0.0.0.0", "::", "192.168.1.2", "example.org"))


def test_nothing_is_sent_to_others_and_no_proxy_is_between_the_server_and_itself(monkeypatch, tmp_path):
    monkeypatch.setenv("NO_PROXY", "intranet")
    quiet_environment(tmp_path)
    import os

    assert os.environ["GRADIO_ANALYTICS_ENABLED"] == "False"
    assert os.environ["HF_HUB_OFFLINE"] == "1"
    assert os.environ["NO_PROXY"] == "intranet,127.0.0.1,localhost,::1"
    assert os.environ["GRADIO_TEMP_DIR"].startswith(str(tmp_path))


def test_an_address_that_cannot_be_listened_on_is_one_error_before_anything_is_loaded(make_controller):
    controller, before = make_controller(StandIn()), "gradio" in sys.modules
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(UsageError, match="cannot be listened on") as caught:
            serve(controller, port=taken.getsockname()[1])
    assert "--port" in caught.value.do
    with pytest.raises(UsageError, match=r"203.0.113.1 cannot be listened on"):
        serve(controller, host="203.0.113.1", port=0)
    assert ("gradio" in sys.modules) == before


def test_without_gradio_there_is_one_error_that_names_the_extra(make_controller, monkeypatch):
    monkeypatch.setitem(sys.modules, "gradio", None)
    monkeypatch.delitem(sys.modules, "toprope.images.web.page.app", raising=False)
    with pytest.raises(PackageError, match=re.escape(advice("ui"))):
        serve(make_controller(StandIn()), port=0)


def test_loras_on_the_command_line(tmp_path):
    from toprope.cli.ui import known_loras

    for name in ("a/snow", "a/rain", "b/snow"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / f"{name}.safetensors").touch()
    assert known_loras([str(tmp_path / "a")]) == {
        "rain": str(tmp_path / "a/rain.safetensors"), "snow": str(tmp_path / "a/snow.safetensors"),
    }  # fmt: skip
    (tmp_path / "fog").mkdir()
    (tmp_path / "fog" / "pytorch_lora_weights.safetensors").touch()  # everybody's file is called so
    assert [*known_loras([str(tmp_path / "fog")])] == ["fog"]
    for bad, said in (([str(tmp_path)], "no LoRA in"), ([str(tmp_path / "x.safetensors")], "no LoRA in"),
                      ([str(tmp_path / "a"), str(tmp_path / "b")], "two LoRAs are called snow")):  # fmt: skip
        with pytest.raises(TopropeError, match=said):
            known_loras(bad)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--model", "nowhere"], "nowhere"),
        (["--model", "nowhere", "--max-upload", "much"], "'much' is not a size"),
        (["--model", "nowhere", "--lora", "snow.safetensors"], "no LoRA in snow.safetensors"),
        (["--model", "nowhere", "--port", "70000"], "65535"),
        ([], "--model"),
    ],
)
def test_a_command_line_that_cannot_be_is_an_error_before_anything_is_served(
    options, said, tmp_path, capfd, monkeypatch
):
    from toprope.cli import main

    monkeypatch.chdir(tmp_path)
    assert main(["ui", *options]) == 2
    assert said in capfd.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_importing_the_room_imports_nothing_heavy():
    code = "import sys, toprope.images.web; print(sorted({'torch', 'gradio', 'PIL', 'diffusers'} & sys.modules.keys()))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "[]", done.stderr


FAILS_AT_ONCE = """
import asyncio, sys
from types import SimpleNamespace

from images_tiny import picture
from images_web_stand_in import StandIn
from toprope.errors import LoraError
from toprope.images.web import Controller
from toprope.images.web.serving import quiet_environment


class Failing(StandIn):
    def edit(self, *arguments, **options):
        raise LoraError("it does not fit.")


controller = Controller("m", lambda tell: Failing())
quiet_environment(controller.scratch)
from toprope.images.web.page.app import UNSEEN, EditorPage

picture(40, 30).save(sys.argv[1])
page, mine, tab = EditorPage(controller), controller.join(), SimpleNamespace(session_hash="tab")
controller.bring(mine, sys.argv[1])
controller.load()
assert controller.loader.wait(60)


async def ask(mine, words):
    form = [words, False, "5", 2, 1, 1, 0, "", False, 1, "model", "stretch", [], 1, 1, 1, 1, None, "", 0, 0, 100, 100]
    await page.on_edit(mine, None, *form)
    while controller.job_queue.jobs_of(mine):
        await asyncio.sleep(0.01)


async def visit(words):
    await ask(mine, words)
    return [update async for update in page.on_follow(tab, mine)]


for words in ("snow", "rain"):
    told = asyncio.run(visit(words))
    bars = [str(each[page.progress]) for each in told[1:]]
    assert "it does not fit." in bars[-1], bars
    assert "running" not in str(told[-1][page.ended]), words
    assert len(told) == 2, len(told)  # and an end is shown once

for _ in range(UNSEEN + 9):  # pages that go before their handler begins
    other = controller.join()
    controller.bring(other, sys.argv[1])
    asyncio.run(ask(other, "snow"))
assert len(page._unseen) == UNSEEN and other in page._unseen
print(controller.close(60))
"""


@pytest.mark.slow
def test_an_edit_that_fails_before_it_is_followed_is_shown_as_failed(tmp_path):
    """Its error was nowhere near the form, and the list called it running until the next click.

    Edits that no handler ever followed were kept for as long as the server ran.
    """
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(HELPERS), os.environ.get("PYTHONPATH", "")])}
    command = [sys.executable, "-c", FAILS_AT_ONCE, str(tmp_path / "cat.png")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=LONG * 8)
    assert (done.returncode, done.stdout) == (0, "True\n"), done.stderr
