"""Build of the simulator's native part, once for each torch, in the user's cache directory.

Called when the card is installed (installation/installer.py) and by `toprope run` before it starts a program
(cli/launch/card_build.py). A build is two shared objects (the core without torch, and the torch glue), found again by a
hash of the sources in csrc/, torch's version and the compiler: any change of a C++ file, even of a comment, is a new
build. It needs nothing but g++: no Python headers, no ninja. `python -m toprope.sim.build` makes it. Tests:
tests/sim/test_sim_build.py.
"""

from __future__ import annotations

import ctypes
import importlib.util
import json
import re
import signal
import sys
from dataclasses import dataclass
from pathlib import Path

from toprope.errors import BuildError
from toprope.native_build import NOTE, NativeLibrary, SharedObject, Unit
from toprope.settings import Settings

__all__ = ["CORE", "ENDS_WITH_PARENT", "GLUE", "Build", "check", "ensure", "is_being_built", "is_ready"]

CORE = "libtoprope_core.so"
GLUE = "libtoprope_torch.so"
ENDS_WITH_PARENT = "--ends-with-parent"
"""Argument of `python -m toprope.sim.build`: end, with the compilers, when the process that started it ends."""

_OLDEST = (2, 12)  # the headers of 2.10 and 2.11 lack what the card uses: docs/versions.md
_PR_SET_PDEATHSIG = 1  # of prctl(2)
_SOURCES = Path(__file__).parent / "csrc"
_FLAGS = ("-std=c++20", "-g0", "-fPIC", "-fvisibility=hidden", "-fvisibility-inlines-hidden", "-w")
_WITHOUT_COLLECTING = ("--param", "ggc-min-heapsize=1048576")  # up to 1 GiB: a tenth of g++'s time
# Parsing torch's headers is most of the time, so the glue is two translation units, each with the headers it shares.
_HOT = ("call", "device", "fallback", "memory", "ops_frequent", "ops_memory", "sites")


@dataclass(frozen=True)
class Torch:
    """The torch that a build is for.

    Attributes:
        version: torch.__version__.
        revision: the commit it was made from.
        folder: where its headers and libraries lie.
    """

    version: str
    revision: str
    folder: Path

    @classmethod
    def imported(cls) -> Torch:
        """The torch of this process."""
        import torch

        return cls(torch.__version__, str(torch.version.git_version), Path(torch.__file__).parent)

    @classmethod
    def installed(cls) -> Torch | None:
        """The torch that this process would import, found without importing it; None where there is none."""
        spec = importlib.util.find_spec("torch")
        if spec is None or spec.origin is None:
            return None
        folder = Path(spec.origin).parent
        try:
            text = (folder / "version.py").read_text()
        except OSError:
            return None
        version, revision = (
            re.search(rf"^{name} = '(.+)'$", text, re.MULTILINE) for name in ("__version__", "git_version")
        )
        return cls(version[1], revision[1], folder) if version and revision else None


@dataclass(frozen=True)
class Build:
    """A finished build: the folder that holds CORE and GLUE."""

    folder: Path

    @property
    def core(self) -> Path:
        """The shared object without torch."""
        return self.folder / CORE

    @property
    def glue(self) -> Path:
        """The shared object that registers the device with torch."""
        return self.folder / GLUE


def ensure() -> Build:
    """The build for the torch of this process, made now where there is none.

    Raises:
        BuildError: torch is too old, no compiler, a compiler that fails, a cache directory that cannot be written, or
            another process that does not finish the same build.
    """
    torch = Torch.imported()
    if (found := re.match(r"(\d+)\.(\d+)", torch.version)) and tuple(map(int, found.groups())) < _OLDEST:
        raise BuildError(
            f"the simulated card needs torch {_OLDEST[0]}.{_OLDEST[1]} or newer, this is torch {torch.version}.",
            str(torch.folder),
            "install a newer torch for rehearsals: the card's torch_npu may have the older one all the same",
        )
    return check(_library(torch).ensure(), torch)


def is_ready() -> bool:
    """Return True if the build for the installed torch is there; imports no torch.

    Raises:
        BuildError: CXX or the build cannot be read.
    """
    torch = Torch.installed()
    return torch is not None and _library(torch).is_ready()


def is_being_built() -> bool:
    """Return True if a process is making the build for the installed torch now; imports no torch."""
    torch = Torch.installed()
    return torch is not None and _library(torch).is_being_built()


def check(folder: Path, torch: Torch | None = None) -> Build:
    """The build in a folder, if it was made for the torch of this process.

    Raises:
        BuildError: it was made for another torch. Loading it would not fail but misbehave, since torch's C++
            interfaces differ from one version to the next.
    """
    torch = torch or Torch.imported()
    try:
        note = dict(json.loads((folder / NOTE).read_text()))
    except (OSError, ValueError, TypeError) as error:
        raise BuildError(
            "the simulator's build cannot be read.", f"{folder / NOTE}: {error}", f"remove {folder}; it is made again"
        ) from error
    if (note.get("torch"), note.get("revision")) != (torch.version, torch.revision):
        raise BuildError(
            f"the simulator's build was made for torch {note.get('torch')} ({note.get('revision')}),"
            f" this is torch {torch.version} ({torch.revision}).",
            str(folder),
            f"remove {folder}; it is made again",
        )
    return Build(folder)


def _library(torch: Torch) -> NativeLibrary:
    include = torch.folder / "include"
    # First headers of our own that stand for torch's list of all operators, which takes long to parse.
    headers = (_SOURCES / "torch" / "brief", include, include / "torch/csrc/api/include")
    core, glue = (tuple(sorted((_SOURCES / room).glob("*.cpp"))) for room in ("core", "torch"))
    flags = ("-DAT_PER_OPERATOR_HEADERS", *_WITHOUT_COLLECTING)
    hot = Unit("torch-hot", tuple(path for path in glue if path.stem in _HOT), ("-O2", *flags), headers)
    cold = Unit("torch-cold", tuple(path for path in glue if path.stem not in _HOT), ("-O1", *flags), headers)
    return NativeLibrary(
        what="the simulated card",
        target=f" for torch {torch.version}",
        cache=Settings.load().cache_dir / "sim",
        prefix=f"torch-{torch.version}-",
        depends=(torch.version, torch.revision),
        headers=tuple(_SOURCES.rglob("*.h")),
        flags=_FLAGS,
        objects=(
            SharedObject(CORE, (Unit("core", core, ("-O2",)),), (f"-Wl,-soname,{CORE}",)),
            SharedObject(
                GLUE,
                (hot, cold),
                ("-ltoprope_core", "-ltorch_cpu", "-lc10", "-Wl,-rpath,$ORIGIN"),
                (torch.folder / "lib",),
            ),
        ),
        time="about half a minute",
        note={"torch": torch.version, "revision": torch.revision},
    )


def _main() -> int:
    if ENDS_WITH_PARENT in sys.argv[1:]:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    torch = Torch.installed()
    try:
        if torch is None:
            raise BuildError(
                "the simulated card is built for the installed torch, and there is none.",
                sys.executable,
                "install torch into this Python",
            )
        check(_library(torch).ensure(), torch)
    except BuildError as error:
        sys.stderr.write(f"toprope: {error}\n")
        return error.exit_status
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(_main())
