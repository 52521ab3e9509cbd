"""`toprope edit`: pictures edited by instruction, one or many, each with the record that repeats it.

Options and exit statuses; the work is in `cli.editing` (jobs, execution, console) and `toprope.images`. A knob that is
added to `images.request` needs an option here, and a row in docs/images.md. Statuses: 1 where a picture failed, 128
plus the signal where one stopped the run. Tests: tests/images/test_images_cli.py, tests/images/test_images_masks.py
(--repeat), tests/images/test_images_cards.py for --cards.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from toprope.cli.group import verb
from toprope.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from toprope.cli.editing.console import Console
    from toprope.images.runs.jobs import Job, Summary
    from toprope.images.runs.output import Output

__all__ = ["app"]

app = verb()


@app.command(context_settings={"help_option_names": ["-h", "--help"]})
def edit(
    model: Annotated[
        Path | None, typer.Option(metavar="DIR", show_default=False, help="The folder that a pipeline was saved to.")
    ] = None,
    image: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PATH", show_default=False, help='A picture, a folder, or "*.png"; can be given several times.'
        ),
    ] = None,
    instruction: Annotated[
        str | None, typer.Option(metavar="TEXT", show_default=False, help='Such as "make it snow".')
    ] = None,
    jobs: Annotated[
        str | None,
        typer.Option(metavar="FILE", show_default=False, help="File of edits, one JSON object per line; - is stdin."),
    ] = None,
    repeat: Annotated[
        str | None,
        typer.Option(
            metavar="FILE", show_default=False, help="Repeat an edit, from its picture or the .json next to it."
        ),
    ] = None,
    out_dir: Annotated[Path, typer.Option(metavar="DIR", help="Folder for results; no file is overwritten.")] = Path(
        "out"
    ),
    format: Annotated[str, typer.Option(metavar="NAME", help="png, jpg or webp.")] = "png",
    resume: Annotated[bool, typer.Option("--resume", help="Skip jobs whose results are in --out-dir.")] = False,
    negative: Annotated[
        str | None, typer.Option(metavar="TEXT", show_default=False, help="What the result must not show.")
    ] = None,
    steps: Annotated[
        int | None, typer.Option(metavar="N", show_default=False, help="Number of denoising steps.")
    ] = None,
    guidance: Annotated[
        float | None, typer.Option(metavar="X", show_default=False, help="How closely the instruction is followed.")
    ] = None,
    image_guidance: Annotated[
        float | None, typer.Option(metavar="X", show_default=False, help="How closely the picture is followed.")
    ] = None,
    refine_strength: Annotated[
        float | None,
        typer.Option(metavar="X", show_default=False, help="Part of the steps that the base does, 0 to 1."),
    ] = None,
    cfg_norm: Annotated[
        bool | None,
        typer.Option("--cfg-norm/--no-cfg-norm", show_default=False, help="Bound the guidance."),
    ] = None,
    seed: Annotated[
        str | None,
        typer.Option(metavar="N", show_default=False, help="0 to 2**64 - 1, or random (-1 too). [default: random]"),
    ] = None,
    num_images: Annotated[
        int | None,
        typer.Option(metavar="N", show_default=False, help="Pictures of each edit, with seeds N, N + 1, ..."),
    ] = None,
    size: Annotated[
        str | None,
        typer.Option(metavar="NAME", show_default=False, help="Size that the model sees: model, 768, 1m, keep."),
    ] = None,
    max_pixels: Annotated[
        int | None, typer.Option(metavar="N", show_default=False, help="Largest number of pixels that the model sees.")
    ] = None,
    fit: Annotated[
        str | None, typer.Option(metavar="NAME", show_default=False, help="Fit into that size by: stretch, crop, pad.")
    ] = None,
    generator_device: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", show_default=False, help="Where noise is drawn: cpu, the same everywhere; device."
        ),
    ] = None,
    sampler: Annotated[
        str | None,
        typer.Option(metavar="NAME", show_default=False, help="ddim, dpm++, euler, euler-a, lcm or unipc."),
    ] = None,
    mask: Annotated[
        str | None,
        typer.Option(metavar="PATH", show_default=False, help="A picture of the same size: white may change."),
    ] = None,
    mask_feather: Annotated[
        int | None,
        typer.Option(metavar="N", show_default=False, help="Pixels over which the mask's edge is blended, inwards."),
    ] = None,
    like: Annotated[
        str | None,
        typer.Option(metavar="NAME", show_default=False, help="authors: like the scripts of the model's authors."),
    ] = None,
    device: Annotated[str, typer.Option(metavar="NAME", help="Such as npu:1, cuda, cpu. [default: the best]")] = "",
    dtype: Annotated[str, typer.Option(metavar="NAME", help="auto, bf16, fp16 or fp32.")] = "auto",
    memory: Annotated[
        str, typer.Option(metavar="RUNG", help="auto, none, vae, encoders-4bit, encoders, tiers or tiers-least.")
    ] = "auto",
    lora: Annotated[
        list[str] | None,
        typer.Option(metavar="PATH[:SCALE]", show_default=False, help="A LoRA to edit with; may be repeated."),
    ] = None,
    refiner: Annotated[
        str, typer.Option(metavar="WHO", help="Model that rewrites instructions: openai:URL, local:DIR or none.")
    ] = "none",
    host_operators: Annotated[
        bool,
        typer.Option("--host-operators", help="Run operators that the device refuses on the host, with a warning."),
    ] = False,
    full_hashes: Annotated[
        bool, typer.Option("--full-hashes", help="Records have the SHA-256 of whole files of weights.")
    ] = False,
    attention: Annotated[
        str, typer.Option(metavar="NAME", help="auto: the NPU's fused operator where it is there; torch: torch's own.")
    ] = "auto",
    sources: Annotated[
        bool, typer.Option("--sources/--no-sources", help="Keep the edited pictures in --out-dir too.")
    ] = True,
    at_once: Annotated[
        int, typer.Option(metavar="N", min=1, help="Pictures of one size that go through the model at once.")
    ] = 1,
    cards: Annotated[
        int, typer.Option(metavar="N", min=1, help="Spread the jobs over N cards, with a model on each.")
    ] = 1,
    as_json: Annotated[bool, typer.Option("--json", help="A line of JSON for each job.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print the pictures' paths, and what failed.")] = False,
) -> None:
    """Edit pictures by instruction. Each result lies in --out-dir with a .json that has everything to repeat it.

    A knob that is left out is the model's own. A picture that fails stops no other: the exit status is 1 then, and
    --resume does what is not done. Ctrl-C stops after the step that runs. More: toprope explain images.
    """
    given = {
        "negative": negative, "steps": steps, "guidance": guidance, "image_guidance": image_guidance,
        "refine_strength": refine_strength, "cfg_norm": cfg_norm, "seed": _seed(seed), "num_images": num_images,
        "size": size, "max_pixels": max_pixels, "fit": fit, "generator_device": generator_device,
        "sampler": sampler, "like": like, "mask": None if mask is None else os.path.abspath(mask),
        "mask_feather": mask_feather,
    }  # fmt: skip
    knobs = {name: value for name, value in given.items() if value is not None}
    made_with: dict[str, Any] = {"loras": [_lora(each) for each in lora or []], "refiner": refiner}
    record = None
    if repeat is not None:
        record, model, dtype, made_with = _repeated(repeat, model, dtype, made_with)
    asked = _asked(record, image or [], instruction, jobs, knobs, os.path.dirname(os.path.abspath(repeat or "")))
    if model is None:
        raise UsageError("there is no model.", do="name the folder of one with --model")
    from toprope.cli.editing.console import Console
    from toprope.cli.editing.execution import run_here
    from toprope.cli.editing.jobs import refuse_knobs
    from toprope.cli.libraries import quiet_libraries
    from toprope.cli.stopping import Stopping
    from toprope.images.families import find
    from toprope.images.memory.fallback import rung
    from toprope.images.runs.cards import check_cards, run_on_cards
    from toprope.images.runs.jobs import Summary, number_jobs
    from toprope.images.runs.output import Output

    quiet_libraries()
    if memory != "auto":
        rung(memory)
    family, _ = find(model)
    refuse_knobs(family, asked)
    made_with["model"] = os.path.abspath(model)
    numbered = number_jobs(asked, made_with)
    output, summary = Output(out_dir, format, sources=sources), Summary(len(numbered))
    left = _left(numbered, output, summary) if resume else numbered
    options = {
        "device": device or None, "dtype": dtype, "memory": memory, "loras": made_with["loras"],
        "refiner": made_with["refiner"], "host_operators": host_operators, "full_hashes": full_hashes,
        "attention": attention,
    }  # fmt: skip
    if cards > 1:
        check_cards(cards, device or None)
    cards = max(1, min(cards, len(left)))  # one job is done here, where a record is compared
    console = Console(len(numbered), quiet=quiet, as_json=as_json, cards=cards)
    stopping = Stopping(console.say)
    folder = str(made_with["model"])
    with console, stopping:
        try:
            if left and cards > 1:
                console.stage(f"loading {folder} on {cards} cards")
                run_on_cards(
                    folder, options, left, output, console, cards=cards, summary=summary,
                    stopped=stopping.signal_name, ready=stopping.stop_at_safe_points, at_once=at_once,
                )  # fmt: skip
            elif left:
                run_here(
                    folder, options, left, output, console, summary=summary, stopping=stopping, at_once=at_once,
                    record=record,
                )  # fmt: skip
        except KeyboardInterrupt:
            summary.stopped = summary.stopped or stopping.signal_name() or "Ctrl-C"
    _conclude(summary, console, output, quiet=quiet)
    if summary.stopped:
        raise typer.Exit(stopping.exit_status)
    raise typer.Exit(int(summary.failed > 0))


def _asked(
    record: Mapping[str, Any] | None,
    image: Sequence[str],
    instruction: str | None,
    jobs: str | None,
    knobs: Mapping[str, Any],
    folder: str,
) -> list[Job]:
    """The jobs that the command line asks for, by one of three ways."""
    from toprope.cli.editing.jobs import from_file, from_pictures, pictures_in, to_repeat

    if record is not None:
        if jobs is not None:
            raise UsageError("--repeat and --jobs are two ways to ask for edits.", do="leave one out")
        changed = {**knobs, **({} if instruction is None else {"instruction": instruction})}
        return [to_repeat(record, pictures_in(image), changed, folder)]
    if jobs is not None:
        if image:
            raise UsageError("--jobs has its own pictures, and there is --image too.", do="leave one out")
        return from_file(jobs, {**knobs, **({} if instruction is None else {"instruction": instruction})})
    if not image or instruction is None:
        missing = "--image" if not image else "--instruction"
        raise UsageError(f"{missing} is missing.", do="give --image and --instruction, or --jobs, or --repeat")
    return from_pictures(pictures_in(image), instruction, knobs)


def _repeated(
    repeat: str, model: Path | None, dtype: str, made_with: dict[str, Any]
) -> tuple[dict[str, Any], Path | None, str, dict[str, Any]]:
    """A record, and from it the model, the dtype and the LoRAs where the command line has none."""
    from toprope.cli.editing.jobs import read_record

    record = read_record(repeat)
    engine = record.get("engine") or {}
    if model is None and engine.get("model"):
        model = Path(engine["model"])
        if not model.is_absolute():  # records in pictures and those of the page have no folders of their machine
            raise UsageError(
                f"the record names the model {model}, but not the folder that it is in.",
                looked_at=f"{repeat}; records in pictures, of the page and of the HTTP API have no folders",
                do="name its folder with --model",
            )
    if dtype == "auto" and engine.get("dtype"):
        dtype = str(engine["dtype"])
    if not made_with["loras"]:
        made_with = made_with | {"loras": [f"{each['path']}:{each['scale']}" for each in engine.get("loras") or []]}
    return record, model, dtype, made_with


def _left(jobs: Sequence[Job], output: Output, summary: Summary) -> list[Job]:
    """The jobs that no earlier run has done."""
    from toprope.images.runs.jobs import finished, undone
    from toprope.images.runs.output import hash_of

    done = finished(output.sidecars(), output.names())
    used = {path for job in jobs if job.key in done for path in (job.request.image, job.request.mask) if path}
    hashes = {path: found for path in used if (found := hash_of(path)) is not None}
    left = undone(jobs, done, hashes)
    summary.skipped = len(jobs) - len(left)
    return left


def _conclude(summary: Summary, console: Console, output: Output, *, quiet: bool) -> None:
    """The last line, where there is more to say than that one picture was written."""
    from toprope.images.runs.jobs import FAILED

    if quiet or (summary.jobs == 1 and summary.done):
        return
    again = "; --resume does the rest" if summary.left else ""
    if summary.failed and not again:
        again = f"; {output.folder}/*{FAILED} say why, and --resume tries those again"
    console.say(f"{summary.text()}; results are in {output.folder}{again}")


def _seed(text: str | None) -> int | str | None:
    if text is None or text == "random":
        return text
    try:
        return int(text)
    except ValueError:
        raise UsageError(f"--seed {text} is no seed.", do="give a whole number, or random") from None


def _lora(text: str) -> str:
    """A LoRA with its path made absolute; what follows the last colon may be its scale."""
    path, colon, scale = text.rpartition(":")
    if colon and not os.path.exists(text):
        return f"{os.path.abspath(path)}:{scale}"
    return os.path.abspath(text) if os.path.exists(text) else text
