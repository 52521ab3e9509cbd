"""GPUs through `torch.cuda`: NVIDIA's, and AMD's where torch is built for them.

Found by `kinds`; most of it is in `accelerator`. It has not run on a GPU in CI: tests/device/test_device_cuda.py
compares its calls with the signatures of torch.cuda, and tests/device/cuda/test_cuda_device.py runs by hand where there
is a GPU. A call that is added must be in torch.cuda, for CUDA and for ROCm.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from toprope.device.accelerator import AcceleratorDevice
from toprope.device.base import Availability, Capabilities, Properties, State
from toprope.device.host.libraries import reason
from toprope.messages import Message, joined

__all__ = ["CudaDevice"]


_PORTABLE = 1
"""cudaHostRegisterPortable: pinned for every GPU of the process."""


class CudaDevice(AcceleratorDevice):
    """One GPU."""

    kind = "cuda"
    title = "CUDA GPU"
    priority = 200
    mask_variable = "CUDA_VISIBLE_DEVICES"
    index_code = "101 (cudaErrorInvalidDevice)"

    @classmethod
    def look(cls) -> Availability:
        """State of this kind: whether torch is built for GPUs and sees one, by torch's own functions."""
        with warnings.catch_warnings(record=True) as said:  # torch warns here of a driver that is too old
            warnings.simplefilter("always")
            try:
                count = torch.cuda.device_count() if torch.cuda.is_available() else 0
            except RuntimeError as error:
                return Availability(
                    "cuda", State.BROKEN, reason=Message("torch cannot count the GPUs: {error}", error=reason(error)),
                    looked_at=_facts(), do=Message("check nvidia-smi and the driver"), surprising=True,
                )  # fmt: skip
        if count > 0:
            return Availability("cuda", State.WORKS, count)
        if torch.version.cuda is None and torch.version.hip is None:
            return Availability(
                "cuda",
                State.NOT_INSTALLED,
                reason=Message("torch {version} is built without CUDA", version=torch.__version__),
                looked_at=_facts(),
                do=Message("install a torch that is built for CUDA"),
            )
        if said:
            return Availability(
                "cuda", State.BROKEN, reason=reason(RuntimeError(str(said[0].message))),
                looked_at=_facts(), do=Message("repair the driver, or install a torch that is built for it"),
                surprising=True,
            )  # fmt: skip
        return Availability(
            "cuda",
            State.NO_CARD,
            reason=Message("no GPU is visible"),
            looked_at=_facts(),
            do=Message("check nvidia-smi, CUDA_VISIBLE_DEVICES and whether the container was given the GPUs"),
        )

    @classmethod
    def facts(cls) -> str:
        """torch's version and what it is built for, the mask, device files."""
        return _facts()

    @cached_property
    def capabilities(self) -> Capabilities:
        """Capabilities of the GPU."""
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


def _facts() -> str:
    """The facts behind the answer, in one line."""
    built = torch.version.cuda or torch.version.hip
    mask = os.environ.get("CUDA_VISIBLE_DEVICES")
    nodes = sorted(path.name for path in Path("/dev").glob("nvidia[0-9]*"))
    parts = [
        f"torch {torch.__version__}",
        Message("built for {platform} {built}", platform="CUDA" if torch.version.cuda else "ROCm", built=built)
        if built
        else Message("built without CUDA"),
        "" if mask is None else f"CUDA_VISIBLE_DEVICES={mask}",
        joined(", ", (f"/dev/{node}" for node in nodes[:4])) or Message("no /dev/nvidia*"),
    ]
    return joined(", ", (part for part in parts if part))
