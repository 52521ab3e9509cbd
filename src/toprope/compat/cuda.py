"""Run a program written for CUDA, unmodified, on the device in use, and record what it asks of CUDA, with stacks.

`toprope run --from cuda PROGRAM` is for a first look, `--trace-cuda FILE` finds what is left to port;
toprope.compat.finder calls `install_for_run` in each process of such a run. Both redefine torch.cuda within the
program's processes and undo it at their exit: the one exception to our rule that torch stays as it is, and the report
says so.

The program takes its device for CUDA: `torch.device("cuda")` means the device in use wherever torch takes a device
(`toprope.compat.cuda_patches` has the list), `torch.cuda`'s functions are those of `toprope.device.portable`, and a
tensor says that it is on CUDA. Requests from C++ and TorchScript are not seen. Names and signatures are torch's; a
function of torch.cuda that is added to portable needs its name in `_TABLE`. Tests: tests/compat/test_compat_cuda.py.
"""

from __future__ import annotations

import atexit
import functools
import inspect
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from toprope.compat.cuda_sites import Log, is_ours
from toprope.messages import Message

if TYPE_CHECKING:
    from toprope.compat.cuda_patches import Convert, Patches

__all__ = ["NOTE", "install", "install_for_run"]

NOTE = Message("torch.cuda was redefined in the program's processes (--from cuda, --trace-cuda): a first look, no port")
"""Text of the report about such a run."""

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
_TENSOR_TYPES = (
    "FloatTensor", "DoubleTensor", "HalfTensor", "BFloat16Tensor", "LongTensor", "IntTensor", "ShortTensor",
    "CharTensor", "ByteTensor", "BoolTensor",
)  # fmt: skip
_MORE = (
    "asarray", "empty_permuted", "nested.nested_tensor", "sparse_bsc_tensor", "sparse_bsr_tensor", "sparse_csc_tensor",
)  # fmt: skip
"""Functions of torch that take a device and are not in the list of `cuda_patches`, which is torch_npu's."""


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
    from toprope.compat.cuda_patches import Patches

    log = None if trace is None else Log(trace)
    patches = Patches()
    _redefine(patches, log, str(portable.device().type))

    @functools.cache
    def undo() -> None:
        patches.undo()
        if log is not None:
            log.write()

    atexit.register(undo)
    return undo


def _redefine(patches: Patches, log: Log | None, kind: str) -> None:
    """Redefine what the top of this file says, for a device in use of this kind."""
    import torch

    from toprope.compat.cuda_patches import TORCH, device_arguments, redefine
    from toprope.device import portable

    def convert(value: Any, numbers: bool) -> Any:
        if _is_cuda(value):
            if log is not None:
                log.note("a device", str(value))
            return portable.name(value) if isinstance(value, str) else portable.device(value)
        if numbers and isinstance(value, int) and not isinstance(value, bool):
            return portable.device(value)
        return value

    def backend(text: str) -> str:
        if log is not None and "nccl" in text:
            log.note("a backend", "nccl")
        if kind == "cuda":
            return text
        parts = text.replace("nccl", portable.dist_backend()).replace("cuda", kind).split(",")
        return ",".join(dict.fromkeys(parts))  # on the CPU "cpu:gloo,cuda:nccl" names one backend twice

    own = {name: vars(torch)[name] for name in TORCH if name in vars(torch)}
    _redefine_cuda(patches, log, kind)
    redefine(patches, convert, backend, kind)
    for path in _MORE:
        patches.wrap("torch", path, functools.partial(device_arguments, convert=convert))
    patches.wrap("torch", "load", functools.partial(_loading, convert=convert, kind=kind))
    _keep_script(patches, own)
    for path in ("autocast_mode.autocast.__init__", "grad_scaler.GradScaler.__init__"):
        patches.wrap("torch.amp", path, functools.partial(_mixing, log=log, kind=kind))
    if kind == "cpu":
        patches.wrap("torch.nn.parallel.distributed", "DistributedDataParallel.__init__", _without_ids)
    patches.put(torch.Tensor, "cuda", _move(log, torch.Tensor.cuda if kind == "cuda" else None))
    if kind not in ("cpu", "cuda"):
        _answer(patches, kind)


def _keep_script(patches: Patches, own: Mapping[str, Callable[..., Any]]) -> None:
    """Have TorchScript, which knows torch's functions by identity, take the redefined ones for them."""
    import torch
    from torch.jit._builtins import _get_builtin_table

    table: dict[int, str] = _get_builtin_table()  # type: ignore[no-untyped-call]
    for name, function in own.items():
        if id(function) in table:
            new = id(getattr(torch, name))
            table[new] = table[id(function)]
            patches.on_undo(functools.partial(table.pop, new))


def _redefine_cuda(patches: Patches, log: Log | None, kind: str) -> None:
    """Redefine the functions and classes of torch.cuda."""
    import torch

    from toprope.device import portable

    names = {f"torch.cuda.{name}": name for name in _TABLE.split()} | _OTHERS
    for full, name in names.items():
        *way, last = full.split(".")[1:]
        owner: Any = torch
        for each in way:
            owner = getattr(owner, each, None)
        own = getattr(owner, last, None)
        if own is None:
            continue
        if kind == "cuda":
            new = own
        elif name in ("Event", "Stream"):
            new = getattr(portable, name).own()
        else:
            new = getattr(portable, name)
        patches.put(owner, last, _noted(new, full, log))
    for name in _TENSOR_TYPES:
        real = getattr(torch if kind == "cpu" else getattr(torch, kind), name, None)
        if real is not None:
            patches.put(torch.cuda, name, _noted_type(real, f"torch.cuda.{name}", log))


def _noted(function: Any, full: str, log: Log | None) -> Any:
    """Give a function or class that is noted when the program calls it."""
    if log is None:
        return function
    note = functools.partial(log.note, "a function", full, direct=True)
    if isinstance(function, type):
        from toprope.compat.cuda_patches import stand_in

        return stand_in(function, full, called=note)

    @functools.wraps(function)
    def call(*arguments: Any, **keywords: Any) -> Any:
        note()
        return function(*arguments, **keywords)

    return call


def _noted_type(real: Any, full: str, log: Log | None) -> Any:
    """Give a type of tensors, such as torch.cuda.FloatTensor, that is noted when the program calls it."""
    if log is None:
        return real
    note = functools.partial(log.note, "a function", full, direct=True)

    class Meta(type):
        def __instancecheck__(cls, instance: object) -> bool:
            return isinstance(instance, real)

        def __call__(cls, *arguments: Any) -> Any:
            note()
            return real(*arguments)

    return Meta(real.__name__, (), {"dtype": real.dtype})


def _is_cuda(value: Any) -> bool:
    if isinstance(value, str):
        return value == "cuda" or (value.startswith("cuda:") and value[5:].isdigit())
    return value.__class__.__name__ == "device" and getattr(value, "type", "") == "cuda"


def _loading(load: Callable[..., Any], convert: Convert, kind: str) -> Callable[..., Any]:
    """Give torch.load with its table of devices converted, and with the device in use for what was saved on CUDA."""
    from toprope.device import portable

    @functools.wraps(load)
    def call(f: Any, map_location: Any = None, *arguments: Any, **keywords: Any) -> Any:
        if map_location is None:
            map_location = portable.map_location
        elif isinstance(map_location, Mapping):
            names = {key: str(convert(value, False)) for key, value in map_location.items()}
            map_location = names if kind == "cuda" else names | {convert(key, False): to for key, to in names.items()}
        return load(f, map_location, *arguments, **keywords)

    return call


def _mixing(begin: Callable[..., None], log: Log | None, kind: str) -> Callable[..., None]:
    """Give the `__init__` of autocast or GradScaler for the kind in use; on the CPU it is off, as CUDA's is there."""
    signature = inspect.signature(begin)
    first = list(signature.parameters)[1]

    @functools.wraps(begin)
    def call(*arguments: Any, **keywords: Any) -> None:
        bound = signature.bind(*arguments, **keywords)
        bound.apply_defaults()
        if bound.arguments[first] == "cuda":
            if log is not None:
                log.note("a device", "cuda")
            off = {"enabled": False, "dtype": None} if kind == "cpu" else {}
            bound.arguments |= {first: kind} | {name: off[name] for name in off.keys() & bound.arguments.keys()}
        begin(*bound.args, **bound.kwargs)

    return call


def _without_ids(begin: Callable[..., None]) -> Callable[..., None]:
    """Give the `__init__` of DistributedDataParallel for the CPU, where a module has no numbers of devices."""
    signature = inspect.signature(begin)

    @functools.wraps(begin)
    def call(*arguments: Any, **keywords: Any) -> None:
        bound = signature.bind(*arguments, **keywords)
        bound.arguments |= {"device_ids": None, "output_device": None}
        begin(*bound.args, **bound.kwargs)

    return call


def _move(log: Log | None, own: Callable[..., Any] | None) -> Callable[..., Any]:
    """Give `Tensor.cuda`; torch's own where CUDA is in use."""
    from toprope.device import portable

    def cuda(
        self: Any, device: Any = None, non_blocking: bool = False, memory_format: Any = None, **keywords: Any
    ) -> Any:
        if log is not None:
            log.note("a function", "torch.Tensor.cuda")
        keywords |= {} if memory_format is None else {"memory_format": memory_format}
        if own is not None:
            return own(self, device, non_blocking, **keywords)
        return self.to(portable.device(device), non_blocking=non_blocking, **keywords)

    return cuda


def _answer(patches: Patches, kind: str) -> None:
    """Have tensors on a device of this kind tell the program that they are on CUDA; torch gets the real device."""
    import torch

    device: Any = torch.Tensor.device
    is_cuda: Any = torch.Tensor.is_cuda

    def device_of(tensor: Any) -> Any:
        real = device.__get__(tensor)
        return torch.device("cuda", real.index or 0) if real.type == kind and not is_ours(sys._getframe(1)) else real

    def on_cuda(tensor: Any) -> bool:
        return bool(is_cuda.__get__(tensor)) or (device.__get__(tensor).type == kind and not is_ours(sys._getframe(1)))

    patches.put(torch.Tensor, "device", property(device_of))
    patches.put(torch.Tensor, "is_cuda", property(on_cuda))
