"""The engine: a model on a device that edits pictures, one after the other or several at once.

Made with `Engine.open` by `toprope edit` (`cli.editing.execution`), the page (`images.web.worker`), a process for
each card (`images.runs.cards`) and users' programs. It has the order of the work only. The parts do it: `families` (a
file for each kind of model), `pipeline_manager` and `memory` (where the parts of the pipeline lie), `lora`,
`refining` (of instructions), `execution` (attention, host operators, checks of the result). Public methods are in
docs/images.md; work holds the lock, while `describe` may be called meanwhile. Its errors and notices are also shown on
the page: a new text needs its translation in `images.web.messages`. Tests:
tests/images/simulated/test_images_engine.py, tests/images/test_images_engine.py.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal

from toprope import device as devices
from toprope.errors import EditError, UsageError
from toprope.images import samplers
from toprope.images.batching import ResolvedRequest, Row, batches, rows_of
from toprope.images.callbacks import Notices, StepCallback
from toprope.images.execution.attention_path import FUSED, AttentionWatch
from toprope.images.execution.dtypes import read_dtype
from toprope.images.execution.fused_attention import FusedAttention
from toprope.images.execution.guard import check_pictures
from toprope.images.execution.host_operators import HostOperators
from toprope.images.families import find
from toprope.images.families.base import Family, Prompt, stack_prompts
from toprope.images.memory.placement import Loaded
from toprope.images.picture.files import fit_back, fit_in, to_pictures
from toprope.images.pipeline_manager import PipelineManager
from toprope.images.prompts import PromptCache
from toprope.images.repeat import differences
from toprope.images.request import KNOBS, EditRequest
from toprope.images.resolve import resolve_request
from toprope.images.results import EditResult, files_of, make_record
from toprope.progress import Step

if TYPE_CHECKING:
    import torch
    from PIL.Image import Image

    from toprope.device import Device
    from toprope.images.lora.adapters import Adapters

__all__ = ["Engine"]

OnStep = Callable[[Step], None]
Cancelled = Callable[[], bool]

ATTENTIONS = ("auto", "torch")
"""Values of `attention`: the fused operator of an NPU where there is one, or torch's own choice always."""


class Engine:
    """A model that edits pictures. Made by `open`; close it, or use it as a context manager.

    One edit runs at a time; threads that call at once wait for each other. Every call makes the engine's device the
    current one of its thread while it runs.
    """

    def __init__(
        self,
        manager: PipelineManager,
        notices: Notices,
        files: dict[str, Any],
        refiner: Any,
        host: HostOperators | None,
        attention: str = "auto",
    ) -> None:
        self._manager, self._notices, self._files, self._refiner, self._host = manager, notices, files, refiner, host
        self._fused = FusedAttention(
            self.loaded.device.fused_attention() if attention == "auto" else None, self.loaded.device.kind
        )
        self._attention_asked = attention
        self._lock = threading.RLock()
        self._open = True
        self._kind = type(self.loaded.pipeline).__name__
        self._parts = dict(self.family.describe(self.loaded.pipeline))
        self._defaults = self.loaded.defaults()
        self._prompts = PromptCache()
        self._attention_now: dict[str, Any] = {"path": None, "why": "it is looked at in the first edit"}

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
        full_hashes: bool = False,
        attention: str = "auto",
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
            refiner: a model that rewrites instructions, see `toprope.images.refining.opening`; None for none.
            host_operators: run operators that the device refuses on the host, with a warning.
            full_hashes: put the SHA-256 of whole files of weights into records, for which they are read once, and not
                only of their headers.
            attention: "auto" for the fused operator of an NPU where the card has it, "torch" for torch's own choice.
            progress: called with a sentence for each stage and each notice.

        Raises:
            UsageError: an argument is invalid, or the folder has no model that edits pictures.
            WeightsError, LoraError: files cannot be loaded.
            EnvironmentProblem: the device is unknown, or a package is missing.
        """
        if attention not in ATTENTIONS:
            raise UsageError(
                f"attention is {attention!r}, and must be one of {', '.join(ATTENTIONS)}.", do="give one of them"
            )
        family, folder = find(model)
        chosen, notices = devices.get(device), Notices(progress)
        words = None
        if refiner is not None:
            from toprope.images.refining.opening import open_refiner

            words = open_refiner(refiner)
        with devices.use(chosen):
            loaded = Loaded(family, folder, None, chosen, read_dtype(dtype, chosen))
            manager = PipelineManager(loaded, memory, loras, notices)
            manager.load()
        host = HostOperators(notices.notice) if host_operators else None
        files = files_of(*family.folders(folder), full=full_hashes)
        return cls(manager, notices, files, words, host, attention)

    # Facts

    @property
    def loaded(self) -> Loaded:
        """The pipeline with its family, folder, device and dtype. It may be another one after an edit."""
        return self._manager.loaded

    @property
    def family(self) -> Family:
        """The family of the model."""
        return self.loaded.family

    @property
    def device(self) -> Device:
        """The device of the model."""
        return self.loaded.device

    def describe(self) -> dict[str, Any]:
        """Facts about the engine for JSON: model, family, device, dtype, rung, LoRAs, knobs with their defaults.

        It may be called from any thread, also while an edit runs.
        """
        loaded = self._checked()
        placement, adapters = self._manager.placement, self._manager.adapters
        return {
            "model": str(loaded.folder),
            "family": loaded.family.name,
            "pipeline": self._kind,
            "parts": self._parts,
            "device": str(loaded.device),
            "device_name": loaded.device.name,
            "simulated": loaded.device.capabilities.simulated,
            "dtype": loaded.dtype_name,
            "attention": self._attention_now,
            "memory": {"rung": placement.rung, "auto": self._manager.falls, **placement.describe()},
            "loras": [] if adapters is None else adapters.describe(),
            "refiner": None if self._refiner is None else self._refiner.describe(),
            "host_operators": None if self._host is None else dict(self._host.used),
            "options": {name: self._defaults[name] for name in KNOBS if name in loaded.family.options},
        }

    def memory(self) -> dict[str, int | None]:
        """The device's memory in bytes: allocated, reserved, peak, free, total; see `toprope.device.Memory`."""
        return self._checked().device.memory().as_dict()

    @property
    def files(self) -> dict[str, Any]:
        """The model's files with their hashes, for records; see `toprope.images.results.files_of`."""
        return self._files

    def differences(self, record: Mapping[str, Any]) -> list[str]:
        """Reasons why this engine may not reproduce the picture of a record; empty if nothing is different."""
        return differences(record, self._files, self.describe())

    # Editing

    def edit(
        self, request: EditRequest, *, on_step: OnStep | None = None, cancelled: Cancelled | None = None
    ) -> EditResult:
        """Edit a picture. Several pictures of it (`num_images`) are made one after the other.

        Each has the bytes of a separate edit with its seed, also by `toprope edit`; in one batch, larger products
        would be rounded differently.

        Args:
            request: the request.
            on_step: called after each step of denoising, in the calling thread.
            cancelled: called before each step; True stops the edit.

        Raises:
            UsageError: the request is invalid, or the model does not have one of its knobs.
            ImageError: the picture or the mask cannot be read, or they do not match.
            EditCancelled: `cancelled` returned True; the engine can still be used.
            EditGuardError: the result is no picture, also in the next safer dtype.
            EditError: memory ran out, and there is no lower rung.
        """
        return self.edit_all([request], on_step=on_step, cancelled=cancelled, at_once=1)[0]

    def edit_all(
        self,
        requests: Sequence[EditRequest],
        *,
        on_step: OnStep | None = None,
        cancelled: Cancelled | None = None,
        at_once: int = 8,
    ) -> list[EditResult]:
        """Edit several pictures; those with the same size and knobs go through the pipeline together.

        Each picture has the same noise as in a separate edit; the results are the same within the rounding of larger
        products. Raises like `edit`.

        Args:
            requests: the requests. An invalid one is an error for all, before anything is computed.
            on_step, cancelled: as for `edit`; steps of several batches are counted together.
            at_once: largest number of pictures in a batch.
        """
        with self._lock, devices.use(self._checked().device):
            self._check_pipeline()
            self._notices.kept, self._manager.guarded = [], []
            self.device.reset_peak_memory()
            resolved = [resolve_request(self.loaded, request, self._refiner, self._notices) for request in requests]
            rows = rows_of(resolved)
            groups = list(batches(rows, at_once if self.family.batches else 1))
            pictures: dict[int, list[Image]] = {at: [] for at in range(len(resolved))}
            progress = StepCallback(len(groups), on_step, cancelled)
            for group in groups:
                progress.check()
                for row, picture in zip(group, self._compute_batch(group, progress), strict=True):
                    pictures[row.at].append(_finished(picture, row.resolved))
                progress.batch_done()
            return [EditResult(pictures[at], self._record(each, progress.seconds)) for at, each in enumerate(resolved)]

    # LoRAs

    @contextmanager
    def loras(self) -> Iterator[Adapters]:
        """Context to load, list, scale, fuse, unfuse and unload LoRAs; edits wait until it ends.

        Example:
            with engine.loras() as loras:
                loras.load("snow.safetensors:0.8")
                loras.fuse()
        """
        with self._lock, devices.use(self._checked().device):
            self._check_pipeline()
            self._prompts.clear()  # text encoders have LoRAs too
            with self._manager.changing() as adapters:
                yield adapters

    def set_loras(self, loras: Sequence[str]) -> None:
        """Load exactly these LoRAs, "path" or "path:scale" each.

        Raises:
            LoraError: one does not fit; the model is unchanged.
        """
        with self.loras() as adapters:
            adapters.set(loras)

    def close(self) -> None:
        """Release the device's memory. The engine cannot be used afterwards; closing it twice does nothing."""
        with self._lock:
            if self._open:
                self._open = False
                with devices.use(self.device):
                    self._prompts.clear()
                    self._manager.drop()
                if self._refiner is not None:
                    self._refiner.close()

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

    def _check_pipeline(self) -> None:
        if self.loaded.pipeline is None:
            raise EditError("the model could not be loaded again after an error.", do="open another engine")

    def _compute_batch(self, group: Sequence[Row], progress: StepCallback) -> list[Image]:
        """Compute a batch, and again after an error that the engine can do something about.

        If memory runs out, a batch of several pictures is computed in two halves, one after the other, and a picture
        alone on a lower rung of the memory ladder. If numbers overflow, the model is loaded in a safer dtype.
        """
        while True:
            try:
                return self._run(group, progress)
            except Exception as error:
                failed = error
            if len(group) > 1 and self.device.is_out_of_memory(failed):
                del failed
                return self._compute_in_halves(group, progress)
            try:
                self._manager.recover(failed)
            finally:
                del failed  # its frames refer to this frame, which would keep it alive
            self._prompts.clear()
            progress.restart()

    def _compute_in_halves(self, group: Sequence[Row], progress: StepCallback) -> list[Image]:
        """Compute the first half of a batch, then the second; each may be halved again."""
        half = len(group) // 2
        self._notices.notice(f"memory ran out with {len(group)} pictures at once, going on with {len(group) - half}")
        self._manager.collect()
        progress.restart(batches=2)
        first = self._compute_batch(group[:half], progress)
        progress.batch_done()
        return first + self._compute_batch(group[half:], progress)

    def _run(self, group: Sequence[Row], progress: StepCallback) -> list[Image]:
        """Compute the pictures of a batch."""
        import torch

        loaded = self.loaded
        shown = [fit_in(row.resolved.opened.picture, row.resolved.frame) for row in group]
        first = group[0].resolved.request
        where: Literal["device", "cpu"] = "device" if first.generator_device == "device" else "cpu"
        with torch.no_grad(), self._host or nullcontext():
            progress.check()  # before texts are encoded, which nothing can interrupt
            prompt = self._prompt([row.resolved.request for row in group], shown)
            progress.check()
            generators = [loaded.device.generator(row.seed, on=where) for row in group]
            with (
                self._manager.placement.running(loaded),
                samplers.used(loaded.pipeline, first.sampler, loaded.family.samplers),
                self._attention_seen(),
            ):
                images = loaded.family.run(loaded.pipeline, shown, first, prompt, generators, progress)
        images = images.float().cpu()
        check_pictures(images, shown)
        return to_pictures(images)

    @contextmanager
    def _attention_seen(self) -> Iterator[None]:
        """Context that records the attention operators that run.

        Every edit is recorded, not only the first one of a shape: under a dispatch mode torch may compute the same
        product in another way, and in float16 the second edit differed from the first by one level.
        """
        self._fused.forget()
        with AttentionWatch() as seen, self._fused:
            yield
        found = seen.describe()
        if self._fused.used:  # the simulated card's is made of plain products
            others = (found["path"],) if self._fused.passed and found["path"] != FUSED else ()
            found["path"] = " and ".join((FUSED, *others))
        self._attention_now = found | self._choice()

    def _choice(self) -> dict[str, Any]:
        """The choice of attention and its reason, for JSON."""
        if self._attention_asked == "torch":
            return {"chosen": "torch's own", "why": "it was asked for"}
        return self._fused.describe()

    def _prompt(self, requests: Sequence[EditRequest], shown: Sequence[Image]) -> Prompt:
        """The encoded texts of a batch, on the device; texts in the cache are not encoded again."""
        loaded, sees = self.loaded, self.family.prompt_sees_picture
        keys = [
            PromptCache.key(request.instruction, request.negative or "", picture if sees else None, request.like)
            for request, picture in zip(requests, shown, strict=True)
        ]
        found = {key: self._prompts.get(key) for key in dict.fromkeys(keys)}
        if None in found.values():
            with self._manager.placement.encoding(loaded):
                for key, request, picture in zip(keys, requests, shown, strict=True):
                    if found[key] is None:
                        made = loaded.family.encode(
                            loaded.pipeline, request.instruction, request.negative or "", [picture], request.like
                        )
                        found[key] = self._prompts.put(key, made)
        return stack_prompts([prompt for key in keys if (prompt := found[key])]).to(loaded.device.torch_device)

    def _record(self, resolved: ResolvedRequest, seconds: float) -> dict[str, Any]:
        return make_record(resolved, self.describe(), self._files) | {
            "seconds": round(seconds, 3),
            "peak_memory": self.device.max_memory_allocated(),
            "guard": list(self._manager.guarded),
            "notices": list(self._notices.kept),
        }


def _finished(made: Image, resolved: ResolvedRequest) -> Image:
    """Fit the model's picture to the size of the request, and apply the mask."""
    result = fit_back(made, resolved.frame)
    if resolved.mask is None:
        return result
    return resolved.mask.keep_outside(result, resolved.opened.picture, resolved.frame.crop)
