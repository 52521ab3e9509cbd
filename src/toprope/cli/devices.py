"""`toprope devices`: the devices that a program would see here, and why there are no others.

The facts are those of `toprope doctor` (`device.doctor`), in short; the table is in `cli.output.doctor_text`. The exit
status, 1 where there is a problem, and the keys of --json are an interface. Tests: tests/device/test_doctor_cli.py, and
tests/cli/test_card_build.py for the build before it.
"""

from __future__ import annotations

import json
from typing import Annotated

import typer

from toprope.cli.group import verb

__all__ = ["app"]

app = verb()


@app.command(context_settings={"help_option_names": ["-h", "--help"]})
def devices(
    as_json: Annotated[bool, typer.Option("--json", help="The same facts as JSON, sizes in bytes.")] = False,
    wait: Annotated[
        float, typer.Option(metavar="SECONDS", min=1, help="How long loading torch_npu and asking devices may take.")
    ] = 60,
) -> None:
    """List the devices that a program would see, with name, number, memory and dtype; and why there are no others.

    The exit status is 1 where there is a problem, else 0; `toprope doctor` tells more. More: toprope explain doctor.
    """
    from toprope.cli.doctor import LOOKING
    from toprope.cli.launch import card_build
    from toprope.cli.output.doctor_text import devices_as_dict, devices_text
    from toprope.device.doctor.collect import collect_facts
    from toprope.device.doctor.diagnosis import diagnose
    from toprope.terminal import Display, say, show

    card_build.ensure_for_environment()
    with Display() as display:
        display.stage(LOOKING)
        facts = collect_facts(wait=wait, memory=True)
    findings = diagnose(facts)
    if as_json:
        say(json.dumps(devices_as_dict(facts, findings), ensure_ascii=False, indent=2) + "\n")
    else:
        show(devices_text(facts, findings))
    raise typer.Exit(int(any(finding.problem for finding in findings)))
