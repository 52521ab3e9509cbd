"""Comparison of toprope's tables with a real card: the program that measures it, and the file that it writes.

`toprope verify` (cli/verify.py) writes verify_card.py for the user and reads the JSON that it made. Users send such
files: both modules must agree on the fields, and a change of them raises `FORMAT` in both. What is compared is in
toprope.chips, toprope.support and estimate/cost; a new comparison is a function that yields `Finding`s. Tests:
tests/cli/test_cli_verify.py.
"""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib import resources
from pathlib import Path
from statistics import StatisticsError, median
from typing import Any, Literal

from toprope.chips import Chip
from toprope.errors import UsageError
from toprope.estimate.cost.costs import Cost, cost_of
from toprope.estimate.cost.rates import Rates, UnknownRateError
from toprope.estimate.cost.span import Span, seconds_text
from toprope.estimate.cost.stored import Figures
from toprope.estimate.measured.calibrate import LEAST_ROWS, Calibration, FigureFit, Launches, Sample, calibrate
from toprope.estimate.record.calls import OperatorCall, TensorShape
from toprope.sizes import decimal, gibibytes
from toprope.support import operators_on_card, refusals
from toprope.support.operators_on_card import Kind, Release

__all__ = ["Finding", "Measured", "compare", "differing", "fitted", "program", "queue_factors", "read_measured"]

Verdict = Literal["agrees", "differs", "not compared"]

FORMAT = 1
_TABLES = re.compile(r"^TABLES = .*$", re.MULTILINE)

_OTHER_LIBRARIES = re.compile(
    r"quant|mkldnn|miopen|cudnn|mps|sparse|nested|^q_|^_|_$|names|backward|from_file|empty|resize|foobar|copy"
)
"""Operators that no program calls on a card as they are: of other backends, other layouts, and parts of others."""
_SHAPED = re.compile(r"^_|_$|backward|norm|grid|pool|[123]d|col2im|embedding|bincount|^dot$|stats|npu|loss|pad")
"""Operators that take other arguments than a square matrix."""
_MOST_ON_HOST, _MOST_REFUSED = 70, 40

_ON_CARD = """
abs add addmm amax argmax atan bmm cat ceil clamp cos cumsum div eq erf exp flip floor gelu gt index_select isnan le
log log2 logical_not lt maximum mean minimum mm mul ne neg pow reciprocal relu roll round rsqrt sigmoid sign silu sin
sort sqrt stack sub sum tanh topk tril triu trunc where
"""
"""Operators that have a kernel in every release since 2.1: the other half of the sample."""

_DTYPES = ("float64", "bool", "int64", "int16", "complex64", "uint8", "int8", "bfloat16", "float16", "int32", "float32")
_BAD_INDEX = ("507015", "507035")
"""Exceptions of the AI cores and of the vector cores: what the simulated card raises for an index that is too large."""
_OUT_OF_MEMORY = re.compile(
    r"NPU out of memory\. Tried to allocate [\d.]+ [KMG]iB \(NPU \d+; (?P<total>[\d.]+) GiB total capacity; "
    r"[\d.]+ .{1,5} already allocated; .*reserved in total by PyTorch\)"
)


@dataclass(frozen=True)
class Finding:
    """One line of a comparison.

    Attributes:
        part: the table of toprope: "memory", "operator", "dtype", "error text", "time", "launch", "copy".
        what: the entry.
        ours: what toprope says.
        measured: what the card did.
        verdict: whether they agree.
        where: where toprope's figure or rule is.
    """

    part: str
    what: str
    ours: str
    measured: str
    verdict: Verdict
    where: str = ""


@dataclass(frozen=True)
class Measured:
    """The file that the program wrote.

    Attributes:
        facts: single values by name: "torch", "torch_npu", "chip", "cann", "simulated".
        results: all that was measured, as the program wrote it.
        release: the release of torch_npu that the file's operators were chosen for.
        stopped: why it was stopped early; "" where it was not.
        parts: parts that failed, with the reason.
        missing: parts that were not begun, with the reason.
    """

    facts: Mapping[str, Any]
    results: tuple[Mapping[str, Any], ...]
    release: str
    stopped: str
    parts: Mapping[str, str]
    missing: Mapping[str, str] = field(default_factory=dict)

    @property
    def simulated(self) -> bool:
        """True for a simulated card."""
        return bool(self.facts.get("simulated"))

    def of(self, what: str) -> Iterator[Mapping[str, Any]]:
        """The results of a kind."""
        return (each for each in self.results if each["what"] == what)


def program(chip: Chip, release: Release | None = None) -> str:
    """The text of the program that measures a card.

    Args:
        chip: whose refusals are sampled.
        release: of torch_npu, whose fallbacks are sampled; None for the newest.
    """
    from toprope import __version__

    found = release or operators_on_card.find_release()
    tables = {
        "fallbacks": _block([*_on_host(found), *_ON_CARD.split()], ".split()"),
        "refusals": _block([",".join(map(str, each)) for each in _refused(chip)], ".split()"),
        "toprope": json.dumps(__version__),
        "release": json.dumps(found.branch),
    }
    text = resources.files("toprope.estimate.measured").joinpath("verify_card.py").read_text(encoding="utf-8")
    lines = "".join(f"    {json.dumps(name)}: {value},\n" for name, value in tables.items())
    return _TABLES.sub(lambda _: f"TABLES = {{\n{lines}}}", text, count=1)


def _block(words: list[str], call: str) -> str:
    """Words as a text of several lines, as Python."""
    return f'"""\n{textwrap.fill(" ".join(words), 110, break_on_hyphens=False)}\n"""{call}'


def _on_host(release: Release) -> list[str]:
    names = {name.partition(".")[0] for name, status in operators_on_card.host_operators(release) if not status.fails}
    whole = {name.partition(".")[0] for name, _ in operators_on_card.host_operators(release) if "." not in name}
    found = sorted(name for name in names & whole if not _OTHER_LIBRARIES.search(name))
    step = max(len(found) / _MOST_ON_HOST, 1.0)
    return [found[int(at * step)] for at in range(int(len(found) / step))]


def _refused(chip: Chip) -> list[tuple[str, str, int, str]]:
    """Operators with an argument's dtype: two that are refused, and one that is taken."""
    by_operator: dict[str, list[tuple[str, str, int, str]]] = {}
    for row in refusals.rows(chip):
        name = row.operators[0].removeprefix("aten::").removesuffix(".*")
        if len(row.operands) != 1 or "." in name or _SHAPED.search(name) or not row.supported:
            continue
        place = row.operands[0].position
        if place:
            continue  # an index, or another argument of a type of its own
        refused = [dtype for dtype in _DTYPES if dtype in row.refused][:2]
        taken = [dtype for dtype in reversed(_DTYPES) if dtype in row.supported][:1]
        if refused:
            by_operator.setdefault(name, [(name, "default", place, dtype) for dtype in (*refused, *taken)])
    found = list(by_operator.values())
    step = max(len(found) / _MOST_REFUSED, 1.0)
    return [each for at in range(int(len(found) / step)) for each in found[int(at * step)]]


def read_measured(path: Path) -> Measured:
    """Read the file that the program wrote.

    Raises:
        UsageError: it cannot be read, or is another file.
    """
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        if data["format"] != FORMAT:
            raise ValueError(f"format {data['format']!r}")
        results = tuple({"what": each["what"], **each} for each in data["results"])
        facts = {str(each["what"]): each["value"] for each in results if "value" in each}
        parts = {str(each["part"]): str(each["ended"]) for each in data["parts"] if each["ended"] != "ok"}
        missing = {part: why for part, why in parts.items() if why.startswith("not begun")}
        failed = {part: why for part, why in parts.items() if part not in missing}
        return Measured(facts, results, str(data["release"]), str(data["stopped"]), failed, missing)
    except OSError as error:
        raise UsageError(
            f"{path} cannot be read: {error.strerror}.", do="give the JSON file that verify_card.py wrote"
        ) from None
    except (ValueError, LookupError, TypeError) as error:
        raise UsageError(
            f"{path} is no file of `toprope verify`.",
            looked_at=f"{type(error).__name__}: {error}",
            do="give the JSON file that verify_card.py wrote",
        ) from None


def compare(measured: Measured, chip: Chip, rates: Rates) -> list[Finding]:
    """Compare everything that was measured with toprope's tables; no times where the card is a simulated one.

    Args:
        measured: of the card.
        chip: the card's.
        rates: of the chip.

    Raises:
        UsageError: a result is not of the form that the program writes.
    """
    try:
        found = [*_memory(measured, chip), *_operators(measured, chip), *_dtypes(measured, chip)]
        found += _errors(measured, chip)
        if not measured.simulated:
            found += [*_times(measured, rates), *_launches(measured, rates), *_copies(measured, rates)]
    except (LookupError, TypeError, AttributeError, StatisticsError) as error:
        raise UsageError(
            "a result in the file is not of the form that verify_card.py writes.",
            looked_at=f"{type(error).__name__}: {error}",
            do="give the file as verify_card.py wrote it",
        ) from None
    return found


def _verdict(agrees: bool) -> Verdict:
    return "agrees" if agrees else "differs"


def _is_close(ours: float, measured: float, share: float = 0.01) -> bool:
    return abs(measured - ours) <= share * ours


def _memory(measured: Measured, chip: Chip) -> Iterator[Finding]:
    usable, where = chip.usable_bytes, f"hbm_usable_mib of the {chip.name} (toprope/chips)"
    total = measured.facts.get("total_memory")
    if usable is None or chip.hbm_usable_mib is None:
        if isinstance(total, int):
            yield Finding("memory", "usable memory", "not known", gibibytes(total), "not compared", where)
        return
    ours = gibibytes(usable)
    if isinstance(total, int):
        yield Finding("memory", "usable memory", ours, gibibytes(total), _verdict(_is_close(usable, total)), where)
    for each in measured.of("mem_get_info"):
        agrees = _is_close(usable, each["total"])
        yield Finding("memory", "total of mem_get_info", ours, gibibytes(each["total"]), _verdict(agrees), where)
        largest = measured.facts.get("largest")
        if not isinstance(largest, int):
            continue
        size = f"{gibibytes(largest)} of {gibibytes(each['free'])} free"
        if each["free"] < 0.9 * each["total"]:
            yield Finding(
                "memory", "largest allocation", f"at most {ours}", size, "not compared", "the card was in use"
            )
        else:
            agrees = 0.9 * usable <= largest <= 1.005 * usable
            yield Finding("memory", "largest allocation", f"up to {ours}", size, _verdict(agrees), where)


def _release(measured: Measured) -> Release:
    torch = str(measured.facts.get("torch", ""))
    version = str(measured.facts.get("torch_npu", "")).partition("+")[0]
    try:
        return operators_on_card.find_release(version or None, torch)
    except UsageError:
        return operators_on_card.find_release(None, torch)


def _operators(measured: Measured, chip: Chip) -> Iterator[Finding]:
    release = _release(measured)
    for each in measured.of("operator"):
        name = str(each["operator"])
        if "skipped" in each:
            continue
        if "died" in each:
            yield Finding("operator", name, "-", f"the process ended: {each['died']}", "not compared", release.text)
            continue
        full = name if each["overload"] == "default" else f"{name}.{each['overload']}"
        status = operators_on_card.status(full, release=release, chip=chip.name)
        warned = [str(text) for text in each["warned"]]
        own = [text for text in warned if text.removeprefix("aten::").partition(".")[0].rstrip("_") == name]
        seen = f"falls back to the host ({', '.join(warned)})" if warned else "runs on the card"
        if each["error"] and not warned:
            seen = f"fails: {each['error'].splitlines()[0][:90]}"
        where = f"{status.release.branch} (toprope/support/operators_by_release.toml)"
        if status.kind in (Kind.HOST, Kind.ON_CARD, Kind.OLD_ROAD):
            host = status.kind is Kind.HOST
            ours = "falls back to the host" if host else "runs on the card"
            agrees = bool(own) if host else not own and not each["error"]
            verdict = _verdict(agrees)
            if host and each["error"] and not own:
                verdict = "not compared"  # it failed before it came to the operator
            yield Finding("operator", f"aten::{full}", ours, seen, verdict, where)
        else:
            yield Finding("operator", f"aten::{full}", status.reason, seen, "not compared", where)


def _dtypes(measured: Measured, chip: Chip) -> Iterator[Finding]:
    for each in measured.of("dtype"):
        if "skipped" in each:
            continue
        name, dtype, place = str(each["operator"]), str(each["dtype"]), int(each["position"])
        given = [None] * place + [dtype]
        operator = f"aten::{name}"
        refused = refusals.refusal(operator, given, chip)
        what = f"{operator}  {dtype}"
        where = refused.source if refused is not None else "toprope/support/refusals.toml"
        error = str(each["error"])
        seen = "runs" if not error else f"refuses: {_sentence(error)}"
        if each.get("host"):
            yield Finding("dtype", what, "-", "falls back to the host", "not compared", where)
        elif refused is not None:
            agrees = _plain(refused.message) in _plain(error) and f"{refusals.CODE}" in error
            yield Finding("dtype", what, f"refuses: {refused.message}", seen, _verdict(agrees), where)
        elif refusals.known(operator, chip, dtype):
            yield Finding("dtype", what, "runs", seen, _verdict(not error), where)
        else:
            yield Finding("dtype", what, "not known", seen, "not compared", where)


def _plain(text: str) -> str:
    return re.sub(r"\s+", "", text)


def _sentence(error: str) -> str:
    """The vendor's sentence in an error, or the error's first line."""
    found = re.search(r"\(E[A-Z]\d{4}\): (.*)", error)
    return (found[1] if found else error.splitlines()[0]).strip()[:160]


def _errors(measured: Measured, chip: Chip) -> Iterator[Finding]:
    for each in measured.of("out of memory"):
        found = _OUT_OF_MEMORY.search(str(each["error"]))
        ours = '"NPU out of memory. Tried to allocate ..." as OutOfMemoryError'
        seen = f"{each['type'] or 'nothing'}: {str(each['error']).splitlines()[0][:120] if each['error'] else ''}"
        agrees = found is not None and each["type"] == "OutOfMemoryError"
        where = "toprope/sim/csrc/torch/errors.cpp, toprope/codes/texts_run.toml"
        yield Finding("error text", "out of memory", ours, seen, _verdict(agrees), where)
        if found is not None and chip.hbm_usable_mib is not None:
            total, usable = float(found["total"]), chip.hbm_usable_mib / 1024
            yield Finding(
                "error text", "total capacity in it", f"{usable:.2f} GiB", f"{total:.2f} GiB",
                _verdict(_is_close(usable, total)), f"hbm_usable_mib of the {chip.name} (toprope/chips)",
            )  # fmt: skip
    for each in measured.of("bad index"):
        error = str(each["error"])
        ours = f"error code {' or '.join(_BAD_INDEX)} with ASCEND_LAUNCH_BLOCKING=1"
        seen = error.splitlines()[0][:120] if error else "no error"
        agrees = any(code in error for code in _BAD_INDEX)
        yield Finding(
            "error text", "index that is too large", ours, seen, _verdict(agrees), "toprope/sim/csrc/torch/call.cpp"
        )


def _call(each: Mapping[str, Any]) -> OperatorCall:
    dtype = str(each["dtype"])
    tensors = [TensorShape(dtype, tuple(sizes)) for sizes in each["inputs"]]
    results = [TensorShape(dtype, tuple(sizes), "result") for sizes in each["outputs"]]
    return OperatorCall(str(each["operator"]), (*tensors, *results))


def _launched(measured: Measured) -> dict[tuple[str, int], float]:
    """Seconds of the host for one operator, by kind and TASK_QUEUE_ENABLE."""
    return {(str(each["kind"]), int(each["queue"])): median(each["seconds"]) for each in measured.of("launch")}


def _on_card(measured: Measured, each: Mapping[str, Any], rates: Rates) -> tuple[Cost, float] | None:
    """The work and the time of a call, where the card and not the host decided how long it took."""
    cost = cost_of(_call(each))
    if cost.rows and cost.dtype == "float32" and measured.facts.get("hf32", {}).get("matmul"):
        return None
    launches = _launched(measured)
    host = launches.get((cost.kind, 1), launches.get(("host", 1), rates.launch(cost.kind).likely))
    taken = median(each["seconds"])
    return (cost, taken) if taken > 1.5 * host else None


def _is_within(span: Span, seconds: float) -> bool:
    return span.low <= seconds <= span.high


def _times(measured: Measured, rates: Rates) -> Iterator[Finding]:
    for each in measured.of("time"):
        shapes = " x ".join(",".join(map(str, sizes)) for sizes in each["inputs"])
        what = f"{str(each['operator']).removeprefix('aten::')}  {each['dtype']}  {shapes}"
        found = _on_card(measured, each, rates)
        seen = seconds_text(median(each["seconds"]))
        if found is None:
            yield Finding("time", what, "-", seen, "not compared", "launching took longer, or HF32 was on")
            continue
        cost, taken = found
        try:
            span = rates.seconds(cost)
        except UnknownRateError as error:
            yield Finding("time", what, "not known", seen, "not compared", str(error))
            continue
        if cost.operations:
            seen += f" ({cost.operations / taken / 1e12:.1f} TFLOPS)"
        yield Finding("time", what, span.text, seen, _verdict(_is_within(span, taken)), rates.basis(cost.kind))


def _launches(measured: Measured, rates: Rates) -> Iterator[Finding]:
    where = "[launch] of toprope/estimate/cost/rates.toml"
    for (kind, queue), taken in sorted(_launched(measured).items()):
        span = rates.launch(kind, queue=queue)
        what = f"{'an operator' if kind == 'host' else kind}, TASK_QUEUE_ENABLE={queue}"
        yield Finding("launch", what, span.text, seconds_text(taken), _verdict(_is_within(span, taken)), where)
    for each in measured.of("synchronise"):
        if each["queue"] == 1:
            span, taken = rates.synchronise(), median(each["seconds"])
            yield Finding(
                "launch", "synchronise", span.text, seconds_text(taken), _verdict(_is_within(span, taken)), where
            )


def _copies(measured: Measured, rates: Rates) -> Iterator[Finding]:
    for each in measured.of("copy"):
        size, pinned = int(each["bytes"]), bool(each["pinned"])
        span, taken = rates.copy(size, pinned=pinned), median(each["seconds"])
        way = "to the card" if each["to_card"] else "from the card"
        what = f"{decimal(size)} {way}, {'pinned' if pinned else 'pageable'}"
        seen = f"{seconds_text(taken)} ({size / taken / 1e9:.1f} GB/s)"
        where = "[host_link] of toprope/estimate/cost/rates.toml"
        yield Finding("copy", what, span.text, seen, _verdict(_is_within(span, taken)), where)


def fitted(measured: Measured, rates: Rates) -> Calibration:
    """Rates fitted to the times that were measured, as `calibrate` fits them to a profile.

    Raises:
        UsageError: the card is a simulated one.
    """
    if measured.simulated:
        raise UsageError(
            "the times are those of a simulated card, which are this machine's.", do="run verify_card.py on a card"
        )
    samples = []
    for each in measured.of("time"):
        found = _on_card(measured, each, rates)
        if found is not None:
            samples.append(Sample(str(each["operator"]).removeprefix("aten::"), found[0], tuple(each["seconds"])))
    launched = {kind: each for (kind, queue), each in _launched(measured).items() if queue == 1}
    launches = Launches(launched, dict.fromkeys(launched, LEAST_ROWS), "launches one after the other")
    made = calibrate(samples, rates, launches)
    return _with_figures(made, list(_host_figures(measured, rates)))


def _host_figures(measured: Measured, rates: Rates) -> Iterator[FigureFit]:
    """Figures of the host that the fit has not."""
    table, why = rates.table, "measured alone"
    for each in measured.of("synchronise"):
        if each["queue"] == 1:
            taken = median(each["seconds"]) * 1e6
            yield FigureFit("launch.synchronise", table["launch"]["synchronise"], taken, 1, True, why)
    for pinned in (True, False):
        name = "pinned" if pinned else "pageable"
        rows = [each for each in measured.of("copy") if each["pinned"] == pinned and each["bytes"] >= 2**26]
        speeds = [each["bytes"] / median(each["seconds"]) / 1e9 for each in rows]
        if speeds:
            yield FigureFit(f"host_link.{name}", table["host_link"][name], median(speeds), len(speeds), True, why)


def queue_factors(measured: Measured, rates: Rates) -> Figures:
    """Time of the host by TASK_QUEUE_ENABLE, as shares of that with 1; nothing where 1 was not measured."""
    launched = _launched(measured)
    base = launched.get(("host", 1))
    if not base:
        return {}
    before = rates.table["launch"]["queue"]
    return {"launch.queue": [launched.get(("host", queue), base * before[queue]) / base for queue in range(3)]}


def _with_figures(made: Calibration, more: Sequence[FigureFit]) -> Calibration:
    return replace(made, figures=(*made.figures, *more))


def differing(findings: Iterable[Finding]) -> list[Finding]:
    """The findings that say that a table is wrong."""
    return [each for each in findings if each.verdict == "differs"]
