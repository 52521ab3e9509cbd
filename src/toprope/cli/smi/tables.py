"""The tables of `npu-smi info`, `-l` and `-m`, column for column as the vendor prints them. Pure.

What the simulated card does not have (power, temperature, use of cores, a PCIe address) is "-" or "NA", the vendor's
own words for a figure that is not known. MB are 2^20 bytes, as in the original.

Called by `cli.npu_smi`. The layouts are recorded outputs of the vendor's tool in tests/cli/test_npu_smi.py: change a
column only with a newer recording.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from toprope import __version__
from toprope.cli.smi.machine import Device, Layout, Machine

__all__ = ["PRODUCT", "field", "listing", "mapping", "overview", "version"]

PRODUCT = f"simulated by toprope {__version__}"

_VERSIONS = {Layout.A5: "25.6.rc1"}
_VERSION = "25.5.0"


def version(layout: Layout) -> str:
    """The version of npu-smi whose tables these are."""
    return _VERSIONS.get(layout, _VERSION)


@dataclass(frozen=True)
class _Form:
    """The form of the tables of one layout.

    Attributes:
        columns: widths of the three columns between the bars.
        version: widths of the two versions in the first line.
        head: the two lines of the head.
        processes: the head of the table of processes.
        between: the line between two devices of one NPU.
    """

    columns: tuple[int, int, int]
    version: tuple[int, int]
    head: tuple[str, str]
    processes: str
    between: str

    def rule(self, stroke: str) -> str:
        return "+" + "+".join(stroke * width for width in self.columns) + "+"

    @property
    def width(self) -> int:
        return sum(self.columns) + 2


_HBM_HEAD = "| NPU   Name                | Health        | Power(W)    Temp(C)           Hugepages-Usage(page)|"
_HBM = _Form(
    (27, 15, 52),
    (24, 52),
    (_HBM_HEAD, "| Chip                      | Bus-Id        | AICore(%)   Memory-Usage(MB)  HBM-Usage(MB)        |"),
    "| NPU     Chip              | Process id    | Process name             | Process memory(MB)      |",
    "+" + "-" * 96 + "+",
)
_FORMS = {
    Layout.HBM: _HBM,
    Layout.DIES: _Form(
        _HBM.columns,
        _HBM.version,
        (
            _HBM_HEAD,
            "| Chip  Phy-ID              | Bus-Id        | AICore(%)   Memory-Usage(MB)  HBM-Usage(MB)        |",
        ),
        _HBM.processes,
        _HBM.between,
    ),
    Layout.DDR: _Form(
        (31, 17, 54),
        (40, 44),
        (
            "| NPU     Name                  | Health          "
            "| Power(W)     Temp(C)           Hugepages-Usage(page) |",
            "| Chip    Device                | Bus-Id          "
            "| AICore(%)    Memory-Usage(MB)                        |",
        ),
        "| NPU     Chip                  | Process id      | Process name             | Process memory(MB)        |",
        "+" + "-" * 31 + "+" + "-" * 17 + "+" + "-" * 54 + "+",
    ),
    Layout.A5: _Form(
        (27, 15, 70),
        (40, 54),
        (
            "| NPU ID | Name             | Health        "
            "| Power(W)              Temp(C)                  Hugepages-Usage(page) |",
            "|        |                  | Bus-Id        "
            "| NPU Util(%)           Memory-Usage(MB)         HBM-Usage(MB)         |",
        ),
        "| NPU ID                    | Process id    "
        "| Process name       | Process memory(MB)    | Process id in container |",
        "",
    ),
}
_A5_HEAD = (8, 18, 15, 70)
"""Widths of the columns above the devices of an Ascend 950, which are four there."""


def overview(machine: Machine) -> str:
    """`npu-smi info`: every device with its memory, then the processes on each NPU."""
    return _text(_overview(machine))


def _overview(machine: Machine) -> Iterator[str]:
    """Yield the lines of the first table of `npu-smi info`, by the layout of the card."""
    form = _FORMS[machine.layout]
    release = version(machine.layout)
    first, second = form.version
    head = form.columns if machine.layout is not Layout.A5 else _A5_HEAD
    yield "+" + "-" * form.width + "+"
    yield f"| npu-smi {release:<{first}} Version: {f'{release} ({PRODUCT})':<{second}} |"
    yield "+" + "+".join("-" * width for width in head) + "+"
    yield from form.head
    yield "+" + "+".join("=" * width for width in head) + "+"
    for devices in machine.npus.values():
        for place, device in enumerate(devices):
            if place:
                yield form.between
            yield from _device(machine, device)
        yield form.rule("=")
    yield form.rule("-")
    yield form.processes
    yield form.rule("=")
    for npu, devices in machine.npus.items():
        rows = [row for device in devices for row in _processes(machine.layout, device)]
        yield from rows or [f"| {f'No running processes found in NPU {npu}':<{form.width - 2}} |"]
        yield form.rule("=")


def _device(machine: Machine, device: Device) -> Iterator[str]:
    """Yield the two rows of a device."""
    name, health, npu, memory = machine.name, device.health, device.npu, f"{device.used_mib:<5}/ {device.total_mib}"
    if machine.layout is Layout.DDR:
        yield f"| {npu:<7} {name:<22}| {health:<15} | {'NA':<12} {'NA':<17} {'0':<6}/ {'0':<13} |"
        yield f"| {device.chip:<7} {device.logic:<22}| {'NA':<15} | {'NA':<12} {memory:<39} |"
    elif machine.layout is Layout.A5:
        yield f"| {npu:<6} | {name:<16} | {health:<13} | {'NA':<21} {'NA':<24} {'0':<6}/ {'0':<13} |"
        memory = f"{device.used_mib:<6}/ {device.total_mib}"
        yield f"| {'':<6} | {'':<16} | {'NA':<13} | {'NA':<21} {'0':<6}/ {'0':<16} {memory:<21} |"
    else:
        physical = f"{device.logic:<20}" if machine.layout is Layout.DIES else " " * 20
        yield f"| {npu:<5} {name:<20}| {health:<13} | {'-':<11} {'-':<17} {'0':<5}/ {'0':<13} |"
        yield f"| {device.chip:<5} {physical}| {'NA':<13} | {'-':<11} {'0':<5}/ {'0':<10} {memory:<20} |"


def _processes(layout: Layout, device: Device) -> Iterator[str]:
    for each in device.processes:
        if layout is Layout.DDR:
            yield f"| {device.npu:<7} {device.chip:<22}| {each.pid:<15} | {each.name:<24} | {each.mib:<25} |"
        elif layout is Layout.A5:
            yield f"| {device.npu:<25} | {each.pid:<13} | {each.name:<18} | {each.mib:<21} | {'NA':<23} |"
        else:
            yield f"| {device.npu:<7} {device.chip:<18}| {each.pid:<13} | {each.name:<24} | {each.mib:<23} |"


def listing(machine: Machine) -> str:
    """`npu-smi info -l`: the NPUs and how many chips each has."""
    blocks = [field("Total Count", len(machine.npus))]
    for npu, devices in machine.npus.items():
        lines = [field("NPU ID", npu)]
        if machine.layout is Layout.DDR:
            lines += [field("Product Name", PRODUCT), field("Serial Number", "NA")]
        blocks.append("\n".join([*lines, field("Chip Count", len(devices))]))
    return "\n\n".join(blocks) + "\n\n"


def mapping(machine: Machine) -> str:
    """`npu-smi info -m`: which device is which chip of which NPU. Each card's controller (Mcu) has a row too."""
    return _text(_mapping(machine))


def _mapping(machine: Machine) -> Iterator[str]:
    """Yield the rows of `npu-smi info -m`."""
    if machine.layout is Layout.A5:
        yield _row("NPU ID", "Slot ID", "Chip ID", "Chip Phy-ID", "Chip Name")
        for device in machine.devices:
            yield _row(device.npu, device.npu, device.chip, device.logic, machine.name)
        return
    dies = machine.layout is Layout.DIES
    yield _row("NPU ID", "Chip ID", "Chip Logic ID", *(["Chip Phy-ID"] if dies else []), "Chip Name")
    name = machine.name if dies else f"Ascend {machine.name}"
    for npu, devices in machine.npus.items():
        for device in devices:
            yield _row(npu, device.chip, device.logic, *([device.logic] if dies else []), name)
        yield _row(npu, len(devices), "-", *(["-"] if dies else []), "Mcu")


def field(name: str, value: object) -> str:
    """One line of the answers that are no tables."""
    return f"\t{name:<30} : {value}"


def _row(*values: object) -> str:
    return ("\t" + " ".join(f"{value!s:<30}" for value in values)).rstrip()


def _text(lines: Iterable[str]) -> str:
    return "".join(f"{line}\n" for line in lines)
