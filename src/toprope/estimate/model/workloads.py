"""Recording of a forward pass, a prefill, a step of decoding or a training step of a model on the meta device.

Called by estimate.py and cli/estimate.py; record/recorder.py sees the operators. How models are called (names of
inputs, caches, gradient checkpointing) is fixed by transformers and diffusers; a class of diffusers whose inputs are
known is a branch of `_of_diffusers` and a name in `SIZED`. Tests: tests/estimate/test_paper.py,
tests/estimate/test_models_on_paper.py (published memory).
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import torch

from toprope.chips import Chip
from toprope.errors import UsageError
from toprope.estimate.model.configs import Component, dtype_of, quiet
from toprope.estimate.record.calls import OperatorCall, TensorShape
from toprope.estimate.record.ledger import Ledger
from toprope.estimate.record.meta_kernels import kernels_of_torch_npu
from toprope.estimate.record.recorder import Event, Experts, Recorder, tensors_in

__all__ = ["MODES", "OPTIMIZERS", "SIZED", "Recording", "Stage", "Work", "has_fused_attention", "record", "tokens_of"]

Mode = Literal["forward", "prefill", "decode", "train"]
MODES: tuple[Mode, ...] = ("forward", "prefill", "decode", "train")
SIZED = ("UNet2DConditionModel", "FluxTransformer2DModel", "AutoencoderKL")
"""Classes of diffusers whose inputs are known here, by the size of a picture."""
OPTIMIZERS = ("adamw", "adamw-fused", "sgd")


@dataclass(frozen=True)
class Work:
    """Description of a step.

    Attributes:
        mode: "forward" without gradients; "prefill" of `length` tokens; "decode" of one token with `length` tokens in
            the cache; "train": forward, backward and the optimizer's step; "" for a prefill of a language model, and a
            forward pass of others.
        batch: sequences or pictures of one card, in one micro-batch.
        length: tokens.
        height, width: of a picture, in pixels.
        dtype: of weights and activations.
        checkpointing: whether layers are computed again in the backward pass, in place of keeping what they made.
        optimizer: one of OPTIMIZERS.
        master: whether the optimizer keeps weights, and the gradients are summed, in float32 (mixed precision).
        graph: whether a graph replays the operators: the cache has a fixed size, and experts are one kernel.
        experts: "loop" or "grouped"; "" for what `graph` has.
        inputs: shapes and dtypes by argument, for models whose inputs are not known here.
        shard: cards that keep parts of optimizer states (zero 1), gradients (2) and weights (3).
        expert_shard: the same for weights of experts, of which each card has its own already.
        zero: which of these are divided.
        accumulate: whether gradients of earlier micro-batches are there already.
        copies: whether other cards have copies of the model, whose gradients are summed in buckets.
    """

    mode: Mode | Literal[""] = ""
    batch: int = 1
    length: int = 2048
    height: int = 1024
    width: int = 1024
    dtype: str = "bfloat16"
    checkpointing: bool = False
    optimizer: str = "adamw"
    master: bool = False
    graph: bool = False
    experts: Experts | Literal[""] = ""
    inputs: Mapping[str, tuple[tuple[int, ...], str]] = field(default_factory=dict)
    shard: int = 1
    expert_shard: int = 1
    zero: int = 0
    accumulate: bool = False
    copies: bool = False


@dataclass
class Recording:
    """Operators and memory of a step.

    Attributes:
        events: what the host did.
        memory: blocks of memory.
        kept: bytes of activations between forward and backward.
        weights, gradients: bytes before ZeRO divides them, of experts and of all others.
        notes: what was assumed.
    """

    events: list[Event]
    memory: Ledger
    kept: int = 0
    weights: tuple[int, int] = (0, 0)
    gradients: tuple[int, int] = (0, 0)
    notes: list[str] = field(default_factory=list)


@dataclass
class Stage:
    """The part of a model that one card runs.

    Attributes:
        module: what is called.
        parameters: those that the card has.
        experts: ids of those that belong to experts.
        from_ids: whether it begins with tokens; else with activations of another card.
        to_loss: whether it ends with the loss or the next token; else with activations for another card.
    """

    module: torch.nn.Module
    parameters: list[torch.nn.Parameter]
    experts: frozenset[int] = frozenset()
    from_ids: bool = True
    to_loss: bool = True


def record(component: Component, work: Work, chip: Chip, stage: Stage | None = None) -> Recording:
    """Run a model, or a stage of it, on the meta device.

    Args:
        component: the model.
        work: what it does.
        chip: whose kernels it calls.
        stage: the part of it that a card has; the whole by default.

    Raises:
        UsageError: the model cannot do this, or its inputs are not known.
    """
    whole = Stage(component.module, list(component.module.parameters()))
    part = stage or whole
    experts: Experts = work.experts or ("grouped" if work.graph else "loop")
    cache = (chip.l2_mib or 0) * 2**20
    recorder = Recorder(fused=has_fused_attention(chip), experts=experts, cache=cache)
    run = _Run(component, work, part, recorder)
    with quiet(), kernels_of_torch_npu(recorder.note):
        try:
            run.train() if work.mode == "train" else run.infer()
        except UsageError:
            raise
        except Exception as error:  # of code that is not ours
            raise UsageError(
                f"{component.name} cannot do this on paper: {_first_line(error)}",
                looked_at=f"{type(part.module).__name__}, inputs {run.described or 'none'}",
                do="check --input, --batch, --length and --size; an operator without shape rules cannot be estimated",
            ) from error
    item = dtype_of(work.dtype).itemsize
    counts = _counts(part.parameters, part.experts)
    wide = 4 if work.master else item
    return Recording(
        recorder.events,
        recorder.memory,
        run.kept,
        (counts[0] * item, counts[1] * item),
        (counts[0] * wide, counts[1] * wide),
        run.notes,
    )


def tokens_of(work: Work) -> int:
    """Tokens of a step on one card: those of the first input of two dimensions or more, where inputs are given."""
    for shape, _ in work.inputs.values():
        if len(shape) > 1:
            return shape[0] * shape[1]
    return work.batch * (1 if work.mode == "decode" else work.length)


def has_fused_attention(chip: Chip) -> bool:
    """Return True if the chip has the kernel of fused attention: 910B and newer."""
    return chip.core_structure != "unified"


def _counts(parameters: Iterable[torch.Tensor], experts: frozenset[int]) -> tuple[int, int]:
    """Numbers of elements, of experts and of all others."""
    counts = [0, 0]
    for each in parameters:
        counts[id(each) not in experts] += each.numel()
    return counts[0], counts[1]


def _parts(parameters: Iterable[torch.Tensor], stage: Stage, work: Work) -> list[int]:
    """Elements of which one card keeps a part: of experts, and of all others."""
    experts, others = _counts(parameters, stage.experts)
    return [size for size in (-(-experts // work.expert_shard), -(-others // work.shard)) if size]


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


class _Run:
    def __init__(self, component: Component, work: Work, stage: Stage, recorder: Recorder) -> None:
        self.component, self.work, self.stage, self.recorder = component, work, stage, recorder
        self.dtype = dtype_of(work.dtype)
        self.kept = 0
        self.notes: list[str] = []
        self.described = ""

    def infer(self) -> None:
        recorder, module = self.recorder, self.stage.module
        module.eval()
        self._hold_weights()
        with torch.no_grad():
            arguments = self._arguments()
            cache = self._filled_cache() if self.work.mode == "decode" else None
            if self.work.mode == "prefill":
                arguments["use_cache"] = True
            if cache is not None:
                arguments["past_key_values"], arguments["use_cache"] = cache, True
            recorder.hold(tensors_in(arguments), "inputs")
            if cache is not None:
                recorder.hold(tensors_in(cache), "KV cache")
            with recorder:
                result = self._call()(**arguments)
            if self.work.mode in ("prefill", "decode"):
                recorder.hold(tensors_in(getattr(result, "past_key_values", None)), "KV cache")

    def train(self) -> None:
        recorder, module, work = self.recorder, self.stage.module, self.work
        if self.component.quantised is not None:
            raise UsageError(
                f"the weights of {self.component.name} are quantised, and such weights are not trained.",
                looked_at=f"quantization_config: {self.component.quantised.text}",
                do="use --mode prefill, or take the configuration of the model before it was quantised",
            )
        module.train()
        self._checkpoint()
        optimizer = _Optimizer(self.stage, work, recorder)
        self._hold_weights()
        optimizer.hold()
        arguments = self._arguments()
        recorder.hold(tensors_in(arguments), "inputs")
        with recorder:
            loss = self._loss(self._call()(**arguments))
            self.kept = recorder.memory.alive(["activations"])
            recorder.phase = "backward"
            torch.autograd.backward([loss])
            del loss
            optimizer.release_graph()
            recorder.phase = "optimizer"
            optimizer.step()

    def _hold_weights(self) -> None:
        module, recorder, work = self.stage.module, self.recorder, self.work
        recorder.hold((each for each in module.buffers()), "buffers")
        if work.mode == "train" and work.zero == 3:
            for size in _parts(self.stage.parameters, self.stage, work):
                recorder.memory.allocate(size * self.dtype.itemsize, "weights", "part of this card")
            recorder.memory.allocate(2 * _largest_layer(module), "weights of two layers, gathered")
            return
        if self.component.quantised is not None:
            recorder.store(self.component.quantised_weights(), self.component.quantised)
        recorder.hold(self.stage.parameters, "weights")

    def _checkpoint(self) -> None:
        module: Any = self.stage.module
        if not self.work.checkpointing:
            return
        options: dict[str, Any] = {"use_reentrant": False, "preserve_rng_state": False}
        for name in ("activation_checkpointing_enable", "gradient_checkpointing_enable"):
            if hasattr(module, name):
                getattr(module, name)(options)
                return
        if hasattr(module, "enable_gradient_checkpointing"):
            from torch.utils.checkpoint import checkpoint

            def again(function: Any, *inputs: Any) -> Any:
                return checkpoint(function, *inputs, **options)

            module.enable_gradient_checkpointing(again)
            return
        raise UsageError(
            f"{type(module).__name__} has no gradient_checkpointing_enable().",
            do="leave --checkpointing out, or give the class that method as transformers has it",
        )

    def _call(self) -> Callable[..., Any]:
        module: Any = self.stage.module
        if type(module).__name__.startswith("Autoencoder") and hasattr(module, "decode"):
            self.notes.append("of the autoencoder the decoder alone runs")
            module = module.decode
        call: Callable[..., Any] = module
        return call

    def _loss(self, result: Any) -> torch.Tensor:
        loss = getattr(result, "loss", None)
        if isinstance(loss, torch.Tensor):
            return loss
        first = next(tensors_in(result), None)
        if first is None:
            raise UsageError(
                f"{type(self.stage.module).__name__} gives no tensor, so there is nothing to train.",
                do="let forward() return a tensor, or an object with the attribute `loss`",
            )
        if not self.stage.to_loss:
            return first.sum()  # its gradient comes from the next card
        self.notes.append("the loss is the mean of the squares of the first result")
        return first.float().pow(2).mean()

    # ---- inputs

    def _arguments(self) -> dict[str, Any]:
        work = self.work
        if work.inputs:
            found = {
                name: torch.empty(shape, dtype=getattr(torch, dtype), device="meta")
                for name, (shape, dtype) in work.inputs.items()
            }
        elif self.component.library == "transformers":
            found = self._of_transformers()
        elif self.component.library == "diffusers":
            found = self._of_diffusers()
        else:
            raise UsageError(
                f"the inputs of {self.component.name} are not known.",
                do="give each with --input: name=1,3,224,224:float32, or 1,3,224,224:float32 for the first one",
            )
        self.described = ", ".join(
            f"{name} {list(each.shape)}" for name, each in found.items() if torch.is_tensor(each)
        )
        return self._named(found)

    def _named(self, found: dict[str, Any]) -> dict[str, Any]:
        """Inputs without a name become the first arguments of forward()."""
        if not any(name.isdigit() for name in found):
            return found
        names = [name for name in inspect.signature(self.stage.module.forward).parameters if name != "self"]
        unnamed = [name for name in found if name.isdigit()]
        if len(unnamed) > len(names):
            raise UsageError(
                f"forward() takes {', '.join(names) or 'nothing'}, and {len(unnamed)} inputs are given.",
                do="leave some out, or name each: --input NAME=1,3,224,224:float32",
            )
        places = dict(zip(unnamed, names, strict=False))
        return {places.get(name, name): value for name, value in found.items()}

    def _empty(self, *shape: int, dtype: torch.dtype | None = None) -> torch.Tensor:
        return torch.empty(shape, dtype=dtype or self.dtype, device="meta")

    def _of_transformers(self) -> dict[str, Any]:
        work, module, config = self.work, self.stage.module, self.component.config
        taken = inspect.signature(module.forward).parameters
        if getattr(module, "main_input_name", "input_ids") == "pixel_values":
            size = getattr(config, "image_size", None) or 224
            side = size if isinstance(size, (list, tuple)) else (size, size)
            return {"pixel_values": self._empty(work.batch, getattr(config, "num_channels", 3), *side)}
        tokens = 1 if work.mode == "decode" else work.length
        most = getattr(config.get_text_config(), "max_position_embeddings", None)
        if not self.component.is_language_model and most and tokens > most:
            tokens = most
            self.notes.append(f"{most} tokens, the most that it takes")
        elif most:
            self._check_positions(most)
        found: dict[str, Any] = {}
        if self.stage.from_ids:
            found["input_ids"] = self._empty(work.batch, tokens, dtype=torch.int64)
        else:
            hidden = config.get_text_config().hidden_size
            found["inputs_embeds"] = self._empty(work.batch, tokens, hidden)
            if work.mode == "train":
                found["inputs_embeds"].requires_grad_(True)
        if work.mode == "train":
            if "use_cache" in taken or self.component.is_language_model:
                found["use_cache"] = False
            if "labels" in taken and self.stage.to_loss:
                found["labels"] = self._empty(work.batch, tokens, dtype=torch.int64)
        elif "logits_to_keep" in taken and work.mode != "forward":
            found["logits_to_keep"] = 1
        return found

    def _check_positions(self, most: int) -> None:
        """Compare the tokens with the positions that a language model has.

        Raises:
            UsageError: positions are rows of a table, and it has fewer.
        """
        work = self.work
        tokens = work.length + (work.mode == "decode")
        if tokens <= most:
            return
        table = next(
            (
                name
                for name, part in self.stage.module.named_modules()
                if isinstance(part, torch.nn.Embedding) and most <= part.num_embeddings <= most + 8
                and re.search(r"pos|wpe", name.rpartition(".")[2])
            ),
            None,
        )  # fmt: skip
        fact = f"{tokens:,} tokens are more than the {most:,} positions of the model (max_position_embeddings)"
        if table is not None:
            raise UsageError(f"{fact}.", looked_at=f"the table {table}", do=f"use --length {most - 1} or less")
        self.notes.append(f"{fact}: it was not made for so long a text")

    def _of_diffusers(self) -> dict[str, Any]:
        module: Any = self.stage.module
        work, config, kind = self.work, dict(module.config), type(module).__name__
        batch, scale = work.batch, 8
        if work.height % 16 or work.width % 16:
            raise UsageError(
                f"these models take no picture of {work.width}x{work.height} pixels.", do="use multiples of 16"
            )
        if kind == "UNet2DConditionModel":
            rows, columns = work.height // scale, work.width // scale
            found: dict[str, Any] = {
                "sample": self._empty(batch, config["in_channels"], rows, columns),
                "timestep": self._empty(1),
                "encoder_hidden_states": self._empty(batch, 77, config["cross_attention_dim"]),
            }
            if config.get("addition_embed_type") == "text_time":
                text = config["projection_class_embeddings_input_dim"] - 6 * config["addition_time_embed_dim"]
                found["added_cond_kwargs"] = {
                    "text_embeds": self._empty(batch, text),
                    "time_ids": self._empty(batch, 6),
                }
            return found
        if kind == "FluxTransformer2DModel":
            tokens, words = (work.height // 16) * (work.width // 16), 512
            found = {
                "hidden_states": self._empty(batch, tokens, config["in_channels"]),
                "encoder_hidden_states": self._empty(batch, words, config["joint_attention_dim"]),
                "pooled_projections": self._empty(batch, config["pooled_projection_dim"]),
                "timestep": self._empty(batch),
                "img_ids": self._empty(tokens, 3),
                "txt_ids": self._empty(words, 3),
            }
            if config.get("guidance_embeds"):
                found["guidance"] = self._empty(batch, dtype=torch.float32)
            return found
        if kind == "AutoencoderKL":
            scale = 2 ** (len(config["block_out_channels"]) - 1)
            return {"z": self._empty(batch, config["latent_channels"], work.height // scale, work.width // scale)}
        raise UsageError(
            f"the inputs of {kind} are not known here.",
            looked_at=f"known are {', '.join(SIZED)}",
            do="give each with --input: name=1,4096,64:bfloat16",
        )

    # ---- the cache of keys and values

    def _filled_cache(self) -> Any:
        """A cache with `length` tokens, made by a prefill that is not recorded."""
        work, module = self.work, self.stage.module
        if not self.component.is_language_model:
            raise UsageError(f"{self.component.name} does not generate tokens.", do="use --mode forward")
        ids = self._empty(work.batch, work.length, dtype=torch.int64)
        inputs = {"input_ids": ids}
        if not self.stage.from_ids:
            hidden = self.component.config.get_text_config().hidden_size
            inputs = {"inputs_embeds": self._empty(work.batch, work.length, hidden)}
        with Recorder():  # for its kernels
            cache = module(**inputs, use_cache=True).past_key_values
        if work.graph:
            for layer in getattr(cache, "layers", ()):
                _use_static_cache(layer)
        return cache


def _use_static_cache(layer: Any) -> None:
    """Make a layer's cache one of a fixed size, into which the new token is written, as engines have it."""
    keys, values = getattr(layer, "keys", None), getattr(layer, "values", None)
    if keys is None or values is None:
        return
    length = keys.shape[-2]
    layer.keys, layer.values = (
        torch.empty((*each.shape[:-2], length + 1, each.shape[-1]), dtype=each.dtype, device="meta")
        for each in (keys, values)
    )

    def update(new_keys: torch.Tensor, new_values: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        layer.keys[..., -1:, :].copy_(new_keys)
        layer.values[..., -1:, :].copy_(new_values)
        return layer.keys, layer.values

    layer.update = update
    layer.get_seq_length = lambda *args, **kwargs: length


def _largest_layer(module: torch.nn.Module) -> int:
    """Bytes of the largest element of a list of layers; of all where there is none."""
    layers = [
        sum(each.numel() * each.element_size() for each in layer.parameters())
        for part in module.modules()
        if isinstance(part, torch.nn.ModuleList) and len(part) > 1
        for layer in part
    ]
    return max(layers, default=sum(each.numel() * each.element_size() for each in module.parameters()) // 2)


class _Optimizer:
    """Gradients and the optimizer's states of one card, and its step.

    With `master` each gradient is added to one in float32 as soon as it is there. With ZeRO the optimizer sees one flat
    part of the weights; from 2 on, gradients are kept as such a part.
    """

    def __init__(self, stage: Stage, work: Work, recorder: Recorder) -> None:
        self._work, self._recorder = work, recorder
        self._parameters = [each for each in stage.parameters if each.requires_grad]
        if not self._parameters:
            raise UsageError(
                f"{type(stage.module).__name__} has no parameters that are trained.", do="use --mode forward"
            )
        self._sizes = _parts(self._parameters, stage, work)
        self._sums: dict[int, torch.Tensor] = {}
        dtype = torch.float32 if work.master else dtype_of(work.dtype)
        if work.zero:
            self._optimized: list[torch.Tensor] = [
                torch.empty(each, dtype=dtype, device="meta") for each in self._sizes
            ]
        elif work.master:
            self._optimized = [torch.empty_like(each, dtype=torch.float32) for each in self._parameters]
        else:
            self._optimized = list(self._parameters)
        self._own = bool(work.zero or work.master)
        self._optimizer = self._make()
        self._states: list[torch.Tensor] = []
        if self._optimizer is None:
            self._states = [torch.empty_like(each) for each in self._optimized for _ in range(2)]
            return
        for each in self._optimized:
            each.grad = torch.empty_like(each)
        self._optimizer.step()  # the first one makes the states
        self._states = list(tensors_in(list(self._optimizer.state.values())))
        for each in self._optimized:
            each.grad = None

    def _make(self) -> torch.optim.Optimizer | None:
        """Return torch's optimizer; None for the fused one, which torch refuses on the meta device."""
        work, shown = self._work, [each.detach().requires_grad_() if self._own else each for each in self._optimized]
        self._optimized = shown
        if work.optimizer not in OPTIMIZERS:
            raise UsageError(f"there is no optimizer {work.optimizer!r}.", do=f"one of {', '.join(OPTIMIZERS)}")
        if work.optimizer == "sgd":
            return torch.optim.SGD(shown, lr=1e-3, momentum=0.9, foreach=True)
        return torch.optim.AdamW(shown, foreach=True) if work.optimizer == "adamw" else None

    def hold(self) -> None:
        """Count what lives as long as the training."""
        work, recorder = self._work, self._recorder
        recorder.hold(self._states, "optimizer states")
        if work.master:
            recorder.hold(self._optimized, "weights in float32")
        item = 4 if work.master else dtype_of(work.dtype).itemsize
        size = sum(each.numel() for each in self._parameters) * item
        if work.zero >= 2:
            recorder.memory.allocate(sum(self._sizes) * item, "gradients", "part of this card")
        elif work.master:
            self._sums = {id(each): torch.empty_like(each, dtype=torch.float32) for each in self._parameters}
            recorder.hold(self._sums.values(), "gradients")
        elif work.accumulate:
            for each in self._parameters:
                each.grad = torch.empty_like(each)
            recorder.hold((each.grad for each in self._parameters if each.grad is not None), "gradients")
        if work.copies and not work.master and not work.zero:
            recorder.memory.allocate(size, "gradients in buckets of DDP")
        self._hooks = [
            each.register_post_accumulate_grad_hook(self._ready)  # type: ignore[no-untyped-call]
            for each in self._parameters
        ]

    def _ready(self, parameter: torch.Tensor) -> None:
        gradient = parameter.grad
        if gradient is None:
            return
        if self._work.zero >= 2:
            parameter.grad = None
        elif self._work.master:
            self._sums[id(parameter)].add_(gradient)
            parameter.grad = None
        else:
            self._recorder.hold([gradient], "gradients")

    def release_graph(self) -> None:
        """Stop watching gradients."""
        for each in self._hooks:
            each.remove()

    def step(self) -> None:
        """The optimizer's step on what this card keeps."""
        if self._own:
            sums = [] if self._work.zero else list(self._sums.values())
            for place, each in enumerate(self._optimized):
                each.grad = sums[place] if sums else _uncounted_gradient(each)
        if self._optimizer is None:
            dtype = "float32" if self._work.master else self._work.dtype
            shapes = [tuple(each.shape) for each in self._optimized]
            written = [TensorShape(dtype, shape, "written") for shape in (*shapes, *shapes, *shapes)]
            gradients = [TensorShape(dtype, shape) for shape in shapes]
            self._recorder.emit(OperatorCall("aten::_fused_adamw_", (*gradients, *written)))
        else:
            self._optimizer.step()
        if self._own and self._work.master:
            copies = [TensorShape(self._work.dtype, tuple(each.shape), "written") for each in self._optimized]
            read = [TensorShape("float32", tuple(each.shape)) for each in self._optimized]
            self._recorder.emit(OperatorCall("aten::_foreach_copy_", (*read, *copies)))
        for each in (*self._optimized, *self._parameters):
            each.grad = None


def _uncounted_gradient(like: torch.Tensor) -> torch.Tensor:
    """A gradient that is a part of memory that is counted already."""
    with torch.utils._python_dispatch._disable_current_modes():
        return torch.empty_like(like)
