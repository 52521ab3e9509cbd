"""yr.decorator.instance_proxy: instances and their methods."""

from toprope.compat.missing import missing_from
from toprope.functions import (
    FunctionGroupHandler,
    FunctionGroupMethodProxy,
    InstanceCreator,
    InstanceProxy,
    MethodProxy,
    StatefulInstance,
    StatefulInstanceCreator,
)

__all__ = [
    "FunctionGroupHandler",
    "FunctionGroupMethodProxy",
    "InstanceCreator",
    "InstanceProxy",
    "MethodProxy",
    "StatefulInstance",
    "StatefulInstanceCreator",
]

__getattr__ = missing_from(__name__)
