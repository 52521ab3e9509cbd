"""Facade of `device_utils`, the device manager of a port of an image editor to Ascend NPUs.

It is importable as `device_utils` where toprope.compat.finder serves it, unless the program brings its own file of that
name. Everything is asked of `toprope.device`; importing it imports no torch, prints nothing and configures no logging.
Names, the variable NPU_DEVICE_ID and the printed lines are those of the port; how an answer is found is free. Tests:
tests/compat/test_device_utils.py.
"""

from __future__ import annotations

import gc
import logging
import os
import threading
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from toprope import device as devices
from toprope.compat.run_remarks import note
from toprope.errors import DeviceIndexError, SettingError

if TYPE_CHECKING:
    import torch

__all__ = ["DeviceManager", "auto_device", "auto_dtype", "get_device_manager"]

INDEX_VARIABLE = "NPU_DEVICE_ID"
"""The variable that says which NPU is meant where only its kind was named."""

WITHOUT_EFFECT = {
    "DIFFUSERS_ATTENTION_TYPE": "diffusers does not read it (it reads DIFFUSERS_ATTN_BACKEND)",
    "NPU_FALLBACK_MODE": "neither torch_npu nor toprope reads it",
}
"""Variables that programs of this port set, and why they change nothing."""

_GIB = 2**30

_log = logging.getLogger(__name__)
_toprope_log = logging.getLogger("toprope")
_lock = threading.RLock()
_reported: set[str] = set()
_managers: dict[devices.Device, DeviceManager] = {}  # the first one is the program's


class DeviceManager:
    """A device, the dtype that works on it, and what an image editor asks of them.

    Args:
        preferred_device: "npu", "npu:1", "cuda", "cpu", ... (case and blanks around it do not matter). It is granted
            or refused with the reasons. None or "" leaves it to what was set for toprope (`device.use`,
            TOPROPE_DEVICE, PREFERRED_DEVICE, [tool.toprope]), and then to what is there: NPU, CUDA, CPU. Where an NPU
            is chosen without an index, NPU_DEVICE_ID gives it, else it is torch's current one.
        fallback: whether the next device is taken where the one asked for is not there, with one warning; None leaves
            it to TOPROPE_FALLBACK, which is off. A wrong NPU_DEVICE_ID is an error all the same.

    Attributes:
        device_type: "npu", "cuda", "cpu".
        device: the device's name with its index, "npu:0", which torch takes everywhere; a text, as in the original.
        generator_device: where the last generator draws its numbers ("npu:0", "cpu"); None before the first.
        last_seed: the seed of the last generator; None before the first.

    Raises:
        DeviceNameError: there is no such kind of device.
        DeviceUnavailableError: there is no device of this kind; the class and the text say why.
        DeviceIndexError: there are some, but not of this index.
        SettingError: NPU_DEVICE_ID, or what was set for toprope, cannot be read.
    """

    device_type: str
    device: str
    generator_device: str | None
    last_seed: int | None

    def __init__(self, preferred_device: Any = None, fallback: bool | None = None) -> None:
        choice = _choose(preferred_device, fallback)
        self._device = choice.device
        self.device_type = choice.device.kind
        self.device = str(choice.device)
        self.generator_device = None
        self.last_seed = None
        _log.info("device %s", choice.text)
        _report_without_effect()

    def __repr__(self) -> str:
        return f"DeviceManager(device={self.device}, dtype={self.dtype})"

    @cached_property
    def dtype(self) -> torch.dtype:
        """The best dtype that works here: bfloat16, float16, float32; on the CPU float32 first.

        It is tried with matmul, convolution and attention on the device, when it is asked for first.

        Raises:
            UnsupportedError: none of them works.
        """
        return self._device.best_dtype()

    def create_generator(self, seed: Any = None) -> torch.Generator:
        """A generator of random numbers, on the device where it draws some itself, else on the CPU.

        The same seed gives other numbers on another kind of device: keep `generator_device` with `last_seed`.

        Args:
            seed: 0 to 2**64 - 1, also as a text of digits or as a float without a fraction; None, "random" or -1
                draws one from [0, 2**63).

        Raises:
            SeedError: no such seed.
        """
        number = devices.concrete_seed(_whole(seed))
        on_device = self._device.capabilities.generators
        if not on_device and self.last_seed is None:
            _log.warning("%s draws no random numbers itself, its generators are on the CPU", self._device)
        generator = self._device.generator(number, on="device" if on_device else "cpu")
        self.generator_device = str(generator.device)
        self.last_seed = generator.initial_seed()
        return generator

    def memory_stats(self) -> dict[str, int | None]:
        """Print the memory of the device in one line, measured now, and return it.

        What is printed as GB is GiB (2**30 bytes), as in the original. On the CPU, what is allocated is what the
        process holds in memory.

        Returns:
            Bytes: allocated, reserved, peak, free, total; None for a figure that this kind of device does not have.
        """
        figures = self._device.memory().as_dict()
        shown = ", ".join(f"{name} {bytes_ / _GIB:.2f} GB" for name, bytes_ in figures.items() if bytes_ is not None)
        card = f"{self.device}, simulated" if self._device.capabilities.simulated else f"{self.device}"
        print(f"\N{BAR CHART} {self.device_type.upper()} Memory Stats ({card}): {shown}")  # noqa: T201 - as the original does
        return figures

    def empty_cache(self) -> None:
        """Collect what Python no longer uses, then give back the memory of the device that no tensor uses."""
        gc.collect()
        self._device.empty_cache()

    def set_memory_efficient_mode(self) -> list[str]:
        """Do what saves memory and changes no result: operators as they come compiled, unused memory given back.

        The TF32 switches stay as they are: they save no memory and change results. What a pipeline can do for itself,
        such as decoding a picture in slices and tiles, is done by `toprope.images`.

        Returns:
            The measures that are active; they are also printed.
        """
        switched = self._device.take_compiled_operators()
        self.empty_cache()
        measures = [*([switched] if switched else []), "gc.collect", "empty_cache"]
        print(f"✓ {self.device_type.upper()} memory efficient mode: {', '.join(measures)}")  # noqa: T201
        return measures

    def load_safetensors(self, path: str | os.PathLike[str]) -> dict[str, torch.Tensor]:
        """The tensors of a file by name, on the device; see `toprope.device.load`.

        Raises:
            WeightsError: the file holds no weights that can be loaded.
            OSError: the file is not there or cannot be read.
        """
        tensors: dict[str, torch.Tensor] = self._device.load(path)
        return tensors


def get_device_manager(preferred_device: Any = None) -> DeviceManager:
    """The program's device manager, the same for every caller and thread.

    Args:
        preferred_device: None for the manager that was made first here, which the first call makes. With a name, the
            manager of that device: there is one for each.

    Raises:
        TopropeError: as for `DeviceManager`.
    """
    with _lock:
        if _managers and _nothing(preferred_device):
            return next(iter(_managers.values()))
        manager = _managers.get(_choose(preferred_device, None).device)
        if manager is None:
            manager = DeviceManager(preferred_device)
            _managers[manager._device] = manager
        return manager


def auto_device() -> str:
    """The name of the device of the program's manager. Errors as for `DeviceManager`."""
    return get_device_manager().device


def auto_dtype() -> torch.dtype:
    """The dtype of the program's manager. Errors as for `DeviceManager`."""
    return get_device_manager().dtype


def _nothing(preferred_device: Any) -> bool:
    """True if nothing was asked for; programs hand on a variable that may be empty."""
    return preferred_device is None or (isinstance(preferred_device, str) and not preferred_device.strip())


def _choose(preferred_device: Any, fallback: bool | None) -> devices.Choice:
    asked = None if _nothing(preferred_device) else preferred_device
    choice = devices.choose(asked, fallback=fallback, quiet=True)
    text = os.environ.get(INDEX_VARIABLE, "").strip()
    if choice.device.kind != "npu" or ":" in choice.asked or not text:
        return choice
    source = f"environment variable {INDEX_VARIABLE}"
    if not (text.isascii() and text.isdigit()):
        raise SettingError(
            f"{text!r} is not the index of an npu.",
            looked_at=f"{source}={text}",
            do=f"set {INDEX_VARIABLE} to a number from 0, or unset it",
        )
    name = f"npu:{int(text)}"
    try:
        chosen = devices.choose(name, fallback=False, quiet=True)
    except DeviceIndexError as error:
        raise DeviceIndexError(error.what, f"{source}={text}; {error.looked_at}", error.do, error.code) from None
    return replace(chosen, asked=name, source=source, passed_over=choice.passed_over)


def _whole(seed: Any) -> Any:
    """The seed; a text of digits, and a float without a fraction, as the whole number that int() makes of it."""
    if isinstance(seed, str):
        try:
            return int(seed)
        except ValueError:
            return seed.strip().lower()
    if hasattr(seed, "is_integer") and not isinstance(seed, bool) and seed.is_integer():  # of Python and of numpy
        return int(seed)
    return seed


def _report_without_effect() -> None:
    """Warn once of each variable that is set and has no effect; the report of a run says it too."""
    for name, why in WITHOUT_EFFECT.items():
        with _lock:
            if name not in os.environ or name in _reported:
                continue
            _reported.add(name)
        text = f"{name}={os.environ[name]} has no effect: {why}"
        _toprope_log.warning("%s", text)
        note(name.lower().replace("_", "-"), text)
