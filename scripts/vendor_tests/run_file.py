"""Run pytest on one file with a bare command line, which some of the vendor's tests parse as their own.

python run_file.py OPTION ... FILE
"""

import sys

import pytest

if __name__ == "__main__":
    options, sys.argv = sys.argv[1:], [sys.argv[-1]]
    raise SystemExit(pytest.main(options))
