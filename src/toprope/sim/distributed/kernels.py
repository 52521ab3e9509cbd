"""torch's operators for collectives, `c10d::allreduce_` and others, for tensors on cards.

process_group.py registers them. torch's process groups call them, from Python, from DDP's C++ and from compiled
functional collectives alike. torch's own kernels would give device tensors to the C++ backend, which is gloo here and
cannot read them; these call collectives.py. Their arguments are those of the schemas in torch's c10d/Ops.cpp. Tests:
tests/sim/test_distributed.py.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
from torch.distributed import ProcessGroup, ReduceOp

from toprope.sim.distributed import batch_norm, collectives
from toprope.sim.distributed.staging import host

__all__ = ["register"]

_c10d: Any = torch._C._distributed_c10d  # torch's stubs name a part of it

_registered: list[Any] = []
_ours: list[type] = []


def register(backend: type) -> None:
    """Put the kernels in place, once.

    Args:
        backend: the class whose process groups they serve; those of other backends get their tensors as they are.
    """
    if _registered:
        return
    _ours.append(backend)
    library: Any = torch.library.Library("c10d", "IMPL", "PrivateUse1")  # type: ignore[no-untyped-call]
    with warnings.catch_warnings():
        # torch warns that its own kernels, which serve every out-of-tree backend, are replaced
        warnings.filterwarnings("ignore", message=r"\s*Warning only once for all operators")
        for name, kernel in _KERNELS.items():
            library.impl(name, kernel, allow_override=True)
    aten: Any = torch.library.Library("aten", "IMPL", "PrivateUse1")  # type: ignore[no-untyped-call]
    batch_norm.register(aten)
    _registered.extend((library, aten))


def _call(group: Any, name: str, *arguments: Any) -> Any:
    """One collective of the group's backend for the cards, as a script object."""
    backend: Any = ProcessGroup.unbox(group)._get_backend(torch.device("npu"))
    ours = isinstance(collectives.unwrapped(backend), _ours[0])
    function: Callable[..., Any] = getattr(
        collectives if ours else _c10d.Backend, name if ours else _CXX.get(name, name)
    )
    return function(backend, *arguments).boxed()


_CXX = {"allgather_base": "_allgather_base", "reduce_scatter_base": "_reduce_scatter_base"}
"""Names of the C++ backends' methods, where ours have others."""


def _options(kind: Callable[[], Any], async_op: bool, timeout: int, operation: Any = None, **fields: Any) -> Any:
    options = kind()
    options.asyncOp = async_op
    if timeout >= 0:
        options.timeout = timedelta(milliseconds=timeout)
    if operation is not None:
        options.reduceOp = _operation(operation)
    for name, value in fields.items():
        setattr(options, name, value)
    return options


def _operation(boxed: Any) -> ReduceOp:
    kind = ReduceOp.RedOpType(boxed.op())
    if kind != ReduceOp.PREMUL_SUM:
        return ReduceOp(kind)
    number, tensor = torch.ops.toprope_sim.premul_factor(boxed)
    made: ReduceOp = _c10d._make_nccl_premul_sum(number if tensor is None else tensor)
    return made


def _allreduce(tensors: Any, group: Any, op: Any, sparse: Any = None, async_op: bool = True, timeout: int = -1) -> Any:
    return tensors, _call(group, "allreduce", tensors, _options(_c10d.AllreduceOptions, async_op, timeout, op))


def _allreduce_coalesced(tensors: Any, group: Any, op: Any, async_op: bool = True, timeout: int = -1) -> Any:
    options = _options(_c10d.AllreduceCoalescedOptions, async_op, timeout, op)
    return _call(group, "allreduce_coalesced", tensors, options)


def _broadcast(tensors: Any, group: Any, root: int, root_tensor: int, async_op: bool = True, timeout: int = -1) -> Any:
    options = _options(_c10d.BroadcastOptions, async_op, timeout, rootRank=root, rootTensor=root_tensor)
    return tensors, _call(group, "broadcast", tensors, options)


def _reduce(
    tensors: Any, group: Any, op: Any, root: int, root_tensor: int, async_op: bool = True, timeout: int = -1
) -> Any:
    options = _options(_c10d.ReduceOptions, async_op, timeout, op, rootRank=root, rootTensor=root_tensor)
    return _call(group, "reduce", tensors, options)


def _allgather(outputs: Any, inputs: Any, group: Any, async_op: bool = True, timeout: int = -1) -> Any:
    return outputs, _call(group, "allgather", outputs, inputs, _options(_c10d.AllgatherOptions, async_op, timeout))


def _allgather_base(output: Any, source: Any, group: Any, async_op: bool = True, timeout: int = -1) -> Any:
    return output, _call(group, "allgather_base", output, source, _options(_c10d.AllgatherOptions, async_op, timeout))


def _allgather_coalesced(outputs: Any, inputs: Any, group: Any, async_op: bool = True) -> Any:
    return _call(group, "allgather_coalesced", outputs, inputs, _options(_c10d.AllgatherOptions, async_op, -1))


def _allgather_into_tensor_coalesced(outputs: Any, inputs: Any, group: Any, async_op: bool = True) -> Any:
    return _call(
        group, "allgather_into_tensor_coalesced", outputs, inputs, _options(_c10d.AllgatherOptions, async_op, -1)
    )


def _gather(outputs: Any, inputs: Any, group: Any, root: int, async_op: bool = True, timeout: int = -1) -> Any:
    return _call(group, "gather", outputs, inputs, _options(_c10d.GatherOptions, async_op, timeout, rootRank=root))


def _scatter(outputs: Any, inputs: Any, group: Any, root: int, async_op: bool = True, timeout: int = -1) -> Any:
    options = _options(_c10d.ScatterOptions, async_op, timeout, rootRank=root)
    return outputs, _call(group, "scatter", outputs, inputs, options)


def _reduce_scatter(outputs: Any, inputs: Any, group: Any, op: Any, async_op: bool = True, timeout: int = -1) -> Any:
    options = _options(_c10d.ReduceScatterOptions, async_op, timeout, op)
    return outputs, _call(group, "reduce_scatter", outputs, inputs, options)


def _reduce_scatter_base(
    output: Any, source: Any, group: Any, op: Any, async_op: bool = True, timeout: int = -1
) -> Any:
    options = _options(_c10d.ReduceScatterOptions, async_op, timeout, op)
    return output, _call(group, "reduce_scatter_base", output, source, options)


def _reduce_scatter_tensor_coalesced(
    outputs: Any, inputs: Any, group: Any, op: Any, async_op: bool = True, timeout: int = -1
) -> Any:
    options = _options(_c10d.ReduceScatterOptions, async_op, timeout, op)
    return _call(group, "reduce_scatter_tensor_coalesced", outputs, inputs, options)


def _alltoall(outputs: Any, inputs: Any, group: Any, async_op: bool = True, timeout: int = -1) -> Any:
    return outputs, _call(group, "alltoall", outputs, inputs, _options(_c10d.AllToAllOptions, async_op, timeout))


def _alltoall_base(
    output: Any, source: Any, group: Any, output_sizes: Any, sizes: Any, async_op: bool = True, timeout: int = -1
) -> Any:
    options = _options(_c10d.AllToAllOptions, async_op, timeout)
    return _call(group, "alltoall_base", output, source, output_sizes, sizes, options)


def _barrier(tensor: Any, group: Any, device_ids: Any, async_op: bool = True, timeout: int = -1) -> Any:
    host(tensor)  # waits for the work on the current stream, which a barrier comes after
    return _call(group, "barrier", _options(_c10d.BarrierOptions, async_op, timeout, device_ids=device_ids))


def _send(tensors: Any, group: Any, destination: int, tag: int) -> Any:
    return _call(group, "send", tensors, destination, tag)


def _recv(tensors: Any, group: Any, source: int, tag: int) -> Any:
    return _call(group, "recv", tensors, source, tag)


def _recv_any_source(tensors: Any, group: Any, tag: int) -> Any:
    return _call(group, "recv_anysource", tensors, tag)


_KERNELS: dict[str, Callable[..., Any]] = {
    "allreduce_": _allreduce,
    "allreduce_coalesced_": _allreduce_coalesced,
    "broadcast_": _broadcast,
    "reduce_": _reduce,
    "allgather_": _allgather,
    "_allgather_base_": _allgather_base,
    "allgather_coalesced_": _allgather_coalesced,
    "allgather_into_tensor_coalesced_": _allgather_into_tensor_coalesced,
    "gather_": _gather,
    "scatter_": _scatter,
    "reduce_scatter_": _reduce_scatter,
    "_reduce_scatter_base_": _reduce_scatter_base,
    "reduce_scatter_tensor_coalesced_": _reduce_scatter_tensor_coalesced,
    "alltoall_": _alltoall,
    "alltoall_base_": _alltoall_base,
    "barrier": _barrier,
    "send": _send,
    "recv_": _recv,
    "recv_any_source_": _recv_any_source,
}
