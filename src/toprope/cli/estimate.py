"""`toprope estimate`: parameters, memory and time of a model on a chip, from its configuration alone.

Options and their checks; the estimate and its text are `toprope.estimate.model`. Every option must change the answer or
be refused: `_given` says which ones the user wrote. torch is imported only after all that can be wrong without it.
Tests: tests/cli/test_cli_estimate.py.
"""

from __future__ import annotations

import json
import re
from typing import Annotated, Any

import typer

from toprope.cli.group import HELP, chip_names, verb
from toprope.errors import UsageError
from toprope.messages import Message

__all__ = ["app"]

app = verb()

_COUNTING = Message("the model is made without weights, and its operators are counted")
_SHAPE = re.compile(r"(?:(\w+)=)?(\d+(?:,\d+)*)?(?::(\w+))?")


@app.command(context_settings=HELP)
def estimate(
    context: typer.Context,
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL",
            show_default=False,
            help="A folder with config.json (transformers, diffusers) or model_index.json, or one; or module:Class.",
        ),
    ],
    chip: Annotated[
        str,
        typer.Option(
            metavar="CHIP", autocompletion=chip_names, help="Such as 910B3; toprope explain chips lists them."
        ),
    ] = "910B3",
    mode: Annotated[
        str | None,
        typer.Option(
            metavar="MODE",
            show_default=False,
            help="forward, prefill, decode or train. [default: prefill for a language model, else forward]",
        ),
    ] = None,
    batch: Annotated[int, typer.Option(metavar="N", min=1, help="Sequences or pictures of one card.")] = 1,
    length: Annotated[
        int, typer.Option(metavar="N", min=1, help="Tokens of a sequence; of decode, in the cache.")
    ] = 2048,
    size: Annotated[str, typer.Option(metavar="WxH", help="Of a picture, in pixels.")] = "1024x1024",
    steps: Annotated[int, typer.Option(metavar="N", min=1, help="Passes of a pipeline's denoiser for a picture.")] = 30,
    dtype: Annotated[
        str, typer.Option(metavar="DTYPE", help="Of the weights: bfloat16, float16 or float32.")
    ] = "bfloat16",
    graph: Annotated[bool, typer.Option("--graph", help="A graph replays the operators; else eager mode.")] = False,
    queue: Annotated[int, typer.Option(metavar="N", min=0, max=2, help="TASK_QUEUE_ENABLE of torch_npu.")] = 1,
    checkpointing: Annotated[
        bool, typer.Option("--checkpointing", help="Training computes layers again in the backward pass.")
    ] = False,
    optimizer: Annotated[str, typer.Option(metavar="NAME", help="adamw, adamw-fused or sgd.")] = "adamw",
    master: Annotated[
        bool,
        typer.Option("--master-weights", help="The optimizer keeps weights, and gradients are summed, in float32."),
    ] = False,
    micro_batches: Annotated[int, typer.Option(metavar="N", min=1, help="Of a training step, each of --batch.")] = 1,
    experts: Annotated[
        str,
        typer.Option(
            metavar="HOW", help="loop or grouped. [default: loop as torch does it on a card; with --graph grouped]"
        ),
    ] = "",
    dp: Annotated[int, typer.Option(metavar="N", min=1, help="Copies of the model.")] = 1,
    tp: Annotated[int, typer.Option(metavar="N", min=1, help="Cards that share each layer.")] = 1,
    pp: Annotated[int, typer.Option(metavar="N", min=1, help="Stages of layers.")] = 1,
    ep: Annotated[int, typer.Option(metavar="N", min=1, help="Cards, of those of --dp, that share the experts.")] = 1,
    zero: Annotated[int, typer.Option(metavar="N", min=0, max=3, help="ZeRO among the cards of --dp; 3 as FSDP.")] = 0,
    inputs: Annotated[
        list[str] | None,
        typer.Option("--input", metavar="[NAME=]SHAPE:DTYPE", show_default=False, help="Such as 1,3,224,224:float32."),
    ] = None,
    kwargs: Annotated[
        str, typer.Option(metavar="JSON", show_default=False, help="Arguments of the class, for module:Class.")
    ] = "{}",
    as_json: Annotated[bool, typer.Option("--json", help="The same facts as JSON: bytes and seconds.")] = False,
) -> None:
    """Estimate what a model needs on a chip: parameters, memory at the peak, time of a step as a range.

    The model is made without weights (torch's meta device), and neither a card nor its memory is needed. Parallelism is
    on paper. More: toprope explain estimate.
    """
    from toprope import chips
    from toprope.estimate.model.layout import Layout
    from toprope.terminal import Display, say, show

    found = chips.get(chip)
    layout = Layout(dp, tp, pp, ep, zero, micro_batches)
    width, height = _size(size)
    arguments = _arguments(kwargs)
    shapes = dict(_input(number, text) for number, text in enumerate(inputs or ()))
    if experts not in ("", "loop", "grouped"):
        raise UsageError(f"there is no way {experts!r} to run experts.", do="write --experts loop or grouped")

    from toprope.estimate.model import (
        estimate as model_estimate,  # imports torch: after all that can be wrong without it
    )
    from toprope.estimate.model.text import text_of
    from toprope.estimate.model.workloads import MODES, OPTIMIZERS, Work

    wanted = next((each for each in MODES if each == mode), None)
    if mode is not None and wanted is None:
        raise UsageError(f"there is no mode {mode!r}.", do=f"one of {', '.join(MODES)}")
    if optimizer not in OPTIMIZERS:
        raise UsageError(f"there is no optimizer {optimizer!r}.", do=f"one of {', '.join(OPTIMIZERS)}")
    work = Work(
        wanted or "", batch, length, height, width, dtype, checkpointing, optimizer, master, graph, experts, shapes
    )  # fmt: skip
    with Display() as display:
        display.stage(_COUNTING)
        one = model_estimate.estimate(
            model,
            found,
            work,
            layout,
            steps=steps,
            arguments=arguments,
            queue=queue,
            given=_given(context),
        )
    if as_json:
        say(json.dumps(model_estimate.as_dict(one), ensure_ascii=False, indent=2) + "\n")
    else:
        show(text_of(one))


def _given(context: typer.Context) -> list[str]:
    """Names of the parameters that the user wrote."""
    sources = {name: context.get_parameter_source(name) for name in context.params}
    return [name for name, source in sources.items() if source is not None and source.name == "COMMANDLINE"]


def _size(text: str) -> tuple[int, int]:
    match = re.fullmatch(r"(\d+)(?:[x,](\d+))?", text)
    if match is None or int(match[1]) < 1 or int(match[2] or 1) < 1:
        raise UsageError(f"--size {text} is no size of a picture.", do="write width and height in pixels: 1024x768")
    return int(match[1]), int(match[2] or match[1])


def _arguments(text: str) -> dict[str, Any]:
    try:
        made = json.loads(text)
    except json.JSONDecodeError as error:
        raise UsageError(f"--kwargs is no JSON: {error}", do="""write such as '{"layers": 12}'""") from None
    if not isinstance(made, dict):
        raise UsageError("--kwargs has no names.", do="""write such as '{"layers": 12}'""")
    return made


def _input(number: int, text: str) -> tuple[str, tuple[tuple[int, ...], str]]:
    match = _SHAPE.fullmatch(text)
    dtype = match[3] or "float32" if match else ""
    known = ("float32", "float16", "bfloat16", "float64", "int64", "int32", "int16", "int8", "uint8", "bool")
    if match is None or not (match[2] or match[3]) or dtype not in known:
        raise UsageError(
            f"--input {text} is no shape.", do="write such as 1,3,224,224:float32 or input_ids=1,128:int64"
        )
    shape = tuple(int(each) for each in (match[2] or "").split(",") if each)
    return match[1] or str(number), (shape, dtype)
