"""Rates of a chip fitted to measured times of operators: a profile of a card, or other measurements; pure.

`toprope calibrate` (cli/calibrate.py) and verification.py call it; fitting.py does the arithmetic. Figures have their
names in rates.toml; `_names` says which kinds of calls each one is fitted to. A figure that the measurements do not
determine keeps its value. The limits at the top are free choices. Tests: tests/estimate/test_calibrate.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import groupby
from math import exp, isfinite, log
from statistics import median
from typing import Any

from toprope.estimate.cost.costs import Cost, cost_of
from toprope.estimate.cost.rates import OWN_LAUNCH, Rates, UnknownRateError
from toprope.estimate.cost.stored import Figures
from toprope.estimate.measured.fitting import Case, Fit, fit
from toprope.estimate.measured.profiler_files import KernelRow
from toprope.estimate.measured.vendor_kernels import call_of

__all__ = ["Calibration", "FigureFit", "Launches", "Sample", "TypeTotal", "calibrate", "launches_of", "samples_of"]

LEAST_ROWS = 5
"""Measurements below which a figure keeps its value."""

_MOST = 240
"""Different operators of a group that a fit looks at."""

_IDLE_NS = 3_000
"""Gap between two kernels from which the card waited for the host; the card's own gaps are shorter."""
_LONGEST_NS = 300_000
"""Between two kernels; beyond it the host did something else than launch."""
_HOST_ALONE = ("AI_CPU", "HCCL", "COMMUNICATION")


@dataclass(frozen=True)
class Sample:
    """Measured times of one operator with one set of shapes.

    Attributes:
        name: for the reader: the type of the kernel.
        cost: its work; None where it is not known.
        seconds: each measurement.
        unknown: why it has no work, or is not fitted; "" where it is.
    """

    name: str
    cost: Cost | None
    seconds: tuple[float, ...]
    unknown: str = ""


@dataclass(frozen=True)
class FigureFit:
    """A figure of rates.toml.

    Attributes:
        name: its place, such as "products.attained".
        before, after: its values; the same where it was left alone.
        rows: measurements that say something of it.
        fitted: whether it was fitted.
        why: from what it was fitted, or why it was not.
    """

    name: str
    before: float
    after: float
    rows: int
    fitted: bool
    why: str


@dataclass(frozen=True)
class TypeTotal:
    """Predicted and measured times of a type of operator.

    Attributes:
        name: the type.
        count: measurements.
        measured, before, after: sums in seconds: measured, and predicted with the old and the new figures.
        unknown: why there is no prediction; "" where there is one.
    """

    name: str
    count: int
    measured: float
    before: float
    after: float
    unknown: str = ""


@dataclass(frozen=True)
class Launches:
    """Time of the host for one operator, by kind as in rates.toml's [launch].

    Attributes:
        seconds: median by kind; "host" for the kinds that have no figure of their own.
        rows: intervals behind each.
        origin: where they come from.
    """

    seconds: Mapping[str, float] = field(default_factory=dict)
    rows: Mapping[str, int] = field(default_factory=dict)
    origin: str = ""


@dataclass(frozen=True)
class Calibration:
    """Rates of a chip, fitted.

    Attributes:
        chip: name of the chip.
        figures: every figure that was tried.
        types: by type of operator, the longest measured first.
        error_before, error_after: median of |predicted / measured - 1| over all measurements that can be compared.
        table: rates.toml with the new figures.
    """

    chip: str
    figures: tuple[FigureFit, ...]
    types: tuple[TypeTotal, ...]
    error_before: float
    error_after: float
    table: dict[str, Any] = field(repr=False)

    @property
    def fitted(self) -> Figures:
        """The new values of the figures that were fitted."""
        return {each.name: each.after for each in self.figures if each.fitted}

    @property
    def rows(self) -> dict[str, int]:
        """Measurements behind the figures that were fitted."""
        return {each.name: each.rows for each in self.figures if each.fitted}


def samples_of(rows: Iterable[KernelRow]) -> list[Sample]:
    """Kernels of a profile by type and shapes."""
    found: dict[tuple[str, bool, tuple[str, str], tuple[str, str]], list[float]] = {}
    for row in rows:
        found.setdefault((row.kind, row.core in _HOST_ALONE, row.inputs, row.outputs), []).append(row.duration_us / 1e6)
    return [_sample(*key, seconds=tuple(seconds)) for key, seconds in found.items()]


def _sample(
    kind: str, alone: bool, inputs: tuple[str, str], outputs: tuple[str, str], *, seconds: tuple[float, ...]
) -> Sample:
    if alone:
        return Sample(f"{kind} (AI CPU)" if not kind.startswith("hcom") else kind, None, seconds, "not on the cores")
    call = call_of(kind, *inputs, *outputs)
    if call is None:
        return Sample(kind, None, seconds, "no shapes" if not outputs[0] else "no rule for this type")
    cost = cost_of(call)
    if cost.kind == "attention" and not cost.operations:
        return Sample(kind, None, seconds, "the layout of its tensors is not known")
    if cost.kind == "convolution" and not cost.operations:
        return Sample(kind, None, seconds, "the shapes do not say its operations")
    if cost.kind == "other":
        return Sample(kind, None, seconds, "no rule for this type")
    return Sample(kind, cost, seconds)


def calibrate(samples: Sequence[Sample], rates: Rates, launches: Launches | None = None) -> Calibration:
    """Fit the figures of a chip to measured times.

    A figure with fewer than five measurements, or that the measurements do not determine, keeps its value.

    Args:
        samples: the measurements.
        rates: of the chip, to begin with.
        launches: what launching takes, where it is known.
    """
    known = [each for each in samples if each.cost is not None and _possible(rates, each.cost)]
    cases = [(each, each.cost) for each in _evenly_spaced(known) if each.cost is not None]
    made = _fit(rates, cases)
    more = _extra_figures(rates, cases, made)
    if more:
        made = _fit(Rates(rates.chip, _with_figures(rates.table, more)), cases, tuple(more))
    table = _with_figures(rates.table, {name: value for name, value in made.figures.items() if name in made.identified})
    table = _with_figures(table, _widened(Rates(rates.chip, table), known))
    figures = list(_reported(rates.table, table, made, launches))
    if launches is not None:
        table = _with_figures(table, {each.name: each.after for each in figures if each.fitted})
    types, before, after = _compared(samples, rates, Rates(rates.chip, table))
    return Calibration(rates.chip.name, tuple(figures), types, before, after, table)


def _possible(rates: Rates, cost: Cost) -> bool:
    try:
        return rates.seconds(cost).likely > 0
    except UnknownRateError:
        return False


def _evenly_spaced(samples: Sequence[Sample]) -> Iterator[Sample]:
    """Evenly spaced samples of each group where it has too many, from the shortest to the longest."""
    groups: dict[str, list[Sample]] = {}
    for each in samples:
        if each.cost is not None:
            groups.setdefault(_group(each.cost), []).append(each)
    for members in groups.values():
        members.sort(key=lambda each: (median(each.seconds), each.name))
        step = max(len(members) / _MOST, 1.0)
        yield from (members[int(at * step)] for at in range(int(len(members) / step)))


_MOST_ATTAINED = {
    "products.attained": 1.15, "products.attained_float32": 1.15, "convolution.attained": 1.15,
    "attention.attained": 1.15, "memory.attained": 1.05,
}  # fmt: skip
"""Shares of a peak: a little more than all of it, where a card's clock is higher than the chip's data say."""


def _group(cost: Cost) -> str:
    """A name for the figures that a time rests on."""
    if cost.rows:
        return "matmul float32" if cost.dtype == "float32" else "matmul"
    if cost.kind in ("convolution", "attention"):
        return cost.kind
    return f"vector {cost.kind} {cost.operator}" + (" rearranged" if cost.rearranged else "")


def _names(groups: Iterable[str], table: Mapping[str, Any], more: Sequence[str]) -> dict[str, list[str]]:
    """The figures that may be fitted, each with the groups that rest on it."""
    all_groups = list(dict.fromkeys(groups))
    vector = [group for group in all_groups if group.startswith("vector")]
    found: dict[str, list[str]] = {
        "products.attained": ["matmul"],
        "products.attained_float32": ["matmul float32"],
        "products.start": ["matmul"],
        "products.start_float32": ["matmul float32"],
        "products.wave": ["matmul", "matmul float32"],
        "products.l2_bytes": ["matmul", "matmul float32"],
        "convolution.attained": ["convolution"],
        "attention.attained": ["attention"],
        "attention.softmax": ["attention"],
        "attention.start": ["attention"],
        "memory.attained": all_groups,
        "memory.l2_bytes": [*vector, "convolution", "attention"],
        "start.kernel": vector,
        "start.small": vector,
    }
    for group in vector:
        _, kind, operator, *rest = group.split(" ")
        rate = operator if operator in table["vector"] else kind
        if rate in table["vector"]:
            found.setdefault(f"vector.{rate}", []).append(group)
        if kind in table["start"]:
            found.setdefault(f"start.{kind}", []).append(group)
        if rest:
            found.setdefault("vector.rearranged", []).append(group)
            found.setdefault("vector.rearranged_rows", []).append(group)
    for name in more:
        section, _, key = name.partition(".")
        place = 1 if section == "start" else 2
        found[name] = [group for group in vector if group.split(" ")[place] == key]
    present = set(all_groups)
    return {name: [group for group in each if group in present] for name, each in found.items()}


def _fit(rates: Rates, cases: Sequence[tuple[Sample, Cost]], more: Sequence[str] = ()) -> Fit:
    table = deepcopy(rates.table)
    model = Rates(rates.chip, table)
    groups = _names((_group(cost) for _, cost in cases), table, more)
    start = {name: float(_value(table, name)) for name, members in groups.items() if members}
    current = dict(start)

    def predict(at: int, figures: dict[str, float]) -> float:
        for name, value in figures.items():
            if current[name] != value:
                section, _, key = name.partition(".")
                table[section][key] = current[name] = value
        return model.seconds(cases[at][1]).likely

    measured = [
        Case(median(each.seconds), len(each.seconds), _group(cost), _section_of_rates(cost)) for each, cost in cases
    ]
    return fit(measured, predict, start, groups, _MOST_ATTAINED, least_rows=LEAST_ROWS)


def _extra_figures(rates: Rates, cases: Sequence[tuple[Sample, Cost]], made: Fit) -> dict[str, float]:
    """Figures that rates.toml has not, for operators that are slower than memory and start explain.

    A rate of the vector cores for an operator, and a start for a kind whose shortest kernels take longer.
    """
    table = _with_figures(rates.table, {name: value for name, value in made.figures.items() if name in made.identified})
    model = Rates(rates.chip, table)
    found: dict[str, float] = {}
    vector = [(each, cost) for each, cost in cases if _group(cost).startswith("vector") and not cost.rearranged]
    for kind in dict.fromkeys(cost.kind for _, cost in vector):
        short = [
            median(each.seconds) for each, cost in vector
            if cost.kind == kind and cost.elements <= table["start"]["small_elements"]
        ]  # fmt: skip
        if kind not in table["start"] and len(short) >= 3:
            likely = median(short)
            if likely > 1.15 * table["start"]["small"] / 1e6:
                found[f"start.{kind}"] = likely * 1e6
    for operator in dict.fromkeys(cost.operator for _, cost in vector):
        if not operator or operator in table["vector"]:
            continue
        own = [(median(each.seconds), cost) for each, cost in vector if cost.operator == operator]
        long = [(time, cost) for time, cost in own if time > 4 * table["start"]["kernel"] / 1e6]
        if len(long) < 2 or median(time / model.seconds(cost).likely for time, cost in long) < 1.1:
            continue
        cores = (model.chip.vector_cores or model.chip.cube_cores or 1) * (model.chip.cube_mhz or 1) * 1e6
        found[f"vector.{operator}"] = median(cost.elements / time for time, cost in long) / cores
    return found


def _widened(rates: Rates, samples: Sequence[Sample]) -> dict[str, float]:
    """Widths that hold nine of ten kinds of calls, where those of rates.toml are too narrow; they never shrink."""
    found: dict[str, float] = {}
    for section in ("products", "convolution", "attention", "memory"):
        errors = [
            (abs(log(rates.seconds(each.cost).likely / median(each.seconds))), len(each.seconds))
            for each in samples
            if each.cost is not None and _section_of_rates(each.cost) == section
        ]
        if len(errors) >= LEAST_ROWS:
            needed = exp(2 * _quantile(errors, 0.9))
            if needed > rates.table[section]["width"]:
                found[f"{section}.width"] = min(needed, 10.0)
    return found


def _section_of_rates(cost: Cost) -> str:
    if cost.rows:
        return "products"
    return cost.kind if cost.kind in ("convolution", "attention") else "memory"


def _reported(
    before: Mapping[str, Any], after: Mapping[str, Any], made: Fit, launches: Launches | None
) -> Iterator[FigureFit]:
    for name in sorted(made.figures):
        old = _value(before, name)
        if name in made.identified:
            yield FigureFit(name, old, _value(after, name), made.rows[name], True, "durations of kernels")
        elif isfinite(old):
            why = "the measurements do not determine it"
            if name in made.beyond:
                why = "the measurements ask for more than the peak of the chip"
            elif made.rows[name] < LEAST_ROWS:
                why = "too few measurements say something of it"
            yield FigureFit(name, old, old, made.rows[name], False, why)
    for section in ("products", "convolution", "attention", "memory"):
        old, new = before[section]["width"], after[section]["width"]
        if new != old:
            yield FigureFit(f"{section}.width", old, new, 0, True, "nine of ten operators are inside")
    for kind, seconds in sorted(launches.seconds.items()) if launches is not None else ():
        old, rows = float(before["launch"][kind]), launches.rows[kind] if launches is not None else 0
        if rows >= LEAST_ROWS and launches is not None:
            yield FigureFit(f"launch.{kind}", old, seconds * 1e6, rows, True, launches.origin)
        else:
            yield FigureFit(f"launch.{kind}", old, old, rows, False, "too few measurements say something of it")


def _compared(samples: Sequence[Sample], old: Rates, new: Rates) -> tuple[tuple[TypeTotal, ...], float, float]:
    totals: dict[tuple[str, str], TypeTotal] = {}
    errors: list[tuple[float, float, int]] = []
    for each in samples:
        count, measured = len(each.seconds), sum(each.seconds)
        unknown = each.unknown
        before = after = 0.0
        if each.cost is not None:
            try:
                before, after = old.seconds(each.cost).likely, new.seconds(each.cost).likely
            except UnknownRateError as error:
                unknown = str(error)
            else:
                time = median(each.seconds)
                errors.append((abs(before / time - 1), abs(after / time - 1), count))
        key = each.name, unknown
        found = totals.get(key, TypeTotal(each.name, 0, 0.0, 0.0, 0.0, unknown))
        totals[key] = replace(
            found, count=found.count + count, measured=found.measured + measured,
            before=found.before + before * count, after=found.after + after * count,
        )  # fmt: skip
    types = tuple(sorted(totals.values(), key=lambda each: -each.measured))
    return (
        types,
        _quantile([(each[0], each[2]) for each in errors], 0.5),
        _quantile([(each[1], each[2]) for each in errors], 0.5),
    )


def _quantile(errors: list[tuple[float, int]], share: float) -> float:
    """The error that this share of the measurements do not exceed; each error has its number of measurements."""
    errors.sort()
    left = share * sum(count for _, count in errors)
    for error, count in errors:
        left -= count
        if left <= 0:
            return error
    return 0.0


def _value(table: Mapping[str, Any], name: str) -> float:
    section, _, key = name.partition(".")
    return float(table[section].get(key, float("inf")))


def _with_figures(table: Mapping[str, Any], figures: Mapping[str, float]) -> dict[str, Any]:
    made = deepcopy(dict(table))
    for name, value in figures.items():
        section, _, key = name.partition(".")
        made[section][key] = value
    return made


def launches_of(rows: Sequence[KernelRow]) -> Launches:
    """Time that launching takes, where the card waited for the host: from the begin of one operator to the next one's.

    The profiler itself takes time of the host, so that this is the most that it takes.

    Args:
        rows: the kernels in the order in which they began.
    """
    found: dict[str, list[int]] = {}
    by_device: dict[str, list[KernelRow]] = {}
    for row in rows:
        by_device.setdefault(row.device, []).append(row)
    for each in by_device.values():
        calls = list(_calls(each))
        ends, last = [], 0
        for call in calls:
            ends.append(last)
            last = max(last, *(row.start_ns + int(row.duration_us * 1000) for row in call))
        waited = [call[0].start_ns - end >= _IDLE_NS for call, end in zip(calls, ends, strict=True)]
        for at in range(2, len(calls)):
            taken = calls[at][0].start_ns - calls[at - 1][0].start_ns
            if waited[at] and waited[at - 1] and taken <= _LONGEST_NS:
                first = calls[at][0]
                found.setdefault(_launch_kind(first.kind, first.inputs, first.outputs), []).append(taken)
    seconds = {kind: median(each) / 1e9 for kind, each in found.items()}
    return Launches(seconds, {kind: len(each) for kind, each in found.items()}, "gaps between kernels")


@lru_cache(maxsize=4096)
def _launch_kind(kind: str, inputs: tuple[str, str], outputs: tuple[str, str]) -> str:
    call = call_of(kind, *inputs, *outputs)
    name = cost_of(call).kind if call is not None else "host"
    return name if name in OWN_LAUNCH else "host"


def _calls(rows: Sequence[KernelRow]) -> Iterator[list[KernelRow]]:
    """Kernels by the operator that launched them: one aclnn interface may launch several, which differ in type."""
    for _, group in groupby(rows, key=lambda row: row.name.partition("_")[0] if row.name.startswith("aclnn") else row):
        current: list[KernelRow] = []
        for row in group:
            if current and row.kind in {each.kind for each in current}:
                yield current
                current = []
            current.append(row)
        if current:
            yield current
