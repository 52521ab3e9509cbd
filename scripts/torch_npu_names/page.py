"""The comparison as Markdown, for docs/compat.md.

Called by `report`; `__main__` writes the result between the page's marks, which docs/compat.md has too. Words and
tables are free.

Tests: tests/compat/test_compat_torch_npu.py, which compares the page with what this gives.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from .compare import Comparison

__all__ = ["BEGIN", "END", "Operators", "markdown", "renewed"]

BEGIN = "<!-- begin: written by `python scripts/torch_npu_names docs/compat.md` -->"
END = "<!-- end -->"


class Operators(NamedTuple):
    """Names of operators without their overloads."""

    every: set[str]
    exported: set[str]
    here: set[str]


def markdown(
    names: dict[str, Any], version: str, found: dict[str, Comparison], others: Sequence[str], operators: Operators
) -> str:
    """The page's part between its marks.

    Args:
        names: names.toml.
        version: the wheel's.
        found: the comparison of each grade, and of both together as "all".
        others: names of the wheel that names.toml does not grade.
        operators: torch_npu's, all of them, those that it exports as its own, and those that are here.
    """
    late = names["name_only"]
    missing = names["could"]
    rows = []
    for grade in ("must", "should", "all"):
        each = found[grade]
        counts = len(each.agree), len(late.keys() & {*each.agree}), len(each.differ), len(each.unread)
        rows.append([grade, f"**{each.share:.1f} %**", *(str(count) for count in counts)])
    everything = found["all"]
    exported = len(everything.agree) + len(everything.differ) + len(missing) + len(others)
    late_ones = len(late.keys() & {*everything.agree})
    agree = len(everything.agree)
    share = f"**{100 * (agree - late_ones) / exported:.1f} %**"
    rows.append(["every exported name", share, str(agree), str(late_ones), str(exported - agree), ""])
    parts = [
        "## The share that agrees",
        f"Compared with torch-npu {version}: names, and the order, kinds and defaults of parameters. A method of a"
        " class counts as a name. By name only: they agree, and raise NotImplementedError so far.",
        _table(["grade", "share", "agree", "of these by name only", "differ", "cannot be compared"], rows),
        "The grades are toprope's own. The last row counts what is missing, too, and what is there by name only as"
        " missing.",
        f"**Operators** (`torch_npu.npu_swiglu` and the like): {len(operators.here)} of {len(operators.every)}; of the"
        f" {len(operators.exported)} that torch_npu exports as its own,"
        f" {len(operators.exported & operators.here)}. Missing: {_list(operators.every - operators.here)}.",
        "## What differs",
        _differences(found["all"], names["differences"]),
        "## What cannot be compared",
        "torch_npu's compiled part makes these, or they are of classes of torch's, and the wheel's Python files do not"
        " show how. They are here: "
        + _list(found["all"].unread)
        + ". So are all fields of `get_device_properties()`: "
        + _list(names["properties"])
        + ".",
        "## There by name only",
        "These have the published signature and raise NotImplementedError so far.",
        _table(["name", "why"], [[f"`{name}`", why] for name, why in sorted(late.items())]),
        "## There, with less behind it",
        _table(["name", "here"], [[f"`{name}`", note] for name, note in sorted(names["notes"].items(), key=_key)]),
        "## Not there",
        "These raise NotImplementedError with the name of the API when they are used: " + _list(missing) + "."
        f" {_list(names['gone'])} are modules of older versions: they raise AttributeError, as in {version}.",
    ]
    if others:
        parts += [
            "## Not looked at",
            f"torch-npu {version} exports these, too; they raise AttributeError: {_list(others)}.",
        ]
    return "\n\n".join(parts) + "\n"


def renewed(page: str, text: str) -> str:
    """The page with the part between its marks written again.

    Raises:
        ValueError: the page has no marks.
    """
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"the page has no {BEGIN} ... {END}")
    return f"{before}{BEGIN}\n\n{text}\n{END}{after}"


def _key(row: tuple[str, str]) -> str:
    return row[0].lower()


def _differences(found: Comparison, reasons: dict[str, str]) -> str:
    if not found.differ:
        return "Nothing."
    rows = [
        [f"`{name}`", f"`{theirs}`", f"`{ours}`", reasons.get(name, "")]
        for name, (theirs, ours) in sorted(found.differ.items())
    ]
    return _table(["name", "torch_npu", "here", "why"], rows)


def _list(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in sorted(names))


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)
