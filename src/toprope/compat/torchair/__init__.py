"""toprope's stand-in for torchair: scopes and the backend of torch.compile, on the simulated card.

It is importable as `torchair` where toprope's finder serves it. What is not here raises AttributeError with the name of
the API that is missing; nothing is a stub.
"""

import logging
from typing import NoReturn

from toprope.sim.graph import get_npu_backend

from . import config, configs, scope
from .configs.compiler_config import CompilerConfig

__all__ = ["CompilerConfig", "config", "configs", "get_npu_backend", "logger", "scope"]

logger = logging.getLogger("torchair")

_REAL = (
    "dynamo_export", "experimental", "ge", "ge_concrete_graph", "get_compiler", "inference", "llm_datadist",
    "npu_format_cast_via_cpu", "ops", "patch_for_hcom", "patterns", "register_fx_node_ge_converter",
    "register_replacement", "use_internal_format_weight",
)  # fmt: skip
"""What torchair of torch_npu 2.13.0 has beside what is here."""


def __getattr__(name: str) -> NoReturn:
    text = f"module 'torchair' has no attribute {name!r}"
    if name in _REAL:
        text = f"toprope's facade of torchair does not have torchair.{name}: the real one has this API, toprope not yet"
    raise AttributeError(text, name=name)
