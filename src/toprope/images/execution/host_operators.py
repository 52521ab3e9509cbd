"""Run operators that a card does not have on the host: slow, but the edit goes on. Only if the user asks for it.

A card refuses an operator for a dtype with an error code (EZ1001), or torch finds no operator for the device
(NotImplementedError). A refusal that a card reports only later, at a synchronisation, cannot be caught here.

Used by `images.engine` with the option `host_operators` alone. The texts of refusals are those of torch and torch_npu;
tensors that an operator writes to must be written back to the card. Tests:
tests/images/simulated/test_images_engine.py.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

__all__ = ["HostOperators", "is_refused"]

_TEXTS = re.compile(r"EZ1001|Could not run '.+' with arguments from the|not implemented for")


def is_refused(error: BaseException) -> bool:
    """True if an error means that the device has no such operator, or none for this dtype."""
    return isinstance(error, NotImplementedError) or (
        isinstance(error, RuntimeError) and _TEXTS.search(str(error)) is not None
    )


class HostOperators(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Context in which refused operators run on the host, with tensors moved there and results moved back.

    Args:
        notice: called with a sentence at the first use of each operator.

    Attributes:
        used: number of calls on the host by operator name.
    """

    def __init__(self, notice: Callable[[str], None]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._notice = notice
        self.used: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        try:
            return func(*args, **kwargs)
        except (NotImplementedError, RuntimeError) as error:
            where = _device_of(args, kwargs)
            if where is None or not is_refused(error):
                raise
            refused = error.with_traceback(None)
        result = _on_host(func, args, kwargs, where, refused)
        if not self.used[str(func)]:
            self._notice(f"{func} is refused by {where} and runs on the host: {' '.join(str(refused).split())[:160]}")
        self.used[str(func)] += 1
        return result


def _device_of(args: Any, kwargs: Any) -> torch.device | None:
    """The device of an operator's arguments; None for the host."""
    for each in tree_leaves((args, kwargs)):
        if isinstance(each, torch.Tensor) and each.device.type not in ("cpu", "meta"):
            return each.device
        if isinstance(each, torch.device) and each.type not in ("cpu", "meta"):
            return each
    return None


def _on_host(func: Any, args: Any, kwargs: Any, where: torch.device, refused: BaseException) -> Any:
    """Run an operator on the host, and copy its result and the tensors that it has written to back to the device."""
    copies: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def to_host(each: Any) -> Any:
        if isinstance(each, torch.Tensor) and each.device == where:
            if id(each) not in copies:
                copies[id(each)] = each, each.cpu()
            return copies[id(each)][1]
        return torch.device("cpu") if each == where and isinstance(each, torch.device) else each

    host_args, host_kwargs = tree_map(to_host, (args, kwargs))
    try:
        result = func(*host_args, **host_kwargs)
    except (NotImplementedError, RuntimeError):
        raise refused from None  # the host has none either
    names = [argument.name for argument in func._schema.arguments]
    written = {
        argument.name for argument in func._schema.arguments if argument.alias_info and argument.alias_info.is_write
    }
    given = dict(zip(names, args, strict=False)) | kwargs
    originals: dict[int, torch.Tensor] = {}
    for name in written:
        for each in tree_leaves(given.get(name)):
            if isinstance(each, torch.Tensor) and id(each) in copies:
                each.copy_(copies[id(each)][1])
                originals[id(copies[id(each)][1])] = each

    def back(each: Any) -> Any:
        if not isinstance(each, torch.Tensor):
            return each
        return originals[id(each)] if id(each) in originals else each.to(where)

    return tree_map(back, result)
