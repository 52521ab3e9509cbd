"""Places of the vendored file's copies: every ported file can import one, however it is started.

`python scripts/run.py` has `scripts/` on its path and not the folder above it; a module has the folder from which
others import it; a file of a package has the package. Which of them a file is, is read from the tree: what it imports
itself, who imports it under which name, and whether it does something when it is run. `__init__.py` files alone do not
say under which name a package is imported: `src/utils/ops/__init__.py` is `utils.ops` for `src/main.py`.

Called by `vendor`; tests/port/test_port_options.py has each kind of tree.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import Path

from toprope.port.file import VENDORED
from toprope.port.files import FileKind, kind_of

__all__ = ["Place", "Tree", "package_of"]

_IMPORT = re.compile(r"^[ \t]*import[ \t]+(?P<names>[\w., \t]+)", re.M)
_FROM = re.compile(
    r"^(?P<indent>[ \t]*)from[ \t]+(?P<base>\.*[\w.]*)[ \t]+import[ \t]+(?P<names>\([^)]*\)|[^\n#]+)", re.M
)
_RUNS = re.compile(r"^(?:#!.*python|if\s+__name__\s*==|(?:for|while|with|assert)\b|[A-Za-z_][\w.]*\()", re.M)
_SAID = {"setup.py": "", "pyproject.toml": r"^\[(?:project|tool\.poetry)\]", "setup.cfg": r"^\[metadata\]"}
"""Files that install a project, and what they then say."""

_NAMES_PACKAGES = re.compile(r"\bpackages\b|\bpy_modules\b|\bfind_(?:namespace_)?packages\b|\bsetup\(\s*\*\*")
_IN_SRC = re.compile(r"""find_packages\(\s*(?:where\s*=\s*)?["']src["']|^where\s*=\s*\[?\s*["']?src\b""", re.M)
_EXCLUDED = re.compile(r"""\bexclude\s*=\s*[\[(]([^\])]*)""")
_LISTED = re.compile(
    r"""\bpackages\s*=\s*\[([^\]]*)\]|find_packages\([^)]*\binclude\s*=\s*[\[(]([^\])]*)"""
    r"""|^\[tool\.setuptools\.packages\.find\][^\[]*?^include\s*=\s*\[([^\]]*)\]""",
    re.M,
)
_QUOTED = re.compile(r"""["']([\w.*?-]+)["']""")
_WANDERS = re.compile(r"git clone|%cd\b|os\.chdir")


@dataclass(frozen=True)
class Place:
    """How a file imports the vendored one.

    Attributes:
        module: the name; ".toprope_portable" for `from . import toprope_portable`.
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
        level: the most dots of a relative import that runs whenever the file is loaded: as many folders are packages.
        runs: whether it does something when it is run.
        notebook: whether it is a notebook.
        wanders: whether it goes to another folder while it runs.
        roots: folders that are on the path when it is imported by its name.
        own: packages around it that it imports from by their absolute names.
        flat: whether it imports a file next to it by that file's bare name.
        importers: the files that import it by relative names.
        depth: how many folders around it are packages however it is loaded, as far as the project says it.
    """

    path: Path
    names: set[str] = field(default_factory=set)
    relative: set[Path] = field(default_factory=set)
    level: int = 0
    runs: bool = False
    notebook: bool = False
    wanders: bool = False
    roots: set[Path] = field(default_factory=set)
    own: set[Path] = field(default_factory=set)
    flat: bool = False
    importers: list[_Facts] = field(default_factory=list)
    depth: int = 0

    @property
    def folder(self) -> Path:
        """The folder that it is in."""
        return self.path.parent

    def package(self, depth: int) -> Path:
        """The folder that a relative import with N dots means."""
        return self.path.parents[depth - 1]


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
            module = facts.folder if facts.path.name == "__init__.py" else facts.path
            self._by_name.setdefault(module.stem, []).append(facts)
        for facts in self._facts.values():
            for name in {each[:end] for each in facts.names for end in _ends(each)}:
                self._import(facts, name)
        self._flat = self._find_flat()
        self._spread()
        self._count()

    def _find_flat(self) -> set[Path]:
        """Find the folders that are on the path themselves, whatever `__init__.py` they have: by the imports in them.

        `from utils import f` next to `utils.py` only runs where the folder is on the path, so that its files are no
        part of a package for each other. One import that goes by the package's name says that it is one.
        """
        found = {each.folder for each in self._facts.values() if each.flat}
        return found - {each.folder for each in self._facts.values() if each.level or each.own}

    def place(self, path: Path) -> Place:
        """Choose where a file finds the vendored one, without a wish of the user."""
        facts = self._facts.get(Path(os.path.abspath(path)))
        if facts is None:
            return Place(VENDORED, (self.top,))
        around = None if facts.folder in self._flat and not facts.level else package_of(facts.folder)
        package = None if facts.notebook else around
        if facts.level:
            return _relative(facts, facts.depth)
        if package is not None and facts.own:
            return _absolute(min(facts.own), min(facts.own).parent)
        if package is not None and (_is_installed(package) if facts.runs else not facts.roots and not facts.depth):
            is_on_path = package.parent == self.top or facts.runs or _is_installed(package)
            return _absolute(package, package.parent) if is_on_path else _relative(facts, 1)
        is_part = bool(facts.depth) and not facts.runs and not facts.notebook
        if is_part and facts.importers:
            return _relative(facts, facts.depth)
        if is_part and package is not None:
            if len(facts.roots) != 1:
                return _relative(facts, facts.depth)
            (root,) = facts.roots
            first = root / facts.folder.relative_to(root).parts[0]
            return _absolute(package if root in package.parents else first, root)
        folders = set(facts.roots) or self._next_to(facts)
        if facts.runs or facts.notebook or not folders:
            folders.add(facts.folder)
        if facts.wanders or not (facts.runs or facts.notebook or facts.roots):
            folders.add(self.top)  # who imports it is not known: the folder that is ported is the likeliest
        if around is not None:
            folders.add(around.parent)  # `python -m package.file`
        return Place(VENDORED, tuple(sorted(folders)))

    def _next_to(self, facts: _Facts) -> set[Path]:
        """The folders from which the files next to it are imported: it may be imported by a name made at run time."""
        found = {root for each in self._facts.values() if each.folder == facts.folder for root in each.roots}
        return {root for root in found if root in facts.folder.parents}

    def at(self, path: Path, folder: Path) -> Place:
        """How a file imports the one copy in a folder."""
        folder = folder.absolute()
        package = package_of(folder)
        if package is None:
            return Place(VENDORED, (folder,))
        facts = self._facts.get(Path(os.path.abspath(path)))
        if facts is not None and facts.level:
            for depth in range(1, facts.depth + 1):
                if facts.package(depth) == folder:
                    return _relative(facts, depth)
        return _absolute(folder, self._root(folder, package))

    def _root(self, folder: Path, package: Path) -> Path:
        """The folder from which the project imports a package: by how it does so, else by the `__init__.py` files."""
        found = {root for each in self._facts.values() if folder in each.path.parents for root in each.roots}
        found = {root for root in found if root in folder.parents}
        return found.pop() if len(found) == 1 else package.parent

    def reaches(self, path: Path, place: Place) -> bool:
        """Test that a file finds the one copy of a place, however it is started."""
        facts = self._facts.get(Path(os.path.abspath(path)))
        if facts is None or place.module.startswith("."):
            return True
        (folder,) = place.folders
        own = self.place(path)
        package, *inner = place.module.split(".")
        root = Path(*folder.parts[: len(folder.parts) - len(inner)]) if inner else folder
        if inner and (_imports(facts, package) or _is_installed(root / package)):
            return True
        if inner and root / package in facts.path.parents and own.module.startswith((".", f"{package}.")):
            return facts.roots <= {root}
        return own.module == VENDORED and set(own.folders) <= {root}

    def _import(self, importer: _Facts, name: str) -> None:
        """Note from which folder a name that is imported is found."""
        parts = name.split(".")
        found: list[tuple[_Facts, Path]] = []
        for facts in self._by_name.get(parts[-1], ()):
            module = facts.folder if facts.path.name == "__init__.py" else facts.path.with_suffix("")
            if module.parts[-len(parts) :] == tuple(parts):
                found.append((facts, Path(*module.parts[: -len(parts)])))
        found = [each for each in found if self._may_be_own(importer, parts, each[1])]
        near = [each for each in found if each[1] == importer.folder] or [
            each for each in found if each[1] == self.top or each[1] in importer.path.parents
        ]
        for facts, root in near or found:
            if root / parts[0] in importer.path.parents and package_of(root / parts[0]) is not None:
                importer.own.add(root / parts[0])
            if facts is not importer:
                facts.roots.add(root)
                importer.flat |= root == importer.folder == facts.folder

    def _may_be_own(self, importer: _Facts, parts: list[str], root: Path) -> bool:
        """Return whether a name can be a folder of the project: `import ray` in `trainer/ray` is the installed Ray.

        A folder inside a package is on the path of those alone that import a file of it by its name. One whose files
        are not among those that are imported has only the name of an installed package.
        """
        if len(parts) > 1 or root == self.top or not (root / parts[0]).is_dir():
            return True
        inner = {each.split(".")[1] for each in importer.names if each.startswith(f"{parts[0]}.")}
        if package_of(root) is None and not inner:
            return True
        folder = root / parts[0]
        return any((folder / name).is_dir() or (folder / f"{name}.py").is_file() for name in inner)

    def _spread(self) -> None:
        """A file that is imported by a relative name has the folders of the one that imports it."""
        for facts in self._facts.values():
            for other in self._relatives(facts):
                other.importers.append(facts)
        waiting = list(self._facts.values())
        while waiting:
            facts = waiting.pop()
            for other in self._relatives(facts):
                roots = {root for root in facts.roots if root in other.folder.parents}
                if not roots <= other.roots:
                    other.roots |= roots
                    waiting.append(other)

    def _relatives(self, facts: _Facts) -> Iterator[_Facts]:
        for module in facts.relative:
            for path in (module.with_suffix(".py"), module / "__init__.py"):
                if path in self._facts and path != facts.path:
                    yield self._facts[path]

    def _count(self) -> None:
        """Count the folders around each file that are packages, whichever way it is loaded.

        The counts only grow, so that the loop ends.
        """
        for facts in self._facts.values():
            facts.depth = facts.level
        waiting = list(self._facts.values())
        while waiting:
            facts = waiting.pop()
            counts = [len(facts.folder.relative_to(root).parts) for root in facts.roots]
            for each in facts.importers:
                around = each.package(max(each.depth, 1))
                if around == facts.folder or around in facts.folder.parents:
                    counts.append(len(facts.folder.relative_to(around).parts) + 1)
            depth = max(facts.level, min(counts, default=0))
            if depth > facts.depth:
                facts.depth = depth
                waiting += self._relatives(facts)


def _ends(name: str) -> list[int]:
    """Return where the names end that are imported with a name: "a", "a.b" and "a.b.c" with "a.b.c"."""
    return [found.start() for found in re.finditer(r"\.|$", name)]


def _relative(facts: _Facts, depth: int) -> Place:
    return Place("." * depth + VENDORED, (facts.package(depth),))


def _absolute(folder: Path, root: Path) -> Place:
    return Place(".".join((*folder.relative_to(root).parts, VENDORED)), (folder,))


def package_of(folder: Path) -> Path | None:
    """The folder of the outermost package that a folder belongs to; None where it is in none."""
    found = None
    folder = folder.absolute()
    while (folder / "__init__.py").exists() and folder.name.isidentifier():
        found, folder = folder, folder.parent
    return found


def _is_installed(package: Path) -> bool:
    """Test for the files that install this package: next to it, or above `src`; one that they leave out is not."""
    above = package.parent
    folders = (above, above.parent) if above.name == "src" else (above,)
    for folder in folders:
        for name, said in _SAID.items():
            try:
                text = (folder / name).read_text(encoding="utf-8", errors="replace")
            except OSError:
                continue
            if name == "setup.py" and "ext_modules" in text and not _NAMES_PACKAGES.search(text):
                continue  # it builds an extension, and installs no package
            if re.search(said, text, re.M):
                return not _leaves_out(text, package.name, is_in_src=folder != above)
    return False


def _leaves_out(text: str, package: str, *, is_in_src: bool) -> bool:
    """Test what a project says of its packages: a folder of others, patterns, a list, or another name for this one."""
    if _IN_SRC.search(text) and not is_in_src:
        return True
    if any(fnmatch(package, each) for found in _EXCLUDED.finditer(text) for each in _QUOTED.findall(found[1])):
        return True
    if re.search(rf"""["'][\w.]+["']\s*:\s*["']{re.escape(package)}/?["']""", text):
        return True  # package_dir={"yolox.tools": "tools"}
    listed = [
        each.partition(".")[0]
        for found in _LISTED.finditer(text)
        for each in _QUOTED.findall("".join(filter(None, found.groups())))
    ]
    return bool(listed) and not any(fnmatch(package, each) for each in listed)


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
            if level > len(facts.path.parents):
                continue
            if level:
                facts.level = max(facts.level, 0 if found["indent"] else level)  # indented: in a function, or tried
                folder = facts.package(level)
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
