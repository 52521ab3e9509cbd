"""Refiner that asks a local chat model of transformers, with or without vision.

Made by `refining.opening` for a name such as `local:FOLDER`. The folder and the chat template are transformers'; what
is asked is in `prompt_templates`. Whatever a model raises while it is asked becomes `NotRefined`. Tests:
tests/images/test_images_refine.py.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from toprope import device as devices
from toprope.errors import UsageError
from toprope.images.families.loading import weights_errors, without_bars
from toprope.images.refining.prompt_templates import SYSTEM
from toprope.images.refining.provider import NotRefined, Provider

if TYPE_CHECKING:
    from PIL.Image import Image

__all__ = ["Local"]


class Local(Provider):
    """A model in a folder; nothing is downloaded.

    Args:
        folder: a folder with config.json, weights, and a tokenizer or a processor.
        device: the device that computes, as for `toprope.device.get`. On the CPU it takes no memory from the model that
            edits.
        tokens: largest number of tokens of an answer.
    """

    def __init__(self, folder: str | os.PathLike[str], device: str = "cpu", tokens: int = 500) -> None:
        self.folder, self.tokens = Path(folder), tokens
        if tokens < 1:
            raise UsageError(f"tokens is {tokens}.", do="give 1 or more")
        try:
            kind = json.loads((self.folder / "config.json").read_text(encoding="utf-8")).get("model_type")
        except (OSError, ValueError, AttributeError) as error:
            raise UsageError(
                f"{self.folder} is no folder of a chat model.",
                looked_at=" ".join(str(error).split()),
                do="give one with config.json: local:FOLDER",
            ) from error
        self.device = devices.get(device)
        self.sees = _sees(kind)
        with weights_errors(self.folder), without_bars():
            self._load()

    def _load(self) -> None:
        """Load the chat model and its tokenizer or processor."""
        import transformers

        dtype, there = self.device.best_dtype(), self.device.torch_device
        auto = transformers.AutoModelForImageTextToText if self.sees else transformers.AutoModelForCausalLM
        reader: Any = transformers.AutoProcessor if self.sees else transformers.AutoTokenizer
        self._reader = reader.from_pretrained(os.fspath(self.folder), local_files_only=True)
        if getattr(self._reader, "chat_template", None) is None:
            raise UsageError(
                f"{self.folder} has no chat template.",
                looked_at="its tokenizer",
                do="give a model that was tuned to chat",
            )
        with devices.use(self.device):
            loaded: Any = auto.from_pretrained(os.fspath(self.folder), dtype=dtype, local_files_only=True)
            self._model: Any = loaded.eval().to(there)

    def describe(self) -> dict[str, Any]:
        """Facts for JSON: its folder, its device, and whether it sees pictures."""
        return {
            "provider": f"local:{self.folder}", "model": self.folder.name, "device": str(self.device),
            "tokens": self.tokens, "sees_picture": self.sees,
        }  # fmt: skip

    def ask(self, picture: Image, text: str) -> str:
        """Generate the model's reply, without sampling."""
        import torch

        if self._model is None:
            raise NotRefined("the model was given back")
        said: list[dict[str, Any]] = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": text}]
        if self.sees:
            small = picture.convert("RGB")
            small.thumbnail((1024, 1024))
            said[0]["content"] = [{"type": "text", "text": SYSTEM}]
            said[1]["content"] = [{"type": "image", "image": small}, {"type": "text", "text": text}]
        try:
            with torch.no_grad(), devices.use(self.device):
                asked = self._reader.apply_chat_template(
                    said, add_generation_prompt=True, tokenize=True, return_dict=True, return_tensors="pt"
                ).to(self.device.torch_device)
                written = self._model.generate(**asked, max_new_tokens=self.tokens, do_sample=False)
                words = written[0, asked["input_ids"].shape[1] :].cpu()
                return str(self._reader.decode(words, skip_special_tokens=True))
        except Exception as error:  # whatever a model of any kind raises, memory that runs out included
            raise NotRefined(
                f"the model failed: {type(error).__name__}: {' '.join(str(error).split())[:300]}"
            ) from error

    def close(self) -> None:
        """Release its memory."""
        self._model = None
        self.device.empty_cache()


def _sees(kind: str | None) -> bool:
    """True if models of a kind take pictures and give text."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES as NAMES

    return kind in NAMES
