"""`toprope calibrate`: rates of a chip, fitted again to a profile of a real card.

It reads, shows and writes; the fit is `toprope.estimate.measured.calibrate`, the vendor's files are read in
`measured.profiler_files`, the stored form is decided in `estimate.cost.stored`. `cli.verify` uses `store` and
`figures_table`. Options and keys of --json are an interface (docs/calibrate.md); tables and notes are free. Tests:
tests/cli/test_cli_calibrate.py.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from toprope.cli.group import HELP, chip_names, verb
from toprope.errors import UsageError

if TYPE_CHECKING:
    from toprope.chips import Chip
    from toprope.estimate.cost.stored import Figures, StoredRates
    from toprope.estimate.measured.calibrate import Calibration
    from toprope.estimate.measured.profiler_files import Profile

__all__ = ["app", "as_dict", "figures_table", "store"]

app = verb()


@app.command(context_settings=HELP)
def calibrate(
    path: Annotated[
        Path | None,
        typer.Argument(
            metavar="[PATH]",
            show_default=False,
            help="A folder *_ascend_pt or ASCEND_PROFILER_OUTPUT, a kernel_details.csv, msprof's op_summary_*.csv, or "
            "a file of rates (*.toml) that this command wrote elsewhere.",
        ),
    ] = None,
    chip: Annotated[
        str | None,
        typer.Option(
            metavar="CHIP",
            autocompletion=chip_names,
            show_default=False,
            help="The chip that was measured, such as 910B3.",
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(metavar="FILE", show_default=False, help="Write the rates to this file, and store nothing."),
    ] = None,
    forget: Annotated[bool, typer.Option("--forget", help="Remove the stored rates of --chip.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="The same facts as JSON, times in seconds.")] = False,
) -> None:
    """Fit the rates of estimates to a profile of a real card, and store them for that chip.

    Shown are the figures before and after with the number of kernels behind each, and predicted and measured times by
    type of operator. A figure that the profile does not determine keeps its value. Estimates for that chip then rest
    on the stored figures and say so. More: toprope explain calibrate.
    """
    if forget:
        if path is not None or output is not None or chip is None:
            raise UsageError("--forget takes a chip, and nothing else.", do="toprope calibrate --forget --chip 910B3")
        _forget(_chip(chip), as_json=as_json)
        return
    if path is None:
        raise UsageError("there is no PATH.", do="name what the profiler wrote: toprope calibrate FOLDER --chip 910B3")
    if path.suffix == ".toml":
        _install(path, chip, output, as_json=as_json)
        return
    from toprope.estimate.cost.rates import shipped_rates
    from toprope.estimate.measured.calibrate import calibrate as fitted
    from toprope.estimate.measured.calibrate import samples_of
    from toprope.estimate.measured.profiler_files import read_profile
    from toprope.terminal import say, show

    profile = read_profile(path)
    known = _chip_of(chip, profile)
    made = fitted(samples_of(profile.rows), shipped_rates(known), _launches(profile))
    stored, where = store(made, profile.file, output)
    if as_json:
        facts = {
            "file": profile.file,
            "kernels": len(profile.rows),
            **as_dict(made),
            "stored": where,
            "idle": profile.idle,
        }
        say(json.dumps(facts, ensure_ascii=False, indent=2) + "\n")
        return
    show(
        f"{known.name}: {len(profile.rows)} kernels of {profile.file}, measured; predictions are estimates",
        figures_table(made),
        "",
        _types_table(made),
        "",
        f"median error {made.error_before:.1%} before, {made.error_after:.1%} after",
        *_notes(made, profile, known),
        _where(stored, where),
    )


def _chip(name: str) -> Chip:
    from toprope import chips

    return chips.get(name)


def _chip_of(name: str | None, profile: Profile) -> Chip:
    """Find the chip of a profile: the one that the user names, else the only one with the profile's cores and clock."""
    from toprope import chips

    like = []
    if profile.clock is not None:
        found = (chips.get(each) for each in chips.names())
        like = [each for each in found if (each.cube_cores, each.cube_mhz) == profile.clock]
    if name is not None:
        return chips.get(name)
    if len(like) == 1:
        return like[0]
    seen = "nothing in the profile names it"
    if profile.clock is not None:
        chips_like = " or ".join(each.name for each in like) or "no chip that toprope knows"
        seen = f"info.json: {profile.clock[0]} cores of {profile.clock[1]} MHz, as {chips_like}"
    raise UsageError(
        "the chip is not known.", looked_at=seen, do="name it: --chip 910B3; npu-smi info says which it is"
    )


def _launches(profile: Profile) -> Any:
    """Time that launching takes: from gaps between kernels, else from the host's own times."""
    from toprope.estimate.measured.calibrate import LEAST_ROWS, Launches, launches_of

    found = launches_of(profile.rows)
    if found.rows.get("host", 0) >= LEAST_ROWS or profile.host_us is None:
        return found
    origin = "operator_details.csv: time inside operators, without Python's between them"
    seconds = {**found.seconds, "host": profile.host_us / 1e6}
    return Launches(seconds, {**found.rows, "host": profile.host_rows}, origin)


def store(
    made: Calibration, origin: str, output: Path | None, more: Figures | None = None
) -> tuple[StoredRates | None, str]:
    """Store fitted figures, and more, or write them to a file; with the file's path, "" where there are none."""
    from toprope.estimate.cost.stored import StoredRates, write

    if not made.fitted:
        return None, ""
    rates = StoredRates(made.chip, date.today().isoformat(), origin, made.fitted | (more or {}), made.rows)
    return rates, str(write(rates, output))


def figures_table(made: Calibration) -> Any:
    """The figures before and after as a table."""
    from toprope.terminal import table

    rows = [
        (
            each.name,
            "-" if each.before == float("inf") else f"{each.before:.4g}",
            f"{each.after:.4g}" if each.fitted else "kept",
            str(each.rows),
            each.why,
        )
        for each in sorted(made.figures, key=lambda each: (not each.fitted, each.name))
    ]
    return table(
        rows or [("-", "", "", "", "")], ("figure", "before", "after", "rows", "from"), right={1, 2, 3}, wrapped={4}
    )


def _types_table(made: Calibration) -> Any:
    from toprope.terminal import table

    rows = []
    for each in made.types:
        compared = () if each.unknown else (each.before, each.after)
        ratios = [f"{time / each.measured:.2f}" for time in compared] or ["-", "-"]
        rows.append((each.name, str(each.count), f"{each.measured * 1e3:.3f} ms", *ratios, each.unknown))
    header = ("operator", "count", "measured", "predicted/measured before", "after", "not compared")
    return table(rows, header, right={1, 2, 3, 4}, wrapped={5})


def _notes(made: Calibration, profile: Profile, chip: Chip) -> Iterator[str]:
    """Yield remarks on a calibration that looks doubtful, such as a figure above the chip's peak."""
    if profile.clock is not None and profile.clock != (chip.cube_cores, chip.cube_mhz):
        yield (
            f"info.json: {profile.clock[0]} cores of {profile.clock[1]} MHz; toprope's data of the {chip.name}: "
            f"{chip.cube_cores} of {chip.cube_mhz} MHz"
        )
    above = [each.name for each in made.figures if each.fitted and each.name.endswith("attained") and each.after > 1]
    if above:
        yield (
            f"{', '.join(above)}: above the peak of the {made.chip} in toprope's data: "
            "another chip, or a clock that is not the one there"
        )
    if any(each.name.startswith("launch.") and each.fitted for each in made.figures):
        yield "launch: with the profiler's own time on the host, and for TASK_QUEUE_ENABLE=1 (torch_npu's default)"
    if profile.idle is not None:
        yield f"the card had nothing to do for {profile.idle:.0%} of the steps (step_trace_time.csv)"


def _where(stored: StoredRates | None, where: str) -> str:
    if stored is None:
        return "nothing was stored: no figure was fitted"
    return f"stored in {where}; toprope calibrate --forget --chip {stored.chip} removes it"


def as_dict(made: Calibration) -> dict[str, Any]:
    """A calibration as JSON has it."""
    return {
        "chip": made.chip,
        "figures": [
            {
                "name": each.name,
                "before": None if each.before == float("inf") else each.before,
                "after": each.after,
                "rows": each.rows,
                "fitted": each.fitted,
                "why": each.why,
            }
            for each in made.figures
        ],
        "operators": [
            {
                "name": each.name,
                "count": each.count,
                "measured": each.measured,
                "before": None if each.unknown else each.before,
                "after": None if each.unknown else each.after,
                "not_compared": each.unknown,
            }
            for each in made.types
        ],
        "error_before": made.error_before,
        "error_after": made.error_after,
    }


def _install(path: Path, chip: str | None, output: Path | None, *, as_json: bool) -> None:
    """Store a file of rates that was written elsewhere."""
    from toprope.estimate.cost.rates import shipped_rates
    from toprope.estimate.cost.stored import read, write
    from toprope.terminal import say

    if output is not None:
        raise UsageError("a file of rates is stored, not written again.", do="leave --output out")
    rates = read(path, shipped_rates(_chip("910B3")).table)
    known = _chip(rates.chip)
    if chip is not None and _chip(chip).name != known.name:
        raise UsageError(f"{path} has the rates of the {known.name}, not of the {chip}.", do="leave --chip out")
    where = str(write(rates))
    if as_json:
        say(json.dumps({"chip": known.name, "figures": rates.figures, "stored": where}, indent=2) + "\n")
    else:
        say(f"{len(rates.figures)} figures of the {known.name} ({rates.basis})\n{_where(rates, where)}\n")


def _forget(chip: Chip, *, as_json: bool) -> None:
    from toprope.estimate.cost.stored import forget
    from toprope.terminal import say

    removed = forget(chip.name)
    if as_json:
        say(json.dumps({"chip": chip.name, "removed": None if removed is None else str(removed)}, indent=2) + "\n")
    elif removed is None:
        say(f"no rates of the {chip.name} were stored\n")
    else:
        say(f"removed {removed}: estimates for the {chip.name} rest on toprope's own figures again\n")
