"""Functions and instances on Ray: the same program on more than one machine. Ray is imported on use."""

from toprope.functions.ray.cluster.startup import start

__all__ = ["start"]
