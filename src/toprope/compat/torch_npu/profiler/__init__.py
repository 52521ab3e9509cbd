"""Facade package `torch_npu.profiler`: the vendor's profiler on the simulated card, with its arguments and files.

Recording and files are toprope.sim.profiler; the names here are torch_npu's, and
tests/compat/test_torch_npu_profiler.py has its cases. Every time in the files is measured on this machine's CPU: how
long a card would take is not simulated.
"""

from toprope.compat.missing import missing_from

from .experimental_config import (
    AiCMetrics,
    ExportType,
    HostSystem,
    ProfilerLevel,
    _ExperimentalConfig,
    supported_ai_core_metrics,
    supported_export_type,
    supported_profiler_level,
)
from .profiler import _KinetoProfile, profile, tensorboard_trace_handler
from .profiler_interface import ProfilerActivity, supported_activities
from .scheduler import ProfilerAction
from .scheduler import Schedule as schedule  # noqa: N813

__all__ = [
    "AiCMetrics",
    "ExportType",
    "HostSystem",
    "ProfilerAction",
    "ProfilerActivity",
    "ProfilerLevel",
    "_ExperimentalConfig",
    "_KinetoProfile",
    "profile",
    "schedule",
    "supported_activities",
    "supported_ai_core_metrics",
    "supported_export_type",
    "supported_profiler_level",
    "tensorboard_trace_handler",
]

__getattr__ = missing_from(__name__)
