"""Every error that toprope raises on purpose, as one tree.

    TopropeError
    ├── UsageError                the call or the command line is wrong
    │   ├── SizeError             a size such as "256MB" cannot be read
    │   ├── SettingError          an environment variable or a table in pyproject.toml cannot be read
    │   ├── UnknownChipError      no chip of that name is described in toprope/chips
    │   ├── ChipDataError         the description of a chip in toprope/chips is not valid
    │   ├── ProgramError          the program given to `toprope run` is not there
    │   ├── DeviceNameError       a device's name cannot be read, or no backend has that kind of device
    │   ├── PlanError             limits for streams or places in memory cannot be planned, or a plan cannot be read
    │   ├── ScheduleError         a schedule of streams and operators cannot be read, or makes no sense
    │   ├── PageError             a tensor cannot be stored in few bits, or a page cannot be read
    │   ├── SeedError             a seed of random numbers cannot be used
    │   ├── ImageError            a picture cannot be read, or is too large
    │   ├── LoraError             a LoRA does not fit the model, or is none
    │   └── WeightsError          a file holds no weights that can be loaded
    ├── EnvironmentProblem        the machine lacks something
    │   ├── BuildError            the simulator's native part cannot be built, cached or loaded
    │   ├── CardError             a real card was asked for and there is none
    │   ├── PackageError          a package of Python that an extra brings cannot be imported
    │   ├── ModeUnavailable       a mode is not faster here, or the device cannot do what it consists of
    │   ├── TierCapacityError     a level of memory has not the room that was asked of it
    │   ├── TierError             what lies in a tier cannot be moved
    │   │   ├── TierAbsentError   a weight is read or written while it is not on the device
    │   │   ├── TierBusyError     no place on the device becomes free, or a transfer does not end
    │   │   ├── TierChangedError  a file of weights is not the one that it was
    │   │   ├── TierReadError     weights cannot be read from where they lie
    │   │   └── TierWriteError    a file for what does not fit into memory cannot be written
    │   └── DeviceError           a device cannot do what was asked for
    │       ├── DeviceIndexError              there are devices of this kind, but none of this index
    │       ├── DeviceFullError               the device has no memory left for what was asked
    │       ├── DeviceMaskError               the mask of cards was changed after one was given out
    │       ├── UnsupportedError              the device is there but has no such thing
    │       └── DeviceUnavailableError        there is no device of the kind that was asked for
    │           ├── DeviceNotInstalledError   the software of this kind of device is not installed
    │           ├── DeviceBrokenError         it is installed but cannot be loaded
    │           └── DeviceNotVisibleError     it works but shows this process no device
    ├── EditError                 the editing of a picture failed
    │   ├── EditCancelled         it was cancelled, between two steps
    │   └── EditGuardError        what the model computed is no picture: not finite, or black
    └── SimulatorError            the simulated card cannot do what was asked for
        └── InstallError          the simulator cannot be installed in this process

Errors that the simulated card itself raises (107001, out of memory, ...) are the vendor's: RuntimeError and
torch.OutOfMemoryError, with the vendor's texts, so that programs which handle them on a card handle them here. Tests:
tests/base/test_errors.py, tests/base/test_import.py.
"""

# For maintainers: raised in all packages. A class that is added here needs a page docs/errors/NAME.md (with its Chinese
# one), a line in the tree above and in docs/errors/index.md; tests/base/test_errors.py compares them.

from __future__ import annotations

from typing import ClassVar

__all__ = [
    "BuildError",
    "CardError",
    "ChipDataError",
    "DeviceBrokenError",
    "DeviceError",
    "DeviceFullError",
    "DeviceIndexError",
    "DeviceMaskError",
    "DeviceNameError",
    "DeviceNotInstalledError",
    "DeviceNotVisibleError",
    "DeviceUnavailableError",
    "EditCancelled",
    "EditError",
    "EditGuardError",
    "EnvironmentProblem",
    "ImageError",
    "InstallError",
    "LoraError",
    "ModeUnavailable",
    "PackageError",
    "PageError",
    "PlanError",
    "ProgramError",
    "ScheduleError",
    "SeedError",
    "SettingError",
    "SimulatorError",
    "SizeError",
    "TierAbsentError",
    "TierBusyError",
    "TierCapacityError",
    "TierChangedError",
    "TierError",
    "TierReadError",
    "TierWriteError",
    "TopropeError",
    "UnknownChipError",
    "UnsupportedError",
    "UsageError",
    "WeightsError",
]


class TopropeError(Exception):
    """Base of all errors of toprope: what happened, what was looked at, what to do.

    Args:
        what: one sentence that says what happened.
        looked_at: the facts the decision rests on; empty when there are none.
        do: what the reader can do about it; empty when nothing can be done.
        code: the vendor's own code and words for it, such as "107001 (invalid device id)"; empty when it has none.
    """

    exit_status: ClassVar[int] = 1
    """Exit status of the command line when this error ends it (1 findings, 2 usage, 3 environment)."""

    page: ClassVar[str] = ""
    """Name of the page of the documentation that explains this error: `toprope explain NAME` prints it."""

    def __init__(self, what: str, looked_at: str = "", do: str = "", code: str = "") -> None:
        super().__init__(what, looked_at, do, code)
        self.what = what
        self.looked_at = looked_at
        self.do = do
        self.code = code

    def __str__(self) -> str:
        lines = [self.what]
        if self.looked_at:
            lines.append(f"  looked at  {self.looked_at}")
        if self.do:
            lines.append(f"  do         {self.do}")
        if self.code:
            lines.append(f"  the card's own code for this is {self.code}")
        if self.page:
            lines.append(f"  more       toprope explain {self.page}")
        return "\n".join(lines)


class UsageError(TopropeError, ValueError):
    """The call or the command line is wrong."""

    exit_status = 2


class SizeError(UsageError):
    """A size such as "256MB" cannot be read."""

    page = "size"


class SettingError(UsageError):
    """An environment variable or a table in pyproject.toml cannot be read."""

    page = "setting"


class UnknownChipError(UsageError):
    """No chip of that name is described in toprope/chips."""

    page = "unknown-chip"


class ChipDataError(UsageError):
    """The description of a chip in toprope/chips is not valid, such as a figure without a source."""

    page = "chip-data"


class ProgramError(UsageError):
    """The program given to `toprope run` is not there."""

    page = "program"


class DeviceNameError(UsageError):
    """The name of a device cannot be read, or no backend has that kind of device."""

    page = "device-name"


class ScheduleError(UsageError):
    """A schedule of streams and operators cannot be read, or makes no sense, such as a collective without a member."""

    page = "schedule"


class PlanError(UsageError):
    """Limits for streams or a model's places in memory cannot be planned for want of room, or a plan cannot be read."""

    page = "plan"


class PageError(UsageError):
    """A tensor cannot be stored as a page of few bits, or a page cannot be read or does not fit what it is used for."""

    page = "page"


class SeedError(UsageError):
    """A seed of random numbers cannot be used, such as one that is negative or not a whole number."""

    page = "seed"


class ImageError(UsageError):
    """A picture cannot be read: no picture, cut short, or so large that it is not decoded."""

    page = "image"


class LoraError(UsageError):
    """A LoRA does not fit the model that it is for, or the file holds none."""

    page = "lora"


class WeightsError(UsageError):
    """A file holds no weights that can be loaded: cut short, of another format, or with more in it than weights."""

    page = "weights"


class EnvironmentProblem(TopropeError, RuntimeError):
    """The machine lacks something that the call needs."""

    exit_status = 3


class BuildError(EnvironmentProblem):
    """The native part of the simulator cannot be built, cached or loaded."""

    page = "build"


class CardError(EnvironmentProblem):
    """A real card was asked for and there is none that works."""

    page = "card"


class PackageError(EnvironmentProblem, ImportError):
    """A package of Python that an extra of toprope brings is not installed, or cannot be imported."""

    page = "package"


class ModeUnavailable(EnvironmentProblem):
    """A mode cannot act here: quantised products are not faster, or the device does not multiply bf16."""

    page = "mode-unavailable"


class TierCapacityError(EnvironmentProblem):
    """A level of memory has not the room that was asked of it: for a tensor, or for the level itself."""

    page = "tier-capacity"


class TierError(EnvironmentProblem):
    """The content of a tier, such as weights on a disk, cannot be moved."""


class TierAbsentError(TierError):
    """A weight is read or written while it is not on the device, such as by an optimizer, a copy or a merge."""

    page = "tier-absent"


class TierBusyError(TierError):
    """No place on the device becomes free for what is needed next, or a transfer does not end in its time."""

    page = "tier-busy"


class TierChangedError(TierError):
    """A file of weights is not the one that it was: somebody wrote to it, replaced it or took it away."""

    page = "tier-changed"


class TierReadError(TierError):
    """Weights cannot be read from where they lie: the disk has an error, or the file is cut short."""

    page = "tier-read"


class TierWriteError(TierError):
    """A file for what does not fit into memory cannot be made or written."""

    page = "tier-write"


class DeviceError(EnvironmentProblem):
    """A device cannot do what was asked for, or is not there."""


class DeviceIndexError(DeviceError):
    """There are devices of this kind, but none of this index."""

    page = "device-index"


class DeviceFullError(DeviceError):
    """A device has no memory left to find out what it can do: this or another process holds it."""

    page = "device-full"


class DeviceMaskError(DeviceError):
    """The variable that says which cards a process sees was changed after the process was given one of them."""

    page = "device-mask"


class UnsupportedError(DeviceError):
    """The device is there but has no such thing, such as random numbers of its own."""

    page = "unsupported"


class DeviceUnavailableError(DeviceError):
    """There is no device of the kind that was asked for."""


class DeviceNotInstalledError(DeviceUnavailableError):
    """The software of this kind of device is not installed in this Python."""

    page = "device-not-installed"


class DeviceBrokenError(DeviceUnavailableError):
    """The software of this kind of device is installed but cannot be loaded, for example without a library of CANN."""

    page = "device-broken"


class DeviceNotVisibleError(DeviceUnavailableError):
    """The software works but shows this process no device: none there, masked, not permitted, not in the container."""

    page = "device-not-visible"


class EditError(TopropeError, RuntimeError):
    """The editing of a picture failed."""


class EditCancelled(EditError):
    """The editing of a picture was cancelled, between two steps; nothing of it is kept."""

    page = "edit-cancelled"


class EditGuardError(EditError):
    """The result of the model is no picture: numbers that are not finite, or black from an input that is not."""

    page = "edit-guard"


class SimulatorError(TopropeError, RuntimeError):
    """The simulated card cannot do what was asked for."""


class InstallError(SimulatorError):
    """The simulator cannot be installed in this process."""

    page = "install"
