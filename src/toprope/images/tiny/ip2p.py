"""A tiny InstructPix2Pix over Stable Diffusion: two million parameters, pictures of 64 x 64.

Found by `tiny.making` by the file's name; most tests of tests/images use it, and so does doctor's tiny edit: it must be
loaded in seconds. The sizes are free within what diffusers' classes take. Tests: tests/images/test_images_cli.py,
tests/images/test_images_engine.py.
"""

from __future__ import annotations

from pathlib import Path

from toprope.images.tiny.parts import clip_config, clip_tokenizer

__all__ = ["make"]


def make(folder: Path) -> None:
    """Write it."""
    from diffusers import (
        AutoencoderKL,
        EulerAncestralDiscreteScheduler,
        StableDiffusionInstructPix2PixPipeline,
        UNet2DConditionModel,
    )
    from transformers import CLIPTextModel

    unet = UNet2DConditionModel(
        block_out_channels=(32, 64), layers_per_block=2, sample_size=32, in_channels=8, out_channels=4,
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"),
        up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"), cross_attention_dim=32,
    )  # fmt: skip
    vae = AutoencoderKL(
        block_out_channels=[32, 64], down_block_types=["DownEncoderBlock2D"] * 2,
        up_block_types=["UpDecoderBlock2D"] * 2, latent_channels=4, sample_size=64,
    )  # fmt: skip
    pipeline = StableDiffusionInstructPix2PixPipeline(
        vae=vae, text_encoder=CLIPTextModel(clip_config()), tokenizer=clip_tokenizer(), unet=unet,
        scheduler=EulerAncestralDiscreteScheduler(), safety_checker=None, feature_extractor=None,
        image_encoder=None, requires_safety_checker=False,
    )  # fmt: skip
    pipeline.save_pretrained(folder)
