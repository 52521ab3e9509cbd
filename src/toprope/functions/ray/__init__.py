"""Functions and instances on Ray: the same program on more than one machine. Ray is imported on use.

The other backend of the yr API, next to `functions.local`; `yr.init` calls `start` for an address of a Ray. Most of its
tests begin a Ray and are slow or for `make soak`: tests/functions/test_functions_ray.py,
tests/functions/test_functions_semantics.py.
"""

from toprope.functions.ray.cluster.startup import start

__all__ = ["start"]
