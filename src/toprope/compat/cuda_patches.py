"""Parts of torch that are redefined so that CUDA's names, as a device or a backend, mean those of another device.

Shared by `--from cuda` (`toprope.compat.cuda`) and `torch_npu.contrib.transfer_to_npu`. The functions are those of the
latter's list (Ascend/pytorch, torch_npu/contrib/transfer_to_npu.py): one that is not there must not be redefined for
it. Functions and classes are redefined and no mode is entered, so that all threads see the same; all is undone by
`Patches`. A part of torch that the program has not imported is redefined after its import. Tests:
tests/compat/test_compat_cuda.py, tests/compat/test_transfer_to_npu.py.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from importlib import import_module
from types import ModuleType
from typing import Any

import torch
from torch.utils._device import _device_constructors

from toprope.imports import ImportHook
from toprope.sim import installed

__all__ = ["KEYWORDS", "MODULE", "TENSOR", "TORCH", "Convert", "Patches", "device_arguments", "redefine", "stand_in"]

Convert = Callable[[Any, bool], Any]
"""Gives the device to use for a value that a program gave, and every other value back as it is.

The flag says whether an integer is the number of a device.
"""

TORCH = (
    "_cudnn_init_dropout_state", "_empty_affine_quantized", "_empty_per_channel_affine_quantized", "_pin_memory",
    "_sparse_coo_tensor_unsafe", "_sparse_csr_tensor_unsafe", "arange", "as_tensor", "bartlett_window",
    "blackman_window", "empty", "empty_like", "empty_quantized", "empty_strided", "eye", "from_file", "frombuffer",
    "full", "full_like", "get_device_module", "hamming_window", "hann_window", "kaiser_window", "linspace", "load",
    "logspace", "normal", "ones", "ones_like", "rand", "rand_like", "randint", "randint_like", "randn",
    "randn_like", "randperm", "range", "scalar_tensor", "set_default_device", "sparse_compressed_tensor",
    "sparse_coo_tensor", "sparse_csr_tensor", "tensor", "tril_indices", "triu_indices", "zeros", "zeros_like",
)  # fmt: skip
"""Functions of torch whose device arguments are converted."""

TENSOR = ("new_empty", "new_empty_strided", "new_full", "new_ones", "new_tensor", "new_zeros", "pin_memory", "to")
MODULE = ("to", "to_empty")
KEYWORDS = ("device", "device_id", "device_type", "map_location")
"""Keywords that name a device, be it by its number."""

_KINDS = ("DeviceMesh.__init__", "Kernel.__new__", "autocast.__init__", "include_paths", "init_device_mesh")
"""Functions that take the kind of a device, and no number with it."""

_NUMBERS = ("to", "to_empty")
"""Functions in whose positional arguments, too, an integer is the number of a device."""

_DEVICES = {
    "torch": (
        *TORCH, *(f"Tensor.{name}" for name in TENSOR), *(f"nn.Module.{name}" for name in MODULE),
        "UntypedStorage.__new__", "fft.fftfreq", "fft.rfftfreq",
    ),
    "torch.amp.autocast_mode": ("autocast.__init__",),
    "torch.autograd.profiler_util": ("Kernel.__new__",),
    "torch.distributed": ("ProcessGroup._get_backend", "init_device_mesh", "init_process_group"),
    "torch.distributed.device_mesh": ("DeviceMesh.__init__", "init_device_mesh"),
    "torch.distributed.fsdp.fully_sharded_data_parallel": ("FullyShardedDataParallel.__init__",),
    "torch.distributed.pipelining.stage": ("PipelineStage.__init__", "build_stage"),
    "torch.nn.parallel.distributed": ("DistributedDataParallel.__init__",),
    "torch.utils._device": ("DeviceContext.__init__",),
    "torch.utils.cpp_extension": ("include_paths",),
}  # fmt: skip
_BACKENDS = {
    "torch.distributed": ("init_process_group",), "torch.distributed.distributed_c10d": ("_new_group_with_tag",),
}  # fmt: skip

# torch asks torch.cuda, which now answers for another device, and would take that one for a GPU of CUDA
_TYPE_OF_DEVICE = {
    "torch._utils": "_get_available_device_type",
    "torch.nn.parallel.data_parallel": "_get_available_device_type",
    "torch.distributed.checkpoint.filesystem": "_get_available_device_type",
    "torch._inductor.utils": "get_gpu_type",
    "torch._inductor.fx_passes.post_grad": "get_gpu_type",
    "torch._inductor.fx_passes.joint_graph": "get_gpu_type",
    "torch._inductor.autotune_process": "get_gpu_type",
}
_HAS_TRITON = (
    "torch._dynamo.utils", "torch._inductor.compile_fx", "torch._inductor.runtime.autotune_cache",
    "torch.utils._triton",
)  # fmt: skip

_ABSENT = object()


class _AfterImport(ImportHook):
    """Acts on modules once they are imported."""

    def __init__(self) -> None:
        self.actions: dict[str, list[Callable[[ModuleType], None]]] = {}
        super().__init__(self.actions)

    def load(self, module: ModuleType, execute: Callable[[], None]) -> None:
        execute()
        for act in self.actions.pop(module.__name__, ()):
            act(module)


class Patches:
    """Attributes that are redefined, and how they are put back."""

    def __init__(self) -> None:
        self._undo: list[Callable[[], object]] = []
        self._hook = _AfterImport()

    def put(self, owner: Any, name: str, new: Any) -> None:
        """Redefine an attribute of a module or a class."""
        before = vars(owner).get(name, _ABSENT)
        self._undo.append(lambda: delattr(owner, name) if before is _ABSENT else setattr(owner, name, before))
        setattr(owner, name, new)

    def remove(self, owner: Any, name: str) -> None:
        """Take an attribute away."""
        before = vars(owner)[name]
        self._undo.append(lambda: setattr(owner, name, before))
        delattr(owner, name)

    def on_undo(self, act: Callable[[], object]) -> None:
        """Act when all is put back, before what was redefined so far is."""
        self._undo.append(act)

    def after(self, module: str, act: Callable[[ModuleType], None]) -> None:
        """Act on a module now where it is imported, else after its import."""
        if module in sys.modules:
            act(sys.modules[module])
            return
        if self._hook not in sys.meta_path:
            sys.meta_path.insert(0, self._hook)
        self._hook.actions.setdefault(module, []).append(act)

    def wrap(self, module: str, path: str, wrapper: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
        """Wrap a function of a module, or of a class in it ("Class.function"); one that is not there is left out."""

        def act(loaded: ModuleType) -> None:
            *way, name = path.split(".")
            owner: Any = loaded
            for each in way:
                owner = getattr(owner, each, None)
            function = getattr(owner, name, None)
            if function is not None:
                new = wrapper(function)
                self.put(owner, name, staticmethod(new) if name == "__new__" else new)

        self.after(module, act)

    def undo(self) -> None:
        """Put all back."""
        if self._hook in sys.meta_path:
            sys.meta_path.remove(self._hook)
        while self._undo:
            self._undo.pop()()


def redefine(patches: Patches, convert: Convert, backend: Callable[[str], str], kind: str) -> None:
    """Have torch take devices and backends of CUDA for others, wherever it takes a device.

    Args:
        patches: take down what was redefined.
        convert: gives the device to use.
        backend: gives the text of a process group's backend to use.
        kind: of the device to use, such as "npu".
    """
    _device_constructors()  # keeps torch's functions, which torch compares by identity
    before = {name: getattr(torch.Tensor, name) for name in TENSOR}

    def kind_of(value: Any, numbers: bool) -> Any:
        converted = convert(value, numbers)
        return kind if isinstance(value, str) and value == "cuda" else converted

    for module, paths in _DEVICES.items():
        for path in paths:
            use = kind_of if path in _KINDS else convert
            numbers = path.rpartition(".")[2] in _NUMBERS
            patches.wrap(module, path, functools.partial(device_arguments, convert=use, numbers=numbers))
    for module, paths in _BACKENDS.items():
        for path in paths:
            patches.wrap(module, path, functools.partial(_backend_arguments, backend=backend))
    for name in ("Generator", "Event"):
        real = getattr(torch, name)
        patches.put(torch, name, stand_in(real, f"torch.{name}", new=device_arguments(real.__new__, convert)))
    _rename_allowed(patches, {method: getattr(torch.Tensor, name) for name, method in before.items()})
    if kind == "npu":
        for path in ("Stream.__new__", "device.__init__"):
            # a stream's device_type is a number of torch's
            patches.wrap("torch.npu", path, functools.partial(device_arguments, convert=convert, names=("device",)))
    if kind not in ("cpu", "cuda"):
        for module, name in _TYPE_OF_DEVICE.items():
            patches.wrap(module, name, lambda _: lambda: kind)
        for module in _HAS_TRITON:
            patches.wrap(module, "has_triton", lambda _: lambda: False)
    if torch.distributed.is_available() and kind != "cuda":
        _redefine_distributed(patches, kind)


def _redefine_distributed(patches: Patches, kind: str) -> None:
    from torch.distributed import distributed_c10d

    defaults = distributed_c10d.Backend.default_device_backend_map
    patches.put(distributed_c10d.Backend, "default_device_backend_map", {**defaults})
    distributed_c10d.Backend.default_device_backend_map.pop("cuda", None)
    patches.put(torch.distributed, "is_nccl_available", getattr(torch.distributed, "is_hccl_available", lambda: True))
    if kind == "npu":
        # the class of a real card, where there is one
        place = "torch_npu._C._distributed_c10d" if installed() is None else "toprope.sim.distributed.process_group"
        for module in (torch.distributed, distributed_c10d):
            patches.put(module, "ProcessGroupNCCL", import_module(place).ProcessGroupHCCL)


def _rename_allowed(patches: Patches, renamed: dict[Any, Any]) -> None:
    """Allow the redefined methods on tensors without a shape, too, where torch has a list of methods by identity."""
    lazy: Any = vars(torch.nn.parameter)["UninitializedTensorMixin"]
    patches.put(lazy, "_allowed_methods", [renamed.get(each, each) for each in lazy._allowed_methods])


def device_arguments(
    function: Callable[..., Any], convert: Convert, *, numbers: bool = False, names: tuple[str, ...] = KEYWORDS
) -> Callable[..., Any]:
    """Give a function whose device arguments are converted.

    Args:
        function: the function.
        convert: gives the device to use.
        numbers: whether an integer among the positional arguments is the number of a device.
        names: keywords that name a device.
    """

    @functools.wraps(function)
    def call(*arguments: Any, **keywords: Any) -> Any:
        for name in names:
            if keywords.get(name) is not None:
                keywords[name] = convert(keywords[name], True)
        ids = keywords.get("device_ids")
        if isinstance(ids, (list, tuple)):
            keywords["device_ids"] = type(ids)([convert(each, False) for each in ids])
        return function(*[convert(each, numbers) for each in arguments], **keywords)

    return call


def _backend_arguments(function: Callable[..., Any], backend: Callable[[str], str]) -> Callable[..., Any]:
    """Give a function of torch.distributed to which backends are given as texts."""

    @functools.wraps(function)
    def call(*arguments: Any, **keywords: Any) -> Any:
        if isinstance(keywords.get("backend"), str):
            keywords["backend"] = backend(keywords["backend"])
        return function(*[backend(each) if isinstance(each, str) else each for each in arguments], **keywords)

    return call


def stand_in(
    real: Any, full: str, new: Callable[..., Any] | None = None, called: Callable[[], None] | None = None
) -> Any:
    """Give a class in the place of another: isinstance and issubclass know what is of either.

    Args:
        real: the class.
        full: the name under which programs, and pickle, find the one in its place.
        new: its `__new__`, None for the class's own.
        called: acts when it, or a class derived from it, is called.
    """
    metaclass: Any = type(real)

    class Meta(metaclass):  # type: ignore[misc]
        def __call__(self, *arguments: Any, **keywords: Any) -> Any:
            if called is not None:
                called()
            return super().__call__(*arguments, **keywords)

        def __instancecheck__(self, instance: object) -> bool:
            return isinstance(instance, real) if self is made else super().__instancecheck__(instance)

        def __subclasscheck__(self, other: type) -> bool:
            return issubclass(other, real) if self is made else super().__subclasscheck__(other)

    module, _, name = full.rpartition(".")
    names = {"__module__": module, "__qualname__": name, "__doc__": real.__doc__}
    made = Meta(name, (real,), names if new is None else {**names, "__new__": new})
    return made
