"""Output of `toprope doctor` and `toprope devices`, made to be pasted into an issue. Pure.

Called by `cli.doctor` and `cli.devices`. The facts are `device.host.machine.Facts`; a new one needs its row here. Keys
of the `..._as_dict` functions are the commands' JSON; texts are free and translated (locale/zh.po). Commands must stay
on one line, to be copied. Tests: tests/device/test_doctor.py, tests/device/test_doctor_cli.py,
tests/device/test_doctor_texts.py, tests/cli/test_language.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from typing import Any

from rich.cells import cell_len
from rich.console import Group, RenderableType
from rich.text import Text

import toprope
from toprope.codes import Explanation, Seen
from toprope.device.doctor.finding import Finding
from toprope.device.doctor.mask_checks import card_numbers, process_cards
from toprope.device.doctor.ratings import ratings
from toprope.device.host.machine import DeviceResult, Facts
from toprope.messages import Message, joined, local
from toprope.sizes import gibibytes
from toprope.terminal import WIDTH, field, table, unbroken
from toprope.visible_devices import VARIABLE, explain

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
    items = _row(Message("found"), _joined(_found(facts)))
    libraries = [f"{name} {version}" for name, version in facts.packages.items() if name in _LIBRARIES]
    if libraries:
        items += _row(Message("libraries"), _joined(libraries))
    for finding in findings:
        items += _finding(finding)
    items += _row(Message("devices"), *_devices(facts))
    items += _tried(facts)
    for label, parts in further:
        items += _row(label, _joined(parts) if len(parts) > 1 else parts[0])
    shown = (f"{name}={value}" for name, value in facts.environment.items() if name not in _PATHS)
    items += _row(Message("variables"), *map(unbroken, shown))
    return Group(*items, Text(local(verdict(findings)), "bold"))


_LIBRARIES = (
    "torchvision", "torchair", "triton", "triton-ascend", "transformers", "accelerate", "diffusers", "deepspeed",
    "vllm", "vllm-ascend", "mindspeed", "ray",
)  # fmt: skip
_PATHS = ("ASCEND_OPP_PATH", "ASCEND_TOOLKIT_HOME", "TOPROPE_SIM")


def verdict(findings: Sequence[Finding]) -> str:
    """The last line: how many problems."""
    count = sum(finding.problem for finding in findings)
    if not count:
        return Message("no problem")
    return Message("1 problem") if count == 1 else Message("{count} problems", count=count)


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
    """Yield the versions that were found: toprope, Python, torch, torch_npu, CANN, NNAL, driver."""
    yield f"toprope {toprope.__version__}"
    yield f"Python {facts.python} ({facts.machine})"
    for name in _MAIN:
        shown = name.replace("-", "_")
        yield f"{shown} {facts.packages[name]}" if name in facts.packages else Message("no {package}", package=shown)
    for name in ("CANN", "NNAL"):
        package = facts.package(name)
        if package is None:
            yield Message("no {package}", package=name)
        else:
            yield f"{name} {package.version}" if package.version else Message("{name} of unknown version", name=name)
    driver = facts.package("driver")
    version = facts.ascend.driver or (driver.version if driver is not None else "")
    yield Message("driver {version}", version=version) if version else Message("no driver")
    if facts.simulated:
        yield Message("a simulated card")
    if facts.ascend.container:
        yield Message("in a container")


def _joined(parts: Iterable[str]) -> str:
    """The parts with dots between them; a line is never broken inside of one."""
    return " · ".join(map(unbroken, parts))


def _row(label: str | Text, *texts: str | Text) -> list[RenderableType]:
    return field(label, *texts, width=WIDTH)


def _finding(finding: Finding) -> list[RenderableType]:
    """Lay out a finding: the problem, the facts, numbered steps, a source."""
    name, style = (Message("problem"), "bold red") if finding.problem else (Message("note"), "bold yellow")
    label = Text(local(name), style)
    texts: list[str | Text] = [finding.what]
    if finding.looked_at:
        texts.append(Message("looked at: {looked_at}", looked_at=finding.looked_at))
    do = local(Message("do:"))
    for number, what in enumerate(finding.do):
        # a command must stay on one line, to be copied
        texts.append(Text.assemble((" " * cell_len(do) if number else do, "bold"), unbroken(" " + what)))
    texts += [unbroken(Message("see {source}", source=source)) for source in finding.sources[:1]]
    return _row(label, *texts)


def _devices(facts: Facts) -> Iterator[str]:
    examination = facts.examination
    if examination is not None:
        for kind in dict.fromkeys(device.kind for device in examination.devices):
            yield _of_kind(facts, kind, examination.of(kind))
    absent = {"npu": Message("not looked for")} if examination is None else examination.absent
    for kind, why in absent.items():
        text = Message("no {kind}: {why}", kind=kind, why=why)
        yield Message("{text} ({machine})", text=text, machine=facts.ascend.text) if kind == "npu" else text


def _of_kind(facts: Facts, kind: str, devices: Sequence[DeviceResult]) -> str:
    """Describe the devices of one kind in a line: number, name, memory, numbers on the machine."""
    first = devices[0]
    name = f"{kind}: {len(devices)} x " if len(devices) > 1 else f"{first.name}: "
    memory = "" if first.total is None else f", {gibibytes(first.total)}"
    if first.free is not None and first.total is not None:
        memory = Message(", {free} of {total} free", free=gibibytes(first.free), total=gibibytes(first.total))
    simulated = Message(" (simulated)") if first.simulated else ""
    text = Message("{name}{title}{simulated}{memory}", name=name, title=first.title, simulated=simulated, memory=memory)
    numbers = process_cards(facts) if kind == "npu" else ()
    if numbers and numbers != tuple(range(len(numbers))):
        text += "; " + joined(
            ", ", (Message("npu:{index} is card {card}", index=index, card=card) for index, card in enumerate(numbers))
        )
    return text


def _tried(facts: Facts) -> list[RenderableType]:
    tried = [device for device in facts.examination.devices if device.dtypes] if facts.examination is not None else []
    dtypes = (f"{device.name}: {_joined(each.text for each in ratings(device))}" for device in tried)
    steps = [Message("{device} {step}", device=each.name, step=_step(each)) for each in tried if each.step is not None]
    return _row(Message("dtypes"), *dtypes) + (_row(Message("training"), _joined(steps)) if steps else [])


def _step(device: DeviceResult) -> str:
    step = device.step
    if step is None or not step.learned:
        return Message("fails")
    if device.simulated:
        return Message("ok (simulated)")
    return Message("ok ({milliseconds:.0f} ms)", milliseconds=step.milliseconds)


_COLUMNS = (Message("device"), Message("name"), Message("card"), Message("memory free"), Message("dtype"))


def devices_text(facts: Facts, findings: Sequence[Finding]) -> Group:
    """A table of the devices that a program would see, and a line for each kind of which there is none."""
    rows = []
    for entry in devices_as_dict(facts, findings)["devices"]:
        free, total = entry["free"], entry["total"]
        memory = (
            ""
            if total is None
            else gibibytes(total)
            if free is None
            else Message("{free} of {total}", free=gibibytes(free), total=gibibytes(total))
        )
        name = entry["name"] + (Message(" (simulated)") if entry["simulated"] else "")
        card = "" if entry["card"] is None else str(entry["card"])
        rows.append((entry["device"], name, card, memory, entry["dtype"] or ""))
    items = [table(rows, _COLUMNS, wrapped=(1,))]
    absent = facts.examination.absent if facts.examination is not None else {}
    items += [Message("no {kind}: {why}", kind=kind, why=why) for kind, why in absent.items()]
    mask, cards = facts.environment.get(VARIABLE), card_numbers(facts)
    if mask is not None and cards:
        items.append(explain(mask, len(cards)))
    problems = [finding for finding in findings if finding.problem]
    for finding in problems:
        items += _finding(finding)
    if problems:
        last = Message("{verdict}; toprope doctor tells more", verdict=verdict(findings))
        items.append(Text(local(last), "bold"))
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
        times = "" if each.count == 1 else Message(", on {count} lines", count=each.count)
        where = [Message("line {line}{times}: {text}", line=each.line, times=times, text=each.text)]
        if each.what.order and not first.order:
            where.append(Message("probably a consequence of {code}", code=first.code))
        rows.append((each.what, where))
    return Group(*_paragraphs(rows))


def _paragraphs(explanations: Iterable[tuple[Explanation, Sequence[str]]]) -> list[RenderableType]:
    """Lay out explanations of codes, each with the places where it was seen."""
    items: list[RenderableType] = []
    for each, where in explanations:
        means = [f"{each.means} ({each.name})" if each.name else each.means]
        if not each.of_its_own:
            means.append(Message("there is no entry for this code itself: this is what its family means"))
        items += [""] if items else []
        items += _row(Text(each.code, "bold"), *means)
        items += _row(Message("seen"), *where)
        items += _row(Message("reason"), *_reason(each))
        items += _row(Message("possible") if each.open else Message("causes"), *each.causes)
        items += _row(Message("try"), *each.try_)
        items += _row(Message("source"), *(source.url for source in each.sources))
    return items


def _reason(what: Explanation) -> Iterator[str]:
    """Yield the reason that the log itself gives, and whether the cause stays open."""
    if what.reason:
        yield what.reason
    if what.open:
        if what.reason:
            yield Message(
                "from the log: the cause is in this text or the lines before it; {code} alone does not say it",
                code=what.code,
            )
        else:
            yield Message(
                "open: {code} alone does not say it; look at the text and the lines next to it", code=what.code
            )


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
