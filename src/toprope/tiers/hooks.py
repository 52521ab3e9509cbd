"""What is put on a model's modules so that their weights are there while they run, and how it is taken away again."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from torch import nn

from toprope.tiers.engine import Engine
from toprope.tiers.groups import CLOSED, Model, Weight, is_closed
from toprope.tiers.running import Needs
from toprope.tiers.uncompiled import uncompiled

__all__ = ["Hooks"]


class Hooks:
    """The hooks on one model.

    Args:
        module: the model.
        model: the same, taken apart.
        engine: what is called before and after modules run.
    """

    def __init__(self, module: nn.Module, model: Model, engine: Engine) -> None:
        self.module, self.model, self.engine = module, model, engine
        self._undo: list[Callable[[], Any]] = []

    def install(self) -> None:
        """Put them on."""
        owned = {prefix: [self.model.weights[name] for name in names] for prefix, _, names in self.model.owners}
        inside: str | None = None
        for prefix, module in self.module.named_modules():
            if inside is not None and prefix.startswith(inside):
                continue  # a module around it sees to it
            closed = is_closed(module)
            weights = self._below(prefix, owned) if closed or isinstance(module, CLOSED) else owned.get(prefix, [])
            group = prefix if prefix in self.model.blocks else ""
            if weights or group or not prefix:
                needs = Needs(prefix, weights, group, root=not prefix)
                self.engine.needs.append(needs)
                self._put_on(module, needs)
            inside = prefix + "." if closed and prefix else None

    def _below(self, prefix: str, owned: dict[str, list[Weight]]) -> list[Weight]:
        inner = prefix + "." if prefix else ""
        return list(
            {each: None for name, some in owned.items() if name == prefix or name.startswith(inner) for each in some}
        )

    def _put_on(self, module: nn.Module, needs: Needs) -> None:
        if getattr(module, "_compiled_call_impl", None) is not None:
            self._around(module, "_compiled_call_impl", needs)
        elif isinstance(module, nn.TransformerEncoderLayer):
            self._around(module, "forward", needs)
        else:
            enter, leave = self.engine.enter, self.engine.leave

            @uncompiled
            def before(_module: nn.Module, _args: Any) -> None:
                enter(needs)

            @uncompiled
            def after(_module: nn.Module, _args: Any, _output: Any) -> None:
                leave(needs)

            self._undo.append(module.register_forward_pre_hook(before, prepend=True).remove)
            self._undo.append(module.register_forward_hook(after, always_call=True).remove)

    def _around(self, module: nn.Module, name: str, needs: Needs) -> None:
        """Stand in for what a module calls; it sees no hooks then, and is compiled without what is done here."""
        call, own = getattr(module, name), name in vars(module)
        enter, leave = uncompiled(self.engine.enter), uncompiled(self.engine.leave)

        @functools.wraps(call)
        def run(*args: Any, **kwargs: Any) -> Any:
            enter(needs)
            try:
                return call(*args, **kwargs)
            finally:
                leave(needs)

        vars(module)[name] = run

        def undo() -> None:
            if own:
                vars(module)[name] = call
            else:
                vars(module).pop(name, None)

        self._undo.append(undo)

    def add(self, undo: Callable[[], Any]) -> None:
        """Something else that is taken away with the hooks."""
        self._undo.append(undo)

    def remove(self) -> None:
        """Take them away."""
        while self._undo:
            self._undo.pop()()
        self.engine.needs.clear()
