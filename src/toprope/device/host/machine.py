"""Facts about a machine as plain data: what `toprope doctor` collects, reasons about and prints.

Filled by `device.doctor.collect` and `torch_probe`, read by `diagnosis`, the checks and `cli.output.doctor_text`, which
writes them as JSON too: names of fields stay. Only fields and their meaning are here. Tests:
tests/device/test_doctor.py, tests/device/test_doctor_collect.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from toprope.device.host.ascend import AscendMachine

__all__ = ["BackendResult", "DeviceResult", "DtypeResult", "Examination", "Facts", "Package", "SmiCard", "Step"]


@dataclass(frozen=True)
class Package:
    """A package of the vendor that lies in a folder: CANN, NNAL, the driver.

    Attributes:
        name: "CANN", "NNAL" or "driver".
        version: as its files say; empty where they do not.
        folder: where it lies.
        set_env: the script that loads its environment; empty where there is none.
    """

    name: str
    version: str = ""
    folder: str = ""
    set_env: str = ""


@dataclass(frozen=True)
class SmiCard:
    """A chip as `npu-smi info` lists it.

    Attributes:
        npu: number of the card.
        chip: number of the chip on it.
        name: "910B3".
        health: "OK", or what is the matter.
        phy_id: number of the device on the machine, where npu-smi prints it (cards with two chips).
        used_mb, total_mb: memory of the chip in MB; None where npu-smi does not print it.
    """

    npu: int
    chip: int
    name: str
    health: str
    phy_id: int | None = None
    used_mb: int | None = None
    total_mb: int | None = None


@dataclass(frozen=True)
class DtypeResult:
    """Result of the tests of a dtype on a device.

    Attributes:
        dtype: its name without "torch.".
        works: whether matmul, convolution and attention ran and gave the right numbers.
        failed: the first of them that did not.
        reason: what the device said.
        milliseconds: time of one product of two 256 x 256 matrices; None where it was not measured.
    """

    dtype: str
    works: bool
    failed: str = ""
    reason: str = ""
    milliseconds: float | None = None


@dataclass(frozen=True)
class Step:
    """A few steps of training a tiny model on a device.

    Attributes:
        first, last: the loss before and after.
        milliseconds: their total time.
        error: why they failed; empty if they did not.
    """

    first: float = 0.0
    last: float = 0.0
    milliseconds: float = 0.0
    error: str = ""

    @property
    def learned(self) -> bool:
        """True if the loss went down."""
        return not self.error and self.last < self.first


@dataclass(frozen=True)
class DeviceResult:
    """A device that a program would see.

    Attributes:
        name: "npu:0", "cpu".
        kind: "npu", "cuda", "cpu", ...
        title: its own name, such as "Ascend910B3".
        total, free: memory in bytes; None where it is not known.
        simulated: whether it is toprope's simulated card.
        error: what went wrong when it was asked.
        dtypes: results of dtypes; empty if not tested (further devices of a kind).
        best: the dtype that toprope would choose; empty where none was tried or works.
        step: result of training; None if not tested.
    """

    name: str
    kind: str
    title: str = ""
    total: int | None = None
    free: int | None = None
    simulated: bool = False
    error: str = ""
    dtypes: tuple[DtypeResult, ...] = ()
    best: str = ""
    step: Step | None = None


@dataclass(frozen=True)
class BackendResult:
    """An entry point of the group torch.backends, which `import torch` loads.

    Attributes:
        name: its name.
        module: the module it names.
        error: what it raised; empty where it loaded.
    """

    name: str
    module: str
    error: str = ""


@dataclass(frozen=True)
class Examination:
    """The findings of child processes that imported torch and used the devices.

    Attributes:
        ended: how the child ended when it did not finish, such as "it did not answer within 60 s"; empty when it did.
        doing: what it was doing then.
        torch: version of torch as torch says; empty where it could not be imported.
        torch_error: why torch could not be imported, its loading of other backends left out.
        import_error: why a plain `import torch` fails; empty where it does not, None where it was not tried.
        backends: the entry points that `import torch` loads.
        torch_npu: version of torch_npu as it says; empty where it was not loaded.
        torch_npu_error: why it could not be loaded; empty where it could, or is not installed.
        torch_npu_file: where it was found.
        facade: whether this torch_npu is toprope's stand-in.
        absent: kind -> why there is no device of it, in one line.
        devices: what a program would see.
        broken: of the absent kinds, the ones whose software is there and fails -> what can be done about it.
        choice: which of them a program gets that leaves it to the settings, and why; empty where that is refused.
        refused: the error that it gets instead ("what", "looked_at", "do"); empty where it gets a device.
    """

    ended: str = ""
    doing: str = ""
    torch: str = ""
    torch_error: str = ""
    import_error: str | None = None
    backends: tuple[BackendResult, ...] = ()
    torch_npu: str = ""
    torch_npu_error: str = ""
    torch_npu_file: str = ""
    facade: bool = False
    absent: Mapping[str, str] = field(default_factory=dict)
    devices: tuple[DeviceResult, ...] = ()
    broken: Mapping[str, str] = field(default_factory=dict)
    choice: str = ""
    refused: Mapping[str, str] = field(default_factory=dict)

    def of(self, kind: str) -> tuple[DeviceResult, ...]:
        """The devices of a kind."""
        return tuple(device for device in self.devices if device.kind == kind)


@dataclass(frozen=True)
class Facts:
    """All collected facts.

    Attributes:
        python: version of the Python that was examined, "3.11.7".
        executable: its path.
        machine: "x86_64", "aarch64".
        packages: installed Python packages that matter here, name -> version.
        environment: variables that matter here, as they are set; those that are not set are missing.
        ascend: device files, driver, masks, container.
        missing_nodes: device files in /dev that every card needs and that are not there.
        groups: names of the user's groups.
        broken_paths: variables of CANN and NNAL that name a folder which is not there, with it.
        software: packages of the vendor that are there.
        npu_smi: path of npu-smi; empty where there is none.
        npu_smi_error: why it gave nothing.
        smi_cards: what it lists; None where it was not run.
        examination: what child processes found; None where none was started.
    """

    python: str = ""
    executable: str = ""
    machine: str = ""
    packages: Mapping[str, str] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    ascend: AscendMachine = field(default_factory=AscendMachine)
    missing_nodes: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()
    broken_paths: Mapping[str, str] = field(default_factory=dict)
    software: tuple[Package, ...] = ()
    npu_smi: str = ""
    npu_smi_error: str = ""
    smi_cards: tuple[SmiCard, ...] | None = None
    examination: Examination | None = None

    def package(self, name: str) -> Package | None:
        """A package of the vendor; None where it is not there."""
        return next((each for each in self.software if each.name == name), None)

    @property
    def simulated(self) -> bool:
        """True if programs here get toprope's simulated card, even where a mask hides it."""
        found = self.examination
        if found is None:
            return False
        installed = found.facade or any(each.module == "toprope" and not each.error for each in found.backends)
        return any(device.simulated for device in found.devices) or (
            installed and bool(self.environment.get("TOPROPE_SIM"))
        )
