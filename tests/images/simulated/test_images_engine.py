"""Pictures edited on the simulated card are the CPU's, in every dtype; and problems of users from public threads.

Holds `images.engine` and `images.execution` on a card.
"""

import logging
from concurrent.futures import ThreadPoolExecutor

import numpy
import pytest
import torch

import toprope.sim
from images_tiny import QUIET, picture, tiny
from toprope import device
from toprope.device import probing
from toprope.errors import UnsupportedError
from toprope.images import EditRequest, Engine
from toprope.sim import faults

SIM = "910B3x2"
pytestmark = QUIET
CAT = picture(100, 80)
FAMILIES = ("ip2p", "ip2p-xl", "kontext")


def request(image=CAT, instruction="make it snow", **knobs) -> EditRequest:
    return EditRequest(image, instruction, **({"steps": 2, "seed": 3, "max_pixels": 256} | knobs))


def values(result) -> numpy.ndarray:
    return numpy.asarray(result.pictures[0]).astype(int)


@pytest.fixture(scope="module")
def on_cpu():
    """The CPU's pictures of the request, by family."""
    found = {}
    for family in FAMILIES:
        with Engine.open(tiny(family), device="cpu", dtype="fp32") as engine:
            found[family] = values(engine.edit(request()))
    return found


@pytest.mark.parametrize(
    ("family", "dtype", "apart"),
    [
        ("ip2p", "fp32", 1),
        ("ip2p", "bf16", 24),
        ("ip2p", "fp16", 6),
        ("kontext", "fp32", 1),
        ("kontext", "bf16", 24),
        ("kontext", "fp16", 6),
        ("ip2p-xl", "fp16", 6),
    ],
)
def test_the_card_gives_the_cpus_picture_within_its_dtype_and_the_same_each_time(on_cpu, family, dtype, apart) -> None:
    """Levels of 255: float32 rounds to the same but for one; 8 bits of bfloat16 and 11 of float16 are less."""
    with Engine.open(tiny(family), device="npu", dtype=dtype) as engine:
        first, again = engine.edit(request()), engine.edit(request())
        assert first.pictures[0].tobytes() == again.pictures[0].tobytes()
        assert numpy.abs(values(first) - on_cpu[family]).max() <= apart
        made = first.record["engine"]
        assert (made["device"], made["device_name"], made["simulated"]) == ("npu:0", "Ascend910B3", True)
        assert first.record["peak_memory"] > torch.npu.memory_allocated() > 2**18
        assert first.record["request"]["generator_device"] == "cpu"
    assert torch.npu.memory_allocated() == 0


def test_noise_is_drawn_where_it_was_asked_for(monkeypatch) -> None:
    """The simulated card draws the CPU's numbers, so that only the generators tell."""
    with Engine.open(tiny("kontext"), device="npu:1") as engine:
        where, run = [], engine.family.run

        def watched(pipeline, pictures, request, prompt, generators, on_step):
            where.extend((str(each.device), each.initial_seed()) for each in generators)
            return run(pipeline, pictures, request, prompt, generators, on_step)

        monkeypatch.setattr(engine.family, "run", watched)
        first = engine.edit(request(generator_device="device", num_images=2))
        again = engine.edit(request(generator_device="device", num_images=2))
        engine.edit(request())
    assert where == [("npu:1", 3), ("npu:1", 4)] * 2 + [("cpu", 3)]
    assert [each.tobytes() for each in first.pictures] == [each.tobytes() for each in again.pictures]
    assert first.record["request"]["generator_device"] == "device"


def test_the_best_dtype_of_the_card_is_taken(monkeypatch) -> None:
    monkeypatch.setattr(probing, "_known", {})
    with Engine.open(tiny("kontext")) as engine:
        assert (engine.describe()["dtype"], str(engine.device)) == ("bfloat16", "npu:0")
        assert engine.memory()["total"] == 62423 * 2**20
    with faults.refuse("mm", "bfloat16"):
        card = device.get("npu:1")
        assert not card.probe(torch.bfloat16).works
        with pytest.raises(UnsupportedError, match="npu:1 does not compute in bfloat16"):
            Engine.open(tiny("kontext"), device=card, dtype="bf16")
        with Engine.open(tiny("kontext"), device=card) as engine:
            assert engine.describe()["dtype"] == "float16"


# ---- operators that the card does not have


def test_an_operator_that_the_card_refuses_runs_on_the_host_where_that_was_asked_for(on_cpu, caplog) -> None:
    engine = Engine.open(tiny("ip2p"), device="npu", dtype="fp32")
    with engine, faults.refuse("silu"), pytest.raises(RuntimeError, match="EZ1001"):
        engine.edit(request())
    with Engine.open(tiny("ip2p"), device="npu", dtype="fp32", host_operators=True) as engine:
        plain = engine.edit(request())
        assert plain.record["notices"] == []
        assert plain.record["engine"]["host_operators"] == {}
        with faults.refuse("silu"), caplog.at_level(logging.WARNING, "toprope"):
            first, again = engine.edit(request()), engine.edit(request())
    assert first.pictures[0].tobytes() == again.pictures[0].tobytes()
    assert numpy.abs(values(first) - on_cpu["ip2p"]).max() <= 1
    (notice,) = first.record["notices"]
    assert "aten.silu" in notice
    assert "npu:0" in notice
    said = [each.getMessage() for each in caplog.records if each.name.startswith("toprope")]
    assert said == [notice]  # once, and it names the operator
    assert again.record["notices"] == []
    (used,) = again.record["engine"]["host_operators"].items()
    assert used[0].startswith("aten.silu")
    assert used[1] > 2


def test_operators_on_the_host_write_where_they_should() -> None:
    from toprope.images.execution.host_operators import HostOperators

    told = []
    left, right = torch.randn(4, 4), torch.randn(4, 4)
    with faults.refuse("mm"), faults.refuse("silu_"), faults.refuse("relu_"), HostOperators(told.append) as host:
        out = torch.empty(4, 4, device="npu")
        result = torch.mm(left.npu(), right.npu(), out=out)
        changed = left.npu()
        same = torch.nn.functional.silu(changed, inplace=True)
        view = left.npu()
        view[1].relu_()
    assert result.data_ptr() == out.data_ptr()
    assert torch.allclose(out.cpu(), left @ right, atol=1e-6)
    assert same is changed
    assert torch.allclose(changed.cpu(), torch.nn.functional.silu(left), atol=1e-6)
    wanted = left.clone()
    wanted[1].relu_()
    assert torch.equal(view.cpu(), wanted)
    assert len(told) == len(host.used) == 3
    with HostOperators(told.append), pytest.raises(RuntimeError, match="shapes"):
        torch.mm(left.npu(), torch.randn(3, 3).npu())
    with HostOperators(told.append), pytest.raises(RuntimeError):
        torch.mm(left, torch.randn(3, 3))


# ---- public troubles of users, by their threads


@pytest.mark.parametrize("family", ["ip2p", "kontext"])
def test_llamafactory_5674_the_attention_that_ran_is_reported(family) -> None:
    """https://github.com/hiyouga/LlamaFactory/issues/5674: "does sdpa really become FA? cannot tell from logs"."""
    with Engine.open(tiny(family), device="npu") as engine:
        assert engine.describe()["attention"]["path"] is None
        with toprope.sim.trace() as recorded:
            record = engine.edit(request()).record
        ran = {each.name for each in recorded.trace.operators()}
        assert "aten::scaled_dot_product_attention" in ran
        told = record["engine"]["attention"]
        assert told["path"] == "fused by the device"
        (count,) = told["operators"].values()
        assert count >= 2  # each step has some
        assert engine.describe()["attention"] == told
        assert engine.edit(request()).record["engine"]["attention"] == told
    with Engine.open(tiny(family), device="npu") as engine:
        with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH), toprope.sim.trace() as recorded:
            told = engine.edit(request()).record["engine"]["attention"]
        assert "aten::scaled_dot_product_attention" not in {each.name for each in recorded.trace.operators()}
        assert told["path"] == "plain products and softmax"


def test_hunyuandit_226_and_open_sora_plan_301_a_black_picture_is_seen_and_done_again(on_cpu) -> None:
    """https://github.com/Tencent-Hunyuan/HunyuanDiT/issues/226: float16 on an NPU gives black, and no error.

    https://github.com/PKU-YuanGroup/Open-Sora-Plan/issues/301: the same, from NaN in the latents.
    """
    with Engine.open(tiny("ip2p"), device="npu", dtype="fp16") as engine:
        unet = engine.loaded.pipeline.unet
        unet.register_forward_hook(lambda module, inputs, outputs: tuple(each * float("nan") for each in outputs))
        result = engine.edit(request())
        (event,) = result.record["guard"]
        assert event["what"] == "numbers that are not finite"
        assert event["where"] == "the latents after step 1 of 2"
        assert result.record["engine"]["dtype"] == "float32"
        assert numpy.abs(values(result) - on_cpu["ip2p"]).max() <= 1
        assert torch.npu.max_memory_allocated() < 3 * torch.npu.memory_allocated()  # not both models at once


def test_vllm_omni_261_and_webui_14801_threads_need_no_set_device() -> None:
    """https://github.com/vllm-project/vllm-omni/issues/261: a web UI calls the model from a pool of threads.

    https://github.com/AUTOMATIC1111/stable-diffusion-webui/pull/14801: each of them needed a set_device.
    """
    with Engine.open(tiny("kontext"), device="npu:1") as engine:
        wanted = engine.edit(request()).pictures[0].tobytes()

        def call(number: int) -> tuple[bytes, int, int]:
            inside = []
            result = engine.edit(request(), on_step=lambda step: inside.append(torch.npu.current_device()))
            return result.pictures[0].tobytes(), *set(inside), torch.npu.current_device()

        before = torch.npu.memory_allocated(0)
        with ThreadPoolExecutor(4) as pool:
            assert list(pool.map(call, range(4))) == [(wanted, 1, 0)] * 4
        assert torch.npu.memory_allocated(0) == before
        assert ThreadPoolExecutor(1).submit(engine.memory).result()["allocated"] > 0
