"""Facade of torchair: scopes and the backend of torch.compile, on the simulated card.

Programs import it as `torchair` (toprope.compat.finder serves it); the code is toprope.sim.graph. Names and signatures
are the vendor's. What is not here raises AttributeError with the name of the API that is missing; nothing is a stub.
Tests: tests/compat/test_torchair_facade.py, tests/compat/test_vendor_names.py.
"""

import torch  # noqa: F401 - first: the import of torch installs the card, which imports what is imported below

from toprope.compat.missing import missing_from
from toprope.sim.graph import get_npu_backend

from . import config, configs, core, scope
from .configs.compiler_config import CompilerConfig
from .core.utils import logger

__all__ = [
    "CompilerConfig",
    "config",
    "configs",
    "core",
    "get_npu_backend",
    "logger",
    "patch_for_hcom",
    "scope",
]


def patch_for_hcom() -> None:
    """Do nothing: since torch 2.3.1 collectives need no patch to be compiled, which torchair warns of, too."""
    logger.warning("patch_for_hcom is not needed since torch 2.3.1: collectives are compiled as they are")


__getattr__ = missing_from(__name__)
