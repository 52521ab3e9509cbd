"""Facade module `dataflow.utils.deploy_template`: templates of deployment files, from toprope.flow.

Programs import it by this name, which is the vendor's, and so are the names in it; what they do is changed in
toprope.flow.utils. Tests: tests/flow/test_flow_func.py.
"""

from toprope.compat.missing import missing_from
from toprope.flow.utils import generate_deploy_template

__all__ = ["generate_deploy_template"]

__getattr__ = missing_from(__name__)
