"""Runs a program written for CUDA on an NPU, CUDA, another accelerator or the CPU. Put here by `toprope port --vendor`.

The names are those of torch.cuda, with the same arguments, and a few more. The device is the one that TOPROPE_DEVICE or
PREFERRED_DEVICE names ("npu", "npu:1", "cuda", "cpu"), else the first of NPU, CUDA, another accelerator, the CPU. On
CUDA every call is torch.cuda's own; on the CPU the questions have harmless answers (0, no-op, a stand-in).
Needs torch 2.4 or newer and nothing else. It is yours: change it as you like, `toprope port` leaves it alone.
"""
# ruff: noqa
# fmt: off
# mypy: ignore-errors

import contextlib
import functools
import importlib.util
import operator
import os
import time
import types

import torch

OutOfMemoryError = getattr(torch, "OutOfMemoryError", torch.cuda.OutOfMemoryError)
_BACKENDS = {"npu": "hccl", "cuda": "nccl", "xpu": "xccl"}
_MASKS = {"npu": "ASCEND_RT_VISIBLE_DEVICES", "xpu": "ZE_AFFINITY_MASK"}

@functools.cache
def _chosen():
    """The device in use: with an index where the variable names one, so that "the current one" stays as it is."""
    asked = os.environ.get("TOPROPE_DEVICE", "") or os.environ.get("PREFERRED_DEVICE", "")
    kind, _, index = asked.strip().lower().partition(":")
    kind = {"sim": "npu", "auto": ""}.get(kind, kind)
    if kind in ("", "npu") and not hasattr(torch, "npu") and importlib.util.find_spec("torch_npu"):
        with contextlib.suppress(Exception):  # installed, but without the vendor's libraries
            import torch_npu
    other = torch.accelerator.current_accelerator() if hasattr(torch, "accelerator") else None
    kinds = [kind] if kind else ["npu", "cuda", *([other.type] if other else []), "cpu"]
    for each in kinds:
        if each == "cpu" or getattr(getattr(torch, each, None), "is_available", lambda: False)():
            return torch.device(each, int(index)) if index and each != "cpu" else torch.device(each)
    raise RuntimeError(f"there is no {kind}, which TOPROPE_DEVICE or PREFERRED_DEVICE asks for")

def _module():
    return None if _chosen().type == "cpu" else getattr(torch, _chosen().type)

def _ask(name, default, *arguments, **keywords):
    function = getattr(_module(), name, None)
    return default if function is None else function(*arguments, **keywords)

def device(spec=None):
    """The device to use: of an index, of a name ("cuda:1" is the second one of whatever is in use), or the current."""
    chosen = _chosen()
    if spec is None:
        return chosen
    kind, _, index = str(spec).partition(":")
    if kind.lstrip("-").isdigit() or not isinstance(spec, (str, torch.device)):
        kind, index = "cuda", str(operator.index(spec) if not isinstance(spec, str) else kind)
    if kind not in ("cuda", chosen.type):
        return torch.device(spec)
    if chosen.type == "cpu" or index.startswith("-"):
        return torch.device("cpu")
    return torch.device(chosen.type, int(index)) if index else chosen

def name(spec=None):
    """The same as a text: "cuda", "npu:1", "cpu"."""
    return str(device(spec))

def resolve(what):
    """The name of the device in use for "cuda:1", its backend for "nccl"; anything else as it is. On CUDA all is."""
    if isinstance(what, (str, torch.device)) and str(what).partition(":")[0] == "cuda":
        return name(what) if isinstance(what, str) else device(what)
    return dist_backend() if isinstance(what, str) and what == "nccl" else what

class attribute:
    """An attribute of a class that is a device, resolved when it is read."""

    def __init__(self, what): self._what = what
    def __get__(self, instance, owner=None): return resolve(self._what)

def _index(spec):
    return None if spec is None else device(spec).index

def is_accelerator(what):
    """Whether a tensor, a device, a device's name, or whatever has a `device`, is on an accelerator."""
    what = getattr(what, "device", what)
    return what is not None and str(what).partition(":")[0] not in ("cpu", "meta")

def is_available(): return _chosen().type != "cpu"
def device_count(): return _ask("device_count", 0)
def current_device(): return _ask("current_device", 0)
def synchronize(device=None): return _ask("synchronize", None, *_given(device))
def init(): return _ask("init", None)
def is_initialized(): return _ask("is_initialized", False)
def ipc_collect(): return _ask("ipc_collect", None)
def empty_cache(): return _ask("empty_cache", None)

def _given(spec):
    index = _index(spec)
    return () if index is None else (index,)

def set_device(device):
    """Make it the current device of this thread."""
    index = _index(device)
    if index is not None:
        _ask("set_device", None, index)

def device_index(device):
    """A context in which it is the current device: torch.cuda.device."""
    given = _given(device)
    return _ask("device", None, *given) if given else contextlib.nullcontext()

def device_of(tensor):
    """A context in which a tensor's device is the current one."""
    return device_index(tensor.device) if is_accelerator(tensor) else contextlib.nullcontext()

def get_device_name(device=None): return str(_ask("get_device_name", "CPU", *_given(device)))

def get_device_properties(device=None):
    """What the device is; a figure that it does not tell is None."""
    found = _ask("get_device_properties", None, *(_given(device) or (current_device(),)))
    if _chosen().type == "cuda":
        return found
    wanted = "name", "total_memory", "major", "minor", "multi_processor_count"
    told = types.SimpleNamespace(**{each: getattr(found, each, None) for each in wanted})
    if found is None:
        told.name, told.total_memory = "CPU", mem_get_info()[1]
    return told

def get_device_capability(device=None):
    """The compute capability of a GPU; (0, 0) elsewhere, less than every one that is asked for."""
    return _ask("get_device_capability", (0, 0), *_given(device)) if _chosen().type == "cuda" else (0, 0)

def is_bf16_supported(*arguments, **keywords):
    if _chosen().type == "cuda":
        return torch.cuda.is_bf16_supported(*arguments, **keywords)
    return bool(_ask("is_bf16_supported", True))

def version():
    """torch.version.cuda where CUDA is in use, else None."""
    return torch.version.cuda if _chosen().type == "cuda" else None

def memory_allocated(device=None): return _ask("memory_allocated", 0, *_given(device))
def max_memory_allocated(device=None): return _ask("max_memory_allocated", 0, *_given(device))
def memory_reserved(device=None): return _ask("memory_reserved", 0, *_given(device))
def max_memory_reserved(device=None): return _ask("max_memory_reserved", 0, *_given(device))
def memory_stats(device=None): return _ask("memory_stats", {}, *_given(device))
def memory_summary(device=None, abbreviated=False):
    return _ask("memory_summary", "", *(_given(device) or (None,)), abbreviated=abbreviated)
def reset_peak_memory_stats(device=None): return _ask("reset_peak_memory_stats", None, *_given(device))
def reset_accumulated_memory_stats(device=None): return _ask("reset_accumulated_memory_stats", None, *_given(device))
reset_max_memory_allocated = reset_max_memory_cached = reset_peak_memory_stats

def mem_get_info(device=None):
    """Free and total bytes; of the machine on the CPU."""
    if not is_available():
        page = os.sysconf("SC_PAGE_SIZE")
        return os.sysconf("SC_AVPHYS_PAGES") * page, os.sysconf("SC_PHYS_PAGES") * page
    return _ask("mem_get_info", (0, 0), *_given(device))

def set_per_process_memory_fraction(fraction, device=None):
    return _ask("set_per_process_memory_fraction", None, fraction, *_given(device))

def manual_seed(seed): return _ask("manual_seed", None, seed)
def manual_seed_all(seed): return _ask("manual_seed_all", None, seed)
def seed(): return _ask("seed", None)
def seed_all(): return _ask("seed_all", None)
def get_rng_state(device=None): return _ask("get_rng_state", torch.empty(0, dtype=torch.uint8), *_given(device))
def get_rng_state_all(): return _ask("get_rng_state_all", [])
def set_rng_state(state, device=None): return _ask("set_rng_state", None, state, *_given(device))
def set_rng_state_all(states): return _ask("set_rng_state_all", None, states)

def generator(spec=None):
    """A generator of random numbers on the device; on the CPU where the device draws none itself."""
    try:
        return torch.Generator(device=device(spec))
    except (RuntimeError, NotImplementedError):
        return torch.Generator()

class _Event:
    """An event of the CPU, which does everything at once: done when recorded, and takes the time."""

    def __init__(self, *arguments, **keywords): self._time = None
    def record(self, stream=None): self._time = time.perf_counter()
    def wait(self, stream=None): pass
    def synchronize(self): pass
    def query(self): return True
    def elapsed_time(self, end): return (end._time - self._time) * 1000

class _Stream:
    """A stream of the CPU: its work is done when the call returns."""

    def __init__(self, *arguments, **keywords): pass
    def wait_stream(self, stream): pass
    def wait_event(self, event): pass
    def synchronize(self): pass
    def query(self): return True
    def record_event(self, event=None):
        event = _Event() if event is None else event
        event.record(self)
        return event
    def __enter__(self): return self
    def __exit__(self, *error): pass
    def __eq__(self, other): return isinstance(other, _Stream)
    __hash__ = None

def Event(*arguments, **keywords): return getattr(_module(), "Event", _Event)(*arguments, **keywords)
def Stream(device=None, *arguments, **keywords):
    return getattr(_module(), "Stream", _Stream)(_index(device), *arguments, **keywords)
def current_stream(device=None): return _ask("current_stream", None, *_given(device)) or _Stream()
def default_stream(device=None): return _ask("default_stream", None, *_given(device)) or _Stream()
def stream(stream): return _ask("stream", contextlib.nullcontext(stream), stream)

def record_stream(tensor, stream):
    """tensor.record_stream(stream), where the tensor is on an accelerator."""
    if is_accelerator(tensor):
        tensor.record_stream(stream)

class autocast(torch.autocast):
    """torch.cuda.amp.autocast for the device in use. On the CPU it is off, as torch.cuda's is there."""

    def __init__(self, enabled=True, dtype=torch.float16, cache_enabled=True):
        enabled = enabled and is_available()
        super().__init__(_chosen().type, dtype if enabled else None, enabled, cache_enabled)

class GradScaler(torch.amp.GradScaler):
    """torch.cuda.amp.GradScaler for the device in use. On the CPU it is off, as torch.cuda's is there."""

    def __init__(self, init_scale=2.0**16, growth_factor=2.0, backoff_factor=0.5, growth_interval=2000, enabled=True):
        enabled = enabled and is_available()
        super().__init__(_chosen().type, init_scale, growth_factor, backoff_factor, growth_interval, enabled)

def custom_fwd(fwd=None, *, cast_inputs=None):
    return torch.amp.custom_fwd(fwd, device_type=_chosen().type, cast_inputs=cast_inputs)

def custom_bwd(bwd=None): return torch.amp.custom_bwd(bwd, device_type=_chosen().type)

def map_location(storage, location):
    """For torch.load: what was saved on an accelerator goes to the one in use, by its index; on CUDA nothing changes."""
    if not is_accelerator(location) or location.partition(":")[0] == _chosen().type:
        return None
    target = device("cuda:" + (location.partition(":")[2] or "0"))
    return torch.serialization.default_restore_location(storage, str(target))

def dist_backend(): return _BACKENDS.get(_chosen().type, "gloo")
def device_ids(ids): return ids if is_available() else None
def visible_devices_variable(): return _MASKS.get(_chosen().type, "CUDA_VISIBLE_DEVICES")
def pin_memory(tensor): return tensor.pin_memory() if is_available() else tensor
def pin_memory_device(): return _chosen().type if is_available() else ""

def tensor(dtype, *arguments):
    """What torch.cuda.FloatTensor(...) and its like make: of sizes an empty tensor, of data a tensor."""
    return torch.empty(0, dtype=dtype, device=device()).new(*arguments)

def is_tensor(what, dtype=None):
    """Whether it is a tensor on an accelerator, of this dtype where one is given."""
    return torch.is_tensor(what) and is_accelerator(what) and dtype in (None, what.dtype)

def set_default_tensor_type(dtype):
    torch.set_default_dtype(dtype)
    torch.set_default_device(device())

def range_push(text): return torch.cuda.nvtx.range_push(text) if _chosen().type == "cuda" else 0
def range_pop(): return torch.cuda.nvtx.range_pop() if _chosen().type == "cuda" else 0
def mark(text): return torch.cuda.nvtx.mark(text) if _chosen().type == "cuda" else None
def range(text): return torch.cuda.nvtx.range(text) if _chosen().type == "cuda" else torch.profiler.record_function(text)
def profiler_start(): return torch.cuda.profiler.start() if _chosen().type == "cuda" else None
def profiler_stop(): return torch.cuda.profiler.stop() if _chosen().type == "cuda" else None

def profiler_activities():
    """The activities that torch's profiler can record here, the CPU's first."""
    kinds = {"cuda": "CUDA", "xpu": "XPU", "cpu": ""}.get(_chosen().type, "PrivateUse1")
    activities = torch.profiler.ProfilerActivity
    return [activities.CPU] + ([getattr(activities, kinds)] if kinds and hasattr(activities, kinds) else [])

def is_out_of_memory(error): return isinstance(error, OutOfMemoryError) or "out of memory" in str(error).lower()

def attention_implementation(wanted):
    """The wanted attention of transformers, or "sdpa" where it needs flash_attn and there is none."""
    flash = "flash" in str(wanted) and not (_chosen().type == "cuda" and importlib.util.find_spec("flash_attn"))
    return "sdpa" if flash else wanted

def flash_attn_func(q, k, v, dropout_p=0.0, softmax_scale=None, causal=False):
    """flash_attn's function through torch's own attention. Tensors are (batch, length, heads, size)."""
    mask = None
    if causal and q.shape[1] != k.shape[1]:  # flash_attn aligns the last query with the last key, torch the first
        mask = torch.ones(q.shape[1], k.shape[1], dtype=torch.bool, device=q.device).tril(k.shape[1] - q.shape[1])
    k, v = (each.repeat_interleave(q.shape[2] // each.shape[2], 2) for each in (k, v))
    out = torch.nn.functional.scaled_dot_product_attention(
        *(each.transpose(1, 2) for each in (q, k, v)), mask, dropout_p, causal and mask is None, scale=softmax_scale
    )
    return out.transpose(1, 2)

def memory_efficient_attention(query, key, value, attn_bias=None, p=0.0, scale=None):
    """xformers' function through torch's own attention. Tensors are (batch, length, heads, size) or without heads."""
    swap = query.dim() == 4
    query, key, value = (each.transpose(1, 2) if swap else each for each in (query, key, value))
    out = torch.nn.functional.scaled_dot_product_attention(
        query, key, value, attn_mask=attn_bias, dropout_p=p, scale=scale
    )
    return out.transpose(1, 2) if swap else out
