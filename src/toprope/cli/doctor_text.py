"""What `toprope doctor` and `toprope devices` print, made to be pasted into an issue. Pure."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict
from typing import Any

import toprope
from toprope.codes import Explanation
from toprope.device.doctor_masks import card_numbers, process_cards
from toprope.device.finding import Finding
from toprope.device.machine import DeviceResult, Facts
from toprope.device.ratings import ratings
from toprope.sizes import gibibytes
from toprope.visible import VARIABLE, explain

__all__ = ["as_dict", "codes_as_dict", "codes_text", "devices_as_dict", "devices_text", "report", "verdict"]

_LABEL = 10
_WIDTH = 100
_UNBROKEN = "\x1f"
_MAIN = ("torch", "torch-npu")
_RED, _YELLOW, _BOLD = "31;1", "33;1", "1"
Paint = Callable[[str, str], str]


def painter(colour: bool) -> Paint:
    """A function that gives a text a colour, or leaves it as it is."""
    return (lambda text, code: f"\x1b[{code}m{text}\x1b[0m") if colour else (lambda text, code: text)


def report(
    facts: Facts,
    findings: Sequence[Finding],
    *,
    colour: bool = False,
    beside: Sequence[tuple[str, Sequence[str]]] = (),
) -> str:
    """Everything that was found, as text.

    Args:
        facts: what was looked at.
        findings: what is to be said about it.
        colour: whether escape codes for a terminal are put in.
        beside: further rows: a label, and parts.
    """
    paint = painter(colour)
    lines = _row("found", _joined(_found(facts)))
    libraries = [f"{name} {version}" for name, version in facts.packages.items() if name in _BESIDE]
    if libraries:
        lines += _row("beside", _joined(libraries))
    for finding in findings:
        lines += _finding(finding, paint)
    lines += _devices(facts)
    lines += _tried(facts)
    for label, parts in beside:
        lines += _row(label, _joined(parts) if len(parts) > 1 else parts[0])
    shown = [f"{name}={value}" for name, value in facts.environment.items() if name not in _PATHS]
    lines += [
        line for number, text in enumerate(shown) for line in _row("" if number else "variables", text, wrap=False)
    ]
    lines.append(paint(verdict(findings), _BOLD))
    return "".join(f"{line}\n" for line in lines)


_BESIDE = (
    "torchvision", "torchair", "triton", "triton-ascend", "transformers", "accelerate", "diffusers", "deepspeed",
    "vllm", "vllm-ascend", "mindspeed", "ray",
)  # fmt: skip
_PATHS = ("ASCEND_OPP_PATH", "ASCEND_TOOLKIT_HOME", "TOPROPE_SIM")


def verdict(findings: Sequence[Finding]) -> str:
    """The last line: how many problems."""
    count = sum(finding.problem for finding in findings)
    return "no problem" if not count else "1 problem" if count == 1 else f"{count} problems"


def as_dict(facts: Facts, findings: Sequence[Finding]) -> dict[str, Any]:
    """The same as plain data: the findings, then the facts they rest on."""
    tried = facts.examination.devices if facts.examination is not None else ()
    return {
        "toprope": toprope.__version__,
        "problems": sum(finding.problem for finding in findings),
        "findings": [finding.as_dict() for finding in findings],
        "simulated": facts.simulated,
        "dtypes": {device.name: {each.dtype: each.verdict for each in ratings(device)} for device in tried},
        "facts": asdict(facts),
    }


def _found(facts: Facts) -> Iterator[str]:
    yield f"toprope {toprope.__version__}"
    yield f"Python {facts.python} ({facts.machine})"
    for name in _MAIN:
        shown = name.replace("-", "_")
        yield f"{shown} {facts.packages[name]}" if name in facts.packages else f"no {shown}"
    for name in ("CANN", "NNAL"):
        package = facts.package(name)
        yield f"no {name}" if package is None else f"{name} {package.version or 'of unknown version'}"
    driver = facts.package("driver")
    version = facts.ascend.driver or (driver.version if driver is not None else "")
    yield f"driver {version}" if version else "no driver"
    if facts.simulated:
        yield "a simulated card"
    if facts.ascend.container:
        yield "in a container"


def _joined(parts: Iterable[str]) -> str:
    """The parts with dots between them; a line is never broken inside of one."""
    return " · ".join(part.replace(" ", _UNBROKEN) for part in parts)


def _row(label: str, text: str, *, wrap: bool = True) -> list[str]:
    """A label and a text, continued below itself."""
    indent = " " * _LABEL
    if not wrap:
        return [f"{label:<{_LABEL}}{text}"]
    lines = textwrap.wrap(
        text, _WIDTH, initial_indent=f"{label:<{_LABEL}}", subsequent_indent=indent,
        break_long_words=False, break_on_hyphens=False,
    )  # fmt: skip
    return [line.replace(_UNBROKEN, " ") for line in lines]


def _finding(finding: Finding, paint: Paint) -> Iterator[str]:
    label = "problem" if finding.problem else "note"
    first, *rest = _row(label, finding.what)
    yield paint(label, _RED if finding.problem else _YELLOW) + first[len(label) :]
    yield from rest
    if finding.looked_at:
        yield from _row("", f"looked at: {finding.looked_at}")
    for number, what in enumerate(finding.do):
        # a command must stay on one line, to be copied
        yield " " * _LABEL + paint("do:" if not number else "   ", _BOLD) + f" {what}"
    if finding.sources:
        yield " " * _LABEL + f"see {finding.sources[0]}"


def _devices(facts: Facts) -> list[str]:
    examination = facts.examination
    lines = []
    for kind in dict.fromkeys(device.kind for device in examination.devices) if examination is not None else {}:
        assert examination is not None
        lines.append(_of_kind(facts, kind, examination.of(kind)))
    absent = {"npu": "not looked for"} if examination is None else examination.absent
    for kind, why in absent.items():
        lines.append(f"no {kind}: {why}" + (f" ({facts.ascend.text})" if kind == "npu" else ""))
    return [line for number, text in enumerate(lines) for line in _row("" if number else "devices", text)]


def _of_kind(facts: Facts, kind: str, devices: Sequence[DeviceResult]) -> str:
    first = devices[0]
    name = f"{kind}: {len(devices)} x " if len(devices) > 1 else f"{first.name}: "
    memory = "" if first.total is None else f", {gibibytes(first.total)}"
    if first.free is not None and first.total is not None:
        memory = f", {gibibytes(first.free)} of {gibibytes(first.total)} free"
    text = f"{name}{first.title}{' (simulated)' if first.simulated else ''}{memory}"
    numbers = process_cards(facts) if kind == "npu" else ()
    if numbers and numbers != tuple(range(len(numbers))):
        text += "; " + ", ".join(f"npu:{index} is card {card}" for index, card in enumerate(numbers))
    return text


def _tried(facts: Facts) -> Iterator[str]:
    tried = [device for device in facts.examination.devices if device.dtypes] if facts.examination is not None else []
    for number, device in enumerate(tried):
        text = f"{device.name}: {_joined(each.text for each in ratings(device))}"
        yield from _row("" if number else "dtypes", text)
    steps = [f"{each.name} {_step(each)}" for each in tried if each.step is not None]
    if steps:
        yield from _row("training", _joined(steps))


def _step(device: DeviceResult) -> str:
    step = device.step
    if step is None or not step.learned:
        return "fails"
    return "ok (simulated)" if device.simulated else f"ok ({step.milliseconds:.0f} ms)"


def devices_text(facts: Facts, findings: Sequence[Finding], *, colour: bool = False) -> str:
    """A table of the devices that a program would see, and a line for each kind of which there is none."""
    paint = painter(colour)
    rows = [("device", "name", "card", "memory free", "dtype")]
    for entry in devices_as_dict(facts, findings)["devices"]:
        free, total = entry["free"], entry["total"]
        memory = (
            "" if total is None else gibibytes(total) if free is None else f"{gibibytes(free)} of {gibibytes(total)}"
        )
        name = entry["name"] + (" (simulated)" if entry["simulated"] else "")
        card = "" if entry["card"] is None else str(entry["card"])
        rows.append((entry["device"], name, card, memory, entry["dtype"] or ""))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    lines[0] = paint(lines[0], _BOLD)
    absent = facts.examination.absent if facts.examination is not None else {}
    lines += [f"no {kind}: {why}" for kind, why in absent.items()]
    mask, cards = facts.environment.get(VARIABLE), card_numbers(facts)
    if mask is not None and cards:
        lines.append(explain(mask, len(cards)))
    for finding in findings:
        if finding.problem:
            lines += _finding(finding, paint)
    if any(finding.problem for finding in findings):
        lines.append(paint(f"{verdict(findings)}; toprope doctor tells more", _BOLD))
    return "".join(f"{line}\n" for line in lines)


def devices_as_dict(facts: Facts, findings: Sequence[Finding]) -> dict[str, Any]:
    """The same as plain data, sizes in bytes."""
    examination = facts.examination
    numbers = process_cards(facts)
    best: dict[tuple[str, str], str] = {}
    entries = []
    for device in examination.devices if examination is not None else ():
        index = int(device.name.partition(":")[2] or 0)
        best.setdefault((device.kind, device.title), device.best)
        entries.append(
            {
                "device": device.name,
                "kind": device.kind,
                "name": device.title,
                "simulated": device.simulated,
                "card": numbers[index] if device.kind == "npu" and index < len(numbers) else None,
                "free": device.free,
                "total": device.total,
                # cards of one chip do alike: only the first of a kind is tried
                "dtype": best[device.kind, device.title] or None,
                "error": device.error or None,
            }
        )
    return {
        "devices": entries,
        "absent": dict(examination.absent) if examination is not None else {},
        "problems": sum(finding.problem for finding in findings),
        "findings": [finding.as_dict() for finding in findings if finding.problem],
    }


def codes_text(explanations: Sequence[Explanation], *, colour: bool = False) -> str:
    """What codes mean, one paragraph each."""
    paint = painter(colour)
    paragraphs = []
    for each in explanations:
        name = f" ({each.name})" if each.name else ""
        first, *rest = (
            _row(each.code, f"{each.means}{name}") if len(each.code) < _LABEL else [each.code, *_row("", each.means)]
        )
        lines = [paint(first[: len(each.code)], _BOLD) + first[len(each.code) :], *rest]
        if not each.of_its_own:
            lines += _row("", "there is no entry for this code itself: this is what its family means")
        for label, texts in (("causes", each.causes), ("try", each.try_)):
            lines += [line for number, text in enumerate(texts) for line in _row("" if number else label, text)]
        lines += _row("source", each.sources[0].url, wrap=False)
        lines += [f"{' ' * _LABEL}{source.url}" for source in each.sources[1:]]
        paragraphs.append("".join(f"{line}\n" for line in lines))
    return "\n".join(paragraphs)


def codes_as_dict(explanations: Sequence[Explanation]) -> list[dict[str, Any]]:
    """The same as plain data."""
    return [
        {
            "code": each.code,
            "name": each.name or None,
            "means": each.means,
            "causes": list(each.causes),
            "try": list(each.try_),
            "sources": [{"url": source.url, "what": source.what, "read": source.read} for source in each.sources],
            "of_its_own": each.of_its_own,
        }
        for each in explanations
    ]
