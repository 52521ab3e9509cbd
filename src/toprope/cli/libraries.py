"""Messages of libraries that say nothing to a user of the command line: not shown, unless it was asked for."""

from __future__ import annotations

import logging
import os
import warnings

__all__ = ["hush"]

_VERBOSITY = ("TRANSFORMERS_VERBOSITY", "DIFFUSERS_VERBOSITY")


def hush() -> None:
    """Let diffusers and transformers tell errors alone, and not which faster package is not installed.

    Where the user has set TRANSFORMERS_VERBOSITY or DIFFUSERS_VERBOSITY, what they say counts.
    """
    if not any(os.environ.get(name) for name in _VERBOSITY):
        os.environ.update(dict.fromkeys(_VERBOSITY, "error"))
    # diffusers imports torchao where it is installed, which warns of extensions that this torch does not load
    logging.getLogger("torchao").setLevel(logging.ERROR)
    logging.getLogger("torch.utils._pytree").setLevel(logging.ERROR)
    # Pillow warns of a large picture, with a line of its source; toprope refuses such a picture with an error
    warnings.filterwarnings("ignore", message="Image size .* could be decompression bomb")
