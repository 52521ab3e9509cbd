"""`toprope status`, and `yr status` under `toprope run`: the deployment, the instances, and the users of the cards.

Reads what `functions.deployment`, the running sessions and the cards' shared memory say, and changes nothing. The first
line, "System Status: ...", is as openYuanrong prints it, and --json is the deployment's own file; the rows below are
free. Tests: tests/cli/test_cli_start.py.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from toprope.cli.group import verb

if TYPE_CHECKING:
    from toprope.functions.deployment.start_options import Deployment

__all__ = ["app", "cards_of"]

app = verb()


@app.command(context_settings={"help_option_names": ["-h", "--help"]})
def status(
    as_json: Annotated[bool, typer.Option("--json", help="The deployment as JSON.")] = False,
) -> None:
    """Show the deployment, the running instances, and the users of the cards. More: toprope explain functions."""
    from toprope.functions.deployment import state_file

    found = state_file.read()
    if as_json:
        typer.echo("null" if found is None else found.format())
        return
    from toprope.terminal import field, show

    rows = _instances() if found is None else _rows(found)  # programs have instances without `toprope start`, too
    shown = (item for name, value in rows for item in field(name, value, label_width=12, indent=2))
    show(f"System Status: {'STOPPED' if found is None else 'RUNNING'}", *shown)
    if found is not None and found.address:
        typer.echo(state_file.cluster().status(found))


def cards_of(deployment: Deployment) -> str:
    """The cards that programs find, in a line."""
    from toprope.functions.deployment.discover import collect
    from toprope.sim.spec import SimSpec

    if deployment.sim:
        spec = SimSpec.parse(deployment.sim)
        if deployment.mode != "off":
            return f"{spec.count} simulated Ascend {spec.chip}, for programs under `toprope run`"
    handler = logging.StreamHandler()
    logging.getLogger("toprope").addHandler(handler)  # obstacles are reported
    try:
        found = Counter(f"{card.vendor}/{card.model}" for card in collect(deployment.mode, deployment.gpus))
    finally:
        logging.getLogger("toprope").removeHandler(handler)
    if not found:
        return "no card was found, no NPU is offered" if deployment.mode != "off" else "no NPU is looked for"
    return ", ".join(f"{number} x {name}" for name, number in found.items())


def _rows(deployment: Deployment) -> Iterator[tuple[str, str]]:
    """Yield label and value of each fact about the deployment."""
    yield "since", time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(deployment.since))
    yield "mode", f"npu_collection_mode={deployment.mode}"
    yield "cards", cards_of(deployment)
    yield from _users(deployment)
    yield from _instances()
    amounts = dict(deployment.custom_resources)
    limits = {"millicores": deployment.cpu, "MB": deployment.memory}
    said = [f"{value} {unit}" for unit, value in limits.items() if value is not None]
    said += [f"{key} {amount:g}" for key, amount in amounts.items()]
    if said:
        yield "resources", ", ".join(said)
    if deployment.labels:
        yield "labels", ", ".join(f"{key}={value}" for key, value in deployment.labels.items())
    if deployment.no_set:
        yield "set by you", ", ".join(deployment.no_set)
    if deployment.address:
        yield "ray", deployment.address


def _instances() -> Iterator[tuple[str, str]]:
    """The instances of this user's programs on this machine, those without a handle too."""
    from toprope.functions.local.listing import listed

    for program, instances in listed():
        for each in instances:
            amounts = ", ".join(f"{key} {value:g}" for key, value in each["resources"].items())
            lost = ", no handle left" if each["handles"] == 0 else ""
            yield f"  {each['name'] or each['id']}", f"{each['class']} of program {program}, {amounts}{lost}"


def _users(deployment: Deployment) -> Iterator[tuple[str, str]]:
    """Processes that hold memory of the simulated cards."""
    from pathlib import Path

    from toprope.sim.metrics import cards
    from toprope.sim.spec import SimSpec

    if not deployment.cards:
        return
    for card in cards.read(Path(deployment.cards), SimSpec.parse(deployment.sim).count):
        for process in card.processes:
            held = process.reserved[card.physical] / 2**20
            yield f"  npu {card.physical}", f"{held:.1f} MiB held by {process.name} (pid {process.pid})"
