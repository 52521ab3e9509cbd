"""Models that people offload, made tiny, and what is done with each: attached to tiers and as a whole, bit for bit."""

import random
import shutil
import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import nn
from torch.utils.checkpoint import checkpoint

from toprope.errors import PlanError, TierAbsentError, TierCapacityError
from toprope.tiers import attach, skeleton

BUDGETS = (0.08, 0.2, 0.35, 0.6)
"""Parts of a model's weights that the device holds."""

Batch = dict[str, torch.Tensor]


@dataclass(frozen=True)
class Case:
    """One architecture.

    Attributes:
        build: makes the model, always with the same weights.
        batch: makes its inputs.
        generate: options of `model.generate`; None where it generates nothing.
        forward: runs it; None for `model(**batch)`.
    """

    build: Callable[[], Any]
    batch: Callable[[], Batch]
    generate: dict[str, Any] | None = None
    forward: Callable[[Any, Batch], Any] | None = None


TEXT = {
    "vocab_size": 160, "hidden_size": 48, "intermediate_size": 96, "num_hidden_layers": 6, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 64, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
EXPERTS = TEXT | {
    "num_experts": 4, "num_local_experts": 4, "n_routed_experts": 4, "num_experts_per_tok": 2,
    "moe_intermediate_size": 24, "shared_expert_intermediate_size": 32, "decoder_sparse_step": 1,
}  # fmt: skip
LATENT = EXPERTS | {
    "kv_lora_rank": 16, "q_lora_rank": 24, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 12, "n_group": 2,
    "topk_group": 1, "first_k_dense_replace": 1, "num_key_value_heads": 4,
}  # fmt: skip
VISION = {
    "image_size": 32, "patch_size": 8, "num_channels": 3, "hidden_size": 48, "num_hidden_layers": 6,
    "num_attention_heads": 4, "intermediate_size": 96,
}  # fmt: skip


def of_transformers(kind: str, auto: str, parts: dict[str, Any]) -> Callable[[], Any]:
    def build() -> Any:
        import transformers

        config = transformers.AutoConfig.for_model(kind, **parts)
        for each in (config, *(getattr(config, name, None) for name in ("text_config", "vision_config"))):
            for name, value in each.to_dict().items() if each is not None else ():
                if isinstance(value, float) and ("drop" in name or name == "layerdrop"):
                    setattr(each, name, 0.0)
        torch.manual_seed(0)
        return getattr(transformers, auto).from_config(config).float()

    return build


def _of_diffusers(name: str, parts: dict[str, Any]) -> Callable[[], Any]:
    def build() -> Any:
        import diffusers

        torch.manual_seed(0)
        return getattr(diffusers, name)(**parts)

    return build


def _tokens() -> Batch:
    return {"input_ids": torch.arange(2, 22).view(2, 10) * 7 % 150 + 3}


def _images() -> Batch:
    torch.manual_seed(1)
    return {"pixel_values": torch.randn(2, 3, 32, 32)}


def _sound() -> Batch:
    torch.manual_seed(1)
    return {"input_features": torch.randn(2, 8, 40)}


def _flux() -> Batch:
    torch.manual_seed(1)
    return {
        "hidden_states": torch.randn(1, 16, 4), "encoder_hidden_states": torch.randn(1, 8, 32),
        "pooled_projections": torch.randn(1, 32), "timestep": torch.tensor([0.5]), "img_ids": torch.zeros(16, 3),
        "txt_ids": torch.zeros(8, 3),
    }  # fmt: skip


def _noise() -> Batch:
    torch.manual_seed(1)
    return {
        "sample": torch.randn(1, 4, 16, 16),
        "timestep": torch.tensor(3),
        "encoder_hidden_states": torch.randn(1, 8, 32),
    }


def _sample() -> Batch:
    torch.manual_seed(1)
    return {"sample": torch.randn(1, 3, 32, 32)}


def _decoder(model: Any, batch: Batch) -> Any:
    first = next(iter(batch.values()))
    starts = torch.tensor([[1, 7, 9]] * 2, device=first.device)
    return model(**batch, decoder_input_ids=starts)


class QuickGELU(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * torch.sigmoid(1.702 * x)


class Residual(nn.Module):
    """A block in OpenAI's layout: names and order of the modules as in its published checkpoints."""

    def __init__(self, width: int, heads: int, mask: torch.Tensor | None) -> None:
        super().__init__()
        self.attn = nn.MultiheadAttention(width, heads)
        self.ln_1 = nn.LayerNorm(width)
        self.mlp = nn.ModuleDict(
            {"c_fc": nn.Linear(width, 4 * width), "gelu": QuickGELU(), "c_proj": nn.Linear(4 * width, width)}
        )
        self.ln_2 = nn.LayerNorm(width)
        self.mask = mask

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.ln_1(x)
        mask = None if self.mask is None else self.mask.to(x.device)
        x = x + self.attn(y, y, y, need_weights=False, attn_mask=mask)[0]
        y = self.ln_2(x)
        return x + self.mlp["c_proj"](self.mlp["gelu"](self.mlp["c_fc"](y)))


class Transformer(nn.Module):
    def __init__(self, width: int, layers: int, heads: int, mask: torch.Tensor | None = None) -> None:
        super().__init__()
        self.resblocks = nn.Sequential(*[Residual(width, heads, mask) for _ in range(layers)])
        self.recompute: bool | None = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.resblocks:
            x = block(x) if self.recompute is None else checkpoint(block, x, use_reentrant=self.recompute)
        return x


class VisionTransformer(nn.Module):
    def __init__(self, width: int, layers: int, out: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, width, 8, 8, bias=False)
        self.class_embedding = nn.Parameter(width**-0.5 * torch.randn(width))
        self.positional_embedding = nn.Parameter(width**-0.5 * torch.randn(17, width))
        self.ln_pre, self.ln_post = nn.LayerNorm(width), nn.LayerNorm(width)
        self.transformer = Transformer(width, layers, 4)
        self.proj = nn.Parameter(width**-0.5 * torch.randn(width, out))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.conv1(x).flatten(2).permute(0, 2, 1)
        start = self.class_embedding + torch.zeros(x.shape[0], 1, x.shape[-1], device=x.device)
        x = self.ln_pre(torch.cat([start, x], 1) + self.positional_embedding).permute(1, 0, 2)
        return self.ln_post(self.transformer(x)[0]) @ self.proj


class OpenAIClip(nn.Module):
    """CLIP with parameters of the model itself and torch's own attention, which calls none of its modules."""

    def __init__(self, width: int = 48, layers: int = 5, tokens: int = 10) -> None:
        super().__init__()
        self.visual = VisionTransformer(width, layers, 32)
        self.transformer = Transformer(width, layers, 4, torch.full((tokens, tokens), float("-inf")).triu(1))
        self.token_embedding = nn.Embedding(160, width)
        self.positional_embedding = nn.Parameter(0.01 * torch.randn(tokens, width))
        self.ln_final = nn.LayerNorm(width)
        self.text_projection = nn.Parameter(width**-0.5 * torch.randn(width, 32))
        self.logit_scale = nn.Parameter(torch.tensor(2.6))

    def recompute(self, reentrant: bool) -> None:
        self.visual.transformer.recompute = self.transformer.recompute = reentrant

    def forward(self, input_ids: torch.Tensor, pixel_values: torch.Tensor) -> torch.Tensor:
        x = (self.token_embedding(input_ids) + self.positional_embedding).permute(1, 0, 2)
        x = self.ln_final(self.transformer(x).permute(1, 0, 2))
        text = x[torch.arange(x.shape[0]), input_ids.argmax(-1)] @ self.text_projection
        image = self.visual(pixel_values)
        image, text = (each / each.norm(dim=-1, keepdim=True) for each in (image, text))
        return self.logit_scale.exp() * image @ text.t()


def _openai() -> nn.Module:
    torch.manual_seed(0)
    return OpenAIClip()


GREEDY = {"max_new_tokens": 5, "do_sample": False}
LM = "AutoModelForCausalLM"
CASES = {
    "gpt2": Case(
        of_transformers("gpt2", LM, {"vocab_size": 160, "n_embd": 48, "n_layer": 6, "n_head": 4, "n_positions": 64}),
        _tokens, GREEDY | {"pad_token_id": 0},
    ),
    "llama": Case(of_transformers("llama", LM, TEXT), _tokens, GREEDY),
    "qwen2_moe": Case(of_transformers("qwen2_moe", LM, EXPERTS), _tokens, GREEDY),
    "mixtral": Case(of_transformers("mixtral", LM, EXPERTS | {"intermediate_size": 32}), _tokens, GREEDY),
    "deepseek_v3": Case(of_transformers("deepseek_v3", LM, LATENT), _tokens, GREEDY),
    "t5": Case(
        of_transformers("t5", "AutoModelForSeq2SeqLM", {
            "vocab_size": 160, "d_model": 48, "d_kv": 12, "d_ff": 96, "num_layers": 4, "num_heads": 4,
            "decoder_start_token_id": 0,
        }),
        _tokens, GREEDY, _decoder,
    ),
    "whisper": Case(
        of_transformers("whisper", "AutoModelForSpeechSeq2Seq", {
            "vocab_size": 160, "d_model": 48, "encoder_layers": 4, "decoder_layers": 4, "encoder_ffn_dim": 96,
            "decoder_ffn_dim": 96, "encoder_attention_heads": 4, "decoder_attention_heads": 4, "num_mel_bins": 8,
            "max_source_positions": 20, "max_target_positions": 20, "pad_token_id": 0, "decoder_start_token_id": 1,
            "eos_token_id": 2, "bos_token_id": 1, "begin_suppress_tokens": None, "suppress_tokens": None,
        }),
        _sound, GREEDY, _decoder,
    ),
    "mamba": Case(
        of_transformers("mamba", LM, {"vocab_size": 160, "hidden_size": 48, "num_hidden_layers": 6, "state_size": 4,
                                       "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}),
        _tokens, GREEDY,
    ),
    "vit": Case(of_transformers("vit", "AutoModelForImageClassification", VISION), _images),
    "clip": Case(
        of_transformers("clip", "AutoModel", {
            "text_config": TEXT | {"num_hidden_layers": 4}, "vision_config": VISION | {"num_hidden_layers": 4},
            "projection_dim": 32,
        }),
        lambda: _tokens() | _images(),
    ),
    "clip of OpenAI": Case(_openai, lambda: _tokens() | _images()),
    "unet": Case(
        _of_diffusers("UNet2DConditionModel", {
            "sample_size": 16, "in_channels": 4, "out_channels": 4, "block_out_channels": (16, 32, 32),
            "layers_per_block": 1, "cross_attention_dim": 32, "attention_head_dim": 4, "norm_num_groups": 4,
            "down_block_types": ("CrossAttnDownBlock2D", "CrossAttnDownBlock2D", "DownBlock2D"),
            "up_block_types": ("UpBlock2D", "CrossAttnUpBlock2D", "CrossAttnUpBlock2D"),
        }),
        _noise,
    ),
    "flux": Case(
        _of_diffusers("FluxTransformer2DModel", {
            "patch_size": 1, "in_channels": 4, "num_layers": 2, "num_single_layers": 4, "attention_head_dim": 16,
            "num_attention_heads": 2, "joint_attention_dim": 32, "pooled_projection_dim": 32,
            "axes_dims_rope": (4, 4, 8),
        }),
        _flux,
    ),
    "vae": Case(
        _of_diffusers("AutoencoderKL", {
            "block_out_channels": (16, 32, 32), "down_block_types": ("DownEncoderBlock2D",) * 3,
            "up_block_types": ("UpDecoderBlock2D",) * 3, "latent_channels": 4, "norm_num_groups": 4,
            "sample_size": 32,
        }),
        _sample,
    ),
}  # fmt: skip


# What is done with a model


def _tensors(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value.detach().cpu()] if value.is_floating_point() else []
    if isinstance(value, dict):
        value = list(value.values())
    return [one for each in value for one in _tensors(each)] if isinstance(value, (tuple, list)) else []


def _seeds() -> None:
    torch.manual_seed(5)
    random.seed(5)


def _run(case: Case, model: Any, batch: Batch) -> Any:
    _seeds()
    return model(**batch) if case.forward is None else case.forward(model, batch)


def forward(case: Case, model: Any, batch: Batch) -> list[torch.Tensor]:
    """Two passes without gradients: the second with the plan that the first one showed."""
    model.eval()
    with torch.no_grad():
        return [one for _ in range(2) for one in _tensors(_run(case, model, batch))]


def generate(case: Case, model: Any, batch: Batch) -> list[torch.Tensor]:
    """Greedy tokens; of an autoencoder its two parts, which are called past forward()."""
    model.eval()
    if case.generate is None:
        if not hasattr(model, "encode"):
            return forward(case, model, batch)
        with torch.no_grad():
            latent = model.encode(batch["sample"]).latent_dist.mode()
            return [latent.cpu(), model.decode(latent).sample.cpu()]
    with torch.no_grad():
        return [model.generate(**batch, **case.generate).cpu()]


def train(case: Case, model: Any, batch: Batch, optimizer: Any = None) -> list[torch.Tensor]:
    """Two steps of AdamW: outputs, and gradients of the last step."""
    model.train()
    found = []
    own = optimizer or torch.optim.AdamW([each for each in model.parameters() if each.requires_grad], 0.01)
    for _ in range(2):
        own.zero_grad()
        first = _run(case, model, batch)
        out = first if isinstance(first, torch.Tensor) else next(one for one in _floats(first))
        out.square().mean().backward()
        found.append(out.detach().cpu())
        found += [each.grad.detach().cpu().clone() for each in model.parameters() if each.grad is not None]
        own.step()
    return found


def _floats(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        if value.is_floating_point():
            yield value
        return
    for each in value.values() if isinstance(value, dict) else value if isinstance(value, (tuple, list)) else ():
        yield from _floats(each)


def recompute(model: Any, reentrant: bool) -> bool:
    """Turn on gradient checkpointing; False where the model has none."""
    if hasattr(model, "recompute"):
        model.recompute(reentrant)
    elif getattr(model, "supports_gradient_checkpointing", False):
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": reentrant})
        if reentrant and hasattr(model, "enable_input_require_grads"):
            try:
                model.enable_input_require_grads()
            except NotImplementedError:
                pass
    elif getattr(model, "_supports_gradient_checkpointing", False):
        model.enable_gradient_checkpointing(
            lambda function, *args: checkpoint(function, *args, use_reentrant=reentrant)
        )
    else:
        return False
    return True


def lora(model: Any) -> Any:
    """Adapters on some of its linear layers; only they train."""
    import peft

    names = [name for name, each in model.named_modules() if type(each).__name__ in ("Linear", "Conv1D")]
    others = ("out_proj", "embed", "gate_proj", "up_proj", "down_proj")  # that peft refuses, or takes for fused experts
    some = [each for each in names if not any(word in each for word in others)][1::2]
    config = peft.LoraConfig(r=4, target_modules=some, init_lora_weights=False)
    torch.manual_seed(3)
    model.requires_grad_(False)
    return peft.inject_adapter_in_model(config, model)


def merge(model: Any, handle: Any = None) -> None:
    """Add the adapters to the weights, layer by layer."""
    from peft.tuners.lora import LoraLayer

    for each in model.modules():
        if isinstance(each, LoraLayer):
            if handle is None:
                each.merge()
            else:
                with handle.weights(each):
                    each.merge()


ACTIONS = ("forward", "generate", "files", "train", "checkpointing", "reentrant checkpointing", "lora", "lora first")
"""Of "files" the model is a skeleton, whose weights are in the folder that its library writes."""


def save(case: Case, folder: Path) -> None:
    """Write a model as its library does; others as one file of safetensors."""
    model = case.build()
    if hasattr(model, "save_pretrained"):
        model.save_pretrained(folder)
    else:
        save_file(model.state_dict(), folder / "model.safetensors")


def empty(case: Case) -> Any:
    """A model without values."""
    with skeleton():
        model = case.build()
    if hasattr(model, "tie_weights"):
        model.tie_weights()
    return model


@contextmanager
def _attached(model: Any, part: float, on: str, *, training: bool, folder: Path | None = None) -> Iterator[Any]:
    size = sum(each.nbytes for each in {id(one): one for one in model.parameters()}.values())
    host = "1GB" if folder is None else size // 4
    handle = attach(model, int(size * part), host, folder, on=on, small=2048, training=training, poison=True)
    try:
        yield handle
    finally:
        handle.detach()


def _equal(found: list[torch.Tensor], wanted: list[torch.Tensor], what: str) -> None:
    assert len(found) == len(wanted) > 0, what
    for place, (one, other) in enumerate(zip(found, wanted, strict=True)):
        assert torch.equal(one, other), f"{what}: tensor {place} of {len(found)}"


def check(name: str, action: str, on: str, budgets: tuple[float, ...] = BUDGETS) -> dict[float, str]:
    """Do it with a model as a whole and with attached ones, each with another budget; all bits are the same.

    Returns:
        For each budget "equal", "all of it stays", or why it was refused when it was attached.
    """
    case = CASES[name]
    reference = case.build().to(on)
    batch = {key: each.to(on) for key, each in case.batch().items()}
    warnings.simplefilter("ignore")
    training = action not in INFERENCE
    folder = Path(tempfile.mkdtemp()) if action == "files" else None
    if folder is not None:
        save(case, folder)
    if action.endswith("checkpointing") and not recompute(reference, action.startswith("reentrant")):
        return dict.fromkeys(budgets, "no checkpointing in this model")
    if action.startswith("lora"):
        reference = lora(reference)
    wanted = _do(case, action, reference, batch, None)
    found = {}
    for part in budgets:
        model = case.build() if folder is None else empty(case)
        if action.endswith("checkpointing"):
            recompute(model, action.startswith("reentrant"))
        if action == "lora first":
            model = lora(model)
        if action == "lora":
            model.requires_grad_(False)
        try:
            with _attached(model, part, on, training=training, folder=folder) as handle:
                if action == "lora":
                    lora(model)
                    for each in model.modules():
                        if hasattr(each, "lora_A"):
                            each.to(on)
                _equal(_do(case, action, model, batch, handle), wanted, f"{name}, {action}, {part:.0%} on {on}")
                moves = handle.plan.slots or handle._engine.pieces
                found[part] = "equal" if moves else "all of it stays"
                assert handle.stats().peak_bytes["device"] <= handle.stats().budget_bytes["device"]
            after = {key: each.cpu() for key, each in model.state_dict().items()}
            for key, each in reference.state_dict().items():
                assert torch.equal(after[key], each.cpu()), f"{name}, {action}, {part:.0%}: {key} after detach"
        except (PlanError, TierCapacityError) as error:  # at attach, or by a visit of more than the slots hold
            found[part] = str(error).splitlines()[0]
    if folder is not None:
        shutil.rmtree(folder)
    return found


def _do(case: Case, action: str, model: Any, batch: Batch, handle: Any) -> list[torch.Tensor]:
    if action == "forward":
        return forward(case, model, batch)
    if action == "generate":
        return generate(case, model, batch)
    if action == "files":
        return forward(case, model, batch) + generate(case, model, batch)
    found = train(case, model, batch)
    if action.startswith("lora"):
        if handle is not None:
            refused = 0
            try:
                merge(model)
            except TierAbsentError:
                refused = 1
            assert refused, "a merge without the weights"
        merge(model, handle)
        found += forward(case, model, batch)
    return found


INFERENCE = ("forward", "generate", "files")
LEAST = {True: 0.2, False: 0.6}
"""The parts of its weights from which on a tiny model is accepted: for inference, and for training, where gradients and
states of the optimizer go through slots of twice the largest tensor."""


NEEDS_MORE = {"mamba": "its mixer reads several weights at once"}
"""Models whose training may be refused with all of these budgets."""


def accepted(name: str, action: str, found: dict[float, str]) -> None:
    """Assert that every budget from a part on is accepted, and that none is refused above one that is accepted."""
    training = action not in INFERENCE
    ran = [part for part, what in sorted(found.items()) if what == "equal"]
    least = 1.0 if training and name in NEEDS_MORE else LEAST[not training]
    assert all(part in ran for part in found if part >= least), (name, action, found)
    assert all(part < min(ran, default=1.0) for part in found if part not in ran), (name, action, found)
