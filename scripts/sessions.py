"""Run the terminal sessions of pages, and compare what they print with what the pages show.

    python scripts/sessions.py PAGE...            print the differences; exit status 1 where there are any
    python scripts/sessions.py PAGE... --update   write what was printed into the pages

A session is all blocks of a page that follow one of these lines. They share one empty folder that has `examples`.

    <!-- file: NAME -->   the block is a file there, or one that the repository has, with the same content
    <!-- tested -->       a `console` block: commands after "$ ", each followed by what it prints on a terminal. Each
                          has a shell of its own; what `export NAME=VALUE` sets is there for all that follow

Times, dates and rates differ from run to run: they are compared as "TIME". Colours are off, and the terminal has 110
columns. A service may listen on port 8123, which is a free one while the session runs. What a session has started in
the background is ended with it.

The two kinds of comment are what pages are written with: a change of their form needs a change of the pages. A figure
that differs from run to run needs a row in `_TIME` or `_NOISE`.

tests/project/test_sessions.py runs all pages with sessions; after a change of output, run `--update` and look at the
difference.
"""

from __future__ import annotations

import argparse
import contextlib
import difflib
import fcntl
import os
import pty
import re
import shlex
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import termios
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path

import psutil

ROOT = Path(__file__).resolve().parent.parent
COLUMNS = 110
SECONDS = 280  # for one command
PORT = "8123"  # of the services of pages

_BLOCK = re.compile(
    r"^<!-- (?P<what>tested|file: (?P<name>\S+)) -->\n```(?P<language>\w+)\n(?P<text>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)
# torchao, which the development environment has and which readers rarely have, complains when it is imported
_NOISE = re.compile(
    r"^(?:Failed to load .*/torchao/.*|Unable to import `torchao`.*|W\d{4} .*/_pytree\.py:.*)\n", re.MULTILINE
)
_TIME = re.compile(
    r"\d[\d.]*(?: to \d[\d.]*)? (?:us|ms|s)\b|\b\d+\.\d\ds\b(?: \(\d:\d\d:\d\d\))?|(?<=\[W)\d+ [\d:.]+"
    r"|\d[\d.]* [kMG]?B/s|\d[\d.]* x the limit"
)

_SLOW = re.compile(r" and the program's own code between operators: TIME here \(measured on this host\)")


def masked(text: str) -> str:
    """Text with its times and rates as TIME and without the line breaks of a terminal, which depend on their width.

    A line that a report has only where the host was slow is left out.
    """
    return _SLOW.sub("", re.sub(r"\s+", " ", _TIME.sub("TIME", text))).strip()


def blocks(page: str) -> list[re.Match[str]]:
    """The files and console blocks of a page."""
    return [each for each in _BLOCK.finditer(page) if each["name"] or each["language"] == "console"]


def commands(block: str) -> list[tuple[str, str]]:
    """Each command of a console block with what it prints."""
    parts = re.split(r"^\$ (.*)\n", block, flags=re.MULTILINE)
    if parts[0]:
        raise ValueError(f"a console block begins with a command: {parts[0]!r}")
    return list(zip(parts[1::2], parts[2::2], strict=True))


def printed(command: str, folder: Path, exported: Mapping[str, str] | None = None) -> str:
    """The output of a command on a terminal, stdout and stderr together.

    Raises:
        TimeoutError: it did not end; all its processes are killed.
    """
    reader, writer = pty.openpty()
    fcntl.ioctl(writer, termios.TIOCSWINSZ, struct.pack("4H", 40, COLUMNS, 0, 0))
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("TOPROPE_SIM", "ASCEND"))}
    environment |= {
        "NO_COLOR": "1",
        "TERM": "dumb",
        "OMP_NUM_THREADS": "1",
        "COLUMNS": str(COLUMNS),
        **(exported or {}),
    }
    environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{environment['PATH']}"
    process = subprocess.Popen(
        ["sh", "-c", command], cwd=folder, env=environment, start_new_session=True,
        stdin=subprocess.DEVNULL, stdout=writer, stderr=writer,
    )  # fmt: skip
    os.close(writer)
    late = threading.Event()

    def stop() -> None:
        late.set()
        os.killpg(process.pid, signal.SIGKILL)

    timer = threading.Timer(SECONDS, stop)
    timer.start()
    text = b""
    try:
        while part := os.read(reader, 65536):
            text += part
    except OSError:  # Linux reports the end of a terminal as EIO
        pass
    process.wait()
    timer.cancel()
    os.close(reader)
    if late.is_set():
        raise TimeoutError(f"{command}: no end after {SECONDS} s")
    return _NOISE.sub("", text.decode().replace("\r\n", "\n"))


@contextlib.contextmanager
def empty_folder() -> Iterator[Path]:
    """A folder for a session; the processes that work in it, such as services in the background, end with it."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name).resolve()
        try:
            yield folder
        finally:
            for process in psutil.process_iter():
                with contextlib.suppress(psutil.Error):
                    if folder in (here := Path(process.cwd()), *here.parents):
                        process.kill()


def free_port() -> str:
    """The number of a port that nobody listens on."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return str(one.getsockname()[1])


def run(page: str) -> str:
    """The page with what its commands print now; what differs in times alone stays as the page has it."""
    port, exported = free_port(), {}
    with empty_folder() as folder:
        (folder / "examples").symlink_to(ROOT / "examples")
        end, result = 0, ""
        for block in blocks(page):
            result += page[end : block.start("text")]
            end = block.end("text")
            text = block["text"]
            if block["name"]:
                file = ROOT / block["name"]
                if file.exists():
                    text = file.read_text(encoding="utf-8")
                else:
                    (folder / block["name"]).parent.mkdir(parents=True, exist_ok=True)
                    (folder / block["name"]).write_text(text, encoding="utf-8")
            else:
                text = ""
                for command, shown in commands(block["text"]):
                    now = printed(command.replace(PORT, port), folder, exported).replace(port, PORT)
                    if command.startswith("export "):
                        exported |= dict(each.split("=", 1) for each in shlex.split(command)[1:])
                    text += f"$ {command}\n{shown if masked(now) == masked(shown) else now}"
            result += text
        return result + page[end:]


def main(arguments: list[str]) -> int:
    """Compare or update pages; return the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("pages", nargs="+", type=Path, metavar="PAGE")
    parser.add_argument("--update", action="store_true", help="write what was printed into the pages")
    options = parser.parse_args(arguments)
    differ = False
    for path in options.pages:
        page = path.read_text(encoding="utf-8")
        now = run(page)
        differ |= now != page
        sys.stdout.writelines(
            difflib.unified_diff(page.splitlines(True), now.splitlines(True), f"{path}, shown", f"{path}, printed")
        )
        if options.update:
            path.write_text(now, encoding="utf-8")
    return int(differ and not options.update)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
