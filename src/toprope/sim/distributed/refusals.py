"""Refusals of a real card's HCCL (dtypes, layouts, options), raised here so that a program meets them early.

Called by collectives.py, process_group.py and staging.py. The facts and their sources are in hccl.toml: a new one is a
row there. `install(..., refuse=False)` and TOPROPE_SIM=...,refuse=off switch them off: gloo can do all of it. Tests:
tests/sim/test_distributed.py, with cases of tests/helpers/distributed_refusals.py.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from functools import cache
from importlib import resources
from typing import Any

from torch import Tensor

from toprope.sim.metrics.counters import Lack
from toprope.sim.metrics.python_errors import note
from toprope.sim.npu._state import message
from toprope.sim.state import installed

__all__ = ["check", "check_config", "check_layout", "reason"]

_NOT_SUPPORTED = "ERR02007 DIST feature not supported"
_TYPE = "ERR02002 DIST invalid type"
_INT32_MAX = 2**31 - 1


def check(name: str, tensors: Any, options: Any) -> None:
    """Refuse a collective that a real card refuses, unless the user has switched that off.

    Args:
        name: the collective, as torch's backends name it.
        tensors: its device tensors, or lists of them.
        options: torch's options, or None.

    Raises:
        RuntimeError: torch_npu's.
    """
    spec = installed()
    if spec is None or not spec.refuse:
        return
    operation = getattr(options, "reduceOp", None)
    dtypes = {str(tensor.dtype).removeprefix("torch.") for tensor in _flat(tensors)} or {""}
    for dtype in sorted(dtypes):
        why = reason(name, dtype, "" if operation is None else operation.op.name)
        if why:
            note(Lack.REFUSED, f"hccl::{name}", why, dtype or None)
            raise RuntimeError(message(why, _NOT_SUPPORTED))


def check_layout(tensor: Tensor) -> None:
    """Refuse a tensor that begins inside a storage of an internal format, unless the user has switched that off.

    Raises:
        RuntimeError: torch_npu's.
    """
    if not tensor.storage_offset():
        return
    kept = getattr(tensor.untyped_storage(), "_npu_format", None)
    spec = installed()
    if kept is None or kept in _facts()["formats"]["base"] or spec is None or not spec.refuse:
        return
    why = "For a tensor of internal format, it's storage_offset must be 0"
    note(Lack.REFUSED, "hccl", why, None)
    raise RuntimeError(message(why, _NOT_SUPPORTED))


def check_config(config: dict[str, int | str]) -> None:
    """Refuse settings of a communicator that torch_npu cannot hand to HCCL, unless the user has switched that off.

    Args:
        config: `hccl_config` of a group's options.

    Raises:
        RuntimeError: torch_npu's.
    """
    spec = installed()
    if spec is None or not spec.refuse:
        return
    known = _facts()["config"]
    for name, value in config.items():
        wanted, why = known.get(name), ""
        if not isinstance(wanted, list):
            continue
        if _c_type(value) not in wanted:
            why = f"Value type of {name} should be {'string' if 'string' in wanted else 'int'}."
        elif name == "hccl_exec_timeout" and isinstance(value, int) and value > _INT32_MAX:
            why = f"Value type of {name} exceeds INT32_MAX({_INT32_MAX})."
        if why:
            note(Lack.REFUSED, "hccl", why, None)
            raise RuntimeError(message(why, _TYPE))


def _c_type(value: int | str) -> str:
    if isinstance(value, str):
        return "string"
    return "int32" if value < 0 else "uint32" if value < 2**32 else "uint64"


def reason(name: str, dtype: str = "", operation: str = "") -> str:
    """torch_npu's words where it refuses a collective, "" where it does not.

    Args:
        name: such as "allreduce".
        dtype: such as "float64"; empty where there are no tensors.
        operation: of a reduction, such as "BAND"; empty for what is none.
    """
    facts = _facts()
    whole: str = facts["calls"].get(name, "") if name != "source" else ""
    if whole:
        return whole
    if dtype and dtype not in facts["types"]:
        return "Unsupported data type for HCCL process group"
    reductions = facts["reductions"]
    if not operation:
        return ""
    if operation in reductions["refused_operations"]:
        return f"Cannot use ReduceOp.{operation} with HCCL"
    cast = name in reductions["casts"] and dtype in reductions["cast_types"]
    if dtype and dtype not in reductions["types"] and not cast:
        return f"HCCL {name}: Unsupported data type {facts['types'][dtype]}"
    return ""


@cache
def _facts() -> dict[str, Any]:
    return tomllib.loads(resources.files("toprope.sim.distributed").joinpath("hccl.toml").read_text(encoding="utf-8"))


def _flat(tensors: Any) -> Iterator[Tensor]:
    if isinstance(tensors, Tensor):
        yield tensors
    else:
        for each in tensors:
            yield from _flat(each)
