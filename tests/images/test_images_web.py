"""The page's queue, progress, history, panel and form, without a browser, a model or Gradio."""

import asyncio
import json
import logging
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
from toprope.errors import EditCancelled, EditError, ImageError, PackageError, SeedError, TopropeError, UsageError
from toprope.extras import advice
from toprope.images.runs.output import SOURCES
from toprope.images.web import Limits, Row, Studio, serve
from toprope.images.web.desk import Desk, Problem, State, View, follow
from toprope.images.web.form import dice, knobs, picked_loras, read_form, read_seed, seed_text
from toprope.images.web.history import Entry, Histories, caption, loras_of, parameters
from toprope.images.web.loading import Loader
from toprope.images.web.panel import bar, panel_html, progress_html, status_html
from toprope.images.web.serving import is_local, quiet_environment
from toprope.images.web.tables import parameters_html, refined_text, rows_html
from toprope.progress import Step

pytestmark = pytest.mark.process

LONG = 30.0
"""Seconds to wait for what comes at once on a machine that is not busy."""


def collect(job):
    async def all_of():
        return [view async for view in follow(job, every=0.002)]

    return asyncio.run(asyncio.wait_for(all_of(), LONG))


@pytest.fixture
def desk():
    made = Desk(most=4, most_each=3)
    yield made
    assert made.close(LONG)


class Held:
    """A job's function that runs until it is let go."""

    def __init__(self, steps=0):
        self.began, self.go, self.steps = threading.Event(), threading.Event(), steps

    def __call__(self, job):
        self.began.set()
        while not self.go.wait(0.002):
            job.check()
        for number in range(1, self.steps + 1):
            job.step(Step(number, self.steps, number / 10))
        return "made"


# The desk


def test_a_job_tells_every_step_once_and_in_order(desk):
    def work(job):
        job.tell("encoding")
        for number in range(1, 201):
            job.step(Step(number, 200, number / 100))
        return 42

    job = desk.submit("a", work)
    views = collect(job)
    assert [view.step.number for view in views if view.step and view.state is State.RUNNING] == list(range(1, 201))
    assert "encoding" in [view.note for view in views]
    assert views[-1].state is State.DONE
    assert views[-1].step.number == 200
    assert job.result == 42
    assert desk.describe()["done"] == 1


def test_steps_that_begin_anew_are_told_anew_after_the_reason(desk):
    def work(job):
        job.step(Step(1, 2, 0.1))
        job.tell("the model gave black in fp16; it goes on in fp32")
        job.step(Step(1, 2, 0.2))

    views = collect(desk.submit("a", work))
    told = [(view.note, view.step.number if view.step else None) for view in views if view.state is State.RUNNING]
    reason = "the model gave black in fp16; it goes on in fp32"
    assert told == [("", 1), (reason, None), (reason, 1)]
    assert reason in progress_html(next(view for view in views if view.note == reason))


def test_jobs_run_one_at_a_time_in_the_order_they_came_and_know_their_place(desk):
    first, second = Held(), Held()
    jobs = [desk.submit("a", first), desk.submit("b", second), desk.submit("c", Held())]
    assert first.began.wait(LONG)
    assert [job.view().ahead for job in jobs] == [0, 1, 2]
    assert [job.state for job in jobs] == [State.RUNNING, State.WAITING, State.WAITING]
    assert desk.describe() | {"step": None, "of": None} == {
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


def test_a_job_that_waits_leaves_the_queue_at_once(desk):
    held = Held()
    running, waiting = desk.submit("a", held), desk.submit("b", Held())
    assert held.began.wait(LONG)
    assert desk.cancel("b") == 1
    assert waiting.state is State.CANCELLED
    assert waiting.wait(0)
    assert running.state is State.RUNNING
    assert desk.describe()["waiting"] == 0
    held.go.set()
    assert running.wait(LONG)
    assert running.state is State.DONE
    running.cancel()
    assert running.state is State.DONE  # too late, and no harm
    assert desk.cancel("b") == 0


def test_a_cancelled_job_that_was_never_run_lets_go_of_what_it_was_given(desk):
    import gc
    import weakref

    held, given_to_it = Held(), Held()
    gone = weakref.ref(given_to_it)
    desk.submit("a", held)
    job = desk.submit("b", given_to_it)
    job.cancel()
    del given_to_it
    gc.collect()
    assert gone() is None
    held.go.set()


def test_an_error_fails_its_job_alone_and_says_what_helps(desk, caplog):
    def bad(job):
        raise UsageError("no.", looked_at="steps=0", do="give 1")

    def unforeseen(job):
        raise ZeroDivisionError("by  zero")

    jobs = [desk.submit("a", work) for work in (bad, unforeseen)]
    good = desk.submit("b", lambda job: "made")
    with caplog.at_level(logging.ERROR, "toprope"):
        assert good.wait(LONG)
        assert good.result == "made"
    assert jobs[0].problem == Problem("no.", "steps=0", "give 1")
    assert jobs[1].problem.what == "ZeroDivisionError: by zero"
    assert "terminal" in jobs[1].problem.do
    assert [job.state for job in jobs] == [State.FAILED] * 2
    assert "ZeroDivisionError" in caplog.text
    assert "unforeseen" in caplog.text
    assert desk.describe()["failed"] == 2


def test_limits_of_the_queue(desk):
    held = Held()
    desk.submit("a", held)
    assert held.began.wait(LONG)
    desk.submit("a", Held()), desk.submit("a", Held())
    with pytest.raises(UsageError, match="3 of your edits"):
        desk.submit("a", Held())
    desk.submit("b", Held()), desk.submit("b", Held())
    with pytest.raises(UsageError, match="the queue is full"):
        desk.submit("c", Held())
    assert desk.cancel("a") == 3


def test_closing_cancels_what_waits_and_what_runs():
    desk, held = Desk(), Held()
    jobs = [desk.submit("a", held), desk.submit("b", Held())]
    assert held.began.wait(LONG)
    assert desk.close(LONG)
    assert [job.state for job in jobs] == [State.CANCELLED] * 2
    with pytest.raises(UsageError, match="stopping"):
        desk.submit("a", held)


@given(st.lists(st.sampled_from(["submit", "cancel", "go"]), max_size=12))
def test_whatever_comes_every_job_ends_once_and_is_counted(actions):
    desk, jobs, held = Desk(most=50, most_each=50), [], []
    for at, action in enumerate(actions):
        if action == "submit":
            held.append(Held(steps=2))
            jobs.append(desk.submit(str(at % 2), held[-1]))
        elif action == "cancel" and jobs:
            jobs[at % len(jobs)].cancel()
        elif held:
            held[at % len(held)].go.set()
    for each in held:
        each.go.set()
    assert all(job.wait(LONG) for job in jobs)
    assert desk.close(LONG)
    ends = [job.state for job in jobs]
    assert desk.ended == {state: ends.count(state) for state in desk.ended}
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


# History


def entry(number=1, **request):
    return Entry("cat.png", Path(f"cat-{number:04}.png"), Path(f"cat-{number:04}.json"), number, {"request": request})


def test_history_is_newest_first_bounded_and_each_client_sees_its_own():
    histories = Histories(most=3, clients=2)
    gone = [each.seed for number in range(5) for each in histories.add("a", entry(number))]
    assert gone == [0, 1]
    assert histories.add("b", entry(9)) == []
    assert [each.seed for each in histories.of("a")] == [4, 3, 2]
    assert [each.seed for each in histories.of("b")] == [9]
    assert histories.of("x") == []
    assert [each.seed for each in histories.add("c", entry(1))] == [4, 3, 2]
    assert histories.of("a") == []
    assert len(histories.of("b")) == 1
    assert [each.seed for each in histories.forget("b")] == [9]
    assert histories.of("b") == []


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
    assert (found["instruction as written"], found["worded anew"]) == ("snow", "no: no answer")
    assert "negative" not in found
    assert "loras" not in found
    assert len(caption(made)) < 80
    assert caption(made).endswith(f"seed {2**64 - 1}")
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
    assert "nothing runs; 0 waiting" in panel_html({"queue": Desk().describe()})
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


def test_rows_of_a_batch_and_refined_texts():
    shown = rows_html([Row("a.png", entry(4)), Row("b.png", problem=Problem("it is <broken>.", do="mend it"))],
                      ["a.png", "b.png", "c.png"])  # fmt: skip
    assert [shown.count(f'data-state="{state}"') for state in ("done", "failed", "waiting")] == [1, 1, 1]
    assert "&lt;broken&gt;" in shown
    assert "mend it" in shown
    assert rows_html([], []) == ""
    assert refined_text("words", None) == "words" == refined_text("words", {"refined": True})
    assert "time-out" in refined_text("words", {"refined": False, "reason": "time-out"})


# The studio


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
def make_studio(tmp_path):
    made = []

    def make(engine, **options):
        made.append(Studio("m", lambda tell: engine, out_dir=tmp_path / "out", **options))
        made[-1].load()
        return made[-1]

    yield make
    for studio in made:
        assert studio.close(LONG)
        assert not studio.scratch.exists()


def values(**changed):
    return {"instruction": "snow", "seed": "5", "num_images": 1, "size": "model", "fit": "stretch"} | changed


def test_an_edit_leaves_a_picture_and_its_record(make_studio, cat, tmp_path):
    engine = StandIn(steps=5)
    studio = make_studio(engine)
    job = studio.edit("a", values(num_images=2), cat)
    views = collect(job)
    assert [view.step.number for view in views if view.step and view.state is State.RUNNING] == [1, 2, 3, 4, 5]
    made = job.result.entries
    assert [(each.picture.name, each.seed) for each in made] == [("cat-0001.png", 5), ("cat-0002.png", 6)]
    record = json.loads(made[1].sidecar.read_text(encoding="utf-8"))
    assert (record["picture"], record["request"]["image"]) == ("cat-0002.png", "cat.png")
    assert record["seed"] == 6
    assert record["request"]["instruction"] == "snow"
    assert [each.seed for each in studio.histories.of("a")] == [6, 5]
    assert studio.histories.of("b") == []
    assert made[0].before.exists()
    assert len(list((tmp_path / "out" / SOURCES).iterdir())) == 1
    assert sorted(path.name for path in (tmp_path / "out").iterdir() if path.name != SOURCES) == [
        "cat-0001.json",
        "cat-0001.png",
        "cat-0002.json",
        "cat-0002.png",
    ]
    # what pages show are copies: the folder may hold what is nobody's business
    assert (tmp_path / "out") not in made[0].picture.parents
    assert studio.scratch in made[0].picture.parents
    assert studio.scratch in made[0].before.parents
    assert studio.close(LONG)
    assert engine.closed
    assert not made[0].picture.exists()
    assert len(list((tmp_path / "out").iterdir())) == 5
    assert made[1].record["job"]["of"] == 2
    assert job.result.notes == ["cat.png: turned upright", "the stand-in is no model"]


def test_files_go_with_the_history(make_studio, cat, tmp_path):
    studio = make_studio(StandIn())
    studio.histories = Histories(most=2)
    jobs = [studio.edit("a", values(), cat) for _ in range(3)]
    assert all(job.wait(LONG) for job in jobs)
    made = [job.result.entries[0] for job in jobs]
    assert [[path.exists() for path in (each.picture, each.sidecar, each.before)] for each in made] == [
        [False] * 3, [True] * 3, [True] * 3,
    ]  # fmt: skip
    studio.leave("a")
    assert not any(each.picture.exists() for each in made)
    assert len(list((tmp_path / "out").glob("*.png"))) == 3  # they were to be kept


def test_cancel_stops_within_one_step_and_the_next_one_runs(make_studio, cat):
    engine = StandIn(steps=10, held=True)
    studio = make_studio(engine)
    job = studio.edit("a", values(), cat)
    seen = []

    async def watch():
        engine.let_go(2)
        async for view in follow(job, every=0.002):
            if view.step and view.state is State.RUNNING:
                seen.append(view.step.number)
            if seen == [1, 2] and not job.cancelled():
                assert studio.cancel("a") == 1
                engine.let_go()

    asyncio.run(asyncio.wait_for(watch(), LONG))
    assert job.state is State.CANCELLED
    assert seen == [1, 2, 3]
    after = studio.edit("a", values(steps=1), cat)
    engine.let_go(1)
    assert after.wait(LONG)
    assert after.state is State.DONE


def test_two_clients_are_queued_and_one_thread_does_the_work(make_studio, cat):
    engine = StandIn(steps=1, held=True)
    studio = make_studio(engine)
    first, second = studio.edit("a", values(), cat), studio.edit("b", values(), cat)
    while not engine.edits:
        time.sleep(0.001)
    assert second.view().state is State.WAITING
    assert second.view().ahead == 1
    facts = studio.facts()
    assert facts["queue"]["waiting"] == 1
    assert facts["queue"]["running"]
    engine.let_go(2)
    assert first.wait(LONG)
    assert second.wait(LONG)
    assert len(engine.threads) == 1
    assert len(studio.histories.of("a")) == len(studio.histories.of("b")) == 1


def test_the_panel_changes_while_edits_are_done(make_studio, cat):
    studio = make_studio(StandIn())
    assert studio.loader.wait(LONG)
    before = json.loads(json.dumps(studio.facts()))
    assert before["device"] == "npu:1"
    assert before["model"]["state"] == "ready"
    assert before["memory"]["peak"] == 0
    assert studio.edit("a", values(), cat).wait(LONG)
    after = studio.facts()
    assert after["memory"]["peak"] > 0
    assert after["queue"]["done"] == 1
    assert panel_html(before) != panel_html(after)


def test_the_panel_lives_while_the_model_is_loaded_anew(make_studio):
    engine = StandIn()
    studio = make_studio(engine)
    assert studio.loader.wait(LONG)
    assert studio.options()["steps"] == 3
    engine.gone = True
    facts = studio.facts()
    assert facts["model"]["state"] == "loading"
    assert "device" not in facts
    assert studio.options() is None
    assert studio.refiner() is None
    engine.gone = False


def test_what_cannot_be_is_refused_before_it_waits(make_studio, cat, tmp_path):
    engine = StandIn(held=True)
    studio = make_studio(engine, limits=Limits(files=2))
    assert studio.loader.wait(LONG)
    broken = tmp_path / "broken.png"
    broken.write_bytes(b"no picture")
    for change, image, kind in (
        ({"instruction": ""}, cat, UsageError), ({"seed": "x"}, cat, SeedError), ({"steps": 0}, cat, UsageError),
        ({}, None, UsageError), ({}, str(broken), ImageError), ({"loras": ["x"], "scales": [1]}, cat, UsageError),
    ):  # fmt: skip
        with pytest.raises(kind) as caught:
            studio.edit("a", values(**change), image)
        assert str(tmp_path) not in str(caught.value)  # a picture is called by its name
    with pytest.raises(UsageError, match="3 pictures are too many"):
        studio.edit_all("a", values(), [cat] * 3)
    with pytest.raises(UsageError, match="no picture"):
        studio.edit_all("a", values(), [])
    assert studio.facts()["queue"] | {"step": None, "of": None} == Desk().describe()
    assert engine.edits == []


def test_a_corrupt_file_stops_no_other_of_a_batch(make_studio, cat, tmp_path):
    broken = tmp_path / "broken.png"
    broken.write_bytes(b"no picture")
    dog = tmp_path / "dog.png"
    picture(20, 20).save(dog)
    studio = make_studio(StandIn(steps=2))
    job = studio.edit_all("a", values(), [cat, str(broken), str(dog)])
    views = collect(job)
    assert job.state is State.DONE
    assert [(row.name, row.problem is None) for row in job.parts] == [
        ("cat.png", True), ("broken.png", False), ("dog.png", True),
    ]  # fmt: skip
    assert job.parts[1].problem.what.startswith("broken.png cannot be read")
    assert job.parts[1].problem.do
    steps = [(view.parts, view.step.number) for view in views if view.step and view.state is State.RUNNING]
    assert steps == [(0, 1), (0, 2), (2, 1), (2, 2)]
    with zipfile.ZipFile(job.result.packed) as packed:
        assert sorted(packed.namelist()) == ["cat-0001.json", "cat-0001.png", "dog-0001.json", "dog-0001.png"]
        assert packed.testzip() is None


def test_a_cancelled_batch_keeps_what_was_done(make_studio, cat):
    engine = StandIn(steps=1, held=True)
    studio = make_studio(engine)
    job = studio.edit_all("a", values(), [cat, cat, cat])
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


def test_a_page_that_is_closed_takes_its_edits_along(make_studio, cat):
    engine = StandIn(steps=1, held=True)
    studio = make_studio(engine)
    mine, other = studio.edit("a", values(), cat), studio.edit("b", values(), cat)
    studio.leave("a")
    engine.let_go(2)
    assert mine.wait(LONG)
    assert other.wait(LONG)
    assert mine.state is State.CANCELLED
    assert other.state is State.DONE
    assert studio.histories.of("a") == []


def test_errors_of_an_edit_reach_the_page_with_what_helps(make_studio, cat, caplog):
    studio = make_studio(StandIn())
    job = studio.edit("a", values(instruction="fail"), cat)
    last = collect(job)[-1]
    assert last.state is State.FAILED
    assert last.problem == Problem("it cannot be.", "this <b>", "try something else")
    assert "this &lt;b&gt;" in progress_html(last)
    assert "try something else" in progress_html(last)
    with caplog.at_level(logging.ERROR, "toprope"):
        assert studio.edit("a", values(instruction="break"), cat).wait(LONG)
    assert "ZeroDivisionError" in caplog.text
    assert studio.edit("a", values(), cat).wait(LONG)
    assert studio.facts()["queue"]["done"] == 1


def test_loras_are_changed_only_where_others_are_picked(make_studio, cat):
    engine = StandIn()
    studio = make_studio(engine, loras={"snow": "/l/snow.safetensors"})
    picked = {"loras": ["snow"], "scales": [0.5, 1, 1, 1]}
    for change in (picked, picked, {}, picked | {"scales": [0.25]}):
        assert studio.edit("a", values(**change), cat).wait(LONG)
    assert engine.loras_set == 3
    assert engine.loras == ["/l/snow.safetensors:0.25"]
    assert studio.facts()["loras"] == ["snow"]
    newest = studio.histories.of("a")[0]
    assert loras_of(newest, studio.loras) == [("snow", 0.25)]
    assert loras_of(newest, {"other": "/l/other.safetensors"}) == []
    assert parameters(newest)["loras"] == "snow at 0.25"


def test_a_refiner_can_be_switched_and_its_words_are_shown(make_studio, cat):
    studio = make_studio(StandIn(refiner={"provider": "openai:http://localhost"}))
    assert studio.loader.wait(LONG)
    assert studio.refiner() == "openai:http://localhost"
    jobs = [studio.edit("a", values(refine=refine), cat) for refine in (True, False)]
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

    studio = Studio("m", open_engine, out_dir=tmp_path / "out")
    job = studio.edit("a", values(), cat)
    studio.load()
    while "waiting for the model to be loaded" not in [view.note for view in job.views(0)]:
        time.sleep(0.001)
    assert job.view().note in ("waiting for the model to be loaded", "reading weights")
    assert studio.facts()["model"]["state"] == "loading"
    go.set()
    assert job.wait(LONG)
    assert job.state is State.FAILED
    assert "cut short" in job.problem.what
    assert job.problem.do == "copy them again"
    assert studio.facts()["model"]["problem"]["do"] == "copy them again"
    assert studio.close(LONG)


def test_a_studio_that_never_loaded_can_be_closed(tmp_path, cat):
    studio = Studio("m", lambda tell: 1 / 0)
    job = studio.edit("a", values(), cat)
    assert studio.facts()["model"]["state"] == "loading"
    assert studio.close(LONG)
    assert job.state is State.CANCELLED


# The server's edges


def test_addresses_that_others_can_reach_are_told_apart():
    assert all(is_local(host) for host in ("127.0.0.1", "localhost", "::1", "127.3.2.1"))
    assert not any(is_local(host) for host in ("0.0.0.0", "::", "192.168.1.2", "example.org"))


def test_nothing_is_told_to_others_and_no_proxy_stands_between_the_server_and_itself(monkeypatch, tmp_path):
    monkeypatch.setenv("NO_PROXY", "intranet")
    quiet_environment(tmp_path)
    import os

    assert os.environ["GRADIO_ANALYTICS_ENABLED"] == "False"
    assert os.environ["HF_HUB_OFFLINE"] == "1"
    assert os.environ["NO_PROXY"] == "intranet,127.0.0.1,localhost,::1"
    assert os.environ["GRADIO_TEMP_DIR"].startswith(str(tmp_path))


def test_an_address_that_cannot_be_listened_on_is_one_error_before_anything_is_loaded(make_studio):
    studio, before = make_studio(StandIn()), "gradio" in sys.modules
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(UsageError, match="cannot be listened on") as caught:
            serve(studio, port=taken.getsockname()[1])
    assert "--port" in caught.value.do
    with pytest.raises(UsageError, match=r"203.0.113.1 cannot be listened on"):
        serve(studio, host="203.0.113.1", port=0)
    assert ("gradio" in sys.modules) == before


def test_without_gradio_there_is_one_error_that_names_the_extra(make_studio, monkeypatch):
    monkeypatch.setitem(sys.modules, "gradio", None)
    monkeypatch.delitem(sys.modules, "toprope.images.web.app", raising=False)
    with pytest.raises(PackageError, match=re.escape(advice("ui"))):
        serve(make_studio(StandIn()), port=0)


def test_loras_on_the_command_line(tmp_path):
    from toprope.cli.ui import known_loras

    for name in ("a/snow", "a/rain", "b/snow"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / f"{name}.safetensors").touch()
    assert known_loras([str(tmp_path / "a")]) == {
        "rain": str(tmp_path / "a/rain.safetensors"), "snow": str(tmp_path / "a/snow.safetensors"),
    }  # fmt: skip
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
