"""Comments that leave a line as it is: `# toprope: ignore[TR012, TR034]`, or `# toprope: ignore` for every rule.

Called by `engine` and `files`; docs/port.md shows the comment to users. Tests: tests/port/test_port_cli.py,
tests/port/test_port_unseen_silent.py.
"""

from __future__ import annotations

import re

from toprope.port.finding import Finding
from toprope.port.syntax.source import Source

__all__ = ["ignored_lines", "ignored_source_lines", "ignored_text_lines", "is_ignored"]

_COMMENT = re.compile(r"#\s*(?:toprope|portable)\s*:\s*ignore(?:\s*\[([^\]]*)\])?(?![\w\[])", re.IGNORECASE)


def ignored_lines(source: Source) -> dict[int, frozenset[str]]:
    """The lines with such a comment, and the codes that it names; no codes stand for all of them."""
    found = {}
    for match in _COMMENT.finditer(source.text):
        if source.has_comment(source.starts[source.place(match.start())[0] - 1], match.end()):
            found[source.place(match.start())[0]] = _codes(match)
    return found


def ignored_text_lines(text: str) -> dict[int, frozenset[str]]:
    """The same for a file that is not Python, in which every # begins a comment."""
    lines = enumerate(text.splitlines(), 1)
    return {number: _codes(match) for number, line in lines if (match := _COMMENT.search(line))}


def ignored_source_lines(text: str) -> dict[int, frozenset[str]]:
    """The same for C and C++, where a comment begins with //."""
    return ignored_text_lines(text.replace("//", "# "))


def _codes(match: re.Match[str]) -> frozenset[str]:
    return frozenset(code for code in re.split(r"[\s,]+", (match[1] or "").upper().strip()) if code)


def is_ignored(finding: Finding, lines: dict[int, frozenset[str]]) -> bool:
    """Return whether a comment on a place's first or last line leaves it out; it may give the beginning of a code."""
    for line in {finding.line, finding.end_line} & lines.keys():
        if not lines[line] or finding.rule.code.upper().startswith(tuple(lines[line])):
            return True
    return False
