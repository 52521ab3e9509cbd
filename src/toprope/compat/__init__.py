"""Foreign module names (torch_npu, yr, dataflow and others), importable where the real packages are not.

`toprope run` installs them in the program and in its children; `install` does it for the process that calls it.
"""

from toprope.compat.finder import install, uninstall

__all__ = ["install", "uninstall"]
