"""Functions and instances on Ray: the same program on more than one machine. Ray is imported on use.

The other backend of the yr API, next to `functions.local`; `yr.init` calls `start` for an address of a Ray.
"""

from toprope.functions.ray.cluster.startup import start

__all__ = ["start"]
