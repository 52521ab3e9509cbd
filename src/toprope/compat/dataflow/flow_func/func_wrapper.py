"""The decorators of functions in stages under their own module's name."""

from toprope.compat.missing import missing_from
from toprope.flow.udf.flow_func import init_wrapper, proc_wrapper

__all__ = ["init_wrapper", "proc_wrapper"]

__getattr__ = missing_from(__name__)
