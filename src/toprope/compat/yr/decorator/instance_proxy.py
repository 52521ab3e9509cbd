"""Facade module `yr.decorator.instance_proxy`: handles of instances and of their methods, from toprope.functions.

Programs import it by this name. The names are openYuanrong's; what they do is changed in toprope.functions.api.
tests/compat/test_vendor_names.py compares the names.
"""

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
