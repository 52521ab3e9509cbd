"""Facade program: `python -m dataflow.tools.create_func_ws -f sub:i0:i1:o0 [-w folder] [-c Class]`.

It writes a folder with a class of stage functions to begin from; the code is toprope.flow.points.template. Name and
options of the program are DataFlow's. Tests: tests/flow/test_flow_func.py, tests/compat/test_vendor_names.py.
"""

import sys

from toprope.flow.points.template import command, main

__all__ = ["main"]

if __name__ == "__main__":
    sys.exit(command())
