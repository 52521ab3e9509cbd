"""Collect the facts for `toprope doctor`: package metadata, variables, files, npu-smi. Imports no torch.

Called by `cli.doctor` and `cli.devices`. What is read from files is in `device.host`, what torch says in
`torch_probe`. A further fact needs a field in `host.machine.Facts` and a row in `cli.output.doctor_text`. Tests:
tests/device/test_doctor_collect.py, tests/device/test_doctor_threads.py.
"""

from __future__ import annotations

import difflib
import grp
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from toprope.device.doctor.torch_probe import WAIT, examine
from toprope.device.host import smi, software
from toprope.device.host.ascend import look_at_machine
from toprope.device.host.machine import Facts, SmiCard

__all__ = ["MASKS", "SHOWN", "collect_facts"]

MASKS = ("ASCEND_RT_VISIBLE_DEVICES", "ASCEND_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES")
"""Variables that restrict the cards of a process or a container."""

SHOWN = (
    *MASKS, "TORCH_DEVICE_BACKEND_AUTOLOAD", "ASCEND_HOME_PATH", "ASCEND_TOOLKIT_HOME", "ASCEND_OPP_PATH",
    "ATB_HOME_PATH", "ASCEND_LAUNCH_BLOCKING", "PYTORCH_NPU_ALLOC_CONF", "TASK_QUEUE_ENABLE", "HCCL_OP_EXPANSION_MODE",
    "HCCL_EXEC_TIMEOUT", "HCCL_CONNECT_TIMEOUT", "ASCEND_GLOBAL_LOG_LEVEL", "TOPROPE_DEVICE", "TOPROPE_SIM",
    "TOPROPE_FALLBACK", "PREFERRED_DEVICE", "RAY_EXPERIMENTAL_NOSET_ASCEND_RT_VISIBLE_DEVICES",
)  # fmt: skip
"""Examined variables, in the order of the report."""

_LIBRARIES = (
    "torch", "torch-npu", "torchvision", "torchair", "triton", "triton-ascend", "transformers", "accelerate",
    "diffusers", "deepspeed", "vllm", "vllm-ascend", "mindspeed", "ray",
)  # fmt: skip
_FOLDERS = ("ASCEND_HOME_PATH", "ASCEND_TOOLKIT_HOME", "ASCEND_OPP_PATH", "ATB_HOME_PATH")


def collect_facts(
    *,
    root: Path = Path("/"),
    environment: Mapping[str, str] | None = None,
    path: list[str] | None = None,
    examining: bool = True,
    wait: float = WAIT,
    memory: bool = False,
) -> Facts:
    """Collect the facts of this machine and of this Python.

    Args:
        root: where the machine's files are; another folder for tests.
        environment: the variables of the process that is looked at; this one's own when left out.
        path: the folders in which Python packages are looked for; sys.path when left out.
        examining: whether child processes import torch and use the devices.
        wait: their time limit, in seconds.
        memory: whether they ask every card for its free memory.
    """
    variables = dict(os.environ if environment is None else environment)
    needed, listed = software.needed_python()
    facts = Facts(
        python=platform.python_version(),
        executable=sys.executable,
        machine=platform.machine(),
        packages=software.installed((*_LIBRARIES, *needed, *listed), sys.path if path is None else path),
        environment=_variables(variables),
        ascend=look_at_machine(root, variables),
        missing_nodes=tuple(name for name in software.node_names()[1] if not (root / "dev" / name).exists()),
        groups=_groups(),
        broken_paths={name: variables[name] for name in _FOLDERS if _is_broken(variables.get(name, ""))},
        software=software.find(root, variables),
    )
    npu_smi = shutil.which("npu-smi", path=variables.get("PATH"))
    smi_child = None if npu_smi is None else smi.start(npu_smi, variables)
    if examining:
        facts = replace(facts, examination=examine(variables, wait=wait, memory=memory))
    if smi_child is None:
        return facts
    cards, error = _end_of_smi(smi_child)
    return replace(facts, npu_smi=npu_smi or "", smi_cards=cards, npu_smi_error=error)


def _variables(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of the report, and those whose names are similar to a mask's."""
    known = {name: environment[name] for name in SHOWN if name in environment}
    for name in sorted(set(environment) - set(SHOWN)):
        if "VIS" in name and difflib.get_close_matches(name, MASKS, n=1, cutoff=0.9):
            known[name] = environment[name]
    return known


def _groups() -> tuple[str, ...]:
    """Names of the groups of this process, which decide whether it may open a card."""

    def name(number: int) -> str:
        try:
            return grp.getgrgid(number).gr_name
        except KeyError:
            return str(number)

    return tuple(name(number) for number in sorted({os.getegid(), *os.getgroups()}))


def _is_broken(folder: str) -> bool:
    return folder != "" and not os.path.isdir(folder)


def _end_of_smi(child: subprocess.Popen[str]) -> tuple[tuple[SmiCard, ...] | None, str]:
    """Wait for npu-smi; return the chips that it lists, or None and the reason."""
    text, error = smi.output(child)
    if error:
        return None, error
    cards = smi.parse(text)
    if not cards:
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        return None, lines[-1][:200] if lines else f"it ended with exit status {child.returncode} and said nothing"
    return cards, ""
