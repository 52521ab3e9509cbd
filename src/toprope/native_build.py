"""Builder of native libraries at first use, each kept in a folder of its own in the cache directory.

A build is whole or not there. One process builds, others wait for it. Compilers end with the process that started them,
and the next build removes what a killed one left. A build's folder is named after a hash of all that it depends on;
what is not in the hash is not built again.

Called by `sim.build` (the simulated card) and `tiers.quant.kernels`; `cli.cache` lists the folders and asks their
locks, so a change of names there must follow. Tests: tests/sim/test_sim_build.py with a compiler that only pretends,
tests/sim/test_sim_build_processes.py with processes that are killed.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import shlex
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from toprope.errors import BuildError
from toprope.progress import Progress, Step
from toprope.terminal import Display

__all__ = [
    "LOCK_LIMIT",
    "NOTE",
    "UNFINISHED",
    "NativeLibrary",
    "SharedObject",
    "Unit",
    "has_compiler",
    "is_held",
    "lock_of",
]

NOTE = "build.json"
"""The file that says what a build was made for and with; it is written last."""

LOCK_LIMIT = 900.0
"""Seconds to wait for another process that builds the same."""

UNFINISHED = ".building-"
"""Part of the name of a build that is not finished, or that is being removed."""

# Standard input is a pipe that only the builder can write to: it ends when the builder ends, however that happens, and
# the compiler's whole process group with it.
_SUPERVISE = 'exec 3<&0 </dev/null; ({ read -r line <&3; kill -KILL 0; } >/dev/null 2>&1 &); exec "$@" 3<&-'
_NOT_STARTED = (126, 127)  # exit statuses of a shell
_REASON = re.compile(r"error|no space left|killed|cannot find|undefined reference|recompile with -fPIC", re.IGNORECASE)
_OUT_OF_MEMORY = re.compile(
    r"killed|ended by signal 9\b|exit status 137\b|virtual memory exhausted|out of memory", re.IGNORECASE
)


@dataclass(frozen=True)
class Unit:
    """Sources that one call of the compiler compiles as one translation unit, with their flags and header folders."""

    name: str
    sources: tuple[Path, ...]
    flags: tuple[str, ...] = ()
    include: tuple[Path, ...] = ()


@dataclass(frozen=True)
class SharedObject:
    """A shared object, linked from units; the linker looks for libraries among the objects before it and in folders."""

    name: str
    units: tuple[Unit, ...]
    flags: tuple[str, ...] = ()
    libraries: tuple[Path, ...] = ()


@dataclass(frozen=True)
class NativeLibrary:
    """Shared objects that are built together.

    Attributes:
        what: the library's name in messages, singular or plural.
        cache: the folder that holds its builds.
        prefix: begin of the names of its builds.
        depends: what a build depends on besides sources, flags and the compiler.
        headers: files that the sources include.
        flags: flags of all units.
        objects: in the order in which they are linked.
        time: for the message, "about a minute".
        target: for the message, " for torch 2.13".
        note: what NOTE says of a build, besides the compiler.
    """

    what: str
    cache: Path
    objects: tuple[SharedObject, ...]
    flags: tuple[str, ...]
    time: str
    prefix: str = ""
    depends: tuple[str, ...] = ()
    headers: tuple[Path, ...] = ()
    target: str = ""
    note: dict[str, object] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.objects or not all(shared.units for shared in self.objects):
            raise ValueError(f"{self.what}: nothing to build")

    def ensure(self) -> Path:
        """The folder of a finished build, made now where there is none.

        Raises:
            BuildError: no compiler, a compiler that fails, a cache directory that cannot be written, or another
                process that does not finish the same build.
        """
        compiler = _compiler()
        folder = self._finished(compiler)
        if folder is not None:
            return folder
        if compiler is None:
            named = os.environ.get("CXX", "")
            if named:
                raise BuildError(
                    f"{self.what} {self._have} to be built once, and CXX names a compiler that is not there.",
                    f"CXX={named!r}; no build{self.target} in {self.cache}",
                    "correct CXX, with quotes around a path that has spaces; or unset it for g++ or clang++",
                )
            raise BuildError(
                f"{self.what} {self._have} to be built once, and there is no C++ compiler.",
                f"g++ and clang++ on PATH; CXX is not set; no build{self.target} in {self.cache}",
                "install g++ 11 or newer (Debian and Ubuntu: apt install g++), or name a compiler in CXX",
            )
        folder = self._folder(compiler)
        with self._locked(folder):
            if not self._is_whole(folder):
                self._build(folder, compiler)
        return folder

    def is_ready(self) -> bool:
        """Return True if `ensure` would return a finished build."""
        return self._finished(_compiler()) is not None

    def is_being_built(self) -> bool:
        """Return True if a process is building it now."""
        compiler = _compiler()
        return compiler is not None and is_held(lock_of(self._folder(compiler)))

    @property
    def _have(self) -> str:
        return "have" if self.what.endswith("s") else "has"

    @property
    def _stem(self) -> str:
        """The name of the build's folder: a hash of all that its contents depend on."""
        facts = [*self.depends, *self.flags]
        for shared in self.objects:
            facts += [shared.name, *shared.flags]
            for unit in shared.units:
                facts += [unit.name, *unit.flags, *(source.name for source in unit.sources)]
        for path in sorted([*self.headers, *self._sources()], key=lambda path: path.name):
            facts += [path.name, path.read_text(encoding="utf-8")]
        return self.prefix + _digest(facts)

    def _sources(self) -> Iterator[Path]:
        for shared in self.objects:
            for unit in shared.units:
                yield from unit.sources

    def _folder(self, compiler: list[str]) -> Path:
        program = Path(compiler[0]).resolve()
        facts = program.stat()
        identity = [str(program), str(facts.st_size), str(facts.st_mtime_ns), *compiler[1:]]
        return self.cache / f"{self._stem}-{_digest(identity)}"

    def _finished(self, compiler: list[str] | None) -> Path | None:
        # A finished build needs no compiler, whichever made it.
        folders = sorted(self.cache.glob(f"{self._stem}-*")) if compiler is None else [self._folder(compiler)]
        return next((folder for folder in folders if self._is_whole(folder)), None)

    def _is_whole(self, folder: Path) -> bool:
        """True if all shared objects are in the folder, in the sizes that its note says."""
        if UNFINISHED in folder.name:
            return False
        try:
            sizes = _sizes((folder / NOTE).read_text(encoding="utf-8", errors="replace"))
            found = {shared.name: (folder / shared.name).stat().st_size for shared in self.objects}
            return all(sizes.get(name, size) == size for name, size in found.items())
        except (FileNotFoundError, NotADirectoryError):
            return False
        except PermissionError as error:
            raise BuildError(
                f"the build of {self.what} cannot be read.",
                f"{error.filename}: {error.strerror}",
                "make it readable, or name another cache directory in TOPROPE_CACHE_DIR",
            ) from error

    @contextmanager
    def _locked(self, folder: Path) -> Iterator[None]:
        """Context that holds the lock of a build's folder."""
        try:
            folder.parent.mkdir(parents=True, exist_ok=True)
            lock = _open_lock(lock_of(folder))
        except OSError as error:
            raise self._not_writable(error) from error
        try:
            self._wait_for(lock)
            yield
        finally:
            os.close(lock)

    def _wait_for(self, lock: int) -> None:
        """Wait for the lock of another process, with a line on stderr, up to `LOCK_LIMIT`."""
        begin = time.monotonic()
        attempts = 0
        while not _try_lock(lock):
            attempts += 1
            if attempts == 2:  # the first may have met a process that only looked
                Display().say(f"waiting for another process that builds {self.what}")
            if time.monotonic() > begin + LOCK_LIMIT:
                raise BuildError(
                    f"another process has been building {self.what} for {LOCK_LIMIT:.0f} s.",
                    do="see whether it hangs and end it; the lock goes with it",
                )
            time.sleep(0.1)

    def _not_writable(self, error: OSError) -> BuildError:
        return BuildError(
            f"{self.what} {self._have} to be built once, and the cache directory cannot be written.",
            f"{error.filename or self.cache}: {error.strerror}",
            "make it writable, or name another one in TOPROPE_CACHE_DIR",
        )

    def _build(self, folder: Path, compiler: list[str]) -> None:
        """Build in a temporary folder and move it into place, so that nobody sees an unfinished build."""
        begin = time.monotonic()
        display = Display()

        def show(step: Step) -> None:  # units differ too much in size for an estimate of the time left
            display.stage(f"building {self.what}: {step.amount}, {step.seconds:.0f} s")

        _remove_unfinished(folder)
        try:
            aside = Path(tempfile.mkdtemp(prefix=f"{folder.name}{UNFINISHED}", dir=self.cache))
        except OSError as error:
            raise self._not_writable(error) from error
        try:
            display.say(f"building {self.what}{self.target} with {compiler[0]}; once, {self.time}")
            try:
                self._compile(aside, compiler, Progress(show))
            except BuildError as error:
                raise _with_cure(error, aside) from error
            self._put_in_place(aside, folder, compiler)
        finally:
            display.clear()
            shutil.rmtree(aside, ignore_errors=True)
        display.say(f"built in {time.monotonic() - begin:.0f} s, kept in {folder}")

    def _compile(self, aside: Path, compiler: list[str], progress: Progress) -> None:
        """Compile all units in parallel, and link each shared object."""
        units = [(shared, unit) for shared in self.objects for unit in shared.units]
        steps = len(units) + len(self.objects)
        progress.step(0, steps)
        objects = {(shared, unit): str(aside / f"{shared.name}-{unit.name}.o") for shared, unit in units}
        with _Compilers() as compilers:
            pool = ThreadPoolExecutor(max_workers=len(os.sched_getaffinity(0)))
            compiling = {
                pool.submit(
                    compilers.run,
                    [
                        *compiler,
                        *self.flags,
                        *unit.flags,
                        *(f"-I{folder}" for folder in unit.include),
                        *_inputs(unit.sources),
                        "-o",
                        objects[shared, unit],
                    ],
                    _named(unit.sources),
                )
                for shared, unit in units
            }
            try:
                waiting = compiling
                while waiting:
                    done, waiting = wait(waiting, timeout=1, return_when="FIRST_COMPLETED")
                    for finished in done:
                        finished.result()
                    progress.step(len(units) - len(waiting), steps)
            finally:
                compilers.end()
                pool.shutdown(cancel_futures=True)
        with ThreadPoolExecutor(1) as pool, _Compilers() as linkers:
            for number, shared in enumerate(self.objects, len(units) + 1):
                linked = [objects[shared, unit] for unit in shared.units]
                folders = [f"-L{folder}" for folder in (aside, *shared.libraries)]
                linking = pool.submit(
                    linkers.run,
                    [
                        *compiler,
                        "-shared",
                        "-s",
                        "-pthread",
                        *linked,
                        "-o",
                        str(aside / shared.name),
                        *folders,
                        *shared.flags,
                    ],
                    shared.name,
                )
                while wait([linking], timeout=1).not_done:
                    progress.step(number - 1, steps)
                linking.result()
                progress.step(number, steps)
        for path in objects.values():
            os.unlink(path)

    def _put_in_place(self, aside: Path, folder: Path, compiler: list[str]) -> None:
        """Write the note and rename the finished folder to its final name."""
        try:
            sizes = {shared.name: (aside / shared.name).stat().st_size for shared in self.objects}
            (aside / NOTE).write_text(json.dumps({**self.note, "compiler": compiler, "sizes": sizes}), encoding="utf-8")
            mask = os.umask(0)
            os.umask(mask)
            aside.chmod(0o777 & ~mask)  # a cache may be shared; mkdtemp makes folders for one user alone
            shutil.rmtree(folder, ignore_errors=True)  # what a crash may have left
            aside.rename(folder)
        except OSError as error:
            raise self._not_writable(error) from error


class _Compilers:
    """Compiler processes that end with this object, or with this process, however it ends."""

    def __init__(self) -> None:
        self._read, self._write = os.pipe()

    def __enter__(self) -> _Compilers:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()
        os.close(self._read)

    def end(self) -> None:
        """End those that run."""
        if self._write >= 0:
            os.close(self._write)
            self._write = -1

    def run(self, command: list[str], what: str) -> None:
        """Run the compiler on `what`; the command names its output after -o.

        Raises:
            BuildError: the compiler cannot be started, fails, or makes nothing.
        """
        done = subprocess.run(
            ["/bin/sh", "-c", _SUPERVISE, "sh", *command],
            stdin=self._read,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            check=False,
            start_new_session=True,
        )
        output = Path(command[command.index("-o") + 1])
        if done.returncode == 0 and output.exists():
            return
        if done.returncode == 0:
            raise BuildError(
                f"the C++ compiler made nothing of {what}.",
                f"{command[0]} ended without an error and without {output.name}",
                "name another compiler in CXX; g++ 11 or newer is known to work",
            )
        lines = [line for line in done.stderr.splitlines() if _REASON.search(line)] or done.stderr.splitlines()
        ended = f"ended by signal {-done.returncode}" if done.returncode < 0 else f"exit status {done.returncode}"
        facts = f"{command[0]}, {ended}: " + "; ".join(lines[:3])
        if done.returncode in _NOT_STARTED:
            raise BuildError(
                "the C++ compiler cannot be started.", facts, "name another compiler in CXX, or install g++"
            )
        raise BuildError(
            f"the C++ compiler failed on {what}.",
            facts,
            "g++ 11 or newer is needed (C++20); name another compiler in CXX",
        )


def _with_cure(error: BuildError, aside: Path) -> BuildError:
    """The error with what to do about a full disk or memory that ran out, of which a compiler says less."""
    facts, free = error.looked_at, shutil.disk_usage(aside).free / 2**20
    if "No space left" in facts or free < 1:
        return BuildError(
            error.what, f"{facts}; {free:.0f} MiB free in {aside.parent}",
            "free some space, or name another cache directory in TOPROPE_CACHE_DIR",
        )  # fmt: skip
    if _OUT_OF_MEMORY.search(facts):
        return BuildError(
            error.what, facts, "the compiler was killed, probably for want of memory (2 GiB for each): free some"
        )
    return error


def _open_lock(path: Path) -> int:
    """The file of a lock, which every user of a shared cache can open."""
    try:
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    except PermissionError:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)  # another user's


def _sizes(note: str) -> dict[str, int]:
    """Bytes of the shared objects as a note says them; none from a note that cannot be read."""
    try:
        found = json.loads(note)
    except ValueError:
        return {}
    sizes = found.get("sizes", {}) if isinstance(found, dict) else {}
    return sizes if isinstance(sizes, dict) else {}


def _digest(parts: list[str]) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


def has_compiler() -> bool:
    """Return True if there is a C++ compiler to build with.

    Raises:
        BuildError: CXX cannot be read.
    """
    return _compiler() is not None


def _compiler() -> list[str] | None:
    """The C++ compiler with its options: CXX, g++ or clang++; None where there is none."""
    try:
        named = shlex.split(os.environ.get("CXX", ""))
    except ValueError as error:
        raise BuildError(
            "the variable CXX cannot be read.", f"CXX={os.environ['CXX']!r}: {error}", "quote it as for a shell"
        ) from error
    for command in [named] if named else [["g++"], ["clang++"]]:
        path = shutil.which(command[0])
        if path is not None:
            return [path, *command[1:]]
    return None


def _inputs(sources: tuple[Path, ...]) -> list[str]:
    if len(sources) == 1:
        return ["-c", str(sources[0])]
    return [*(word for source in sources for word in ("-include", str(source))), "-x", "c++", "-c", "/dev/null"]


def _named(sources: tuple[Path, ...]) -> str:
    others = len(sources) - 1
    return sources[0].name + (f" or {others} files compiled with it" if others else "")


def lock_of(folder: Path) -> Path:
    """The file that the builder of a folder locks."""
    return folder.with_name(f"{folder.name}.lock")


def _try_lock(lock: int, how: int = fcntl.LOCK_EX) -> bool:
    try:
        fcntl.flock(lock, how | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def is_held(path: Path) -> bool:
    """Return True if a process holds this lock."""
    try:
        lock = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        return not _try_lock(lock, fcntl.LOCK_SH)
    finally:
        os.close(lock)


def _remove_unfinished(folder: Path) -> None:
    """Remove what killed builders left in the cache; the caller holds the lock of `folder`."""
    for aside in folder.parent.glob(f"*{UNFINISHED}*"):
        of = folder.with_name(aside.name.split(UNFINISHED)[0])
        if of == folder or not is_held(lock_of(of)):
            shutil.rmtree(aside, ignore_errors=True)
