"""Help of the commands in the language that texts are shown in; English stays as typer writes it.

Applied by `cli.app` to each command. The texts are collected by scripts/messages.py. Fixed by click and typer are the
names of the methods, which are those of HelpFormatter, and the brackets and separators of `_EXTRA`; a new release of
either may need a change here. Widths and Chinese punctuation are free. Tests: tests/cli/test_language.py.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from inspect import cleandoc
from typing import Any

from toprope.messages import catalogue, language

__all__ = ["localize"]

_EXTRA = re.compile(r"(?s)(.*?)(?:  )?\[([^\[\]]*)\]")
_LONGEST_NAME = 30


def localize(command: Any) -> Any:
    """Have the help of a command, and of those below it, written in the language that texts are shown in."""
    if language() == "en":
        return command
    base = command.context_class
    if "Localized" not in base.__name__:
        formatter = type("LocalizedFormatter", (_Localized, base.formatter_class), {})
        command.context_class = type("LocalizedContext", (base,), {"formatter_class": formatter})
    for below in getattr(command, "commands", {}).values():
        below.short_help = _text(cleandoc(below.help or "")).partition("\n")[0]
        localize(below)
    return command


def _text(text: str) -> str:
    return catalogue(language()).get(text, text)


class _Localized:
    """Methods of a formatter of typer (click) that write translated texts."""

    width: int
    current_indent: int
    write: Any

    def write_usage(self, prog: str, args: str = "", prefix: str | None = None) -> None:
        super().write_usage(prog, args, _text(prefix or "Usage: "))  # type: ignore[misc]

    def write_heading(self, heading: str) -> None:
        self.write(f"{'':>{self.current_indent}}{_text(heading)}：\n")

    def write_text(self, text: str) -> None:
        indent = " " * self.current_indent
        paragraphs = _text(text).split("\n\n")
        self.write("\n\n".join("\n".join(indent + line for line in self._lines(one, 0)) for one in paragraphs) + "\n")

    def write_dl(self, rows: Sequence[tuple[str, str]], col_max: int = _LONGEST_NAME, col_spacing: int = 2) -> None:
        from toprope.terminal import cells

        names = [cells(name) for name, _ in rows]
        first = min(max(names, default=0), col_max) + col_spacing
        for (name, help_), width in zip(rows, names, strict=True):
            indent = " " * (self.current_indent + first)
            lines = list(self._lines(_of_parameter(help_), first)) or [""]
            begin = f"{'':>{self.current_indent}}{name}"
            begin += " " * (first - width) if width <= first - col_spacing else f"\n{indent}"
            self.write("\n".join([(begin + lines[0]).rstrip(), *(indent + line for line in lines[1:])]) + "\n")

    def _lines(self, text: str, taken: int) -> Iterator[str]:
        from toprope.terminal import breakable, cells

        room, line = max(self.width - self.current_indent - taken, 20), ""
        for piece in re.findall(r"[^ \n\x1f]+[ \n\x1f]?", breakable(text)):
            piece = piece.replace("\n", " ")
            if line and cells(line + piece.rstrip()) > room:
                yield line.replace("\x1f", "").rstrip()
                line = ""
            line += piece
        yield line.replace("\x1f", "").rstrip()


def _of_parameter(text: str) -> str:
    """The help of an option: its own text, which is translated as a whole, and what typer puts behind it."""
    known = catalogue(language())
    found = None if text in known else _EXTRA.fullmatch(text)
    if found is None:
        return _text(text)
    extras = "；".join(map(_extra, found[2].split("; ")))
    return f"{_text(found[1])}[{extras}]"


def _extra(text: str) -> str:
    name, _, value = text.partition("default: ")
    return _text("default: {value}").format(value=value) if value and not name else _text(text)
