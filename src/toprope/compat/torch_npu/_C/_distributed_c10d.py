"""`torch_npu._C._distributed_c10d`: ProcessGroupHCCL, whose options programs make for their groups."""

from typing import Any

from toprope.compat.missing import missing_from

__all__: list[str] = []

_missing = missing_from(__name__)


def __getattr__(name: str) -> Any:
    if name == "ProcessGroupHCCL":
        from toprope.sim import installed

        if installed() is None:
            raise AttributeError("torch_npu's ProcessGroupHCCL needs a card, and there is none", name=name)
        from toprope.sim.distributed.process_group import ProcessGroupHCCL

        return ProcessGroupHCCL
    return _missing(name)
