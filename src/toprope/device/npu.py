"""Ascend NPUs, through `torch.npu`: torch_npu's, or the same names of the simulated card.

Found by `kinds`. Most of it is in `accelerator`; here is what only torch_npu has, and why there is no card (`host`). A
call that is added must be in the published wheel, which tests/device/test_device_torch_npu.py compares; with torch_npu
on a real card none has ever run. A torch_npu that fails to import is tried once. Tests:
tests/device/test_device_torch_npu.py, tests/device/test_device_absent.py, tests/sim/simulated/test_device.py.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from functools import cached_property
from importlib import metadata
from types import ModuleType
from typing import Any

import torch

from toprope.device.accelerator import AcceleratorDevice
from toprope.device.base import Availability, Capabilities, Properties, State
from toprope.device.host import smi
from toprope.device.host.ascend import look_at_machine, mask_text
from toprope.device.host.libraries import advice, reason
from toprope.device.host.software import installed_version
from toprope.device.seeds import draws_random_numbers
from toprope.messages import Message, joined
from toprope.visible_devices import VARIABLE

__all__ = ["NpuDevice"]

_AUTOLOAD = "TORCH_DEVICE_BACKEND_AUTOLOAD"


class NpuDevice(AcceleratorDevice):
    """One Ascend NPU."""

    kind = "npu"
    title = "Ascend NPU"
    priority = 300
    mask_variable = VARIABLE
    index_code = "107001 (invalid device id)"

    def __init__(self, index: int) -> None:
        super().__init__(index)
        # torch.accelerator has no memory figures for torch_npu 2.10 to 2.12: its allocator is no c10::DeviceAllocator
        # before https://github.com/Ascend/pytorch/commit/033d3c1b6 (2026-06-24)
        self._memory = self._npu = self._module

    @classmethod
    def look(cls) -> Availability:
        """Answer if torch_npu is there, can be loaded and shows a card. It is imported where torch did not do so."""
        npu, problem = _namespace()
        if npu is None:
            return problem
        if hasattr(npu, "__toprope_stand_in__"):
            return Availability(
                "npu",
                State.NO_CARD,
                reason=Message("this run was given no NPU"),
                looked_at="TOPROPE_DEVICE=" + os.environ.get("TOPROPE_DEVICE", ""),
                do=Message("run the program with `toprope run --device npu` or `--device sim`"),
            )
        try:
            count = int(npu.device_count())
        except Exception as error:  # the driver refuses, or this is no torch.npu
            return Availability(
                "npu", State.BROKEN, reason=Message("torch_npu cannot count the cards: {error}", error=reason(error)),
                looked_at=_facts(npu), do=Message("check npu-smi info, and that driver and CANN belong together"),
                surprising=True,
            )  # fmt: skip
        if count > 0:
            return Availability("npu", State.WORKS, count) if _is_a_name_to_torch() else _only_made_by_hand(npu)
        why, do = _why_no_card(npu)
        return Availability(
            "npu", State.NO_CARD, reason=Message("no card is visible: {why}", why=why), looked_at=_facts(npu), do=do,
            surprising=os.environ.get(VARIABLE) != "",
        )  # fmt: skip

    def fused_attention(self) -> Any:
        """torch_npu's fused attention, as it or the simulated card has registered it."""
        return getattr(torch.ops.npu, "npu_fusion_attention", None)

    @classmethod
    def facts(cls) -> str:
        """Versions, driver, device files and masks; of the simulated card, that it is one."""
        npu = getattr(torch, "npu", None)
        return _facts(npu) if npu is not None else joined(", ", (f"torch {torch.__version__}", look_at_machine().text))

    @classmethod
    def current_index(cls) -> int:
        """The index of this thread's current card; 0 where the process has not used one yet, which is left so."""
        npu: Any = torch.npu  # type: ignore[attr-defined]
        if hasattr(npu, "is_initialized") and npu.is_initialized():
            return int(npu.current_device())
        # torch_npu's set_device does not count as a use; this asks without one
        peek = getattr(getattr(sys.modules.get("torch_npu"), "_C", None), "_npu_getDeviceWithoutSet", None)
        return max(0, int(peek())) if peek is not None else 0

    @cached_property
    def capabilities(self) -> Capabilities:
        """Capabilities of the card."""
        return Capabilities(
            simulated=_is_simulated(self._npu),
            separate_memory=True,
            streams=True,
            generators=draws_random_numbers(self.kind),
            core_limits=hasattr(self._npu, "set_stream_limit"),
            pinned_memory=True,
            collectives="hccl",
        )

    def properties(self) -> Properties:
        """The chip's name, memory and cores."""
        found = self._npu.get_device_properties(self.index)
        return Properties(
            str(found.name),
            total_memory=int(found.total_memory),
            cores=getattr(found, "vector_core_num", None) or None,
            cube_cores=getattr(found, "cube_core_num", None) or None,
        )

    def software_version(self) -> str | None:
        """torch_npu's version as programs see it; torch's on the simulated card, as torch_npu is numbered by it."""
        if self.capabilities.simulated:
            return torch.__version__.partition("+")[0]
        try:
            return metadata.version("torch-npu")
        except metadata.PackageNotFoundError:
            return installed_version()

    def holders(self) -> tuple[str, ...]:
        """The processes that `npu-smi info` lists for the card, with their memory in MB."""
        if self.capabilities.simulated and not os.environ.get("TOPROPE_RUN_DIR"):
            return ()  # without a run each process has simulated cards of its own, and npu-smi would be a real one
        return smi.holders(self.index)

    def take_compiled_operators(self) -> str:
        """`torch.npu.set_compile_mode`: for all cards of the process, once their work is done."""
        if not hasattr(self._npu, "set_compile_mode"):
            return ""
        self._npu.set_compile_mode(jit_compile=False)
        return "jit_compile=False"

    def refuses(self, dtype: torch.dtype) -> str:
        """The chip itself says whether it has bfloat16; an older one would fail only in the middle of a program."""
        if dtype is torch.bfloat16:
            with self.as_current():  # the chip is known once a card is in use
                if not self._npu.is_bf16_supported():
                    return Message("{name} has no bfloat16 (torch.npu.is_bf16_supported)", name=self.name)
        return ""


def _namespace() -> tuple[Any, Availability]:
    """`torch.npu`, or None and why there is none."""
    npu = getattr(torch, "npu", None)
    if npu is None:
        problem = _import_torch_npu()
        npu = getattr(torch, "npu", None)
        if npu is None:
            return None, problem or _not_installed()
    return npu, Availability("npu", State.WORKS)


def _is_a_name_to_torch() -> bool:
    """True if `torch.device("npu")` can be made."""
    try:
        torch.device("npu")
    except RuntimeError:
        return False
    return True


def _only_made_by_hand(npu: Any) -> Availability:
    """The answer for a `torch.npu` that some program put there, such as a mock."""
    return Availability(
        "npu",
        State.BROKEN,
        reason=Message("there is a torch.npu, but torch knows no device of this name, as with a mock"),
        looked_at=_facts(npu),
        do=Message(
            "take the mock away and rehearse with `toprope run --device sim`, or install the "
            "torch-npu of the same version as torch"
        ),
        surprising=True,
    )


_failed: list[Availability] = []


def _import_torch_npu() -> Availability | None:
    """Import torch_npu, which gives torch its `npu`; why that failed, None where it is not installed or worked."""
    if _failed:  # a second import takes as long, and may fail in another, misleading way
        return _failed[0]
    try:
        spec = importlib.util.find_spec("torch_npu")
    except ValueError:  # a module without a spec, made by hand
        return _gives_no_npu(Message("made by this program"))
    if spec is None or spec.origin is None or getattr(spec.loader, "__toprope__", False):
        return None  # without an origin it is a mere folder of that name
    before = os.environ.get(_AUTOLOAD)
    try:
        import torch_npu  # type: ignore[import-not-found]  # noqa: F401
    except (Exception, SystemExit) as error:
        if before is None:
            os.environ.pop(_AUTOLOAD, None)
        else:
            os.environ[_AUTOLOAD] = before  # torch_npu switches it off at its start
        _failed.append(
            Availability(
                "npu",
                State.BROKEN,
                reason=Message(
                    "{torch_npu_version} is installed but cannot be loaded: {error}",
                    torch_npu_version=_torch_npu_version(),
                    error=reason(error),
                ),
                looked_at=joined(", ", (_torch_npu_version(), look_at_machine().text)),
                do=advice(error),
                surprising=True,
            )
        )
        return _failed[0]
    return None if hasattr(torch, "npu") else _gives_no_npu(spec.origin)


def _gives_no_npu(origin: str) -> Availability:
    """The answer for a torch_npu that was imported and did not give torch its `npu`."""
    return Availability(
        "npu",
        State.BROKEN,
        reason=Message(
            "{torch_npu_version} was imported, but gives torch no npu", torch_npu_version=_torch_npu_version()
        ),
        looked_at=joined(", ", (origin, look_at_machine().text)),
        do=Message(
            "see whether something of this name is in the way of the vendor's package, or install "
            "torch-npu again, of the same version as torch"
        ),
        surprising=True,
    )


def _not_installed() -> Availability:
    """The answer where there is no torch_npu."""
    return Availability(
        "npu",
        State.NOT_INSTALLED,
        reason=Message("torch_npu is not installed"),
        looked_at=joined(", ", (f"torch {torch.__version__}", look_at_machine().text)),
        do=Message("install the torch-npu of the same version as torch, or rehearse with `toprope run --device sim`"),
    )


def _torch_npu_version() -> str:
    return f"torch_npu {installed_version() or ''}".strip()


def _is_simulated(npu: ModuleType) -> bool:
    return str(getattr(npu, "__name__", "")).startswith("toprope.")


def _facts(npu: ModuleType) -> str:
    if _is_simulated(npu):
        mask = mask_text(os.environ.get(VARIABLE), None)
        return Message("{mask}, the simulated card", mask=mask) if mask else Message("the simulated card")
    return joined(", ", (_torch_npu_version(), look_at_machine().text))


def _why_no_card(npu: ModuleType) -> tuple[str, str]:
    """The reason why working software shows no card, and advice."""
    if _is_simulated(npu):
        mask = os.environ.get(VARIABLE, "")
        from toprope.visible_devices import visible_cards

        problem = visible_cards(mask, 16).problem or Message("it lists none of the simulated cards")
        return Message("{variable}={mask}: {problem}", variable=VARIABLE, mask=mask, problem=problem), Message(
            "unset {variable}, or list cards that are there, rising", variable=VARIABLE
        )
    return look_at_machine().why_no_card()
