"""Module `torch.npu.npugraph_ex.scope`: contexts for core limits, streams and determinism of operators.

Outside of a graph, a context sets and restores at once. While a graph is traced it marks the operators inside
(toprope.sim.air), and the backend does the rest (toprope.sim.graph). Tests: tests/sim/simulated/test_graph.py.
"""

from __future__ import annotations

from typing import Any

import torch

from toprope.sim.air import operators, scopes
from toprope.sim.air.contexts import Scope
from toprope.sim.npu.deterministic import _get_deterministic_level, set_deterministic_level
from toprope.sim.npu.streams import current_stream

__all__ = ["deterministic", "limit_core_num"]


class _Limit:
    """Sets a stream's limit, and at the end the values that were in force before."""

    def __init__(self, cube: int, vector: int, stream: Any) -> None:
        self._cube = cube
        self._vector = vector
        self._wanted = stream
        self._held: list[tuple[Any, dict[str, int]]] = []

    def __enter__(self) -> _Limit:
        stream = current_stream() if self._wanted is None else self._wanted
        before = torch.npu.get_stream_limit(stream)  # type: ignore[attr-defined]
        try:
            torch.npu.set_stream_limit(stream, self._cube, self._vector)  # type: ignore[attr-defined]
        except BaseException:
            self._restore(stream, before)  # a call that fails half-way has set the cube cores
            raise
        self._held.append((stream, before))
        return self

    def __exit__(self, *error: object) -> None:
        self._restore(*self._held.pop())

    @staticmethod
    def _restore(stream: Any, limits: dict[str, int]) -> None:
        cube, vector = limits["cube_core_num"], limits["vector_core_num"]
        torch.npu.set_stream_limit(stream, cube, vector)  # type: ignore[attr-defined]


class _StreamScope(Scope):
    """A scope about a stream that was named."""

    def __init__(self, attributes: dict[str, str], stream: Any) -> None:
        super().__init__(attributes)
        self.stream = stream

    def __enter__(self) -> None:
        operators.enter_on(self.stream, list(self.attributes.keys()), list(self.attributes.values()))


class _Deterministic:
    """Sets the level of determinism, and at the end the one before."""

    def __init__(self, level: int) -> None:
        self._level = level
        self._before: list[int] = []

    def __enter__(self) -> _Deterministic:
        self._before.append(_get_deterministic_level())
        set_deterministic_level(self._level)
        return self

    def __exit__(self, *error: object) -> None:
        set_deterministic_level(self._before.pop())


def limit_core_num(op_aicore_num: int, op_vectorcore_num: int, stream: Any = None) -> Any:
    """Limit the cores that work on a stream uses, inside the context.

    Args:
        op_aicore_num: cube cores.
        op_vectorcore_num: vector cores.
        stream: the stream; None for the one that is current where the context begins. In a compiled graph it is
            the one of the call that was traced.

    Raises:
        RuntimeError: 107000, more cores than the chip has; nothing is changed then.
    """
    if not torch.compiler.is_compiling():
        return _Limit(op_aicore_num, op_vectorcore_num, stream)
    attributes = {scopes.AICORE: str(op_aicore_num), scopes.VECTORCORE: str(op_vectorcore_num)}
    return Scope(attributes) if stream is None else _StreamScope(attributes, stream)


def deterministic(level: int) -> Any:
    """Set how much is deterministic inside the context: 0 nothing, 1 results, 2 stricter.

    Operators of compiled graphs carry the level, without effect.

    Raises:
        ValueError: the level is not 0 to 3.
    """
    if level not in (0, 1, 2, 3):
        raise ValueError(f"deterministic level must be 0, 1, 2, or 3, got {level}")
    if not torch.compiler.is_compiling():
        return _Deterministic(level)
    return Scope({"_op_deterministic_level": str(level)})
