"""The engine: a model on a device, which edits pictures one after the other or several at once.

Seams for the parts that it is made of: `families` (what a model is), `placement` (where its parts lie; the rungs of
the memory ladder), `lora`, `refine` (of instructions), `guard`, `attention`, `host_operators`.
"""

from __future__ import annotations

import gc
import logging
import os
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from importlib import import_module
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal

from toprope import device as devices
from toprope.errors import EditCancelled, EditError, UnsupportedError, UsageError
from toprope.images.batching import Row, Settled, batches, rows_of
from toprope.images.families import find
from toprope.images.families.base import Family, Prompt, stack_prompts
from toprope.images.geometry import plan_frame
from toprope.images.pictures import fit_back, fit_in, open_picture, to_pictures
from toprope.images.placement import Loaded, OnDevice, Placement
from toprope.images.prompts import PromptCache
from toprope.images.request import KNOBS, EditRequest
from toprope.images.results import EditResult, Step, files_of, versions

if TYPE_CHECKING:
    import torch
    from PIL.Image import Image

    from toprope.device import Device

__all__ = ["Engine", "read_dtype"]

_log = logging.getLogger("toprope")

DTYPES = {
    "bf16": "bfloat16", "fp16": "float16", "fp32": "float32",
    "bfloat16": "bfloat16", "float16": "float16", "float32": "float32",
}  # fmt: skip

OnStep = Callable[[Step], None]
Cancelled = Callable[[], bool]


def read_dtype(dtype: str | torch.dtype, device: Device) -> torch.dtype:
    """The dtype that is meant, of which it is known that it works on the device.

    Args:
        dtype: "auto" for the best that works; "bf16", "fp16", "fp32", torch's own names, or a torch.dtype.
        device: where it is tried.

    Raises:
        UsageError: no such dtype.
        UnsupportedError: it does not work on the device.
    """
    import torch

    if dtype == "auto":
        return device.best_dtype()
    name = DTYPES.get(str(dtype).removeprefix("torch."))
    if name is None:
        raise UsageError(f"{dtype!r} is no dtype for a model.", do="give auto, bf16, fp16 or fp32")
    found: torch.dtype = getattr(torch, name)
    probe = device.probe(found)
    if not probe.works:
        raise UnsupportedError(
            f"{device} does not compute in {name}.",
            looked_at=f"{probe.failed or 'not tried'}: {probe.reason}",
            do=f"use {str(device.best_dtype()).removeprefix('torch.')}, or auto",
        )
    return found


class Engine:
    """A model that edits pictures. Made by `open`; close it, or use it as a context manager.

    One edit runs at a time; threads that call at once wait for each other. Every call makes the engine's device the
    current one of its thread while it runs.

    Attributes:
        loaded: the pipeline with its family, folder, device and dtype.
    """

    loaded: Loaded

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._prompts = PromptCache()
        self._placement: Placement = OnDevice()
        self._falls = True
        self._loras: tuple[str, ...] = ()
        self._adapters: Any = None
        self._refiner: Any = None
        self._progress: Callable[[str], None] | None = None
        self._files: dict[str, Any] = {}
        self._notices: list[str] = []
        self._open = False

    @classmethod
    def open(
        cls,
        model: str | os.PathLike[str],
        *,
        device: str | Device | None = None,
        dtype: str | torch.dtype = "auto",
        memory: str = "auto",
        loras: Sequence[str] = (),
        refiner: str | None = None,
        host_operators: bool = False,
        progress: Callable[[str], None] | None = None,
    ) -> Engine:
        """Load a model and make it ready.

        Args:
            model: the folder that a pipeline was saved to; nothing is downloaded.
            device: as for `toprope.device.get`.
            dtype: "auto", "bf16", "fp16", "fp32" or a torch.dtype.
            memory: a rung of the memory ladder that is kept to, or "auto": it begins with all parts on the device, and
                goes one rung down, with a notice, whenever memory runs out.
            loras: "path" or "path:scale" each.
            refiner: who words instructions anew, see `toprope.images.refine`; None for nobody.
            host_operators: whether an operator that the device refuses is run on the host, with a warning.
            progress: is told in a sentence what is done, and every notice.

        Raises:
            UsageError: an argument cannot be, or the folder is none of a model that edits pictures.
            WeightsError, LoraError: files cannot be loaded.
            EnvironmentProblem: no such device, or a package is missing.
        """
        engine = cls()
        engine._progress = progress
        family, folder = find(model)
        placement = _placement("none" if memory == "auto" else memory)
        chosen = devices.get(device)
        engine._falls, engine._loras = memory == "auto", tuple(loras)
        if refiner is not None and refiner != "none":
            engine._refiner = import_module("toprope.images.refine").open_refiner(refiner)
        with devices.use(chosen):
            engine._tell(f"loading {folder}")
            kind = read_dtype(dtype, chosen)
            engine._files = files_of(folder)
            engine._load(Loaded(family, folder, None, chosen, kind), placement)
        engine._open = True
        return engine

    # What it is

    @property
    def family(self) -> Family:
        """The family of the model."""
        return self.loaded.family

    @property
    def device(self) -> Device:
        """Where it computes."""
        return self.loaded.device

    def describe(self) -> dict[str, Any]:
        """What is in use, ready for JSON: model, family, device, dtype, rung, LoRAs, options with their defaults."""
        loaded = self._checked()
        defaults = dict(loaded.family.defaults(loaded.pipeline))
        return {
            "model": str(loaded.folder),
            "family": loaded.family.name,
            "pipeline": type(loaded.pipeline).__name__,
            "device": str(loaded.device),
            "device_name": loaded.device.name,
            "simulated": loaded.device.capabilities.simulated,
            "dtype": str(loaded.dtype).removeprefix("torch."),
            "memory": {"rung": self._placement.rung, "auto": self._falls, **self._placement.describe()},
            "loras": self._adapters.describe() if self._adapters is not None else [],
            "refiner": self._refiner.describe() if self._refiner is not None else None,
            "options": {name: defaults[name] for name in KNOBS if name in loaded.family.options},
        }

    def memory(self) -> dict[str, int | None]:
        """The device's memory in bytes: allocated, reserved, peak, free, total; see `toprope.device.Memory`."""
        return self._checked().device.memory().as_dict()

    # Editing

    def edit(
        self, request: EditRequest, *, on_step: OnStep | None = None, cancelled: Cancelled | None = None
    ) -> EditResult:
        """Edit a picture.

        Args:
            request: what to do.
            on_step: called after each step of denoising, in the calling thread.
            cancelled: asked before each step whether to stop.

        Raises:
            UsageError: the request cannot be, or the model does not honour one of its knobs.
            ImageError: the picture cannot be read.
            EditCancelled: `cancelled` said so; the engine can be used on.
            EditGuardError: what came out is no picture, also in the next safer dtype.
            EditError: memory ran out, and there is no lower rung.
        """
        return self.edit_all([request], on_step=on_step, cancelled=cancelled)[0]

    def edit_all(
        self,
        requests: Sequence[EditRequest],
        *,
        on_step: OnStep | None = None,
        cancelled: Cancelled | None = None,
        at_once: int = 8,
    ) -> list[EditResult]:
        """Edit several pictures, those that agree in size and knobs through the pipeline at once.

        The noise of each is what it would be alone; the pictures are the same within the rounding of larger products.

        Args:
            requests: what to do. The first that cannot be is an error for all, before anything is computed.
            on_step, cancelled: as for `edit`; steps of several batches are counted together.
            at_once: pictures in a batch, at most.

        Raises:
            What `edit` raises.
        """
        with self._lock, devices.use(self._checked().device):
            begin = time.perf_counter()
            self._notices = []
            self.device.reset_peak_memory()
            settled = [self._settle(request) for request in requests]
            rows = rows_of(settled)
            groups = list(batches(rows, at_once if self.family.batches else 1))
            pictures: dict[int, list[Image]] = {at: [] for at in range(len(settled))}
            watch = _Watch(begin, len(groups), on_step, cancelled)
            for group in groups:
                watch.check()
                for row, picture in zip(group, self._safely(group, watch), strict=True):
                    pictures[row.at].append(fit_back(picture, row.settled.frame))
                watch.group_done()
            seconds = time.perf_counter() - begin
            return [EditResult(pictures[at], self._record(each, seconds)) for at, each in enumerate(settled)]

    def close(self) -> None:
        """Give the device's memory back. The engine cannot be used afterwards; closing it twice does nothing."""
        with self._lock:
            if not self._open:
                return
            self._open = False
            with devices.use(self.device):
                self._drop()
                self.loaded.pipeline = None
                gc.collect()
                self.device.empty_cache()

    def __enter__(self) -> Engine:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # Inside

    def _checked(self) -> Loaded:
        if not self._open:
            raise UsageError("the engine is closed.", do="open another")
        return self.loaded

    def _tell(self, text: str) -> None:
        if self._progress is not None:
            self._progress(text)

    def _notice(self, text: str) -> None:
        self._notices.append(text)
        _log.warning("%s", text)
        self._tell(text)

    def _load(self, loaded: Loaded, placement: Placement) -> None:
        """Load the pipeline and place it, lower on the ladder where memory runs out."""
        loaded.pipeline = loaded.family.load(loaded.folder, loaded.dtype)
        self.loaded, self._placement = loaded, placement
        self._prompts.clear()
        if self._loras:
            self._adapters = import_module("toprope.images.lora").open_all(loaded, self._loras)
        while True:
            try:
                self._placement.place(loaded)
                return
            except Exception as error:
                failed = self._out_of_memory(error)
            self._lower(failed)

    def _drop(self) -> None:
        self._placement.undo(self.loaded)
        self._prompts.clear()

    def _out_of_memory(self, error: Exception) -> str:
        """What an error that is about memory says; every other error is raised again."""
        if not self.loaded.device.is_out_of_memory(error):
            raise error
        if not self._falls or _below(self._placement.rung) is None:
            raise EditError(
                f"{self.loaded.device} has not the memory for this, on the rung {self._placement.rung!r}.",
                looked_at=" ".join(str(error).split())[:300],
                do="give memory='auto', a lower rung, a smaller max_pixels, or a smaller batch",
            ) from error
        return " ".join(str(error).split())[:200]

    def _lower(self, reason: str) -> None:
        """Undo the placement and take the next one, which is not placed yet."""
        lower = _below(self._placement.rung)
        assert lower is not None
        self._notice(f"memory ran out on the rung {self._placement.rung!r}; going on with {lower!r} ({reason})")
        self._placement.undo(self.loaded)
        gc.collect()
        self.loaded.device.empty_cache()
        self._placement = _placement(lower)

    def _settle(self, request: EditRequest) -> Settled:
        """The request with the family's defaults, its picture opened, and its instruction worded anew if wanted."""
        request = request.validate()
        loaded = self.loaded
        for name in request.given():
            if name not in loaded.family.options:
                honoured = ", ".join(sorted(loaded.family.options))
                raise UsageError(
                    f"models of the family {loaded.family.name} have no {name}.",
                    looked_at=f"{name}={getattr(request, name)!r}; honoured are {honoured}",
                    do="leave it out",
                )
        defaults = loaded.family.defaults(loaded.pipeline)
        open_ = {name: defaults[name] for name in loaded.family.options if getattr(request, name) is None}
        opened = open_picture(request.image)
        native = loaded.family.native(loaded.pipeline)
        bounds = [each for each in (request.max_pixels, native.max_pixels) if each is not None]
        frame = plan_frame(
            opened.picture.size, size=request.size, fit=request.fit, pixels=native.pixels, multiple=native.multiple,
            square=native.square, sizes=native.sizes, max_pixels=min(bounds, default=None),
        )  # fmt: skip
        seed = devices.concrete_seed(request.seed)
        refinement = None
        if request.refine and self._refiner is None:
            raise UsageError("refine is on, and the engine has no refiner.", do="open the engine with refiner=...")
        if self._refiner is not None and request.refine is not False:
            self._tell("wording the instruction anew")
            found = self._refiner.refine(opened.picture, request.instruction)
            refinement = found.as_json()
            open_["instruction"] = found.instruction
        request = replace(request, seed=seed, **open_)
        loaded.family.check(loaded.pipeline, request)
        return Settled(request, opened, frame, seed, refinement)

    def _safely(self, group: Sequence[Row], watch: _Watch) -> list[Image]:
        """The pictures of a batch, with what is done where memory runs out."""
        while True:
            try:
                return self._run(group, watch)
            except Exception as error:
                failed = self._out_of_memory(error)
            self._lower(failed)
            self._placement.place(self.loaded)
            watch.again()

    def _run(self, group: Sequence[Row], watch: _Watch) -> list[Image]:
        """The pictures of a batch."""
        import torch

        loaded = self.loaded
        shown = [fit_in(row.settled.opened.picture, row.settled.frame) for row in group]
        with torch.no_grad():
            with self._placement.encoding(loaded):
                prompts = [
                    self._prompt(row.settled.request, picture) for row, picture in zip(group, shown, strict=True)
                ]
            where: Literal["device", "cpu"] = (
                "device" if group[0].settled.request.generator_device == "device" else "cpu"
            )
            generators = [loaded.device.generator(row.seed, on=where) for row in group]
            prompt = stack_prompts(prompts).to(loaded.device.torch_device)
            with self._placement.running(loaded):
                images = loaded.family.run(
                    loaded.pipeline, shown, group[0].settled.request, prompt, generators, watch.step
                )
            return to_pictures(images.float().cpu())

    def _prompt(self, request: EditRequest, picture: Image) -> Prompt:
        family = self.loaded.family
        seen = picture if family.prompt_sees_picture else None
        key = PromptCache.key(request.instruction, request.negative or "", seen)
        found = self._prompts.get(key)
        if found is None:
            found = family.encode(self.loaded.pipeline, request.instruction, request.negative or "", [picture])
            self._prompts.put(key, found)
        return found.to(self.loaded.device.torch_device)

    def _record(self, settled: Settled, seconds: float) -> dict[str, Any]:
        """Everything needed to repeat an edit, ready for JSON."""
        request, frame = settled.request, settled.frame
        row = request.as_json() | {"image": settled.opened.name, "refine": False}
        return {
            "request": row,
            "seeds": [(settled.seed + number) % 2**64 for number in range(request.num_images)],
            "source": {"size": list(frame.source), "notes": list(settled.opened.notes)},
            "frame": {"model": list(frame.model), "crop": list(frame.crop), "inner": list(frame.inner)},
            "engine": self.describe(),
            "model_files": self._files,
            "refinement": settled.refinement,
            "versions": versions(),
            "seconds": round(seconds, 3),
            "peak_memory": self.device.max_memory_allocated(),
            "notices": list(self._notices),
        }


class _Watch:
    """What happens between two steps: they are counted and told, and the caller may stop."""

    def __init__(self, begin: float, groups: int, on_step: OnStep | None, cancelled: Cancelled | None) -> None:
        self._begin, self._groups = begin, groups
        self._on_step, self._cancelled = on_step, cancelled
        self._done = 0
        self._number = 0

    def check(self) -> None:
        """Raise where the caller has cancelled."""
        if self._cancelled is not None and self._cancelled():
            raise EditCancelled(f"the edit was cancelled after {self._done + self._number} steps.")

    def step(self, number: int, of: int, latents: Any, stage: str = "edit") -> None:
        """A step is done; called by the family."""
        self._number = number
        if self._on_step is not None:
            seconds = time.perf_counter() - self._begin
            self._on_step(Step(self._done + number, of * self._groups, seconds, stage))
        if number < of:
            self.check()

    def again(self) -> None:
        """The steps of this batch are done anew."""
        self._number = 0

    def group_done(self) -> None:
        """A batch is done."""
        self._done, self._number = self._done + self._number, 0


def _placement(rung: str) -> Placement:
    if rung == "none":
        return OnDevice()
    made: Placement = import_module("toprope.images.rungs").make(rung)
    return made


def _below(rung: str) -> str | None:
    found: str | None = import_module("toprope.images.ladder").below(rung)
    return found
