"""`toprope doctor`: what is installed, what is visible and why not, what works; and what an error code means."""

from __future__ import annotations

import json
import sys
from typing import Annotated

import typer

from toprope.errors import UsageError

__all__ = ["LOOKING", "app"]

LOOKING = "looking: torch and the devices are tried in a process of their own"

app = typer.Typer(rich_markup_mode=None, pretty_exceptions_enable=False, add_completion=False)


@app.command(context_settings={"help_option_names": ["-h", "--help"]})
def doctor(
    codes: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[CODE]...",
            show_default=False,
            help='Explain a code (507034, EZ1001, ERR00100) or the codes in a message ("..."; - reads stdin).',
        ),
    ] = None,
    images: Annotated[bool, typer.Option("--images", help="Also whether pictures can be edited: one is.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="The same facts as JSON.")] = False,
    wait: Annotated[
        float, typer.Option(metavar="SECONDS", min=1, help="How long loading torch_npu and trying devices may take.")
    ] = 60,
) -> None:
    """Look for what keeps programs from the NPU, and say what to do; or explain error codes.

    Without CODE: what is installed, what is visible and why not, whether versions belong together, which dtypes work,
    one tiny training. torch runs in a process of its own, nothing is downloaded. With --images also whether pictures
    can be edited. The exit status is 1 where there is a problem, else 0. More: toprope explain doctor.
    """
    if codes:
        if images:
            raise UsageError("--images and a code are two questions.", do="ask one of them")
        _explain(codes, as_json=as_json)
        return
    from toprope.cli import card_build
    from toprope.cli.doctor_text import as_dict, report
    from toprope.device.doctor import diagnose
    from toprope.device.facts import gather
    from toprope.terminal import Display, say, show

    card_build.ensure_for_environment()
    more, beside = {}, []
    with Display() as display:
        display.stage(LOOKING)
        if images:
            from toprope.images import doctor as of_images

            with of_images.Trial(wait=wait) as trial:  # beside the other processes
                facts = gather(wait=wait)
                about = trial.facts()
            more, beside = {"images": about.as_dict()}, of_images.rows(about)
            findings = (*diagnose(facts), *of_images.diagnose(about))
        else:
            facts = gather(wait=wait)
            findings = diagnose(facts)
    if as_json:
        say(json.dumps(as_dict(facts, findings) | more, ensure_ascii=False, indent=2) + "\n")
    else:
        show(report(facts, findings, beside=beside))
    raise typer.Exit(int(any(finding.problem for finding in findings)))


def _explain(words: list[str], *, as_json: bool) -> None:
    from toprope.cli.doctor_text import codes_as_dict, codes_text
    from toprope.codes import explain, in_text
    from toprope.terminal import say, show

    found = {}
    for word in words:
        text = sys.stdin.read() if word == "-" else word
        if any(letter.isspace() for letter in text.strip()) or word == "-":
            known = in_text(text)
            if not known:
                raise UsageError(
                    "there is no code and no known message in that text.",
                    looked_at=f"{len(text)} characters",
                    do="give the whole message, with the lines below the traceback; or run toprope doctor alone",
                )
        else:
            known = (explain(text),)
        found.update({each.code: each for each in known})
    explanations = list(found.values())
    if as_json:
        say(json.dumps(codes_as_dict(explanations), ensure_ascii=False, indent=2) + "\n")
    else:
        show(codes_text(explanations))
