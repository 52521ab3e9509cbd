"""`torch_npu.multiprocessing`: how tensors on a card travel between processes."""

from toprope.compat.missing import missing_from

__all__: list[str] = []

__getattr__ = missing_from(__name__)
