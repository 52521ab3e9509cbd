"""Jobs without a model: rows, keys, numbers and resuming; files that are written whole or not; failures stay alone.

Holds `images.runs.jobs`, `running`, `output` and `cards`.
"""

import json
import os
import re
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from toprope.errors import EditCancelled, EditError, ImageError, UsageError
from toprope.images import EditRequest, EditResult, Step
from toprope.images.runs.cards import _run_on_free_cards, check_cards
from toprope.images.runs.jobs import (
    FAILED,
    Job,
    Summary,
    finished,
    next_number,
    number_jobs,
    read_jobs,
    stem_of,
    undone,
)
from toprope.images.runs.output import SOURCES, Output, hash_of, problem_of
from toprope.images.runs.running import run_jobs

pytestmark = pytest.mark.native

PICTURE = Image.new("RGB", (4, 3), (200, 30, 40))


def lines(*rows) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


def read(text, **knobs):
    return read_jobs(text, knobs, folder="/data", name="jobs.jsonl")


def numbered(*images, **knobs):
    return number_jobs([Job(EditRequest(image, "make it snow", **knobs), stem_of(image)) for image in images], {})


# ---- rows


def test_a_row_has_what_the_command_line_says_and_what_it_says_itself() -> None:
    text = lines(
        {"image": "cat.png", "instruction": "make it snow"},
        {"image": "/tmp/dog.jpg", "instruction": "make it rain", "steps": 5, "negative": None, "name": "wet dog"},
    )
    first, second = read("\n" + text + "\n\n", steps=2, negative="blurry", seed=3)
    assert (first.request.image, first.request.steps, first.request.negative) == ("/data/cat.png", 2, "blurry")
    assert (second.request.image, second.request.steps, second.request.negative) == ("/tmp/dog.jpg", 5, None)
    assert (first.stem, second.stem) == ("cat", "wet_dog")
    assert (first.where, second.where) == ("jobs.jsonl, line 2", "jobs.jsonl, line 3")
    assert read(text, instruction="never used")[0].request.instruction == "make it snow"


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ("nonsense", "line 2 is no JSON"),
        ("[1]", "line 2 is no object"),
        ('{"image": "a.png"}', "line 2: an edit without 'instruction'"),
        ('{"image": "a.png", "instruction": "x", "stepps": 3}', "line 2: an edit has no 'stepps'; 'steps' is meant?"),
        ('{"image": "a.png", "instruction": "x", "steps": 0}', "line 2: steps is 0, and must be a whole number from 1"),
        ('{"image": "a.png", "instruction": "x", "seed": -5}', "line 2: -5 is not a seed"),
        ('{"image": ["a.png"], "instruction": "x"}', "line 2: image is"),
        ('{"image": "a.png", "instruction": "x", "name": 3}', "line 2: name is 3"),
    ],
)
def test_a_row_that_cannot_be_is_named_before_anything_is_done(row, words) -> None:
    with pytest.raises(UsageError, match=re.escape(f"jobs.jsonl, {words}")):
        read(lines({"image": "cat.png", "instruction": "make it snow"}) + row)


def test_a_file_without_jobs_is_an_error() -> None:
    with pytest.raises(UsageError, match=r"jobs\.jsonl has no jobs"):
        read("\n \n")


# ---- names and numbers


@given(st.text(max_size=80))
def test_a_stem_is_a_name_for_a_file_in_its_folder(name) -> None:
    stem = stem_of(name)
    assert re.fullmatch(r"[\w.-]{1,60}", stem)
    assert not stem.startswith(".")


@given(st.lists(st.integers(1, 30000), max_size=8), st.sampled_from(["cat", "c.a+t", "cat-0001"]))
def test_the_next_number_is_free_for_every_ending(numbers, stem) -> None:
    endings = [".png", ".json", FAILED, ".webp"]
    names = [f"{stem}-{number:04}{endings[number % 4]}" for number in numbers] + ["other-9999.png", f"{stem}-12.png"]
    found = next_number(names, stem)
    assert found == max(numbers, default=0) + 1
    assert not any(name.startswith(f"{stem}-{found:04}.") for name in names)


# ---- keys, and what is done already


def test_keys_tell_jobs_apart_and_stay_the_same() -> None:
    keys = [job.key for job in numbered("a.png", "b.png", "a.png")]
    assert len(set(keys)) == 3
    assert keys == [job.key for job in numbered("a.png", "b.png", "a.png")]
    assert numbered("a.png", steps=3)[0].key != keys[0]
    assert number_jobs([Job(EditRequest("a.png", "make it snow"), "a")], {"loras": ["x"]})[0].key != keys[0]
    assert [job.number for job in numbered("a.png", "b.png")] == [1, 2]


def record_of(job, at, of, picture, sha="s"):
    return {"job": {"key": job.key, "picture": at, "of": of}, "picture": picture, "source": {"sha256": sha}}


def test_a_job_is_done_where_all_its_pictures_are_there_and_its_source_is_the_same() -> None:
    one, two, three = numbered("a.png", "b.png", "c.png")
    sidecars = {
        "a-0001.json": record_of(one, 1, 1, "a-0001.png"),
        "b-0001.json": record_of(two, 1, 2, "b-0001.png"),
        "b-0002.json": record_of(two, 2, 2, "b-0002.png"),
        "c-0001.failed.json": record_of(three, 1, 1, "a-0001.png"),
        "foreign.json": [1],
        "other.json": {"job": {"key": one.key}, "picture": "a-0001.png"},
        "": {"job": 3},
    }
    names = ["a-0001.png", "b-0001.png", "b-0002.png"]
    done = finished(sidecars, names)
    assert {key: each.files for key, each in done.items()} == {
        one.key: ("a-0001.png",), two.key: ("b-0001.png", "b-0002.png"),
    }  # fmt: skip
    hashes = {"a.png": "s", "b.png": "s", "c.png": "s"}
    assert undone([one, two, three], done, hashes) == [three]
    assert undone([one, two, three], done, hashes | {"a.png": "changed"}) == [one, three]
    assert undone([one, two, three], done, {"a.png": "s"}) == [two, three]  # b.png cannot be read any more
    assert finished(sidecars, names[:2]).keys() == {one.key}


# ---- files


def result(seeds=(3,)) -> EditResult:
    return EditResult([PICTURE] * len(seeds), {"seeds": list(seeds), "source": {"name": "a"}, "request": {}})


@pytest.mark.parametrize("suffix", ["png", "jpg", "webp"])
def test_pictures_and_records_lie_side_by_side_and_nothing_is_overwritten(tmp_path, suffix) -> None:
    source = tmp_path / "cat.gif"
    PICTURE.save(source)
    (job,) = numbered(str(source))
    output = Output(tmp_path / "deep" / "out", suffix)
    (output.folder / "cat-0007.json").write_text("mine")
    first, second = output.save(job, [PICTURE, PICTURE], result((3, 4)).record)
    assert (first.name, second.name) == (f"cat-0008.{suffix}", f"cat-0009.{suffix}")
    with Image.open(first) as opened:
        assert opened.size == (4, 3)
    told = json.loads(second.with_suffix(".json").read_text())
    assert (told["picture"], told["seed"], told["job"]["picture"], told["job"]["of"]) == (second.name, 4, 2, 2)
    digest = hash_of(source)
    assert told["source"] == {"name": "a", "sha256": digest, "kept": f"sources/{digest[:16]}.gif"}
    assert [each.read_bytes() for each in (output.folder / "sources").iterdir()] == [source.read_bytes()]
    assert (output.folder / "cat-0007.json").read_text() == "mine"
    assert output.sidecars().keys() == {"cat-0008.json", "cat-0009.json"}
    assert {name for name in output.names() if name.startswith(".")} == set()
    assert finished(output.sidecars(), output.names())[job.key].files == (first.name, second.name)


def test_a_number_that_another_program_has_just_taken_is_left_to_it(tmp_path, monkeypatch) -> None:
    cat = tmp_path / "cat.png"
    Image.new("RGB", (8, 8)).save(cat)
    output, (job,) = Output(tmp_path / "out"), numbered(str(cat))
    taken = output.folder / f"{job.stem}-0001.json"
    taken.write_text("another's")
    free = iter((1, 2))  # the listing was read before the other program wrote
    monkeypatch.setattr("toprope.images.runs.output.next_number", lambda names, stem: next(free))
    (path,) = output.save(job, result().pictures, result().record)
    assert path.name == f"{job.stem}-0002.png"
    assert taken.read_text() == "another's"


def test_the_picture_that_was_edited_is_kept_once_with_its_results(tmp_path) -> None:
    """The originals' page kept it; here the record had a path that may be gone, and a hash."""
    source = tmp_path / "cat.p!g"
    PICTURE.save(source, "PNG")
    (job,) = numbered(str(source))
    output = Output(tmp_path / "out")
    for _ in range(2):
        output.save(job, [PICTURE], result().record)
    (kept,) = (output.folder / SOURCES).iterdir()
    assert kept.read_bytes() == source.read_bytes()
    assert re.fullmatch("[0-9a-f]{16}", kept.name)  # an ending that is none is left out
    assert not [name for name in output.sidecars() if "sources" in name]
    without = Output(tmp_path / "without", sources=False)
    (path,) = without.save(job, [PICTURE], result().record)
    assert json.loads(path.with_suffix(".json").read_text())["source"]["kept"] is None
    assert without.names() == ["cat-0001.json", "cat-0001.png"]
    gone = numbered(str(tmp_path / "gone.png"))[0]
    (path,) = output.save(gone, [PICTURE], result().record)
    assert json.loads(path.with_suffix(".json").read_text())["source"]["kept"] is None


def test_where_saving_fails_nothing_is_left(tmp_path, monkeypatch) -> None:
    (job,) = numbered("cat.png")
    output, saved = Output(tmp_path), []

    def fail(picture, path, **_):
        saved.append(path)
        if len(saved) == 2:
            raise OSError(28, "No space left on device", str(path))
        picture.save(path)

    monkeypatch.setattr("toprope.images.runs.output.save_picture", fail)
    with pytest.raises(OSError, match="No space left"):
        output.save(job, [PICTURE, PICTURE], result((1, 2)).record)
    assert len(saved) == 2
    assert output.names() == []


def test_a_failure_is_written_once_and_goes_with_success(tmp_path) -> None:
    one, two = numbered("cat.png", "cat.png")
    output = Output(tmp_path)
    problem = problem_of(ImageError("cat.png is no picture.", "it", "give one"))
    first = output.fail(one, problem, {"versions": {}})
    assert output.fail(one, problem, {}) == first
    assert output.fail(two, problem, {}) != first
    assert output.names() == ["cat-0001.failed.json", "cat-0002.failed.json"]
    assert json.loads(first.read_text())["error"] == {
        "kind": "ImageError", "what": "cat.png is no picture.", "looked_at": "it", "do": "give one",
    }  # fmt: skip
    output.save(one, [PICTURE], result().record)
    assert output.names() == ["cat-0002.failed.json", "cat-0003.json", "cat-0003.png"]


def test_records_are_for_those_who_may_read_the_pictures(tmp_path) -> None:
    one, two = numbered("cat.png", "dog.png")
    output, before = Output(tmp_path), os.umask(0o077)
    try:
        (path,) = output.save(one, [PICTURE], result().record)
        failed = output.fail(two, problem_of(ImageError("no.")), {})
    finally:
        os.umask(before)
    assert {each.stat().st_mode & 0o777 for each in (path, path.with_suffix(".json"), failed)} == {0o600}


def test_a_folder_that_cannot_be_and_a_format_that_is_none_are_refused(tmp_path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="cannot be a folder for results"):
        Output(tmp_path / "file")
    with pytest.raises(UsageError, match="pictures cannot be saved as bmp"):
        Output(tmp_path, "bmp")


# ---- a run


class FakeEditor:
    """Fails for pictures called bad; `after` says what happens before a call."""

    def __init__(self, after=None) -> None:
        self.calls, self.after = [], after

    def edit_all(self, requests, *, on_step=None, cancelled=None, at_once=8):
        self.calls.append([request.image for request in requests])
        on_step(Step(1, 2, 0.1))
        if self.after is not None:
            self.after(self)
        if cancelled():
            raise EditCancelled("the edit was cancelled after 1 step.")
        for request in requests:
            if "bad" in request.image:
                raise ImageError(f"{request.image} is no picture.")
        return [result() for _ in requests]


class Recorded:
    def __init__(self) -> None:
        self.begun, self.events, self.steps = [], [], 0

    def begin(self, jobs):
        self.begun.append([job.number for job in jobs])

    def step(self, step):
        self.steps += 1

    def end(self, event):
        self.events.append(event)


def run(tmp_path, jobs, editor=None, **options):
    told, summary = Recorded(), Summary(len(jobs))
    stopped = options.pop("stopped", lambda: "")
    run_jobs(editor or FakeEditor(), jobs, Output(tmp_path), told, summary=summary, stopped=stopped, **options)
    return told, summary


@pytest.mark.parametrize("at_once", [1, 2, 5])
def test_a_job_that_fails_stops_no_other(tmp_path, at_once) -> None:
    editor = FakeEditor()
    told, summary = run(tmp_path, numbered("a", "bad", "b", "c", "d"), editor, at_once=at_once)
    assert (summary.done, summary.failed, summary.left, summary.stopped) == (4, 1, 0, "")
    assert summary.text() == "4 of 5 done, 1 failed"
    assert [bool(event.problem) for event in told.events] == [False, True, False, False, False]
    assert told.events[1].kept.name == "bad-0001.failed.json"
    assert editor.calls[0] == ["a", "bad", "b", "c", "d"][:at_once]
    assert len([name for name in Output(tmp_path).names() if name.endswith(".png")]) == 4


def test_what_is_stopped_is_neither_done_nor_failed(tmp_path) -> None:
    editor = FakeEditor()
    told, summary = run(tmp_path, numbered(*"abc"), editor, stopped=lambda: "Ctrl-C" if len(editor.calls) == 2 else "")
    assert (summary.done, summary.failed, summary.left, summary.stopped) == (1, 0, 2, "Ctrl-C")
    assert summary.text() == "1 of 3 done, 2 left: Ctrl-C"
    assert len(told.events) == 1


def test_a_console_that_is_gone_ends_the_run_and_fails_no_job(tmp_path) -> None:
    """A job was recorded as failed with BrokenPipeError, where nothing was wrong with it."""

    class Gone(Recorded):
        def step(self, step):
            raise BrokenPipeError(32, "Broken pipe")

    summary = Summary(2)
    with pytest.raises(BrokenPipeError):
        run_jobs(
            FakeEditor(), numbered("a", "b"), Output(tmp_path), Gone(), summary=summary, stopped=lambda: "", at_once=2
        )
    assert (summary.done, summary.failed) == (0, 0)
    assert os.listdir(tmp_path) == []


def test_a_disk_that_is_full_fails_the_job_and_is_reported(tmp_path, monkeypatch) -> None:
    def full(*_, **__):
        raise OSError(28, "No space left on device", "out/a-0001.png")

    monkeypatch.setattr("toprope.images.runs.output.save_picture", full)
    told, summary = run(tmp_path, numbered("a"))
    assert (summary.done, summary.failed) == (0, 1)
    assert told.events[0].problem["what"] == "out/a-0001.png: No space left on device."
    monkeypatch.setattr("toprope.images.runs.output._write_json", full)
    told, _ = run(tmp_path / "other", numbered("a"))
    assert told.events[0].kept is None
    assert os.listdir(tmp_path / "other") == []


def test_errors_of_others_are_described_with_their_traceback() -> None:
    try:
        raise RuntimeError("deep\n  inside")
    except RuntimeError as error:
        problem = problem_of(error)
    assert problem["what"] == "RuntimeError: deep inside"
    assert "test_errors_of_others" in "".join(problem["traceback"])


# ---- several cards, with processes that are made up


class Call:
    def __init__(self, work):
        self.invoke = work


class FakeFleet:
    """Editors that do their work when it is fetched."""

    def __init__(self, count, dies=()) -> None:
        self.dies, self.stopped, self.replaced, self.served = set(dies), 0, 0, []
        self.busy, self.free = {}, [self.made(number) for number in range(count)]

    def made(self, number):
        editor = SimpleNamespace(number=number)
        editor.edit = Call(lambda jobs, at_once: (number, tuple(job.number for job in jobs), tuple(jobs)))
        editor.stop = Call(lambda: setattr(self, "stopped", self.stopped + 1))
        return editor

    def fetch(self, ref):
        number, names, jobs = ref
        self.served.append((number, names))
        if set(names) & self.dies:
            raise RuntimeError("the process was killed by SIGKILL")
        if self.stopped:
            return [(jobs, None)]
        return [(jobs, [result() for _ in jobs])]

    def replace(self, editor):
        self.replaced += 1
        if self.replaced < 3:
            self.free.append(self.made(10 + self.replaced))


def spread(tmp_path, monkeypatch, fleet, jobs, stopped=lambda: ""):
    from collections import deque

    from toprope import functions as yr

    monkeypatch.setattr(yr, "wait", lambda refs, count, timeout: (refs[:1], refs[1:]))
    monkeypatch.setattr(yr, "get", lambda ref, timeout: fleet.fetch(ref))
    told, summary = Recorded(), Summary(len(jobs))
    _run_on_free_cards(fleet, deque([job] for job in jobs), Output(tmp_path), told, summary, stopped, 1)
    return told, summary


def test_jobs_go_to_the_card_that_is_free_next(tmp_path, monkeypatch) -> None:
    fleet = FakeFleet(2)
    _, summary = spread(tmp_path, monkeypatch, fleet, numbered(*"abcdefg"))
    assert (summary.done, summary.failed) == (7, 0)
    assert {number for number, _ in fleet.served} == {0, 1}
    assert sorted(names for _, names in fleet.served) == [(number,) for number in range(1, 8)]


def test_a_process_that_dies_fails_its_job_and_another_takes_its_place(tmp_path, monkeypatch) -> None:
    fleet = FakeFleet(2, dies=[2])
    told, summary = spread(tmp_path, monkeypatch, fleet, numbered(*"abcd"))
    assert (summary.done, summary.failed, fleet.replaced) == (3, 1, 1)
    (failed,) = (event for event in told.events if event.problem)
    assert "SIGKILL" in failed.problem["what"]
    assert failed.job.number == 2


def test_where_no_card_is_left_the_rest_has_failed(tmp_path, monkeypatch) -> None:
    fleet = FakeFleet(1, dies=[1, 2, 3])
    told, summary = spread(tmp_path, monkeypatch, fleet, numbered(*"abcde"))
    assert (summary.done, summary.failed, summary.left) == (0, 5, 0)
    assert [event.problem["what"] for event in told.events[3:]] == ["no card is left."] * 2


def test_all_cards_are_stopped(tmp_path, monkeypatch) -> None:
    fleet = FakeFleet(2)
    _, summary = spread(
        tmp_path, monkeypatch, fleet, numbered(*"abcde"), stopped=lambda: "Ctrl-C" if fleet.served else ""
    )
    assert fleet.stopped == 1  # the other one was free
    assert (summary.done, summary.failed, summary.left, summary.stopped) == (1, 0, 4, "Ctrl-C")


def test_cards_that_are_not_there_are_refused(monkeypatch) -> None:
    for name in ("TOPROPE_SIM", "ASCEND_RT_VISIBLE_DEVICES", "TOPROPE_DEVICE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TOPROPE_SIM", "910B4x2")
    assert check_cards(2, None) == check_cards(1, "npu") == "NPU/.+/count"
    with pytest.raises(UsageError, match="3 cards were asked for, and 2 can be used"):
        check_cards(3, None)
    monkeypatch.setenv("ASCEND_RT_VISIBLE_DEVICES", "1")
    with pytest.raises(UsageError, match="2 cards were asked for, and 1 can be used"):
        check_cards(2, "npu")
    for device in ("cpu", "npu:1"):
        with pytest.raises(UsageError, match=f"several cards were asked for, and the device '{device}'"):
            check_cards(2, device)


def test_an_error_of_another_process_is_the_same_here() -> None:
    from toprope.images.runs.cards import _error_of

    error = _error_of(problem_of(UsageError("no.", "it", "do")))
    assert (type(error), error.what, error.looked_at, error.do) == (UsageError, "no.", "it", "do")
    assert type(_error_of(problem_of(RuntimeError("x")))) is EditError


def test_the_folder_of_results_can_be_where_it_is(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert Output("out").folder == Path("out")
