"""Samplers: schedulers of diffusers that can take the place of the one that a model was saved with, for one edit.

A sampler keeps the noise schedule of the model's own configuration; it decides how a step goes from one noise level to
the next. Distilled LoRAs (LCM, Lightning) need another one than the model's.

`images.engine` wraps each edit in `used`. The names are `request.SAMPLERS`, which users know; the classes and options
are diffusers'. One more needs a row in the table below. Families name those that they take. Tests:
tests/images/test_images_samplers.py.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

__all__ = ["DIFFUSION", "FLOW", "used"]

DIFFUSION: dict[str, tuple[str, dict[str, Any]]] = {
    "euler": ("EulerDiscreteScheduler", {}),
    "euler-a": ("EulerAncestralDiscreteScheduler", {}),
    "ddim": ("DDIMScheduler", {}),
    "dpm++": ("DPMSolverMultistepScheduler", {"algorithm_type": "dpmsolver++"}),
    "lcm": ("LCMScheduler", {}),
    "unipc": ("UniPCMultistepScheduler", {}),
}
"""Of models that predict noise: the class in diffusers, and options over the model's own."""

FLOW: dict[str, tuple[str, dict[str, Any]]] = {
    "euler": ("FlowMatchEulerDiscreteScheduler", {}),
    "lcm": ("FlowMatchLCMScheduler", {}),
    "unipc": ("UniPCMultistepScheduler", {"prediction_type": "flow_prediction", "use_flow_sigmas": True}),
}
"""Of models of flow matching. Heun and DPM++ of diffusers do not take the noise levels that these pipelines give."""


@contextmanager
def used(pipeline: Any, name: str | None, among: dict[str, tuple[str, dict[str, Any]]]) -> Iterator[None]:
    """A context in which a pipeline has another sampler; its own is back afterwards.

    Args:
        pipeline: of diffusers.
        name: of the sampler; None for the pipeline's own.
        among: `DIFFUSION` or `FLOW`.
    """
    if name is None:
        yield
        return
    import diffusers

    kind, options = among[name]
    own = pipeline.scheduler
    log = logging.getLogger("diffusers.configuration_utils")
    level = log.level
    log.setLevel(logging.ERROR)  # options of one scheduler that another does not have
    try:
        pipeline.scheduler = getattr(diffusers, kind).from_config(own.config, **options)
    finally:
        log.setLevel(level)
    try:
        yield
    finally:
        pipeline.scheduler = own
