"""Compare the published names with ours: what agrees, what differs, what cannot be compared.

Called by `report` and tests/compat/test_compat_torch_npu.py, which holds the shares; `page` shows the result. Pure.
Annotations are not compared, and a name of the compiled part only has to be here: neither rule may be widened to raise
a share.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

__all__ = ["Comparison", "compare"]


@dataclass
class Comparison:
    """Names, with the members of classes as names of their own ("Stream.wait_event")."""

    agree: list[str] = field(default_factory=list)
    differ: dict[str, tuple[str, str]] = field(default_factory=dict)
    """By name: the description in the wheel, and ours."""

    unread: list[str] = field(default_factory=list)
    """Names that are here, and that the wheel's Python files do not show."""

    @property
    def share(self) -> float:
        """Percent of what can be compared that agrees."""
        return 100 * len(self.agree) / (len(self.agree) + len(self.differ))


def compare(
    names: Iterable[str], compiled: Iterable[str], published: Any, here: Mapping[str, dict[str, Any] | None]
) -> Comparison:
    """Compares kinds and signatures: names, order, kinds and defaults of parameters; annotations are not looked at.

    Args:
        names: what to compare.
        compiled: those that the wheel's Python files cannot show; they only have to be here.
        published: the wheel.
        here: what each name is here.
    """
    found = Comparison()
    for name in names:
        theirs, ours = published.describe(name), here.get(name)
        if name in compiled:
            _note(found, name, "a name of the compiled part", None if ours else "nothing", unread=True)
        elif theirs is None:
            _note(found, name, "nothing", "a name")
        else:
            _compare_one(found, name, theirs, ours)
    return found


def _compare_one(found: Comparison, name: str, theirs: dict[str, Any], ours: dict[str, Any] | None) -> None:
    ours = json.loads(json.dumps(ours))
    members = theirs.pop("members", {}) if theirs["kind"] == "class" else {}
    ours_of = (ours or {}).get("members", {})
    _note(found, name, _shown(theirs), None if ours and _same(theirs, ours) else _shown(ours))
    for member, described in members.items():
        mine = ours_of.get(member)
        same = mine is not None and _same(described, mine)
        _note(found, f"{name}.{member}", _shown(described), None if same else _shown(mine))


def _same(theirs: dict[str, Any], ours: dict[str, Any]) -> bool:
    keys = ("kind", "signature", "constants")
    theirs = json.loads(json.dumps(theirs))
    return all(theirs.get(key) == ours.get(key) for key in keys if key in theirs)


def _note(found: Comparison, name: str, theirs: str, ours: str | None, *, unread: bool = False) -> None:
    if ours is not None:
        found.differ[name] = theirs, ours
    else:
        (found.unread if unread else found.agree).append(name)


def _shown(described: dict[str, Any] | None) -> str:
    if described is None:
        return "nothing"
    if "signature" not in described:
        return f"{described['kind']} {described.get('constants', '')}".strip()
    marks = {"variadic positional": "*", "variadic keyword": "**"}
    parts = [
        f"{marks.get(kind, '')}{name}" + ("" if default is None else f"={default}")
        for name, kind, default in described["signature"]
    ]
    first = next((i for i, each in enumerate(described["signature"]) if each[1] == "keyword-only"), None)
    if first is not None and not any(each[1] == "variadic positional" for each in described["signature"]):
        parts.insert(first, "*")
    return f"{described['kind']} ({', '.join(parts)})"
