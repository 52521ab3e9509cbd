"""Options of `toprope estimate`: each changes the answer, or is refused; and what its errors say.

Holds `cli.estimate`; the figures are held in tests/estimate.
"""

import ast
import json
from pathlib import Path

import pytest

import toprope
from toprope.cli import main
from toprope.estimate.model.options import Asked, refuse_without_effect

SOURCES = Path(toprope.__file__).parent

LLAMA = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 64, "intermediate_size": 128,
    "num_attention_heads": 4, "num_key_value_heads": 4, "num_hidden_layers": 2, "vocab_size": 128,
    "max_position_embeddings": 4096,
}  # fmt: skip
BERT = {
    "model_type": "bert", "architectures": ["BertModel"], "hidden_size": 64, "intermediate_size": 128,
    "num_attention_heads": 4, "num_hidden_layers": 1, "vocab_size": 128, "max_position_embeddings": 128,
}  # fmt: skip
VIT = {
    "model_type": "vit", "architectures": ["ViTModel"], "hidden_size": 64, "intermediate_size": 128,
    "num_attention_heads": 4, "num_hidden_layers": 1, "image_size": 32, "patch_size": 16,
}  # fmt: skip
MOE = {
    "model_type": "qwen3_moe", "architectures": ["Qwen3MoeForCausalLM"], "hidden_size": 64, "intermediate_size": 128,
    "moe_intermediate_size": 32, "num_experts": 4, "num_experts_per_tok": 2, "num_attention_heads": 4, "head_dim": 16,
    "num_key_value_heads": 2, "num_hidden_layers": 1, "vocab_size": 128, "max_position_embeddings": 4096,
}  # fmt: skip
VAE = {
    "_class_name": "AutoencoderKL", "block_out_channels": [32, 32], "latent_channels": 4, "norm_num_groups": 8,
    "down_block_types": ["DownEncoderBlock2D"] * 2, "up_block_types": ["UpDecoderBlock2D"] * 2,
}  # fmt: skip
UNET = {
    "_class_name": "UNet2DConditionModel", "block_out_channels": [32, 32], "in_channels": 4, "cross_attention_dim": 32,
    "norm_num_groups": 8, "attention_head_dim": 8, "down_block_types": ["DownBlock2D", "CrossAttnDownBlock2D"],
    "up_block_types": ["CrossAttnUpBlock2D", "UpBlock2D"], "layers_per_block": 1,
}  # fmt: skip

OPTIONS = {
    "batch": ["--batch", "3"], "length": ["--length", "40"], "size": ["--size", "96x64"], "steps": ["--steps", "7"],
    "graph": ["--graph"], "queue": ["--queue", "0"], "checkpointing": ["--checkpointing"],
    "optimizer": ["--optimizer", "sgd"], "master": ["--master-weights"], "micro_batches": ["--micro-batches", "3"],
    "experts": ["--experts", "grouped"], "dtype": ["--dtype", "float32"], "dp": ["--dp", "2"], "tp": ["--tp", "2"],
    "pp": ["--pp", "2"], "zero": ["--zero", "1", "--dp", "2"], "chip": ["--chip", "910B1"],
    "input": ["--input", "{name}"], "kwargs": ["--kwargs", '{"out_features": 9}'],
}  # fmt: skip
MODELS = {
    "llama": (["prefill", "decode", "train", "forward"], "input_ids=1,24:int64"),
    "experts": (["prefill", "train"], "input_ids=1,24:int64"),
    "bert": (["forward"], "input_ids=1,24:int64"),
    "vit": (["forward"], "pixel_values=2,3,32,32:bfloat16"),
    "vae": (["forward"], "1,4,8,8:bfloat16"),
    "pipeline": (["forward"], "1,4,8,8:bfloat16"),
    "class": (["forward", "train"], "5,8:bfloat16"),
}


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    root = tmp_path_factory.mktemp("models")
    for name, config in (("llama", LLAMA), ("bert", BERT), ("vit", VIT), ("experts", MOE), ("vae", VAE)):
        (root / name).mkdir()
        (root / name / "config.json").write_text(json.dumps(config), encoding="utf-8")
    for name, config in (("vae", VAE), ("unet", UNET)):
        (root / "pipeline" / name).mkdir(parents=True)
        (root / "pipeline" / name / "config.json").write_text(json.dumps(config), encoding="utf-8")
    index = {"vae": ["diffusers", "AutoencoderKL"], "unet": ["diffusers", "UNet2DConditionModel"]}
    (root / "pipeline" / "model_index.json").write_text(json.dumps(index), encoding="utf-8")
    return {name: str(root / name) for name in MODELS} | {"class": "torch.nn:Linear"}


def answer(words, capfd):
    """Status, and the facts without the repetition of what was asked."""
    status = main(["estimate", *words, "--json"])
    out, err = capfd.readouterr()
    if status:
        assert (status, out) == (2, ""), err
        assert "\n  do " in err, err
        return status, err
    facts = json.loads(out)
    del facts["work"], facts["layout"]
    return 0, facts


@pytest.mark.slow
@pytest.mark.parametrize(("model", "mode"), [(model, mode) for model, (modes, _) in MODELS.items() for mode in modes])
def test_no_option_is_passed_over_in_silence(models, capfd, model, mode):
    of_class = ["--kwargs", '{"in_features": 8, "out_features": 6}', "--input", "4,8:bfloat16"]
    base = [models[model], "--mode", mode, *(of_class if model == "class" else [])]
    if model in ("llama", "experts"):
        base += ["--length", "24"]
    _, plain = answer(base, capfd)
    assert not isinstance(plain, str), plain
    refused = []
    for name, words in OPTIONS.items():
        if name == "kwargs" and model == "class":
            words = ["--kwargs", '{"in_features": 8, "out_features": 9}']
        given = [word.format(name=MODELS[model][1]) for word in words] if name == "input" else words
        kept = base
        if name == "input" and model in ("llama", "experts"):
            kept = [word for word in base if word not in ("--length", "24")]
            given = [given[0], "input_ids=1,30:int64"]
        status, seen = answer([*kept, *given], capfd)
        if status:
            refused.append(name)
        else:
            assert seen != plain, f"{name} changes nothing of {model} with --mode {mode}"
    assert "batch" not in refused or model == "class"
    assert ("length" in refused) == (model not in ("llama", "experts", "bert"))
    assert ("size" in refused) == (model not in ("vae", "pipeline"))
    assert ("optimizer" in refused) == (mode != "train")


@pytest.mark.parametrize("options", [["--queue", "0"], ["--queue", "2"]])
def test_the_queue_of_launches_does_not_matter_to_a_graph(models, capfd, options):
    status, said = answer([models["llama"], "--length", "8", "--graph", *options], capfd)
    assert status == 2
    assert "--queue" in said


def test_inputs_take_the_place_of_batch_and_length(models, capfd):
    given = [models["llama"], "--input", "input_ids=2,16:int64"]
    for option in (["--batch", "2"], ["--length", "16"], ["--size", "64x64"]):
        status, said = answer([*given, *option], capfd)
        assert (status, option[0] in said) == (2, True)
    _, by_input = answer(given, capfd)
    _, by_option = answer([models["llama"], "--batch", "2", "--length", "16"], capfd)
    assert by_input["time"]["tokens_per_second"] == by_option["time"]["tokens_per_second"]


def test_all_options_without_effect_are_named_at_once():
    asked = Asked("decode", graph=True, kind="language model")
    with pytest.raises(toprope.errors.UsageError) as caught:
        refuse_without_effect(["zero", "queue", "steps", "batch"], asked)
    assert str(caught.value).startswith("options have no effect here: --zero, --queue, --steps.")
    refuse_without_effect(["batch", "length", "dtype", "tp"], asked)


@pytest.mark.parametrize(
    ("config", "words"),
    [
        (LLAMA, ["--tp", "3"]),
        (LLAMA, ["--pp", "3"]),
        (LLAMA | {"num_key_value_heads": 3, "num_attention_heads": 6, "hidden_size": 96}, ["--tp", "2"]),
        ("{", []),
        ("[]", []),
        ("", []),
    ],
)
def test_a_message_said_not_what_to_do(tmp_path, capfd, config, words):
    text = config if isinstance(config, str) else json.dumps(config)
    (tmp_path / "config.json").write_text(text, encoding="utf-8")
    status, said = answer([str(tmp_path), *words], capfd)
    assert (status, said.count("\n  do ")) == (2, 1)


@pytest.mark.parametrize(
    "path",
    [
        *sorted((SOURCES / "estimate").rglob("*.py")),
        *(SOURCES / "cli" / f"{name}.py" for name in ("estimate", "calibrate", "verify")),
    ],
    ids=lambda path: path.stem,
)
def test_each_usage_error_of_estimates_says_what_to_do(path):
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "UsageError":
            assert any(word.arg == "do" for word in node.keywords), f"line {node.lineno}: {ast.unparse(node)}"


MODEL = """
from torch import nn
class Layers(nn.Module):
    def __init__(self, attends=False):
        super().__init__()
        self.attends, self.layer = attends, nn.Linear(8, 8)
    def forward(self, x):
        x = self.layer(x)
        return nn.functional.scaled_dot_product_attention(x, x, x) if self.attends else x
"""


@pytest.mark.parametrize(
    ("model", "what", "do"),
    [
        ("{}:Layer", "has no Layer.", ":Layers"),
        ("{}", "is a program, not a model.", ":CLASS"),
        ("Qwen/Qwen3-8B", "there is no model 'Qwen/Qwen3-8B'.", "FILE.py:CLASS"),
    ],
)
def test_a_model_that_is_not_there_was_said_to_want_other_arguments(tmp_path, capfd, model, what, do):
    (tmp_path / "m.py").write_text(MODEL)
    status, said = answer([model.format(tmp_path / "m.py")], capfd)
    assert status == 2
    assert what in said
    assert do in said.partition("\n  do ")[2]
    assert "--kwargs" not in said


@pytest.mark.parametrize("attends", [True, False])
def test_a_model_without_attention_was_said_to_compose_it(tmp_path, capfd, attends):
    (tmp_path / "m.py").write_text(MODEL)
    words = ["--chip", "310P3", "--input", "1,2,4,8:float32", "--kwargs", json.dumps({"attends": attends})]
    status, said = answer([f"{tmp_path / 'm.py'}:Layers", *words], capfd)
    assert status == 0
    assert ("attention is composed" in str(said)) is attends
