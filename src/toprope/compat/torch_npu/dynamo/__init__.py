"""`torch_npu.dynamo`: names of the graph modes. Nothing is compiled for a card here.

torch.compile knows the backends "npu" and "npugraph_ex" with or without this module: a traced graph runs as it is on
the simulated card, after the checks of `torchair`. The functions by which torch_npu loads its graph engine are missing.
"""

from toprope.compat.missing import missing_from

__all__: list[str] = []

NPUGRAPH_EX_BACKEND = "npugraph_ex"

__getattr__ = missing_from(__name__)
