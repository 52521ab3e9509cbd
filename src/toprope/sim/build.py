"""Builds the simulator's native part once for each torch, and keeps it in the user's cache directory.

A build is two shared objects (the core without torch, and the torch glue), found again by a hash of the sources,
torch's version and the compiler. It needs nothing but g++: no Python headers, no ninja.
"""

from __future__ import annotations

import json
import os
import runpy
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from toprope import compiling
from toprope.errors import BuildError
from toprope.settings import Settings

__all__ = ["CORE", "GLUE", "Build", "check", "ensure", "is_ready", "main"]

CORE = "libtoprope_core.so"
GLUE = "libtoprope_torch.so"
_WHAT = "the simulated card"
_NOTE = compiling.NOTE
_SOURCES = Path(__file__).parent / "csrc"
_FLAGS = [
    "-std=c++20",
    "-O2",
    "-g0",
    "-fPIC",
    "-fvisibility=hidden",
    "-fvisibility-inlines-hidden",
    "-Wno-psabi",
    "-Wno-interference-size",
    "-Wno-unknown-warning-option",
]
_LOCK_LIMIT = compiling.LOCK_LIMIT


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
        """The torch that this Python would import; None where it does not say its version."""
        spec = find_spec("torch")
        folder = Path(spec.origin or "").parent if spec is not None else Path()
        try:
            version = runpy.run_path(str(folder / "version.py"))
            return cls(version["__version__"], str(version["git_version"]), folder)
        except (OSError, KeyError):
            return None


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
        BuildError: no compiler, a compiler that fails, a cache directory that cannot be written, or another
            process that does not get done with the same build.
    """
    torch = Torch.imported()
    cache = Settings.load().cache_dir / "sim"
    stem = f"torch-{torch.version}-{compiling.digest(torch.version, torch.revision, *_source_texts())}"
    compiler = compiling.compiler()
    if compiler is None:
        # A finished build needs no compiler, whichever made it.
        for folder in sorted(cache.glob(f"{stem}-*")):
            if _is_whole(folder):
                return check(folder, torch)
        raise BuildError(
            "the simulated card has to be built once, and there is no C++ compiler.",
            f"the variable CXX ({os.environ.get('CXX') or 'not set'}), g++ and clang++ on PATH; no build for torch"
            f" {torch.version} in {cache}",
            "install g++ 11 or newer (Debian and Ubuntu: apt install g++), or name a compiler in CXX",
        )
    folder = cache / f"{stem}-{compiling.digest(*compiling.identity(compiler))}"
    if not _is_whole(folder):
        with compiling.locked(folder, _WHAT, _LOCK_LIMIT):
            if not _is_whole(folder):
                _build(folder, torch, compiler)
    return check(folder, torch)


def is_ready() -> bool:
    """Whether there is a build for the installed torch. Imports no torch."""
    torch = Torch.installed()
    if torch is None:
        return False
    stem = f"torch-{torch.version}-{compiling.digest(torch.version, torch.revision, *_source_texts())}"
    try:
        compiler = compiling.compiler()
        name = "*" if compiler is None else compiling.digest(*compiling.identity(compiler))
        return any(_is_whole(folder) for folder in (Settings.load().cache_dir / "sim").glob(f"{stem}-{name}"))
    except BuildError:
        return False


def main() -> int:
    """Make the build if there is none; the exit status of the process."""
    try:
        ensure()
    except BuildError as error:
        sys.stderr.write(f"toprope: {error}\n")
        return error.exit_status
    return 0


def _is_whole(folder: Path) -> bool:
    """Whether all files of a build are there.

    Raises:
        BuildError: this user may not look.
    """
    try:
        return all((folder / name).exists() for name in (_NOTE, CORE, GLUE))
    except PermissionError as error:
        raise BuildError(
            "the simulator's build cannot be read.",
            f"{error.filename}: {error.strerror}",
            "make it readable, or name another cache directory in TOPROPE_CACHE_DIR",
        ) from error


def check(folder: Path, torch: Torch | None = None) -> Build:
    """The build in a folder, if it was made for the torch of this process.

    Raises:
        BuildError: it was made for another torch. Loading it would not fail but misbehave, since torch's C++
            interfaces differ from one version to the next.
    """
    torch = torch or Torch.imported()
    try:
        note = dict(json.loads((folder / _NOTE).read_text()))
    except (OSError, ValueError, TypeError) as error:
        raise BuildError(
            "the simulator's build cannot be read.", f"{folder / _NOTE}: {error}", f"remove {folder}; it is made anew"
        ) from error
    if (note.get("torch"), note.get("revision")) != (torch.version, torch.revision):
        raise BuildError(
            f"the simulator's build was made for torch {note.get('torch')} ({note.get('revision')}),"
            f" this is torch {torch.version} ({torch.revision}).",
            str(folder),
            f"remove {folder}; it is made anew",
        )
    return Build(folder)


def _source_files() -> list[Path]:
    return sorted(path for path in _SOURCES.rglob("*") if path.suffix in (".cpp", ".h"))


def _source_texts() -> Iterator[str]:
    for path in _source_files():
        yield path.name
        yield path.read_text()
    yield from _FLAGS


def _build(folder: Path, torch: Torch, compiler: list[str]) -> None:
    """Makes the build aside and moves it into place whole, so that nobody ever sees half of one."""
    try:
        aside = Path(tempfile.mkdtemp(prefix=f"{folder.name}.", dir=folder.parent))
    except OSError as error:
        raise compiling.not_writable(folder.parent, error, _WHAT) from error
    begin = time.monotonic()
    compiling.tell(f"building the simulated card for torch {torch.version} with {compiler[0]}; once, about a minute")
    try:
        _compile(aside, torch, compiler)
        compiling.put_in_place(
            aside, folder, {"torch": torch.version, "revision": torch.revision, "compiler": compiler}, _WHAT
        )
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    compiling.tell(f"built in {time.monotonic() - begin:.0f} s, kept in {folder}")


def _compile(folder: Path, torch: Torch, compiler: list[str]) -> None:
    include = torch.folder / "include"
    torch_flags = [f"-I{include}", f"-I{include}/torch/csrc/api/include"]

    def compile_one(source: Path) -> str:
        target = folder / f"{source.parent.name}-{source.stem}.o"
        flags = torch_flags if source.parent.name == "torch" else []
        compiling.run([*compiler, *_FLAGS, *flags, "-c", str(source), "-o", str(target)], source.name)
        return str(target)

    # The largest first, so that no core idles at the end.
    sources = sorted(_SOURCES.rglob("*.cpp"), key=lambda path: -path.stat().st_size)
    workers = len(os.sched_getaffinity(0))
    with ThreadPoolExecutor(max_workers=workers) as pool:
        objects = list(pool.map(compile_one, sources))
    core = [path for path in objects if Path(path).name.startswith("core-")]
    glue = [path for path in objects if path not in core]
    shared = [*compiler, "-shared", "-s", "-pthread"]
    compiling.run([*shared, *core, "-o", str(folder / CORE), f"-Wl,-soname,{CORE}"], CORE)
    compiling.run(
        [*shared, *glue, "-o", str(folder / GLUE), f"-L{folder}", "-ltoprope_core", f"-L{torch.folder / 'lib'}",
         "-ltorch_cpu", "-lc10", "-Wl,-rpath,$ORIGIN"],
        GLUE,
    )  # fmt: skip
    for path in objects:
        os.unlink(path)


if __name__ == "__main__":
    sys.exit(main())
