"""Facade module `torch_npu._C._logging`: set the levels of torch_npu's own log (toprope.sim.npu._logs).

torch calls it through `torch._logging`, by torch_npu's names. Tests: tests/compat/test_torch_npu_utils.py; the lines
themselves are held by tests/sim/test_distributed.py.
"""

from __future__ import annotations

from collections.abc import Mapping

from toprope.compat.missing import missing_from

__all__: list[str] = []


class _LogContext:
    """The levels, which `torch._logging.set_logs` knows by the names of loggers."""

    @staticmethod
    def GetInstance() -> _LogContext:  # noqa: N802
        return _instance

    def setLogs(self, levels: Mapping[str, int]) -> None:  # noqa: N802
        from toprope.sim.npu._logs import set_levels

        set_levels(levels)


_instance = _LogContext()

__getattr__ = missing_from(__name__)
