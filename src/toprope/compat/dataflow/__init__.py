"""toprope's stand-in for `dataflow`, the DataFlow Python API: toprope.flow under its other name."""

from toprope import flow
from toprope.compat.missing import missing_from
from toprope.flow import *  # noqa: F403 - the names are those of the package
from toprope.flow.registry import MsgTypeRegister

from . import dataflow, flow_func, utils
from .pyflow import pyflow as pyflow  # the function, where importing the module left the module

__all__ = [*flow.__all__, "MsgTypeRegister", "dataflow", "flow_func", "utils"]

__getattr__ = missing_from(__name__)
