"""Draw docs/figures/functions-call.svg: the files that a call of an instance passes on this machine.

python scripts/call_figure.py [--check]

Run by hand after a change of the path of a call; docs/functions_call.md shows the figure.
tests/functions/test_functions_call_page.py runs `--check`.
"""

from __future__ import annotations

import sys
from pathlib import Path

from toprope.drawing import Drawing

ROOT = Path(__file__).resolve().parent.parent
FIGURE = ROOT / "docs" / "figures" / "functions-call.svg"

WIDTH, HEIGHT, LEFT, GAP = 220, 52, 30, 40
STYLE = ".part{fill:$box}.pure{fill:$s2}.lane{fill:$band}.way{stroke:$ink;stroke-width:1.5;fill:none}.head{fill:$ink}"

DRIVER = (
    ("1 api/proxies.py", "method.invoke, checks arguments"),
    ("2 local/session.py", "makes the call, returns a reference"),
    ("3 local/object_store.py", "arguments: pickle, shared memory"),
    ("4 local/instance_manager.py", "finds the instance, does what 5 says"),
    ("5 lifecycle.py", "decides: send, queue, fail, start, end"),
    ("6 local/dispatcher.py", "window of calls on their way"),
)
WAY = (("7 transport/wire.py", "messages over a socket"),)
WORKER = (("8 local/worker/worker_process.py", "runs the method, sends its result"),)
BACK = (
    ("9 local/reactor.py", "reads, unless the caller of get does"),
    ("6 local/dispatcher.py", "finds the call of the result"),
    ("10 objects.py", "the entry is done; callbacks"),
    ("2 local/session.py", "get returns the value"),
)


def figure() -> str:
    """The figure as SVG."""
    drawing = Drawing("How a call travels on this machine", STYLE)
    drawing.description = "Ten files from the call of a method to its result: driver, socket, worker, and back."
    drawing.text(LEFT, 26, drawing.title, "title")
    step = HEIGHT + 16
    columns = (
        ("Driver: the call", DRIVER, 0),
        ("Socket", WAY, len(DRIVER) - 1),
        ("Worker", WORKER, len(DRIVER) - 1),
        ("Driver: the result", BACK, len(DRIVER) - len(BACK)),
    )
    top, places = 70, {}
    for column, (title, parts, first) in enumerate(columns):
        x = LEFT + column * (WIDTH + GAP)
        drawing.rect(x - 10, top - 26, WIDTH + 20, step * len(DRIVER) + 22, "lane", rx=6)
        drawing.text(x, top - 8, title, "strong")
        for row, (name, what) in enumerate(parts):
            # results go upwards: the last of them is at the top
            y = top + (row + first if column < 3 else len(DRIVER) - 1 - row) * step
            drawing.rect(x, y, WIDTH, HEIGHT, "pure" if "lifecycle" in name else "part", rx=4)
            drawing.text(x + 10, y + 21, name, "strong")
            drawing.text(x + 10, y + 39, what, "small")
            places[column, row] = x, y
            if row:
                down = column < 3
                _arrow(drawing, x + WIDTH / 2, y - 16 if down else y + HEIGHT + 16, 0, 16 if down else -16)
    bottom = top + (len(DRIVER) - 1) * step + HEIGHT / 2
    for column in range(3):
        _arrow(drawing, LEFT + column * (WIDTH + GAP) + WIDTH, bottom, GAP, 0)
    drawing.width, drawing.height = LEFT + 4 * (WIDTH + GAP) - GAP + 20, top + step * len(DRIVER) + 10
    return drawing.svg()


def _arrow(drawing: Drawing, x: float, y: float, right: float, down: float) -> None:
    """An arrow from a point; its head is at the end."""
    drawing.path("way", "M", x, y, "l", right, down)
    long = 6
    if right:
        drawing.path("head", "M", x + right, y, "l", -long, -4, "v", 8, "z")
    else:
        sign = 1 if down > 0 else -1
        drawing.path("head", "M", x, y + down, "l", -4, -long * sign, "h", 8, "z")


if __name__ == "__main__":
    if "--check" in sys.argv[1:]:
        sys.exit(0 if FIGURE.read_text(encoding="utf-8") == figure() else f"{FIGURE} is old: python {sys.argv[0]}")
    FIGURE.write_text(figure(), encoding="utf-8")
