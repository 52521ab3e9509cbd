"""Tiny pipelines whose parts are larger, for tests of memory: written once a process. Not a test.

Used by tests/images/simulated/test_images_memory.py: with `images.tiny` itself no rung would save memory.
"""

import functools
from pathlib import Path

from images_tiny import folder


@functools.cache
def larger(kind: str) -> Path:
    """The folder of "vae" (an InstructPix2Pix with much to do for its VAE) or "large" (a Kontext of 201 MiB)."""
    import torch

    from toprope.images.families.loading import without_bars

    made = folder() / f"larger-{kind}"
    torch.set_num_threads(1)
    with torch.random.fork_rng(devices=[]), without_bars():
        torch.manual_seed(0)
        {"vae": _ip2p, "large": _kontext}[kind](made)
    return made


def _ip2p(made: Path) -> None:
    from diffusers import (
        AutoencoderKL,
        EulerAncestralDiscreteScheduler,
        StableDiffusionInstructPix2PixPipeline,
        UNet2DConditionModel,
    )
    from transformers import CLIPTextConfig, CLIPTextModel

    from toprope.images.tiny.parts import clip_tokenizer

    unet = UNet2DConditionModel(
        block_out_channels=(32, 64), layers_per_block=2, sample_size=32, in_channels=8, out_channels=4,
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"),
        up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"), cross_attention_dim=256,
    )  # fmt: skip
    vae = AutoencoderKL(
        block_out_channels=[160, 32], down_block_types=["DownEncoderBlock2D"] * 2,
        up_block_types=["UpDecoderBlock2D"] * 2, latent_channels=4, sample_size=32,
    )  # fmt: skip
    encoder = CLIPTextModel(
        CLIPTextConfig(
            vocab_size=514, bos_token_id=512, eos_token_id=513, pad_token_id=1, hidden_size=256,
            intermediate_size=1024, num_attention_heads=4, num_hidden_layers=3, max_position_embeddings=77,
        )
    )  # fmt: skip
    StableDiffusionInstructPix2PixPipeline(
        vae=vae, text_encoder=encoder, tokenizer=clip_tokenizer(), unet=unet,
        scheduler=EulerAncestralDiscreteScheduler(), safety_checker=None, feature_extractor=None,
        image_encoder=None, requires_safety_checker=False,
    ).save_pretrained(made)  # fmt: skip


def _kontext(made: Path) -> None:
    from diffusers import (
        AutoencoderKL,
        FlowMatchEulerDiscreteScheduler,
        FluxKontextPipeline,
        FluxTransformer2DModel,
    )
    from transformers import CLIPTextModel, T5Config, T5EncoderModel

    from toprope.images.tiny.parts import clip_config, clip_tokenizer, t5_tokenizer

    transformer = FluxTransformer2DModel(
        patch_size=1, in_channels=4, num_layers=8, num_single_layers=8, attention_head_dim=32, num_attention_heads=8,
        joint_attention_dim=256, pooled_projection_dim=32, axes_dims_rope=[8, 12, 12], guidance_embeds=True,
    )  # fmt: skip
    vae = AutoencoderKL(
        sample_size=16, block_out_channels=(4,), layers_per_block=1, latent_channels=1, norm_num_groups=1,
        use_quant_conv=False, use_post_quant_conv=False, shift_factor=0.0609, scaling_factor=1.5035,
    )  # fmt: skip
    t5 = T5EncoderModel(T5Config(vocab_size=128, d_model=256, d_kv=64, d_ff=1024, num_layers=32, num_heads=4))
    FluxKontextPipeline(
        scheduler=FlowMatchEulerDiscreteScheduler(), vae=vae, text_encoder=CLIPTextModel(clip_config()),
        tokenizer=clip_tokenizer(), text_encoder_2=t5, tokenizer_2=t5_tokenizer(), transformer=transformer,
    ).save_pretrained(made)  # fmt: skip
