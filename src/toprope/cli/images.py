"""`toprope images`: commands for models to try editing with.

The models are written by `images.demo` and `images.tiny`; keys of --json and the names of the families are an
interface, the sentences are free. Tests: tests/images/test_images_cli.py, tests/images/test_images_demo.py,
tests/cli/test_wrong_use.py.
"""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Annotated

import typer

from toprope.cli.group import HELP, group

__all__ = ["app"]

_EXAMPLE = "example.png"

app = group()


@app.callback()
def _images() -> None:
    """Editing pictures by instruction: toprope edit, toprope ui, and what belongs to them.

    More: toprope explain images.
    """


@app.command(short_help="Write a small trained model that follows three instructions.", context_settings=HELP)
def demo(
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", show_default=False, help="Where to; it must be empty, or not there yet.")
    ],
    as_json: Annotated[bool, typer.Option("--json", help="The same facts as JSON.")] = False,
) -> None:
    """Write the demo model: a trained InstructPix2Pix of less than 2 MB, for pictures of 64 x 64.

    It follows three instructions on drawn scenes; other instructions should change nothing. DIR also gets a scene to
    edit, example.png.
    """
    from toprope.images.demo import EDITS, write
    from toprope.images.demo.copying import EXAMPLE

    _wrote(write(folder), folder / EXAMPLE, "the demo model, trained", list(EDITS), {}, as_json)


@app.command(short_help="Write a tiny model with random weights, in the layout of a real one.", context_settings=HELP)
def tiny(
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", show_default=False, help="Where to; it must be empty, or not there yet.")
    ],
    family: Annotated[
        str, typer.Option(metavar="NAME", help="hidream-e1, hidream-e1-full, ip2p, ip2p-xl, kontext.")
    ] = "ip2p",
    seed: Annotated[int, typer.Option(metavar="N", min=0, help="Of the weights.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="The same facts as JSON.")] = False,
) -> None:
    """Write a tiny model to try everything with, offline and in a minute. Its pictures are noise.

    The weights are random; layout, loading and everything that is done with it are those of real models. DIR also gets
    a picture to edit, example.png.
    """
    from toprope.cli.libraries import quiet_libraries

    quiet_libraries()
    from toprope.images.example import picture
    from toprope.images.tiny import write

    write(family, folder, seed=seed)
    example = folder / _EXAMPLE
    picture().save(example)
    facts = {"family": family, "seed": seed}
    about = f"a tiny {family} model with random weights: its pictures are noise"
    _wrote(folder, example, about, ["make it snow"], facts, as_json)


def _wrote(
    folder: Path, example: Path, about: str, instructions: list[str], facts: dict[str, object], as_json: bool
) -> None:
    """Print what was written, and a command for each instruction."""
    from toprope.sizes import decimal
    from toprope.terminal import say

    size = sum(each.stat().st_size for each in folder.rglob("*") if each.is_file())
    if as_json:
        facts = {"folder": str(folder), **facts, "bytes": size, "example": str(example)}
        say(json.dumps(facts | {"instructions": instructions}, ensure_ascii=False, indent=2) + "\n")
        return
    say(f"wrote {folder}: {about}, {decimal(size)}\n")
    model, image = shlex.quote(str(folder)), shlex.quote(str(example))
    for instruction in instructions:
        say(f'try it: toprope edit --model {model} --image {image} --instruction "{instruction}"\n')
