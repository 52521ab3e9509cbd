"""Parts that tiny pipelines share: tokenizers without files, and small text encoders.

Used by the files next to it and by tests. The special tokens are those of CLIP and T5; tokenizers and encoders must
agree on the vocabulary. Tests: tests/images/test_images_engine.py.
"""

from __future__ import annotations

from typing import Any

__all__ = ["clip_config", "clip_tokenizer", "t5_encoder", "t5_tokenizer"]


def clip_tokenizer() -> Any:
    """CLIP's tokenizer with a vocabulary of bytes: 514 entries, no merges."""
    from tokenizers.pre_tokenizers import ByteLevel
    from transformers import CLIPTokenizer

    letters = sorted(ByteLevel.alphabet())
    words = [*letters, *(f"{letter}</w>" for letter in letters), "<|startoftext|>", "<|endoftext|>"]
    return CLIPTokenizer(vocab={word: at for at, word in enumerate(words)}, merges=[], model_max_length=77)


def clip_config(**options: Any) -> Any:
    """A CLIP text encoder of two layers, for the tokenizer above."""
    from transformers import CLIPTextConfig

    return CLIPTextConfig(
        vocab_size=514, bos_token_id=512, eos_token_id=513, pad_token_id=1, hidden_size=32, intermediate_size=37,
        num_attention_heads=4, num_hidden_layers=2, projection_dim=32, max_position_embeddings=77, **options,
    )  # fmt: skip


def t5_tokenizer(length: int = 48) -> Any:
    """T5's tokenizer with letters for words, and prompts of at most `length`."""
    from transformers import T5TokenizerFast

    letters = [(chr(code), -3.0) for code in range(33, 127)]
    words = [("<pad>", 0.0), ("</s>", 0.0), ("<unk>", -2.0), ("\u2581", -2.0), *letters]
    return T5TokenizerFast(vocab=words, extra_ids=0, model_max_length=length)


def t5_encoder() -> Any:
    """A T5 encoder of two layers, for the tokenizer above."""
    from transformers import T5Config, T5EncoderModel

    return T5EncoderModel(T5Config(vocab_size=128, d_model=32, d_kv=8, d_ff=37, num_layers=2, num_heads=4))
