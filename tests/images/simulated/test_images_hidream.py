"""HiDream-E1 on the simulated card: as on the CPU, each stage with its weights; also where the base is on the host.

Holds `images.families.hidream`; tests/images/test_images_hidream.py has the CPU's part.
"""

import pytest
import torch
from safetensors.torch import load_file

from images_tiny import QUIET, picture, tiny
from toprope.images import EditRequest, Engine
from toprope.images.families.hidream.layout import FULL, ONE

pytestmark = QUIET
SIM = "910B3x1"
ASKED = EditRequest(picture(48, 40), "make it snow", seed=3, steps=2, refine_strength=0.5, max_pixels=1024)


def watched(engine):
    """An edit's pixels, and by stage what the transformer that was called had as weights and where."""
    pipeline, seen = engine.loaded.pipeline, {}

    def look(module, _arguments, _options) -> None:
        stage = "edit" if module is pipeline.transformer and getattr(pipeline.stages, "editing", True) else "refine"
        seen[stage] = {name: tensor.cpu() for name, tensor in module.state_dict().items()}
        assert {each.device.type for each in module.parameters()} == {engine.device.torch_device.type}

    models = [each for each in (pipeline.transformer, pipeline.refiner) if each is not None]
    hooks = [each.register_forward_pre_hook(look, with_kwargs=True) for each in models]
    done = engine.edit(ASKED).pictures[0].tobytes()
    for hook in hooks:
        hook.remove()
    return done, seen


def far(one, two):
    return max(abs(a - b) for a, b in zip(one, two, strict=True))


def weights(folder):
    return {name: tensor for file in sorted(folder.glob("*.safetensors")) for name, tensor in load_file(file).items()}


@pytest.mark.parametrize("variant", ["hidream-e1", "hidream-e1-full"])
def test_the_card_gives_the_same_bytes_each_time_and_what_the_cpu_gives(variant) -> None:
    folder = tiny(variant)
    base = weights(folder / "transformer")
    if variant == "hidream-e1":
        edit = weights(folder / ONE / "transformer")
    else:
        file = load_file(folder / f"{FULL}.safetensors")
        edit = base | {name: tensor for name, tensor in file.items() if ".lora_" not in name}
    with Engine.open(folder, device="cpu", dtype="fp32") as engine:
        want = engine.edit(ASKED).pictures[0].tobytes()
    with Engine.open(folder, device="npu", dtype="fp32") as engine:
        first, seen = watched(engine)
        again, _ = watched(engine)
        assert first == again
        assert far(first, want) <= 2
        for stage, those in (("edit", edit), ("refine", base)):
            assert all(torch.equal(seen[stage][name], tensor) for name, tensor in those.items()), stage
        assert engine.describe()["simulated"]
    with Engine.open(folder, device="npu", dtype="bf16") as engine:
        assert 0 < far(engine.edit(ASKED).pictures[0].tobytes(), want) < 128


def test_a_base_that_waits_on_the_host_takes_the_transformers_place_and_leaves_it() -> None:
    with Engine.open(tiny("hidream-e1"), device="npu", dtype="fp32") as engine:
        pipeline = engine.loaded.pipeline
        want, both = engine.edit(ASKED).pictures[0].tobytes(), engine.memory()["peak"]
        pipeline.refiner.to("cpu")
        for _ in range(2):
            done, seen = watched(engine)
            assert done == want
            assert all(torch.equal(seen["refine"][name], tensor.cpu())
                       for name, tensor in pipeline.refiner.state_dict().items())  # fmt: skip
            assert {each.device.type for each in pipeline.refiner.parameters()} == {"cpu"}
            assert {each.device.type for each in pipeline.transformer.parameters()} == {"npu"}
        size = sum(each.nbytes for each in pipeline.refiner.parameters())
        assert engine.memory()["peak"] < both - size / 2
