"""Manager of an engine's pipeline: loads and places it, and recovers from lack of memory and from bad numbers.

When memory runs out, the pipeline goes down one rung of the memory ladder. When the model gives numbers that are not
finite, or a black picture, it is loaded again in a safer dtype.

Made by `images.engine`, which calls `recover` after each error. The rungs are in `images.memory`, the dtypes in
`images.execution.dtypes`. Nothing may keep an error's traceback, whose frames hold the tensors for which there was no
room. Tests: tests/images/test_images_engine.py, tests/images/test_images_memory.py,
tests/images/test_images_lora.py.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from toprope.errors import EditError, EditGuardError
from toprope.images.callbacks import Notices
from toprope.images.execution.dtypes import safer_dtype
from toprope.images.execution.guard import NoPicture
from toprope.images.memory.fallback import below
from toprope.images.memory.placement import Loaded, OnDevice, Placement
from toprope.sizes import gibibytes

__all__ = ["PipelineManager"]

AUTO = "auto"


class PipelineManager:
    """A pipeline on its device, with its LoRAs.

    Args:
        loaded: the model's facts; its pipeline is None until `load`.
        memory: the rung of the memory ladder to use, or "auto" to go down the ladder when memory runs out.
        loras: each "path" or "path:scale", loaded with the pipeline.
        notices: receives a notice for everything that is done differently from the request.

    Attributes:
        loaded: the pipeline with its family, folder, device and dtype; the pipeline is None after `drop`.
        placement: the present placement of its parts.
        adapters: its LoRAs, see `toprope.images.lora.adapters`; None without LoRAs.
        guarded: the bad numbers that the model gave in this edit, as values for JSON.
    """

    def __init__(self, loaded: Loaded, memory: str, loras: Sequence[str], notices: Notices) -> None:
        self.loaded = loaded
        self.falls = memory == AUTO
        self.placement = make_placement("none" if self.falls else memory)
        self.adapters: Any = None
        self.guarded: list[dict[str, Any]] = []
        self._loras: Sequence[Any] = tuple(loras)
        self._fused = False
        self._notices = notices

    def load(self) -> None:
        """Load the pipeline and its LoRAs and place it, on a lower rung if memory runs out."""
        loaded = self.loaded
        if not self.falls:
            self._check_weights_fit()
        self._notices.stage(f"loading {loaded.folder} in {loaded.dtype_name} for {loaded.device}")
        loaded.pipeline = loaded.family.load(loaded.folder, loaded.dtype)
        try:
            if self._loras:
                from toprope.images.lora.adapters import open_all

                self.adapters = open_all(loaded, self._loras, fused=self._fused)
            self._place()
        except BaseException:
            self.drop()
            raise

    def _check_weights_fit(self) -> None:
        """Check, before anything is loaded, that the weights fit into the device's free memory on a fixed rung.

        Raises:
            EditError: the weights alone are larger.
        """
        loaded = self.loaded
        if self.placement.rung not in ("none", "vae") or loaded.device.kind == "cpu":
            return
        least, free = loaded.family.least_bytes(loaded.folder, loaded.dtype), loaded.device.memory().free
        if free is not None and least > free:
            said = f"its weights take {gibibytes(least)}, and {gibibytes(free)} are free; nothing was loaded"
            raise no_room(loaded, self.placement.rung, said, falls=False)

    def drop(self) -> None:
        """Drop the pipeline and its LoRAs, and free their memory on the device and on the host."""
        if self.loaded.pipeline is not None:
            self.placement.undo(self.loaded)
        self.adapters = self.loaded.pipeline = None
        self.collect()

    @contextmanager
    def changing(self) -> Iterator[Any]:
        """A context in which the LoRAs can be changed, through their `Adapters`. Later reloads keep the changes."""
        if self.adapters is None:
            from toprope.images.lora.adapters import Adapters

            self.adapters = Adapters(self.loaded)
        keeps = self.placement.keeps
        if not keeps:
            self.placement.undo(self.loaded)
        try:
            yield self.adapters
        finally:
            self._loras, self._fused = self.adapters.specs(), self.adapters.fused
            if not keeps:
                self._place()

    def recover(self, error: Exception) -> None:
        """Change the placement or the dtype after an error of the pipeline, so that the caller can compute again.

        Raises:
            EditError: memory ran out, and there is no lower rung.
            EditGuardError: the model gave bad numbers, and there is no safer dtype.
            Exception: the error itself if it is of another kind.
        """
        if isinstance(error, NoPicture):
            self._reload_in_safer_dtype(error)
        else:
            self._choose_lower_rung(error)
            self._place()

    def _place(self) -> None:
        """Place the pipeline, on lower rungs while memory runs out."""
        while True:
            try:
                self.placement.place(self.loaded)
                return
            except Exception as error:
                failed = error
            self._choose_lower_rung(failed)
            del failed

    def _choose_lower_rung(self, error: Exception) -> None:
        """Undo the placement and choose the next lower one, without placing it. Raises errors not about memory."""
        loaded, rung = self.loaded, self.placement.rung
        if not loaded.device.is_out_of_memory(error):
            raise error
        said = " ".join(str(error).split())[:300]
        lower = below(rung) if self.falls else None
        if lower is None:
            raise no_room(loaded, rung, said, falls=self.falls) from error
        self._notices.notice(f"memory ran out on the rung {rung!r}, going on with {lower!r}: {said}")
        error.__traceback__ = None  # its frames hold tensors
        self.placement.undo(loaded)
        self.collect()
        self.placement = make_placement(lower)

    def _reload_in_safer_dtype(self, wrong: NoPicture) -> None:
        """Load the model again in a safer dtype."""
        loaded = self.loaded
        wrong.__traceback__ = None  # its frames hold tensors
        self.guarded.append({"what": wrong.what, "where": wrong.where, "dtype": loaded.dtype_name})
        safer = safer_dtype(loaded.dtype, loaded.device)
        if safer is None:
            raise EditGuardError(
                f"the model gave {wrong.what}, in {' and again in '.join(each['dtype'] for each in self.guarded)}.",
                looked_at=f"{wrong.where} on {loaded.device}",
                do="try another seed, less guidance, or without a LoRA",
            )
        rung, was = self.placement.rung, loaded.dtype_name
        self.drop()
        self.loaded = replace(loaded, pipeline=None, dtype=safer)
        self._notices.notice(f"the model gave {wrong} in {was}; it goes on in {self.loaded.dtype_name}, and stays so")
        self.placement = make_placement(rung)
        self.load()

    def collect(self) -> None:
        """Return memory that nothing uses any more to the device."""
        gc.collect()
        self.loaded.device.empty_cache()


def no_room(loaded: Loaded, rung: str, said: str, *, falls: bool) -> EditError:
    """The error for memory that ran out when no other rung is tried, with advice.

    Args:
        loaded: the model.
        rung: the last rung of the memory ladder that was tried.
        said: the device's message.
        falls: True if all rungs above were tried.
    """
    less = "let the model see fewer pixels (max_pixels, --max-pixels)"
    few = "fewer pictures at once (at_once, --at-once)"
    if falls:
        what = f"{loaded.device} has not the memory for this, on the rung {rung!r} of the memory ladder, the lowest."
        do = f"{less}, or {few}, end other programs on the device, or use one with more memory"
    else:
        what = f"{loaded.device} has not the memory for this, on the rung {rung!r} of the memory ladder."
        lower = below(rung)
        step = f"give memory 'auto' (--memory auto) or a lower rung such as {lower!r}, " if lower else ""
        do = f"{step}{less}, or {few}"
    return EditError(what, looked_at=said, do=do)


def make_placement(rung: str) -> Placement:
    """The placement of a rung."""
    if rung == "none":
        return OnDevice()
    from toprope.images.memory.offload_policies import make

    return make(rung)
