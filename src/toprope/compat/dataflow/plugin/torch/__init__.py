"""Facade package `dataflow.plugin.torch`: stages that run a torch model.

Programs import it by this name, which is the vendor's, and so are the names in it. Tests:
tests/flow/test_flow_func.py.
"""

from toprope.compat.missing import missing_from

__getattr__ = missing_from(__name__)
