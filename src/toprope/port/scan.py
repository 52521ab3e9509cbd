"""Files and folders: which files there are, and the port of each by its kind, in one process or several.

Nothing is written here. What cannot be read or is no Python of this version is skipped with the reason, and the rest is
done.

Called by `cli.port` and benchmarks; each file goes to `engine`, `notebook` or `files`. Results come in the order of
the files; processes and what is kept between looks are free. Tests: tests/port/test_port_cli.py,
tests/port/test_port_unseen_second.py, tests/port/test_port_folders.py.
"""

from __future__ import annotations

import gc
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing import get_context
from pathlib import Path

from toprope.errors import UsageError
from toprope.port.conditions.across import (
    answers_elsewhere,
    devices_elsewhere,
    skips_elsewhere,
    texts_elsewhere,
)
from toprope.port.engine import MOST_BYTES, port
from toprope.port.file import RUNTIME
from toprope.port.files import FileKind, kind_of, port_text
from toprope.port.files.alike import Alike
from toprope.port.finding import Finding, Ported
from toprope.port.notebook import MOST_NOTEBOOK_BYTES, port_notebook, program_of
from toprope.port.project.context import Context, Target
from toprope.port.project.facts import SCRIPTS, WORDS, Facts, Project, facts_of, project_of
from toprope.port.project.folders import EXCLUDED, LeftAlone, Pattern, why_left_alone
from toprope.port.runtime.vendor import is_vendored
from toprope.port.syntax.source import Source, UnreadableError

__all__ = ["Choice", "Found", "find", "port_files", "project_in", "survey"]

_LEFT_OUT = {
    ".git", ".hg", ".svn", ".venv", "venv", ".tox", ".nox", "__pycache__", "node_modules", "site-packages",
    ".mypy_cache", ".ruff_cache", ".pytest_cache", ".ipynb_checkpoints",
}  # fmt: skip


_MOST_CONFIGURATION = 200_000
"""Files in JSON and its like that are larger hold data."""


@dataclass(frozen=True)
class Choice:
    """Selection of rules.

    Args:
        select: beginnings of codes that are wanted; all where it is empty.
        ignore: beginnings of codes that are not.

    Raises:
        UsageError: no rule has such a code.
    """

    select: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        from toprope.port.registry import all_rules

        for code in (*self.select, *self.ignore):
            if not code or not any(each.startswith(code) for each in all_rules()):
                raise UsageError(f"there is no rule {code!r}.", do="give codes such as TR031, or their beginnings")

    def leaves(self, finding: Finding) -> bool:
        """Return whether a finding is not wanted."""
        code = finding.rule.code
        return bool(self.select and not code.startswith(self.select)) or bool(
            self.ignore and code.startswith(self.ignore)
        )


@dataclass(frozen=True)
class Found:
    """Files to port, and those that are left alone.

    Attributes:
        files: the files that have a kind, sorted, each once.
        left_alone: folders and files that are not looked at, with the reason.
    """

    files: list[Path]
    left_alone: list[LeftAlone]


def find(paths: Iterable[Path]) -> list[Path]:
    """The files of `survey`."""
    return survey(paths).files


def survey(paths: Iterable[Path], exclude: Iterable[Pattern] = (), include: Iterable[Pattern] = ()) -> Found:
    """Find the files among paths and in folders. What is named itself is always taken.

    Links to folders are not followed, so that a loop has an end; folders of version control, of environments and of
    caches are left out without a word, vendored ones, submodules and records of old runs are named.

    Args:
        paths: files and folders.
        exclude: what is left alone although it is the project's own.
        include: what is looked at although it looks like code of others or records.

    Raises:
        UsageError: a path is not there.
    """
    found: dict[str, Path] = {}
    left: list[LeftAlone] = []
    exclude, include = list(exclude), list(include)
    for path in paths:
        if path.is_dir():
            for folder, folders, names in os.walk(path):
                folders[:] = sorted(
                    name for name in folders if name not in _LEFT_OUT and not _is_environment(folder, name)
                )
                for name in list(folders):
                    inner = os.path.join(folder, name)
                    reason = _why(inner, exclude, include) if not os.path.islink(inner) else ""
                    if reason:
                        folders.remove(name)
                        left.append(LeftAlone(Path(inner), reason, len(_in_folder(Path(inner)))))
                for name in sorted(names):
                    file = Path(folder, name)
                    if _kind(file) is None:
                        continue
                    if any(pattern.matches(file) for pattern in exclude):
                        left.append(LeftAlone(file, EXCLUDED, 1))
                    else:
                        found.setdefault(os.path.realpath(file), file)
        elif path.exists():
            found.setdefault(os.path.realpath(path), path)
        else:
            raise UsageError(f"{path} is not there.", do="name files or folders of the program")
    return Found(list(found.values()), [each for each in left if each.files])


def _why(folder: str, exclude: Iterable[Pattern], include: Iterable[Pattern]) -> str:
    if any(pattern.matches(folder) for pattern in exclude):
        return EXCLUDED
    reason = why_left_alone(folder)
    return "" if reason and any(pattern.matches(folder) for pattern in include) else reason


def _in_folder(folder: Path) -> list[Path]:
    """The files of a folder that have a kind."""
    found = []
    for inner, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if name not in _LEFT_OUT and not _is_environment(inner, name)]
        found += [file for name in names if _kind(file := Path(inner, name)) is not None]
    return found


def _is_environment(folder: str, name: str) -> bool:
    return os.path.exists(os.path.join(folder, name, "pyvenv.cfg"))


def _kind(path: Path) -> FileKind | None:
    """The kind of a file by its name; of one without a suffix by its first line, too."""
    kind = kind_of(path.as_posix())
    if kind is not None or path.suffix or not path.is_file():  # neither a pipe nor a device
        return kind
    try:
        with path.open("rb") as file:
            first = file.read(128).partition(b"\n")[0]
    except OSError:
        return None
    if not first.startswith(b"#!"):
        return None
    if b"python" in first:
        return FileKind.PYTHON
    return FileKind.SHELL if first.rstrip().endswith(b"sh") else None


def project_in(files: Sequence[Path], programs: Iterable[bytes] | None = None) -> Project:
    """Collect the facts of these files. They are parsed only if one of them concerns the others.

    Args:
        files: the files.
        programs: their code, where it was read already.
    """
    modules = _modules(files)
    programs = list(map(_program, files) if programs is None else programs)
    if not any(map(WORDS.search, programs)):
        return Project(modules=modules, at_top=_at_top(files))
    folders = [path.absolute().parent.name for path in files]
    facts = partial(_facts, scripts=any(map(SCRIPTS.search, programs)))
    project = project_of(map(facts, programs), modules, [_module(path) for path in files], folders)
    return replace(project, at_top=_at_top(files))


def _program(path: Path) -> bytes:
    """The code of a file in Python, or of a notebook; empty for other files and those that are not looked at."""
    kind = _kind(path)
    is_notebook = kind is FileKind.NOTEBOOK
    if kind not in (FileKind.PYTHON, FileKind.NOTEBOOK, None):
        return b""
    try:
        if path.stat().st_size > (MOST_NOTEBOOK_BYTES if is_notebook else MOST_BYTES):
            return b""
        data = path.read_bytes()
    except OSError:
        return b""
    if is_vendored(data):  # what it imports is not the program's
        return b""
    return program_of(data) if is_notebook else data


def _facts(data: bytes, *, scripts: bool) -> Facts:
    try:
        return facts_of(Source(data).parse(), scripts=scripts)
    except (UnreadableError, RecursionError):
        return Facts()


def _module(path: Path) -> str:
    """The last name under which a file is imported."""
    return path.absolute().parent.name if path.name == "__init__.py" else path.stem


def _modules(files: Sequence[Path]) -> frozenset[str]:
    """The names under which these files may import each other: of files, and of the folders they are in.

    A folder with nothing but a setup.py and sources in C++ is none: it often has the extension's name.
    """
    files = [path for path in files if path.suffix in (".py", ".pyi") and path.name != "setup.py"]
    if not files:
        return frozenset()
    top = Path(os.path.commonpath([path.absolute().parent for path in files]))
    found = {top.name} if (top / "__init__.py").exists() else set()
    for path in files:
        found |= {*path.absolute().parent.relative_to(top).parts, path.stem}
    return frozenset(found)


def _at_top(files: Sequence[Path]) -> frozenset[str]:
    """The files and packages in the outermost folder: programs that run there import these, not what is installed."""
    files = [path.absolute() for path in files if path.suffix == ".py"]
    if len(files) < 2:
        return frozenset()
    top = Path(os.path.commonpath([path.parent for path in files]))
    folders = {path.relative_to(top).parts[0] for path in files if path.parent != top}
    packages = {name for name in folders if (top / name / "__init__.py").exists()}
    return frozenset(packages | {path.stem for path in files if path.parent == top})


def port_files(
    files: Sequence[Path],
    *,
    choice: Choice | None = None,
    runtime: Callable[[Path], str] | None = None,
    jobs: int = 1,
    card: Target | None = None,
    progress: Callable[[int], None] | None = None,
) -> Iterator[Ported]:
    """The port of every file, in their order.

    Args:
        files: from `find`.
        choice: which rules are wanted; all where left out.
        runtime: gives the module that a file's ported code calls; toprope's own where left out.
        jobs: number of processes.
        card: what operators are looked up for; a 910B3 where left out.
        progress: called with the number of files that are done.
    """
    modules = {} if runtime is None else {path: runtime(path) for path in files}
    choice, context = choice or Choice(), Context.of(files, card)
    programs = {path: _program(path) for path in files}
    project = project_in(files, programs.values())
    looked = _Looked(programs, choice, project, context)
    elsewhere = skips_elsewhere(programs, looked) | answers_elsewhere(programs, looked)
    elsewhere |= devices_elsewhere(programs, looked)
    elsewhere |= texts_elsewhere(programs, looked, project)
    done = {} if modules else looked.unchanged(elsewhere)
    one = partial(_one, choice=choice, modules=modules, project=project, context=context, elsewhere=elsewhere)
    del programs, looked
    said, alike = set[str](), Alike(files)
    rest = [path for path in files if path not in done]
    if jobs <= 1 or len(rest) < 2 * jobs:
        ported: Iterator[Ported] = map(one, rest)
        for number, path in enumerate(files, 1):
            yield alike.fold(_once(done.pop(path) if path in done else next(ported), said))
            if progress is not None:
                progress(number)
        return
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
        ported = pool.map(one, rest, chunksize=8)
        for number, path in enumerate(files, 1):
            yield alike.fold(_once(done.pop(path) if path in done else next(ported), said))
            if progress is not None:
                progress(number)


_ONCE = "TR121a"
"""Rule about packages with a build for NPUs: one line for each package of a project says it."""


def _once(ported: Ported, said: set[str]) -> Ported:
    """Leave out what was said of another file already."""
    kept = []
    for finding in ported.findings:
        if finding.rule.code != _ONCE or finding.message not in said:
            kept.append(finding)
        said |= {finding.message} if finding.rule.code == _ONCE else set()
    ported.findings = kept
    return ported


def _nearby(path: Path) -> bytes:
    """The CUDA source that a header or a binding belongs to: of the same name, in its folder or in `cuda` in it."""
    stem = path.stem.removesuffix("_cuda").removesuffix("_gpu")
    for folder in (path.parent, path.parent / "cuda"):
        for name in (f"{stem}.cu", f"{stem}_cuda.cu", f"{stem}_kernel.cu", f"{stem}_cuda_kernel.cu", f"{stem}_gpu.cu"):
            source = folder / name
            try:
                if source != path and source.is_file():
                    return source.read_bytes()[:MOST_BYTES]
            except OSError:
                continue
    return b""


class _Looked:
    """The port of files that were looked at for the sake of others, which is not made twice."""

    def __init__(self, programs: Mapping[Path, bytes], choice: Choice, project: Project, context: Context) -> None:
        self._programs = programs
        self._port = partial(port, project=project, leave=choice.leaves, context=context)
        self._ported: dict[Path, Ported] = {}

    def __call__(self, path: Path, foreign: frozenset[str]) -> Ported:
        """The port of one file, with what answers of other files guard in it."""
        if path not in self._ported or foreign:
            with _without_collection():
                self._ported[path] = self._port(self._programs[path], str(path), foreign=foreign)
        return self._ported[path]

    def unchanged(self, elsewhere: Mapping[str, str]) -> dict[Path, Ported]:
        """Those of them that are ported in the same way whatever other files guard."""
        names = sorted({name.encode() for key in elsewhere for name in re.findall(r"\w{2,}", key)})
        word = re.compile(rb"\b(?:" + b"|".join(names) + rb")\b") if names else None
        return {
            path: ported for path, ported in self._ported.items()
            if kind_of(path.as_posix()) is FileKind.PYTHON and not is_vendored(self._programs[path])
            and (word is None or not word.search(self._programs[path]))
        }  # fmt: skip


def _one(
    path: Path,
    choice: Choice,
    modules: Mapping[Path, str],
    project: Project,
    context: Context,
    elsewhere: Mapping[str, str],
) -> Ported:
    name = str(path)
    try:
        kind = _kind(path) or FileKind.PYTHON
        size = path.stat().st_size
        if size > (MOST_NOTEBOOK_BYTES if kind is FileKind.NOTEBOOK else MOST_BYTES):
            return Ported(name, skipped=f"it has {size / 1e6:.1f} MB: taken for a generated file")
        if kind is FileKind.CONFIG and size > _MOST_CONFIGURATION:
            return Ported(name)  # data
        data = path.read_bytes()
    except OSError as error:
        return Ported(name, skipped=f"it cannot be read: {error.strerror}")
    if is_vendored(data):  # it is the user's from then on
        return Ported(name, data, data, lines=data.count(b"\n"))
    if kind not in (FileKind.PYTHON, FileKind.NOTEBOOK):
        vendored = bool(modules)
        resolved = project.options - project.unread
        nearby = _nearby(path) if kind in (FileKind.CUDA, FileKind.CPP) else b""
        ported = port_text(data, name, kind, choice.leaves, vendored=vendored, resolved=resolved, nearby=nearby)
        twin = path.with_name(ported.companion[0]) if ported.companion is not None else None
        if twin is not None and twin.is_file():
            ported = port_text(data, name, kind, choice.leaves, has_twin=True, vendored=vendored)
        return ported
    one = port_notebook if kind is FileKind.NOTEBOOK else port
    module = modules.get(path, RUNTIME)
    with _without_collection():
        return one(
            data, name, runtime=module, project=project, leave=choice.leaves, context=context, elsewhere=elsewhere
        )


@contextmanager
def _without_collection() -> Iterator[None]:
    """Collect no garbage meanwhile: trees are large, and gone at the end of each file."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()
