"""The studio: a model that loads in the background, a desk where edits wait, and what each client has made.

Everything that a page can do is a method here; `toprope.images.web.app` only draws.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from toprope.errors import EditCancelled, ImageError, UsageError
from toprope.images.picture.files import open_picture
from toprope.images.request import EditRequest
from toprope.images.runs.output import Output
from toprope.images.web.desk import Desk, Job, Problem
from toprope.images.web.form import picked_loras, read_form
from toprope.images.web.history import Entry, Histories
from toprope.images.web.keeping import drop, keep, pack
from toprope.images.web.loading import Loader

if TYPE_CHECKING:
    from toprope.images.engine import Engine

__all__ = ["Limits", "Outcome", "Row", "Studio"]


@dataclass(frozen=True)
class Limits:
    """What clients may ask for.

    Attributes:
        upload: bytes of one file.
        files: in one batch.
        waiting: edits in the queue.
        waiting_each: edits of one page in the queue.
        uploads: files of all pages that are kept at the same time.
    """

    upload: int = 32 * 2**20
    files: int = 64
    waiting: int = 32
    waiting_each: int = 4
    uploads: int = 256


@dataclass(frozen=True)
class Row:
    """A picture of a batch that is over.

    Attributes:
        name: of its file.
        entry: the first of its results; None where it failed.
        problem: why it failed.
    """

    name: str
    entry: Entry | None = None
    problem: Problem | None = None


@dataclass
class Outcome:
    """What came of a job.

    Attributes:
        entries: the pictures.
        packed: a ZIP with all files of a batch.
    """

    entries: list[Entry] = field(default_factory=list)
    packed: Path | None = None

    @property
    def instruction(self) -> str:
        """What the model was told: what the client wrote, or what a refiner made of it."""
        return str(self.entries[0].record["request"]["instruction"]) if self.entries else ""

    @property
    def refinement(self) -> Mapping[str, Any] | None:
        """What the refiner did; None where it was not asked."""
        found: Mapping[str, Any] | None = self.entries[0].record.get("refinement") if self.entries else None
        return found

    @property
    def notes(self) -> list[str]:
        """What was done to the picture before it was edited, and what was done otherwise than asked for."""
        if not self.entries:
            return []
        record = self.entries[0].record
        name, source = self.entries[0].name, record["source"].get("notes", ())
        return [*(f"{name}: {note}" for note in source), *record.get("notices", ())]


@contextmanager
def _by_name(image: Any) -> Iterator[None]:
    """A context in which errors about a picture call it by its name: where uploads lie means nothing to anybody."""
    try:
        yield
    except ImageError as error:
        raise ImageError(*(str(text).replace(str(image), Path(image).name) for text in error.args)) from error


class Studio:
    """Serves clients, each known by a text of its own. The model is loaded once `load` was called.

    Args:
        name: of the model, for people.
        open_engine: called in a thread, with a function that takes sentences about what is done, now and later.
        out_dir: where results are kept; without, they go when the studio is closed.
        loras: paths that may be picked, by name.
        limits: what clients may ask for.
    """

    def __init__(
        self,
        name: str,
        open_engine: Callable[[Callable[[str], None]], Engine],
        *,
        out_dir: Path | None = None,
        loras: Mapping[str, str] | None = None,
        limits: Limits | None = None,
    ) -> None:
        self.name, self.limits, self.loras = name, limits or Limits(), dict(loras or {})
        self.scratch = Path(tempfile.mkdtemp(prefix="toprope-ui-"))
        # Sources are kept with results that are; pages have theirs anyway.
        self._output = Output(out_dir or self.scratch / "made", sources=out_dir is not None)
        self._asked: list[tuple[Job, tuple[str, ...]]] = []
        self.histories = Histories()
        self.desk = Desk(self.limits.waiting, self.limits.waiting_each)
        self._job: Job | None = None
        self._loras_now: list[str] | None = []  # with which the engine is opened
        self.loader: Loader[Engine] = Loader(lambda tell: open_engine(self._telling(tell)))

    def load(self) -> None:
        """Begin to load the model, in a thread; edits can be asked for before."""
        self.loader.start()

    # What clients do

    def edit(self, client: str, values: Mapping[str, Any], image: str | None) -> Job:
        """Ask for an edit of one picture. The job's result is an `Outcome`.

        Args:
            client: who asks.
            values: of the form, see `toprope.images.web.form.FIELDS`; "loras" and "scales" for the picker.
            image: a file.

        Raises:
            UsageError: the form cannot be, the picture is none, or too many edits wait.
        """
        self._check(values, image)
        with _by_name(image):
            open_picture(image)

        def work(job: Job) -> Outcome:
            job.result = outcome = Outcome()
            outcome.entries = self._one(job, client, values, str(image))
            return outcome

        return self._submit(client, work, [str(image)])

    def submit(self, client: str, request: EditRequest, loras: Sequence[str] = ()) -> Job:
        """Ask for an edit that is described whole. The job's result is an `Outcome`.

        Args:
            client: who asks.
            request: its picture is a path. What the model does not honour fails the job.
            loras: "path:scale" each.

        Raises:
            UsageError: the request cannot be, the picture is none, or too many edits wait.
        """
        request = request.validate()
        with _by_name(request.image):
            open_picture(request.image)

        def work(job: Job) -> Outcome:
            job.result = outcome = Outcome()
            outcome.entries = self._run(job, client, lambda engine: request, list(loras))
            return outcome

        return self._submit(client, work, [str(request.image)])

    def edit_all(self, client: str, values: Mapping[str, Any], images: Sequence[str]) -> Job:
        """Ask for the same edit of several pictures. One that fails stops no other.

        The job's parts are a `Row` for each picture, its result is an `Outcome`: also where it was cancelled.

        Args:
            client: who asks.
            values: as for `edit`.
            images: files.

        Raises:
            UsageError: the form cannot be, or there are too many.
        """
        if len(images) > self.limits.files:
            raise UsageError(
                f"{len(images)} pictures are too many for one batch.",
                looked_at=f"the most is {self.limits.files}; toprope ui --max-files",
                do="give fewer at once, or use toprope edit --jobs",
            )
        self._check(values, images[0] if images else None)

        def work(job: Job) -> Outcome:
            job.result = outcome = Outcome()
            try:
                for image in images:
                    job.check()
                    outcome.entries += self._row(job, client, values, image)
            finally:
                if outcome.entries:
                    outcome.packed = pack(self.scratch / f"batch-{job.number}.zip", outcome.entries)
            return outcome

        return self._submit(client, work, images)

    def images_in_use(self) -> set[str]:
        """The pictures of edits that wait or run."""
        self._asked = [each for each in self._asked if not each[0].state.over]
        return {image for _, images in self._asked for image in images}

    def _submit(self, client: str, work: Callable[[Job], Outcome], images: Sequence[str]) -> Job:
        job = self.desk.submit(client, work)
        self._asked = [*(each for each in self._asked if not each[0].state.over), (job, tuple(images))]
        return job

    def cancel(self, client: str) -> int:
        """Stop all edits of a client; how many there were."""
        return self.desk.cancel(client)

    def leave(self, client: str) -> None:
        """A client is gone: its edits are stopped, its history is forgotten."""
        self.cancel(client)
        drop(self.histories.forget(client))

    # What can be seen

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
            "queue": self.desk.describe(),
        }
        engine = loader.opened
        if engine is None:
            return found
        try:
            told, memory = engine.describe(), engine.memory()
        except UsageError:  # the model is loaded anew, in another dtype
            found["model"] |= {"state": "loading", "note": loader.note}
            return found
        found |= {
            name: told.get(name) for name in ("family", "pipeline", "device", "device_name", "simulated", "dtype")
        }
        found |= {
            "attention": (told.get("attention") or {}).get("path"),
            "rung": (told.get("memory") or {}).get("rung"),
        }
        found |= {"loras": [str(each.get("name", each)) for each in told.get("loras") or ()], "memory": memory}
        return found

    def options(self) -> dict[str, Any] | None:
        """The knobs that the model honours with their defaults; None before it is ready."""
        engine = self.loader.opened
        if engine is None:
            return None
        try:
            return dict(engine.describe()["options"])
        except UsageError:
            return None

    def refiner(self) -> str | None:
        """Who words instructions anew; None for nobody, and before the model is ready."""
        engine = self.loader.opened
        try:
            told = None if engine is None else engine.describe()["refiner"]
        except UsageError:
            return None
        if told is None:
            return None
        return str(told.get("provider", "a refiner")) if isinstance(told, dict) else str(told)

    def close(self, seconds: float = 60.0) -> bool:
        """Cancel all edits, give the device back and remove what was not to be kept; whether it ended in time."""
        ended = self.desk.close(seconds)
        engine = self.loader.close(seconds)
        if engine is not None and ended:
            engine.close()
        shutil.rmtree(self.scratch, ignore_errors=True)
        return ended

    # Inside, in the desk's thread

    def _check(self, values: Mapping[str, Any], image: str | None) -> None:
        """Refuse at once what cannot be, whatever the model is."""
        read_form(values, image, self.options() or (), refiner=False)
        picked_loras(values.get("loras"), values.get("scales") or (), self.loras)

    def _one(self, job: Job, client: str, values: Mapping[str, Any], image: str) -> list[Entry]:
        def request(engine: Engine) -> EditRequest:
            return read_form(values, image, engine.describe()["options"], refiner=self.refiner() is not None)

        loras = picked_loras(values.get("loras"), values.get("scales") or (), self.loras)
        return self._run(job, client, request, loras)

    def _run(
        self, job: Job, client: str, request_for: Callable[[Engine], EditRequest], loras: list[str]
    ) -> list[Entry]:
        self._job = job
        try:
            if self.loader.state == "loading":
                job.tell("waiting for the model to be loaded")
            engine = self.loader.get(job.check)
            request = request_for(engine)
            self._set_loras(engine, loras)
            with _by_name(request.image):
                result = engine.edit(request, on_step=job.step, cancelled=job.cancelled)
        finally:
            self._job = None
        entries = keep(self._output, self.scratch, request, result)
        for entry in entries:
            drop(self.histories.add(client, entry))
        return entries

    def _row(self, job: Job, client: str, values: Mapping[str, Any], image: str) -> list[Entry]:
        name = Path(image).name
        try:
            entries = self._one(job, client, values, image)
        except EditCancelled:
            raise
        except Exception as error:
            job.add(Row(name, problem=Problem.of(error)))
            return []
        job.add(Row(name, entries[0]))
        return entries

    def _set_loras(self, engine: Any, wanted: list[str]) -> None:
        if self.loras and wanted != self._loras_now:
            self._loras_now = None  # not known while it is changed
            engine.set_loras(wanted)
            self._loras_now = wanted

    def _telling(self, tell: Callable[[str], None]) -> Callable[[str], None]:
        """What takes the engine's sentences, for as long as it lives: for the edit that runs, and for the loader."""

        def telling(note: str) -> None:
            job = self._job
            if job is not None:
                job.tell(note)
            tell(note)

        return telling
