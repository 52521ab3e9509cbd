"""A program written for CUDA, unmodified, on the device in use; and what it asks of CUDA, with the stacks.

`toprope run --from cuda PROGRAM` is for a first look, `--trace-cuda FILE` for finding what is left to port. Both
redefine torch.cuda within the program's processes and undo it at their exit: the one exception to our rule that torch
stays as it is, and the report says so. Nothing here runs unless one of the two was asked for.

The program is told that its device is CUDA: `torch.device("cuda")` means the device in use wherever torch takes a
device, `torch.cuda`'s functions are those of `toprope.device.portable`, and a tensor that the program asks says that it
is on CUDA. What the program asks in threads of its own, or in C++, is not seen.
"""

from __future__ import annotations

import atexit
import functools
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from toprope.compat.cuda_sites import Log, is_ours

__all__ = ["NOTE", "install", "install_for_run"]

NOTE = "torch.cuda was redefined in the program's processes (--from cuda, --trace-cuda): a first look, no port"
"""What the report says about such a run."""

_TABLE = """
    is_available device_count current_device synchronize init is_initialized ipc_collect empty_cache set_device
    device_of get_device_name get_device_properties get_device_capability is_bf16_supported memory_allocated
    max_memory_allocated
    memory_reserved max_memory_reserved memory_stats memory_summary reset_peak_memory_stats mem_get_info
    reset_accumulated_memory_stats reset_max_memory_allocated set_per_process_memory_fraction manual_seed
    manual_seed_all seed seed_all get_rng_state get_rng_state_all set_rng_state set_rng_state_all Event Stream
    current_stream default_stream stream
"""
_OTHERS = {
    "torch.cuda.device": "device_index", "torch.cuda.amp.autocast": "autocast",
    "torch.cuda.amp.GradScaler": "GradScaler", "torch.cuda.nvtx.range_push": "range_push",
    "torch.cuda.nvtx.range_pop": "range_pop", "torch.cuda.nvtx.range": "range", "torch.cuda.nvtx.mark": "mark",
    "torch.cuda.profiler.start": "profiler_start", "torch.cuda.profiler.stop": "profiler_stop",
}  # fmt: skip
_DTYPES = {
    "FloatTensor": "float32", "DoubleTensor": "float64", "HalfTensor": "float16", "BFloat16Tensor": "bfloat16",
    "LongTensor": "int64", "IntTensor": "int32", "ShortTensor": "int16", "CharTensor": "int8", "ByteTensor": "uint8",
    "BoolTensor": "bool",
}  # fmt: skip


def install_for_run() -> None:
    """Install what the variables of the run ask for, once torch is imported."""
    if not os.environ.get("TOPROPE_FROM_CUDA"):
        return
    from toprope.imports import after_import

    trace = os.environ.get("TOPROPE_TRACE_CUDA", "")

    def act() -> None:
        install(Path(trace) if trace else None)

    after_import("torch", act)


def install(trace: Path | None = None) -> Callable[[], None]:
    """Have this process take the device in use for CUDA. torch is imported.

    Args:
        trace: the folder for a file of what the program asked of CUDA, written at exit; None for no such file.

    Returns:
        What undoes it; at exit it is done anyway.
    """
    from toprope.device import portable

    if portable.device().type == "cuda" and trace is None:
        return lambda: None
    log = None if trace is None else Log(trace)
    patches = _Patches(log)
    patches.put_all()
    mode = _mode(log)
    mode.__enter__()

    @functools.cache
    def undo() -> None:
        mode.__exit__(None, None, None)
        patches.undo()
        if log is not None:
            log.write()

    atexit.register(undo)
    return undo


# What is redefined


class _Patches:
    """Attributes of torch that are redefined, and what they were."""

    def __init__(self, log: Log | None) -> None:
        self._log = log
        self._before: list[tuple[Any, str, Any]] = []

    def put(self, owner: Any, name: str, new: Any) -> None:
        """Redefine an attribute."""
        self._before.append((owner, name, getattr(owner, name)))
        setattr(owner, name, new)

    def undo(self) -> None:
        """Put all back."""
        while self._before:
            setattr(*self._before.pop())

    def put_all(self) -> None:
        """Redefine what `install` says."""
        import torch
        from torch import autocast, cuda

        from toprope.device import portable

        names = {f"torch.cuda.{name}": name for name in _TABLE.split()} | _OTHERS
        for full, name in names.items():
            owner: Any = torch
            *way, last = full.split(".")[1:]
            for each in way:
                owner = getattr(owner, each, None)
            if hasattr(owner, last):
                self.put(owner, last, self._told(full, getattr(portable, name)))
        for name, dtype in _DTYPES.items():
            self.put(
                cuda, name, _tensor_class(getattr(torch, dtype), self._told(f"torch.cuda.{name}", portable.tensor))
            )
        there = _there()
        accelerated = there != "cpu"

        log = self._log

        class Autocast(autocast):
            def __init__(self, device_type: str, dtype: Any = None, enabled: bool = True, cache_enabled: Any = None):
                if device_type == "cuda":
                    if log is not None:
                        log.note("a device", "cuda")
                    dtype = torch.float16 if dtype is None else dtype
                    device_type, enabled = there, enabled and accelerated
                    dtype = dtype if enabled else None
                super().__init__(device_type, dtype, enabled, cache_enabled)

        class GradScaler(torch.amp.GradScaler):
            def __init__(self, device: str = "cuda", *arguments: Any, **keywords: Any) -> None:
                if device == "cuda":
                    if log is not None:
                        log.note("a device", "cuda")
                    device = there
                    if not accelerated:
                        arguments, keywords = arguments[:4], {**keywords, "enabled": False}
                super().__init__(device, *arguments, **keywords)

        def new_generator(device: Any = "cpu") -> Any:
            if log is not None and _is_cuda(device):
                log.note("a device", str(device))
            return generator(_mapped(device))

        generator = torch.Generator
        self.put(torch, "autocast", Autocast)
        self.put(torch.amp, "autocast", Autocast)
        self.put(torch.amp, "GradScaler", GradScaler)
        self.put(torch, "Generator", _stand_in(generator, new_generator))
        self.put(torch, "load", _loading(torch.load, log))
        if torch.distributed.is_available():
            begin = torch.distributed.init_process_group
            self.put(torch.distributed, "is_nccl_available", lambda: True)
            self.put(torch.distributed, "init_process_group", _grouping(begin, log))

    def _told(self, full: str, function: Any) -> Any:
        """A function that is noted when the program calls it."""
        log = self._log
        if log is None:
            return function
        if isinstance(function, type):

            def begin(self: Any, *arguments: Any, **keywords: Any) -> None:
                log.note("a function", full, direct=True)
                function.__init__(self, *arguments, **keywords)  # type: ignore[misc]

            return type(function.__name__, (function,), {"__init__": begin, "__doc__": function.__doc__})

        @functools.wraps(function)
        def call(*arguments: Any, **keywords: Any) -> Any:
            log.note("a function", full, direct=True)
            return function(*arguments, **keywords)

        return call


@functools.cache
def _there() -> str:
    """The kind of the device in use."""
    from toprope.device import portable

    return str(portable.device().type)


def _is_name(value: object) -> bool:
    return isinstance(value, str) and (value == "cuda" or (value.startswith("cuda:") and value[5:].isdigit()))


def _mapped(value: Any) -> Any:
    """A device of CUDA becomes the one in use; everything else stays."""
    import torch

    from toprope.device import portable

    if _is_name(value) or (isinstance(value, torch.device) and value.type == "cuda"):
        return portable.device(value)
    return value


def _stand_in(real: type, make: Callable[..., Any]) -> type:
    """Stands for a class that cannot be derived from: makes its objects, and knows them."""

    class Meta(type):
        def __instancecheck__(cls, instance: object) -> bool:
            return isinstance(instance, real)

        def __call__(cls, *arguments: Any, **keywords: Any) -> Any:
            return make(*arguments, **keywords)

    return Meta(real.__name__, (), {"__doc__": real.__doc__})


def _tensor_class(dtype: Any, make: Callable[..., Any]) -> type:
    """Stands for torch.cuda.FloatTensor and its like."""
    from toprope.device import portable

    class Meta(type):
        def __instancecheck__(cls, instance: object) -> bool:
            return bool(portable.is_tensor(instance, dtype))

        def __call__(cls, *arguments: Any) -> Any:
            return make(dtype, *arguments)

    return Meta("Tensor", (), {"dtype": dtype})


def _loading(load: Callable[..., Any], log: Log | None) -> Callable[..., Any]:
    from toprope.device import portable

    @functools.wraps(load)
    def call(f: Any, map_location: Any = None, *arguments: Any, **keywords: Any) -> Any:
        if log is not None and _is_cuda(map_location):
            log.note("a device", str(map_location))
        if map_location is None:
            map_location = portable.map_location
        elif isinstance(map_location, Mapping):
            names = {key: str(_mapped(value)) for key, value in map_location.items()}
            map_location = names if _there() == "cuda" else names | {str(_mapped(key)): to for key, to in names.items()}
        return load(f, _mapped(map_location), *arguments, **keywords)

    return call


def _grouping(begin: Callable[..., Any], log: Log | None) -> Callable[..., Any]:
    from toprope.device import portable

    @functools.wraps(begin)
    def call(backend: Any = None, *arguments: Any, **keywords: Any) -> Any:
        if log is not None and backend == "nccl":
            log.note("a backend", "nccl")
        return begin(portable.dist_backend() if backend == "nccl" else backend, *arguments, **keywords)

    return call


def _mode(log: Log | None) -> Any:
    """The mode in which torch takes CUDA's devices for the one in use."""
    import torch
    from torch.overrides import TorchFunctionMode

    moves = {torch.Tensor.cuda}
    is_cuda = torch.Tensor.is_cuda.__get__  # type: ignore[attr-defined]
    device = torch.Tensor.device.__get__

    class FromCuda(TorchFunctionMode):
        def __torch_function__(
            self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
        ) -> Any:
            kwargs = kwargs or {}
            if func in moves:
                if log is not None:
                    log.note("a function", "torch.Tensor.cuda")
                return _moved(*args, **kwargs)
            if func in (is_cuda, device):
                return _asked(func, args[0], is_type=func == is_cuda)
            if _any_cuda(args) or _any_cuda(kwargs.values()):
                if log is not None:
                    log.note("a device", _first_cuda((*args, *kwargs.values())))
                if func is torch.device:  # the program is to read "cuda" where it wrote it
                    return func(*args, **kwargs)
                args = tuple(map(_mapped, args))
                kwargs = {name: _mapped(value) for name, value in kwargs.items()}
            return func(*args, **kwargs)

    return FromCuda()


def _any_cuda(values: Any) -> bool:
    return any(_is_cuda(value) for value in values)


def _is_cuda(value: Any) -> bool:
    return _is_name(value) or (value.__class__.__name__ == "device" and getattr(value, "type", "") == "cuda")


def _first_cuda(values: tuple[Any, ...]) -> str:
    return next(str(value) for value in values if _is_cuda(value))


def _moved(
    tensor: Any, device: Any = None, non_blocking: bool = False, memory_format: Any = None, **keywords: Any
) -> Any:
    """What tensor.cuda() does."""
    from toprope.device import portable

    keywords |= {} if memory_format is None else {"memory_format": memory_format}
    return tensor.to(portable.device(device), non_blocking=non_blocking, **keywords)


def _asked(func: Any, tensor: Any, *, is_type: bool) -> Any:
    """What the program hears when it asks a tensor for its device; torch itself hears the truth."""
    import torch

    real = torch.Tensor.device.__get__(tensor)
    asker = sys._getframe(2)
    if real.type != _there() or real.type == "cpu" or is_ours(asker):
        return func(tensor)
    return True if is_type else torch.device("cuda", real.index or 0)
