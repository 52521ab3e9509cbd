"""Hooks on the modules of an attached model: `Engine.enter` before a module runs, `Engine.leave` after it.

Made by `attach`; `Handle` removes them. Also here: modules that cannot take hooks, whose `forward` is wrapped; the
refusal of copies and of DDP or FSDP; and `uncompiled`, by which `torch.compile` leaves the hooks out. Relies on
private names of torch (`torch._C._dynamo.eval_frame`, attributes of modules): look at `uncompiled` and `_put_on` for
each new release of torch. Tests: tests/tiers/test_tiers_attach.py, tests/tiers/test_tiers_absent.py.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from typing import Any, NoReturn

import torch
from torch import nn
from torch.nn.modules.module import register_module_module_registration_hook

from toprope.errors import TierAbsentError
from toprope.tiers.engine.model.model_groups import CLOSED, Model, Weight, is_closed
from toprope.tiers.engine.runtime import Engine, Needs

__all__ = ["Hooks", "uncompiled"]


def uncompiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """Faster `torch.compiler.disable`: neither the function nor its callees are compiled or traced."""
    frames: Any = torch._C._dynamo.eval_frame
    try:
        switch, skip = frames.set_eval_frame, frames._FrameAction.SKIP
        strategy, tell = frames._FrameExecStrategy(skip, skip), frames.set_code_exec_strategy
    except AttributeError:  # another torch
        return torch.compiler.disable(function)  # type: ignore[no-untyped-call, no-any-return]

    def run(*args: Any, **kwargs: Any) -> Any:
        before = switch(None)
        try:
            return function(*args, **kwargs)
        finally:
            switch(before)

    tell(run.__code__, strategy)
    functools.update_wrapper(run, function)
    vars(run).update(_torchdynamo_disable=True, _torchdynamo_disable_msg="weights come and go")
    return run


class Hooks:
    """The hooks on one model.

    Args:
        module: the model.
        model: the model's weights and groups, from `read_model`.
        engine: called before and after modules run.
    """

    def __init__(self, module: nn.Module, model: Model, engine: Engine) -> None:
        self.module, self.model, self.engine = module, model, engine
        self._undo: list[Callable[[], Any]] = []

    def install(self) -> None:
        """Register the hooks."""
        owned = {prefix: [self.model.weights[name] for name in names] for prefix, _, names in self.model.owners}
        inside: str | None = None
        for prefix, module in self.module.named_modules():
            if inside is not None and prefix.startswith(inside):
                continue  # the hook of the module around it loads these weights
            closed = is_closed(module)
            weights = self._weights_in(prefix, owned) if closed or isinstance(module, CLOSED) else owned.get(prefix, [])
            weights = list(
                dict.fromkeys((*weights, *(self.model.weights[name] for name in self.model.read.get(prefix, ()))))
            )
            group = prefix if prefix in self.model.blocks else ""
            if weights or group or not prefix:
                needs = Needs(prefix, weights, group, root=not prefix)
                self.engine.needs.append(needs)
                self._put_on(module, needs)
            inside = prefix + "." if closed and prefix else None

    def _weights_in(self, prefix: str, owned: dict[str, list[Weight]]) -> list[Weight]:
        inner = prefix + "." if prefix else ""
        return list(
            {each: None for name, some in owned.items() if name == prefix or name.startswith(inner) for each in some}
        )

    def _put_on(self, module: nn.Module, needs: Needs) -> None:
        if getattr(module, "_compiled_call_impl", None) is not None:
            self._wrap_method(module, "_compiled_call_impl", needs)
        elif isinstance(module, nn.TransformerEncoderLayer):
            self._wrap_method(module, "forward", needs)
        else:
            enter, leave = self.engine.enter, self.engine.leave

            @uncompiled
            def before(module: nn.Module, _args: Any) -> None:
                enter(needs)
                later: Any = module._forward_hooks  # other hooks, which may use the weights, run before `after`
                if last in later and next(reversed(later)) != last:
                    later.move_to_end(last)

            @uncompiled
            def after(_module: nn.Module, _args: Any, _output: Any) -> None:
                leave(needs)

            self._undo.append(module.register_forward_pre_hook(before, prepend=True).remove)
            added = module.register_forward_hook(after, always_call=True)
            last = added.id
            self._undo.append(added.remove)

    def _wrap_method(self, module: nn.Module, name: str, needs: Needs) -> None:
        """Wrap a method of a module instead of registering hooks, for a module that looks for hooks or is compiled."""
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

    def refuse_copies(self) -> None:
        """Make copying or pickling the model an error: a copy would have no weights."""

        def refuse(*_: Any) -> NoReturn:
            raise TierAbsentError(
                f"an attached {type(self.module).__name__} cannot be copied or pickled: its weights come and go.",
                do="copy what state_dict() gives, which has all values; or detach the model first: handle.detach()",
            )

        for name in ("__deepcopy__", "__reduce_ex__"):
            vars(self.module)[name] = refuse
            self._undo.append(functools.partial(vars(self.module).pop, name, None))

    def refuse_replicas(self) -> None:
        """Make wrapping the model in DistributedDataParallel or FSDP an error: both read all weights, in C++."""
        mine = weakref.ref(self.module)

        def refuse(parent: nn.Module, _name: str, module: nn.Module | None) -> None:
            wraps = isinstance(parent, nn.parallel.DistributedDataParallel) or "FullyShardedDataParallel" in [
                each.__name__ for each in type(parent).__mro__
            ]
            if wraps and module is not None and any(each is mine() for each in module.modules()):
                raise TierAbsentError(
                    f"{type(parent).__name__} needs all weights of a model on the device at once, and those of this "
                    f"{type(module).__name__} come and go.",
                    do="average the gradients after backward: for each parameter, values = parameter.grad.clone(); "
                    "torch.distributed.all_reduce(values); parameter.grad.copy_(values / world_size); "
                    "or detach the model first: handle.detach()",
                )

        remove = register_module_module_registration_hook(refuse).remove
        self._undo.append(remove)
        weakref.finalize(self.module, remove).atexit = False

    def add(self, undo: Callable[[], Any]) -> None:
        """Register a function that `remove` calls."""
        self._undo.append(undo)

    def remove(self) -> None:
        """Remove the hooks, and undo everything registered with `add`."""
        while self._undo:
            self._undo.pop()()
        self.engine.needs.clear()
