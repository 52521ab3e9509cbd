"""The controller: loads a model in the background, queues edits, and keeps sessions with their results.

Everything that a page can do is a method here; `toprope.images.web.page.app` only draws.

Made by `toprope ui` (`cli.ui`); called by `web.page.app`, `web.api` and `web.serving`. Gradio is not known here: tests
run it without a browser. A page sees only its own session, and no path of the folder with results. Its errors need a
translation in `web.messages`. Tests: tests/images/test_images_web.py, tests/images/test_images_web_cards.py.
"""

from __future__ import annotations

import logging
import re
import shutil
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from toprope.errors import EditCancelled, EditError, ImageError, UsageError
from toprope.images.example import picture as example_picture
from toprope.images.picture.files import open_picture, record_in, save_picture
from toprope.images.picture.masks import open_mask, rectangle
from toprope.images.request import EditRequest
from toprope.images.runs.output import Output
from toprope.images.web.copies import Copies, pack, save
from toprope.images.web.entries import Entry, form_of, settings_missing
from toprope.images.web.form import FIELDS, dice, picked_loras, read_box, read_form, read_seed
from toprope.images.web.job_queue import Job, JobQueue, Problem, State, View
from toprope.images.web.painter import painted_mask
from toprope.images.web.sessions import Sessions, Step, StepState, new_session
from toprope.images.web.worker import OpenEngine, Worker

if TYPE_CHECKING:
    from toprope.images.engine import Engine

__all__ = ["Brought", "Controller", "Limits", "Outcome", "Place", "Row"]

_log = logging.getLogger("toprope")

FORGET_AFTER = 30 * 86400.0
"""Seconds after which an unused session is forgotten. Its pictures stay in the folder with results."""

PROGRAM = "program "
"""Prefix of the names of clients that are not sessions of pages."""

ENDS = {State.DONE: StepState.DONE, State.FAILED: StepState.FAILED, State.CANCELLED: StepState.CANCELLED}


@dataclass(frozen=True)
class Limits:
    """Limits for clients.

    Attributes:
        upload: largest file in bytes.
        files: number of files in one batch.
        waiting: number of edits in the queue.
        waiting_each: number of edits of one page in the queue.
        uploads: number of uploaded files of all pages that are kept at the same time.
    """

    upload: int = 32 * 2**20
    files: int = 64
    waiting: int = 32
    waiting_each: int = 4
    uploads: int = 256


@dataclass(frozen=True)
class Row:
    """A finished picture of a batch.

    Attributes:
        name: name of its file.
        entry: its first result; None if it failed.
        problem: the error if it failed.
        at: its index in the batch; with several cards rows do not end in order.
    """

    name: str
    entry: Entry | None = None
    problem: Problem | None = None
    at: int = 0


@dataclass
class Outcome:
    """Results of a job.

    Attributes:
        entries: the pictures.
        packed: a ZIP file with all files of a batch.
    """

    entries: list[Entry] = field(default_factory=list)
    packed: Path | None = None

    @property
    def instruction(self) -> str:
        """The instruction that the model got: the client's own, or the refined one."""
        return str(self.entries[0].record["request"]["instruction"]) if self.entries else ""

    @property
    def refinement(self) -> Mapping[str, Any] | None:
        """The refiner's result; None if it was not asked."""
        found: Mapping[str, Any] | None = self.entries[0].record.get("refinement") if self.entries else None
        return found

    @property
    def notes(self) -> list[str]:
        """Notes on changes to the picture before the edit, and on deviations from the request."""
        if not self.entries:
            return []
        record = self.entries[0].record
        name, source = self.entries[0].name, record["source"].get("notes", ())
        return [*(f"{name}: {note}" for note in source), *record.get("notices", ())]


@dataclass(frozen=True)
class Place:
    """A place in the queue.

    Attributes:
        owner: "yours", "of_page" or "of_program".
        view: state of the job.
        title: the request; empty for jobs of other clients.
        pictures: number of pictures of a batch; 0 for a single edit.
    """

    owner: str
    view: View
    title: str = ""
    pictures: int = 0


@dataclass(frozen=True)
class Brought:
    """A picture that was added to a session.

    Attributes:
        step: the step with the picture.
        values: values of a form that asks for the same picture, if the file has a record.
        missing: settings of the record that the form does not have.
        source: the SHA-256 of the picture that it was made from, if that is kept here.
    """

    step: Step
    values: Mapping[str, Any] | None = None
    missing: Sequence[str] = ()
    source: str | None = None


def _files(picture: str) -> dict[str, str]:
    return {"picture": picture, "sidecar": str(Path(picture).with_suffix(".json"))}


@contextmanager
def _by_name(image: Any, name: str = "") -> Iterator[None]:
    """Context in which errors about a picture have its name instead of its path, which is unknown to the client."""
    try:
        yield
    except ImageError as error:
        shown = name or Path(image).name
        raise ImageError(*(str(text).replace(str(image), shown) for text in error.args)) from error


class Controller:
    """Serves sessions of pages, and programs. The model is loaded once `load` was called.

    Args:
        name: the model's name, for users.
        open_engine: called in a thread, with a function that takes sentences about the progress, now and later.
        others: the same for each additional card; their engines are opened by the first batch, and only do batches.
        out_dir: folder for results and sessions; without one they are deleted when the controller is closed.
        loras: paths of LoRAs that can be selected, by name.
        limits: limits for clients.

    Raises:
        UsageError: the folder cannot be made.
        EnvironmentProblem: the sessions in it cannot be used.
    """

    def __init__(
        self,
        name: str,
        open_engine: OpenEngine,
        *,
        others: Sequence[OpenEngine] = (),
        out_dir: Path | None = None,
        loras: Mapping[str, str] | None = None,
        limits: Limits | None = None,
    ) -> None:
        self.name, self.limits, self.loras = name, limits or Limits(), dict(loras or {})
        self._keeps = out_dir is not None
        self.scratch = Path(tempfile.mkdtemp(prefix="toprope-ui-"))
        try:
            self._output = Output(out_dir or self.scratch / "kept", sources=self._keeps)
            self.sessions = Sessions(None if out_dir is None else out_dir / "sessions.sqlite")
        except BaseException:
            shutil.rmtree(self.scratch, ignore_errors=True)
            raise
        self._copies = Copies(self.scratch / "made", self._output.folder)
        self._closing = False
        self.job_queue = JobQueue(self.limits.waiting, self.limits.waiting_each)
        self._workers = [Worker(each, self.loras) for each in (open_engine, *others)]
        self.loader = self._workers[0].loader
        self._forget_old()

    def load(self) -> None:
        """Begin to load the model in a thread; edits can be requested before."""
        self.loader.start()

    # Sessions

    def join(self, session: Any = None) -> str:
        """Continue a session, or begin one.

        Args:
            session: the id that a page has stored. Anything else begins a new session.

        Returns:
            Its id.
        """
        self._forget_old()
        if isinstance(session, str):
            try:
                self.sessions.join(session)
                return session
            except UsageError:
                pass
        made = new_session()
        self.sessions.join(made)
        return made

    def bring(self, session: str, image: str | None) -> Brought:
        """Add a picture to a session and show it. A copy of it is kept.

        Args:
            session: from `join`.
            image: a file.

        Raises:
            UsageError: it is no picture.
        """
        if not image:
            raise UsageError("there is no picture.", do="drop one on the page, or choose a file")
        with _by_name(image):
            open_picture(image)
        step = self._bring(session, image)
        record = record_in(image)
        if record is None:
            return Brought(step)
        source = str((record.get("source") or {}).get("sha256") or "")
        values = self.form_of(record)
        missing = settings_missing(record, self.loras, list(self.options() or FIELDS))
        return Brought(
            step,
            values,
            [each for each in missing if not (values["mask"] and each.startswith("mask "))],
            source if self._output.kept(source) is not None else None,
        )

    def bring_example(self, session: str) -> Step:
        """Add our example picture to a session, for visitors without one, and show it."""
        path = self.scratch / "example.png"
        if not path.exists():
            save_picture(example_picture(512, 384), path)
        return self._bring(session, str(path))

    def bring_kept(self, session: str, digest: str) -> Step:
        """Add a picture that is kept already, and show it.

        Raises:
            UsageError: no picture with this SHA-256 is kept.
        """
        kept = self._output.kept(digest)
        if kept is None:
            raise UsageError("that picture is not kept here.", f"SHA-256 {digest[:16]}...", "drop the file on the page")
        shown = self.sessions.current(session)  # a result, which is named after its source
        stem = re.sub(r"-\d{4,}$", "", Path(shown.name).stem) if shown is not None else Path(kept).stem
        return self.sessions.bring(session, stem + Path(kept).suffix, {"picture": kept})

    def _bring(self, session: str, image: str, *, show: bool = True) -> Step:
        self.sessions.join(session)
        name = Path(image).name
        return self.sessions.bring(session, name, {"picture": self._output.keep(image)}, show=show)

    def entry(self, session: str, step: Step) -> Entry:
        """The result of a step with its record.

        Raises:
            ImageError: its files are gone.
        """
        made_from = None if step.parent is None else self.sessions.step(session, step.parent)
        source = None if made_from is None else made_from.files["picture"]
        return self._copies.entry(step.name, step.files["picture"], source)

    def large(self, step: Step) -> Path:
        """The picture of a step in a form that browsers can show.

        Raises:
            ImageError: it is gone.
        """
        return self._copies.large(step.files["picture"])

    def small(self, step: Step) -> Path | None:
        """The thumbnail of a step; None if its picture is gone."""
        try:
            return self._copies.small(step.files["picture"])
        except ImageError:
            return None

    def _forget_old(self) -> None:
        """Remove sessions that were not seen for a long time, with their files unless results are kept."""
        for session in self.sessions.unseen(time.time() - FORGET_AFTER):
            if self.job_queue.jobs_of(session):
                continue
            gone = self.sessions.forget(session)
            if not self._keeps:
                for step in gone:
                    for path in step.files.values() if step.state is StepState.DONE else ():
                        (self._output.folder / path).unlink(missing_ok=True)

    # Edits

    def edit(self, session: str, values: Mapping[str, Any], parent: int | None = None, *, show: bool = False) -> Job:
        """Request an edit of the picture of a step. The job's result is an `Outcome`.

        Args:
            session: the id from `join`.
            values: values of the form, see `toprope.images.web.form.FIELDS`; "loras" and "scales" for the picker;
                "mask", a file, "painted", a layer of the page's canvas, or "box", a rectangle in percent, for the part
                that may change.
            parent: the number of the step; None for the current one.
            show: make that step the current one, so that the result is shown when it is ready.

        Raises:
            UsageError: a field is invalid, there is no picture, or too many edits wait.
        """
        self.sessions.join(session)
        number = parent
        if number is None and (current := self.sessions.current(session)) is not None:
            number = current.number
        request = self._check(values, None if number is None else "picture")
        assert number is not None
        step = self.sessions.step(session, number)
        if step.state.has_picture and not self._file(step).is_file():
            raise ImageError(
                f"{step.files['picture']} is no longer in the folder with results.", do="choose another picture"
            )
        # The seed is drawn now, so that an interrupted edit gives the same picture when it is requested again.
        seed = int(dice()) if request.seed is None else int(request.seed)
        mask = self._mask(values, self._file(step)) if step.state.has_picture else None
        values = {name: value for name, value in values.items() if name not in ("mask", "box", "painted")} | {
            "mask": mask
        }
        one = {**values, "num_images": 1, "drawn": request.seed is None}
        asked = [{**one, "seed": str((seed + at) % 2**64)} for at in range(request.num_images)]
        begun = self.sessions.begin(session, number, *asked)
        if show:
            self.sessions.show(session, number)
        return self._submit_steps(session, begun, {**values, "seed": str(seed)})

    def branch(self, session: str, values: Mapping[str, Any], number: int | None) -> Job:
        """Request another edit of the picture that a step was made from, and show it; a brought step is edited itself.

        Arguments and errors are those of `edit`.
        """
        self.sessions.join(session)
        step = self.sessions.current(session) if number is None else self.sessions.step(session, number)
        return self.edit(session, values, None if step is None else step.parent or step.number, show=True)

    def again(self, session: str) -> list[Job]:
        """Request the interrupted edits of a session again, after a restart of the server.

        Raises:
            UsageError: too many edits wait; the others stay interrupted.
        """
        found = []
        for step in self.sessions.steps(session):
            if step.state is StepState.INTERRUPTED and self.sessions.again(session, step.number) is not None:
                found.append(self._submit_steps(session, [step], step.request or {}, StepState.INTERRUPTED))
        return found

    def submit(self, client: str, request: EditRequest, loras: Sequence[str] = ()) -> Job:
        """Request an edit outside of sessions. The job's result is an `Outcome`.

        Args:
            client: name of the client.
            request: the request; its picture is a path. A knob that the model does not have fails the job.
            loras: "path:scale" each.

        Raises:
            UsageError: the request is invalid, the file is no picture, or too many edits wait.
        """
        request = request.validate()
        with _by_name(request.image):
            open_picture(request.image)
        name = Path(request.image).name

        def work(job: Job) -> Outcome:
            paths = self._run(job, lambda engine: request, list(loras), name)
            job.result = outcome = Outcome([self._copies.entry(name, path) for path in paths])
            return outcome

        return self.job_queue.submit(f"{PROGRAM}{client}", work, title=request.instruction)

    def dismiss(self, job: Job) -> None:
        """Cancel a job of `submit`, and remove its files unless results are kept."""
        job.cancel()
        for entry in job.result.entries if job.result is not None else ():
            for path in (entry.picture, entry.sidecar):
                self._copies.drop([path.name])
                if not self._keeps:
                    (self._output.folder / path.name).unlink(missing_ok=True)

    def edit_all(self, session: str, values: Mapping[str, Any], images: Sequence[str]) -> Job:
        """Request the same edit of several pictures. A failed one stops no other.

        Each picture is added to the session when its edit begins, with its result. The job's parts are a `Row` for
        each; its result is an `Outcome`, also if it was cancelled.

        Args:
            session: the id from `join`.
            values: as for `edit`.
            images: the files.

        Raises:
            UsageError: a field is invalid, or there are too many pictures.
        """
        if len(images) > self.limits.files:
            raise UsageError(
                f"{len(images)} pictures are too many for one batch.",
                looked_at=f"the most is {self.limits.files}; toprope ui --max-files",
                do="give fewer at once, or use toprope edit --jobs",
            )
        self._check(values, images[0] if images else None)
        if values.get("mask") or values.get("painted") or read_box(values.get("box")) is not None:
            raise UsageError(
                "a batch has no mask: its pictures differ.", do="clear the mask, or edit one picture at a time"
            )
        self.sessions.join(session)

        def work(job: Job) -> Outcome:
            job.result = outcome = Outcome()
            made: dict[int, list[Entry]] = {}
            try:
                self._run_on_free_cards(
                    job, len(images), partial(self._edit_of_batch, job, session, values, images), made
                )
            finally:
                outcome.entries = [entry for at in sorted(made) for entry in made[at]]
                if outcome.entries:
                    outcome.packed = pack(self.scratch / f"batch-{job.number}.zip", outcome.entries)
            return outcome

        return self.job_queue.submit(session, work, about=tuple(images), title=str(values.get("instruction", "")))

    def images_in_use(self) -> set[str]:
        """The uploaded pictures of batches that wait or run. Other uploads were copied when they arrived."""
        return {image for job in self.job_queue.jobs_of() for image in job.about or ()}

    def cancel(self, client: str) -> int:
        """Stop all edits of a session; return their number."""
        return self.job_queue.cancel(client)

    def _submit_steps(
        self,
        session: str,
        steps: Sequence[Step],
        values: Mapping[str, Any],
        refused: StepState = StepState.CANCELLED,
    ) -> Job:
        """Queue waiting steps as one edit with one picture for each. They end when the job ends, however that is."""
        name = steps[0].name
        parent = self.sessions.step(session, int(steps[0].parent or 0))
        image = str(self._file(parent))

        def work(job: Job) -> Outcome:
            for step in steps:
                self.sessions.run(session, step.number)
            paths = self._run(job, *self._request_of_form(values, image), name)
            for step, path in zip(steps, paths, strict=True):
                self.sessions.done(session, step.number, _files(path))
            made = [self._copies.entry(name, path, parent.files["picture"]) for path in paths]
            job.result = outcome = Outcome(made)
            return outcome

        def ended(job: Job, state: State) -> None:
            end = StepState.INTERRUPTED if self._closing and state is State.CANCELLED else ENDS[state]
            problem = None if job.problem is None else vars(job.problem)
            for step in steps:
                if self.sessions.step(session, step.number).state.is_open:
                    self.sessions.end(session, step.number, end, problem)

        try:
            return self.job_queue.submit(session, work, ended, title=str(values.get("instruction", "")))
        except UsageError as error:
            for step in steps:
                self.sessions.end(session, step.number, refused, vars(Problem.of(error)))
            raise

    def _mask(self, values: Mapping[str, Any], picture: Path) -> str | None:
        """Keep a copy of a form's mask; return its path from the folder with results, None without a mask."""
        box, painted, given = read_box(values.get("box")), values.get("painted"), values.get("mask")
        kinds = {"a rectangle": box is not None, "a painted mask": painted, "a mask": given}
        there = [kind for kind, asked in kinds.items() if asked]
        if len(there) > 1:
            raise UsageError(f"there are {' and '.join(there)}.", do="clear all but one of them")
        if not there:
            return None
        made = self.scratch / f"mask-{new_session()}.png"
        try:
            with _by_name(picture):
                size = open_picture(picture).picture.size
            with _by_name(given or made, "" if given else "of the page"):
                if box is not None:
                    save_picture(rectangle(size, box), made)
                elif painted:
                    painted_mask(painted, size, made)
                open_mask(given or made, size)
            return self._output.keep(str(given or made))
        finally:
            made.unlink(missing_ok=True)

    def form_of(self, record: Mapping[str, Any]) -> dict[str, Any]:
        """The values of a form that asks for the same picture; see `toprope.images.web.entries.form_of`.

        "mask" is the path of a copy of its mask, if that is kept.
        """
        kept = self._output.kept(str((record.get("mask") or {}).get("sha256") or ""))
        return form_of(record, self.loras) | {"mask": None if kept is None else str(self._copies.file(kept))}

    def mask_of(self, step: Step) -> Path | None:
        """A copy of the mask of an edit; None if it has none, or it is gone."""
        mask = (step.request or {}).get("mask")
        try:
            return None if not mask else self._copies.file(str(mask))
        except ImageError:
            return None

    def _file(self, step: Step) -> Path:
        return self._output.folder / step.files["picture"]

    # State

    def places(self, session: str | None) -> list[Place]:
        """The queue as a session may see it: all running and waiting jobs, without details of other clients' jobs."""
        found = []
        for job in self.job_queue.jobs_of():
            mine = job.client == session
            owner = "yours" if mine else "of_program" if job.client.startswith(PROGRAM) else "of_page"
            found.append(Place(owner, job.view(), job.title if mine else "", len(job.about or ())))
        return found

    def facts(self) -> dict[str, Any]:
        """The model, the device and the queue, ready for JSON."""
        loader, problem = self.loader, self.loader.problem
        found: dict[str, Any] = {
            "model": {
                "name": self.name,
                "state": loader.state,
                "note": loader.note,
                "seconds": round(loader.seconds, 1),
                "problem": None if problem is None else vars(problem),
            },
            "queue": self.job_queue.describe(),
        }
        engine = loader.opened
        if engine is None:
            return found
        try:
            engine_facts, memory = engine.describe(), engine.memory()
        except UsageError:  # the model is loaded again, in another dtype
            found["model"] |= {"state": "loading", "note": loader.note}
            return found
        found |= {
            name: engine_facts.get(name)
            for name in ("family", "pipeline", "device", "device_name", "simulated", "dtype")
        }
        found |= {
            "attention": (engine_facts.get("attention") or {}).get("path"),
            "rung": (engine_facts.get("memory") or {}).get("rung"),
        }
        found |= {"loras": [str(each.get("name", each)) for each in engine_facts.get("loras") or ()], "memory": memory}
        return found

    def family(self) -> str | None:
        """The name of the model's family; None before it is ready."""
        engine = self.loader.opened
        try:
            return None if engine is None else str(engine.describe()["family"])
        except UsageError:
            return None

    def options(self) -> dict[str, Any] | None:
        """The model's knobs with their defaults; None before it is ready."""
        engine = self.loader.opened
        if engine is None:
            return None
        try:
            return dict(engine.describe()["options"])
        except UsageError:
            return None

    def refiner(self) -> str | None:
        """Name of the refiner; None for no refiner, and before the model is ready."""
        engine = self.loader.opened
        try:
            found = None if engine is None else engine.describe()["refiner"]
        except UsageError:
            return None
        if found is None:
            return None
        return str(found.get("provider", "a refiner")) if isinstance(found, dict) else str(found)

    def close(self, seconds: float = 60.0) -> bool:
        """Cancel all edits, release the device and remove temporary files; True if it ended in time."""
        self._closing = True
        ended = self.job_queue.close(seconds)
        for worker in self._workers:
            worker.close(seconds, ended=ended)
        if ended:
            self.sessions.close()
        shutil.rmtree(self.scratch, ignore_errors=True)
        return ended

    # Inside, in the thread of the queue

    def _check(self, values: Mapping[str, Any], image: str | None) -> EditRequest:
        """Refuse requests that are invalid for every model."""
        picked_loras(values.get("loras"), values.get("scales") or (), self.loras)
        return read_form(values, image, self.options() or (), refiner=False)

    def _request_of_form(
        self, values: Mapping[str, Any], image: str
    ) -> tuple[Callable[[Engine], EditRequest], list[str]]:
        """A function that makes a request from a form once the model is loaded, and the selected LoRAs."""

        def request(engine: Engine) -> EditRequest:
            asked = read_form(values, image, engine.describe()["options"], refiner=self.refiner() is not None)
            return replace(asked, mask=str(self._output.folder / values["mask"])) if values.get("mask") else asked

        return request, picked_loras(values.get("loras"), values.get("scales") or (), self.loras)

    def _run(
        self,
        job: Job,
        request_for: Callable[[Engine], EditRequest],
        loras: list[str],
        name: str,
        worker: Worker | None = None,
    ) -> list[str]:
        """Edit, and save the results; return the pictures' paths from the folder with results."""
        worker = worker or self._workers[0]
        if worker.loader.state == "loading":
            job.tell("waiting for the model to be loaded")
        request = request_for(worker.loader.get(job.check))
        with _by_name(request.image, name):
            # One bar shows the steps of one card.
            on_step = job.step if worker is self._workers[0] else lambda _: None
            result = worker.edit(job, request, loras, on_step=on_step)
        return [path.name for path in save(self._output, request, result, name)]

    def _run_on_free_cards(
        self,
        job: Job,
        count: int,
        row: Callable[[int, Worker], list[Entry]],
        made: dict[int, list[Entry]],
    ) -> None:
        """Do the pictures of a batch on all cards, each on the card that is free next.

        A card whose model cannot be loaded is left out with a warning; the first card does its work then.

        Raises:
            EditCancelled: the job was cancelled.
        """
        left, problems = deque(range(count)), list[BaseException]()

        def check() -> None:
            job.check()
            if not left:
                raise EditCancelled("there is nothing left to do.")

        def work(worker: Worker) -> None:
            first = worker is self._workers[0]
            try:
                if not first:
                    worker.loader.start()
                    worker.loader.get(check)
                while True:
                    try:
                        at = left.popleft()
                    except IndexError:
                        return
                    job.check()
                    job.begin_part(at)
                    made[at] = row(at, worker)
            except EditCancelled:
                if job.cancelled():
                    problems.append(EditCancelled("the edit was cancelled."))
            except EditError as error:
                _log.warning("a card is left out of the batch: %s", error.what)
            except BaseException as error:
                problems.append(error)

        others = [
            threading.Thread(target=work, args=(worker,), name=f"toprope-batch-{at}", daemon=True)
            for at, worker in enumerate(self._workers[1:count], 1)
        ]
        for thread in others:
            thread.start()
        work(self._workers[0])
        for thread in others:
            thread.join()
        if problems:
            raise problems[0]

    def _edit_of_batch(
        self, job: Job, session: str, values: Mapping[str, Any], images: Sequence[str], at: int, worker: Worker
    ) -> list[Entry]:
        """Edit one picture of a batch: add it to the session, edit it, and report its `Row` to the job."""
        image, step = images[at], None
        name = Path(image).name
        try:
            with _by_name(image):
                open_picture(image)
            source = self._bring(session, image, show=False)
            given = read_seed(values.get("seed"))
            seed = str(int(dice()) if given is None else given)
            row = {**values, "seed": seed, "num_images": 1, "drawn": given is None}
            (step,) = self.sessions.begin(session, source.number, row)
            asked = self._request_of_form({**values, "seed": seed}, str(self._file(source)))
            self.sessions.run(session, step.number)
            paths = self._run(job, *asked, name, worker)
            for picture, path in enumerate(paths):
                each = step if picture == 0 else self.sessions.begin(session, source.number, step.request or {})[0]
                self.sessions.done(session, each.number, _files(path))
            entries = [self._copies.entry(name, path, source.files["picture"]) for path in paths]
        except EditCancelled:
            self._end_edit_of_batch(
                session, step, StepState.INTERRUPTED if self._closing else StepState.CANCELLED, None
            )
            raise
        except Exception as error:
            problem = Problem.of(error)
            self._end_edit_of_batch(session, step, StepState.FAILED, problem)
            job.add(Row(name, problem=problem, at=at), at)
            return []
        job.add(Row(name, entries[0], at=at), at)
        return entries

    def _end_edit_of_batch(self, session: str, step: Step | None, state: StepState, problem: Problem | None) -> None:
        if step is not None and self.sessions.step(session, step.number).state.is_open:
            self.sessions.end(session, step.number, state, None if problem is None else vars(problem))
