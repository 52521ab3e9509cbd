"""A tiny HiDream-E1.1: the base's pipeline, Llama and the edit's transformer in two files, as they are downloaded.

Found by `tiny.making` by the file's name. The folders are those that `families.hidream.layout` finds; the sizes are
free within what diffusers' classes take. Tests: tests/images/test_images_engine.py,
tests/images/test_images_hidream.py.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from toprope.images.families.hidream.layout import LLAMA, ONE
from toprope.images.tiny.parts import clip_config, clip_tokenizer, t5_encoder, t5_tokenizer

__all__ = ["make", "make_base", "make_transformer"]


def make(folder: Path) -> None:
    """Write it."""
    make_base(folder)
    edit = make_transformer()
    half = sum(each.nbytes for each in edit.parameters()) // 2
    edit.save_pretrained(folder / ONE / "transformer", max_shard_size=half)


def make_transformer() -> Any:
    """A transformer of two layers, for pictures of 64 x 64."""
    from diffusers import HiDreamImageTransformer2DModel

    return HiDreamImageTransformer2DModel(
        patch_size=2, in_channels=4, out_channels=4, num_layers=1, num_single_layers=1, attention_head_dim=8,
        num_attention_heads=4, caption_channels=[32, 16], text_emb_dim=64, num_routed_experts=4,
        num_activated_experts=2, axes_dims_rope=(4, 2, 2), max_resolution=(32, 32), llama_layers=[0, 1],
    )  # fmt: skip


def make_base(folder: Path) -> Any:
    """Write HiDream-I1 and Llama; the base's transformer is returned."""
    from diffusers import AutoencoderKL, FlowMatchEulerDiscreteScheduler, HiDreamImagePipeline
    from transformers import CLIPTextModelWithProjection

    config = clip_config()
    config.max_position_embeddings = 128
    vae = AutoencoderKL(
        sample_size=64, block_out_channels=(8, 8), down_block_types=["DownEncoderBlock2D"] * 2,
        up_block_types=["UpDecoderBlock2D"] * 2, layers_per_block=1, latent_channels=4, norm_num_groups=1,
        use_quant_conv=False, use_post_quant_conv=False, shift_factor=0.1159, scaling_factor=0.3611,
    )  # fmt: skip
    llama, words = _llama()
    transformer = make_transformer()
    pipeline = HiDreamImagePipeline(
        scheduler=FlowMatchEulerDiscreteScheduler(shift=3.0), vae=vae,
        text_encoder=CLIPTextModelWithProjection(config), tokenizer=clip_tokenizer(),
        text_encoder_2=CLIPTextModelWithProjection(config), tokenizer_2=clip_tokenizer(),
        text_encoder_3=t5_encoder(), tokenizer_3=t5_tokenizer(128),
        text_encoder_4=llama, tokenizer_4=words, transformer=transformer,
    )  # fmt: skip
    pipeline.save_pretrained(folder)
    for name in ("text_encoder_4", "tokenizer_4"):  # they are another download
        shutil.copytree(folder / name, folder / LLAMA[0], dirs_exist_ok=True)
        shutil.rmtree(folder / name)
    return transformer


def _llama() -> tuple[Any, Any]:
    """A Llama of two layers, and a tokenizer whose words are bytes."""
    from tokenizers import Tokenizer
    from tokenizers.models import BPE
    from tokenizers.pre_tokenizers import ByteLevel
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    words = [*sorted(ByteLevel.alphabet()), "<|begin_of_text|>", "<|eot_id|>"]
    tokenizer = Tokenizer(BPE(vocab={word: at for at, word in enumerate(words)}, merges=[]))
    tokenizer.pre_tokenizer = ByteLevel(add_prefix_space=False)
    config = LlamaConfig(
        vocab_size=len(words), hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, max_position_embeddings=256, bos_token_id=256, eos_token_id=257,
    )  # fmt: skip
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<|begin_of_text|>", eos_token="<|eot_id|>", model_max_length=256
    )
    return LlamaForCausalLM(config), fast
