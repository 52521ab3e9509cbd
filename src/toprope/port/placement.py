"""Places of the vendored file's copies: every ported file can import one, however it is started.

`python scripts/run.py` has `scripts/` on its path and not the folder above it; a module has the folder from which
others import it; a file of an installed package has the package. Which of them a file is, is read from the tree:
`__init__.py` files, who imports it under which name, and whether it does something when it is run.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from toprope.port.file import VENDORED
from toprope.port.files import FileKind, kind_of

__all__ = ["Place", "Tree", "package_of"]

_IMPORT = re.compile(r"^[ \t]*import[ \t]+(?P<names>[\w., \t]+)", re.M)
_FROM = re.compile(r"^[ \t]*from[ \t]+(?P<base>\.*[\w.]*)[ \t]+import[ \t]+(?P<names>\([^)]*\)|[^\n#]+)", re.M)
_RUNS = re.compile(r"^(?:#!.*python|if\s+__name__\s*==|(?:for|while|with|assert)\b|[A-Za-z_][\w.]*\()", re.M)
_WANDERS = re.compile(r"git clone|%cd\b|os\.chdir")


@dataclass(frozen=True)
class Place:
    """How a file imports the vendored one.

    Attributes:
        module: the name.
        folders: where copies have to be.
    """

    module: str
    folders: tuple[Path, ...]


@dataclass
class _Facts:
    """Facts about a file.

    Attributes:
        path: the file, absolute.
        names: what it imports by absolute names.
        relative: the files, without their suffix, that it imports by relative names.
        runs: whether it does something when it is run.
        notebook: whether it is a notebook.
        wanders: whether it goes to another folder while it runs.
        roots: folders that are on the path when it is imported by its name.
    """

    path: Path
    names: set[str] = field(default_factory=set)
    relative: set[Path] = field(default_factory=set)
    runs: bool = False
    notebook: bool = False
    wanders: bool = False
    roots: set[Path] = field(default_factory=set)


class Tree:
    """The files that are ported, and how each can be started.

    Args:
        paths: what is ported, as it was given.
        files: the files in it.
    """

    def __init__(self, paths: Sequence[Path], files: Iterable[Path]) -> None:
        tops = [path if path.is_dir() else path.parent for path in paths]
        self.top = Path(os.path.commonpath([os.path.abspath(top) for top in tops]))
        self._facts = {each.path: each for each in map(_look, files) if each is not None}
        self._by_name: dict[str, list[_Facts]] = {}
        for facts in self._facts.values():
            module = facts.path.parent if facts.path.name == "__init__.py" else facts.path
            self._by_name.setdefault(module.stem, []).append(facts)
        for facts in self._facts.values():
            for name in facts.names:
                self._import(facts, name)
        self._spread()

    def place(self, path: Path) -> Place:
        """Choose where a file finds the vendored one, without a wish of the user."""
        facts = self._facts.get(Path(os.path.abspath(path)))
        if facts is None:
            return Place(VENDORED, (self.top,))
        folder = facts.path.parent
        package = package_of(folder)
        if package is not None and not facts.notebook and self._is_part(facts, package):
            return Place(f"{package.name}.{VENDORED}", (package,))
        folders = set(facts.roots)
        if facts.runs or facts.notebook or not folders:
            folders.add(folder)
        if facts.wanders or not (facts.runs or facts.notebook or facts.roots):
            folders.add(self.top)  # who imports it is not known: the folder that is ported is the likeliest
        if package is not None:
            folders.add(package.parent)  # `python -m package.file`
        return Place(VENDORED, tuple(sorted(folders)))

    def reaches(self, path: Path, place: Place) -> bool:
        """Test that a file finds the one copy of a place, however it is started."""
        facts = self._facts.get(Path(os.path.abspath(path)))
        (folder,) = place.folders
        package = package_of(folder)
        own = self.place(path)
        if facts is None:
            return True
        if package is None:
            return own.module == VENDORED and set(own.folders) <= {folder}
        name = package.name
        return (
            (package in facts.path.parents and own.module != VENDORED)
            or _is_installed(package)
            or _imports(facts, name)
            or (own.module == VENDORED and set(own.folders) <= {package.parent})
        )

    def _is_part(self, facts: _Facts, package: Path) -> bool:
        """Test that a file in a package's folder is always loaded as a part of that package."""
        if facts.relative or _imports(facts, package.name) or _is_installed(package):
            return True
        if facts.runs:
            return False
        return not facts.roots or package.parent in facts.roots

    def _import(self, importer: _Facts, name: str) -> None:
        """Note from which folder a name that is imported is found."""
        parts = name.split(".")
        found: list[tuple[_Facts, Path]] = []
        for facts in self._by_name.get(parts[-1], ()):
            module = facts.path.parent if facts.path.name == "__init__.py" else facts.path.with_suffix("")
            if module.parts[-len(parts) :] == tuple(parts):
                found.append((facts, Path(*module.parts[: -len(parts)])))
        near = [each for each in found if each[1] == importer.path.parent] or [
            each for each in found if each[1] == self.top or each[1] in importer.path.parents
        ]
        for facts, root in near or found:
            if facts is not importer:
                facts.roots.add(root)

    def _spread(self) -> None:
        """A file that is imported by a relative name has the folders of the one that imports it."""
        waiting = list(self._facts.values())
        while waiting:
            facts = waiting.pop()
            for module in facts.relative:
                for path in (module.with_suffix(".py"), module / "__init__.py"):
                    other = self._facts.get(path)
                    if other is not None and not facts.roots <= other.roots:
                        other.roots |= facts.roots
                        waiting.append(other)


def package_of(folder: Path) -> Path | None:
    """The folder of the outermost package that a folder belongs to; None where it is in none."""
    found = None
    folder = folder.absolute()
    while (folder / "__init__.py").exists() and folder.name.isidentifier():
        found, folder = folder, folder.parent
    return found


def _is_installed(package: Path) -> bool:
    """Test for the files that install this package: next to it, or above `src`."""
    above = package.parent
    folders = (above, above.parent) if above.name == "src" else (above,)
    if any((folder / "setup.py").exists() for folder in folders):
        return True
    for folder in folders:
        for name, said in (("pyproject.toml", r"^\[(?:project|tool\.poetry)\]"), ("setup.cfg", r"^\[metadata\]")):
            try:
                if re.search(said, (folder / name).read_text(encoding="utf-8", errors="replace"), re.M):
                    return True
            except OSError:
                continue
    return False


def _imports(facts: _Facts, package: str) -> bool:
    return any(name.partition(".")[0] == package for name in facts.names)


def _look(path: Path) -> _Facts | None:
    """Read the facts about a file; None for one that is no Python."""
    kind = kind_of(path.as_posix())
    if kind not in (FileKind.PYTHON, FileKind.NOTEBOOK, None):
        return None
    facts = _Facts(Path(os.path.abspath(path)), notebook=kind is FileKind.NOTEBOOK)
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return facts
    if facts.notebook:
        facts.wanders = bool(_WANDERS.search(text))
        text = re.sub(r'^\s*"', "", text.replace("\\n", "\n"), flags=re.M)
    facts.runs = kind is None or bool(_RUNS.search(text))
    for found in _IMPORT.finditer(text):
        facts.names |= {part.split()[0] for part in found["names"].split(",") if part.split()}
    for found in _FROM.finditer(text):
        level = len(found["base"]) - len(found["base"].lstrip("."))
        base = found["base"].lstrip(".")
        for name in ("", *_imported(found["names"])):
            full = ".".join(part for part in (base, name) if part)
            if level:
                folder = facts.path.parents[level - 1]
                facts.relative.add(folder.joinpath(*full.split(".")) if full else folder)
            elif full:
                facts.names.add(full)
    return facts


def _imported(names: str) -> Iterator[str]:
    """The names in `a, b as c`, with or without parentheses and comments."""
    for part in re.sub(r"#[^\n]*|[()\\]", " ", names).split(","):
        words = part.split()
        if words and words[0].isidentifier():
            yield words[0]
