"""`yr` for programs and scripts under `toprope run`: `yr start`, `yr status` and `yr stop`, as openYuanrong has them.

`cli.run` calls `install`, which puts a launcher of this file in front of PATH, where no real `yr` is installed. Each
command is handed to the verb of the same name (`cli.start`, `cli.status`, `cli.stop`). Commands and `-c FILE` in front
of them are openYuanrong's; the launcher runs toprope's own Python, whatever Python the program uses. Tests:
tests/cli/test_cli_start.py, tests/cli/test_standard_streams.py.
"""

from __future__ import annotations

import shlex
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from toprope.cli.standard_streams import guarded

__all__ = ["NAME", "install", "main"]

NAME = "yr"
VERBS = ("start", "status", "stop")

_HELP = """Usage: yr [-c FILE] start --master [OPTIONS] | status | stop

This yr is toprope's: it starts no daemons. yr start --help lists the options of start.
"""


def install(folder: Path) -> None:
    """Writes the launcher into the folder `bin` of a run's folder, unless a real `yr` is on PATH."""
    if shutil.which(NAME) is not None:
        return
    root = Path(__file__).resolve().parents[2]
    code = f"import sys; sys.path.append({str(root)!r}); from toprope.cli.yr import main; sys.exit(main())"
    place = folder / "bin"
    place.mkdir(exist_ok=True)
    launcher = place / NAME
    launcher.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -I -c {shlex.quote(code)} "$@"\n')
    launcher.chmod(0o755)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status."""
    return guarded(lambda: _run(arguments), NAME)


def _run(arguments: Sequence[str] | None) -> int:
    words = list(sys.argv[1:] if arguments is None else arguments)
    config: list[str] = []
    if words[:1] and words[0].startswith(("-c", "--config")):
        _, equals, value = words.pop(0).partition("=")
        config = ["--config", value if equals else words.pop(0) if words else ""]
    if not words or words[0] in ("-h", "--help"):
        sys.stdout.write(_HELP)
        return 0
    if words[0] not in VERBS:
        sys.stderr.write(f"yr: toprope has no `yr {words[0]}`, only {', '.join(VERBS)}\n")
        return 2
    from toprope.cli.app import main as toprope

    return toprope([words[0], *(config if words[0] == "start" else []), *words[1:]])
