"""A rule: a code such as TR012, a kind, the reason, and examples that are both its test and its page.

Made by the files of `port.rules` and `port.files.rules`. Codes are an interface: users name them in comments and
options, so a code keeps its meaning. Tests: tests/port/test_port_rules.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from textwrap import dedent

__all__ = ["HINT", "Example", "Kind", "Rule"]

HINT = "hint"
"""The class of hints in reports."""


class Kind(StrEnum):
    """Effect of a rewrite on the meaning of a program."""

    PRESERVING = "P"
    """The same on CUDA, and it works elsewhere."""

    REVIEW = "R"
    """Numerics, speed or the branch taken may change off CUDA: a person should look at it."""

    NOT_CONVERTIBLE = "N"
    """It needs another kernel or another tool: reported with advice, never rewritten."""


@dataclass(frozen=True)
class Example:
    """A small program, and what the port makes of it.

    Attributes:
        before: a whole program; blanks that all its lines share are taken away.
        after: what it becomes; None where it is reported and stays as it is.
        reported: whether the rule has something to say about it; False for look-alikes that it must leave alone.
    """

    before: str
    after: str | None = None
    reported: bool = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "before", _program(self.before))
        if self.after is not None:
            object.__setattr__(self, "after", _program(self.after))


def _program(text: str) -> str:
    return dedent(text).strip("\n") + "\n"


@dataclass(frozen=True)
class Rule:
    """One pattern of CUDA-only code.

    Attributes:
        code: "TR" and the three digits of the pattern's number, with a letter where a pattern has more than one rule.
        kind: P, R or N.
        title: the pattern and what becomes of it, in one line.
        why: what goes wrong elsewhere and what the rewrite keeps, for the rule's page.
        source: where that is known from: documentation, a public thread, or "tried".
        examples: programs before and after.
        family: the family's name.
        hint: whether its places are advice on code that is not CUDA's. Such code is ported: hints are listed and
            counted apart from sites, and `--check` and a baseline leave them out.
        once: whether places that say the same in one file are one line of the report, which names the others.
    """

    code: str
    kind: Kind
    title: str
    why: str
    source: str
    examples: tuple[Example, ...]
    family: str
    hint: bool = False
    once: bool = False

    @property
    def label(self) -> str:
        """The class as reports name it: P, R, N or hint."""
        return HINT if self.hint else str(self.kind)

    @property
    def consequence(self) -> str:
        """The title without the example in front: what becomes of a place."""
        inside, at = False, -1
        for number, character in enumerate(self.title):
            inside ^= character == '"'
            if not inside and self.title.startswith(": ", number):
                at = number + 2
        return self.title[at:] if at > 0 else self.title

    @property
    def page(self) -> str:
        """The command that prints the rule's page of the documentation."""
        return f"toprope explain {self.code}"
