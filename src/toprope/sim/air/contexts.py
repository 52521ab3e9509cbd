"""torchair's scopes as context managers around operators of a model that is compiled, without a graph break.

Programs import them from `torchair.scope` (toprope.compat.torchair). Outside of compilation they do nothing. Arguments
are kept as text and not checked here: a wrong number of cores is an error when the graph is built
(graph/core_numbers.py). Tests: tests/sim/simulated/test_graph.py.
"""

from __future__ import annotations

import warnings
from typing import Any

import torch

import toprope.sim.air.operators  # noqa: F401 - registers what Scope calls
from toprope.sim.air import scopes

__all__ = [
    "Scope",
    "data_dump",
    "limit_core_num",
    "npu_stream_switch",
    "npu_wait_tensor",
    "op_never_timeout",
    "super_kernel",
]


class Scope:
    """A context whose operators carry attributes.

    Args:
        attributes: keys and values.
    """

    def __init__(self, attributes: dict[str, str]) -> None:
        self.attributes = attributes

    def __enter__(self) -> None:
        torch.ops.air.scope_enter(list(self.attributes.keys()), list(self.attributes.values()))

    def __exit__(self, *error: object) -> None:
        torch.ops.air.scope_exit()


_warned = False


def _warn_of_parameter_name() -> None:
    """Warn, once in a process, that some documents name a parameter otherwise than torchair does."""
    global _warned
    if not _warned:
        _warned = True
        warnings.warn(
            "limit_core_num's second parameter is op_vectorcore_num; op_vector_num, as some documents have it, is a"
            " TypeError with torchair itself.",
            stacklevel=3,
        )


# While a graph is traced, it runs then and leaves nothing behind: torch.compiler.assume_constant_result, which would
# import the compiler.
_warn_of_parameter_name._dynamo_marked_constant = True  # type: ignore[attr-defined]


def limit_core_num(op_aicore_num: Any, op_vectorcore_num: Any = None, *, op_vector_num: Any = None) -> Scope:
    """Limit the cores of the operators inside.

    Args:
        op_aicore_num: cube cores, 1 to those of the chip.
        op_vectorcore_num: vector cores, likewise; 0 on a chip that has none.
        op_vector_num: the same, by the name that some documents have. toprope takes it and warns once; torchair
            does not.

    Raises:
        TypeError: the vector cores are given twice or not at all.
    """
    if op_vector_num is not None:
        if op_vectorcore_num is not None:
            raise TypeError("limit_core_num() got both op_vectorcore_num and op_vector_num, which are one parameter")
        _warn_of_parameter_name()
        op_vectorcore_num = op_vector_num
    if op_vectorcore_num is None:
        raise TypeError("limit_core_num() missing 1 required positional argument: 'op_vectorcore_num'")
    return Scope({scopes.AICORE: str(op_aicore_num), scopes.VECTORCORE: str(op_vectorcore_num)})


def npu_stream_switch(stream_tag: str, stream_priority: int = 0, enable_inner_parallel: bool = True) -> Scope:
    """Send the operators inside to another stream.

    Args:
        stream_tag: name of the stream; scopes of the same name share one.
        stream_priority: kept on the operators, without effect.
        enable_inner_parallel: likewise.
    """
    return Scope(
        {
            scopes.STREAM_LABEL: stream_tag,
            scopes.STREAM_PRIORITY: str(stream_priority),
            scopes.PARALLEL: str(enable_inner_parallel),
        }
    )


def super_kernel(scope: str | None, options: str = "") -> Scope:
    """Mark the operators inside as parts of one fused kernel. Kept on the operators; nothing is fused.

    Args:
        scope: name of the kernel; None or "" takes operators out of the one around.
        options: of the fusion.
    """
    return Scope({scopes.SUPER_KERNEL: scope or "", scopes.SUPER_KERNEL_OPTIONS: options})


def op_never_timeout(enable: bool = True) -> Scope:
    """Exempt the operators inside from the detection of time-outs: a deadlock among them would last for ever.

    Raises:
        TypeError: `enable` is not a bool.
    """
    if not isinstance(enable, bool):
        raise TypeError(f"op_never_timeout() argument 'enable' must be bool, but got {type(enable).__name__}.")
    return Scope({scopes.NEVER_TIMEOUT: str(enable)})


def data_dump() -> Scope:
    """Mark the operators inside for a dump of their tensors. Kept on the operators; nothing is dumped."""
    return Scope({scopes.DATA_DUMP: "True"})


def npu_wait_tensor(self: torch.Tensor, dependency: torch.Tensor) -> torch.Tensor:
    """Let what uses a tensor from here on, in a compiled graph, wait for the operator that makes another one.

    In mode "max-autotune", the stream of the scope around waits too.

    Args:
        self: an input of the operator that is to wait.
        dependency: an output of the operator that it waits for.

    Returns:
        `self`.

    Raises:
        NotImplementedError: outside of a graph, or in a graph of another mode.
    """
    waited: torch.Tensor = torch.ops.air.wait_tensor(self, dependency)
    return waited
