"""Knowledge beyond one file: the project's extensions built for CUDA, and the chip and release that options name.

Made by `scan` and `cli.port`, passed to `engine` and `file`. Tests: tests/port/test_port_unseen_sixth.py,
tests/port/test_port_sources.py, tests/port/test_port_reported.py, tests/port/test_port_packages.py.
"""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from toprope import chips
from toprope.port.project.folders import submodules
from toprope.port.syntax.nodes import nodes_of
from toprope.support.operators_on_card import Release, find_release

__all__ = ["Context", "Target", "extensions_of", "target"]

DEFAULT_CHIP = "910B3"
_BUILDERS = (
    "CUDAExtension", "CppExtension", "make_cuda_ext", "get_extension", "load", "load_inline", "Extension",
    "create_extension",
)  # fmt: skip
_BUILDS = re.compile(rb"CUDAExtension|cuda_ext|ffi\s+import\s+create_extension")
_SAYS_CUDA = re.compile(r"(?:.+_)?cuda(?:_.+)?|_C|.*_ext|csrc")
_TRITON = re.compile(rb"@\s*(?:triton\.)?(?:runtime\.)?jit\b")
_LOADS = re.compile(rb"cpp_extension\s+import\b[^\n]*\bload|cpp_extension\.load")
_TORCH = re.compile(rb"\b(?:import|from)\s+torch\b|torch_npu|import_module\([\"']torch")
_LIBRARY = re.compile(rb"\b(?:ops|classes)\.load_library\(")


@dataclass(frozen=True)
class Target:
    """The card that operators are looked up for.

    Attributes:
        chip: name of the chip.
        release: the release of torch_npu.
    """

    chip: str
    release: Release

    @property
    def text(self) -> str:
        """A few words for a reader."""
        return f"{self.chip}, {self.release.text}"


def target(chip: str | None = None, torch_npu: str | None = None) -> Target:
    """Return the card of these names; by default a 910B3 and the newest release whose tables are stored.

    The default does not depend on the torch that is installed, so that a report is the same on every machine.

    Raises:
        UsageError: there is no such chip, or no source of that release is stored.
    """
    found = chips.get(chip or DEFAULT_CHIP)
    return Target(found.name, find_release(torch_npu, torch=""))


@dataclass(frozen=True)
class Context:
    """The project and the card, as rules know them.

    Attributes:
        target: the card.
        extensions: names of modules that a setup.py among them or of a submodule builds, or that lie next to them as
            binary files.
        sources: names of the CUDA sources among them.
        compiled: names of the project's own modules that build an extension for CUDA, and of the packages around
            CUDA sources whose name says so: `nerf.cuda`, whose functions load it when they are called.
        kernels: Triton kernels of the project's modules and functions that launch them, as "module.function".
        loading: names of the project's own modules that import an extension of these whenever they are imported.
        library: whether one of them loads operators of a library into torch.
        has_torch: whether one of them imports torch, or no file is known.
        top: the folder that all files are in; "" where it is not known.
    """

    target: Target = field(default_factory=target)
    extensions: frozenset[str] = frozenset()
    sources: str = ""
    compiled: frozenset[str] = frozenset()
    kernels: frozenset[str] = frozenset()
    loading: frozenset[str] = frozenset()
    library: bool = False
    has_torch: bool = True
    top: str = ""

    @classmethod
    def of(cls, files: Iterable[Path], card: Target | None = None) -> Context:
        """The context of files that are ported together."""
        files = list(files)
        folders = {file.parent for file in files if file.suffix == ".py"}
        extensions = {binary.name.partition(".")[0] for folder in folders for binary in folder.glob("*.so")}
        programs = {file: _bytes(file) for file in files if file.suffix == ".py"}
        for data in programs.values():
            extensions |= _built_by(data)
        for folder in {parent for file in files for parent in (file.parent, *file.parent.parents[:2])}:
            extensions |= _built_by_submodules(folder)
        sources = " ".join(file.stem for file in files if file.suffix == ".cu")
        compiled, kernels = frozenset(_compiled(files, programs)), frozenset(_kernels(programs))
        top = os.path.commonpath([file.absolute().parent for file in files]) if files else ""
        loading = frozenset(_loading(programs, extensions))
        library = any(map(_LIBRARY.search, programs.values()))
        has_torch = not programs or any(map(_TORCH.search, programs.values()))
        return cls(
            card or target(), frozenset(extensions), sources, compiled, kernels, loading, library, has_torch, top
        )

    def has_operators_for(self, text: str) -> bool:
        """Return True if the project has operators of its own for CUDA that a test with this text may run.

        Of extensions and libraries any test may, of a Triton kernel one that names the kernel or its module.
        """
        if self.extensions or self.sources or self.compiled or self.library:
            return True
        names = {part for kernel in self.kernels for part in kernel.split(".")}
        return not names.isdisjoint(re.findall(r"\w+", text)) if names else False

    def mentions_extension(self, data: bytes) -> bool:
        """Return True if the bytes of a file have the name of an extension."""
        return any(name.encode() in data for name in self.extensions)


def _bytes(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError:
        return b""


def _compiled(files: Iterable[Path], programs: Mapping[Path, bytes]) -> Iterator[str]:
    for file in files:
        if file.suffix == ".cu":
            packages = (each for each in file.parents if (each / "__init__.py").exists())
            package = next(packages, None)
            if package is not None and _SAYS_CUDA.fullmatch(package.name):
                yield package.name
        elif file.suffix == ".py" and file.name != "setup.py" and _LOADS.search(programs[file]):
            yield file.parent.name if file.name == "__init__.py" else file.stem


def _loading(programs: Mapping[Path, bytes], extensions: set[str]) -> Iterator[str]:
    names = "|".join(map(re.escape, sorted(extensions))) or "(?!)"
    found = re.compile(
        rf"^(?:from\s+[\w.]*\b_ext\s+import\s|(?:from\s+[\w.]+\s+)?import\s+(?:{names})\b)".encode(), re.M
    )
    for file, data in programs.items():
        if file.name != "__init__.py" and found.search(data):
            yield file.stem


def _kernels(programs: Mapping[Path, bytes]) -> Iterator[str]:
    """Names of Triton kernels, and of functions that launch one whatever they are given, with their modules."""
    for file, data in programs.items():
        try:
            tree = ast.parse(data) if _TRITON.search(data) else ast.Module([], [])
        except (SyntaxError, ValueError, RecursionError):
            continue
        module = file.parent.name if file.name == "__init__.py" else file.stem
        functions = [each for each in tree.body if isinstance(each, ast.FunctionDef)]
        kernels = {each.name for each in functions if any("jit" in ast.unparse(one) for one in each.decorator_list)}
        for each in functions:
            if each.name in kernels or _launches(each, kernels):
                yield f"{module}.{each.name}"


def _launches(function: ast.FunctionDef, kernels: set[str]) -> bool:
    nodes = nodes_of(function)
    leaves = any(isinstance(each, ast.If) and isinstance(each.body[-1], ast.Return) for each in nodes)
    return not leaves and any(
        isinstance(each, ast.Subscript) and isinstance(each.value, ast.Name) and each.value.id in kernels
        for each in nodes
    )


def _built_by_submodules(folder: Path) -> set[str]:
    """Names that the submodules of a folder build for CUDA: of modules, and of the packages around them.

    A submodule that is not checked out has no sources; one named for CUDA is taken for such a package.
    """
    found: set[str] = set()
    for path in submodules(folder / ".gitmodules") if (folder / ".gitmodules").is_file() else ():
        name = re.sub(r"\W", "_", path.rpartition("/")[2])
        built = _built_by(_bytes(folder / path / "setup.py"))
        if built or (not (folder / path / "setup.py").is_file() and "cuda" in name.lower()):
            found |= built | ({name} if re.fullmatch(r"[A-Za-z_]\w+", name) else set())
    return found


def _built_by(data: bytes) -> set[str]:
    if len(data) > 1_000_000 or not _BUILDS.search(data):
        return set()
    try:
        return extensions_of(ast.parse(data))
    except (SyntaxError, ValueError, RecursionError):
        return set()


def extensions_of(tree: ast.AST) -> set[str]:
    """Names of the modules that a setup.py builds with CUDAExtension or a function around it."""
    found, builders = set(), {*_BUILDERS, *_other_names(tree)}
    for node in nodes_of(tree):
        if not isinstance(node, ast.Call):
            continue
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        if name not in builders:
            continue
        if name == "CppExtension" and not re.search(r"cuda|gpu|\.cu\b", ast.unparse(node), re.IGNORECASE):
            continue  # compiled for the CPU
        said = [each.value for each in node.keywords if each.arg == "name"] or list(node.args[:1])
        for each in said:
            if isinstance(each, ast.Constant) and isinstance(each.value, str):
                found.add(each.value.rpartition(".")[2])
    return {name for name in found if re.fullmatch(r"[A-Za-z_]\w+", name)}


def _other_names(tree: ast.AST) -> Iterator[str]:
    """Names that a setup.py gives to what builds: `kind = CUDAExtension if use_cuda else CppExtension`."""
    for node in nodes_of(tree):
        if isinstance(node, ast.alias) and node.name in _BUILDERS and node.asname:
            yield node.asname
        elif isinstance(node, ast.Assign) and not isinstance(node.value, ast.Call):
            names = {getattr(each, "id", getattr(each, "attr", "")) for each in nodes_of(node.value)}
            if "CUDAExtension" in names:
                yield from (each.id for each in node.targets if isinstance(each, ast.Name))
