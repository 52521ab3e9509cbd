"""torch_npu's sanitizer: races between streams, and memory that is freed while another stream uses it.

Holds sim/npu/_sanitizer.py and _stream_check.py against programs with known races. tests/sim/test_simulated.py runs
this module in a process with simulated cards.
"""

import importlib

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
