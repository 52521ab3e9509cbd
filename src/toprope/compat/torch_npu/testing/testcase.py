"""Facade module: `TestCase`, the base class of torch_npu's tests; its comparisons accept what torch_npu's accept.

For test files written for torch_npu: names, limits by dtype and texts of failures are its own, so that a test passes
here where it passes there. Tests: tests/compat/test_torch_npu_testing.py.
"""

from __future__ import annotations

import os
import random
import re
import sys
import time
import unittest
import warnings
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from numbers import Number
from typing import Any
from unittest.util import strclass

import numpy as np
import torch

from .common_utils import PERF_TEST_ENABLE, PerfBaseline, is_iterable, iter_indices, set_npu_device
from .relative_error import relative_difference

_Base: Any
try:
    from expecttest import TestCase as _Base
except ModuleNotFoundError:  # its assertExpected is then missing
    from unittest import TestCase as _Base

__all__: list[str] = []

IS_IN_CI = os.environ.get("IN_CI") == "1"
TEST_REPORT_PATH = os.environ.get("TEST_REPORT_PATH", "test-reports")


def run_tests() -> None:
    """Run the tests of the main module, as `unittest.main` does.

    With IN_CI=1 reports go to TEST_REPORT_PATH, which takes the package xmlrunner.
    """
    if not IS_IN_CI:
        unittest.main(argv=sys.argv)
        return
    import importlib

    xmlrunner: Any = importlib.import_module("xmlrunner")
    file = re.sub(r"\.py$", "", sys._getframe(1).f_code.co_filename)
    output = os.path.join(TEST_REPORT_PATH, file.replace("/", "."))
    verbose = "--verbose" in sys.argv or "-v" in sys.argv
    unittest.main(argv=sys.argv, testRunner=xmlrunner.XMLTestRunner(output=output, verbosity=1 + verbose))


class TestCase(_Base):  # type: ignore[misc]
    """Tests on a card, each with the same seed, 666 or SEED, and with comparisons of tensors."""

    _precision = 1e-5
    maxDiff = None
    exact_dtype = False
    npu_device: str

    def __init__(self, method_name: str = "runTest") -> None:
        super().__init__(method_name)

    @property
    def precision(self) -> float:
        """The largest difference that `assertEqual` accepts."""
        return self._precision

    @precision.setter
    def precision(self, prec: float) -> None:
        self._precision = prec

    @classmethod
    def setUpClass(cls) -> None:
        """Make the card of the tests the current one."""
        cls.npu_device = set_npu_device()

    def setUp(self) -> None:
        """Seed torch and random."""
        seed = int(os.environ.get("SEED", "666"))
        torch.manual_seed(seed)
        random.seed(seed)

    def run(self, result: unittest.TestResult | None = None) -> unittest.TestResult | None:
        """Run the test, and with PERF_TEST_ENABLE once more to compare its seconds with those before."""
        outcome = super().run(result)
        if PERF_TEST_ENABLE:
            self._compare_seconds(result)
        return outcome  # type: ignore[no-any-return]

    # --- comparisons

    def assertRtolEqual(
        self,
        x: Any,
        y: Any,
        prec: float = 1.0e-4,
        prec16: float = 1.0e-3,
        auto_trans_dtype: bool = False,
        message: str | None = None,
    ) -> None:
        """Compare numbers, arrays or tensors of the same shape and dtype, or sequences of them.

        An element agrees where the absolute difference, or the one relative to the larger value, is at most the
        precision. A share of elements as large as the precision need not agree.

        Args:
            x: the one.
            y: the other.
            prec: precision of float32, float64 and integers.
            prec16: precision of float16 and bfloat16.
            auto_trans_dtype: compare in the dtype of `y`.
            message: text of the failure where nan is not in the same places.
        """
        if isinstance(x, Sequence) and isinstance(y, Sequence):
            for one, other in zip(x, y, strict=False):
                self.assertRtolEqual(one, other, prec, prec16, auto_trans_dtype, message)
            return
        difference = relative_difference(x, y, prec, prec16, auto_trans_dtype)
        if difference:
            self.fail(message if difference == "nan" and message else difference)

    def assertEqual(
        self,
        x: Any,
        y: Any,
        prec: float | str | None = None,
        message: str = "",
        allow_inf: bool = False,
        exact_dtype: bool | None = None,
    ) -> None:
        """Compare numbers, tensors, and all that holds them. Numbers agree where they differ by at most `prec`.

        Args:
            x: the one.
            y: the other.
            prec: largest difference, None for the class's; a text in this place is the message.
            message: beginning of the text of a failure.
            allow_inf: whether inf is a value like others.
            exact_dtype: whether tensors must have one dtype; None for the class's choice.
        """
        prec, message = self._limits(prec, message)
        exact = self.exact_dtype if exact_dtype is None else exact_dtype
        again: dict[str, Any] = {"prec": prec, "message": message, "allow_inf": allow_inf, "exact_dtype": exact}
        if isinstance(x, Number) or isinstance(y, Number):
            self._compare_numbers(_item(x), _item(y), prec, message, allow_inf)
        elif isinstance(x, np.bool_) or isinstance(y, np.bool_):
            super().assertEqual(_item(x), _item(y), message)
        elif isinstance(x, torch.Tensor) and isinstance(y, torch.Tensor):
            self._compare_tensors(x, y, again)
        elif _plain(x) and _plain(y):
            super().assertEqual(x, y, message)
        elif isinstance(x, Mapping) and isinstance(y, Mapping):
            ordered = isinstance(x, OrderedDict) and isinstance(y, OrderedDict)
            super().assertEqual([*x] if ordered else {*x}, [*y] if ordered else {*y}, message)
            for key in x:
                self.assertEqual(x[key], y[key], **again)
        elif is_iterable(x) and is_iterable(y):
            super().assertEqual(len(x), len(y), message)
            for one, other in zip(x, y, strict=True):
                self.assertEqual(one, other, **again)
        else:
            super().assertEqual(x, y, message)

    def assertNotEqual(self, x: Any, y: Any, prec: float | str | None = None, message: str = "") -> None:
        """Compare numbers or tensors, which must differ by `prec` somewhere, or anything else by `!=`."""
        prec, message = self._limits(prec, message)
        if isinstance(x, torch.Tensor) and isinstance(y, torch.Tensor):
            if x.size() != y.size():
                return
            self.assertGreater(x.numel(), 0)
            one, other = _signed(x), _signed(y.type_as(x))
            nan = one != one
            if not torch.equal(nan, other != other):
                return
            apart = (one - other).abs()
            apart[nan] = 0
            self.assertGreaterEqual(apart.max().item(), prec, message)
            return
        try:
            self.assertGreaterEqual(abs(x - y), prec, message)
        except (TypeError, AssertionError):
            super().assertNotEqual(x, y, message)

    def assertAlmostEqual(
        self,
        x: Any,
        y: Any,
        places: int | None = None,
        msg: str | None = None,
        delta: float | None = None,
        allow_inf: bool | None = None,
    ) -> None:
        """`assertEqual` up to a number of decimal places, or to `delta`."""
        self.assertEqual(x, y, 10.0**-places if places else delta, msg or "", bool(allow_inf))

    def assertTensorsSlowEqual(self, x: Any, y: Any, prec: float = 0, message: str = "") -> None:
        """Compare two tensors element by element."""
        self.assertEqual(x.size(), y.size())
        self.assertEqual(x.dtype, y.dtype)
        if x.dtype == torch.bool:
            self.assertEqual(x, y)
            return
        y = y.type_as(x)
        self.assertLessEqual(max((abs(x[at] - y[at]) for at in iter_indices(x)), default=0), prec, message)

    def assertObjectIn(self, obj: object, iterable: Any) -> None:
        """Check that this very object is among others."""
        if not any(entry is obj for entry in iterable):
            raise AssertionError("object not found in iterable")

    def assertExpectedRaises(
        self, exc_type: type[BaseException], call_fn: Callable[..., Any], *args: Any, **kwargs: Any
    ) -> None:
        """Check that a call raises an error whose text is the expected one of this test (expecttest)."""
        subname = kwargs.pop("subname", None)
        try:
            call_fn(*args, **kwargs)
        except exc_type as error:
            self.assertExpected(str(error), subname)
            return
        self.fail(msg="Did not raise when expected to")

    def assertExpectedStripMangled(self, s: str, subname: str | None = None) -> None:
        """Compare a text with the expected one of this test, without TorchScript's mangled names."""
        self.assertExpected(re.sub(r"__torch__[^ ]+", "", s), subname)

    def assertNotWarn(self, call_fn: Callable[[], Any], msg: str = "") -> None:
        """Check that a call warns of nothing."""
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            call_fn()
        self.assertTrue(len(caught) == 0, msg)

    def assertWarns(self, call_fn: Callable[[], Any], msg: str = "") -> None:
        """Check that a call warns of something."""
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            call_fn()
        self.assertTrue(len(caught) > 0, msg)

    @contextmanager
    def maybeWarnsRegex(self, category: type[Warning], regex: str = "") -> Iterator[None]:
        """Context that may give warnings of one kind and text, and no others."""
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            warnings.filterwarnings("ignore", message=regex, category=category)
            yield
        if caught:
            texts = (warnings.formatwarning(w.message, w.category, w.filename, w.lineno, w.line) for w in caught)
            self.fail("Caught unexpected warnings:\n" + "\n".join(texts))

    # --- sparse tensors

    def genSparseTensor(
        self, size: Sequence[int], sparse_dim: int, nnz: int, is_uncoalesced: bool, device: Any = "cpu"
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Random COO tensor, its indices and its values.

        Args:
            size: its shape.
            sparse_dim: number of its sparse dimensions.
            nnz: number of its elements, twice as many where indices repeat.
            is_uncoalesced: whether indices repeat.
            device: where it is.

        Raises:
            RuntimeError: it is to have elements in a dimension of size 0.
        """
        if nnz and not all(size[:sparse_dim]):
            raise RuntimeError("invalid arguments")
        values = torch.randn(nnz, *size[sparse_dim:], device=device)
        indices = torch.rand(sparse_dim, nnz, device=device)
        indices.mul_(torch.tensor(size[:sparse_dim]).unsqueeze(1).to(indices))
        indices = indices.to(torch.long)
        if is_uncoalesced:
            values = torch.cat([values, torch.randn_like(values)])
            indices = torch.cat([indices, indices], 1)
        tensor = torch.sparse_coo_tensor(indices, values, torch.Size(size))
        tensor = tensor.detach().clone() if is_uncoalesced else tensor.coalesce()
        return tensor, tensor._indices().clone(), tensor._values().clone()

    def safeToDense(self, t: torch.Tensor) -> torch.Tensor:
        """Dense tensor of a COO tensor, by `safeCoalesce`."""
        return self.safeCoalesce(t).to_dense()

    def safeCoalesce(self, t: torch.Tensor) -> torch.Tensor:
        """Coalesce a COO tensor, and check the result against sums that Python makes."""
        made = t.coalesce()
        self.assertEqual(made.to_dense(), t.to_dense())
        self.assertTrue(made.is_coalesced())
        if t._nnz() == 0:
            self.assertEqual(t._indices(), made._indices())
            self.assertEqual(t._values(), made._values())
            return made
        sums: dict[tuple[int, ...], torch.Tensor] = {}
        for index, value in zip(t._indices().t().tolist(), t._values(), strict=True):
            place = tuple(index)
            sums[place] = sums[place] + value if place in sums else value.clone()
        places = sorted(sums)
        self.assertEqual(made._indices(), torch.tensor(places).t().to(made.device))
        self.assertEqual(made._values(), torch.stack([sums[place] for place in places]))
        if t.is_coalesced():
            self.assertEqual(made._indices(), t._indices())
            self.assertEqual(made._values(), t._values())
        return made

    # --- parts of the comparisons

    def _limits(self, prec: float | str | None, message: str) -> tuple[float, str]:
        if isinstance(prec, str):
            return self.precision, message or prec
        return self.precision if prec is None else prec, message

    def _compare_numbers(self, x: Any, y: Any, prec: float, message: str, allow_inf: bool) -> None:
        if float("inf") in (abs(x), abs(y)):
            if not allow_inf:
                self.fail(f"Expected finite numeric values - x={x}, y={y}")
            super().assertEqual(x, y, message)
        else:
            self.assertLessEqual(abs(x - y), prec, message)

    def _compare_tensors(self, x: torch.Tensor, y: torch.Tensor, again: dict[str, Any]) -> None:
        message = again["message"]
        super().assertEqual(x.is_sparse, y.is_sparse, message)
        super().assertEqual(x.is_quantized, y.is_quantized, message)
        if x.is_sparse:
            x, y = self.safeCoalesce(x), self.safeCoalesce(y)
            self._compare_elements(x._indices(), y._indices(), again)
            self._compare_elements(x._values(), y._values(), again)
        elif x.is_quantized:
            for question in _QUANTIZED.get(x.qscheme(), ()):
                self.assertEqual(getattr(x, question)(), getattr(y, question)(), **again)
            super().assertEqual(x.qscheme(), y.qscheme(), message)
            super().assertEqual(x.dtype, y.dtype)
            self.assertEqual(x.int_repr().to(torch.int32), y.int_repr().to(torch.int32), **again)
        else:
            self._compare_elements(x, y, again)

    def _compare_elements(self, x: torch.Tensor, y: torch.Tensor, again: dict[str, Any]) -> None:
        message = again["message"]
        super().assertEqual(x.size(), y.size(), message)
        if again["exact_dtype"]:
            super().assertEqual(x.dtype, y.dtype)
        if x.numel() == 0:
            return
        if x.device.type == "cpu" and x.dtype in (torch.float16, torch.bfloat16):
            x = x.to(torch.float32)
        if (x.dtype == torch.bool) != (y.dtype == torch.bool):
            raise TypeError("Was expecting both tensors to be bool type.")
        one, other = _signed(x), _signed(y.to(x))
        apart = one - other
        if one.dtype.is_complex or one.dtype.is_floating_point:
            nan = torch.isnan(one)
            self.assertTrue(torch.equal(nan, torch.isnan(other)), message)
            apart[nan] = 0
            if again["allow_inf"]:
                infinite = torch.isinf(one)
                self.assertTrue(torch.equal(infinite, torch.isinf(other)), message)
                apart[infinite] = 0
        if apart.dtype not in (torch.uint8, torch.int8):
            apart = apart.abs()
        self.assertLessEqual(apart.max(), again["prec"], message)

    def _compare_seconds(self, result: unittest.TestResult | None) -> None:
        second = unittest.TestResult()
        start = time.perf_counter()
        super().run(second)
        seconds = time.perf_counter() - start
        if second.errors or second.failures or result is None:
            return
        name = f"{strclass(self.__class__)}.{self._testMethodName}"
        before = PerfBaseline.get_baseline(name)
        if before and seconds > before * 1.2:
            text = f"Performance test failed. Performance baseline: {before}s, current time: {seconds}s"
            error = self.failureException(text)
            result.addFailure(self, (type(error), error, None))  # type: ignore[arg-type]
        if before is None or seconds < before * 0.9:
            PerfBaseline.set_baseline(name, seconds)


_QUANTIZED = {
    torch.per_tensor_affine: ("q_scale", "q_zero_point"),
    torch.per_channel_affine: ("q_per_channel_scales", "q_per_channel_zero_points", "q_per_channel_axis"),
}


def _item(x: Any) -> Any:
    return x.item() if isinstance(x, torch.Tensor | np.bool_) else x


def _plain(x: object) -> bool:
    return isinstance(x, str | bytes | Set)


def _signed(x: torch.Tensor) -> torch.Tensor:
    return x.to(torch.int) if x.dtype == torch.bool else x
