"""yr.config: the options, under the name of the module that has them in openYuanrong."""

from toprope.compat.missing import missing_from
from toprope.functions import (  # type: ignore[attr-defined]  # PortForwarding is made from a table
    ClientInfo,
    PortForwarding,
    UserTLSConfig,
    options,
)
from toprope.functions.api.function_groups import DeviceInfo, FunctionGroupContext, SchedulingAffinityType, ServerInfo
from toprope.functions.options import *  # noqa: F403 - all of them

__all__ = [
    *options.__all__,
    "ClientInfo",
    "DeviceInfo",
    "FunctionGroupContext",
    "PortForwarding",
    "SchedulingAffinityType",
    "ServerInfo",
    "UserTLSConfig",
]

__getattr__ = missing_from(__name__)
