"""Deviation of modules from float32: what a module returned on the card, next to the same in float32 on the host.

recorder.py collects it, facts.py and the run report show it. A module without modules inside is computed again at its
first call, from the inputs that it had on the card: its own error, without the errors of its inputs. Tests:
tests/sim/simulated/test_numbers.py.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["SUFFIX", "BadModule", "Deviation", "Deviations", "read_run"]

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


@dataclass(frozen=True)
class BadModule:
    """Module whose own code made the first bad number of a kind.

    Attributes:
        kind: "nan" or "overflow".
        module: its name in the outermost module; "" for the outermost itself.
        class_name: its class; "" where the number was made outside of modules, such as in the backward pass.
    """

    kind: str
    module: str
    class_name: str


class Deviations:
    """The deviations of a process, and the modules of its first bad numbers.

    Args:
        path: file that keeps them; None to keep them in the process alone.
        noted: gives the kinds of bad numbers that were found until now.
    """

    def __init__(self, path: Path | None = None, noted: Callable[[], Iterable[str]] = tuple) -> None:
        from torch.utils.weak import WeakIdKeyDictionary

        self.found: list[Deviation] = []
        self.bad: list[BadModule] = []
        self._noted = noted
        self._running: list[Any] = []
        self._path = path
        self._names: Any = WeakIdKeyDictionary()
        self._seen: Any = WeakIdKeyDictionary()

    def name_all(self, outermost: Any) -> None:
        """Learn the names of the modules inside an outermost one."""
        for name, module in outermost.named_modules():
            self._names.setdefault(module, name)

    def before_forward(self, module: Any, *, outermost: bool) -> None:
        """Note that a module begins: bad numbers found until now are of the module around it."""
        if outermost:
            self._running.clear()
        self._assign_found(self._running[-1] if self._running else None)
        self._running.append(module)

    def _assign_found(self, module: Any) -> None:
        """Assign the bad numbers that were found since the last call to a module; None for code outside of modules."""
        known = {each.kind for each in self.bad}
        for kind in self._noted():
            if kind in known:
                continue
            name, class_name = ("", "") if module is None else (self._names.get(module, ""), type(module).__name__)
            self.bad.append(BadModule(kind, name, class_name))
            self._write([kind, name, class_name])

    def _write(self, values: list[Any]) -> None:
        if self._path is not None:
            with self._path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(values) + "\n")

    def after_forward(self, module: Any, args: Any, kwargs: Any, output: Any) -> None:
        """Assign the bad numbers of a module, and at its first call compute it again in float32."""
        self._assign_found(module)
        while self._running and self._running.pop() is not module:
            pass  # of one that failed inside
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
        if not all(map(isfinite, shares)):
            return  # named as a bad number, and no deviation
        dtype = str(results[0].dtype).removeprefix("torch.")
        made = Deviation(self._names.get(module, ""), type(module).__name__, dtype, max(shares))
        self.found.append(made)
        self._write([made.module, made.kind, made.dtype, made.largest])


def read_run(folder: Path) -> tuple[tuple[Deviation, ...], tuple[BadModule, ...]]:
    """The deviations of all processes of a run, and the modules of the first bad number of each kind."""
    lines = (line for path in sorted(folder.glob(f"*{SUFFIX}")) for line in path.read_text().splitlines())
    rows = [json.loads(line) for line in lines]
    bad: dict[str, BadModule] = {}
    for row in rows:
        if len(row) == 3:
            bad.setdefault(row[0], BadModule(*row))
    return tuple(Deviation(*row) for row in rows if len(row) == 4), tuple(bad.values())


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
