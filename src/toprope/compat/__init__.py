"""Foreign module names (torch_npu, torchair, acl, yr, dataflow ...), importable without those packages.

A module that stands in for a foreign one is called a facade. `toprope run` installs the facades in the program and in
its children; `install` does it for the process that calls it.
"""

# Only cli imports this package. Facades pass names on to toprope.functions, flow, device, tiers or torch.npu.

from toprope.compat.finder import install, uninstall

__all__ = ["install", "uninstall"]
