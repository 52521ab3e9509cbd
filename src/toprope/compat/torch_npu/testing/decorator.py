"""Facade module: decorators of torch_npu's tests that make one test for each dtype and storage format.

Names, and the names of the tests that are made, are torch_npu's, for test files written for it. Tests:
tests/compat/test_torch_npu_testing.py.
"""

from __future__ import annotations

import functools
import inspect
import itertools
from collections.abc import Callable, Iterable
from typing import Any

import torch

__all__: list[str] = []


class Dtypes:
    """Decorator that notes the dtypes of a test.

    Args:
        args: the dtypes.

    Raises:
        RuntimeError: there are none, or one is no dtype.
    """

    def __init__(self, *args: torch.dtype) -> None:
        if not args:
            raise RuntimeError("No dtypes given")
        if not all(isinstance(arg, torch.dtype) for arg in args):
            raise RuntimeError(f"Unknown dtype in {args}")
        self.args = args

    def __call__(self, fn: Any) -> Any:
        """Note them at a test."""
        fn.dtypes = self.args
        return fn


class Formats:
    """Decorator that notes the storage formats of a test.

    Args:
        args: numbers of the formats.

    Raises:
        RuntimeError: there are none.
    """

    def __init__(self, *args: int) -> None:
        if not args:
            raise RuntimeError("No formats given")
        self.args = args

    def __call__(self, fn: Any) -> Any:
        """Note them at a test."""
        fn.formats = self.args
        return fn


def feed_data(func: Callable[..., Any], new_name: str, *args: Any, **kwargs: Any) -> Callable[[Any], Any]:
    """Test of a name that calls another one with arguments."""

    @functools.wraps(func)
    def wrapper(self: Any) -> Any:
        return func(self, *args, **kwargs)

    wrapper.__name__ = new_name
    return wrapper


def instantiate_tests(arg: Any = None, **kwargs: Any) -> Any:
    """Put in place of each test with noted dtypes or formats one of each: `test_add_float32`, `test_add_29_float16`.

    Args:
        arg: the class of the tests. Their parameters whose names contain "dtype" and "format" get the values,
            `device` gets "npu".
    """
    for name, func in list(vars(arg).items()):
        found = {"dtype": getattr(func, "dtypes", None), "format": getattr(func, "formats", None)}
        noted = {kind: values for kind, values in found.items() if values is not None}
        if not noted:
            continue
        parameters = inspect.getfullargspec(func).args
        for values in itertools.product(*noted.values()):
            given = {_parameter(kind, parameters): value for kind, value in zip(noted, values, strict=True)}
            if "device" in parameters:
                given["device"] = "npu"
            made = "_".join([name, *map(_shown, values)])
            setattr(arg, made, feed_data(func, made, **given))
        delattr(arg, name)
    return arg


def gen_op_input(testcase: str, func: Any, op_info: Any) -> dict[str, Any]:
    """Values of `dtype` and `npu_format` of a test of an operator: those noted at the test, else the operator's."""
    dtypes = getattr(func, "dtypes", None) or op_info.dtypesIfNPU
    if "test_variant_consistency_eager" in testcase:
        known = op_info.dtypesIfNPU
        dtypes = {torch.float32} if torch.float32 in known else {list(known)[-1]}
    return {"dtype": dtypes, "npu_format": getattr(func, "formats", None) or op_info.formats}


def gen_ops_testcase(
    cls: Any, func: Callable[..., Any], name: str, keys: Iterable[str], value: tuple[Any, ...], op_info: Any
) -> None:
    """Give a class the test of one operator with one dtype and format."""
    made = "_".join([func.__name__, name, *map(_shown, value)])
    test = functools.partialmethod(func, **dict(zip(keys, value, strict=True)), op=op_info)
    setattr(cls, made, test)
    for decorator in op_info.get_decorators(cls.__name__, func.__name__, "cpu", value[0], {}):
        setattr(cls, made, decorator(test))


def instantiate_ops_tests(op_db: Iterable[Any]) -> Callable[[Any], Any]:
    """Decorator that puts in place of each test of a class one of each operator, dtype and format.

    Args:
        op_db: descriptions of operators, with `name`, `dtypesIfNPU` and `formats`.
    """

    def decorate(cls: Any) -> Any:
        for testcase in [name for name in dir(cls) if name.startswith("test_")]:
            func = getattr(cls, testcase)
            for op_info in op_db:
                data = gen_op_input(testcase, func, op_info)
                for value in itertools.product(*data.values()):
                    gen_ops_testcase(cls, func, op_info.name, data.keys(), value, op_info)
            delattr(cls, testcase)
        return cls

    return decorate


def _parameter(kind: str, parameters: list[str]) -> str:
    found = [name for name in parameters if kind in name]
    if len(found) > 1:
        raise RuntimeError(f"Multiple matches for {kind}: {found}")
    return found[0] if found else kind  # a test without such a parameter fails when it is called


def _shown(value: object) -> str:
    return str(value).removeprefix("torch.")
