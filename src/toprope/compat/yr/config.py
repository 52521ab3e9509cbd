"""Facade module `yr.config`: option classes of toprope.functions, under the module that defines them in openYuanrong.

Programs import it by this name. The names are openYuanrong's; what they do is changed in toprope.functions.
tests/compat/test_vendor_names.py compares the names.
"""

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
