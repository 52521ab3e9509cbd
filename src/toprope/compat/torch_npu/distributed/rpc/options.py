"""Facade module: options of the RPC backend NPU_TENSORPIPE, with its map of devices between workers.

Names, arguments and errors are torch_npu's: torch_npu/distributed/rpc/options.py of Ascend/pytorch. Tests:
tests/compat/test_torch_npu_rpc.py.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed.rpc.constants as rpc_constants
from torch._C._distributed_rpc import _TensorPipeRpcBackendOptionsBase
from torch.distributed.rpc.options import _to_device_map as _torchs_map

from toprope.compat.missing import missing_from

from ..._error_codes import ErrCode, dist_error

__all__ = ["NPUTensorPipeRpcBackendOptions"]

DeviceType = int | str | torch.device


def _to_device(device: DeviceType) -> torch.device:
    made = torch.device(device)
    if made.type != "npu":
        raise ValueError(
            f"`set_devices` expect a list of npu devices, but got device type {made.type}.{dist_error(ErrCode.VALUE)}"
        )
    return made


def _to_device_map(device_map: dict[DeviceType, DeviceType]) -> dict[torch.device, torch.device]:
    try:
        return _torchs_map(device_map)
    except ValueError as error:
        raise ValueError(f"{error}{dist_error(ErrCode.VALUE)}") from None


def _to_device_list(devices: list[DeviceType]) -> list[torch.device]:
    return [_to_device(device) for device in devices]


class NPUTensorPipeRpcBackendOptions(_TensorPipeRpcBackendOptionsBase):
    """Options of `init_rpc` for the backend NPU_TENSORPIPE.

    Args:
        num_worker_threads: threads that run requests.
        rpc_timeout: seconds until a request fails.
        init_method: URL by which the workers find each other.
        device_maps: by the name of another worker, to which of its devices tensors of a device go.
        devices: cards that are used; empty for those of the maps.
    """

    def __init__(
        self,
        *,
        num_worker_threads: int = rpc_constants.DEFAULT_NUM_WORKER_THREADS,
        rpc_timeout: float = rpc_constants.DEFAULT_RPC_TIMEOUT_SEC,
        init_method: str = rpc_constants.DEFAULT_INIT_METHOD,
        device_maps: dict[str, dict[DeviceType, DeviceType]] | None = None,
        devices: list[DeviceType] | None = None,
        _transports: list[Any] | None = None,
        _channels: list[Any] | None = None,
    ) -> None:
        super().__init__(
            num_worker_threads,
            _transports,
            _channels,
            rpc_timeout,
            init_method,
            {worker: _to_device_map(entries) for worker, entries in (device_maps or {}).items()},
            _to_device_list(devices or []),
        )

    def set_device_map(self, to: str, device_map: dict[DeviceType, DeviceType]) -> None:
        """Add to the map of another worker.

        Raises:
            ValueError: two devices go to one, or a device that has a place gets another one.
        """
        added = _to_device_map(device_map)
        known = super().device_maps.get(to, {})
        for device, place in added.items():
            if known.get(device, place) != place:
                raise ValueError(
                    f"`set_device_map` only supports 1-to-1 mapping, trying to map {device} to {place} and"
                    f" {known[device]}{dist_error(ErrCode.VALUE)}"
                )
        super()._set_device_map(to, added)

    def set_devices(self, devices: list[DeviceType]) -> None:
        """Choose the cards that are used.

        Raises:
            ValueError: one is no card.
        """
        self.devices = _to_device_list(devices)


__getattr__ = missing_from(__name__)
