"""Output of `toprope doctor` and `toprope devices`, made to be pasted into an issue. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

import toprope
from toprope.codes import Explanation, Seen
from toprope.device.doctor.finding import Finding
from toprope.device.doctor.mask_checks import card_numbers, process_cards
from toprope.device.doctor.ratings import ratings
from toprope.device.host.machine import DeviceResult, Facts
from toprope.sizes import gibibytes
from toprope.terminal import WIDTH, field, table, unbroken
from toprope.visible import VARIABLE, explain

__all__ = [
    "as_dict", "codes_as_dict", "codes_text", "devices_as_dict", "devices_text", "report", "seen_as_dict", "seen_text",
    "verdict",
]  # fmt: skip

_MAIN = ("torch", "torch-npu")


def report(facts: Facts, findings: Sequence[Finding], *, further: Sequence[tuple[str, Sequence[str]]] = ()) -> Group:
    """Everything that was found.

    Args:
        facts: what was looked at.
        findings: what is to be said about it.
        further: more rows: a label, and parts.
    """
    items = _row("found", _joined(_found(facts)))
    libraries = [f"{name} {version}" for name, version in facts.packages.items() if name in _LIBRARIES]
    if libraries:
        items += _row("libraries", _joined(libraries))
    for finding in findings:
        items += _finding(finding)
    items += _row("devices", *_devices(facts))
    items += _tried(facts)
    for label, parts in further:
        items += _row(label, _joined(parts) if len(parts) > 1 else parts[0])
    shown = (f"{name}={value}" for name, value in facts.environment.items() if name not in _PATHS)
    items += _row("variables", *map(unbroken, shown))
    return Group(*items, Text(verdict(findings), "bold"))


_LIBRARIES = (
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
    return " · ".join(map(unbroken, parts))


def _row(label: str | Text, *texts: str | Text) -> list[RenderableType]:
    return field(label, *texts, width=WIDTH)


def _finding(finding: Finding) -> list[RenderableType]:
    label = Text("problem", "bold red") if finding.problem else Text("note", "bold yellow")
    texts: list[str | Text] = [finding.what]
    if finding.looked_at:
        texts.append(f"looked at: {finding.looked_at}")
    for number, what in enumerate(finding.do):
        # a command must stay on one line, to be copied
        texts.append(Text.assemble(("   " if number else "do:", "bold"), unbroken(f" {what}")))
    texts += [unbroken(f"see {source}") for source in finding.sources[:1]]
    return _row(label, *texts)


def _devices(facts: Facts) -> Iterator[str]:
    examination = facts.examination
    if examination is not None:
        for kind in dict.fromkeys(device.kind for device in examination.devices):
            yield _of_kind(facts, kind, examination.of(kind))
    absent = {"npu": "not looked for"} if examination is None else examination.absent
    for kind, why in absent.items():
        yield f"no {kind}: {why}" + (f" ({facts.ascend.text})" if kind == "npu" else "")


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


def _tried(facts: Facts) -> list[RenderableType]:
    tried = [device for device in facts.examination.devices if device.dtypes] if facts.examination is not None else []
    dtypes = (f"{device.name}: {_joined(each.text for each in ratings(device))}" for device in tried)
    steps = [f"{each.name} {_step(each)}" for each in tried if each.step is not None]
    return _row("dtypes", *dtypes) + (_row("training", _joined(steps)) if steps else [])


def _step(device: DeviceResult) -> str:
    step = device.step
    if step is None or not step.learned:
        return "fails"
    return "ok (simulated)" if device.simulated else f"ok ({step.milliseconds:.0f} ms)"


def devices_text(facts: Facts, findings: Sequence[Finding]) -> Group:
    """A table of the devices that a program would see, and a line for each kind of which there is none."""
    rows = []
    for entry in devices_as_dict(facts, findings)["devices"]:
        free, total = entry["free"], entry["total"]
        memory = (
            "" if total is None else gibibytes(total) if free is None else f"{gibibytes(free)} of {gibibytes(total)}"
        )
        name = entry["name"] + (" (simulated)" if entry["simulated"] else "")
        card = "" if entry["card"] is None else str(entry["card"])
        rows.append((entry["device"], name, card, memory, entry["dtype"] or ""))
    items = [table(rows, ("device", "name", "card", "memory free", "dtype"), wrapped=(1,))]
    absent = facts.examination.absent if facts.examination is not None else {}
    items += [f"no {kind}: {why}" for kind, why in absent.items()]
    mask, cards = facts.environment.get(VARIABLE), card_numbers(facts)
    if mask is not None and cards:
        items.append(explain(mask, len(cards)))
    problems = [finding for finding in findings if finding.problem]
    for finding in problems:
        items += _finding(finding)
    if problems:
        items.append(Text(f"{verdict(findings)}; toprope doctor tells more", "bold"))
    return Group(*items)


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


def codes_text(explanations: Sequence[Explanation]) -> Group:
    """Explanations of codes, one paragraph each."""
    return Group(*_paragraphs((each, []) for each in explanations))


def seen_text(seen: Sequence[Seen]) -> Group:
    """Explanations of what is in a log, one paragraph each, the first cause first."""
    first = seen[0].what
    rows = []
    for each in seen:
        times = "" if each.count == 1 else f", on {each.count} lines"
        where = [f"line {each.line}{times}: {each.text}"]
        if each.what.order and not first.order:
            where.append(f"probably a consequence of {first.code}")
        rows.append((each.what, where))
    return Group(*_paragraphs(rows))


def _paragraphs(explanations: Iterable[tuple[Explanation, Sequence[str]]]) -> list[RenderableType]:
    items: list[RenderableType] = []
    for each, where in explanations:
        means = [f"{each.means} ({each.name})" if each.name else each.means]
        if not each.of_its_own:
            means.append("there is no entry for this code itself: this is what its family means")
        items += [""] if items else []
        items += _row(Text(each.code, "bold"), *means)
        items += _row("seen", *where)
        items += _row("reason", *_reason(each))
        items += _row("possible" if each.open else "causes", *each.causes)
        items += _row("try", *each.try_)
        items += _row("source", *(source.url for source in each.sources))
    return items


def _reason(what: Explanation) -> Iterator[str]:
    if what.reason:
        yield what.reason
    if what.open:
        if what.reason:
            yield f"from the log: the cause is in this text or the lines before it; {what.code} alone does not say it"
        else:
            yield f"open: {what.code} alone does not say it; look at the text and the lines next to it"


def seen_as_dict(seen: Sequence[Seen]) -> list[dict[str, Any]]:
    """The same as plain data: the explanation, its order, and where it is in the log."""
    return [
        codes_as_dict([each.what])[0]
        | {"order": each.what.order, "line": each.line, "count": each.count, "text": each.text}
        for each in seen
    ]


def codes_as_dict(explanations: Sequence[Explanation]) -> list[dict[str, Any]]:
    """The same as plain data."""
    return [
        {
            "code": each.code,
            "name": each.name or None,
            "means": each.means,
            "reason": each.reason or None,
            "open": each.open,
            "causes": list(each.causes),
            "try": list(each.try_),
            "sources": [{"url": source.url, "what": source.what, "read": source.read} for source in each.sources],
            "of_its_own": each.of_its_own,
        }
        for each in explanations
    ]
