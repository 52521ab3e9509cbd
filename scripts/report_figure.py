"""Draw docs/figures/first-report.svg: the first command of docs/start.md with what it prints, as that page has it.

python scripts/report_figure.py [--check]

Run by hand when the page's output changes; tests/project/test_sessions.py runs `--check`. The output itself is read
with scripts/sessions.py.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from sessions import COLUMNS, blocks, commands
from toprope.drawing import Drawing

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "start.md"
FIGURE = ROOT / "docs" / "figures" / "first-report.svg"

CHARACTER, LINE, LEFT, TOP = 7.25, 18, 20, 34
STYLE = (
    ".window{fill:$band}.line{font:12px ui-monospace,Menlo,Consolas,'DejaVu Sans Mono',monospace;white-space:pre}"
    ".label{fill:$faint}.bold{font-weight:700}.found{fill:$alarm}"
)


def figure() -> str:
    """The figure as SVG."""
    block = next(each for each in blocks(PAGE.read_text(encoding="utf-8")) if not each["name"])
    command, output = commands(block["text"])[0]
    drawing = Drawing(f"toprope's report of {command.split()[-1]}", STYLE)
    drawing.description = f"A terminal: $ {command}\n{output}"
    lines = [f"$ {command}", *output.splitlines()]
    drawing.width, drawing.height = 2 * LEFT + COLUMNS * CHARACTER, 2 * TOP + (len(lines) - 1.5) * LINE
    drawing.rect(6, 6, drawing.width - 12, drawing.height - 12, "window", rx=8)
    name = ""
    for place, line in enumerate(lines):
        y = TOP + place * LINE
        if found := re.match(r"  (\S.{13}|\s{14})(\S.*)$", line):
            name = found[1].strip() or name
            drawing.text(LEFT + 2 * CHARACTER, y, found[1].rstrip(), "line label")
            kind = "line bold" if name == "verdict" and found[1].strip() else "line"
            kind += " found" if name == "verdict" and not found[1].strip() else ""
            drawing.text(LEFT + 16 * CHARACTER, y, found[2], kind)
        else:
            drawing.text(LEFT, y, line, "line bold" if line.startswith("$") else "line")
    return drawing.svg()


if __name__ == "__main__":
    if "--check" in sys.argv[1:]:
        sys.exit(0 if FIGURE.read_text(encoding="utf-8") == figure() else f"{FIGURE} is old: python {sys.argv[0]}")
    FIGURE.write_text(figure(), encoding="utf-8")
