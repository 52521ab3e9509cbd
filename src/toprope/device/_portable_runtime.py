"""Runs a program written for CUDA on an NPU, CUDA, another accelerator or the CPU. Put here by `toprope port --vendor`.

The names are those of torch.cuda, with the same arguments, and a few more. The device is the one that TOPROPE_DEVICE
or PREFERRED_DEVICE names ("npu", "npu:1", "cuda", "cpu"), else the first of NPU, CUDA, another accelerator, the CPU.
It is chosen at the first question and stays. On CUDA every call is torch.cuda's own; on the CPU the questions have
harmless answers (0, no-op, a stand-in). torch.compile traces it, except for what it does not trace of torch.cuda
either. Needs torch 2.0 or newer and nothing else. It is yours: change it as you like, `toprope port` leaves it alone.
Tests: tests/port/test_portable.py, tests/port/test_portable_compiled.py.
"""
# ruff: noqa
# fmt: off

from __future__ import annotations

import contextlib
import functools
import importlib
import importlib.util
import operator
import os
import time
import types
from typing import TYPE_CHECKING, Any, Callable, ContextManager, Iterator, TypeVar

import torch

_Full: type[RuntimeError] = getattr(torch, "OutOfMemoryError", None) or torch.cuda.OutOfMemoryError
_BACKENDS = {"npu": "hccl", "cuda": "nccl", "xpu": "xccl"}
_MASKS = {"npu": "ASCEND_RT_VISIBLE_DEVICES", "xpu": "ZE_AFFINITY_MASK"}
_T = TypeVar("_T")
_device: torch.device | None = None
def _choose() -> torch.device:
    """Look for the device: with an index where the variable names one, so that "the current one" stays as it is."""
    asked = os.environ.get("TOPROPE_DEVICE", "") or os.environ.get("PREFERRED_DEVICE", "")
    kind, _, index = asked.strip().lower().partition(":")
    kind = {"sim": "npu", "auto": ""}.get(kind, kind)
    if index and not index.isdigit():
        raise RuntimeError(f"{asked!r} names no device; set TOPROPE_DEVICE to a kind and an index, such as npu:1")
    if kind in ("", "npu") and not hasattr(torch, "npu") and importlib.util.find_spec("torch_npu"):
        with contextlib.suppress(Exception):  # installed, but without the vendor's libraries
            importlib.import_module("torch_npu")
    other = torch.accelerator.current_accelerator() if hasattr(torch, "accelerator") else None
    kinds = [kind] if kind else ["npu", "cuda", *([other.type] if other else []), "cpu"]
    for each in kinds:
        if each == "cpu" or getattr(getattr(torch, each, None), "is_available", lambda: False)():
            return torch.device(each, int(index)) if index and each != "cpu" else torch.device(each)
    raise RuntimeError(f"there is no {kind}, which TOPROPE_DEVICE or PREFERRED_DEVICE asks for")
def _chosen() -> torch.device:
    """The device in use, which does not change after the first answer."""
    global _device
    if _device is None:
        _device = _choose()
    return _device
setattr(_chosen, "_dynamo_marked_constant", True)  # torch.compiler.assume_constant_result, without importing dynamo
def _module() -> Any:
    return None if _chosen().type == "cpu" else getattr(torch, _chosen().type)
def _ask(name: str, default: _T, *arguments: Any, **keywords: Any) -> _T:
    function = getattr(_module(), name, None)
    answer: _T = default if function is None else function(*arguments, **keywords)
    return answer
def device(spec: Any = None) -> torch.device:
    """The device to use: of an index, of a name ("cuda:1" is the second one of whatever is in use), or the current.

    The index -1 means the CPU, as it does for programs that take it; "cuda:-1" is an error, as it is for torch.
    """
    chosen = _chosen()
    if spec is None:
        return chosen
    if isinstance(spec, torch.device):
        kind, index = spec.type, "" if spec.index is None else str(spec.index)
    elif isinstance(spec, str):
        kind, _, index = spec.partition(":")
        if kind.lstrip("-").isdigit():
            kind, index = "cuda", kind
        elif kind not in ("cuda", chosen.type) or (index and not index.isdigit()):
            return torch.device(spec)
    else:
        kind, index = "cuda", str(operator.index(spec))
    if kind not in ("cuda", chosen.type):
        return torch.device(spec)
    if chosen.type == "cpu" or index.startswith("-"):
        return torch.device("cpu")
    return torch.device(chosen.type, int(index)) if index else chosen
def name(spec: Any = None) -> str:
    """The same as a text: "cuda", "npu:1", "cpu"."""
    return str(device(spec))
def kind(spec: Any = None) -> str:
    """The device's type as a text, without an index: "cuda", "npu", "cpu". What torch.autocast takes, for example."""
    return device(spec).type
def resolve(what: Any) -> Any:
    """The name of the device in use for "cuda:1", its backend for "nccl"; anything else as it is. On CUDA all is."""
    if isinstance(what, (str, torch.device)) and str(what).partition(":")[0] == "cuda":
        return name(what) if isinstance(what, str) else device(what)
    return dist_backend() if isinstance(what, str) and what == "nccl" else what
def resolve_kind(what: Any) -> Any:
    """The type of the device in use for "cuda"; anything else as it is. On CUDA all is."""
    return kind() if isinstance(what, str) and what == "cuda" else what

class attribute:
    """An attribute of a class that is a device: resolved when it is read, hidden by what is assigned to an object."""

    def __init__(self, what: Any, by: Callable[[Any], Any] = resolve) -> None: self._what, self._by = what, by
    def __get__(self, instance: Any, owner: Any = None) -> Any: return self._by(self._what)
def _index(spec: Any) -> int | None:
    spec = None if isinstance(spec, contextlib.nullcontext) else getattr(spec, "idx", spec)  # what device_index() gives
    return None if spec is None else device(spec).index
def _given(spec: Any) -> tuple[int, ...]:
    index = _index(spec)
    return () if index is None else (index,)
def _is_host(kind: str) -> bool: return kind in ("cpu", "meta")
def is_accelerator(what: Any) -> bool:
    """Test for an accelerator: of a tensor, a device, a device's name or index, or an object that can say so.

    An object is asked for its own `is_cuda`, else for its `device`; its contents are not looked at.
    """
    if isinstance(what, torch.Tensor):
        return not _is_host(what.device.type)
    if isinstance(what, torch.device):
        return not _is_host(what.type)
    if isinstance(what, str):
        return not _is_host(what.partition(":")[0])
    if what is None or isinstance(what, int):
        return what is not None and what >= 0
    if isinstance(what, torch.nn.utils.rnn.PackedSequence):
        return is_accelerator(what.data)
    own = getattr(what, "is_cuda", None)
    own = own() if callable(own) else own
    if own or (own is not None and _chosen().type == "cuda"):
        return bool(own)
    place = getattr(what, "device", None)
    place = place if isinstance(place, (torch.device, str)) else getattr(what, "type", None)
    return isinstance(place, (torch.device, str)) and is_accelerator(place)
def is_named(what: Any, *names: str) -> bool:
    """Test a device's name as `what in names` does; the names of the accelerator in use stand for CUDA's there."""
    ours = [each for each in names if each.partition(":")[0] == "cuda" and is_available()]
    return what in (*names, *map(name, ours), *(kind() + each[4:] for each in ours))
def is_available() -> bool: return _chosen().type != "cpu"
def device_count() -> int: return int(_ask("device_count", 0))
def current_device() -> int: return int(_ask("current_device", 0))
def synchronize(device: Any = None) -> None: _ask("synchronize", None, *_given(device))
def init() -> None: _ask("init", None)
def is_initialized() -> bool: return bool(_ask("is_initialized", False))
def ipc_collect() -> None: _ask("ipc_collect", None)
def empty_cache() -> None: _ask("empty_cache", None)
def set_device(device: Any) -> None:
    """Make it the current device of this thread."""
    if given := _given(device):
        _ask("set_device", None, *given)
def device_index(device: Any) -> ContextManager[Any]:
    """A context in which it is the current device: torch.cuda.device."""
    given = _given(device)
    return _ask("device", contextlib.nullcontext(), *given) if given else contextlib.nullcontext()
def device_of(obj: Any) -> ContextManager[Any]:
    """A context in which a tensor's device is the current one."""
    return device_index(obj.device) if is_accelerator(obj) else contextlib.nullcontext()
def get_device_name(device: Any = None) -> str: return str(_ask("get_device_name", "CPU", *_given(device)))
class _Properties:
    """Properties of a device that is no GPU of NVIDIA; a figure that it does not report is None."""

    name: Any = None
    total_memory: Any = None
    major: Any = None
    minor: Any = None
    multi_processor_count: Any = None
def _total_memory() -> int: return _host_memory()[1]
setattr(_total_memory, "_dynamo_marked_constant", True)
def get_device_properties(device: Any = None) -> Any:
    """Properties of the device; a figure that it does not report is None."""
    none: Any = None
    found = _ask("get_device_properties", none, *(_given(device) or (current_device(),)))
    if _chosen().type == "cuda":
        return found
    told = _Properties()
    if found is None:
        told.name, told.total_memory = "CPU", _total_memory()
        return told
    for each in _Properties.__annotations__:
        setattr(told, each, getattr(found, each, None))
    return told

def get_device_capability(device: Any = None) -> tuple[int, int]:
    """The compute capability of a GPU; (0, 0) elsewhere, less than every one that is asked for."""
    if _chosen().type != "cuda":
        return 0, 0
    major, minor = torch.cuda.get_device_capability(*_given(device))
    return major, minor
def is_bf16_supported(*arguments: Any, **keywords: Any) -> bool:
    if _chosen().type == "cuda":
        return bool(torch.cuda.is_bf16_supported(*arguments, **keywords))
    return bool(_ask("is_bf16_supported", True))
def version() -> str | None:
    """torch.version.cuda where CUDA is in use, else None."""
    return torch.version.cuda if _chosen().type == "cuda" else None

def memory_allocated(device: Any = None) -> int: return int(_ask("memory_allocated", 0, *_given(device)))
def max_memory_allocated(device: Any = None) -> int: return int(_ask("max_memory_allocated", 0, *_given(device)))
def memory_reserved(device: Any = None) -> int: return int(_ask("memory_reserved", 0, *_given(device)))
def max_memory_reserved(device: Any = None) -> int: return int(_ask("max_memory_reserved", 0, *_given(device)))
def memory_stats(device: Any = None) -> dict[str, Any]: return _ask("memory_stats", {}, *_given(device))
def memory_summary(device: Any = None, abbreviated: bool = False) -> str:
    return str(_ask("memory_summary", "", *(_given(device) or (None,)), abbreviated=abbreviated))
def reset_peak_memory_stats(device: Any = None) -> None: _ask("reset_peak_memory_stats", None, *_given(device))
def reset_accumulated_memory_stats(device: Any = None) -> None:
    _ask("reset_accumulated_memory_stats", None, *_given(device))
reset_max_memory_allocated = reset_max_memory_cached = reset_peak_memory_stats

def _host_memory() -> tuple[int, int]:
    """Free and total bytes of the machine, as far as the system tells: 0 is the figure that hurts least."""
    try:
        ask: Any = getattr(os, "sysconf")  # not there on Windows; macOS has no SC_AVPHYS_PAGES
        page = ask("SC_PAGE_SIZE")
        return ask("SC_AVPHYS_PAGES") * page, ask("SC_PHYS_PAGES") * page
    except (AttributeError, ValueError, OSError):
        if not importlib.util.find_spec("psutil"):
            return 0, 0
        found = importlib.import_module("psutil").virtual_memory()
        return found.available, found.total
def mem_get_info(device: Any = None) -> tuple[int, int]:
    """Free and total bytes; of the machine on the CPU, 0 where neither the system nor psutil tells."""
    if not is_available():
        return _host_memory()
    return _ask("mem_get_info", (0, 0), *_given(device))
def set_per_process_memory_fraction(fraction: float, device: Any = None) -> None:
    _ask("set_per_process_memory_fraction", None, fraction, *_given(device))
def manual_seed(seed: int) -> None: _ask("manual_seed", None, seed)
def manual_seed_all(seed: int) -> None: _ask("manual_seed_all", None, seed)
def seed() -> None: _ask("seed", None)
def seed_all() -> None: _ask("seed_all", None)
def initial_seed() -> int: return _ask("initial_seed", torch.initial_seed())
def get_rng_state(device: Any = None) -> torch.Tensor:
    return _ask("get_rng_state", torch.empty(0, dtype=torch.uint8), *_given(device))
def get_rng_state_all() -> list[torch.Tensor]: return _ask("get_rng_state_all", [])
def set_rng_state(new_state: Any, device: Any = None) -> None: _ask("set_rng_state", None, new_state, *_given(device))
def set_rng_state_all(new_states: Any) -> None: _ask("set_rng_state_all", None, new_states)
def generator(spec: Any = None) -> torch.Generator:
    """A generator of random numbers on the device; on the CPU where the device draws none itself."""
    try:
        return torch.Generator(device=device(spec))
    except (RuntimeError, NotImplementedError):
        return torch.Generator()

@contextlib.contextmanager
def fork_rng(devices: Any, enabled: bool = True) -> Iterator[None]:
    """torch.random.fork_rng for the device in use: torch's own knows no other before torch 2.1, nor the CPU's number."""
    is_cuda = _chosen().type == "cuda"
    states = [] if is_cuda or not enabled or not is_available() else [(get_rng_state(each), each) for each in devices]
    with torch.random.fork_rng(devices if is_cuda else [], enabled):
        try:
            yield
        finally:
            for each in states:
                set_rng_state(*each)

_is_compiling: Callable[[], bool] = getattr(getattr(torch, "compiler", None), "is_compiling", lambda: False)

class _Event:
    """An event of the CPU, which does everything at once: done when recorded, and takes the time.

    Within what torch.compile traces there is no time to take: elapsed_time() is not a number then.
    """

    def __init__(self, *arguments: Any, **keywords: Any) -> None: self._time = float("nan")
    def record(self, stream: Any = None) -> None:
        if not _is_compiling():
            self._time = time.perf_counter()
    def wait(self, stream: Any = None) -> None: pass
    def synchronize(self) -> None: pass
    def query(self) -> bool: return True
    def elapsed_time(self, end: Any) -> float: return float(end._time - self._time) * 1000

class _Stream:
    """A stream of the CPU: its work is done when the call returns."""

    def __init__(self, *arguments: Any, **keywords: Any) -> None: pass
    def wait_stream(self, stream: Any) -> None: pass
    def wait_event(self, event: Any) -> None: pass
    def synchronize(self) -> None: pass
    def query(self) -> bool: return True
    def record_event(self, event: Any = None) -> Any:
        event = _Event() if event is None else event
        event.record(self)
        return event
    def __enter__(self) -> _Stream: return self
    def __exit__(self, *error: object) -> None: pass
    def __eq__(self, other: object) -> bool: return isinstance(other, _Stream)
    def __hash__(self) -> int: return 0

class _OfDevice(type):
    """The type of a class that stands for the device's own: calls, isinstance and derived classes go to that one.

    So that naming it, in an annotation for example, asks for no device yet.
    """

    def __new__(mcs, name: str, bases: tuple[Any, ...], names: dict[str, Any]) -> Any:
        if not bases:
            return super().__new__(mcs, name, bases, names)
        real = tuple(getattr(each, "own")() if type(each) is _OfDevice else each for each in bases)
        return types.new_class(name, real, exec_body=lambda space: space.update(names))

    def __instancecheck__(cls: Any, what: object) -> bool: return isinstance(what, cls.own())
    def __subclasscheck__(cls: Any, other: type) -> bool: return other is cls or issubclass(other, cls.own())

if TYPE_CHECKING:
    from torch.cuda import Event as Event, Stream as Stream
else:
    class Event(metaclass=_OfDevice):
        """torch.cuda.Event for the device in use. On the CPU one that takes the time of record()."""

        @staticmethod
        def own(): return getattr(_module(), "Event", _Event)
        def __new__(cls, *arguments, **keywords): return Event.own()(*arguments, **keywords)

    class Stream(metaclass=_OfDevice):
        """torch.cuda.Stream for the device in use. On the CPU one whose work is done when the call returns."""

        @staticmethod
        def own(): return getattr(_module(), "Stream", _Stream)
        def __new__(cls, device=None, *arguments, **keywords): return Stream.own()(_index(device), *arguments, **keywords)

_host_stream: Any = _Stream()
_NO_STREAM: Stream = _host_stream
def current_stream(device: Any = None) -> Stream: return _ask("current_stream", _NO_STREAM, *_given(device)) or _NO_STREAM
def default_stream(device: Any = None) -> Stream: return _ask("default_stream", _NO_STREAM, *_given(device)) or _NO_STREAM
def stream(stream: Any) -> ContextManager[Any]: return _ask("stream", contextlib.nullcontext(stream), stream)
def record_stream(tensor: Any, stream: Any) -> None:
    """tensor.record_stream(stream); nothing for a tensor that is on no accelerator."""
    if not isinstance(tensor, torch.Tensor) or is_accelerator(tensor):
        tensor.record_stream(stream)

class autocast(torch.autocast):
    """torch.cuda.amp.autocast for the device in use. On the CPU it is off, as torch.cuda's is there."""

    def __new__(cls, enabled: bool = True, dtype: torch.dtype = torch.float16, cache_enabled: bool = True) -> Any:
        if cls is not autocast:
            return super().__new__(cls)
        on = enabled and is_available()  # torch's own class, which torch.compile knows
        return torch.autocast(_chosen().type, dtype if on else None, on, cache_enabled)

    def __init__(self, enabled: bool = True, dtype: torch.dtype = torch.float16, cache_enabled: bool = True) -> None:
        enabled = enabled and is_available()
        super().__init__(_chosen().type, dtype if enabled else None, enabled, cache_enabled)

def _of_autocast(name: str, *values: Any) -> Any:
    """torch's function about autocast for the device in use; before torch 2.4 each kind of device has its own."""
    kind = _chosen().type
    if hasattr(torch, "get_autocast_dtype"):
        return getattr(torch, name)(kind, *values)
    first, _, last = name.rpartition("_")
    own = {"cuda": "gpu_" if last == "dtype" else "", "cpu": "cpu_", "xpu": "xpu_"}.get(kind)
    return getattr(_module() if own is None else torch, f"{first}_{own or ''}{last}")(*values)
def is_autocast_enabled() -> bool: return bool(_of_autocast("is_autocast_enabled"))
def set_autocast_enabled(enabled: bool) -> None: _of_autocast("set_autocast_enabled", enabled)
def set_autocast_dtype(dtype: torch.dtype) -> None: _of_autocast("set_autocast_dtype", dtype)
def get_autocast_dtype() -> torch.dtype:
    dtype: torch.dtype = _of_autocast("get_autocast_dtype")
    return dtype
_OLD = not hasattr(torch.amp, "GradScaler")  # torch 2.2 and older: one class for CUDA, and torch_npu has its own

if TYPE_CHECKING:
    from torch.amp import GradScaler as _GradScaler
else:
    _GradScaler = torch.cuda.amp.GradScaler if _OLD else torch.amp.GradScaler
class GradScaler(_GradScaler):
    """torch.cuda.amp.GradScaler for the device in use. On the CPU it is off, as torch.cuda's is there."""

    def __new__(cls, *arguments: Any, **keywords: Any) -> Any:
        own = getattr(getattr(_module(), "amp", None), "GradScaler", None) if _OLD else None
        if own is None or _chosen().type == "cuda":
            return super().__new__(cls)
        return own(*arguments, **keywords)

    def __init__(self, init_scale: float = 2.0**16, growth_factor: float = 2.0, backoff_factor: float = 0.5,
                 growth_interval: int = 2000, enabled: bool = True) -> None:
        given: Any = init_scale, growth_factor, backoff_factor, growth_interval, enabled and is_available()
        super().__init__(*(given if _OLD else (_chosen().type, *given)))

def _custom(name: str, function: Any, **keywords: Any) -> Any:
    """Torch's decorator for the device in use, which is asked for at the first call, and not at the import."""
    if function is None: return functools.partial(_custom, name, **keywords)
    made: Any = None
    @functools.wraps(function)
    def call(*arguments: Any, **named: Any) -> Any:
        nonlocal made
        if made is None and hasattr(torch.amp, name):  # torch 2.4 and newer
            made = getattr(torch.amp, name)(function, device_type=_chosen().type, **keywords)
        elif made is None:
            made = (getattr(getattr(_module(), "amp", None), name, None) or getattr(torch.cuda.amp, name))(function, **keywords)
        return made(*arguments, **named)
    return call

def custom_fwd(fwd: Any = None, *, cast_inputs: torch.dtype | None = None) -> Any:
    return _custom("custom_fwd", fwd, cast_inputs=cast_inputs)
def custom_bwd(bwd: Any = None) -> Any: return _custom("custom_bwd", bwd)

def map_location(storage: Any, location: str) -> Any:
    """For torch.load: what was saved on an accelerator goes to the one in use, by its index; on CUDA nothing changes."""
    if not is_accelerator(location) or location.partition(":")[0] == _chosen().type:
        return None
    target = device("cuda:" + (location.partition(":")[2] or "0"))
    restore: Any = torch.serialization.default_restore_location
    return restore(storage, str(target))
def dist_backend(none: str = "gloo") -> str: return _BACKENDS.get(_chosen().type, none)
def reduced_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype for a tensor that is reduced between processes: HCCL, the NPUs' backend, reduces no float64."""
    return torch.float32 if dtype == torch.float64 and _chosen().type == "npu" else dtype
def device_ids(ids: Any) -> Any: return ids if is_available() else None
def visible_devices_variable() -> str: return _MASKS.get(_chosen().type, "CUDA_VISIBLE_DEVICES")
def pin_memory(tensor: Any) -> Any:
    """tensor.pin_memory(); nothing for what is torch's where there is no accelerator."""
    kind = type(tensor)
    torchs = kind.__module__.partition(".")[0] == "torch" or kind.pin_memory is torch.Tensor.pin_memory
    return tensor if torchs and not is_available() else tensor.pin_memory()
def pin_memory_device() -> str: return _chosen().type if is_available() else ""
def tensor(dtype: torch.dtype, *arguments: Any, **named: Any) -> torch.Tensor:
    """Make a tensor as torch.cuda.FloatTensor(...) and its like do: of sizes an empty one, of data one that holds it."""
    empty: Any = torch.empty(0, dtype=dtype, device=device())
    made: torch.Tensor = empty.new(*arguments, **named)
    return made
class _TensorType(type):
    """The type of what takes the place of torch.cuda.FloatTensor: it makes tensors, and isinstance asks about them."""
    def __call__(cls: Any, *given: Any, **named: Any) -> Any: return tensor(cls.dtype, *given, **named)
    def __instancecheck__(cls: Any, what: object) -> bool: return is_tensor(what, cls.dtype)
def tensor_type(dtype: torch.dtype) -> Any:
    """torch.cuda.FloatTensor for the device in use, as a class: that one on CUDA, torch.FloatTensor on the CPU."""
    own = {"cuda": torch.cuda, "cpu": torch}.get(kind())
    name = torch.empty(0, dtype=dtype, device="cpu").type().rpartition(".")[2]
    made = _TensorType(f"torch.{kind()}.{name}", (), {"dtype": dtype})  # Tensor.type goes by the name of a class
    return made if own is None else getattr(own, name)
def to_type(what: Any, dtype: torch.dtype) -> Any:
    """what.type(torch.cuda.FloatTensor): of this dtype and on an accelerator. On which one stays as it is."""
    if isinstance(what, torch.nn.Module): return getattr(what, "_apply")(lambda each: to_type(each, dtype))
    return what.to(dtype) if is_accelerator(what) else what.to(device(), dtype)
def is_tensor(what: object, dtype: torch.dtype | None = None) -> bool:
    """Test for a tensor of this dtype, where one is given, on an accelerator; on the CPU where that is in use."""
    return isinstance(what, torch.Tensor) and is_accelerator(what) >= is_available() and dtype in (None, what.dtype)
def set_default_tensor_type(dtype: torch.dtype) -> None:
    if _chosen().type == "cuda": return torch.set_default_tensor_type(tensor_type(dtype))  # torch.Tensor() follows it
    torch.set_default_dtype(dtype); torch.set_default_device(device())
def _tools() -> Any: return torch.cuda if _chosen().type == "cuda" else None
def range_push(msg: str) -> Any: return _tools().nvtx.range_push(msg) if _tools() else 0
def range_pop() -> Any: return _tools().nvtx.range_pop() if _tools() else 0
def mark(msg: str) -> Any: return _tools().nvtx.mark(msg) if _tools() else None
def range(msg: str) -> ContextManager[Any]:
    return torch.cuda.nvtx.range(msg) if _tools() else torch.profiler.record_function(msg)
def profiler_start() -> Any: return _tools().profiler.start() if _tools() else None
def profiler_stop() -> Any: return _tools().profiler.stop() if _tools() else None
def profiler_activities() -> list[Any]:
    """The activities that torch's profiler can record here, the CPU's first."""
    kinds = {"cuda": "CUDA", "xpu": "XPU", "cpu": ""}.get(_chosen().type, "PrivateUse1")
    activities = torch.profiler.ProfilerActivity
    return [activities.CPU] + ([getattr(activities, kinds)] if kinds and hasattr(activities, kinds) else [])
_USE_DEVICE = "use_device" in torch.autograd.profiler.profile.__init__.__code__.co_varnames  # torch 2.1 and newer
def profiler_device() -> dict[str, Any]:
    """The argument of torch.autograd.profiler.profile for the device in use: use_device since torch 2.1."""
    if _USE_DEVICE: return {"use_device": kind()} if is_available() else {}
    return {"use_cuda": True} if kind() == "cuda" else {}
def profiler_key(name: str) -> str:
    """The column of a profiler's table that is called "self_cuda_time_total" before torch 2.4."""
    unified = hasattr(torch.autograd.profiler_util.FormattedTimesMixin, "device_time")
    return name.replace("cuda_", "device_") if unified else name
def is_out_of_memory(error: BaseException) -> bool:
    return isinstance(error, _Full) or "out of memory" in str(error).lower()
if TYPE_CHECKING: OutOfMemoryError = _Full
def __getattr__(name: str) -> Any:
    """`except portable.OutOfMemoryError`: torch_npu up to 7.3.0 raises a RuntimeError, whose class is the answer then."""
    if name != "OutOfMemoryError": raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    error = importlib.import_module("sys").exc_info()[1]  # torch.package takes no file that imports it
    return type(error) if isinstance(error, RuntimeError) and is_out_of_memory(error) and kind() == "npu" else _Full
def attention_implementation(wanted: Any) -> Any:
    """The wanted attention of transformers, or "sdpa" where it needs flash_attn and there is none."""
    flash = "flash" in str(wanted) and not (_chosen().type == "cuda" and importlib.util.find_spec("flash_attn"))
    return "sdpa" if flash else wanted
def _attention(q: Any, k: Any, v: Any, mask: Any, dropout: float, causal: bool, scale: float | None) -> torch.Tensor:
    if scale is not None and not _SCALES: q = q * (scale * float(q.shape[-1]) ** 0.5)
    keywords: dict[str, Any] = {} if scale is None or not _SCALES else {"scale": scale}
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, mask, dropout, causal, **keywords)
_SCALES = "scale=" in str(torch.nn.functional.scaled_dot_product_attention.__doc__)  # torch 2.1 and newer
def flash_attn_func(q: Any, k: Any, v: Any, dropout_p: float = 0.0, softmax_scale: float | None = None,
                    causal: bool = False, window_size: Any = (-1, -1), softcap: float = 0.0, alibi_slopes: Any = None,
                    deterministic: bool = False, return_attn_probs: bool = False) -> torch.Tensor:
    """flash_attn's function through torch's own attention. Tensors are (batch, length, heads, size)."""
    if tuple(window_size) != (-1, -1) or softcap or alibi_slopes is not None or return_attn_probs:
        raise NotImplementedError("torch's attention has no window_size, softcap, alibi_slopes and return_attn_probs; "
                                  "do: write the mask out, or call another kernel there")
    mask = None
    if causal and q.shape[1] != k.shape[1]:  # flash_attn aligns the last query with the last key, torch the first
        mask = torch.ones(q.shape[1], k.shape[1], dtype=torch.bool, device=q.device).tril(k.shape[1] - q.shape[1])
    k, v = (each.repeat_interleave(q.shape[2] // each.shape[2], 2) for each in (k, v))
    q, k, v = (each.transpose(1, 2) for each in (q, k, v))
    return _attention(q, k, v, mask, dropout_p, causal and mask is None, softmax_scale).transpose(1, 2)
def memory_efficient_attention(query: Any, key: Any, value: Any, attn_bias: Any = None, p: float = 0.0,
                               scale: float | None = None, *, op: Any = None, output_dtype: Any = None) -> torch.Tensor:
    """xformers' function through torch's own attention. Tensors are (batch, length, heads, size) or without heads."""
    if op is not None or output_dtype is not None:
        raise NotImplementedError("torch's attention has no op and no output_dtype; do: leave them out there")
    swap = query.dim() == 4
    query, key, value = (each.transpose(1, 2) if swap else each for each in (query, key, value))
    out = _attention(query, key, value, attn_bias, p, False, scale)
    return out.transpose(1, 2) if swap else out
