"""The runtime of ported programs inside functions that torch.compile traces as a whole: every name, in both forms.

Holds `device.portable` and `device._portable_runtime`.
"""

import pytest

from device_stand_ins import told
from portable_forms import FORMS

pytestmark = [pytest.mark.native, pytest.mark.process, pytest.mark.slow]

# "NAMES: a body of a function of x". The functions that are not here are in EAGER, with the reason.
CASES = """
device: return x.to(p.device()).to(p.device("cuda:1")).to(p.device(0)).to(p.device(x.device))
name: return x.to(p.name()).to(p.name("cuda:1"))
kind: return x * (2 if p.kind() == KIND else 3)
is_accelerator: return x * 2 if p.is_accelerator(x) and p.is_accelerator(x.device) else x + p.is_accelerator("cuda")
is_named: return x * 2 if p.is_named(p.name(), "cuda") == (KIND != "cpu") else x + p.is_named("cuda:1", "cuda", "cpu")
is_available: return x * 2 if p.is_available() else x + 1
autocast: return no_autocast(x)
OutOfMemoryError is_out_of_memory: return x + p.is_out_of_memory(p.OutOfMemoryError("a"))
attention_implementation: return x + (p.attention_implementation("flash_attention_2") == "sdpa")
dist_backend device_ids: return x + len(p.dist_backend()) + (p.device_ids([1]) is None)
visible_devices_variable pin_memory_device: return x + len(p.visible_devices_variable()) + len(p.pin_memory_device())
version get_device_capability: return x + (p.version() is None) + p.get_device_capability()[0]
flash_attn_func: return p.flash_attn_func(q, q, q, causal=True) + x.sum()
memory_efficient_attention: return p.memory_efficient_attention(q, q, q) + x.sum()
tensor: return p.tensor(torch.float32, [1.0, 2.0, 3.0]) + x
is_tensor: return x + 1 if p.is_tensor(x) else x
is_autocast_enabled get_autocast_dtype: return x + p.is_autocast_enabled() + (p.get_autocast_dtype() == torch.float16)
set_autocast_enabled: p.set_autocast_enabled(False); return x + 1
set_autocast_dtype: p.set_autocast_dtype(torch.bfloat16); return x + 1
to_type: return p.to_type(x, torch.float64).float()
resolve_kind: return x + (p.resolve_kind("cuda") == KIND) + len(p.resolve_kind("cuda:1"))
resolve attribute: return x + len(p.resolve("cuda")) + len(p.attribute("nccl").__get__(None)) + (p.resolve(3) == 3)
reduced_dtype: return x + (p.reduced_dtype(torch.int64) == torch.int64)
map_location: return x + (p.map_location(None, "cpu") is None)
"""
# On the simulated card these are calls of its native part, which torch.compile does not trace. The class that
# tensor_type makes is torch's own on the CPU alone.
ON_THE_HOST = """
autocast: return with_autocast(x)
device_count current_device: return x * p.device_count() + p.current_device()
profiler_activities: return x + len(p.profiler_activities())
synchronize init is_initialized ipc_collect: p.synchronize(); p.init(); p.ipc_collect(); return x + p.is_initialized()
empty_cache set_device: p.empty_cache(); p.set_device("cuda:0"); return x + 1
device_index device_of: return in_devices(x)
get_device_name get_device_properties: return x + len(p.get_device_name()) + len(p.get_device_properties().name)
is_bf16_supported: return x + p.is_bf16_supported()
memory_allocated max_memory_allocated: return x + p.memory_allocated() + p.max_memory_allocated()
memory_reserved max_memory_reserved: return x + p.memory_reserved() + p.max_memory_reserved()
memory_stats memory_summary: return x + len(p.memory_stats()) + len(p.memory_summary())
reset_peak_memory_stats reset_accumulated_memory_stats: p.reset_peak_memory_stats(); p.reset_accumulated_memory_stats(); return x + 1
reset_max_memory_allocated reset_max_memory_cached: p.reset_max_memory_allocated(); p.reset_max_memory_cached(); return x + 1
set_per_process_memory_fraction: p.set_per_process_memory_fraction(0.5); return x + 1
manual_seed manual_seed_all seed seed_all: p.manual_seed(1); p.manual_seed_all(1); p.seed(); p.seed_all(); return x + 1
get_rng_state get_rng_state_all: return x + len(p.get_rng_state()) + len(p.get_rng_state_all())
set_rng_state set_rng_state_all: p.set_rng_state(x); p.set_rng_state_all([]); return x + 1
Stream stream current_stream default_stream record_stream: return in_stream(x)
Event: return between_events(x) + isinstance(p.Event(), p.Event)
pin_memory: return p.pin_memory(x) + 1
tensor_type: return FloatTensor([1.0, 2.0, 3.0]) + FloatTensor(3).fill_(1.0) + x
set_default_tensor_type: p.set_default_tensor_type(torch.float32); return x + 1
range range_push range_pop mark: p.range_push("a"); p.mark("b"); p.range_pop(); return in_range(x)
profiler_device profiler_key: return x + len(p.profiler_device()) + len(p.profiler_key("cuda_time"))
profiler_start profiler_stop: p.profiler_start(); p.profiler_stop(); return x + 1
"""  # noqa: E501
# torch's own are refused by torch.compile as well, which the test checks
EAGER = """
generator: torch.Generator(device="cpu"); return x + 1
initial_seed: torch.initial_seed(); return x + 1
fork_rng: torch.get_rng_state(); return x + 1
GradScaler: torch.amp.GradScaler("cpu"); return x + 1
custom_fwd: torch.amp.custom_fwd(lambda c: c, device_type="cpu"); return x + 1
custom_bwd: torch.amp.custom_bwd(lambda c: c, device_type="cpu"); return x + 1
mem_get_info: os.sysconf("SC_PHYS_PAGES"); return x + 1
"""
PROGRAM = r"""
import os
import warnings
import torch
p = portable
warnings.filterwarnings("error", message=r"[\s\S]*(portable|ContextVar)")  # such as: ignores functools.cache of ...
q = torch.randn(2, 3, 4, 8, device=DEVICE)
FloatTensor = p.tensor_type(torch.float32)

def no_autocast(x):
    with p.autocast(enabled=False):
        return x + 1

def with_autocast(x):
    with p.autocast(dtype=torch.bfloat16):
        return (x[None] @ x[:, None]).float()

def in_devices(x):
    with p.device_index(0), p.device_of(x):
        return x + 1

def in_stream(x):
    side = p.Stream()
    side.wait_stream(p.current_stream())
    with p.stream(side):
        y = x + isinstance(side, p.Stream)
    p.record_stream(y, side)
    p.default_stream().wait_stream(side)
    return y

def between_events(x):
    begin, end = p.Event(enable_timing=True), p.Event(enable_timing=True)
    begin.record()
    y = x + 1
    end.record(); end.synchronize()
    return y

def in_range(x):
    with p.range("a"):
        return x + 1

found = {}
for line in CASES.strip().splitlines():
    names, _, body = line.partition(": ")
    space = globals()
    exec(f"def case(x):\n    {body}", space)
    for backend in ("eager", "aot_eager"):
        torch._dynamo.reset()
        x = torch.ones(3, device=DEVICE)
        want = None
        try:
            got = torch.compile(space["case"], fullgraph=True, backend=backend)(x)
            want = space["case"](x)
            found[f"{backend} {names}"] = "" if torch.equal(got, want) else f"{got} {want}"
        except BaseException as error:
            found[f"{backend} {names}"] = f"{type(error).__name__}: {error}"[:400]
tell(found)
"""
SIM = "import torch, toprope.sim\ntoprope.sim.install(chip='910B3', count=2)\n"


def answers(form, cases, device="cpu", begin=""):
    kind = device.partition(":")[0]
    return told(f"CASES = {cases!r}\nDEVICE = {device!r}\nKIND = {kind!r}\n{begin}{FORMS[form]}\n{PROGRAM}")


@pytest.mark.parametrize("form", FORMS)
def test_every_function_is_traced_whole_on_the_cpu(form):
    found = answers(form, CASES.strip() + ON_THE_HOST)
    assert len(found) > 60
    assert {name: why for name, why in found.items() if why} == {}


@pytest.mark.parametrize("form", FORMS)
def test_questions_about_the_device_are_traced_whole_on_the_card(form):
    found = answers(form, CASES, "npu:0", SIM)
    assert {name: why for name, why in found.items() if why} == {}


def test_what_is_not_traced_is_not_traced_of_torch_either():
    found = answers("toprope", EAGER)
    assert [name for name, why in found.items() if not why] == []


def test_every_public_function_is_among_the_cases():
    lines = [*CASES.splitlines(), *ON_THE_HOST.splitlines(), *EAGER.splitlines()]
    named = {name for line in lines for name in line.partition(":")[0].split()}
    public = told(
        "from toprope.device import portable\n"
        "tell([each for each in dir(portable) if not each.startswith('_') and each not in PLAIN])".replace(
            "PLAIN", "('Any', 'ModuleType', 'TYPE_CHECKING', 'annotations')"
        )
    )
    assert sorted(named) == sorted({*public, "OutOfMemoryError"})  # which is found when it is asked for
