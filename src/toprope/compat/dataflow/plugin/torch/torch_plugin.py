"""`npu_model` under the name of the module that has it in DataFlow."""

from toprope.compat.missing import missing_from
from toprope.flow import msg_type_register, npu_model

__all__ = ["msg_type_register", "npu_model"]

__getattr__ = missing_from(__name__)
