"""Facade of `dataflow`, the DataFlow Python API (hicann/ge): the names of toprope.flow under the vendor's name.

Programs import it as `dataflow` (toprope.compat.finder serves it). The submodules are those of the vendor's package and
hold little code of their own; the names that a module must have are in support/vendor_names.toml, and what a name does
is changed in toprope.flow. Tests: tests/compat/test_vendor_names.py, tests/flow/test_flow_func.py.
"""

from toprope import flow
from toprope.compat.missing import missing_from
from toprope.flow import *  # noqa: F403 - the names are those of the package
from toprope.flow.registry import MsgTypeRegister

from . import dataflow, flow_func, utils
from .pyflow import pyflow as pyflow  # the function, where importing the module left the module

__all__ = [*flow.__all__, "MsgTypeRegister", "dataflow", "flow_func", "utils"]

__getattr__ = missing_from(__name__)
