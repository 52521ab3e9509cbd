"""QwenImageEdit: without torchvision it says so; its steps run, with a processor made by hand and a small picture.

Holds `images.families.qwen`. The real model is too large here: this is what can be said without it.
"""

from types import SimpleNamespace

import pytest
import torch

from images_tiny import QUIET, picture
from toprope.errors import PackageError, UsageError
from toprope.images import EditRequest, Engine
from toprope.images.families import named

pytestmark = [pytest.mark.slow, *QUIET]


def pipeline():
    """A tiny one. Its processor is made past its own way to be made, which needs torchvision."""
    from diffusers import (
        AutoencoderKLQwenImage,
        FlowMatchEulerDiscreteScheduler,
        QwenImageEditPipeline,
        QwenImageTransformer2DModel,
    )
    from tokenizers.pre_tokenizers import ByteLevel
    from transformers import Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration, Qwen2Tokenizer
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

    words = [*sorted(ByteLevel.alphabet()), "<|endoftext|>"]
    tokenizer = Qwen2Tokenizer(vocab={word: at for at, word in enumerate(words)}, merges=[])
    special = ["<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>"]
    tokenizer.add_special_tokens({"additional_special_tokens": special})
    ids = dict(zip(special, tokenizer.convert_tokens_to_ids(special), strict=True))
    config = Qwen2_5_VLConfig(
        text_config={
            "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2,
            "num_key_value_heads": 2, "vocab_size": 300,
            "rope_parameters": {"rope_type": "default", "rope_theta": 1e6, "mrope_section": [1, 1, 2]},
        },
        vision_config={
            "depth": 2, "hidden_size": 16, "intermediate_size": 16, "num_heads": 2, "out_hidden_size": 16,
            "fullatt_block_indexes": [0],
        },
        image_token_id=ids["<|image_pad|>"], video_token_id=ids["<|video_pad|>"],
        vision_start_token_id=ids["<|vision_start|>"], vision_end_token_id=ids["<|vision_end|>"],
    )  # fmt: skip
    images = Qwen2VLImageProcessorPil()

    class Processor:
        """The part of a Qwen2VLProcessor that the pipeline calls."""

        def __call__(self, text, images, padding, return_tensors):
            seen = self.image_processor(images, return_tensors="pt")
            count = int(seen["image_grid_thw"][0].prod()) // self.image_processor.merge_size**2
            text = [each.replace("<|image_pad|>", "<|image_pad|>" * count) for each in text]
            made = self.tokenizer(text, return_tensors="pt")
            made.update(seen)
            return made

    processor = Processor()
    processor.image_processor, processor.tokenizer = images, tokenizer
    torch.manual_seed(0)
    made = QwenImageEditPipeline(
        scheduler=FlowMatchEulerDiscreteScheduler(),
        vae=AutoencoderKLQwenImage(
            base_dim=8, z_dim=4, dim_mult=[1, 2], num_res_blocks=1, temperal_downsample=[False],
            latents_mean=[0.0] * 4, latents_std=[1.0] * 4,
        ),
        text_encoder=Qwen2_5_VLForConditionalGeneration(config), tokenizer=tokenizer, processor=None,
        transformer=QwenImageTransformer2DModel(
            patch_size=2, in_channels=16, out_channels=4, num_layers=1, attention_head_dim=16, num_attention_heads=2,
            joint_attention_dim=16, axes_dims_rope=(8, 4, 4),
        ),
    )  # fmt: skip
    made.processor = processor
    made.set_progress_bar_config(disable=True)
    for part in (made.vae, made.text_encoder, made.transformer):
        part.eval()
    return made


def test_without_torchvision_it_is_one_error(tmp_path) -> None:
    (tmp_path / "model_index.json").write_text('{"_class_name": "QwenImageEditPipeline"}')
    with pytest.raises(PackageError, match="needs torchvision, which is not installed"):
        Engine.open(tmp_path, device="cpu")


def test_edits_run_one_by_one_each_with_its_picture(tmp_path, monkeypatch) -> None:
    from diffusers.pipelines.qwenimage import pipeline_qwenimage_edit as module

    family = named("qwen")
    monkeypatch.setattr(module, "calculate_dimensions", lambda area, ratio: (64, 64, None))  # a million takes a minute
    monkeypatch.setattr(type(family), "native", lambda self, pipeline: SimpleNamespace(
        pixels=64 * 64, multiple=32, square=False, sizes=(), max_pixels=None
    ))  # fmt: skip
    monkeypatch.setattr(type(family), "load", lambda self, folder, dtype, components=None: pipeline())
    (tmp_path / "model_index.json").write_text('{"_class_name": "QwenImageEditPipeline"}')
    cat, dog = picture(64, 64), picture(64, 64, shift=99)
    with Engine.open(tmp_path, device="cpu") as engine:
        steps = []
        requests = [EditRequest(image, "make it snow", steps=2, seed=3) for image in (cat, dog)]
        first, other = engine.edit_all(requests, on_step=steps.append)
        assert [step.number for step in steps] == [1, 2, 3, 4]
        again = engine.edit(requests[0])
        assert first.pictures[0].tobytes() == again.pictures[0].tobytes() != other.pictures[0].tobytes()
        assert first.pictures[0].size == (64, 64)
        for knobs in ({"negative": "blurry"}, {"guidance": 9.0}, {"instruction": "paint it"}):
            changed = engine.edit(
                EditRequest(**({"image": cat, "instruction": "make it snow", "steps": 2, "seed": 3} | knobs))
            )
            assert changed.pictures[0].tobytes() != first.pictures[0].tobytes()
        with pytest.raises(UsageError, match="max_pixels is 4096, and this pipeline always gives the model"):
            engine.edit(EditRequest(cat, "x", max_pixels=4096))
