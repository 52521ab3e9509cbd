"""Facade module `dataflow.pyflow`: decorators that make a function or a class a node of a pipeline (`@df.pyflow`).

They are those of toprope.flow. The two classes of process points are here since programs name them. Names and the text
of the refusal are DataFlow's. Tests: tests/flow/test_flow_func.py, tests/compat/test_vendor_names.py.
"""

from typing import Any

from toprope.compat.missing import missing_from
from toprope.flow import method, pyflow

__all__ = ["PyActorProcessPoint", "PyFunctionProcessPoint", "method", "pyflow"]


class PyActorProcessPoint:
    """Process point of a decorated class in DataFlow. Here the class stays what it is and is given an `fnode`.

    Raises:
        TypeError: it is called.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        raise TypeError(
            "PyActorProcessPoint.__init__ should not be called. Please use the @df.pyflow decorator instead."
        )


class PyFunctionProcessPoint:
    """Process point of a decorated function in DataFlow. Here that is the function with an `fnode`.

    Args:
        function: the function.
        node_options: options of `pyflow`.
    """

    def __new__(cls, function: Any, node_options: dict[str, Any]) -> Any:
        """Decorate the function."""
        return pyflow(**node_options)(function)


__getattr__ = missing_from(__name__)
