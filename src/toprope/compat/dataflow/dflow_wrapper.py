"""Facade module `dataflow.dflow_wrapper`: status codes, message types, batches and tensors of toprope.flow.

The vendor's module is the compiled part of DataFlow for the program that builds the graph (the driver). Its names, and
the numbers of codes and types, are the vendor's. Only names that toprope.flow has are here; any other is an error that
says so. Tests: tests/flow/test_flow_func.py.
"""

from toprope.compat.missing import missing_from
from toprope.flow.exceptions import (
    DATATYPE_INVALID,
    INNER_ERROR,
    NOT_INIT,
    PARAM_INVALID,
    SHAPE_INVALID,
    SUBHEALTHY,
)
from toprope.flow.stage.spec import CountBatch, TimeBatch
from toprope.flow.tensor import Tensor
from toprope.flow.udf.messages import MsgType

__all__ = [
    "DATATYPE_INVALID",
    "INNER_ERROR",
    "NOT_INIT",
    "PARAM_INVALID",
    "SHAPE_INVALID",
    "SUBHEALTHY",
    "CountBatch",
    "MsgType",
    "Tensor",
    "TimeBatch",
]

__getattr__ = missing_from(__name__)
