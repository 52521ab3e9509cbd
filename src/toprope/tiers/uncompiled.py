"""Functions that torch.compile leaves alone, without importing it: that takes seconds where nobody compiles."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

__all__ = ["uncompiled"]


def uncompiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """As `torch.compiler.disable`: neither the function nor what it calls is compiled, nor traced into."""
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
