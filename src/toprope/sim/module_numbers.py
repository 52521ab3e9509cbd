"""Deviation of modules from float32: what a module returned on the card, next to the same in float32 on the host.

A module without modules inside is computed again at its first call, from the inputs that it had on the card: its own
error, not what its inputs brought along.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["SUFFIX", "Deviation", "Deviations", "read_run"]

SUFFIX = ".numbers"


@dataclass(frozen=True)
class Deviation:
    """Deviation of one module.

    Attributes:
        module: its name in the outermost module, such as "layers.3.mlp"; "" for the outermost itself.
        kind: its class.
        dtype: of its result.
        largest: the largest difference from float32, as a share of the largest value in float32.
    """

    module: str
    kind: str
    dtype: str
    largest: float


class Deviations:
    """The deviations of a process.

    Args:
        path: file that keeps them; None to keep them in the process alone.
    """

    def __init__(self, path: Path | None = None) -> None:
        from torch.utils.weak import WeakIdKeyDictionary

        self.found: list[Deviation] = []
        self._path = path
        self._names: Any = WeakIdKeyDictionary()
        self._seen: Any = WeakIdKeyDictionary()

    def name_all(self, outermost: Any) -> None:
        """Learn the names of the modules inside an outermost one."""
        for name, module in outermost.named_modules():
            self._names.setdefault(module, name)

    def after_forward(self, module: Any, args: Any, kwargs: Any, output: Any) -> None:
        """Compute a module again in float32, at its first call."""
        if module in self._seen or next(module.children(), None) is not None:
            return
        if next(module.parameters(recurse=False), None) is None:
            return
        self._seen[module] = True
        results = [each for each in _leaves(output) if each.is_floating_point() and each.device.type == "npu"]
        if not results:
            return
        wanted = [each for each in _leaves(_in_single(module, args, kwargs)) if each.is_floating_point()]
        shares = [_share(here, there) for here, there in zip(results, wanted, strict=True)]
        dtype = str(results[0].dtype).removeprefix("torch.")
        made = Deviation(self._names.get(module, ""), type(module).__name__, dtype, max(shares))
        self.found.append(made)
        if self._path is not None:
            with self._path.open("a", encoding="utf-8") as file:
                file.write(json.dumps([made.module, made.kind, made.dtype, made.largest]) + "\n")


def read_run(folder: Path) -> list[Deviation]:
    """The deviations of all processes of a run."""
    lines = (line for path in sorted(folder.glob(f"*{SUFFIX}")) for line in path.read_text().splitlines())
    return [Deviation(*json.loads(line)) for line in lines]


def _leaves(value: Any) -> Iterator[Tensor]:
    import torch
    from torch.utils._pytree import tree_leaves

    return (each for each in tree_leaves(value) if isinstance(each, torch.Tensor))


def _in_single(module: Any, args: Any, kwargs: Any) -> Any:
    import torch
    from torch.func import functional_call
    from torch.utils._pytree import tree_map

    def single(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        host = _on_host(value)
        return host.float() if host.is_floating_point() else host.clone()

    state = {name: single(tensor) for name, tensor in (*module.named_parameters(), *module.named_buffers())}
    with torch.no_grad(), _without_autocast():
        return functional_call(module, state, tree_map(single, args), tree_map(single, kwargs))


def _on_host(tensor: Tensor) -> Tensor:
    """The bytes of a card's tensor as a tensor of the host, without a copy that would be counted."""
    import torch

    if tensor.device.type != "npu":
        return tensor.detach()
    view: Tensor = torch.ops.toprope_sim.host_view(tensor.detach())
    return view


def _without_autocast() -> AbstractContextManager[Any]:
    import torch

    return torch.autocast("cpu", enabled=False)


def _share(here: Tensor, there: Tensor) -> float:
    seen = _on_host(here).float()
    largest = float(there.abs().max()) if there.numel() else 0.0
    return float((seen - there).abs().max()) / largest if largest else 0.0
