"""Facade module `dataflow.utils.msg_type_register`: the registry of message types of toprope.flow.

Programs import it by this name, which is the vendor's, and so are the names in it; what they do is changed in
toprope.flow.registry. Tests: tests/flow/test_flow_func.py.
"""

from toprope.compat.missing import missing_from
from toprope.flow.registry import MsgTypeRegister, msg_type_register

__all__ = ["MsgTypeRegister", "msg_type_register"]

__getattr__ = missing_from(__name__)
