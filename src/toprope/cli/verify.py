"""`toprope verify`: a program that measures a card, and the comparison of its file with toprope's tables.

The program that users run on a card is `estimate/measured/verify_card.py`, which `verification.program` fills with a
chip and a release; the comparison is `estimate.measured.verification`, rates are stored by `cli.calibrate`. Exit status
1 (the tables disagree with the card) is an interface, as is --json. Tests: tests/cli/test_cli_verify.py, whose tests
are slow ones.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from toprope.cli.calibrate import figures_table, store
from toprope.cli.group import HELP, chip_names, verb
from toprope.errors import UsageError
from toprope.whole_file import write_named

if TYPE_CHECKING:
    from toprope.chips import Chip
    from toprope.estimate.measured.verification import Finding, Measured

__all__ = ["app"]

app = verb()

NAME = Path("verify_card.py")


@app.command(context_settings=HELP)
def verify(
    output: Annotated[
        Path | None, typer.Argument(metavar="[FILE.py]", show_default="verify_card.py", help="The program to write.")
    ] = None,
    read: Annotated[
        Path | None,
        typer.Option("--read", metavar="FILE.json", show_default=False, help="Compare what the program found."),
    ] = None,
    chip: Annotated[
        str | None,
        typer.Option(
            metavar="CHIP",
            autocompletion=chip_names,
            show_default=False,
            help="Whose refusals are tried [910B3]; with --read the chip that was measured, else the one in the file.",
        ),
    ] = None,
    torch_npu: Annotated[
        str | None,
        typer.Option(
            metavar="VERSION", show_default=False, help="Release of torch_npu whose fallbacks are tried. [the newest]"
        ),
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Write FILE.py where there is one already.")] = False,
    keep: Annotated[
        bool, typer.Option("--store", help="With --read: fit the rates of estimates to the times, and store them.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="With --read: the same facts as JSON.")] = False,
) -> None:
    """Write one Python file that measures a card in about five minutes; compare what it found with toprope's tables.

    The file needs torch and torch_npu alone, and writes a JSON file without names of users, machines and folders.
    With --read the exit status is 1 where toprope's tables disagree with the card. More: toprope explain calibrate.
    """
    from toprope import chips

    if read is None:
        if keep or as_json:
            raise UsageError("--store and --json go with --read.", do="toprope verify --read FILE.json")
        _write(output or NAME, chips.get(chip or "910B3"), torch_npu, overwrite=overwrite)
        return
    if output is not None or torch_npu is not None or overwrite:
        raise UsageError("--read reads, and writes no program.", do="leave FILE.py, --torch-npu and --overwrite out")
    raise typer.Exit(_read(read, chip, keep=keep, as_json=as_json))


def _write(path: Path, chip: Chip, torch_npu: str | None, *, overwrite: bool) -> None:
    """Write the measuring program for a chip and a release of torch_npu."""
    from toprope.estimate.measured.verification import program
    from toprope.support.operators_on_card import find_release
    from toprope.terminal import say

    release = find_release(torch_npu)
    if path.exists() and not overwrite:
        raise UsageError(
            f"{path} is there already.", do="name another file: toprope verify FILE.py; or add --overwrite"
        )
    write_named(path, program(chip, release))
    say(
        f"wrote {path}: it tries refusals of the {chip.name} and fallbacks of {release.text}\n"
        f"on the machine with the card: python {path.name}\n"
        "then: toprope verify --read verify_card.json\n"
    )


def _read(path: Path, chip: str | None, *, keep: bool, as_json: bool) -> int:
    """Compare a file that the measuring program wrote with toprope's tables; return the exit status."""
    from toprope import chips
    from toprope.estimate.cost.rates import rates_of, shipped_rates
    from toprope.estimate.measured.verification import compare, differing, fitted, queue_factors, read_measured
    from toprope.terminal import say, show

    measured = read_measured(path)
    seen = str(measured.facts.get("chip", ""))
    if not chip and not seen:
        raise UsageError(f"{path} does not say which chip was measured.", do="name it: --chip 910B3")
    known = chips.get(chip or seen)
    rates_here = rates_of(known)
    findings = compare(measured, known, rates_here)
    wrong = differing(findings)
    rates = any(each.part in ("time", "launch", "copy") for each in wrong)
    made = fitted(measured, shipped_rates(known)) if keep else None
    stored, where = None, ""
    if made is not None:
        stored, where = store(made, path.name, None, queue_factors(measured, shipped_rates(known)))
    if as_json:
        facts = {
            "chip": known.name,
            "card": dict(measured.facts),
            "simulated": measured.simulated,
            "stopped": measured.stopped,
            "failed_parts": dict(measured.parts),
            "missing_parts": dict(measured.missing),
            "findings": [asdict(each) for each in findings],
            "differs": len(wrong),
            "stored": where,
        }
        say(json.dumps(facts, ensure_ascii=False, indent=2) + "\n")
        return int(bool(wrong))
    show(*_report(path, known, measured, findings), *filter(None, [rates_here.not_used]))
    if made is not None:
        show("", figures_table(made), f"stored in {where}" if stored is not None else "nothing was stored")
    elif rates:
        show(f"to have estimates for the {known.name} rest on these times: toprope verify --read {path} --store")
    return int(bool(wrong))


def _report(path: Path, chip: Chip, measured: Measured, findings: Sequence[Finding]) -> list[Any]:
    """Lay out the comparison: the card, then each finding with its figures."""
    from toprope.estimate.measured.verification import differing
    from toprope.terminal import table

    versions = ", ".join(f"{name} {measured.facts[name]}" for name in ("torch", "torch_npu", "cann", "driver")
                         if measured.facts.get(name))  # fmt: skip
    items: list[Any] = [f"{chip.name} in {path}: {versions}"]
    if measured.simulated:
        items.append("a simulated card: its times are this machine's, so everything but times is compared")
    if measured.stopped:
        items.append(f"it was {measured.stopped}: the rest is missing")
    not_compared = {**measured.parts, **measured.missing}
    items += [f"part {part}: {why}" for part, why in not_compared.items()]
    counts: Counter[tuple[str, str]] = Counter((each.part, each.verdict) for each in findings)
    parts = list(dict.fromkeys(each.part for each in findings))
    verdicts = ("agrees", "differs", "not compared")
    if parts:
        rows = [(part, *(str(counts[part, verdict]) for verdict in verdicts)) for part in parts]
        items += ["", table(rows, ("table", *verdicts), right={1, 2, 3})]
    wrong = differing(findings)
    if wrong:
        rows = [(each.what, each.ours, each.measured, each.where) for each in wrong]
        items += ["", table(rows, ("differs", "toprope", "measured", "where"), wrapped={1, 2, 3})]
    items.append("")
    items.append(f"{sum(each.verdict == 'agrees' for each in findings)} entries agree")
    nothing = "nothing differs" if not not_compared else "nothing differs of what was measured"
    items.append(f"{len(wrong)} entries of toprope's tables differ from this card" if wrong else nothing)
    return items
