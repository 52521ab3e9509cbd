"""Colour jitter as one matrix product over the pixels of an image.

Programs import `FusedColorJitter` from `torch_npu.contrib.module`. Signature and errors are those of
torch_npu/contrib/module/fusedcolorjitter.py of Ascend/pytorch; tests/compat/test_torch_npu_contrib.py holds the values.
"""

from __future__ import annotations

import importlib
import numbers
import random
from math import cos, inf, pi, sin
from typing import Any

import numpy as np
from torch import nn

from ..._error_codes import ErrCode, ops_error
from ._operators import deprecated

__all__ = ["FusedColorJitter"]

# Share of (r, g, b) that is grey, that turns with the cosine of the hue, and that turns with its sine (YIQ).
_GREY = np.array([[0.299] * 3, [0.587] * 3, [0.114] * 3], dtype=np.float32)
_COSINE = np.array([[0.701, -0.299, -0.300], [-0.587, 0.413, -0.588], [-0.114, -0.114, 0.886]], dtype=np.float32)
_SINE = np.array([[0.168, -0.328, 1.250], [0.330, 0.035, -1.050], [-0.497, 0.292, -0.203]], dtype=np.float32)


class _FusedColorJitterApply:
    """Change hue, saturation, contrast and brightness of an image by random amounts.

    Args:
        hue: largest turn.
        saturation: largest change.
        contrast: largest change.
        brightness: largest change.
        is_normalized: whether pixels are in [0, 1] instead of [0, 255].
        force_return_array: give an array also for an image of PIL.
    """

    def __init__(
        self,
        hue: float = 0.0,
        saturation: float = 1.0,
        contrast: float = 0.0,
        brightness: float = 0.0,
        is_normalized: bool = False,
        force_return_array: bool = False,
    ) -> None:
        self.hue = hue
        self.saturation = saturation
        self.contrast = contrast
        self.brightness = brightness
        self.is_normalized = is_normalized
        self.force_return_array = force_return_array
        self.half_range = 0.5 if is_normalized else 127.5

    def hue_saturation_matrix(self, hue: float, saturation: float) -> Any:
        """Matrix of a hue and a saturation."""
        angle = hue * 255.0 * pi / 180.0
        return _GREY + saturation * cos(angle) * _COSINE + saturation * sin(angle) * _SINE

    def get_random_transform_matrix(
        self, hue: float = 0.05, saturation: float = 0.5, contrast: float = 0.5, brightness: float = 0.125
    ) -> tuple[Any, float]:
        """Draw a matrix and an offset."""
        turn = random.uniform(-hue, hue)
        factors = [random.uniform(max(0, 1.0 - each), 1 + each) for each in (saturation, contrast, brightness)]
        matrix = self.hue_saturation_matrix(turn, factors[0]) * factors[2] * factors[1]
        return matrix, (1.0 - factors[1]) * factors[2] * self.half_range

    def apply_image_transform(self, img: Any, transform_matrix: Any, transform_offset: float) -> Any:
        """Apply a matrix and an offset to the pixels [H, W, C] with 1, 3 or 4 channels.

        Raises:
            ValueError: another number of channels.
        """
        channels = img.shape[2]
        if channels not in (1, 3, 4):
            raise ValueError(f"Unknow format using.. Current shape is {img.shape}" + ops_error(ErrCode.VALUE))
        img = img.repeat(3, axis=-1) if channels == 1 else img[:, :, :3]
        return (img.reshape(-1, 3) @ transform_matrix + transform_offset).reshape(img.shape)

    def __call__(self, img: Any) -> Any:
        image_module = importlib.import_module("PIL.Image")  # only who has images needs it
        drawn = self.get_random_transform_matrix(self.hue, self.saturation, self.contrast, self.brightness)
        is_image = isinstance(img, image_module.Image)
        array = np.asarray(img, dtype=np.float32) if is_image else img
        self.raw_type = np.uint8 if is_image else img.dtype
        changed = self.apply_image_transform(array, *drawn)
        changed = changed.clip(0.0, 1.0 if self.is_normalized else 255.0).astype(self.raw_type)
        return image_module.fromarray(changed) if is_image and not self.force_return_array else changed


class FusedColorJitter(nn.Module):
    """Random change of an image's colours. Deprecated in favour of torchvision.transforms.ColorJitter.

    As in torch_npu the amounts reach the transformation in another order: `brightness` changes the hue, `contrast` the
    saturation, `saturation` the contrast and `hue` the brightness.

    Args:
        brightness: largest change, or the range of factors.
        contrast: the same.
        saturation: the same.
        hue: largest turn in [0, 0.5], or the range in [-0.5, 0.5].

    Raises:
        ValueError: an amount is out of its range.
        TypeError: an amount is neither a number nor a pair.
    """

    def __init__(self, brightness: Any = 0, contrast: Any = 0, saturation: Any = 0, hue: Any = 0) -> None:
        super().__init__()
        deprecated("module.FusedColorJitter", "torchvision.transforms.ColorJitter")
        self.brightness = self._check_input(brightness, "brightness")
        self.contrast = self._check_input(contrast, "contrast")
        self.saturation = self._check_input(saturation, "saturation")
        self.hue = self._check_input(hue, "hue", center=0, bound=(-0.5, 0.5), clip_first_on_zero=False)
        self.transformer = _FusedColorJitterApply(brightness, contrast, saturation, hue)

    def _check_input(
        self,
        value: Any,
        name: str,
        center: float = 1,
        bound: tuple[float, float] = (0, inf),
        clip_first_on_zero: bool = True,
    ) -> Any:
        if isinstance(value, numbers.Number):
            amount: Any = value
            if amount < 0:
                text = f"If {name} is a single number, it must be non negative."
                raise ValueError(text + ops_error(ErrCode.VALUE))
            lowest = center - float(amount)
            value = [max(lowest, 0.0) if clip_first_on_zero else lowest, center + float(amount)]
        elif not isinstance(value, (tuple, list)) or len(value) != 2:
            text = f"{name} should be a single number or a list/tuple with length 2."
            raise TypeError(text + ops_error(ErrCode.TYPE))
        elif not bound[0] <= value[0] <= value[1] <= bound[1]:
            raise ValueError(f"{name} values should be between {bound}" + ops_error(ErrCode.VALUE))
        return None if value[0] == value[1] == center else value

    def forward(self, img: Any) -> Any:
        """Change an image of PIL, or an array [H, W, C]."""
        return self.transformer(img)

    def __repr__(self) -> str:
        amounts = (f"{name}={getattr(self, name)}" for name in ("brightness", "contrast", "saturation", "hue"))
        return f"{type(self).__name__}({', '.join(amounts)})"
