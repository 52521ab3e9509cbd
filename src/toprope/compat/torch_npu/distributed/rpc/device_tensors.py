"""Pickling of tensors of cards for torch.distributed.rpc, whose own backend carries tensors of the host alone.

backend_registry.py switches it on. A message has a copy in host memory, and the device that it comes from; the receiver
puts it on the device that the sender's map says; for an answer, its own map in reverse. Tests:
tests/compat/test_torch_npu_rpc.py.
"""

from __future__ import annotations

from typing import Any

import torch
from torch._C._distributed_autograd import _current_context
from torch.distributed.rpc import api as _torchs_api
from torch.distributed.rpc import internal
from torch.distributed.rpc.internal import PythonUDF, RemoteException, _InternalRPCPickler

from ..._error_codes import ErrCode, dist_error

__all__ = ["carry_device_tensors", "set_maps"]

Map = dict[torch.device, torch.device]

api: Any = _torchs_api  # its functions are torch's compiled ones, which it does not export

_requests: dict[str, Map] = {}
"""By the name of another worker, where tensors of its requests go."""

_answers: dict[str, Map] = {}
"""By the name of another worker, where tensors of its answers go."""


def set_maps(mine: dict[str, Map], reverse: dict[str, Map]) -> None:
    """Set where received tensors go.

    Args:
        mine: this worker's maps for its requests.
        reverse: by the name of another worker, the reverse of its map for requests to this one.
    """
    _requests.clear()
    _requests.update({worker: {to: of for of, to in entries.items()} for worker, entries in reverse.items()})
    _answers.clear()
    _answers.update({worker: {to: of for of, to in entries.items()} for worker, entries in mine.items()})


class _NoMapError(Exception):
    """A tensor of a device that no map has."""

    def __init__(self, sender: str, kind: str, device: torch.device) -> None:
        receiver = api._get_current_rpc_agent().get_worker_info().name
        super().__init__(
            "TensorPipe RPC backend only supports CPU tensors by default, please move your tensors to CPU before"
            " sending them over RPC, or call `set_device_map` on `TensorPipeRpcBackendOptions` to explicitly configure"
            f" device mapping. {kind} device mapping is not available for destination {receiver} for device {device}"
            f" but received a tensor on that device, from {sender}.{dist_error(ErrCode.PARAM)}"
        )
        self.is_request = kind == "Request"


class _Pickler(_InternalRPCPickler):
    """torch's pickler, with tensors of cards as copies in host memory.

    Args:
        kind: "Request" or "Response", of the messages that it writes.
    """

    def __init__(self, kind: str) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._kind = kind

    def _tensor_reducer(self, tensor: torch.Tensor) -> Any:
        if tensor.device.type != "npu":
            return super()._tensor_reducer(tensor)  # type: ignore[no-untyped-call]
        if tensor.requires_grad and _context_is_active():
            raise NotImplementedError(
                "torch.distributed.autograd does not go through tensors of npu, as with torch_npu; do: send tensors of"
                " the host inside its context, or detached ones"
            )
        receive, position = super()._tensor_reducer(tensor.detach().cpu())  # type: ignore[no-untyped-call]
        sender = api._get_current_rpc_agent().get_worker_info().name
        return _receive, (*position, receive, sender, tensor.device.index, tensor.requires_grad, self._kind)

    def deserialize(self, binary_data: bytes, tensor_table: list[torch.Tensor]) -> Any:
        """Read a message; in the place of one that cannot be placed, what raises the error where its caller waits."""
        try:
            return super().deserialize(binary_data, tensor_table)  # type: ignore[no-untyped-call]
        except _NoMapError as error:
            text = str(error)
            del internal._thread_local_tensor_tables.recv_tables
            return PythonUDF(_raise, (text,), {}) if error.is_request else RemoteException(text, RuntimeError)


def _context_is_active() -> bool:
    """Look whether this thread is inside a context of torch.distributed.autograd."""
    try:
        return _current_context() is not None
    except RuntimeError:  # torch's for none
        return False


def _receive(index: int, receive: Any, sender: str, card: int, requires_grad: bool, kind: str) -> torch.Tensor:
    source = torch.device("npu", card)
    place = (_requests if kind == "Request" else _answers).get(sender, {}).get(source)
    if place is None:
        raise _NoMapError(sender, kind, source)
    tensor: torch.Tensor = receive(index)
    return tensor.to(place).requires_grad_(requires_grad)


def _raise(text: str) -> None:
    raise RuntimeError(text)


def _run_builtin(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return torch._C._jit_get_operation(name)[0](*args, **kwargs)


def _on_card(values: Any) -> bool:
    leaves = torch.utils._pytree.tree_leaves(values)
    return any(isinstance(leaf, torch.Tensor) and leaf.device.type == "npu" for leaf in leaves)


def carry_device_tensors() -> None:
    """Have torch.distributed.rpc carry tensors of cards, in calls of Python functions and of torch's operators."""
    if isinstance(api._default_pickler, _Pickler):
        return
    requests, answers = _Pickler("Request"), _Pickler("Response")
    rpc_builtin, remote_builtin = api._invoke_rpc_builtin, api._invoke_remote_builtin

    def invoke_rpc(to: Any, name: str, timeout: float, *args: Any, **kwargs: Any) -> Any:
        if not _on_card((args, kwargs)):
            return rpc_builtin(to, name, timeout, *args, **kwargs)
        message = requests.serialize(PythonUDF(_run_builtin, (name, args, kwargs), {}))  # type: ignore[no-untyped-call]
        return api._invoke_rpc_python_udf(to, *message, timeout, False)

    def invoke_remote(to: Any, name: str, timeout: float, *args: Any, **kwargs: Any) -> Any:
        if not _on_card((args, kwargs)):
            return remote_builtin(to, name, timeout, *args, **kwargs)
        message = requests.serialize(PythonUDF(_run_builtin, (name, args, kwargs), {}))  # type: ignore[no-untyped-call]
        return api._invoke_remote_python_udf(to, *message, timeout, False)

    api._default_pickler = requests
    api._internal_rpc_pickler = requests  # what a user's pickler gives way to
    internal._internal_rpc_pickler = answers
    api._invoke_rpc_builtin, api._invoke_remote_builtin = invoke_rpc, invoke_remote
