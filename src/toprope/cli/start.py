"""`toprope start`, and `yr start` under `toprope run`: settings and cards for later programs.

The deployment is written and read in `functions.deployment`. Names of options, `--block BOOL` and the text for a wrong
mode are those of openYuanrong's `yr start`, whose other options are accepted and ignored; --chip, --count, --hbm, --ray
and what is printed are toprope's own. Tests: tests/cli/test_cli_start.py.
"""

from __future__ import annotations

import os
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from toprope.cli.group import chip_names, verb
from toprope.errors import UsageError

if TYPE_CHECKING:
    from toprope.functions.deployment.start_options import Deployment

__all__ = ["app"]

app = verb()


def _names(*words: str) -> list[str]:
    """Option names with underscores, and with dashes as newer commands have them."""
    return [f"--{spelling}" for word in words for spelling in dict.fromkeys((word, word.replace("_", "-")))]


@app.command(
    context_settings={
        "help_option_names": ["-h", "--help"],
        "ignore_unknown_options": True,  # openYuanrong has many that mean nothing here
        "allow_extra_args": True,
    },
)
def start(
    context: typer.Context,
    master: Annotated[bool, typer.Option("--master", help="Start on this machine.")] = False,
    mode: Annotated[
        str | None,
        typer.Option(
            *_names("npu_collection_mode"),
            metavar="MODE",
            help="How NPUs are discovered: all, count, hbm, sfmd, topo, off. [default: all]",
        ),
    ] = None,
    gpus: Annotated[
        str | None, typer.Option(*_names("gpu_collection_enable"), metavar="BOOL", help="Offer NVIDIA GPUs too.")
    ] = None,
    cpu: Annotated[
        int | None, typer.Option("-c", *_names("cpu_num"), metavar="MILLICORES", help="Cores. [default: all]")
    ] = None,
    memory: Annotated[
        int | None, typer.Option("-m", *_names("memory_num"), metavar="MB", help="Memory. [default: all]")
    ] = None,
    resources: Annotated[
        str | None,
        typer.Option(*_names("custom_resources"), metavar="JSON", help="""Named resources, such as '{"ssd": 5}'."""),
    ] = None,
    labels: Annotated[
        str | None, typer.Option("--labels", metavar="JSON", help="""Labels of this node, such as '{"zone": "a"}'.""")
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("-s", "--set", metavar="KEY=VALUE", help="A setting by its full key; the value is TOML."),
    ] = None,
    config: Annotated[Path | None, typer.Option("--config", metavar="FILE", help="Settings in a TOML file.")] = None,
    address: Annotated[
        str | None,
        typer.Option(*_names("master_address", "master_info"), metavar="ADDRESS", help="Join a Ray cluster."),
    ] = None,
    ray: Annotated[bool, typer.Option("--ray", help="Start Ray, for programs on more than one machine.")] = False,
    chip: Annotated[
        str | None,
        typer.Option(metavar="CHIP", autocompletion=chip_names, help="Chip of simulated cards, such as 910B3."),
    ] = None,
    count: Annotated[int | None, typer.Option(metavar="N", help="Number of simulated cards.")] = None,
    hbm: Annotated[str | None, typer.Option(metavar="SIZE", help="Memory of a simulated card.")] = None,
    block: Annotated[str, typer.Option(metavar="BOOL", help="Wait until it is stopped.")] = "false",
) -> None:
    """Start a deployment: later programs of this user have its settings and cards, until `toprope stop`.

    On one machine no process runs meanwhile. The cards are those of the surrounding `toprope run`, or those of --chip
    and --count, or the real ones. Options that only apply to an openYuanrong cluster are accepted and ignored.
    More: toprope explain functions.
    """
    from toprope.functions.deployment import state_file
    from toprope.functions.deployment.start_options import WRONG_MODE, begin, leftover, no_set

    options = {
        "npu_collection_mode": mode, "gpu_collection_enable": gpus, "cpu_num": cpu, "memory_num": memory,
        "custom_resources": resources, "labels": labels if labels is not None else os.environ.get("INIT_LABELS"),
    }  # fmt: skip
    idle = leftover(context.args)
    if not master and address is None:
        raise UsageError(
            "neither --master nor --master_address is given.",
            do="give --master for this machine, or --master_address to join a Ray",
        )
    if block.lower() not in ("true", "false"):
        raise UsageError(f"--block {block!r} is neither true nor false.")
    try:
        deployment, more = begin(options, settings or (), _text(config))
    except UsageError as error:
        if error.what != WRONG_MODE:
            raise
        sys.stderr.write(f"{WRONG_MODE}\n")
        raise typer.Exit(1) from None
    if state_file.read() is not None:
        raise UsageError("a deployment is running already.", do="toprope stop, or yr stop, ends it")
    deployment = replace(deployment, no_set=no_set(os.environ), since=time.time(), sim=_simulated(chip, count, hbm))
    cluster = state_file.cluster() if ray or address is not None else None
    if deployment.sim:
        deployment = replace(deployment, cards=state_file.share_cards(os.environ.get("TOPROPE_RUN_DIR", "")))
    if cluster is not None:
        deployment = cluster.start(deployment) if address is None else cluster.join(address, deployment)
    place = state_file.keep(deployment)
    _say(deployment, [*idle, *more], place)
    if block.lower() == "true":
        _wait()


def _simulated(chip: str | None, count: int | None, hbm: str | None) -> str:
    """The spec of the simulated cards: the requested ones, which must match the surrounding `toprope run`."""
    from toprope.sim.spec import SimSpec

    around = os.environ.get("TOPROPE_SIM", "")
    if chip is None and count is None and hbm is None:
        return around
    base = SimSpec.parse(around) if around else SimSpec()
    given = {"chip": chip, "count": count, "hbm": hbm}
    asked = base.changed(**{name: value for name, value in given.items() if value is not None}, force=True)
    asked.capacity  # noqa: B018  raises where no figure is known and none was given
    if around and replace(asked, force=base.force) != base:
        raise UsageError(
            "--chip, --count and --hbm are not those of the toprope run that this is in.",
            looked_at=f"TOPROPE_SIM={around}",
            do="leave them out",
        )
    return asked.format()


def _text(config: Path | None) -> str:
    try:
        return "" if config is None else config.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"the configuration file cannot be read: {error}.") from error


def _say(deployment: Deployment, idle: list[str], place: Path) -> None:
    from toprope.cli.status import cards_of

    lines = [f"started (npu_collection_mode={deployment.mode}); {cards_of(deployment)}"]
    lines.append(f"programs of this user have these settings until `toprope stop` ({place})")
    typer.echo("\n".join(lines))
    if idle:
        sys.stderr.write(f"toprope: without effect here: {', '.join(dict.fromkeys(idle))}\n")


def _wait() -> None:
    from toprope.functions.deployment import state_file

    try:
        while state_file.read() is not None:
            time.sleep(0.2)
    except KeyboardInterrupt:
        state_file.end()
