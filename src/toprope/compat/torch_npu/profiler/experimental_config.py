"""Facade module: `_ExperimentalConfig`, settings of the profiler beyond its arguments.

Names, values and defaults are torch_npu's, also in profiler_info.json, where the names of the attributes are keys.
Wrong values are replaced, with a warning, as in torch_npu; the sentences are free. Tests:
tests/compat/test_torch_npu_profiler.py.
"""

from __future__ import annotations

import warnings
from typing import Any

from ._messages import flag, warn

__all__ = [
    "AiCMetrics",
    "ExportType",
    "HostSystem",
    "ProfilerLevel",
    "_ExperimentalConfig",
    "supported_ai_core_metrics",
    "supported_export_type",
    "supported_profiler_level",
]


class ProfilerLevel:
    """Amounts of what is recorded of the card."""

    Level0 = "Level0"
    Level1 = "Level1"
    Level2 = "Level2"
    Level_none = "Level_none"


class AiCMetrics:
    """Groups of figures that the cores of a card count. None of them is known here."""

    PipeUtilization = "ACL_AICORE_PIPE_UTILIZATION"
    ArithmeticUtilization = "ACL_AICORE_ARITHMETIC_UTILIZATION"
    Memory = "ACL_AICORE_MEMORY_BANDWIDTH"
    MemoryL0 = "ACL_AICORE_L0B_AND_WIDTH"
    MemoryUB = "ACL_AICORE_MEMORY_UB"
    ResourceConflictRatio = "ACL_AICORE_RESOURCE_CONFLICT_RATIO"
    L2Cache = "ACL_AICORE_L2_CACHE"
    MemoryAccess = "ACL_AICORE_MEMORY_ACCESS"
    AiCoreNone = "ACL_AICORE_NONE"


class ExportType:
    """Kinds of files."""

    Db = "db"
    Text = "text"


class HostSystem:
    """Figures of the host's system."""

    CPU = "cpu"
    MEM = "mem"
    DISK = "disk"
    NETWORK = "network"
    OSRT = "osrt"
    NUMA = "numa"


def _constants(group: type) -> set[str]:
    return {value for name, value in vars(group).items() if not name.startswith("__")}


def supported_profiler_level() -> set[str]:
    """The levels."""
    return _constants(ProfilerLevel)


def supported_ai_core_metrics() -> set[str]:
    """The groups of core metrics."""
    return _constants(AiCMetrics)


def supported_export_type() -> set[str]:
    """The kinds of files."""
    return _constants(ExportType)


class _ExperimentalConfig:
    """Settings of torch_npu's profiler; the names of the attributes are those of profiler_info.json."""

    def __init__(
        self,
        profiler_level: str = ProfilerLevel.Level0,
        aic_metrics: str = AiCMetrics.PipeUtilization,
        l2_cache: bool = False,
        msprof_tx: bool = False,
        mstx: bool = False,
        data_simplification: bool = True,
        record_op_args: bool = False,
        op_attr: bool = False,
        gc_detect_threshold: float | None = None,
        export_type: str | list[str] = ExportType.Text,
        host_sys: list[str] | None = None,
        mstx_domain_include: list[str] | None = None,
        mstx_domain_exclude: list[str] | None = None,
        sys_io: bool = False,
        sys_interconnection: bool = False,
    ) -> None:
        self._l2_cache = flag("l2_cache", l2_cache)
        self._msprof_tx = flag("msprof_tx", msprof_tx)
        if self._msprof_tx:
            warnings.warn("msprof_tx is deprecated: its new name is mstx.", stacklevel=2)
        self._mstx = flag("mstx", mstx)
        self._data_simplification = data_simplification is None or flag(
            "data_simplification", data_simplification, default=True
        )
        self.record_op_args = flag("record_op_args", record_op_args)
        self._op_attr = flag("op_attr", op_attr)
        self._sys_io = flag("sys_io", sys_io)
        self._sys_interconnection = flag("sys_interconnection", sys_interconnection)
        self._profiler_level, self._aic_metrics = profiler_level, aic_metrics
        self._check_level()
        self._export_type = _export_types(export_type)
        if self._op_attr and ExportType.Db not in self._export_type:
            warn("op_attr has no effect on text files; False is taken.")
            self._op_attr = False
        self._gc_detect_threshold = _threshold(gc_detect_threshold)
        self._mstx_domain_include = self._domains("mstx_domain_include", mstx_domain_include)
        self._mstx_domain_exclude = self._domains("mstx_domain_exclude", mstx_domain_exclude)
        if self._mstx_domain_include and self._mstx_domain_exclude:
            warn("mstx_domain_include and mstx_domain_exclude exclude each other; the first is taken.")
            self._mstx_domain_exclude = []
        self._host_sys = _host_systems(host_sys)

    def _check_level(self) -> None:
        low = (ProfilerLevel.Level0, ProfilerLevel.Level_none)
        if self._profiler_level in low:
            if self._aic_metrics not in (AiCMetrics.AiCoreNone, AiCMetrics.PipeUtilization):
                warn("aic_metrics needs Level1 or Level2; none are recorded.")
            self._aic_metrics = AiCMetrics.AiCoreNone
        if self._profiler_level == ProfilerLevel.Level_none and not self.tx_enabled:
            warn("Level_none records what mstx marks alone; mstx=True is taken.")
            self._mstx = True
        if self._profiler_level not in [*supported_profiler_level()]:
            warn(f"profiler_level is {self._profiler_level!r}; Level0 is taken.")
            self._profiler_level = ProfilerLevel.Level0
        if self._aic_metrics not in [*supported_ai_core_metrics()]:
            warn(f"aic_metrics is {self._aic_metrics!r}; the default is taken.")
            at_level0 = self._profiler_level == ProfilerLevel.Level0
            self._aic_metrics = AiCMetrics.AiCoreNone if at_level0 else AiCMetrics.PipeUtilization

    def _domains(self, name: str, domains: Any) -> list[str]:
        if not domains:
            return []
        if not self.tx_enabled:
            warn(f"{name} has no effect without mstx=True.")
        elif not isinstance(domains, list) or not all(isinstance(each, str) for each in domains):
            warn(f"{name} is no list of str, and is left out.")
        else:
            return list(dict.fromkeys(domains))
        return []

    @property
    def export_type(self) -> list[str]:
        """The kinds of files that are written."""
        return self._export_type

    @property
    def tx_enabled(self) -> bool:
        """True where marks of mstx are to be recorded."""
        return self._msprof_tx or self._mstx

    @property
    def with_gc(self) -> bool:
        """True where runs of the garbage collector are to be recorded."""
        return self._gc_detect_threshold is not None

    @property
    def gc_detect_threshold(self) -> float | None:
        """Milliseconds from which on a run of the garbage collector is to be recorded."""
        return self._gc_detect_threshold

    @property
    def without_effect(self) -> list[str]:
        """The settings that ask for what the simulated card does not have."""
        asked = {
            "l2_cache": self._l2_cache,
            "mstx": self.tx_enabled,
            "record_op_args": self.record_op_args,
            "op_attr": self._op_attr,
            "gc_detect_threshold": self.with_gc,
            "host_sys": bool(self._host_sys),
            "sys_io": self._sys_io,
            "sys_interconnection": self._sys_interconnection,
        }
        return [name for name, wanted in asked.items() if wanted]


def _export_types(given: Any) -> list[str]:
    kinds = [given] if isinstance(given, str) else given
    if isinstance(kinds, list) and kinds and all(each in (ExportType.Text, ExportType.Db) for each in kinds):
        return list(dict.fromkeys(kinds))
    warn(f"export_type is {given!r}; text is taken.")
    return [ExportType.Text]


def _threshold(given: Any) -> float | None:
    if given is None or (isinstance(given, int | float) and given >= 0):
        return given
    warn(f"gc_detect_threshold is {given!r}, and no number of at least 0; None is taken.")
    return None


def _host_systems(given: Any) -> list[str]:
    if not given:
        return []
    if isinstance(given, list) and all(each in [*_constants(HostSystem)] for each in given):
        return list(dict.fromkeys(given))
    warn(f"host_sys is {given!r}, and no list of HostSystem; it is left out.")
    return []
