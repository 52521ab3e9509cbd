"""Facade package `dataflow.utils`: helper functions of DataFlow, from toprope.flow.

Programs import it by this name. The names are DataFlow's; what they do is changed in toprope.flow.utils.
Tests: tests/compat/test_vendor_names.py, tests/flow/test_flow_func.py.
"""

from toprope.compat.missing import missing_from
from toprope.flow.utils import generate_deploy_template

__all__ = ["generate_deploy_template"]

__getattr__ = missing_from(__name__)
