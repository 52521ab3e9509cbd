"""Quiet imports: diffusers and transformers log errors alone, unless the user asked for more.

Called by the verbs that edit pictures, before they import these libraries, which read the variables when they are
imported. Names of variables and loggers are theirs. A level that the user has set stays. Tests:
tests/cli/test_quiet_libraries.py.
"""

from __future__ import annotations

import logging
import os
import warnings

__all__ = ["quiet_libraries"]

_VERBOSITY = ("TRANSFORMERS_VERBOSITY", "DIFFUSERS_VERBOSITY")


def quiet_libraries() -> None:
    """Have diffusers and transformers log errors alone, without hints at faster packages that are not installed.

    A level that the user has set in TRANSFORMERS_VERBOSITY or DIFFUSERS_VERBOSITY stays.
    """
    if not any(os.environ.get(name) for name in _VERBOSITY):
        os.environ.update(dict.fromkeys(_VERBOSITY, "error"))
    # diffusers imports torchao where it is installed, which warns of extensions that this torch does not load
    logging.getLogger("torchao").setLevel(logging.ERROR)
    logging.getLogger("torch.utils._pytree").setLevel(logging.ERROR)
    # Pillow warns of a large picture, with a line of its source; toprope refuses such a picture with an error
    warnings.filterwarnings("ignore", message="Image size .* could be decompression bomb")
