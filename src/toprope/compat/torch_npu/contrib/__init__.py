"""`torch_npu.contrib`: of torch_npu's additions only `transfer_to_npu`, which acts when it is imported."""

from toprope.compat.missing import missing_from

__all__: list[str] = []

__getattr__ = missing_from(__name__)
