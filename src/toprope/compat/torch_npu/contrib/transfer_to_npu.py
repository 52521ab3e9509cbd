"""Facade module `torch_npu.contrib.transfer_to_npu`: importing it runs a program written for CUDA on the card.

It does what torch_npu's own file does, to the same functions, so that a program works with it here if and only if it
works with it on a card: `tensor.cuda("cuda:0")`, a path with "cuda" in it as a positional argument of torch.load.
Nothing may be repaired here that the vendor's file leaves broken. The redefinitions are in toprope.compat.cuda_patches;
all are undone when the process ends. Source: Ascend/pytorch 9e73e708 (2026-08-21),
torch_npu/contrib/transfer_to_npu.py. Tests: tests/compat/test_transfer_to_npu.py, which has the vendor's cases.
"""

from __future__ import annotations

import atexit
import functools
import importlib
import importlib.metadata
import importlib.util
import logging
import os
import tomllib
import warnings
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

import torch
from torch.torch_version import TorchVersion

from toprope.compat import cuda_patches
from toprope.compat.missing import missing_from
from toprope.sim import installed

__all__: list[str] = []

__getattr__ = missing_from(__name__)

torch_fn_white_list = list(cuda_patches.TORCH)
torch_tensor_fn_white_list = list(cuda_patches.TENSOR)
torch_module_fn_white_list = list(cuda_patches.MODULE)
torch_cuda_fn_white_list = [
    "caching_allocator_alloc", "can_device_access_peer", "current_stream", "default_stream",
    "get_device_capability", "get_device_name", "get_device_properties", "list_gpu_processes",
    "max_memory_allocated", "max_memory_reserved", "mem_get_info", "memory_allocated", "memory_reserved",
    "memory_stats", "memory_summary", "reset_max_memory_allocated", "reset_max_memory_cached",
    "reset_peak_memory_stats", "set_device", "set_per_process_memory_fraction", "synchronize", "utilization",
]  # fmt: skip
torch_distributed_fn_white_list = ["__init__"]
device_kwargs_list = list(cuda_patches.KEYWORDS)

is_available = torch.cuda.is_available
"""torch's own, for the libraries that are to go on seeing no GPU of CUDA."""

_PROFILER = ("ProfilerAction", "profile", "schedule", "tensorboard_trace_handler")


def _convert(value: Any, numbers: bool) -> Any:
    """Give the card for a device of CUDA; in a text, whatever it is, "npu" for "cuda"."""
    if isinstance(value, str):
        return value.replace("cuda", "npu")
    if isinstance(value, torch.device) and value.type == "cuda":
        return torch.device("npu") if value.index is None else torch.device("npu", value.index)
    if isinstance(value, dict):
        return {_text(key): _text(place) for key, place in value.items()}
    if numbers and isinstance(value, int) and not isinstance(value, bool):
        return f"npu:{value}"
    return value


def _text(value: Any) -> Any:
    return value.replace("cuda", "npu") if isinstance(value, str) else value


def _backend(text: str) -> str:
    return text.replace("nccl", "hccl").replace("cuda", "npu")


def _redefine() -> None:
    if installed() is None:
        raise ImportError(
            "torch_npu.contrib.transfer_to_npu needs an NPU and there is none. `toprope run --chip 910B3 PROGRAM` "
            "gives a program a simulated one.",
            name=__name__,
        )
    patches = cuda_patches.Patches()
    atexit.register(patches.undo)
    _redefine_cuda(patches)
    _redefine_tensors(patches)
    cuda_patches.redefine(patches, _convert, _backend, "npu")
    for name in torch_cuda_fn_white_list:
        patches.wrap("torch.cuda", name, functools.partial(cuda_patches.device_arguments, convert=_convert))
    for name in ("script", "script_method"):
        patches.put(torch.jit, name, _as_it_is)
    _redefine_profiler(patches)
    _keep_libraries(patches)
    _warn()


def _redefine_cuda(patches: cuda_patches.Patches) -> None:
    """Give torch.cuda and torch.cuda.amp the names of torch.npu and torch.npu.amp."""
    npu: Any = vars(torch)["npu"]
    for place, source in ((torch.cuda, npu), (torch.cuda.amp, npu.amp), (torch.cuda.random, npu.random)):
        for name in source.__all__:
            if not isinstance(getattr(source, name), ModuleType):
                patches.put(place, name, getattr(source, name))
    for name in ("autocast_mode", "common", "grad_scaler"):
        patches.put(torch.cuda.amp, name, getattr(npu.amp, name))
    patches.put(torch.cuda, "DoubleTensor", npu.FloatTensor)
    if hasattr(npu, "NPUGraph"):
        patches.put(torch.cuda, "CUDAGraph", npu.NPUGraph)
    # asked each time, since the first question starts the card
    patches.remove(torch.cuda, "default_generators")
    patches.put(torch.cuda, "__getattr__", _of_torch_cuda)
    for name in ("_dump_snapshot", "_record_memory_history", "_snapshot"):
        function = getattr(npu.memory, name, None) or _refuse(f"memory.{name}")
        patches.put(torch.cuda.memory, name, cuda_patches.device_arguments(function, _convert))
    patches.put(torch._C, "_host_emptyCache", npu.host_empty_cache)


def _redefine_tensors(patches: cuda_patches.Patches) -> None:
    """Give tensors, modules and storages the methods of the card under CUDA's names."""
    tensor: Any = torch.Tensor
    patches.put(tensor, "cuda", tensor.npu)
    patches.put(tensor, "is_cuda", tensor.is_npu)
    patches.put(torch.nn.Module, "cuda", vars(torch.nn.Module)["npu"])
    patches.put(torch.storage.TypedStorage, "is_cuda", vars(torch.storage.TypedStorage)["is_npu"])


def _of_torch_cuda(name: str) -> Any:
    if name == "default_generators":
        return vars(torch)["npu"].default_generators
    raise AttributeError(f"module 'torch.cuda' has no attribute {name!r}", name=name)


def _refuse(name: str) -> Callable[..., NoReturn]:
    def refuse(*arguments: Any, **keywords: Any) -> NoReturn:
        raise NotImplementedError(f"torch.npu.{name} is not there on toprope's simulated card.")

    return refuse


def _as_it_is(function: Any, *arguments: Any, **keywords: Any) -> Any:
    """Stand in for torch.jit.script: the function or module runs in Python."""
    return function


def _redefine_profiler(patches: cuda_patches.Patches) -> None:
    """Give torch.profiler the names of torch_npu.profiler, where that is there."""
    name = f"{__name__.removesuffix('.contrib.transfer_to_npu')}.profiler"
    if importlib.util.find_spec(name) is None:
        return
    profiler = importlib.import_module(name)
    patches.wrap(
        name, "_KinetoProfile.export_memory_timeline", lambda own: cuda_patches.device_arguments(own, _convert)
    )
    for each in _PROFILER:
        if hasattr(profiler, each):
            patches.put(torch.profiler, each, getattr(profiler, each))
    activities = getattr(profiler, "ProfilerActivity", None)
    if activities is not None:
        # torch's own profiler, which the facade's may use, goes on comparing with torch's own activities
        own: Any = torch.profiler.ProfilerActivity
        named = {**own.__members__, "CPU": activities.CPU, "CUDA": activities.NPU, "NPU": activities.NPU}
        patches.put(torch.profiler, "ProfilerActivity", type("ProfilerActivity", (), named))
    patches.wrap("torch.profiler", "profile", functools.partial(_without_cuda_config, profiler=profiler))


def _without_cuda_config(profile: Callable[..., Any], profiler: ModuleType) -> Callable[..., Any]:
    """Give a profiler that leaves out an `experimental_config` that was made for CUDA, and logs it."""

    @functools.wraps(profile)
    def call(*arguments: Any, **keywords: Any) -> Any:
        config = getattr(profiler, "_ExperimentalConfig", None)
        if "experimental_config" in keywords and type(keywords["experimental_config"]) is not config:
            logging.warning(
                "torch.profiler.profile: transfer_to_npu left out experimental_config, which is one of CUDA; give a "
                "torch_npu.profiler._ExperimentalConfig."
            )
            del keywords["experimental_config"]
        return profile(*arguments, **keywords)

    return call


def _keep_libraries(patches: cuda_patches.Patches) -> None:
    """Have functions of libraries that look for CUDA's own GPUs go on seeing none."""
    table = tomllib.loads(Path(__file__).with_name("libraries.toml").read_text(encoding="utf-8"))

    def act(package: ModuleType) -> None:
        try:
            version = importlib.metadata.version(package.__name__)
        except importlib.metadata.PackageNotFoundError:
            return
        if TorchVersion(version) >= table[package.__name__]["from"]:
            for each in table[package.__name__]["functions"]:
                module, path = each.split(":")
                patches.wrap(module, path, _without_cuda)

    for name in table:
        patches.after(name, act)


def _without_cuda(function: Callable[..., Any]) -> Callable[..., Any]:
    """Give a function for which, while it runs, there is no CUDA."""

    @functools.wraps(function)
    def call(*arguments: Any, **keywords: Any) -> Any:
        before = torch.cuda.is_available
        torch.cuda.is_available = is_available
        try:
            return function(*arguments, **keywords)
        finally:
            torch.cuda.is_available = before

    return call


def _warn() -> None:
    """Say what the import did: once for a group of processes, and in each that torch.jit.script is off."""
    functions = (
        *(f"torch.{name}" for name in torch_fn_white_list),
        *(f"torch.Tensor.{name}" for name in torch_tensor_fn_white_list),
        *(f"torch.nn.Module.{name}" for name in torch_module_fn_white_list),
    )
    with warnings.catch_warnings():
        warnings.simplefilter("always")  # Python shows no ImportWarning otherwise
        if os.environ.get("RANK", "0") == "0":
            warnings.warn(
                "transfer_to_npu: from here on torch.cuda and torch.cuda.amp are torch.npu and torch.npu.amp "
                "(DoubleTensor is FloatTensor), Tensor.cuda and Module.cuda move to the NPU, init_process_group takes "
                f"hccl for nccl, and a device of CUDA is an NPU in the arguments of {', '.join(functions)}.",
                ImportWarning,
                stacklevel=4,
            )
        warnings.warn(
            "transfer_to_npu switches torch.jit.script and torch.jit.script_method off: what they are given runs in "
            "Python. A program that needs them cannot use transfer_to_npu.",
            RuntimeWarning,
            stacklevel=4,
        )


_redefine()
