"""torch_npu's sanitizer: races between streams, and memory that is freed while another stream uses it.

Holds sim/npu/_sanitizer.py and _stream_check.py against programs with known races, and _kernel_check.py against folders
laid out as CANN's. tests/sim/test_simulated.py runs this module in a process with simulated cards.
"""

import importlib
import os
from pathlib import Path

import pytest
import torch
import torch.cuda._sanitizer

import toprope.compat
from toprope.sim.npu import trace_callbacks

npu = torch.npu


@pytest.fixture
def handler():
    toprope.compat.install(simulated_card=True)
    sanitizer = importlib.import_module("torch_npu.npu._sanitizer").npu_sanitizer
    sanitizer.enable()
    yield sanitizer.event_handler
    sanitizer.dispatch.__exit__(None, None, None)
    sanitizer.dispatch = None
    trace_callbacks.callbacks.clear()


def used_on_another_stream(*, waits: bool) -> tuple[torch.Tensor, torch.Stream]:
    tensor, stream = torch.ones(3, device="npu"), npu.Stream()
    if waits:
        stream.wait_stream(npu.default_stream())
    with npu.stream(stream):
        tensor + 1
    return tensor, stream


def test_a_read_that_does_not_wait_for_the_write_is_a_race(handler) -> None:
    with pytest.raises(torch.cuda._sanitizer.CUDASanitizerErrors):
        used_on_another_stream(waits=False)


def test_memory_is_freed_before_the_other_stream_is_done(handler) -> None:
    tensor, stream = used_on_another_stream(waits=True)
    assert [error.usage_stream for error in handler.flush_record_stream_warnings()] == [stream.npu_stream]
    del tensor
    assert len(handler.record_stream_errors) == 2
    kept, stream = used_on_another_stream(waits=True)
    npu.default_stream().wait_stream(stream)
    assert handler.flush_record_stream_warnings() == []
    kept, stream = used_on_another_stream(waits=True)
    kept.record_stream(stream)
    assert handler.flush_record_stream_warnings() == []


KERNELS = Path("built-in", "op_impl", "ai_core", "tbe", "kernel")


@pytest.fixture
def kernel_check(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The module, in an empty folder; its variables are put back."""
    toprope.compat.install(simulated_card=True)
    monkeypatch.chdir(tmp_path)
    for name in ("ASCEND_OPP_PATH", "ASCEND_OPP_DEBUG_PATH"):
        monkeypatch.setenv(name, str(tmp_path / name))
    monkeypatch.setenv("ASCEND_LAUNCH_BLOCKING", "0")
    return importlib.import_module("torch_npu.npu._kernel_check")


def test_the_copy_of_the_operators_has_the_kernels_for_debugging(kernel_check, tmp_path: Path) -> None:
    for name in ("ASCEND_OPP_PATH", "ASCEND_OPP_DEBUG_PATH"):
        (tmp_path / name / KERNELS).mkdir(parents=True)
        (tmp_path / name / KERNELS / "add.o").write_text(name)
    (tmp_path / "ASCEND_OPP_PATH" / "version.info").write_text("1")
    manager = kernel_check.KernelPathManager()
    copy = Path(os.environ["ASCEND_OPP_PATH"])
    assert copy == tmp_path / "opp_debug_path"
    assert os.environ["ASCEND_LAUNCH_BLOCKING"] == "1"
    assert (copy / "version.info").read_text() == "1"
    assert (copy / KERNELS / "add.o").read_text() == "ASCEND_OPP_DEBUG_PATH"
    manager.clear_debug_env()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["ASCEND_OPP_DEBUG_PATH", "ASCEND_OPP_PATH"]
    for name in ("ASCEND_OPP_PATH", "ASCEND_OPP_DEBUG_PATH"):
        assert (tmp_path / name / KERNELS / "add.o").read_text() == name


def test_without_the_folders_nothing_is_copied(kernel_check, tmp_path: Path) -> None:
    kernel_check.KernelPathManager()
    assert [path.name for path in tmp_path.iterdir()] == ["opp_debug.lock"]
