"""A tiny FluxKontext: a transformer of two blocks, CLIP and T5, pictures of 32 x 32.

Found by `tiny.making` by the file's name. The sizes are free within what diffusers' classes take. Tests:
tests/images/test_images_engine.py.
"""

from __future__ import annotations

from pathlib import Path

from toprope.images.tiny.parts import clip_config, clip_tokenizer, t5_encoder, t5_tokenizer

__all__ = ["make"]


def make(folder: Path) -> None:
    """Write it."""
    from diffusers import (
        AutoencoderKL,
        FlowMatchEulerDiscreteScheduler,
        FluxKontextPipeline,
        FluxTransformer2DModel,
    )
    from transformers import CLIPTextModel

    transformer = FluxTransformer2DModel(
        patch_size=1, in_channels=4, num_layers=1, num_single_layers=1, attention_head_dim=16, num_attention_heads=2,
        joint_attention_dim=32, pooled_projection_dim=32, axes_dims_rope=[4, 4, 8], guidance_embeds=True,
    )  # fmt: skip
    vae = AutoencoderKL(
        sample_size=32, block_out_channels=(4,), layers_per_block=1, latent_channels=1, norm_num_groups=1,
        use_quant_conv=False, use_post_quant_conv=False, shift_factor=0.0609, scaling_factor=1.5035,
    )  # fmt: skip
    pipeline = FluxKontextPipeline(
        scheduler=FlowMatchEulerDiscreteScheduler(), vae=vae, text_encoder=CLIPTextModel(clip_config()),
        tokenizer=clip_tokenizer(), text_encoder_2=t5_encoder(), tokenizer_2=t5_tokenizer(), transformer=transformer,
    )  # fmt: skip
    pipeline.save_pretrained(folder)
