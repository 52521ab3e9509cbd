"""Facade package `dataflow.utils`: helper functions of DataFlow, from toprope.flow.

Programs import it by this name. Its names are the vendor's; tests/compat/test_vendor_names.py compares them.
"""

from toprope.compat.missing import missing_from
from toprope.flow.utils import generate_deploy_template

__all__ = ["generate_deploy_template"]

__getattr__ = missing_from(__name__)
