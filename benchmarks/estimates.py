"""Estimates of a card's time next to what others measured: `python benchmarks/estimates.py [--rows] [--set NAME]`.

Reads benchmarks/measurements/operators.toml. A measurement whose chip is not named, only its family, is compared with
the range over all chips of that family. The form of a call is read by `call_of`.

Run by hand after a change of rates or formulas of `toprope.estimate`; docs/time.md has the table. The measurements are
other people's, each with its source: rows are added, never adapted, and nothing is fitted to the held-out set.

No test runs it; tests/project/test_benchmarks.py holds only that it is no part of `make bench`.
"""

import argparse
import math
import re
import statistics
import tomllib
from collections import defaultdict
from pathlib import Path

from toprope import chips
from toprope.estimate.cost.costs import cost_of
from toprope.estimate.cost.rates import UnknownRateError, rates_of
from toprope.estimate.cost.span import Span, seconds_text
from toprope.estimate.cost.timeline import Act, Timeline
from toprope.estimate.record.calls import OperatorCall, TensorShape

MEASUREMENTS = Path(__file__).parent / "measurements" / "operators.toml"
UNITS = {"us": 1e-6, "ms": 1e-3, "s": 1.0}
ALSO = {"910B2C": "910B1", "950DT_9582": "950DT", "950PR_9599": "950PR"}
"""Chips that toprope's data do not have, and the one that is nearest."""


def call_of(text):
    """Parse a call of the measurements: "mm(float16[2,3], float16[3,4]) -> float16[2,4] # 48"."""
    text, _, operations = text.partition(" # ")
    name, read, made = re.fullmatch(r"(\w+)\((.*)\) -> (.*)", text).groups()
    tensors = [
        TensorShape(dtype, tuple(int(size) for size in sizes.split(",") if size), role)
        for part, role in ((read, "read"), (made, "result"))
        for dtype, sizes in re.findall(r"(\w+)\[([\d,]*)\]", part)
    ]
    return OperatorCall(f"aten::{name}", tuple(tensors), int(operations or 0))


def chips_of(source):
    """The chips that a source may have measured: the one it names, else all of its family; none if unknown."""
    name = source.get("chip", "")
    if name:
        try:
            return [chips.get(ALSO.get(name, name))]
        except Exception:
            return []
    family = source.get("family", "")
    return [chip for chip in map(chips.get, chips.names()) if family and family in chip.family]


def time_of(chip, costs, row):
    """The estimate of a row on a chip, by the way that it was measured; and whether host or card sets the time."""
    rates = rates_of(chip)
    card = [rates.seconds(cost) for cost in costs]
    total = Span(*map(sum, zip(*card, strict=True)))
    if row["way"] in ("kernel", "graph"):
        return total, "card"
    loop = rates.table["launch"]["loop"]
    launches = [rates.launch(cost.kind).times(loop) for cost in costs]
    launches += [rates.launch().times(loop)] * row.get("launches_more", 0)
    host = Span(*map(sum, zip(*launches, strict=True)))
    if row["way"] == "queued":
        return host.longer(total), "host" if host.likely > total.likely else "card"
    acts = [Act("launch", host=each, card=span) for each, span in zip(launches, card, strict=False)]
    made = Timeline.of([*acts, Act("synchronise", host=rates.synchronise())]).total
    return made, "host" if total.likely < made.likely / 2 else "card"


def compared(sets):
    """Yield each measurement of these sets with its estimate: source, row, kind, bound, seconds measured, range."""
    for source in tomllib.loads(MEASUREMENTS.read_text(encoding="utf-8"))["source"]:
        known = chips_of(source) if source["set"] in sets else []
        for row in source["rows"] if known else ():
            if "calls" not in row:
                continue
            calls = [call_of(text) for text in row["calls"]]
            costs = [cost_of(call) for call in calls]
            measured = (
                row["value"] * UNITS[row["unit"]]
                if row["unit"] in UNITS
                else sum(cost.operations for cost in costs) / (row["value"] * 1e12)
            )
            try:
                found = [time_of(chip, costs, row) for chip in known]
            except UnknownRateError:
                continue
            spans = [span for span, _ in found]
            span = Span(
                min(each.low for each in spans),
                statistics.median(each.likely for each in spans),
                max(each.high for each in spans),
            )
            bound = "host" if any(each == "host" for _, each in found) else "card"
            kind = costs[0].kind if len(costs) == 1 else "several operators"
            yield source, row, kind, bound, measured, span


def summary(rows):
    """One line about rows: how many lie inside their range, the median error, the median width of a range."""
    inside = sum(span.low <= measured <= span.high for *_, measured, span in rows)
    errors = [abs(span.likely / measured - 1) for *_, measured, span in rows]
    widths = [span.ratio for *_, span in rows]
    return (
        f"{len(rows):4} measured, {inside / len(rows):4.0%} inside, median error {statistics.median(errors):4.0%}, "
        f"median width {statistics.median(widths):.2f}"
    )


def main():
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--set", action="append", help="fit, held-out or held-out 2; all of them by default")
    arguments.add_argument("--rows", action="store_true", help="each measurement")
    options = arguments.parse_args()
    sets = options.set or ["fit", "held-out", "held-out 2"]
    rows = list(compared(sets))
    if options.rows:
        for source, row, kind, _, measured, span in rows:
            mark = "  " if span.low <= measured <= span.high else "! "
            where = source.get("chip") or source["family"]
            print(
                f"{mark}{where:7} {kind:18} {seconds_text(measured):>9}  {span.text:20} "
                f"{span.likely / measured:5.2f}  {row['operator'][:40]}  {row['shapes'][:60]}"
            )
    for name in sets:
        groups = defaultdict(list)
        for one in rows:
            if one[0]["set"] == name:
                groups[one[3], one[2]].append(one)
                groups[one[3], "all"].append(one)
        print(f"{name}:")
        for (bound, kind), found in sorted(groups.items()):
            print(f"  bound by the {bound}, {kind:18} {summary(found)}")
    by_source = [
        statistics.median(math.log(span.likely / measured) for *_, measured, span in found)
        for found in _by_source(rows).values()
    ]
    print(f"median over sources of the bias: {math.exp(statistics.median(by_source)):.2f}")


def _by_source(rows):
    groups = defaultdict(list)
    for one in rows:
        groups[one[0]["source"].split("@")[0]].append(one)
    return groups


if __name__ == "__main__":
    main()
