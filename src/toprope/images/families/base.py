"""What a family of editing models is to the engine: one class a file, found by the pipeline's name in model_index.json.

A family loads its pipeline, turns texts into embeddings, and runs the steps. It places nothing on a device, draws no
seed and writes no file: the engine does, through `toprope.device`, for all families the same.
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
    """What a family calls after each step of denoising."""

    def __call__(self, number: int, of: int, latents: Any, stage: str = "edit") -> None:
        """Take a step's number from 1, how many there are, the latents, and the stage. It raises to end the edit."""


@dataclass(frozen=True)
class Native:
    """The sizes that a loaded model is made for.

    Attributes:
        pixels: how many it was trained to see.
        multiple: what both sides must be divisible by.
        square: whether it was trained on squares alone.
        sizes: the widths and heights that it was trained on; empty where it takes any shape.
        max_pixels: more than this it cannot see; None where it has no limit of its own.
    """

    pixels: int
    multiple: int
    square: bool = False
    sizes: tuple[tuple[int, int], ...] = ()
    max_pixels: int | None = None


@dataclass(frozen=True)
class Prompt:
    """Texts as a pipeline takes them: arguments of its call, tensors with the batch as their first dimension."""

    arguments: dict[str, Any]

    def to(self, device: torch.device) -> Prompt:
        """The same with its tensors, also those in lists, on a device."""
        return Prompt({name: _moved(value, device) for name, value in self.arguments.items()})


def _moved(value: Any, device: torch.device) -> Any:
    if hasattr(value, "to"):
        return value.to(device)
    return [_moved(each, device) for each in value] if isinstance(value, list) else value


def stack_prompts(prompts: Sequence[Prompt]) -> Prompt:
    """Prompts of several edits as that of one batch; each must have the same arguments in the same shapes."""
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
    """As the command line has it: "ip2p"."""

    pipelines: ClassVar[tuple[str, ...]]
    """Values of "_class_name" in model_index.json that are of this family."""

    encoders: ClassVar[tuple[str, ...]]
    """Components that are only needed for texts: they are freed after encoding where memory is short."""

    denoiser: ClassVar[str]
    """The component that does the steps, and that a LoRA changes: "unet" or "transformer"."""

    options: ClassVar[frozenset[str]]
    """Knobs, of `request.KNOBS`, that it honours. The engine refuses the others where they are given."""

    batches: ClassVar[bool] = True
    """Whether several edits of one size can go through the pipeline at once."""

    prompt_sees_picture: ClassVar[bool] = False
    """Whether what `encode` gives depends on the picture too, so that it is kept for this text and picture alone."""

    samplers: ClassVar[dict[str, tuple[str, dict[str, Any]]]] = samplers.FLOW
    """The samplers that can take the place of the model's own, by the name that `EditRequest.sampler` has."""

    likes: ClassVar[frozenset[str]] = frozenset()
    """Values of `like` that it honours, of `request.LIKES`."""

    alternates: ClassVar[tuple[str, ...]] = ()
    """Components that take the denoiser's place for some steps. A placement that is short of memory may leave them on
    the host: the family brings them when it is their turn, and takes the denoiser back to the host meanwhile."""

    @abstractmethod
    def defaults(self, pipeline: Any) -> Mapping[str, Any]:
        """A value for every knob in `options`, as the model's authors recommend it."""

    def describe(self, pipeline: Any) -> Mapping[str, Any]:
        """What there is to say about a loaded model beside what all families say, ready for JSON."""
        return {}

    def folders(self, folder: Path) -> Sequence[Path]:
        """The folders that the model in `folder` is loaded from: it, and others that lie outside of it."""
        return (folder,)

    @abstractmethod
    def native(self, pipeline: Any) -> Native:
        """The sizes that the loaded model is made for."""

    def refuse(self, request: EditRequest) -> None:
        """Refuse what models of this family have not, before anything is loaded.

        Raises:
            UsageError: the first knob, sampler or "like" that is none of its.
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
                    looked_at=f"there are {', '.join(sorted(among)) or 'none'}",
                    do=f"leave it out{', or give one of these' if among else ''}",
                )

    def readers(self, pipeline: Any) -> Sequence[Reader]:
        """The tokenizers of its text encoders with what each reads at most; none where texts are never cut."""
        return ()

    def remarks(self, pipeline: Any, request: EditRequest) -> Sequence[str]:
        """Sentences that the user should read about a request that can be done; `request` as for `check`."""
        return ()

    def check(self, pipeline: Any, request: EditRequest) -> None:  # noqa: B027 - most have nothing to add
        """Refuse what this model cannot do, before anything is computed. `request` has no None among `options`.

        Raises:
            UsageError: such as refine_strength without the weights for it.
        """

    def worded(self, pipeline: Any, instruction: str, description: str) -> str:
        """An instruction that a refiner reworded, in the form that the model was trained with.

        Args:
            pipeline: of the model.
            instruction: what to do.
            description: what the picture shall show afterwards; may be "".
        """
        return instruction

    def least_bytes(self, folder: Path, dtype: torch.dtype) -> int:
        """Bytes that the weights in a model's folder take at least in a dtype, from the headers of their files."""
        return least_bytes(folder, dtype)

    @abstractmethod
    def load(self, folder: Path, dtype: torch.dtype, components: Mapping[str, Any] | None = None) -> Any:
        """The pipeline on the host, in evaluation mode, from local files alone.

        Args:
            folder: has model_index.json.
            dtype: of the weights.
            components: parts that are there already, or None for one that shall be left out.

        Raises:
            WeightsError: files are missing or cannot be read.
            EnvironmentProblem: a package that the pipeline needs is not installed.
        """

    @abstractmethod
    def encode(
        self, pipeline: Any, instruction: str, negative: str, pictures: Sequence[Image], like: str | None = None
    ) -> Prompt:
        """Texts as the pipeline takes them, for one edit, on `pipeline._execution_device`.

        Args:
            pipeline: its encoders are ready to run.
            instruction: what to do.
            negative: "" where nothing is to be avoided.
            pictures: the input, one; only families with `prompt_sees_picture` look at it.
            like: of the request; only families with `likes` look at it.
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
        """The edited pictures as one tensor of floats from 0 to 1: (pictures, 3, height, width).

        It must not hide numbers that are not finite: the engine looks for them.

        Args:
            pipeline: on its device.
            pictures: RGB, all of one size that suits `native`; one for each picture wanted.
            request: of the first; knobs are the same for all, none of those in `options` is None.
            prompt: for all of them.
            generators: one for each picture.
            on_step: to be called after each step.
        """


def diffusers_callback(on_step: OnStep) -> dict[str, Any]:
    """The arguments of a pipeline of diffusers that have it call `on_step`."""

    def call(pipeline: Any, step: int, timestep: Any, values: dict[str, Any]) -> dict[str, Any]:
        on_step(step + 1, int(pipeline.num_timesteps), values["latents"])
        return values

    return {"callback_on_step_end": call, "callback_on_step_end_tensor_inputs": ["latents"]}


def noise_multiple(multiple: int, factor: int, channels: int) -> int:
    """The multiple for a picture's sides with which its noise is the same in every dtype: the given one, or twice, ...

    On the CPU, torch draws the same numbers in float32, float16 and bfloat16 where their count is a multiple of 16, and
    else draws the last 16 of them in another way for each. Real models have so many channels that it always is.

    Args:
        multiple: what the model needs.
        factor: pixels for one latent, in each direction.
        channels: of the latents.
    """
    while channels * (multiple // factor) ** 2 % 16:
        multiple *= 2
    return multiple


@contextmanager
def counted_steps(pipeline: Any, on_step: OnStep) -> Iterator[None]:
    """A context in which every step of a pipeline's scheduler is told: for pipelines that take no callback."""
    scheduler = pipeline.scheduler
    step, number = scheduler.step, 0

    @wraps(step)  # pipelines look at its arguments
    def told(*args: Any, **kwargs: Any) -> Any:
        nonlocal number
        result = step(*args, **kwargs)
        number += 1
        on_step(number, len(scheduler.timesteps), result[0])
        return result

    scheduler.step = told
    try:
        yield
    finally:
        del scheduler.step
