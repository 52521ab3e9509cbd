"""`python -m dataflow.tools.create_func_ws -f sub:i0:i1:o0 [-w folder] [-c Class]`: begin a class of functions."""

import sys

from toprope.flow.points.template import command, main

__all__ = ["main"]

if __name__ == "__main__":
    sys.exit(command())
