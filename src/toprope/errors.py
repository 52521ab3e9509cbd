"""Every error that toprope raises on purpose, as one tree.

    TopropeError
    ├── UsageError                the call or the command line is wrong
    │   ├── SizeError             a size such as "256MB" cannot be read
    │   ├── SettingError          an environment variable or a table in pyproject.toml cannot be read
    │   ├── UnknownChipError      no chip of that name is described in toprope/chips
    │   ├── ChipDataError         the description of a chip in toprope/chips is not valid
    │   └── ProgramError          the program given to `toprope run` is not there
    ├── EnvironmentProblem        the machine lacks something
    │   ├── BuildError            the simulator's native part cannot be built, cached or loaded
    │   └── CardError             a real card was asked for and there is none
    └── SimulatorError            the simulated card cannot do what was asked for
        └── InstallError          the simulator cannot be installed in this process

Errors that the simulated card itself raises (107001, out of memory, ...) are the vendor's: RuntimeError and
torch.OutOfMemoryError, with the vendor's texts, so that programs which handle them on a card handle them here.
"""

from __future__ import annotations

from typing import ClassVar

__all__ = [
    "BuildError",
    "CardError",
    "ChipDataError",
    "EnvironmentProblem",
    "InstallError",
    "ProgramError",
    "SettingError",
    "SimulatorError",
    "SizeError",
    "TopropeError",
    "UnknownChipError",
    "UsageError",
]


class TopropeError(Exception):
    """Base of all errors of toprope: what happened, what was looked at, what to do.

    Args:
        what: one sentence that says what happened.
        looked_at: the facts the decision rests on; empty when there are none.
        do: what the reader can do about it; empty when nothing can be done.
    """

    exit_status: ClassVar[int] = 1
    """Exit status of the command line when this error ends it (1 findings, 2 usage, 3 environment)."""

    page: ClassVar[str] = ""
    """The page of the documentation that explains this error, relative to the repository's root."""

    def __init__(self, what: str, looked_at: str = "", do: str = "") -> None:
        super().__init__(what, looked_at, do)
        self.what = what
        self.looked_at = looked_at
        self.do = do

    def __str__(self) -> str:
        lines = [self.what]
        if self.looked_at:
            lines.append(f"  looked at  {self.looked_at}")
        if self.do:
            lines.append(f"  do         {self.do}")
        if self.page:
            lines.append(f"  more       {self.page}")
        return "\n".join(lines)


class UsageError(TopropeError, ValueError):
    """The call or the command line is wrong."""

    exit_status = 2


class SizeError(UsageError):
    """A size such as "256MB" cannot be read."""

    page = "docs/errors/size.md"


class SettingError(UsageError):
    """An environment variable or a table in pyproject.toml cannot be read."""

    page = "docs/errors/setting.md"


class UnknownChipError(UsageError):
    """No chip of that name is described in toprope/chips."""

    page = "docs/errors/unknown-chip.md"


class ChipDataError(UsageError):
    """The description of a chip in toprope/chips is not valid, such as a figure without a source."""

    page = "docs/errors/chip-data.md"


class ProgramError(UsageError):
    """The program given to `toprope run` is not there."""

    page = "docs/errors/program.md"


class EnvironmentProblem(TopropeError, RuntimeError):
    """The machine lacks something that the call needs."""

    exit_status = 3


class BuildError(EnvironmentProblem):
    """The native part of the simulator cannot be built, cached or loaded."""

    page = "docs/errors/build.md"


class CardError(EnvironmentProblem):
    """A real card was asked for and there is none that works."""

    page = "docs/errors/card.md"


class SimulatorError(TopropeError, RuntimeError):
    """The simulated card cannot do what was asked for."""


class InstallError(SimulatorError):
    """The simulator cannot be installed in this process."""

    page = "docs/errors/install.md"
