"""Names of torch that files import from each other: `from utils import *`, `from common import torch`.

Part of `facts`; `file` asks it for the meaning of a name. Tests: tests/port/test_port_names.py.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field

__all__ = ["Exports", "exports_of", "full_name", "star_names", "together"]

_ROOTS = ("torch", "torchvision", "torchaudio")


@dataclass(frozen=True)
class Exports:
    """Names that a file has from imports at its top level.

    Attributes:
        names: the full names of what is torch's, by the names in the file.
        stars: the modules of which it imports everything.
        listed: the names in `__all__`; None where it has none.
    """

    names: dict[str, str] = field(default_factory=dict)
    stars: tuple[str, ...] = ()
    listed: frozenset[str] | None = None


def exports_of(tree: ast.Module) -> Exports:
    """Return what other files may import from a file."""
    names: dict[str, str] = {}
    stars: list[str] = []
    listed: frozenset[str] | None = None
    for node in _top(tree.body):
        match node:
            case ast.Import(names=aliases):
                for each in aliases:
                    bound = each.asname or each.name.partition(".")[0]
                    names[bound] = each.name if each.asname else bound
            case ast.ImportFrom(names=aliases, level=level):
                base = "." * level + (node.module or "")
                for each in aliases:
                    if each.name == "*":
                        stars.append(base)
                    else:
                        dot = "" if base.endswith(".") else "."
                        names[each.asname or each.name] = f"{base}{dot}{each.name}"
            case ast.Assign(targets=[ast.Name(id="__all__")], value=ast.List() | ast.Tuple() as value):
                listed = frozenset(str(each.value) for each in value.elts if isinstance(each, ast.Constant))
    return Exports(names, tuple(stars), listed)


def _top(body: Sequence[ast.stmt]) -> list[ast.stmt]:
    """The statements that run when a module is imported, but for those in functions and classes."""
    found: list[ast.stmt] = []
    for each in body:
        found.append(each)
        for name in ("body", "orelse", "finalbody"):
            inner = getattr(each, name, None)
            if isinstance(inner, list) and not isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                found += _top(inner)
        for handler in getattr(each, "handlers", ()):
            found += _top(handler.body)
    return found


def together(files: Sequence[tuple[str, Exports]]) -> dict[str, dict[str, str]]:
    """Return the names of torch that each module exports, by the module's last name.

    Of modules that share their last name a name counts where it means the same in each that has it.
    """
    found: dict[str, dict[str, str]] = {}
    modules = {name for name, _ in files}
    for _ in range(5):  # through up to five files
        before = {name: dict(each) for name, each in found.items()}
        for module, exports in files:
            own = {}
            for name, full in exports.names.items():
                meant = full_name(full, before)
                if meant.partition(".")[0] in _ROOTS:
                    own[name] = meant
            for star in exports.stars:
                if star.partition(".")[0] not in _ROOTS:
                    if is_installed(star, modules):
                        own.setdefault("torch", "torch")
                    own = {**before.get(star.rpartition(".")[2], {}), **own}
            own = {
                name: full
                for name, full in own.items()
                if (name in exports.listed if exports.listed is not None else not name.startswith("_"))
            }
            known = found.setdefault(module, {})
            for name, full in own.items():
                known[name] = full if known.get(name, full) == full else ""
        if found == before:
            break
    return {name: {key: full for key, full in each.items() if full} for name, each in found.items() if each}


def is_installed(star: str, own: Set[str]) -> bool:
    """Return whether a star import is of an installed package: where such a one gives the name torch, it is torch."""
    return not star.startswith(".") and not own & {star.partition(".")[0], star.rpartition(".")[2]}


def full_name(name: str, exports: Mapping[str, Mapping[str, str]]) -> str:
    """Torch's name for one that goes through a module of the project: "torch.cuda" for "utils.torch.cuda"."""
    if name.partition(".")[0] in _ROOTS:
        return name
    parts = name.split(".")
    for at, part in enumerate(parts[:-1]):
        full = exports.get(part, {}).get(parts[at + 1])
        if full is not None:
            return ".".join((full, *parts[at + 2 :]))
    return name


def star_names(
    tree: ast.Module, exports: Mapping[str, Mapping[str, str]], own: Set[str] = frozenset()
) -> tuple[dict[str, str], str]:
    """The names of torch that a file has through star imports.

    Args:
        tree: the file.
        exports: names of torch by the project's modules.
        own: the names under which programs may import the project's files.

    Returns:
        Those of the project's modules, and torch itself, which an installed package may give; and the one module of
        torch ("torch", "torch.nn") from which all names come that the file does not bind otherwise, "" where there is
        none or where another package may have them as well.
    """
    found: dict[str, str] = {}
    modules: list[str] = []
    for star in exports_of(tree).stars:
        if star.partition(".")[0] in _ROOTS:
            modules.append(star)
        elif star.rpartition(".")[2] in exports:
            found |= exports[star.rpartition(".")[2]]
        else:
            modules.append("")
            if is_installed(star, own):
                found.setdefault("torch", "torch")
    return found, modules[0] if len(modules) == 1 else ""
