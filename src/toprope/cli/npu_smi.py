"""`npu-smi` for programs on the simulated card: the vendor's words and layout, with the cards of the run.

`toprope run` puts a folder with a launcher of this file in front of PATH. It loads neither torch nor the command line,
and runs in the Python of toprope, whatever Python asks. Names, their order and units are the vendor's, since public
tools parse them; what the simulation does not know is "NA", never a figure. docs/npu-smi.md says what it knows and what
it does not. A new subject is a function and a row of `_TYPES`.

Tables are in `cli.smi.tables`. Tests: tests/cli/test_npu_smi.py, with what public tools read of npu-smi as the measure.
"""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from toprope.cli.smi.machine import Device, Layout, Machine, machine
from toprope.cli.smi.tables import PRODUCT, field, listing, mapping, overview, version
from toprope.cli.standard_streams import guarded
from toprope.errors import TopropeError, UsageError
from toprope.sim.metrics import cards
from toprope.sim.spec import SimSpec

__all__ = ["NAME", "answer", "install", "main"]

NAME = "npu-smi"
UNKNOWN = "NA"

_HELP = f"""Usage: npu-smi info [-l | -m | -t TYPE -i NPU [-c CHIP] | -h]
       npu-smi -v | -h

       info           Every NPU with its memory and the processes on it
       info -l        The NPUs
       info -m        Which device is which chip of which NPU
       info -t TYPE   One subject of one NPU; TYPE: {{types}}

This npu-smi shows the simulated cards of a `toprope run` ({PRODUCT}).
"""


def install(folder: Path, spec: SimSpec) -> Path:
    """Writes the launcher into a new folder `bin` of a run's folder, and gives that folder, for PATH.

    Args:
        folder: where the run keeps its cards.
        spec: the cards, for who asks without the variables of the run.
    """
    root = Path(__file__).resolve().parents[2]
    code = f"import sys; sys.path.append({str(root)!r}); from toprope.cli.npu_smi import main; sys.exit(main())"
    place = folder / "bin"
    place.mkdir()
    launcher = place / NAME
    launcher.write_text(
        "#!/bin/sh\n"
        f"export TOPROPE_SIM=${{TOPROPE_SIM:-{spec.format()}}}\n"
        f"export TOPROPE_RUN_DIR=${{TOPROPE_RUN_DIR:-{shlex.quote(str(folder))}}}\n"
        f'exec {shlex.quote(sys.executable)} -I -c {shlex.quote(code)} "$@"\n'
    )
    launcher.chmod(0o755)
    return place


def main(arguments: Sequence[str] | None = None) -> int:
    """Answers one command and returns its exit status: 0, or 1 where there is no answer."""
    return guarded(lambda: _run(arguments), NAME)


def _run(arguments: Sequence[str] | None) -> int:
    """Answer the command line from the cards of the run; return the exit status."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    try:
        spec = SimSpec.parse(os.environ.get("TOPROPE_SIM", ""))
        text = answer(words, machine(spec, cards.read(Path(os.environ.get("TOPROPE_RUN_DIR", "")), spec.count)))
    except TopropeError as error:
        sys.stderr.write(f"{NAME}: {error}\n")
        return 1
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # `npu-smi info | head -1` is no error
    return 0


def answer(words: Sequence[str], machine: Machine) -> str:
    """Output of npu-smi for this command.

    Raises:
        UsageError: the command, or what it names, is not there.
    """
    match list(words):
        case [] | ["-h" | "--help"] | ["info", "-h" | "--help"]:
            return _HELP.format(types=", ".join(_TYPES))
        case ["-v"]:
            return f"npu-smi version: {version(machine.layout)}\n"
        case ["info"]:
            return overview(machine)
        case ["info", "-l"]:
            return listing(machine)
        case ["info", "-m"]:
            return mapping(machine)
        case ["info", *options]:
            return _one_subject(options, machine)
    raise UsageError(f"{' '.join(words)!r} is no command of the simulated npu-smi.", do="npu-smi -h lists them")


def _one_subject(options: Sequence[str], machine: Machine) -> str:
    """Answer `npu-smi info -t TYPE -i NPU [-c CHIP]`."""
    given: dict[str, str] = dict(zip(options[::2], options[1::2], strict=False))
    if len(options) % 2 or len(given) * 2 != len(options) or not {"-t", "-i"} <= set(given) <= {"-t", "-i", "-c"}:
        raise UsageError(f"'info {' '.join(options)}' is no command of the simulated npu-smi.", do="see npu-smi -h")
    kind = given["-t"]
    if kind not in _TYPES:
        raise UsageError(
            f"This device does not support querying {kind}: it is {PRODUCT}.", do=f"ask for {', '.join(_TYPES)}"
        )
    devices = machine.of(int(given["-i"])) if given["-i"].isdecimal() else ()
    if not devices:
        known = ", ".join(map(str, machine.npus))
        raise UsageError(f"there is no NPU {given['-i']}.", f"the NPU IDs of this machine: {known}", "npu-smi info -l")
    if "-c" in given:
        chosen = [device for device in devices if str(device.chip) == given["-c"]]
        if not chosen:
            known = ", ".join(str(device.chip) for device in devices)
            raise UsageError(f"NPU {given['-i']} has no chip {given['-c']}.", f"its Chip IDs: {known}")
        lines = _board_of_chip(machine, chosen[0]) if kind == "board" else _TYPES[kind](machine, chosen[0])
        return "\n".join(lines) + "\n"
    if kind == "board":
        return "\n".join(_board(machine, devices)) + "\n"
    head = [field("NPU ID", devices[0].npu), field("Chip Count", len(devices))]
    blocks = [[*_TYPES[kind](machine, device), field("Chip ID", device.chip)] for device in devices]
    return "\n\n".join("\n".join(block) for block in [head, *blocks]) + "\n"


def _board(machine: Machine, devices: Sequence[Device]) -> Iterator[str]:
    yield field("NPU ID", devices[0].npu)
    yield field("Product Name", PRODUCT)
    yield from (field(name, UNKNOWN) for name in ("Model", "Manufacturer", "Serial Number"))
    yield field("Software Version", version(machine.layout))
    yield from (field(name, UNKNOWN) for name in ("Firmware Version", "Compatibility", "Board ID", "PCB ID", "BOM ID"))
    yield from (field(name, UNKNOWN) for name in ("PCIe Bus Info", "Slot ID", "Class ID"))
    yield field("Chip Count", len(devices))


def _board_of_chip(machine: Machine, device: Device) -> Iterator[str]:
    yield field("NPU ID", device.npu)
    yield field("Chip ID", device.chip)
    yield field("Chip Type", "Ascend")
    yield field("Chip Name", machine.name)
    yield from (field(name, UNKNOWN) for name in ("Chip Version", "Board ID", "PCB ID", "BOM ID"))
    yield field("Chip Position ID", device.chip)
    yield from (field(name, UNKNOWN) for name in ("PCIe Bus Info", "Firmware Version"))


def _memory(machine: Machine, device: Device) -> Iterator[str]:
    if machine.layout is Layout.DDR:
        yield field("Total DDR Capacity(MB)", device.total_mib)
        yield field("DDR Capacity(MB)", device.total_mib)
        yield field("DDR Clock Speed(MHz)", UNKNOWN)
        return
    yield field("DDR Capacity(MB)", 0)
    yield field("DDR Clock Speed(MHz)", 0)
    yield field("HBM Capacity(MB)", device.total_mib)
    yield from (field(name, UNKNOWN) for name in ("HBM Clock Speed(MHz)", "HBM Temperature(C)", "HBM Manufacturer ID"))


def _usages(machine: Machine, device: Device) -> Iterator[str]:
    """Yield the lines of `-t usages`: shares of memory and cores in use."""
    ddr = machine.layout is Layout.DDR
    yield field("DDR Capacity(MB)", device.total_mib if ddr else 0)
    yield field("DDR Usage Rate(%)", device.usage if ddr else 0)
    yield field("DDR Hugepages Total(page)", 0)
    yield field("DDR Hugepages Usage Rate(%)", 0)
    if not ddr:
        yield field("HBM Capacity(MB)", device.total_mib)
        yield field("HBM Usage Rate(%)", device.usage)
    names = ["Aicore", "Aivector", "Aicpu", "Ctrlcpu", "DDR Bandwidth", *([] if ddr else ["HBM Bandwidth"])]
    yield from (field(f"{name} Usage Rate(%)", UNKNOWN) for name in names)
    yield field("NPU Utilization(%)", UNKNOWN)


def _common(machine: Machine, device: Device) -> Iterator[str]:
    ddr = machine.layout is Layout.DDR
    yield field("Memory Usage Rate(%)", device.usage if ddr else 0)
    if not ddr:
        yield field("HBM Usage Rate(%)", device.usage)
    yield from (field(f"Aicore {name}", UNKNOWN) for name in ("Usage Rate(%)", "Freq(MHZ)", "curFreq(MHZ)"))
    yield field("Aicore Count", UNKNOWN if machine.ai_cores is None else machine.ai_cores)
    yield field("Temperature(C)", UNKNOWN)
    yield field("NPU Real-time Power(W)", UNKNOWN)


def _health(machine: Machine, device: Device) -> Iterator[str]:
    yield field("Health" if machine.layout is Layout.A5 else "Health Status", device.health)
    yield field("Error Code", device.unhealthy or UNKNOWN)
    yield field("Error Information", "asked for: toprope.sim.faults.unhealthy" if device.unhealthy else UNKNOWN)


def _temp(machine: Machine, device: Device) -> Iterator[str]:
    yield field("NPU Temperature (C)", UNKNOWN)


def _power(machine: Machine, device: Device) -> Iterator[str]:
    yield field("NPU Real-time Power(W)", UNKNOWN)


def _processes(machine: Machine, device: Device) -> Iterator[str]:
    for each in device.processes:
        yield f"\tProcess id:{each.pid:<7} Process name:{each.name:<17} Process memory(MB):{each.mib}"
    if not device.processes:
        yield "\tNo process in device."


_TYPES: dict[str, Callable[[Machine, Device], Iterator[str]]] = {
    "board": _board_of_chip,
    "common": _common,
    "health": _health,
    "memory": _memory,
    "power": _power,
    "proc-mem": _processes,
    "temp": _temp,
    "usages": _usages,
}
