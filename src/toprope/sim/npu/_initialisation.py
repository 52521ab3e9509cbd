"""Check of the environment variables of CANN's start that torch_npu reads when it initialises the cards.

`init` and `set_device` of torch.npu call it (devices.py). Tests: tests/sim/simulated/test_npu_names.py.
"""

from __future__ import annotations

import json
import os
import warnings
from pathlib import Path

from toprope.sim.npu._state import UNAVAILABLE, VALUE, message

__all__ = ["check_environment"]

_FILE = "TORCH_ACL_INIT_CONFIG_PATH"


def check_environment() -> None:
    """Check ACL_OP_INIT_MODE and the file of TORCH_ACL_INIT_CONFIG_PATH; neither changes the simulated card.

    Source: npu_sys_ctrl.cpp and OptionsManager.cpp of Ascend/pytorch at 9e73e708. No version of CANN is known here, so
    that the rules of those before 8.3 hold.

    Raises:
        RuntimeError: the file is not there, cannot be read, is no JSON, or names a default device.
    """
    mode = os.environ.get("ACL_OP_INIT_MODE", "0")
    if mode not in ("0", "1", "2"):
        text = "Get env ACL_OP_INIT_MODE not in [0, 1, 2], so reset it to the default value 0."
        warnings.warn(text, stacklevel=3)
    if _FILE not in os.environ:
        return
    path = Path(os.environ[_FILE])
    if not path.exists():
        raise RuntimeError(
            f"{_FILE} {path} is invalid. Please set the environment variable {_FILE!r} to a valid JSON config file"
            " path.",
            message("", UNAVAILABLE),
        )
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        text = f"Failed to open user acl json {path}. Please ensure the file exists and has read permission."
        raise RuntimeError(text, message("", UNAVAILABLE)) from error
    except ValueError as error:
        text = f"Failed to parse user acl json {path}. Please check that the file contains valid JSON syntax."
        raise RuntimeError(f"{text} Error: {error}", message("", UNAVAILABLE)) from error
    if isinstance(config, dict) and "defaultDevice" in config:
        text = f"User acl json {path} contains 'defaultDevice' which is not expected in non-lazy set_device mode."
        raise RuntimeError(f"{text} Please remove the 'defaultDevice' field.", message("", VALUE))
