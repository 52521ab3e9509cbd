"""Facade program: report on the environment like torch.utils.collect_env's, with the versions of torch_npu and CANN.

`python -m torch_npu.utils.collect_env` prints it. The rows are torch's, those of torch_npu and CANN torch_npu's; what
is not there is said so. Tests: tests/compat/test_torch_npu_utils.py.
"""

from __future__ import annotations

import os
import re
import site
import sys
import warnings
from collections import namedtuple
from typing import Any

import torch
from torch.utils import collect_env as _torchs

from .._facade import version

__all__: list[str] = []

TORCH_AVAILABLE = True
TORCH_NPU_AVAILABLE = True

torch_collect_env: Any = _torchs  # it has no annotations
torch_npu = sys.modules[__name__.removesuffix(".utils.collect_env")] if __name__ != "__main__" else None

_LABELS = {
    "torch_version": "PyTorch version",
    "torch_npu_version": "Torch-npu version",
    "is_debug_build": "Is debug build",
    "os": "OS",
    "gcc_version": "GCC version",
    "clang_version": "Clang version",
    "cmake_version": "CMake version",
    "libc_version": "Libc version",
    "": "",
    "python_version": "Python version",
    "python_platform": "Python platform",
    "is_xnnpack_available": "Is XNNPACK available",
}
"""Fields at the top of the report, in their order. An empty one is an empty line."""

SystemEnv = namedtuple(
    "SystemEnv",
    "torch_version torch_npu_version is_debug_build gcc_version clang_version cmake_version os libc_version"
    " python_version python_platform pip_version pip_packages conda_packages caching_allocator_config"
    " is_xnnpack_available cpu_info cann_version",
)
"""Values of the report."""


def get_torch_npu_install_path() -> str:
    """The folder in which packages are installed; an empty text where Python has none."""
    folders = site.getsitepackages()
    return folders[0] if folders else ""


def check_path_owner_consistent(path: str) -> None:
    """Check that a path exists. Deprecated: torch_npu once compared its owner here.

    Raises:
        RuntimeError: it does not exist.
    """
    warnings.warn("check_path_owner_consistent is deprecated and compares no owners.", FutureWarning, stacklevel=2)
    if not os.path.exists(path):
        raise RuntimeError(f"The path does not exist: {path}")


def check_directory_path_readable(path: str) -> None:
    """Check that a path can be read.

    Raises:
        RuntimeError: it does not exist, is a link, or cannot be read.
    """
    if not os.path.exists(path):
        raise RuntimeError(f"The path does not exist: {path}")
    if os.path.islink(path):
        raise RuntimeError(f"Invalid path is a symbolic link: {path}")
    if not os.access(path, os.R_OK):
        raise RuntimeError(f"The path permission check failed: {path}")


def get_cann_version() -> str:
    """CANN's version by the files of ASCEND_HOME_PATH: "not known" in the folder that a simulated run names.

    Raises:
        RuntimeError: the folder cannot be read.
    """
    home = os.path.realpath(os.environ.get("ASCEND_HOME_PATH", ""))
    check_directory_path_readable(home)
    found = "not known"
    for folder, _, files in os.walk(home):
        for name in [name for name in files if re.match(r"ascend_.*_install\.info", name)][:1]:
            with open(os.path.join(folder, name), encoding="utf-8") as lines:
                found = next((line.strip().rpartition("=")[2] for line in lines if "version" in line), found)
    return found


def get_torch_npu_version() -> str:
    """The version of torch_npu, here the facade's; "N/A" without it."""
    return version() if TORCH_NPU_AVAILABLE else "N/A"


def get_env_info() -> Any:
    """Collect the report's fields, some from programs such as gcc and pip; this takes seconds."""
    run = torch_collect_env.run
    pip_version, pip_packages = torch_collect_env.get_pip_packages(run)
    python = sys.version.replace("\n", " ")
    return SystemEnv(
        torch_version=torch.__version__ if TORCH_AVAILABLE else "N/A",
        torch_npu_version=get_torch_npu_version(),
        is_debug_build=str(torch.version.debug) if TORCH_AVAILABLE else "N/A",
        gcc_version=torch_collect_env.get_gcc_version(run),
        clang_version=torch_collect_env.get_clang_version(run),
        cmake_version=torch_collect_env.get_cmake_version(run),
        os=torch_collect_env.get_os(run),
        libc_version=torch_collect_env.get_libc_version(),
        python_version=f"{python} ({sys.maxsize.bit_length() + 1}-bit runtime)",
        python_platform=torch_collect_env.get_python_platform(),
        pip_version=pip_version,
        pip_packages=pip_packages,
        conda_packages=torch_collect_env.get_conda_packages(run),
        caching_allocator_config=torch_collect_env.get_cachingallocator_config(),
        is_xnnpack_available=torch_collect_env.is_xnnpack_available(),
        cpu_info=torch_collect_env.get_cpu_info(run),
        cann_version=get_cann_version(),
    )


def pretty_str(envinfo: Any) -> str:
    """The report as text.

    Args:
        envinfo: a SystemEnv.
    """
    values = {name: _shown(value) for name, value in envinfo._asdict().items()}
    lines = [f"{label}: {values[name]}" if name else "" for name, label in _LABELS.items()]
    lines += ["", "CPU:", str(envinfo.cpu_info), "", "CANN:", values["cann_version"]]
    lines += ["", "Versions of relevant libraries:"]
    for tag, name in ((envinfo.pip_version, "pip_packages"), ("conda", "conda_packages")):
        text = values[name] or "No relevant packages"
        lines += [f"[{tag}] {line}" for line in text.split("\n")]
    return "\n".join(lines).strip()


def get_pretty_env_info() -> str:
    """The report on this environment as text."""
    return pretty_str(get_env_info())


def main() -> None:
    """Print the report on this environment."""
    print("Collecting environment information...")
    print(get_pretty_env_info())


def _shown(value: object) -> str:
    if value is None:
        return "Could not collect"
    return {True: "Yes", False: "No"}[value] if isinstance(value, bool) else str(value)


if __name__ == "__main__":
    main()
