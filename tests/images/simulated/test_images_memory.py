"""The memory ladder on a small simulated card: every rung lowers the peak, and what is too large edits all the same.

Holds `images.memory` by the card's own counters.
"""

import gc
import logging

import numpy
import psutil
import pytest
import torch
from torch import nn

from images_larger import larger
from images_loras import save, tensors
from images_tiny import QUIET, picture, tiny
from toprope.images import EditRequest, Engine
from toprope.images.memory.offload import bytes_of

SIM = "910B3x1,hbm=64MiB"
MIB = 2**20
CARD = 64 * MIB
pytestmark = QUIET


def request(image, instruction="make it snow", **knobs) -> EditRequest:
    return EditRequest(image, instruction, **({"steps": 2, "seed": 3, "max_pixels": 256} | knobs))


def values(result) -> numpy.ndarray:
    return numpy.asarray(result.pictures[0]).astype(int)


def opened(folder, **options) -> Engine:
    return Engine.open(folder, device="npu", dtype="fp32", **options)


def test_every_rung_lowers_the_peak() -> None:
    """One picture of 80 x 80 through an InstructPix2Pix with an encoder of 10 MiB and a VAE that has much to do.

    "tiers" is not lower than "encoders" here, as the denoiser fits into half of the card: see the next test.
    """
    asked, peaks, made = request(picture(80, 80), size="keep", max_pixels=80 * 80, steps=1), {}, {}
    for rung in ("none", "vae", "encoders-4bit", "encoders", "tiers", "tiers-least"):
        with opened(larger("vae"), memory=rung) as engine:
            result = engine.edit(asked)
            assert result.record["notices"] == []
            peaks[rung] = result.record["peak_memory"]
            assert peaks[rung] == torch.npu.max_memory_allocated()
            made[rung] = values(result)
        assert torch.npu.memory_allocated() == 0
    assert peaks["vae"] < peaks["none"] - 4 * MIB
    assert peaks["encoders-4bit"] < peaks["vae"] - 4 * MIB
    assert peaks["encoders"] < peaks["encoders-4bit"] - MIB
    assert peaks["tiers"] <= peaks["encoders"] + MIB
    assert peaks["tiers-least"] < peaks["encoders"] - 4 * MIB
    # tiles are normalised each by itself; what follows is the same as with them, but for the encoders in 4.5 bits
    assert (made["vae"] != made["none"]).any()
    for rung in ("encoders", "tiers", "tiers-least"):
        assert numpy.abs(made[rung] - made["vae"]).max() <= 1


def test_acceptance_4_a_pipeline_three_times_the_card_edits_a_picture(caplog) -> None:
    asked = request(picture(16, 16))
    with Engine.open(larger("large"), device="cpu", dtype="fp32", memory="none") as engine:
        parts = [each for each in engine.loaded.pipeline.components.values() if isinstance(each, nn.Module)]
        assert sum(bytes_of(each) for each in parts) > 3 * CARD
        wanted = values(engine.edit(asked))
        del parts
    told = []
    with caplog.at_level(logging.WARNING, "toprope"), opened(larger("large"), progress=told.append) as engine:
        first = engine.edit(asked)
        assert numpy.abs(values(first) - wanted).max() <= 1
        memory = first.record["engine"]["memory"]
        assert (memory["rung"], memory["auto"]) == ("tiers", True)
        fell = [each.getMessage() for each in caplog.records if each.name.startswith("toprope")]
        assert [each.partition(":")[0] for each in fell] == [
            f"memory ran out on the rung '{one}', going on with '{other}'"
            for one, other in (("none", "vae"), ("vae", "encoders"), ("encoders", "tiers"))
        ]
        assert set(fell) <= set(told)
        assert first.record["notices"] == fell[2:]  # the others came while it was loaded
        for name in ("transformer", "text_encoder_2"):
            part = memory["parts"][name]
            assert 0 < part["host_bytes"] < part["bytes"]
            assert part["budget"] <= CARD // 2
        second = engine.edit(asked)
        assert second.pictures[0].tobytes() == first.pictures[0].tobytes()
        peak = second.record["peak_memory"]
        assert CARD // 4 < peak < 3 * CARD // 4
        assert torch.npu.max_memory_reserved() <= CARD
    with opened(larger("large"), memory="tiers-least") as engine:
        third = engine.edit(asked)
        assert numpy.abs(values(third) - wanted).max() <= 1
        assert third.record["peak_memory"] < peak / 2
    assert torch.npu.memory_allocated() == 0


@pytest.mark.parametrize("rung", ["none", "tiers-least"])
def test_acceptance_5_fifty_edits_leave_the_memory_of_host_and_card_as_it_was(rung) -> None:
    """Numbers of tensors and pictures show what is held on to, bytes what else grows."""
    from PIL.Image import Image

    image = picture(32, 32)
    this = psutil.Process()

    def held() -> tuple[int, int, int, int]:
        gc.collect()
        kinds = [type(each) for each in gc.get_objects()]  # isinstance would ask proxies, some of which warn
        tensors_there = sum(issubclass(kind, torch.Tensor) for kind in kinds)
        pictures_there = sum(issubclass(kind, Image) for kind in kinds)
        return torch.npu.memory_allocated(), torch.npu.memory_reserved(), tensors_there, pictures_there

    def edit(number: int) -> None:
        engine.edit(request(image, f"make it {number % 20}", seed=number, steps=1))  # 20 instructions: 16 are kept

    with opened(tiny("kontext"), memory=rung) as engine:
        for number in range(20):
            edit(number)
        before, resident = held(), this.memory_info().rss
        for number in range(50):
            edit(number)
        allocated, reserved, tensors_there, pictures_there = held()
        assert (allocated, reserved) == before[:2]
        # threads that move weights release theirs a moment later; one left by every edit would be fifty
        assert tensors_there < before[2] + 25
        assert pictures_there < before[3] + 25
        assert this.memory_info().rss < resident + 8 * MIB
    gc.collect()
    assert torch.npu.memory_allocated() == 0


@pytest.mark.parametrize("family", ["hidream-e1", "hidream-e1-full"])
def test_both_stages_on_every_rung(family) -> None:
    """Base and edit weights that are two transformers take turns on the card, or are both in tiers."""
    asked = request(picture(32, 32), refine_strength=0.5)
    made = {}
    for rung in ("none", "encoders", "tiers-least"):
        stages = []
        with opened(tiny(family), memory=rung) as engine:
            made[rung] = values(engine.edit(asked, on_step=lambda step, stages=stages: stages.append(step.stage)))
            assert engine.describe()["memory"]["rung"] == rung
        assert stages == ["edit", "refine"]
        assert numpy.abs(made[rung] - made["none"]).max() <= 1
        assert torch.npu.memory_allocated() == 0


def test_31_loras_on_the_card_and_on_a_low_rung(tmp_path) -> None:
    asked = request(picture(32, 32))
    made = {}
    for rung in ("none", "tiers-least"):
        with opened(tiny("kontext"), memory=rung) as engine:
            file = save(tmp_path / "snow.safetensors", tensors(engine.loaded.pipeline, size=0.2))
            base = engine.edit(asked).pictures[0].tobytes()
            engine.set_loras([f"{file}:0.5"])
            made[rung] = values(engine.edit(asked))
            assert made[rung].tobytes() != numpy.frombuffer(base, dtype=numpy.uint8).astype(int).tobytes()
            with engine.loras() as loras:
                loras.fuse()
            assert numpy.abs(values(engine.edit(asked)) - made[rung]).max() <= 1
            engine.set_loras([])
            assert engine.edit(asked).pictures[0].tobytes() == base
    assert numpy.abs(made["none"] - made["tiers-least"]).max() <= 1
