"""Facade module: the backend NPU_TENSORPIPE of torch.distributed.rpc, which is torch's TENSORPIPE with maps of cards.

`torch_npu.distributed` registers it. Torch checks the maps; the devices of each worker are found here. The workers of a
group must be known when it is made: torch_npu raises a NameError where they are not. NPU_FAULTY_TENSORPIPE, for tests
of torch's own, is not here. Tests: tests/compat/test_torch_npu_rpc.py. Source:
torch_npu/distributed/rpc/backend_registry.py of Ascend/pytorch.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
import torch.distributed.rpc as rpc
from torch._C._distributed_c10d import Store
from torch._C._distributed_rpc import TensorPipeAgent
from torch.distributed.rpc import api as _torchs_api
from torch.distributed.rpc import backend_registry as _torchs
from torch.distributed.rpc import constants as rpc_constants

from toprope.compat.missing import missing_from

from ..._error_codes import ErrCode, dist_error
from .device_tensors import carry_device_tensors, set_maps

__all__: list[str] = []

api: Any = _torchs_api  # its functions are torch's compiled ones, which it does not export

_backend_type_repr = _torchs._backend_type_repr
_construct_rpc_backend_options = _torchs.construct_rpc_backend_options
_init_backend = _torchs.init_backend

_torchs_check = _torchs._tensorpipe_validate_devices


def _get_device_count_info() -> dict[str, int]:
    return {"npu": torch.npu.device_count()}  # type: ignore[attr-defined]


def _init_device_state(custom_backend_name: str) -> None:
    module = getattr(torch, custom_backend_name)
    if module.is_available():
        module.init()


def _tensorpipe_validate_devices(devices: Iterable[torch.device], device_count: dict[str, int] | int) -> bool:
    """Look whether there are all of the devices; by kind where the number is given by kind."""
    if isinstance(device_count, int):
        return _torchs_check(devices, device_count)  # type: ignore[no-untyped-call, no-any-return]
    return all(each.type == "cpu" or 0 <= each.index < device_count.get(each.type, 0) for each in devices)


def _validate_device_maps(
    all_names: list[str],
    all_device_counts: dict[str, dict[str, int]],
    all_device_maps: dict[str, dict[str, dict[torch.device, torch.device]]],
    all_devices: dict[str, list[torch.device]],
    is_static_group: bool = True,
) -> None:
    try:
        _torchs._validate_device_maps(all_names, all_device_counts, all_device_maps, all_devices, is_static_group)  # type: ignore[no-untyped-call]
    except ValueError as error:
        raise ValueError(f"{error}{dist_error(ErrCode.VALUE)}") from None


def _get_device_infos() -> Any:
    options = api._get_current_rpc_agent()._get_backend_options()
    if options.devices:
        _init_device_state(options.devices[0].type)
    return _get_device_count_info(), options.device_maps, options.devices


def _tensorpipe_exchange_and_check_all_device_maps(
    my_name: str, my_device_count: dict[str, int], my_device_maps: Any, my_devices: list[torch.device], group: Any
) -> Any:
    return _torchs._tensorpipe_exchange_and_check_all_device_maps(  # type: ignore[no-untyped-call]
        my_name, my_device_count, my_device_maps, my_devices, group
    )


def _set_devices_and_reverse_device_map(agent: Any) -> None:
    raise NotImplementedError(
        "toprope's NPU_TENSORPIPE has no groups that workers join later, and torch_npu's raises NameError for one;"
        " do: give init_rpc world_size"
    )


def _npu_tensorpipe_construct_rpc_backend_options_handler(
    rpc_timeout: float,
    init_method: str,
    num_worker_threads: int = rpc_constants.DEFAULT_NUM_WORKER_THREADS,
    _transports: list[Any] | None = None,
    _channels: list[Any] | None = None,
    **kwargs: Any,
) -> Any:
    from .options import NPUTensorPipeRpcBackendOptions

    return NPUTensorPipeRpcBackendOptions(
        rpc_timeout=rpc_timeout,
        init_method=init_method,
        num_worker_threads=num_worker_threads,
        _transports=_transports,
        _channels=_channels,
    )


def _npu_tensorpipe_init_backend_handler(
    store: Any, name: str, rank: int, world_size: int | None, rpc_backend_options: Any
) -> Any:
    from .options import NPUTensorPipeRpcBackendOptions

    if not isinstance(store, Store):
        raise TypeError(f"`store` must be a c10d::Store. {store}{dist_error(ErrCode.TYPE)}")
    if not isinstance(rpc_backend_options, NPUTensorPipeRpcBackendOptions):
        raise TypeError(
            f"`rpc_backend_options` must be a `NPUTensorPipeRpcBackendOptions`. {rpc_backend_options}"
            f"{dist_error(ErrCode.TYPE)}"
        )
    if not world_size:
        _set_devices_and_reverse_device_map(None)
    carry_device_tensors()
    group = _torchs._init_process_group(store, rank, world_size)  # type: ignore[no-untyped-call]
    maps = rpc_backend_options.device_maps
    reverse, devices = _tensorpipe_exchange_and_check_all_device_maps(
        name, _get_device_count_info(), maps, rpc_backend_options.devices, group
    )
    if devices:
        _init_device_state(devices[0].type)
    set_maps(maps, reverse)
    agent = TensorPipeAgent(store, name, rank, world_size, rpc_backend_options, {}, [])
    api._init_rpc_states(agent)
    # As torch does: a request to all, so that none of the first ones waits for the connections
    api._all_gather(None, timeout=rpc_backend_options.rpc_timeout)
    group.barrier().wait()
    return agent


def _rpc_backend_registry() -> None:
    """Make NPU_TENSORPIPE a backend of torch.distributed.rpc."""
    if _torchs.backend_registered("NPU_TENSORPIPE"):  # type: ignore[no-untyped-call]
        return
    _torchs._tensorpipe_validate_devices = _tensorpipe_validate_devices
    _torchs.register_backend(  # type: ignore[no-untyped-call]
        "NPU_TENSORPIPE",
        _npu_tensorpipe_construct_rpc_backend_options_handler,
        _npu_tensorpipe_init_backend_handler,
    )
    rpc.BackendType = _torchs.BackendType  # type: ignore[misc]


__getattr__ = missing_from(__name__)
