"""Names of DataFlow's C++ part for the driver that toprope.flow has too: codes, message types, batches, tensors."""

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
