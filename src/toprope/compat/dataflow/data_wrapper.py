"""Facade module `dataflow.data_wrapper`: dtypes as attributes of `DataType` and `FuncDataType`.

The vendor's module is compiled C++ and holds numbers; here they are the dtypes of toprope.flow themselves. The names
are DataFlow's. The module's name is in compat/missing.py (`_COMPILED`) too; tests/flow/test_flow_func.py uses it.
"""

from toprope.compat.missing import missing_from
from toprope.flow.data_type import DTYPES

__all__ = ["DataType", "FuncDataType"]


class DataType:
    """The dtypes by their names: `DataType.DT_FLOAT`."""


class FuncDataType(DataType):
    """The same for functions in stages."""


for _each in DTYPES:
    setattr(DataType, _each.name, _each)

__getattr__ = missing_from(__name__)
