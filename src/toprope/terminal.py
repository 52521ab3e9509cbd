"""Text and progress for people, on rich: tables, labelled rows, a progress bar.

Colour and control characters go to terminals alone. Nothing is cut off, no word is broken, and text is never markup. A
`Message` is shown in the reader's language. Lines are wrapped on a terminal; elsewhere they are as long as they are,
but for `field`s with a width.

All commands print with it. Only what is shown is decided here; texts and their translation are `toprope.messages`. rich
is imported when something is shown, and not before: `--help` needs none of it. Widths and colours are free. Tests:
tests/cli/test_terminal.py, tests/cli/test_language.py (lines of Chinese).
"""

from __future__ import annotations

import io
import os
import re
import shutil
import sys
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import cache
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self, TextIO

from toprope.messages import Message, catalogue, language, local

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.text import Text

    from toprope.progress import Step

__all__ = [
    "WIDTH",
    "Display",
    "breakable",
    "cells",
    "columns",
    "field",
    "render",
    "say",
    "show",
    "table",
    "unbroken",
    "wants_colour",
]

WIDTH = 100
"""Columns of prose that is made to be pasted elsewhere."""

_CELLS = {"W": 2, "F": 2}
_ENDLESS = 100_000
_SPACE = "\ue000"
_BREAK = "\x1f"  # white space without a width: a line may end there
_BREAKABLE = re.compile(
    r"(?<=[\u2e80-\ud7ff\uf900-\ufaff\uff01-\uff60])(?=[^\s\u3001\u3002\uff01\uff09\uff0c\uff1a\uff1b\uff1f\u300b\u201d])"
)
"""Places between characters of Chinese text where a line may end: not before a closing mark."""
_BAR, _NAME = 24, 40
_REDRAW, _REPORT = 0.1, 8.0  # seconds; the second where lines stay: nobody waits 10 s without one


def unbroken(text: str) -> str:
    """A text inside which no line ends, such as a command."""
    return local(text).replace(" ", _SPACE)


def _text(text: str | Text) -> Text:
    """A text for rich, in the reader's language."""
    from rich.text import Text

    return text if isinstance(text, Text) else Text(_wrappable(text))


def _wrappable(text: str) -> str:
    """A text in the reader's language, whose lines may end inside its translation, but in no name that is in it."""
    if language() == "en" or not isinstance(text, Message):
        return text
    return text.translated(_wrappable_catalogue(language()))


@cache
def _wrappable_catalogue(name: str) -> Mapping[str, str]:
    return {text: breakable(translation) for text, translation in catalogue(name).items()}


def breakable(text: str) -> str:
    """A text whose lines may end between Chinese characters too: with white space there that has no width."""
    return text if text.isascii() else _BREAKABLE.sub(_BREAK, text)


def cells(text: str) -> int:
    """Columns of a terminal that a text takes: two for a Chinese character."""
    from unicodedata import east_asian_width

    return (
        len(text) if text.isascii() else sum(_CELLS.get(east_asian_width(each), 1) for each in text if each != _BREAK)
    )


def table(
    rows: Iterable[Sequence[str]],
    header: Sequence[str] = (),
    *,
    indent: int = 0,
    gap: int = 2,
    right: Collection[int] = (),
    wrapped: Collection[int] = (),
) -> RenderableType:
    """Columns as wide as their cells.

    Args:
        rows: of cells.
        header: names of the columns, in bold.
        indent: columns of space before it.
        gap: columns of space between two columns.
        right: numbers of columns whose cells are set to the right.
        wrapped: numbers of columns whose cells may go on in a second line, on a narrow terminal.
    """
    from rich.padding import Padding
    from rich.table import Table
    from rich.text import Text

    # Space behind the last column too: without it rich cuts that column off by as much.
    made = Table(box=None, padding=(0, gap, 0, 0), show_header=bool(header), header_style="bold")
    lines = [
        [_wrappable(cell) if number in wrapped else unbroken(cell) for number, cell in enumerate(row)] for row in rows
    ]
    names = [unbroken(name) for name in header] or [""] * len(lines[0])
    for number, (name, *cells) in enumerate(zip(names, *lines, strict=True)):
        justify: Literal["left", "right"] = "right" if number in right else "left"
        made.add_column(name, justify=justify, overflow="fold", min_width=max(map(_longest_word, (name, *cells))))
    for line in lines:
        made.add_row(*map(Text, line))
    return Padding(made, (0, 0, 0, indent), expand=False)


def field(
    label: str | Text, *texts: str | Text, label_width: int = 10, indent: int = 0, width: int | None = None
) -> list[RenderableType]:
    """A label and texts next to it, below each other, each continued below itself.

    Args:
        label: one that is as wide as its column has a line of its own.
        texts: next to it.
        label_width: columns of the label and the space behind it.
        indent: columns of space before the label.
        width: columns in all, where texts are wrapped; None for those of the terminal.
    """
    from rich.padding import Padding
    from rich.table import Table
    from rich.text import Text

    label = _text(label)
    items: list[RenderableType] = []
    if label.cell_len >= label_width:
        items.append(Padding(label, (0, 0, 0, indent), expand=False))
        label = Text()
    for number, text in enumerate(texts):
        cell = _text(text)
        longest = _longest_word(cell.plain)
        grid = Table.grid()
        grid.add_column(width=label_width)
        most = None if width is None else max(width - label_width - indent, longest)
        grid.add_column(overflow="fold", min_width=longest, max_width=most)
        grid.add_row("" if number else label, cell)
        items.append(Padding(grid, (0, 0, 0, indent), expand=False))
    return items


def _longest_word(text: str) -> int:
    from rich.cells import cell_len

    return max(map(cell_len, text.split()), default=0)


def render(*items: RenderableType, width: int | None = None, colour: bool = False) -> str:
    """Tables, fields and texts as lines.

    Args:
        items: what is shown; a str is plain text.
        width: of the terminal; more where a word needs it. None for lines without end.
        colour: whether there are escape codes for colour.
    """
    from rich.console import Group
    from rich.text import Text

    console = _console(io.StringIO(), colour=colour, width=_ENDLESS)
    for item in items:
        for each in item.renderables if isinstance(item, Group) else (item,):
            shown = _text(each) if isinstance(each, str) else each
            options = console.options
            if width is not None:
                options = options.update(width=max(width, console.measure(shown).minimum))
            for line in console.render_lines(shown, options, pad=False):
                text = Text.assemble(*((segment.text, segment.style or "") for segment in line))
                text.rstrip()
                console.print(text, soft_wrap=True)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue().replace(_SPACE, " ").replace(_BREAK, "")


def show(*items: RenderableType) -> None:
    """Write tables, fields and texts to stdout."""
    say(render(*items, width=columns(), colour=wants_colour()))


def say(text: str) -> None:
    """Write a text to stdout as it is; characters that the encoding of stdout lacks become question marks."""
    encoding = sys.stdout.encoding or "utf-8"
    sys.stdout.write(text.encode(encoding, "replace").decode(encoding))


def columns(stream: TextIO | None = None) -> int | None:
    """The width of a stream, stdout if None; None where it is no terminal."""
    return shutil.get_terminal_size().columns if (stream or sys.stdout).isatty() else None


def wants_colour(stream: TextIO | None = None) -> bool:
    """Return True if a stream, stdout if None, is a terminal that may have colour (https://no-color.org)."""
    return (stream or sys.stdout).isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


class Display:
    """Progress on stderr: a line that is redrawn on a terminal, a plain line now and then elsewhere. A context.

    Args:
        name: of the work.
        quiet: show no progress.
        details: called for a step that is shown; more words about it.

    Attributes:
        name: of the work; may be changed, as details may be.
    """

    def __init__(self, name: str = "", *, quiet: bool = False, details: Callable[[], str] = str) -> None:
        self.name = name
        self._quiet, self.details = quiet, details
        self._redraws = not quiet and sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
        self._shown = 0.0 if self._redraws else time.monotonic()
        self._live: Any = None

    def stage(self, text: str) -> None:
        """Show what is done now: on a terminal until something else is shown, elsewhere where no line is recent."""
        text = local(text)
        if self._redraws:
            from rich.text import Text

            self._draw(Text(f"{text} ...", no_wrap=True, overflow="ellipsis"))
        elif not self._quiet and time.monotonic() - self._shown >= _REPORT:
            self.say(text)

    def step(self, step: Step) -> None:
        """Show a step, unless one was shown just now."""
        now = time.monotonic()
        if self._redraws and (now - self._shown >= _REDRAW or step.number == step.of):
            self._shown = now
            self._draw(self._line(step))
        elif not self._redraws and not self._quiet and now - self._shown >= _REPORT:
            self.say("  ".join([self.name, *self._words(step)]))

    def say(self, text: str) -> None:
        """Write a line to stderr that stays."""
        self.clear()
        if not self._redraws:
            self._shown = time.monotonic()
        sys.stderr.write(f"toprope: {local(text)}\n")
        sys.stderr.flush()

    def clear(self) -> None:
        """Remove the line from the terminal."""
        if self._live is not None:
            live, self._live = self._live, None
            live.stop()

    def _words(self, step: Step) -> list[str]:
        stage = "" if step.stage == "edit" else step.stage
        left = f"{step.left:.0f} s left" if step.left >= 1 else ""
        return [word for word in (step.amount, step.rate, left, stage, self.details()) if word]

    def _line(self, step: Step) -> RenderableType:
        """The line of progress: name, bar and words, as wide as the terminal."""
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        name = Text(self.name, no_wrap=True, overflow="ellipsis")
        words = Text("  ".join(self._words(step)), no_wrap=True, overflow="ellipsis")
        room = shutil.get_terminal_size().columns - min(name.cell_len, _NAME) - words.cell_len - 4
        wide = max(_BAR // 4, min(_BAR, room))
        line = Table.grid(padding=(0, 2, 0, 0), pad_edge=False)
        line.add_column(no_wrap=True, max_width=_NAME)
        line.add_column(no_wrap=True)
        line.add_column()  # the only one that is cut off where there is no room
        line.add_row(name, ProgressBar(step.of, step.number, width=wide), words)
        return line

    def _draw(self, line: RenderableType) -> None:
        """Draw the line in the place of the one before."""
        from rich.live import Live

        live = self._live  # a signal's handler may clear it at any time
        if live is None:
            console = _console(sys.stderr, colour=wants_colour(sys.stderr))
            live = self._live = Live(
                console=console, auto_refresh=False, transient=True, redirect_stdout=False, redirect_stderr=False
            )
            live.start()
        live.update(line, refresh=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.clear()


def _console(file: TextIO, *, colour: bool, width: int | None = None) -> Console:
    """A rich console without markup, emoji and highlighting."""
    from rich.console import Console

    # Without a height rich takes a terminal with TERM=dumb to have 80 columns, whatever the width, and cuts words off.
    return Console(
        file=file, width=width, height=None if width is None else 25, markup=False, highlight=False, emoji=False,
        force_terminal=True, no_color=not colour, color_system="standard" if colour else None,
    )  # fmt: skip
