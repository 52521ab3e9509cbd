"""The runtime of ported programs, in both forms, on the CPU, on the simulated card and on a CUDA that is not there.

One process per form and world answers everything; the tests look at its answers.

Holds `device.portable` and `device._portable_runtime`; the measure is the names and arguments of torch.cuda.
"""

import functools
import os
import pathlib
import subprocess
import sys

import pytest

from device_stand_ins import run_anew, told
from portable_forms import FORMS

pytestmark = [pytest.mark.native, pytest.mark.process]

ROOT = pathlib.Path(__file__).resolve().parents[2]
TEXT = ROOT / "src" / "toprope" / "device" / "_portable_runtime.py"
WORLDS = {
    "cpu": "",
    "sim": "import toprope.sim\ntoprope.sim.install(chip='910B3', count=2)\n",
    "cuda": """
import torch
calls = []
torch.cuda.is_available, torch.cuda.device_count = lambda: True, lambda: 4
for each in ("synchronize", "empty_cache", "set_device", "memory_allocated", "manual_seed_all", "current_device"):
    setattr(torch.cuda, each, lambda *a, each=each, **k: calls.append([each, [str(x) for x in a]]) or 7)
""",
}
QUESTIONS = r"""
import io, pickle, torch, warnings
warnings.simplefilter("error")
p = portable
a = {}
a["device"] = [str(p.device(each)) for each in
    (None, 1, "1", "cuda", "cuda:1", torch.device("cuda:1"), "cpu", "meta", -1)]
a["name"] = [p.name(), p.name(1), type(p.name()).__name__]
a["available"] = [p.is_available(), p.device_count(), p.current_device()]
a["accelerator"] = [p.is_accelerator(each) for each in
    ("cuda", "cuda:0", "npu:1", "cpu", "meta", None, torch.device("cuda", 0), torch.device("cpu"), torch.ones(1))]
a["named"] = [p.is_named(*each) for each in
    (("cuda", "cuda"), ("cuda:1", "cuda"), (p.name(), "cuda"), (p.name(1), "cuda:1", "x"), (p.name(), "cuda", "cpu"),
     ("mps", "cuda"), (None, "cuda"), (torch.device("cuda"), "cuda"), (p.kind() + ":0", "cuda:0"))]
a["environment"] = [p.dist_backend(), p.visible_devices_variable(), p.device_ids([1]), p.pin_memory_device(),
    p.version()]
a["oom"] = [p.is_out_of_memory(each) for each in
    (torch.OutOfMemoryError("x"), RuntimeError("CUDA out of memory. Tried"), RuntimeError("shape"))]
a["attention"] = [p.attention_implementation(each) for each in ("flash_attention_2", "sdpa", "eager", None)]
a["classes"] = [isinstance(p.autocast(), torch.autocast), isinstance(p.GradScaler(), torch.amp.GradScaler)]
if WORLD != "cuda":
    x = torch.ones(4, 4).to(p.device())
    a["x"] = [x.device.type, p.is_accelerator(x), p.is_tensor(x), p.is_tensor(x, torch.float16), p.is_tensor(3)]
    with p.autocast():
        a["autocast"] = [str((x @ x).dtype), torch.is_autocast_enabled(p.name())]
    with p.autocast(dtype=torch.bfloat16):
        a["bfloat16"] = str((x @ x).dtype)
    with p.autocast(False):
        a["off"] = str((x @ x).dtype)
    a["decorated"] = str(p.autocast()(lambda: x @ x)().dtype)
    scaler = p.GradScaler(init_scale=8.0)
    a["scaler"] = [scaler.is_enabled(), scaler.get_scale(), float(scaler.scale(x.sum()))]
    w = torch.nn.Parameter(torch.ones(2, device=p.device()))
    optimizer = torch.optim.SGD([w], lr=0.5)
    scaler.scale(w.sum()).backward(); scaler.step(optimizer); scaler.update()
    a["step"] = w.detach().cpu().tolist()
    class Square(torch.autograd.Function):
        @staticmethod
        @p.custom_fwd(cast_inputs=torch.float32)
        def forward(ctx, y):
            ctx.save_for_backward(y)
            return y * y
        @staticmethod
        @p.custom_bwd
        def backward(ctx, gradient):
            return 2 * ctx.saved_tensors[0] * gradient
    y = torch.full((2,), 3.0, device=p.device(), requires_grad=True)
    Square.apply(y).sum().backward()
    a["custom"] = y.grad.cpu().tolist()
    p.synchronize(); p.synchronize(0); p.synchronize("cuda:0"); p.empty_cache(); p.ipc_collect(); p.init()
    p.set_device(0); p.set_device("cuda"); p.set_device(torch.device("cuda:0"))
    with p.device_index(0), p.device_index("cuda"), p.device_of(x), p.device_of(torch.ones(1)):
        a["inside"] = p.current_device()
    p.reset_peak_memory_stats()
    before = p.memory_allocated()
    big = torch.zeros(1 << 20, device=p.device())
    a["memory"] = [(p.memory_allocated() - before) >> 20, p.max_memory_allocated(0) >= p.memory_allocated("cuda:0"),
        p.max_memory_reserved() >= p.memory_reserved(), dict(p.memory_stats()) != {}, type(p.memory_summary()).__name__]
    free, total = p.mem_get_info()
    a["info"] = [0 < free <= total, p.get_device_properties(0).total_memory == total, p.get_device_capability(),
        p.get_device_name() == p.get_device_properties().name, p.get_device_properties().major or None,
        p.is_bf16_supported()]
    p.manual_seed(3); p.manual_seed_all(3)
    first = torch.rand(3, device=p.device(), generator=p.generator().manual_seed(1)).tolist()
    a["random"] = [first == torch.rand(3, device=p.device(), generator=p.generator(0).manual_seed(1)).tolist(),
        p.generator().device.type]
    states, state = p.get_rng_state_all(), p.get_rng_state()
    p.set_rng_state_all(states); p.set_rng_state(state)
    a["states"] = [len(states), state.dtype == torch.uint8]
    s, e1, e2 = p.Stream(), p.Event(enable_timing=True), p.Event(enable_timing=True)
    e1.record()
    s.wait_stream(p.current_stream())
    with p.stream(s), p.stream(None):
        z = x + 1
    p.record_stream(z, s)
    p.current_stream().wait_stream(s)
    e2.record(); e2.synchronize(); s.synchronize()
    a["streams"] = [e1.elapsed_time(e2) >= 0, s.query(), e2.query(), p.current_stream() == p.default_stream(),
        s.record_event().query(), float(z.sum())]
    file = io.BytesIO()
    saved = torch.save({"w": x, "host": torch.ones(2)}, file)
    file.seek(0)
    back = torch.load(file, map_location=p.map_location, weights_only=True)
    a["load"] = [back["w"].device.type, back["host"].device.type]
    store = torch.ones(2).untyped_storage()
    a["cuda file"] = [str(p.map_location(store, "cuda:1").device), p.map_location(store, "cpu")]
    a["tensor"] = [list(p.tensor(torch.float16, 2, 3).shape), p.tensor(torch.int64, [4, 5]).tolist(),
        p.tensor(torch.float32).device.type, str(p.tensor(torch.float16, 2).dtype)]
    a["pin"] = p.pin_memory(torch.ones(2)).is_pinned()
    p.range_push("a"); p.mark("b"); p.range_pop(); p.profiler_start(); p.profiler_stop()
    with p.range("c"):
        pass
    a["activities"] = [each.name for each in p.profiler_activities()]
    q, k = torch.randn(2, 3, 4, 8), torch.randn(2, 5, 2, 8)
    wide = k.repeat_interleave(2, 2)
    scores = torch.einsum("bqhd,bkhd->bhqk", q, wide) * 8**-0.5
    scores = scores.masked_fill(~torch.ones(3, 5, dtype=torch.bool).tril(2), -torch.inf)
    want = torch.einsum("bhqk,bkhd->bqhd", scores.softmax(-1), wide)
    a["flash"] = torch.allclose(p.flash_attn_func(q, k, k, causal=True), want, atol=1e-5)
    q = torch.randn(2, 3, 4, 8)
    a["xformers"] = torch.allclose(p.memory_efficient_attention(q, q, q), p.flash_attn_func(q, q, q), atol=1e-5)
    for refused in (lambda: p.flash_attn_func(q, q, q, window_size=(2, 0)),
                    lambda: p.memory_efficient_attention(q, q, q, op=object())):
        try:
            refused()
        except NotImplementedError as error:
            a.setdefault("refused", []).append(str(error).partition(" has no ")[0])
    p.set_default_tensor_type(torch.float64)
    a["default"] = [str(torch.ones(1).dtype), torch.ones(1).device.type]
else:
    p.synchronize(); p.synchronize("cuda:2"); p.empty_cache(); p.set_device(3); p.set_device("cuda")
    p.memory_allocated(1)
    p.manual_seed_all(5)
    a["calls"] = calls
    a["activities"] = [each.name for each in p.profiler_activities()]
    a["cuda file"] = [p.map_location(None, "cuda:1"), p.map_location(None, "cpu")]
tell(a)
"""


@functools.cache
def answers(form, world):
    return told(f"WORLD = {world!r}\n{WORLDS[world]}\n{FORMS[form]}\n{QUESTIONS}")


EXPECTED = {
    "cpu": {
        "device": ["cpu", "cpu", "cpu", "cpu", "cpu", "cpu", "cpu", "meta", "cpu"],
        "name": ["cpu", "cpu", "str"],
        "available": [False, 0, 0],
        "environment": ["gloo", "CUDA_VISIBLE_DEVICES", None, "", None],
        "x": ["cpu", False, True, False, False],
        # torch.cuda.amp's is off on the CPU as well, so the numbers are those of the program before
        "autocast": ["torch.float32", False],
        "bfloat16": "torch.float32",
        "decorated": "torch.float32",
        "scaler": [False, 1.0, 16.0],
        "memory": [0, True, True, False, "str"],
        "states": [0, True],
        "activities": ["CPU"],
        "cuda file": ["cpu", None],
        "pin": False,
        "default": ["torch.float64", "cpu"],
    },
    "sim": {
        "device": ["npu", "npu:1", "npu:1", "npu", "npu:1", "npu:1", "cpu", "meta", "cpu"],
        "name": ["npu", "npu:1", "str"],
        "available": [True, 2, 0],
        "environment": ["hccl", "ASCEND_RT_VISIBLE_DEVICES", [1], "npu", None],
        "x": ["npu", True, True, False, False],
        "autocast": ["torch.float16", True],
        "bfloat16": "torch.bfloat16",
        "decorated": "torch.float16",
        "scaler": [True, 8.0, 128.0],
        "memory": [4, True, True, True, "str"],
        "states": [2, True],
        "activities": ["CPU", "NPU"],
        "cuda file": ["npu:1", None],
        "pin": True,
        "default": ["torch.float64", "npu"],
    },
    "cuda": {
        "device": ["cuda", "cuda:1", "cuda:1", "cuda", "cuda:1", "cuda:1", "cpu", "meta", "cpu"],
        "name": ["cuda", "cuda:1", "str"],
        "available": [True, 4, 7],
        "activities": ["CPU", "CUDA"],
        "cuda file": [None, None],
        "environment": ["nccl", "CUDA_VISIBLE_DEVICES", [1], "cuda", None],
        "calls": [
            ["current_device", []], ["synchronize", []], ["synchronize", ["2"]], ["empty_cache", []],
            ["set_device", ["3"]], ["memory_allocated", ["1"]], ["manual_seed_all", ["5"]],
        ],
    },
}  # fmt: skip
for _kind in EXPECTED:
    EXPECTED[_kind]["named"] = [True, False, _kind != "cpu", _kind != "cpu", True, False, False, False, _kind != "cpu"]
ALIKE = {
    "accelerator": [True, True, True, False, False, False, True, False, False],
    "oom": [True, True, False],
    "attention": ["sdpa", "sdpa", "eager", None],
    "classes": [True, True],
}
ON_DEVICES = {
    "off": "torch.float32",
    "step": [0.5, 0.5],
    "custom": [6.0, 6.0],
    "inside": 0,
    "info": [True, True, [0, 0], True, None, True],
    "streams": [True, True, True, True, True, 32.0],
    "tensor": [[2, 3], [4, 5], None, "torch.float16"],
    "flash": True,
    "refused": ["torch's attention", "torch's attention"],
    "xformers": True,
}


@pytest.mark.slow
@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("form", FORMS)
def test_answers(form, world):
    got = answers(form, world)
    kind = {"cpu": "cpu", "sim": "npu", "cuda": "cuda"}[world]
    want = ALIKE | EXPECTED[world]
    if world != "cuda":
        want |= ON_DEVICES | {"random": [True, kind], "load": [kind, "cpu"]}
        want["tensor"] = [[2, 3], [4, 5], kind, "torch.float16"]
    assert got == want


@pytest.mark.slow
@pytest.mark.parametrize("world", WORLDS)
def test_both_forms_are_alike(world):
    assert answers("toprope", world) == answers("vendored", world)


@pytest.mark.slow
def test_the_variable_chooses():
    code = WORLDS["sim"] + "{}\ntell(str(portable.device()), str(portable.device(0)), portable.is_available())"
    for form in FORMS.values():
        assert told(code.format(form), TOPROPE_DEVICE="cpu") == ["cpu", "cpu", False]
        assert told(code.format(form), PREFERRED_DEVICE="npu:1") == ["npu:1", "npu:0", True]


def test_a_device_that_is_asked_for_and_missing_is_an_error():
    code = "{}\ntry:\n    portable.device()\nexcept RuntimeError as error:\n    tell(str(error))"
    for form in FORMS.values():
        assert "there is no npu" in told(code.format(form), TOPROPE_DEVICE="npu")


def test_the_file_is_short_needs_torch_alone_and_the_module_imports_none():
    text = TEXT.read_text(encoding="utf-8")
    assert len(text.splitlines()) < 500  # typed, for torch 2.0 and newer: it was 300 lines without both
    assert "mypy: ignore-errors" not in text
    assert "type: ignore" not in text
    assert "toprope." not in text.partition('"""\n')[2]
    loaded = "import sys\nfrom toprope.device import portable\ntell('torch' in sys.modules)"
    assert told(loaded, by=run_anew) is False


OBJECTS = """
import torch
p = portable


class Said:
    shown = 0
    is_cuda = False
    recorded = None

    def record_stream(self, stream):
        self.recorded = stream

    def __str__(self):
        Said.shown += 1
        return "cuda"
    __repr__ = __str__


class Method(Said):
    def is_cuda(self):
        return True


class Placed:
    def __init__(self, device):
        self.device = device


batch, side = Said(), p.Stream()
p.record_stream(batch, side)
packed = torch.nn.utils.rnn.pack_sequence([torch.ones(3, device=p.device())])
placed = Placed(torch.device("cuda:1")), Placed("cpu"), Placed(None)
values = (packed, batch, Method(), *placed, torch.nn.Linear(1, 1), {}, 1, -1)
tell([p.is_accelerator(each) for each in values], Said.shown, batch.recorded is side)
"""


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("world", ["cpu", "sim"])
def test_an_object_is_asked_and_never_shown(form, world):
    """`portable.is_accelerator(x)` formatted the whole batch and said True; record_stream went to torch."""
    found, shown, recorded = told(f"{WORLDS[world]}\n{FORMS[form]}\n{OBJECTS}")
    assert found == [world == "sim", False, True, True, False, False, False, False, True, False]
    assert (shown, recorded) == (0, True)


CLASSES = """
import torch
p = portable


def wait(event: p.Event | None = None, stream: "p.Stream | None" = None) -> p.Event | None:
    return event


class Named(p.Event):
    def record(self, stream=None):
        super().record(stream)
        self.name = "mine"


class Side(p.Stream):
    pass


named = Named(enable_timing=True)
named.record()
tell(
    isinstance(p.Event(), p.Event), isinstance(p.Stream(), p.Stream), isinstance(p.current_stream(), p.Stream),
    isinstance(1, p.Event), isinstance(named, p.Event), named.name, issubclass(Named, p.Event),
    isinstance(Side(), p.Stream), isinstance(p.Stream("cuda:0", priority=0), p.Stream), isinstance(p.Event, type),
)
"""


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("world", ["cpu", "sim"])
def test_streams_and_events_are_classes(form, world):
    """As functions they stopped programs with annotations, isinstance and derived classes."""
    want = [True, True, True, False, True, "mine", True, True, True, True]
    assert told(f"{WORLDS[world]}\n{FORMS[form]}\n{CLASSES}") == want


@pytest.mark.parametrize("form", FORMS)
def test_naming_a_class_asks_for_no_device(form):
    code = f"{FORMS[form]}\ndef f(e: portable.Event): ...\nsame = portable.Stream\ntell(1)"
    assert told(code, TOPROPE_DEVICE="npu") == 1


@pytest.mark.slow
@pytest.mark.parametrize("world", ["cpu", "sim"])
def test_a_device_with_a_negative_index_in_its_name_is_an_error(world):
    ask = """
said = []
for each in ("cuda:-1", "npu:-1", "cuda:x"):
    try:
        said.append(str(portable.device(each)))
    except RuntimeError as error:
        said.append(str(error))
tell(said, str(portable.device(-1)), portable.kind(), portable.kind("cuda:1"))
"""
    kind = {"cpu": "cpu", "sim": "npu"}[world]
    for form in FORMS.values():
        said, host, *kinds = told(f"{WORLDS[world]}\n{form}\n{ask}")
        assert [each.startswith("Invalid device string") for each in said] == [True, True, True]
        assert (host, kinds) == ("cpu", [kind, kind])


def test_a_variable_that_names_no_device_is_an_error():
    code = FORMS["vendored"] + "try:\n    portable.device()\nexcept RuntimeError as error:\n    tell(str(error))"
    assert "'npu:x' names no device" in told(code, TOPROPE_DEVICE="npu:x")


WITHOUT = {
    "windows": "del os.sysconf",
    "macos": """
def sysconf(name):
    if name == "SC_AVPHYS_PAGES":
        raise ValueError(name)
    return 1
os.sysconf = sysconf
""",
}
HOST_MEMORY = """
first = portable.mem_get_info()
importlib.util.find_spec = lambda name: None
tell(first[0] > 0, portable.mem_get_info())
"""


@pytest.mark.parametrize("system", WITHOUT)
def test_memory_of_a_machine_whose_system_does_not_tell(system):
    """Windows has no os.sysconf; macOS does not know SC_AVPHYS_PAGES, which is a ValueError there."""
    code = f"{FORMS['vendored']}\nimport os, importlib.util\nimport psutil\n{WITHOUT[system]}\n"
    assert told(f"{code}psutil.virtual_memory()\n{HOST_MEMORY}") == [True, [0, 0]]


# Names that older releases of torch do not have, by the first release that has them.
NEWER = {
    "2.9": [],
    "2.5": ["torch.OutOfMemoryError", "torch.accelerator"],
    "2.3": ["torch.OutOfMemoryError", "torch.accelerator", "torch.amp.custom_fwd", "torch.amp.custom_bwd"],
    "2.0": [
        "torch.OutOfMemoryError", "torch.accelerator", "torch.amp.custom_fwd", "torch.amp.custom_bwd",
        "torch.amp.GradScaler", "torch.compiler", "torch.Event",
    ],
}  # fmt: skip
OLDER = """
import functools, torch, warnings
for name in ("custom_fwd", "custom_bwd"):  # today's of torch.cuda.amp need those that are hidden
    setattr(torch.cuda.amp, name, functools.partial(getattr(torch.amp, name), device_type="cpu"))
for full in HIDDEN:
    *way, last = full.split(".")[1:]
    delattr(functools.reduce(getattr, way, torch), last)
"""
IN_OLDER = """
p = portable
x = torch.ones(4, 4)
class Square(torch.autograd.Function):
    @staticmethod
    @p.custom_fwd(cast_inputs=torch.float32)
    def forward(ctx, y):
        ctx.save_for_backward(y)
        return y * y
    @staticmethod
    @p.custom_bwd
    def backward(ctx, gradient):
        return 2 * ctx.saved_tensors[0] * gradient
y = torch.full((2,), 3.0, requires_grad=True)
with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # torch.cuda.amp says that it is the older one
    Square.apply(y).sum().backward()
    scaler = p.GradScaler(init_scale=8.0)
with p.autocast():
    kind = str((x @ x).dtype)
event = p.Event(enable_timing=True)
event.record()
class OfCard:
    def __init__(self, **named): self.named = named
import types
torch.npu = types.SimpleNamespace(amp=types.SimpleNamespace(GradScaler=OfCard))
p._device = torch.device("meta")  # stands for a card whose torch_npu has its own classes
p._module = lambda: torch.npu
tell(y.grad.tolist(), [scaler.is_enabled(), scaler.get_scale()], kind, event.query(),
    isinstance(p.GradScaler(enabled=False), OfCard), issubclass(p.OutOfMemoryError, RuntimeError))
"""


@pytest.mark.parametrize("release", NEWER)
def test_the_vendored_file_needs_nothing_that_is_newer(release):
    """`class GradScaler(torch.amp.GradScaler)` was an AttributeError at the import, before torch 2.3."""
    code = f"HIDDEN = {NEWER[release]!r}\n{OLDER}\n{FORMS['vendored']}\n{IN_OLDER}"
    assert told(code) == [[6.0, 6.0], [False, 1.0], "torch.float32", True, release == "2.0", True]


BEFORE_2_4 = """
import types, warnings, torch
warnings.simplefilter("ignore")  # the functions for one kind of device are the older ones
p = portable
card = types.SimpleNamespace(is_autocast_enabled=lambda: True, get_autocast_dtype=lambda: torch.float16)
said = []
with torch.autocast("cpu", torch.bfloat16):
    kept, torch.is_autocast_enabled = torch.get_autocast_dtype, torch.is_autocast_cache_enabled  # takes no argument
    del torch.get_autocast_dtype
    said += [p.is_autocast_enabled(), str(p.get_autocast_dtype())]
    p.set_autocast_enabled(False)
    p.set_autocast_dtype(torch.float16)
    said += [p.is_autocast_enabled(), str(p.get_autocast_dtype())]
    p._device, p._module = torch.device("meta"), lambda: card  # stands for a card of a torch_npu of then
    said += [p.is_autocast_enabled(), str(p.get_autocast_dtype())]
    torch.get_autocast_dtype = kept
tell(said)
"""


def test_the_state_of_autocast_is_asked_by_the_functions_of_before_torch_2_4():
    """`torch.is_autocast_enabled(name)` was written, which torch 2.0 to 2.3 do not take."""
    want = [True, "torch.bfloat16", False, "torch.float16", True, "torch.float16"]
    assert told(f"{FORMS['vendored']}\n{BEFORE_2_4}", TOPROPE_DEVICE="cpu") == want


FORKED = """
import torch
p = portable
torch.manual_seed(1)
with p.fork_rng([0]):
    p.manual_seed_all(5)
    host, drawn = torch.rand(1), torch.rand(1, device=p.device())
again, next_one = torch.rand(1), torch.rand(1, device=p.device())
torch.manual_seed(1)
tell(bool(host == again), bool(next_one == torch.rand(1, device=p.device())) or p.kind() == "cpu")
"""


@pytest.mark.parametrize("world", ["cpu", "sim"])
def test_generators_are_put_back_on_the_cpu_and_on_the_card(world):
    """torch's fork_rng(device_type="cpu") asks torch.cpu for a generator that it has not."""
    assert told(f"{WORLDS[world]}\n{FORMS['vendored']}\n{FORKED}") == [True, True]


NUMBERED = (
    WORLDS["sim"]
    + """
{}
import torch
p = portable
kinds = [p.kind(), p.kind("cuda:1"), p.kind(p.device()), p.resolve_kind("cuda"), p.resolve_kind("cuda:1"), p.name()]
with torch.autocast(p.kind(), torch.float16):
    x = torch.ones(2, 2, device=p.device()) @ torch.ones(2, 2, device=p.device())
moved = p.to_type(torch.ones(2), torch.float16), p.to_type(torch.ones(2, device="npu:0"), torch.int64)
layer = p.to_type(torch.nn.BatchNorm1d(2), torch.float32)
tell(kinds, str(x.dtype), [str(each.device) for each in moved], [str(each.dtype) for each in moved],
    str(layer.num_batches_tracked.dtype), str(layer.weight.device))
"""
)


def test_a_device_with_a_number_has_a_type_without_and_a_tensor_keeps_its_card():
    """torch.autocast("npu:1") is an error; x.type(torch.cuda.FloatTensor) moved what was on another card."""
    kinds, computed, devices, dtypes, counted, placed = told(NUMBERED.format(FORMS["vendored"]), TOPROPE_DEVICE="npu:1")
    assert kinds == ["npu", "npu", "npu", "npu", "cuda:1", "npu:1"]
    assert (computed, devices, dtypes) == ("torch.float16", ["npu:1", "npu:0"], ["torch.float16", "torch.int64"])
    assert (counted, placed) == ("torch.float32", "npu:1")


USED = """
from toprope.device import portable
from toprope.device.portable import GradScaler

reveal_type(portable.device("cuda"))
reveal_type(portable.kind())
reveal_type(portable.memory_allocated())
reveal_type(portable.current_stream())
reveal_type(GradScaler())

def wait(event: portable.Event | None) -> None: ...

portable.nope
"""


@pytest.mark.slow
def test_the_names_have_types_and_no_others_are_there(tmp_path):
    """A type checker and an editor saw nothing of `portable`: its names came from `exec`."""
    (tmp_path / "used.py").write_text(USED)
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--config-file=", "--no-error-summary", "--cache-dir", str(ROOT / ".mypy_cache"),
         str(tmp_path / "used.py")],
        capture_output=True, text=True, timeout=280, env={**os.environ, "MYPYPATH": str(ROOT / "src")},
    )  # fmt: skip
    said = done.stdout.replace("torch._C.device", "torch.device")
    for want in ('"torch.device"', '"str"', '"int"', '"torch.cuda.streams.Stream"', '_portable_runtime.GradScaler"'):
        assert want in said, done.stdout + done.stderr
    assert 'has no attribute "nope"' in said
    assert said.count("error:") == 1, said
