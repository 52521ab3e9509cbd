"""An effect of modes: compute blocks again in backward, so that only their inputs are kept from forward.

It uses torch's own checkpointing (use_reentrant=False); hooks begin it before a block runs and end it after, and look
at torch's private stack of hooks for saved tensors. `modes.models` puts them on, `modes.switch` cleans up after a call
that was interrupted. Offloaded weights are left out of it: autograd keeps references to them (`engine.saved_weights`),
so that none stays on the device. Gradients keep their bits. Tests: tests/tiers/test_tiers_modes.py.
"""

from __future__ import annotations

import inspect
import threading
import weakref
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from typing import Any

import torch
from torch import nn
from torch.utils import checkpoint

from toprope.tiers.engine.saved_weights import Packing, Reference
from toprope.tiers.modes.outputs import transforming

__all__ = ["blocks", "end_interrupted", "put_on"]

_generator: Any = checkpoint._checkpoint_without_reentrant_generator
_OPTIONS = tuple(
    default
    for name, default in (
        ("preserve_rng_state", True),
        ("context_fn", None),
        ("determinism_check", "default"),
        ("debug", False),
        ("early_stop", True),
    )
    if name in inspect.signature(_generator).parameters
)


Packings = Callable[[], Packing | None]
"""Function that returns the hooks for offloaded weights of a model; None if it has none."""


class _Local(threading.local):
    def __init__(self) -> None:
        self.running: list[tuple[nn.Module, ExitStack]] = []


_local = _Local()
_again: dict[tuple[int, int], int] = {}
"""Blocks that are being computed again, by thread and module, as backward may run in another thread."""


_packings: weakref.WeakKeyDictionary[nn.Module, Packings] = weakref.WeakKeyDictionary()


@contextmanager
def _computing_again(module: nn.Module) -> Iterator[None]:
    key = (threading.get_ident(), id(module))
    _again[key] = _again.get(key, 0) + 1
    try:
        with _hide_offloaded_weights(module):
            yield
    finally:
        _again[key] -= 1
        if not _again[key]:
            del _again[key]


@contextmanager
def _hide_offloaded_weights(module: nn.Module) -> Iterator[None]:
    """Context in which torch's checkpointing does not see offloaded weights."""
    packing = _packings.get(module, lambda: None)()
    if packing is None:
        yield
        return
    pack, unpack = torch._C._autograd._top_saved_tensors_default_hooks(True)
    reference, fetch = packing.reference, packing.unpack

    def kept(tensor: torch.Tensor) -> Any:
        found = reference(tensor)
        return pack(tensor) if found is None else found

    def brought(value: Any) -> torch.Tensor:
        return fetch(value) if type(value) is Reference else unpack(value)

    with torch.autograd.graph.saved_tensors_hooks(kept, brought):
        yield


def blocks(model: nn.Module) -> list[nn.Module]:
    """The blocks to compute again: the outermost numbered modules with more than one layer, else the model."""
    found: list[nn.Module] = []
    inside = ""
    for name, module in model.named_modules():
        if inside and name.startswith(inside):
            continue
        if name.rpartition(".")[2].isdigit() and len(_owners(module)) > 1:
            found.append(module)
            inside = name + "."
    return found or [model]


def _owners(module: nn.Module) -> list[nn.Module]:
    return [each for each in module.modules() if any(one is not None for one in each._parameters.values())]


def put_on(module: nn.Module, packings: Packings) -> Callable[[], None]:
    """Register hooks that compute a block again in backward.

    Args:
        module: the block.
        packings: returns the hooks for its model's offloaded weights.

    Returns:
        A function that removes them.
    """
    handles = [
        module.register_forward_pre_hook(_before, with_kwargs=True),
        module.register_forward_hook(_after, prepend=True, always_call=True),
    ]
    _packings[module] = packings

    def undo() -> None:
        for each in handles:
            each.remove()

    return undo


def _before(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    if torch.compiler.is_compiling() or not torch.is_grad_enabled() or transforming():
        return
    if getattr(module, "gradient_checkpointing", False) or (threading.get_ident(), id(module)) in _again:
        return
    options = [
        (lambda: (nullcontext(), _computing_again(module))) if each is None else each  # forward, and again
        for each in _OPTIONS
    ]
    with ExitStack() as contexts:
        contexts.enter_context(_checkpointed(_generator(module, *options, *args, **kwargs)))
        contexts.enter_context(_hide_offloaded_weights(module))
        _local.running.append((module, contexts.pop_all()))


@contextmanager
def _checkpointed(running: Generator[None, None, None]) -> Iterator[None]:
    next(running)
    yield
    next(running, None)


def _after(module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
    if _local.running and _local.running[-1][0] is module and (threading.get_ident(), id(module)) not in _again:
        _local.running.pop()[1].close()


def end_interrupted() -> None:
    """End the checkpointing of blocks whose forward was interrupted."""
    while _local.running:
        _local.running.pop()[1].close()
