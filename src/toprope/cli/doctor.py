"""`toprope doctor`: what is installed, what is visible and why not, what works; and what an error code means.

Options, streams and exit statuses. Facts and findings are made in `device.doctor`, with `--images` in `images.doctor`;
codes and logs are explained by `toprope.codes`; `cli.output.doctor_text` writes all of it. torch is never imported in
this process, and an idle pipe on stdin must not stop the examination. Tests: tests/device/test_doctor_cli.py,
tests/device/test_doctor_texts.py (codes and logs), tests/images/test_images_doctor.py, tests/cli/test_wrong_use.py (no
compiler).
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import select
import stat
import sys
from collections.abc import Iterable, Iterator
from io import BytesIO
from typing import TYPE_CHECKING, Annotated

import typer

from toprope.cli.group import verb
from toprope.errors import BuildError, UsageError
from toprope.messages import Message

if TYPE_CHECKING:
    from toprope.device.doctor.finding import Finding

__all__ = ["LOOKING", "app"]

LOOKING = Message("looking: torch and the devices are tried in a process of their own")
PIPE = 0.5  # seconds in which a log must begin to come through a pipe

app = verb()


@app.command(context_settings={"help_option_names": ["-h", "--help"]})
def doctor(
    codes: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[CODE]...",
            show_default=False,
            help='Explain a code (507034, EZ1001, ERR00100), the codes in a message ("..."), or a log (a file, or -).',
        ),
    ] = None,
    images: Annotated[bool, typer.Option("--images", help="Also whether pictures can be edited: one is.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="The same facts as JSON.")] = False,
    wait: Annotated[
        float, typer.Option(metavar="SECONDS", min=1, help="How long loading torch_npu and trying devices may take.")
    ] = 60,
) -> None:
    """Look for what keeps programs from the NPU, and say what to do; or explain error codes and logs.

    `toprope doctor train.log` explains what is in a log, the first cause first. Without one: what is installed, what
    is visible and why not, whether versions belong together, which dtypes work, one tiny training. torch runs in
    a process of its own, nothing is downloaded. With --images also whether pictures can be edited. The exit status is
    1 where there is a problem, else 0. More: toprope explain doctor.
    """
    if codes:
        if images:
            raise UsageError("--images and a code are two questions.", do="ask one of them")
        _explain(codes, as_json=as_json)
        return
    if not images and _log_on_stdin():
        _explain(["-"], as_json=as_json)
        return
    from toprope.cli.launch import card_build
    from toprope.cli.output.doctor_text import as_dict, report
    from toprope.device.doctor.collect import collect_facts
    from toprope.device.doctor.diagnosis import diagnose
    from toprope.terminal import Display, say, show

    card_build.ensure_for_environment()
    more, further = {}, []
    with Display() as display:
        display.stage(LOOKING)
        if images:
            from toprope.images.doctor import checks

            with checks.Trial(wait=wait) as trial:  # at the same time as the other processes
                facts = collect_facts(wait=wait)
                about = trial.facts()
            more, further = {"images": about.as_dict()}, checks.rows(about)
            findings = (*diagnose(facts), *checks.diagnose(about))
        else:
            facts = collect_facts(wait=wait)
            findings = diagnose(facts)
        if not facts.simulated and "torch" in facts.packages:
            findings = (*findings, *_no_compiler())
    if as_json:
        say(json.dumps(as_dict(facts, findings) | more, ensure_ascii=False, indent=2) + "\n")
    else:
        show(report(facts, findings, further=further))
    raise typer.Exit(int(any(finding.problem for finding in findings)))


def _no_compiler() -> tuple[Finding, ...]:
    """A note where the simulated card, the only one that most machines can have, cannot be built."""
    from toprope.device.doctor.finding import Finding
    from toprope.native_build import has_compiler
    from toprope.sim.build import is_ready

    try:
        if has_compiler() or is_ready():
            return ()
    except BuildError as error:  # CXX cannot be read
        return (Finding("no-compiler", error.what, (error.do,), error.looked_at, problem=False),)
    return (
        Finding(
            "no-compiler",
            Message(
                "programs cannot be rehearsed here: the simulated card is built once, and there is no C++ compiler."
            ),
            (Message("install g++ 11 or newer (Debian and Ubuntu: apt install g++), or name a compiler in CXX"),),
            problem=False,
        ),
    )


def _explain(words: list[str], *, as_json: bool) -> None:
    """Print the explanations of codes, messages and logs, as text or as JSON."""
    from toprope.cli.output.doctor_text import codes_as_dict, codes_text, seen_as_dict, seen_text
    from toprope.codes import Seen, explain, in_log, in_text
    from toprope.terminal import say, show

    found = {}
    seen: tuple[Seen, ...] = ()
    for word in words:
        if word == "-" or _is_file(word):
            with _opened(word) as log:
                lines = _Counted(log)
                found_here = in_log(lines)
            if not found_here:
                raise _nothing(f"{lines.count} lines of {'stdin' if word == '-' else word}")
            seen += found_here
            continue
        known = in_text(word)
        if not any(letter.isspace() for letter in word.strip()) and (not known or known[0].code == word.upper()):
            known = (explain(word),)
        if not known:
            raise _nothing(f"{len(word)} characters")
        found.update({each.code: each for each in known})
    explanations = [each for each in found.values() if all(each.code != one.what.code for one in seen)]
    if as_json:
        answer = [*seen_as_dict(seen), *codes_as_dict(explanations)]
        say(json.dumps(answer, ensure_ascii=False, indent=2) + "\n")
    else:
        if explanations:
            show(codes_text(explanations))
        if seen:
            show(seen_text(seen))


def _is_file(word: str) -> bool:
    """Tell a log's file from a code or a message; what looks like a path and is none is an error."""
    if os.path.isfile(word):
        return True
    if os.path.isdir(word):
        raise UsageError(f"{word} is a folder.", do=f"name the logs: toprope doctor {word.rstrip('/')}/*.log")
    if not any(letter.isspace() for letter in word) and (os.sep in word or word.endswith((".log", ".txt"))):
        raise UsageError(f"there is no file {word}.", looked_at=os.getcwd(), do="give the path of a log, or a code")
    return False


def _opened(word: str) -> contextlib.AbstractContextManager[Iterable[bytes]]:
    if word != "-":
        try:
            return open(word, "rb")
        except OSError as error:
            raise UsageError(f"{word} cannot be read: {error.strerror}.", do="check its permissions") from None
    stdin = getattr(sys.stdin, "buffer", None) or BytesIO(sys.stdin.read().encode(errors="replace"))
    return contextlib.nullcontext(stdin)


def _nothing(looked_at: str) -> UsageError:
    return UsageError(
        "there is no code and no known message in that text.",
        looked_at=looked_at,
        do="give the whole message, with the lines below the traceback; or run toprope doctor alone",
    )


class _Counted:
    """Lines that are counted while they are read."""

    def __init__(self, lines: Iterable[bytes]) -> None:
        self.count = 0
        self._lines = lines

    def __iter__(self) -> Iterator[bytes]:
        for line in self._lines:
            self.count += 1
            yield line


def _log_on_stdin() -> bool:
    """True if a log was redirected to stdin: a file that was not read to its end, or a pipe with something in it."""
    try:
        number = sys.stdin.fileno()
        status = os.fstat(number)
        if stat.S_ISREG(status.st_mode):
            return status.st_size > os.lseek(number, 0, os.SEEK_CUR)
        if stat.S_ISFIFO(status.st_mode) or stat.S_ISSOCK(status.st_mode):
            # an idle pipe of a service or a CI job must not stop the examination
            ready = select.select([number], [], [], PIPE)[0]
            return bool(ready) and isinstance(sys.stdin.buffer, io.BufferedReader) and bool(sys.stdin.buffer.peek(1))
    except (AttributeError, OSError, ValueError):
        pass  # no stdin, or a stand-in for it
    return False
