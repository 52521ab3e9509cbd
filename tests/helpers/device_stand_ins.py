"""Stand-ins for vendors' software, and a Python of its own that has them. Not a test; test_device_*.py use it.

A stand-in has the files and errors of the vendor's package, as public threads show them, and none of its work.
"""

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import forkserver

MISSING = "libhccl.so: cannot open shared object file: No such file or directory"

# What a torch_npu would give torch, in Python alone: the device has a name, but no tensor can live on it.
IN_PYTHON = """
import sys, types, torch
npu = types.ModuleType("torch_npu.npu")
npu.count, npu.current, npu.used = {count}, {current}, {used}
npu.device_count = lambda: npu.count
npu.is_available = lambda: npu.count > 0
npu.is_initialized = lambda: npu.used
npu.current_device = lambda: npu.current
npu.is_bf16_supported = lambda: True
npu.get_device_name = lambda device=None: "Ascend910B3"
npu._is_in_bad_fork = lambda: False
npu.manual_seed_all = lambda seed: None
torch.utils.rename_privateuse1_backend("npu")
torch._register_device_module("npu", npu)
sys.modules["torch.npu"] = npu
# torch.accelerator's functions, which need a device in C++, are those that the program gives this npu
torch.accelerator.set_device_index = lambda index: npu.set_device(index)
torch.accelerator.device_index = lambda index: npu.device(index)
torch.accelerator.synchronize = lambda index: npu.synchronize(index)
"""

# What a driver of NVIDIA would report to torch, for a machine with N GPUs.
CUDA = """
import os, torch
from toprope.visible_devices import cuda_map
uuids = ["GPU-abc-0", "GPU-def-1", "GPU-012-2", "GPU-345-3"]
seen = len(cuda_map(os.environ.get("CUDA_VISIBLE_DEVICES"), {count}, uuids[:{count}]))
torch.cuda.device_count = lambda: seen
torch.cuda.is_available = lambda: seen > 0
"""


def in_python(count=1, current=0, used=False):
    return IN_PYTHON.format(count=count, current=current, used=used)


def cuda(count):
    return CUDA.format(count=count)


def install(folder: Path, name: str, code: str, version: str = "2.13.0", entry_points: str = "") -> None:
    """A package of one module, as pip would have left it in `folder`."""
    distribution = name.replace("_", "-")
    (folder / name).mkdir(parents=True)
    (folder / name / "__init__.py").write_text(textwrap.dedent(code))
    info = folder / f"{name}-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: {version}\n")
    (info / "entry_points.txt").write_text(textwrap.dedent(entry_points))


FOREIGN = ("TOPROPE_S", "TOPROPE_D", "TOPROPE_F", "PREFERRED_DEVICE", "ASCEND", "CUDA_VISIBLE", "PYTEST")


def environment() -> dict[str, str]:
    """This process's variables without those that decide about devices; torch's autoload is off."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(FOREIGN)}
    return kept | {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}


def run(code: str, *folders: Path, timeout: float = 250, **variables: str) -> subprocess.CompletedProcess:
    """Runs code in a Python that has torch, and finds these folders first."""
    return _run(forkserver.run, code, folders, timeout, variables)


def run_anew(code: str, *folders: Path, timeout: float = 250, **variables: str) -> subprocess.CompletedProcess:
    """Runs code in a Python of its own, which has not imported torch yet."""
    return _run(subprocess.run, code, folders, timeout, variables)


def _run(by, code, folders, timeout, variables):
    changed = environment() | variables
    path = [*map(str, folders), *([changed["PYTHONPATH"]] if changed.get("PYTHONPATH") else [])]
    return by(
        [sys.executable, "-c", textwrap.dedent(code)],
        env=changed | {"PYTHONPATH": os.pathsep.join(path)}, capture_output=True, text=True, timeout=timeout,
    )  # fmt: skip


def told(code: str, *folders: Path, by=run, **variables: str):
    """Run code in a process; return the values that it gives to `tell(...)`. The process must end well."""
    begin = "import json\ndef tell(*values):\n    print('told:' + json.dumps(values))\n"
    done = by(begin + textwrap.dedent(code), *folders, **variables)
    assert done.returncode == 0, done.stderr
    lines = [line for line in done.stdout.splitlines() if line.startswith("told:")]
    assert len(lines) == 1, done.stdout
    values = json.loads(lines[0].removeprefix("told:"))
    return values[0] if len(values) == 1 else values
