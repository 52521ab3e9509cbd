"""Find parameters of submodules that a module uses without calling the submodule: `x @ self.proj.weight`.

`model_groups` calls it, so that the hooks of the outer module load those weights too: one too many costs memory, one
that is missed is an error when it is used. They are found in the bytecode of `forward` and of the methods that it
calls, as chains of attributes that begin at the first argument. Chains that end in metadata, such as a shape or a
dtype, are ignored. Bytecode is Python's, and differs between its versions: run the tests on each of them. Tests:
tests/tiers/test_tiers_direct_reads.py.
"""

from __future__ import annotations

import dis
import inspect
from collections.abc import Hashable, Iterator
from functools import cache
from types import CodeType, FunctionType
from typing import Any

from torch import nn

__all__ = ["read_directly"]

_METADATA = frozenset((
    "device", "dim", "dtype", "element_size", "get_device", "grad", "is_floating_point", "is_leaf", "is_meta",
    "itemsize", "layout", "nbytes", "ndim", "ndimension", "nelement", "numel", "requires_grad", "requires_grad_",
    "shape", "size", "stride", "type",
))  # fmt: skip


def read_directly(module: nn.Module) -> list[str]:
    """Names of submodules' parameters that a module's own code uses, such as "proj.weight"."""
    found: dict[str, None] = {}
    kind: Any = type(module)
    for chain in _chains(kind):
        for end in range(2, len(chain) + 1):
            owner: object = module
            for part in chain[: end - 1]:
                owner = owner._modules.get(part) if isinstance(owner, nn.Module) else None
            if not isinstance(owner, nn.Module) or owner._parameters.get(chain[end - 1]) is None:
                continue
            if chain[end : end + 1] and chain[end] in _METADATA:
                continue
            found[".".join(chain[:end])] = None
    return list(found)


@cache
def _chains(cls: Hashable) -> tuple[tuple[str, ...], ...]:
    """Chains of attributes in the code of a class, without the code of torch's own base classes."""
    assert isinstance(cls, type)
    functions: dict[str, CodeType] = {}
    for base in reversed(cls.__mro__):
        if not base.__module__.startswith("torch.nn"):
            own = {name: each for name, each in vars(base).items() if isinstance(each, FunctionType)}
            functions.update({name: inspect.unwrap(each).__code__ for name, each in own.items()})
    reached: set[str] = set()
    waiting = ["forward"]
    found: dict[tuple[str, ...], None] = {}
    while waiting:
        name = waiting.pop()
        if name in reached or name not in functions:
            continue
        reached.add(name)
        found.update(dict.fromkeys(_in_code(functions[name])))
        waiting.extend(functions[name].co_names)
    return tuple(found)


def _in_code(code: CodeType) -> Iterator[tuple[str, ...]]:
    if not code.co_argcount:
        return
    first, before = code.co_varnames[0], ""
    chain: list[str] = []
    follows = asks_type = False
    for each in dis.get_instructions(code):
        if follows and each.opname in ("LOAD_ATTR", "LOAD_METHOD"):
            chain.append(str(each.argval))
            continue
        if len(chain) > 1 and not asks_type:
            yield tuple(chain)
        follows = each.opname.startswith("LOAD_FAST") and each.argval == first
        chain = []
        if follows:
            asks_type = before == "isinstance"
        elif each.opname not in ("CACHE", "PUSH_NULL", "PRECALL"):
            before = str(each.argval) if each.opname == "LOAD_GLOBAL" else ""
