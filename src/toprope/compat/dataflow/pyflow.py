"""Functions and classes as steps of a pipeline, under the name of the module that has them in DataFlow."""

from toprope.compat.missing import missing_from
from toprope.flow import method, pyflow

__all__ = ["method", "pyflow"]

__getattr__ = missing_from(__name__)
