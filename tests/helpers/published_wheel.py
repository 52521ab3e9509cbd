"""The published torch-npu wheel, for tests that hold something against it. Not a test.

It is one in the folder that TOPROPE_CORPUS names, else pip downloads it into pytest's cache; where neither is to be
had, the test that asks is skipped and says why.

Used by tests of `compat`, `sim` and `device`; the search itself is scripts/torch_npu_names/published.py.
"""

import os
import sys
import zipfile
from pathlib import Path

import pytest

from torch_npu_names import Published, Unreadable, find
from torch_npu_names.report import MINOR

DOWNLOAD_LIMIT = 150


def found(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, read=lambda path: path):
    """The wheel, or a folder in which one was unpacked, as `read` returns it."""
    cache = request.config.cache if hasattr(request.config, "cache") else None
    folder = Path(cache.mkdir("torch-npu")) if cache else tmp_path_factory.mktemp("torch-npu")
    try:
        return read(find(os.environ.get("TOPROPE_CORPUS", ""), MINOR, folder, DOWNLOAD_LIMIT))
    except Unreadable as why:
        pytest.skip(f"the published torch-npu wheel cannot be had: {why}")


def names(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Published:
    """The names and signatures in the wheel."""
    return found(request, tmp_path_factory, Published)


_sites: dict[Path, Path] = {}  # one for all tests of a session


def unpacked(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that, on PYTHONPATH, has torch_npu installed, as by pip install --target --no-deps; without CANN."""
    if Path("/usr/local/Ascend").exists() or os.environ.get("ASCEND_HOME_PATH"):
        pytest.skip("this machine has CANN")
    wheel = found(request, tmp_path_factory)
    wheels = [wheel] if wheel.is_file() else sorted(wheel.parent.glob("*.whl"))
    if not wheels or f"cp{sys.version_info.major}{sys.version_info.minor}" not in wheels[0].name:
        pytest.skip(f"{wheel} is no wheel for this Python")
    if wheels[0] not in _sites:
        _sites[wheels[0]] = tmp_path_factory.mktemp("site")
        with zipfile.ZipFile(wheels[0]) as archive:
            archive.extractall(_sites[wheels[0]])
    return _sites[wheels[0]]
