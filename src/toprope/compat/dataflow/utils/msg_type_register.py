"""The types of messages under their own module's name."""

from toprope.compat.missing import missing_from
from toprope.flow.registry import MsgTypeRegister, msg_type_register

__all__ = ["MsgTypeRegister", "msg_type_register"]

__getattr__ = missing_from(__name__)
