"""The refusals as Markdown: `python -m toprope.support.refusals_page docs/refusals.md` renews the page.

Run it after each change of refusals.toml. Columns and words are free; the two marks are those of the page.
tests/support/test_refusals.py fails if the page does not agree with refusals.toml.
"""

from __future__ import annotations

import sys
from pathlib import Path

from toprope import chips
from toprope.support.refusals import DTYPES, Row, rows, table

__all__ = ["BEGIN", "END", "markdown", "renewed"]

BEGIN = "<!-- begin: written by `python -m toprope.support.refusals_page docs/refusals.md` -->"
END = "<!-- end -->"

A2, A3, A5 = "910B3", "910C", "950PR"
OLD = ("910A", "310P3")
"""One chip for each family: what is refused is the same for all of a family."""

_Key = tuple[tuple[str, ...], tuple[object, ...]]


def markdown() -> str:
    """Counts, then one line for each row: what the kernels of each family take, and where that is written."""
    entries: dict[_Key, dict[str, Row]] = {}
    for name in (A2, A3, A5, *OLD):
        for row in rows(chips.get(name)):
            entries.setdefault((row.operators, row.operands), {})[name] = row
    counts = ", ".join(f"{_refusing(name)} on the {name}" for name in (A2, A3, A5, *OLD))
    head = ["operator", "argument", "the 910B and the 910C take", "the 950 takes", "bfloat16 refused on", "kernel"]
    lines = [head, ["---"] * len(head), *(_line(of_chip) for of_chip in entries.values())]
    return (
        f"{len(entries)} rows; operators that refuse a dtype: {counts}.\n\n"
        + "\n".join("| " + " | ".join(line) + " |" for line in lines)
        + "\n"
    )


def renewed(page: str) -> str:
    """The page with the part between its two marks written again.

    Raises:
        ValueError: the page has no marks.
    """
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"the page has no {BEGIN} ... {END}")
    return f"{before}{BEGIN}\n\n{markdown()}\n{END}{after}"


def _refusing(chip: str) -> int:
    """Count the operators that refuse at least one dtype."""
    return sum(any(places.values()) for places in table(chips.get(chip)).values())


def _line(of_chip: dict[str, Row]) -> list[str]:
    row = next(iter(of_chip.values()))
    new, newest = of_chip.get(A2) or of_chip.get(A3), of_chip.get(A5)
    old = [name for name in OLD if name in of_chip and "bfloat16" in of_chip[name].refused]
    kernel = f"[{row.kernel}]({row.source})"
    return [
        "<br>".join(f"`{operator}`" for operator in row.operators),
        ", ".join(f"{operand.position}: {operand.parameter}" for operand in row.operands)
        + (f"<br>up to {row.dimensions} dimensions" if row.dimensions else ""),
        _taken(new),
        "the same" if new and newest and _taken(new) == _taken(newest) else _taken(newest),
        ", ".join(old),
        kernel + (f", [seen]({row.seen})" if row.seen else ""),
    ]


def _taken(row: Row | None) -> str:
    """Text on the dtypes that the source lists as supported, and on those that it leaves open."""
    if row is None:
        return "not known"
    left_open = [dtype for dtype in DTYPES if not row.decides(dtype)]
    return ", ".join(row.supported) + (f"; undecided: {', '.join(left_open)}" if left_open else "")


def main(arguments: list[str]) -> int:
    """Print the part, or write it into the page that is the only argument; the exit status."""
    if not arguments:
        sys.stdout.write(markdown())
        return 0
    if len(arguments) > 1:
        sys.stderr.write("usage: python -m toprope.support.refusals_page [PAGE]\n")
        return 2
    page = Path(arguments[0])
    try:
        page.write_text(renewed(page.read_text(encoding="utf-8")), encoding="utf-8")
    except (OSError, ValueError) as error:
        sys.stderr.write(f"{page}: {error}\n")
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
