"""`toprope run`: a program on a simulated or a real card, with the foreign modules importable, and a report.

Only the order of a run is here: `cli.launch` chooses the card and starts the program, `toprope.compat` and
`toprope.sim` act in its processes, `cli.reports` says what happened. The order matters: whatever can be wrong is an
error before the program starts, and the folder of the run, which holds all records, is read before it is removed.
Options and exit statuses are an interface for users (docs/run.md); the program's own status comes first.

Tests: tests/cli/test_run.py, tests/cli/test_run_card.py, tests/cli/test_rehearsal_file.py, tests/cli/test_wrong_use.py,
and tests/compat/test_compat_cuda.py for --from and --trace-cuda.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from typer.core import TyperCommand

from toprope.cli.group import chip_names, verb
from toprope.cli.launch.select_target import Choice, DeviceOption, choose
from toprope.errors import EnvironmentProblem, UsageError

if TYPE_CHECKING:
    from toprope.functions.deployment.start_options import Deployment
    from toprope.sim.rehearsal.facts import Trouble

__all__ = ["app"]


class RunCommand(TyperCommand):
    """Stops reading options at PROGRAM, and takes `-m` for the beginning of PROGRAM."""

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """The words after `toprope run` in the usage line."""
        return ["[OPTIONS]", "PROGRAM [ARGS]..."]

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Set `--` before PROGRAM, so that what follows is the program's."""
        takes_value = {name for option in self.params for name in option.opts if not getattr(option, "is_flag", True)}
        args, place = list(args), 0
        while place < len(args) and args[place].startswith("-") and args[place] not in ("-", "--"):
            if args[place].startswith("-m"):
                break
            if args[place] == "--check-cores":  # its value is optional, and only a `=` gives it
                args[place] = "--check-cores=D0b"
            place += 2 if args[place] in takes_value else 1
        if place >= len(args) > 1 and args[-2] in takes_value and not ctx.resilient_parsing:
            ctx.fail(f"Missing argument 'PROGRAM': {args[-1]} is the value of {args[-2]}.")
        if place < len(args) and args[place] != "--":
            args = [*args[:place], "--", *args[place:]]
        return super().parse_args(ctx, args)


app = verb()


@app.command(
    cls=RunCommand,
    options_metavar="[OPTIONS]",
    context_settings={"help_option_names": ["-h", "--help"], "allow_interspersed_args": False},
)
def run(
    program: Annotated[
        list[str],
        typer.Argument(
            metavar="PROGRAM",
            show_default=False,
            help="A Python file, -m MODULE, or a command, with its own arguments.",
        ),
    ],
    device: Annotated[
        DeviceOption | None,
        typer.Option(
            help="auto: a real card, else the simulated one. npu: a real card or an error. sim: the simulated card "
            "even if there is a real one. cuda, cpu: no simulated card. [default: auto]",
        ),
    ] = None,
    chip: Annotated[
        str | None,
        typer.Option(
            metavar="CHIP", autocompletion=chip_names, help="Chip of the simulated card, such as 910B3; implies sim."
        ),
    ] = None,
    count: Annotated[int | None, typer.Option(metavar="N", help="Number of simulated cards. [default: 1]")] = None,
    hbm: Annotated[
        str | None,
        typer.Option(metavar="SIZE", help="Memory of a simulated card, such as 256MB. [default: the chip's own]"),
    ] = None,
    torch_npu: Annotated[
        str | None,
        typer.Option(
            metavar="VERSION",
            help="Release of torch_npu that decides which operators fall back to the host, such as 2.7.1.post2; "
            "implies sim. [default: the newest for the installed torch]",
        ),
    ] = None,
    numerics: Annotated[
        str | None,
        typer.Option(
            metavar="card",
            help="Compute products and convolutions of float32 as the cube units do (HF32, where the program's "
            "settings allow it); implies sim. [default: as the host does]",
        ),
    ] = None,
    trace: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Record what the program and its children do to the simulated card, as a Chrome trace for Perfetto.",
        ),
    ] = None,
    check_cores: Annotated[
        Literal["D0", "D0b", "D1", "D2"] | None,
        typer.Option(
            "--check-cores",
            metavar="[=D0|D0b|D1|D2]",
            help="Then check whether its streams can deadlock for cores. The exit status is the program's if it is not "
            "0, else as of toprope cores check --fail-on D0b, or the discipline given.",
        ),
    ] = None,
    written_for: Annotated[
        str | None,
        typer.Option(
            "--from", metavar="cuda", help="The program is written for CUDA: take it for the device, for a first look."
        ),
    ] = None,
    trace_cuda: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="As --from cuda, and record what reached torch of CUDA, with its stacks, as JSON."
        ),
    ] = None,
    report_to: Annotated[
        list[str] | None,
        typer.Option(
            "--report",
            metavar="FILE.html|FILE.json|-",
            help="Also write what the real card would do with the program, with lines: a page, JSON (`-`: on stdout, "
            "after what the program writes). Can be given several times.",
        ),
    ] = None,
    fail_on: Annotated[
        str | None,
        typer.Option(
            metavar="KIND,...",
            help="Exit status 1 where the program's is 0 and the card has such a trouble: host, refused, memory, "
            "sync-in-loop.",
        ),
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No report.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="The report as one line of JSON.")] = False,
) -> None:
    """Run PROGRAM where Ascend exists: on a real card or on a simulated one, with torch_npu importable.

    The exit status is the program's. The report goes to stderr. More: toprope explain run.
    """
    if quiet and as_json:
        raise UsageError("--quiet and --json contradict each other.", do="leave out one of them")
    if written_for not in (None, "cuda"):
        raise UsageError(f"--from {written_for} is not known.", do="--from cuda is what there is")
    # imported here: `toprope run --help` needs none of it
    from toprope.cli.launch import card_build
    from toprope.cli.launch.child_process import end_as
    from toprope.cli.launch.detect import probe
    from toprope.cli.launch.program import command_line
    from toprope.cli.reports import rehearsal_file, run_cores, trace_file
    from toprope.functions.deployment import state_file
    from toprope.settings import Settings
    from toprope.tiers.modes.names import asked_for

    command = command_line(program)
    asked_for(os.environ)  # a value that names no mode is an error before anything starts
    begun = state_file.read()
    settings = Settings.load()
    choice = choose(
        device, chip=chip, count=count, hbm=hbm, settings=settings, probe=probe,
        begun=begun.sim if begun is not None else "", torch_npu=torch_npu, numerics=numerics,
    )  # fmt: skip
    if trace is not None:
        trace_file.check(trace, choice)
    if trace_cuda is not None:
        trace_file.try_file(trace_cuda)
    if check_cores is not None:
        run_cores.check(choice)
    troubles = rehearsal_file.check(report_to or (), fail_on, choice)
    if choice.spec is not None:
        card_build.ensure(quiet=quiet)
    status, report = _run(
        command, choice, trace, begun if choice.begun else None, written_for == "cuda", trace_cuda,
        log="" if settings.origins["log"] == "default" else settings.log, check_cores=check_cores,
        as_json=as_json, quiet=quiet, report_to=report_to or (), troubles=troubles,
    )  # fmt: skip
    if report:
        try:
            sys.stderr.write(report)
            sys.stderr.flush()
        except OSError:
            pass  # nobody listens any more; the program's exit status still counts
    raise typer.Exit(end_as(status))


def _write_trace_cuda(path: Path, text: str) -> str:
    """Write the file of --trace-cuda, and return what there is to say about it on stderr."""
    from toprope.cli.reports.trace_file import failure
    from toprope.whole_file import writing_named

    try:
        with writing_named(path) as file:
            file.write(text.encode())
    except OSError as error:
        return failure(path, error.strerror or type(error).__name__)
    return ""


def _without_effect(choice: Choice) -> tuple[str, ...]:
    """A note where TORCH_NPU_FALLBACK_CPU_DISABLE asks for what the release of torch_npu does not know."""
    from toprope.messages import Message
    from toprope.sim.installation.host_operators import DISABLE
    from toprope.support.operators_on_card import find_release

    if choice.spec is None or os.environ.get(DISABLE, "").strip() != "1":
        return ()
    release = find_release(choice.spec.torch_npu)
    return (
        ()
        if release.can_refuse
        else (
            Message(
                "{variable}=1 has no effect in {release}, which does not know it",
                variable=DISABLE,
                release=release.text,
            ),
        )
    )


def _run(
    command: list[str],
    choice: Choice,
    trace: Path | None,
    begun: Deployment | None,
    from_cuda: bool,
    trace_cuda: Path | None,
    *,
    log: str,
    check_cores: str | None,
    as_json: bool,
    quiet: bool,
    report_to: Sequence[str],
    troubles: tuple[Trouble, ...],
) -> tuple[int, str]:
    """Run the program, and give the exit status and what is to be written to stderr."""
    from toprope.cli import npu_smi, yr
    from toprope.cli.launch.child_process import environment_for, make_toolkit, run_program
    from toprope.cli.reports import rehearsal_file, run_cores, trace_file
    from toprope.cli.reports.failure import read_fatal_errors
    from toprope.cli.reports.run_report import Outcome, as_json_line, as_text
    from toprope.compat import cuda, run_remarks
    from toprope.compat.cuda_sites import merge
    from toprope.device.host.software import installed_version
    from toprope.functions.deployment.state_file import join_cards
    from toprope.sim.metrics.counters import read_run
    from toprope.sim.rehearsal.module_numbers import read_run as read_deviations
    from toprope.sim.rehearsal.record_file import read_run as read_records
    from toprope.sim.tracing.timing import of_run as times_of_run
    from toprope.terminal import columns, wants_colour
    from toprope.visible_devices import VARIABLE

    folder = tempfile.mkdtemp(prefix="toprope-run-")
    try:
        if choice.spec is not None:
            npu_smi.install(Path(folder), choice.spec)
            make_toolkit(Path(folder))
        if begun is not None:
            join_cards(Path(folder), begun)
        yr.install(Path(folder))
        environment = environment_for(
            choice, os.environ, folder, real_installed=installed_version() is not None,
            trace=trace is not None or check_cores is not None,
            smallest=rehearsal_file.smallest(quiet, report_to, troubles),
        )  # fmt: skip
        if log:
            environment["TOPROPE_LOG"] = log
        if from_cuda or trace_cuda is not None:
            environment["TOPROPE_FROM_CUDA"] = "1"
        if trace_cuda is not None:
            environment["TOPROPE_TRACE_CUDA"] = folder
        start = time.monotonic()
        status = run_program(command, environment)
        seconds = time.monotonic() - start
        written = None if trace is None else trace_file.write(trace, Path(folder))
        lost = trace_file.failure(trace, written.error) if trace and written and written.error and quiet else ""
        cores = run_cores.of_run(Path(folder), choice, check_cores) if check_cores is not None else None
        told = run_remarks.read(Path(folder)) + _without_effect(choice)
        if from_cuda or trace_cuda is not None:
            told += (cuda.NOTE,)
        if trace_cuda is not None:
            lost += _write_trace_cuda(trace_cuda, json.dumps(merge(Path(folder)), indent=1) + "\n")
        processes = tuple(read_run(Path(folder)))
        outcome = Outcome(
            choice, seconds, status, processes, written, told,
            environment.get(VARIABLE), cores, read_fatal_errors(Path(folder)), os.getcwd(),
            read_records(Path(folder), {one.pid: one.sampled for one in processes}), times_of_run(Path(folder)),
            *read_deviations(Path(folder)),
        )  # fmt: skip
    finally:
        # a process that outlives the program keeps its mapping and loses nothing
        shutil.rmtree(folder, ignore_errors=True)
    if cores is not None and not status:
        status = cores.exit_status
    lost += rehearsal_file.write(report_to, outcome)
    found = "" if status else rehearsal_file.failures(outcome, troubles)
    if found:
        status = 1
    if not status and (lost or (written is not None and written.error)):
        status = EnvironmentProblem.exit_status  # what was asked for is not there
    text = lost
    if quiet:
        text = run_cores.reason(cores) + text
    else:
        text = (
            as_json_line(outcome)
            if as_json
            else as_text(outcome, width=columns(sys.stderr), colour=wants_colour(sys.stderr))
        ) + text
    return status, text + found
