"""GPUs through `torch.cuda`: NVIDIA's, and AMD's where torch is built for them."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from toprope.device.base import Availability, Capabilities, Device, Properties, State
from toprope.device.libraries import reason

__all__ = ["CudaDevice"]


_PORTABLE = 1
"""cudaHostRegisterPortable: pinned for every GPU of the process."""


class CudaDevice(Device):
    """One GPU."""

    kind = "cuda"
    title = "CUDA GPU"
    priority = 200
    mask_variable = "CUDA_VISIBLE_DEVICES"
    index_code = "101 (cudaErrorInvalidDevice)"

    @classmethod
    def look(cls) -> Availability:
        """Whether torch is built for GPUs and sees one, by torch's own questions."""
        with warnings.catch_warnings(record=True) as said:  # torch warns here of a driver that is too old
            warnings.simplefilter("always")
            try:
                count = torch.cuda.device_count() if torch.cuda.is_available() else 0
            except RuntimeError as error:
                return Availability(
                    "cuda", State.BROKEN, reason=f"torch cannot count the GPUs: {reason(error)}",
                    looked_at=_facts(), do="check nvidia-smi and the driver", surprising=True,
                )  # fmt: skip
        if count > 0:
            return Availability("cuda", State.WORKS, count)
        if torch.version.cuda is None and torch.version.hip is None:
            return Availability(
                "cuda",
                State.NOT_INSTALLED,
                reason=f"torch {torch.__version__} is built without CUDA",
                looked_at=_facts(),
                do="install a torch that is built for CUDA",
            )
        if said:
            return Availability(
                "cuda", State.BROKEN, reason=reason(RuntimeError(str(said[0].message))),
                looked_at=_facts(), do="mend the driver, or install a torch that is built for it", surprising=True,
            )  # fmt: skip
        return Availability(
            "cuda",
            State.NO_CARD,
            reason="no GPU is visible",
            looked_at=_facts(),
            do="check nvidia-smi, CUDA_VISIBLE_DEVICES and whether the container was given the GPUs",
        )

    @classmethod
    def facts(cls) -> str:
        """torch's version and what it is built for, the mask, device files."""
        return _facts()

    @classmethod
    def current_index(cls) -> int:
        """The index of this thread's current GPU; 0 where the process has not used one yet, which is left so."""
        return torch.cuda.current_device() if torch.cuda.is_initialized() else 0  # type: ignore[no-untyped-call]

    @cached_property
    def capabilities(self) -> Capabilities:
        """What the GPU can do."""
        return Capabilities(
            separate_memory=True, streams=True, generators=True, pinned_memory=True,
            collectives="nccl" if torch.distributed.is_available() else "",
        )  # fmt: skip

    def properties(self) -> Properties:
        """Name, memory, multiprocessors and compute capability."""
        found = torch.cuda.get_device_properties(self.index)
        return Properties(
            found.name,
            total_memory=found.total_memory,
            cores=found.multi_processor_count,
            version=(found.major, found.minor),
        )

    def software_version(self) -> str | None:
        """The version of CUDA that torch is built for, or of ROCm."""
        return torch.version.cuda or torch.version.hip

    def set_current(self) -> None:
        """Make it the current GPU of this thread."""
        torch.cuda.set_device(self.index)

    def as_current(self) -> AbstractContextManager[Any]:
        """A context in which it is the current GPU of this thread."""
        return torch.cuda.device(self.index)

    def memory_allocated(self) -> int:
        """Bytes in use by tensors of this process."""
        return torch.cuda.memory_allocated(self.index)

    def memory_reserved(self) -> int:
        """Bytes that torch's allocator holds for this process."""
        return torch.cuda.memory_reserved(self.index)

    def max_memory_allocated(self) -> int:
        """The most bytes that were allocated."""
        return torch.cuda.max_memory_allocated(self.index)

    def reset_peak_memory(self) -> None:
        """Let the peak begin anew."""
        if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            torch.cuda.reset_peak_memory_stats(self.index)

    def memory_info(self) -> tuple[int, int]:
        """Free and total bytes of the GPU, other processes counted."""
        return torch.cuda.mem_get_info(self.index)

    def empty_cache(self) -> None:
        """Give back what torch's allocator holds and no tensor uses, on every GPU."""
        torch.cuda.empty_cache()

    def register_memory(self, address: int, nbytes: int) -> Callable[[], None] | None:
        """Pin memory of the host that is there already, for every GPU of the process; None where CUDA refuses."""
        with self.as_current():
            runtime: Any = torch.cuda.cudart()  # type: ignore[no-untyped-call]
            if int(runtime.cudaHostRegister(address, nbytes, _PORTABLE)) != 0:
                return None

        def end() -> None:
            self.synchronize()  # a copy may be under way
            runtime.cudaHostUnregister(address)

        return end

    def synchronize(self) -> None:
        """Wait until all work given to the GPU is done."""
        torch.cuda.synchronize(self.index)

    def stream(self, priority: int = 0) -> torch.cuda.Stream:
        """A new stream of the GPU; a lower number goes first."""
        return torch.cuda.Stream(device=self.index, priority=priority)  # type: ignore[no-untyped-call]

    def current_stream(self) -> torch.cuda.Stream:
        """The stream that this thread's work on the GPU goes to."""
        return torch.cuda.current_stream(self.index)

    def default_stream(self) -> torch.cuda.Stream:
        """The GPU's first stream."""
        return torch.cuda.default_stream(self.index)

    def on_stream(self, stream: Any) -> AbstractContextManager[Any]:
        """A context in which this thread's work goes to the stream."""
        return torch.cuda.stream(stream)

    def event(self, *, timing: bool = False) -> torch.cuda.Event:
        """A new event."""
        return torch.cuda.Event(enable_timing=timing)  # type: ignore[no-untyped-call]

    def manual_seed(self, seed: int) -> None:
        """Seed the GPU's default generator."""
        with self.as_current():
            torch.cuda.manual_seed(seed)

    @classmethod
    def manual_seed_all(cls, seed: int) -> None:
        """Seed the default generators of all GPUs; those that are not used yet, when they are."""
        torch.cuda.manual_seed_all(seed)

    def rng_state(self) -> torch.Tensor:
        """The state of the GPU's default generator."""
        return torch.cuda.get_rng_state(self.torch_device)

    def set_rng_state(self, state: torch.Tensor) -> None:
        """Put back a state that `rng_state` gave."""
        torch.cuda.set_rng_state(state, self.torch_device)


def _facts() -> str:
    """What the answer rests on, in one line."""
    built = torch.version.cuda or torch.version.hip
    mask = os.environ.get("CUDA_VISIBLE_DEVICES")
    nodes = sorted(path.name for path in Path("/dev").glob("nvidia[0-9]*"))
    parts = [
        f"torch {torch.__version__}",
        f"built for {'CUDA' if torch.version.cuda else 'ROCm'} {built}" if built else "built without CUDA",
        "" if mask is None else f"CUDA_VISIBLE_DEVICES={mask}",
        ", ".join(f"/dev/{node}" for node in nodes[:4]) or "no /dev/nvidia*",
    ]
    return ", ".join(part for part in parts if part)
