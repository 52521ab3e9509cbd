"""What ported programs call, in both forms, on the CPU, on the simulated card and on a CUDA that is not there.

One process per form and world answers everything; the tests look at its answers.
"""

import functools
import pathlib

import pytest

from device_stand_ins import run_anew, told

pytestmark = [pytest.mark.native, pytest.mark.process]

ROOT = pathlib.Path(__file__).resolve().parents[2]
TEXT = ROOT / "src" / "toprope" / "port" / "runtime.py"
FORMS = {
    "toprope": "from toprope.device import portable",
    "vendored": f"""
import importlib.util, sys
spec = importlib.util.spec_from_file_location("toprope_portable", {str(TEXT)!r})
portable = sys.modules["toprope_portable"] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(portable)
""",
}
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
        "x": ["cpu", False, False, False, False],
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
    assert len(text.splitlines()) < 300
    assert "toprope." not in text.partition('"""\n')[2]
    loaded = "import sys\nfrom toprope.device import portable\ntell('torch' in sys.modules)"
    assert told(loaded, by=run_anew) is False
