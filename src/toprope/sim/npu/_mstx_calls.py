"""Functions of `torch_npu._C._mstx` that `torch.npu.mstx` calls. A tool may put functions of its own in their place.

Tests: tests/sim/simulated/test_npu_settings.py.
"""

from __future__ import annotations

__all__: list[str] = []

_NO_RANGE = 0
_NO_DEPTH = -1


def _mark(
    message: str, stream_id: int = 0, device_index: int = 0, device_type: int = 0, domain: str = "default"
) -> None: ...


def _mark_on_host(message: str, domain: str = "default") -> None: ...


def _range_start(
    message: str, stream_id: int = 0, device_index: int = 0, device_type: int = 0, domain: str = "default"
) -> int:
    return _NO_RANGE


def _range_start_on_host(message: str, domain: str = "default") -> int:
    return _NO_RANGE


def _range_end(range_id: int, domain: str = "default") -> None: ...


def _range_push(
    message: str, stream_id: int = 0, device_index: int = 0, device_type: int = 0, domain: str = "default"
) -> int:
    return _NO_DEPTH


def _range_push_on_host(message: str, domain: str = "default") -> int:
    return _NO_DEPTH


def _range_pop(domain: str = "default") -> int:
    return _NO_DEPTH
