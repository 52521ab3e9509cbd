"""`torch_npu._C._distributed_c10d`: ProcessGroupHCCL, whose options programs make for their groups."""

from typing import Any

__all__: list[str] = []


def __getattr__(name: str) -> Any:
    if name == "ProcessGroupHCCL":
        from toprope.sim import installed

        if installed() is None:
            raise AttributeError("torch_npu's ProcessGroupHCCL needs a card, and there is none", name=name)
        from toprope.sim.distributed.process_group import ProcessGroupHCCL

        return ProcessGroupHCCL
    if name.startswith("__"):
        raise AttributeError(f"module 'torch_npu._C._distributed_c10d' has no attribute {name!r}", name=name)
    raise AttributeError(
        f"toprope's facade of torch_npu does not have torch_npu._C._distributed_c10d.{name}", name=name
    )
