"""Interface between the engine and a family of editing models.

Each family is one class in its own file, found by the pipeline's name in model_index.json. A family loads its pipeline,
turns texts into embeddings, and runs the steps. The engine places the pipeline on a device, through `toprope.device`,
draws seeds and writes files, in the same way for all families.

Called by `images.engine` and what it is made of. A method that is added here needs an implementation for all
families, or a default; a new knob belongs into `images.request` first. `noise_multiple` follows torch's generator on
the CPU, the callbacks follow diffusers'. Tests: tests/images/test_images_engine.py,
tests/images/test_images_authors.py.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from toprope.errors import UsageError
from toprope.images import samplers
from toprope.images.families.sizes import least_bytes
from toprope.images.request import EditRequest
from toprope.images.truncation import Reader

if TYPE_CHECKING:
    import torch
    from PIL.Image import Image

__all__ = [
    "Family",
    "Native",
    "OnStep",
    "Prompt",
    "counted_steps",
    "diffusers_callback",
    "noise_multiple",
    "stack_prompts",
]


class OnStep(Protocol):
    """Callback that a family calls after each step of denoising."""

    def __call__(self, number: int, of: int, latents: Any, stage: str = "edit") -> None:
        """Report a step: its number from 1, the number of steps, the latents, the stage. It raises to end the edit."""


@dataclass(frozen=True)
class Native:
    """The sizes of pictures that a loaded model is made for.

    Attributes:
        pixels: number of pixels in its training.
        multiple: divisor of both sides.
        square: True if it was trained on squares only.
        sizes: the widths and heights that it was trained on; empty if it takes any shape.
        max_pixels: largest number of pixels that it can see; None for no limit.
    """

    pixels: int
    multiple: int
    square: bool = False
    sizes: tuple[tuple[int, int], ...] = ()
    max_pixels: int | None = None


@dataclass(frozen=True)
class Prompt:
    """Encoded texts: arguments of the pipeline's call, tensors with the batch as their first dimension."""

    arguments: dict[str, Any]

    def to(self, device: torch.device) -> Prompt:
        """Copy it to a device, with all tensors, also those in lists."""
        return Prompt({name: _moved(value, device) for name, value in self.arguments.items()})


def _moved(value: Any, device: torch.device) -> Any:
    if hasattr(value, "to"):
        return value.to(device)
    return [_moved(each, device) for each in value] if isinstance(value, list) else value


def stack_prompts(prompts: Sequence[Prompt]) -> Prompt:
    """Join the prompts of several edits to one for a batch; all must have the same arguments in the same shapes."""
    import torch

    def stacked(values: Sequence[Any]) -> Any:
        if isinstance(values[0], torch.Tensor):
            return torch.cat(list(values))
        return [stacked(each) for each in zip(*values, strict=True)] if isinstance(values[0], list) else values[0]

    first = prompts[0].arguments
    return Prompt({name: stacked([each.arguments[name] for each in prompts]) for name in first})


class Family(ABC):
    """A family of models that edit pictures. A new one is one file in `families/` with a subclass of this."""

    name: ClassVar[str]
    """Its name on the command line: "ip2p"."""

    pipelines: ClassVar[tuple[str, ...]]
    """Values of "_class_name" in model_index.json that belong to this family."""

    encoders: ClassVar[tuple[str, ...]]
    """Components that are only needed for texts; if memory is short, they are freed after encoding."""

    denoiser: ClassVar[str]
    """The component that does the steps, and that a LoRA changes: "unet" or "transformer"."""

    options: ClassVar[frozenset[str]]
    """Knobs of `request.KNOBS` that it has. The engine refuses requests with other knobs."""

    batches: ClassVar[bool] = True
    """True if several edits of one size can go through the pipeline at once."""

    prompt_sees_picture: ClassVar[bool] = False
    """True if the result of `encode` depends on the picture too, so that it is cached for this picture only."""

    samplers: ClassVar[dict[str, tuple[str, dict[str, Any]]]] = samplers.FLOW
    """The samplers that can replace the model's own, by their names in `EditRequest.sampler`."""

    likes: ClassVar[frozenset[str]] = frozenset()
    """Values of `like`, of `request.LIKES`, that it supports."""

    alternates: ClassVar[tuple[str, ...]] = ()
    """Components that replace the denoiser for some steps. If memory is short, a placement may leave them on the host;
    the family then moves them to the device for their steps, and the denoiser to the host."""

    @abstractmethod
    def defaults(self, pipeline: Any) -> Mapping[str, Any]:
        """A value for every knob in `options`, as the model's authors recommend it."""

    def describe(self, pipeline: Any) -> Mapping[str, Any]:
        """Facts about a loaded model in addition to those of all families, for JSON."""
        return {}

    def folders(self, folder: Path) -> Sequence[Path]:
        """The folders that a model is loaded from: its own, and others outside of it."""
        return (folder,)

    @abstractmethod
    def native(self, pipeline: Any) -> Native:
        """The sizes that the loaded model is made for."""

    def refuse(self, request: EditRequest) -> None:
        """Refuse a request for something that models of this family do not have, before anything is loaded.

        Raises:
            UsageError: a knob, sampler or "like" is unknown to the family.
        """
        for name in request.given():
            if name not in self.options:
                raise UsageError(
                    f"models of the family {self.name} have no {name}.",
                    looked_at=f"{name}={getattr(request, name)!r}; honoured are {', '.join(sorted(self.options))}",
                    do="leave it out",
                )
        offered: dict[str, Iterable[str]] = {"sampler": self.samplers, "like": self.likes}
        for name, among in offered.items():
            value = getattr(request, name)
            if value is not None and value not in among:
                raise UsageError(
                    f"models of the family {self.name} have no {name} {value!r}.",
                    looked_at=f"there are {', '.join(sorted(among))}"
                    if among
                    else f"the family {self.name} has no choice of {name}",
                    do=f"leave it out{', or give one of these' if among else ''}",
                )

    def readers(self, pipeline: Any) -> Sequence[Reader]:
        """The tokenizers of its text encoders with their limits; none if texts are never cut."""
        return ()

    def remarks(self, pipeline: Any, request: EditRequest) -> Sequence[str]:
        """Remarks for the user about a valid request; `request` as for `check`."""
        return ()

    def check(self, pipeline: Any, request: EditRequest) -> None:  # noqa: B027 - most have nothing to add
        """Refuse a request that this model cannot do, before anything is computed.

        Args:
            pipeline: the model's pipeline.
            request: a request with a value for each of `options`.

        Raises:
            UsageError: for instance, refine_strength without the weights for it.
        """

    def worded(self, pipeline: Any, instruction: str, description: str) -> str:
        """Format a refined instruction in the form that the model was trained with.

        Args:
            pipeline: the model's pipeline.
            instruction: the refined instruction.
            description: description of the result; may be "".
        """
        return instruction

    def least_bytes(self, folder: Path, dtype: torch.dtype) -> int:
        """Smallest number of bytes for the weights in a model's folder in a dtype, from the headers of their files."""
        return least_bytes(folder, dtype)

    @abstractmethod
    def load(self, folder: Path, dtype: torch.dtype, components: Mapping[str, Any] | None = None) -> Any:
        """Load the pipeline to the host, in evaluation mode, from local files only.

        Args:
            folder: a folder with model_index.json.
            dtype: dtype of the weights.
            components: parts that exist already; the value None leaves a part out.

        Raises:
            WeightsError: files are missing or cannot be read.
            EnvironmentProblem: a package that the pipeline needs is not installed.
        """

    @abstractmethod
    def encode(
        self, pipeline: Any, instruction: str, negative: str, pictures: Sequence[Image], like: str | None = None
    ) -> Prompt:
        """Encode the texts of one edit on `pipeline._execution_device`.

        Args:
            pipeline: the pipeline, with its encoders ready to run.
            instruction: the instruction.
            negative: description of what to avoid; may be "".
            pictures: the input picture; only families with `prompt_sees_picture` use it.
            like: the request's `like`; only families with `likes` use it.
        """

    @abstractmethod
    def run(
        self,
        pipeline: Any,
        pictures: Sequence[Image],
        request: EditRequest,
        prompt: Prompt,
        generators: Sequence[torch.Generator],
        on_step: OnStep,
    ) -> torch.Tensor:
        """Edit pictures; return one tensor of floats from 0 to 1: (pictures, 3, height, width).

        It must keep numbers that are not finite, as the engine checks for them.

        Args:
            pipeline: the pipeline on its device.
            pictures: RGB pictures of one size that suits `native`, one for each result.
            request: the first request; knobs are the same for all, and have a value for each of `options`.
            prompt: the encoded texts of all of them.
            generators: one random generator for each picture.
            on_step: called after each step.
        """


def diffusers_callback(on_step: OnStep) -> dict[str, Any]:
    """Arguments with which a pipeline of diffusers calls `on_step`."""

    def call(pipeline: Any, step: int, timestep: Any, values: dict[str, Any]) -> dict[str, Any]:
        on_step(step + 1, int(pipeline.num_timesteps), values["latents"])
        return values

    return {"callback_on_step_end": call, "callback_on_step_end_tensor_inputs": ["latents"]}


def noise_multiple(multiple: int, factor: int, channels: int) -> int:
    """Find a divisor of a picture's sides with which its noise is the same in every dtype, by doubling the given one.

    On the CPU, torch draws the same numbers in float32, float16 and bfloat16 if their count is a multiple of 16; else
    it draws the last 16 of them differently for each dtype. Real models have enough channels for this to hold always.

    Args:
        multiple: the divisor that the model needs.
        factor: number of pixels for one latent, in each direction.
        channels: number of channels of the latents.
    """
    while channels * (multiple // factor) ** 2 % 16:
        multiple *= 2
    return multiple


@contextmanager
def counted_steps(pipeline: Any, on_step: OnStep) -> Iterator[None]:
    """Context in which `on_step` is called for every step of a pipeline's scheduler; for pipelines without callback."""
    scheduler = pipeline.scheduler
    step, number = scheduler.step, 0

    @wraps(step)  # pipelines inspect its signature
    def counted(*args: Any, **kwargs: Any) -> Any:
        nonlocal number
        result = step(*args, **kwargs)
        number += 1
        on_step(number, len(scheduler.timesteps), result[0])
        return result

    scheduler.step = counted
    try:
        yield
    finally:
        del scheduler.step
