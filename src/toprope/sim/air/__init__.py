"""torchair's scopes: operators of torch.ops.air that mark where one begins and ends, and their context managers."""

import torch as _torch  # noqa: F401 # first: it installs the card where TOPROPE_SIM asks for one, which needs this package

__all__: list[str] = []
