"""Program `python -m toprope.chips`: print the chips as Markdown, or renew the table in the page that is its argument.

Run it after each change of the chips' TOML files, on docs/chips.md, which no one edits by hand between its two marks.
The tables themselves are made in table.py. tests/base/test_chips.py fails if docs/chips.md is not renewed.
"""

from __future__ import annotations

import sys
from pathlib import Path

from toprope.chips.catalogue import get, names
from toprope.chips.table import markdown, renewed


def main(arguments: list[str]) -> int:
    """Print the table, or write it into the page that is the only argument; the exit status."""
    chips = [get(name) for name in names()]
    if not arguments:
        sys.stdout.write(markdown(chips))
        return 0
    if len(arguments) > 1:
        sys.stderr.write("usage: python -m toprope.chips [PAGE]\n")
        return 2
    page = Path(arguments[0])
    try:
        page.write_text(renewed(page.read_text(encoding="utf-8"), chips), encoding="utf-8")
    except (OSError, ValueError) as error:
        sys.stderr.write(f"{page}: {error}\n")
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
