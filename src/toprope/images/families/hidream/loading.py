"""Load HiDream-E1: the base, the edit weights over it, and the fourth text encoder.

Called by `HiDreamE1.load`; the files are found by `layout`, read by `checkpoint` and combined by `stages`. The parts
and their arguments are those of diffusers' HiDreamImagePipeline, the lengths of tokens those of the authors. Nothing is
downloaded. Tests: tests/images/test_images_hidream.py.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from toprope.images.families.hidream.checkpoint import check, read_checkpoint
from toprope.images.families.hidream.layout import Layout, find_layout
from toprope.images.families.loading import from_folder, need_diffusers, weights_errors, without_bars

if TYPE_CHECKING:
    import torch

__all__ = ["load_pipeline"]


def load_pipeline(folder: Path, dtype: torch.dtype, components: Mapping[str, Any] | None = None) -> Any:
    """Load the pipeline to the host, in evaluation mode, with its `stages` and its `variant`.

    Args:
        folder: the model's folder, see `layout`.
        dtype: dtype of the weights.
        components: parts that exist already; the value None leaves a part out.

    Raises:
        WeightsError: files are missing, cannot be read, or do not belong together.
        UsageError: there are no edit weights.
        EnvironmentProblem: a package is missing.
    """
    need_diffusers()
    from toprope.images.families.hidream.pipeline import pipeline_class

    layout = find_layout(folder)
    given = dict(components or {})
    stages, transformer, refiner = _transformers(layout, dtype)
    given |= {"transformer": transformer}
    if layout.llama is not None:
        given = _llama(layout.llama, dtype, given) | given
    parts = from_folder("HiDreamImagePipeline", layout.pipeline, dtype, given).components
    pipeline = pipeline_class()(**parts, refiner=refiner)
    pipeline.set_progress_bar_config(disable=True)
    pipeline.stages, pipeline.variant = stages, layout.variant
    return pipeline


def _transformers(layout: Layout, dtype: torch.dtype) -> tuple[Any, Any, Any]:
    """Load the stages, the transformer that edits, and the base's transformer if it is separate."""
    import torch
    from diffusers import HiDreamImageTransformer2DModel as Transformer

    from toprope.images.families.hidream.stages import EditWeightsOnly, make_stages

    weights = read_checkpoint(layout.edit)
    of = layout.edit if layout.base is None else layout.base
    with weights_errors(of), without_bars():
        config = Transformer.load_config(os.fspath(of), local_files_only=True)
        with torch.device("meta"):
            skeleton = Transformer.from_config(config)
    check(weights, skeleton, whole=layout.edit.is_dir())
    with weights_errors(of), without_bars():
        loaded = Transformer.from_pretrained(os.fspath(of), dtype=dtype, local_files_only=True)
    # The picture is next to the noise: twice the tokens. E1-Full sees 768 x 768 of the base's 1024 x 1024, that is 9/16
    # of its tokens, twice: 9/8. `family.native` and the pipeline's timesteps read it back.
    loaded.max_seq = loaded.max_seq * 2 if layout.variant == "1.1" else loaded.max_seq * 9 // 8
    loaded.requires_grad_(False).eval()
    if layout.base is None:
        return EditWeightsOnly(), loaded, None
    with weights_errors(layout.edit):
        return make_stages(loaded, weights, dtype)


def _llama(folder: Path, dtype: torch.dtype, given: Mapping[str, Any]) -> dict[str, Any]:
    """Load the fourth text encoder and its tokenizer, unless they are given."""
    from transformers import AutoTokenizer, LlamaForCausalLM

    made: dict[str, Any] = {}
    with weights_errors(folder), without_bars():
        if "tokenizer_4" not in given:
            made["tokenizer_4"] = AutoTokenizer.from_pretrained(os.fspath(folder), local_files_only=True)
        if "text_encoder_4" not in given:
            made["text_encoder_4"] = LlamaForCausalLM.from_pretrained(
                os.fspath(folder), dtype=dtype, local_files_only=True
            ).eval()
    return made
