"""`toprope tiers`: what a model that does not fit would do on this machine, before anything is moved.

Options, and the sizes and links of this machine; the plan and its text are `toprope.tiers.plan`. A budget of "auto" is
what is free here or, with --chip, the chip's own memory. Exit status 2 (does not fit) and the keys of --json are an
interface (docs/tiers.md). Tests: tests/cli/test_cli_tiers.py.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from toprope.cli.group import HELP, chip_names, group
from toprope.errors import UsageError
from toprope.whole_file import write_named

if TYPE_CHECKING:
    from toprope.chips import Chip
    from toprope.device import Device
    from toprope.tiers.plan.budgets import Free

__all__ = ["app"]


app = group()


@app.callback()
def _tiers() -> None:
    """Models larger than the memory of a device: kept on device, host and disk, and streamed.

    More: toprope explain tiers.
    """


@app.command(short_help="Where the weights of a model would lie, and how long a pass takes.", context_settings=HELP)
def plan(
    folder: Annotated[
        Path,
        typer.Argument(
            metavar="DIR",
            show_default=False,
            help="The folder of a model: config.json and *.safetensors, in shards or not.",
        ),
    ],
    device: Annotated[
        str, typer.Option(metavar="SIZE", help='Of the device\'s memory, such as 24GB; "auto" is what is free now.')
    ] = "auto",
    host: Annotated[str, typer.Option(metavar="SIZE", help='Of the host\'s memory; "auto" is half of it.')] = "auto",
    disk: Annotated[
        Path | None,
        typer.Option(
            metavar="PATH", show_default=False, help="A folder on a disk for what changes. Weights are read in DIR."
        ),
    ] = None,
    compute: Annotated[
        float | None,
        typer.Option(metavar="SECONDS", min=0, show_default=False, help="How long a pass computes if it never waits."),
    ] = None,
    on: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            show_default=False,
            help="The device: npu, cuda:1, cpu. [default: the best one; with a size, a card]",
        ),
    ] = None,
    chip: Annotated[
        str | None,
        typer.Option(
            metavar="CHIP",
            autocompletion=chip_names,
            show_default=False,
            help="Plan for this chip, such as 910B3, which need not be here.",
        ),
    ] = None,
    reserve: Annotated[str, typer.Option(metavar="SIZE", help="Of the device's budget, kept for activations.")] = "0",
    as_json: Annotated[bool, typer.Option("--json", help="The same facts as JSON, sizes in bytes.")] = False,
    svg: Annotated[Path | None, typer.Option(metavar="FILE", help="Write the picture as SVG; - is stdout.")] = None,
) -> None:
    """Plan a pass through a model: what stays on the device, what is streamed, how fast that can be. Nothing is moved.

    Groups and their order are taken from the names of layers. Links are measured where the tier is here, in about two
    seconds; the rest is a chip's figures or an estimate, and is called so. The exit status is 2 where the model cannot
    fit; the message has the sizes that would do.
    """
    from toprope.sizes import parse_size
    from toprope.terminal import say, show
    from toprope.tiers.plan import plan as made_of
    from toprope.tiers.plan.budgets import resolve
    from toprope.tiers.plan.layout import read_layout
    from toprope.tiers.plan.links import measure
    from toprope.tiers.plan.report import as_dict, table

    if as_json and str(svg) == "-":
        raise UsageError("--json and --svg - both write to stdout.", do="give --svg the name of a file")
    if chip is not None and on is not None:
        raise UsageError("--chip and --on are two devices.", do="leave one out")
    layout = read_layout(folder)
    if disk is not None and not disk.is_dir():
        raise UsageError(f"{disk} is no folder.", do="name a folder on the disk that is to be used")
    here = None if chip is not None else _device(on)
    if here is not None and on is None and device != "auto" and not here.capabilities.separate_memory:
        here = None  # a size for a card that this machine has not
    known = _chip(chip, here)
    free = _free(here, known, disk or folder)
    budgets = resolve(free, device, host, "auto", reserve=0 if reserve == "0" else parse_size(reserve))
    largest = max({each.file for each in layout.tensors.values()}, key=os.path.getsize)
    speeds = measure(here, chip=known, model=largest, disk=disk)
    seconds = layout.bytes / speeds.device_memory.bytes_per_second if compute is None else compute
    made = made_of(layout.computing(seconds), layout.order, budgets, speeds.links)
    if svg is not None:
        from toprope.tiers.plan.report import svg as draw

        _write(svg, draw(made, str(folder)))
    if as_json:
        facts = as_dict(made) | {
            "folder": str(folder),
            "said": layout.said,
            "dtypes": dict(layout.dtypes),
            "compute": "estimate" if compute is None else "given",
            "device_memory": {
                "bytes_per_second": speeds.device_memory.bytes_per_second,
                "word": speeds.device_memory.word,
            },
        }
        say(json.dumps(facts, ensure_ascii=False, indent=2) + "\n")
    elif str(svg) != "-":
        show(table(made, "estimate" if compute is None else "given", f"{layout.said}; nothing was moved"))


def _device(name: str | None) -> Device:
    from toprope import device as devices

    return devices.get(name)


def _chip(name: str | None, device: Device | None) -> Chip | None:
    from toprope import chips

    if name is not None:
        return chips.get(name)
    if device is not None and device.capabilities.simulated:
        return chips.get(device.name)
    return None


def _free(device: Device | None, chip: Chip | None, folder: Path) -> Free:
    import psutil

    from toprope.tiers.plan.budgets import Free

    host, disk = psutil.virtual_memory().available, shutil.disk_usage(folder).free
    if device is None:
        return Free(None if chip is None else chip.usable_bytes, host, disk)
    return Free(device.memory().free, host, disk, unified=not device.capabilities.separate_memory)


def _write(path: Path, text: str) -> None:
    if str(path) == "-":
        sys.stdout.write(text)
        return
    write_named(path, text)
