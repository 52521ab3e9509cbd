"""Run pytest on one file with a bare command line, which some of the vendor's tests parse as their own.

python run_file.py OPTION ... FILE

Started by `__main__` for each file of tests, in the copy of the repository.

Started by `__main__` for each file of tests, in the copy of the repository. It must import nothing of toprope: the
tests find the modules as under any `toprope run`.

Tests: tests/project/test_vendor_tests.py.
"""

import sys
import unittest
from typing import Any

import pytest


def _no_test(case: Any) -> None:
    """The test of a case that is made without the name of one, as pytest makes it to collect tests."""


if __name__ == "__main__":
    unittest.TestCase.runTest = _no_test  # type: ignore[attr-defined] # classes of some files ask for it by its name
    options, sys.argv = sys.argv[1:], [sys.argv[-1]]
    raise SystemExit(pytest.main(options))
