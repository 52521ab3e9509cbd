"""yr.config: the options, under the name of the module that has them in openYuanrong."""

from toprope.functions import ClientInfo, UserTLSConfig, options
from toprope.functions.fcc import DeviceInfo, FunctionGroupContext, SchedulingAffinityType, ServerInfo
from toprope.functions.options import *  # noqa: F403 - all of them

__all__ = [
    *options.__all__,
    "ClientInfo",
    "DeviceInfo",
    "FunctionGroupContext",
    "SchedulingAffinityType",
    "ServerInfo",
    "UserTLSConfig",
]
