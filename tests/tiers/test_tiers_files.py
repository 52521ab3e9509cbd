"""Files that are not the model's, hold codes, or have other names: read right, or an error that names both.

Held: `engine.model.weight_files` and `library_loaders`; a weight must never be taken from another one.
"""

import json
import re

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from toprope.errors import WeightsError
from toprope.tiers import attach, skeleton

pytestmark = [pytest.mark.process, pytest.mark.usefixtures("one_thread")]


def net(layers=6):
    torch.manual_seed(0)
    return nn.Sequential(*[nn.Linear(64, 64, bias=False) for _ in range(layers)])


def attached(build, folder, device=60_000):
    with skeleton():
        model = build()
    return attach(model, device, "10MB", folder, on="cpu", small=1000)


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.int8], ids=str)
@pytest.mark.parametrize("scale", ["weight_scale_inv", "weight_scale"])
def test_eight_bit_codes_with_scales_are_no_values(dtype, scale, tmp_path):
    """They were cast to the model's dtype, without the scales: 1e21 for 0.03, and no error."""
    state = {}
    for name, value in net().state_dict().items():
        factor = value.abs().max() / (448 if dtype.is_floating_point else 127)
        codes = value / factor
        state[name] = codes.to(dtype) if dtype.is_floating_point else codes.round().to(dtype)
        state[name.replace("weight", scale)] = factor[None]
    save_file(state, tmp_path / "model.safetensors")
    with pytest.raises(WeightsError, match=rf"(?s)such as 0\.{scale}.*dequantise"):
        attached(net, tmp_path)


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.int32, torch.bool, torch.float8_e8m0fnu], ids=str)
def test_a_cast_without_a_meaning_is_an_error(dtype, tmp_path):
    state = {name: torch.ones(64, 64).to(dtype) for name in net().state_dict()}
    save_file(state, tmp_path / "model.safetensors")
    with pytest.raises(WeightsError, match=rf"{dtype} in model.safetensors, torch.float32 in the model"):
        attached(net, tmp_path)


def test_codes_of_eight_bits_are_no_rounded_values(tmp_path):
    save_file(net().state_dict(), tmp_path / "model.safetensors")
    with pytest.raises(WeightsError, match=r"torch\.float32 in model\.safetensors, torch\.float8_e4m3fn in the model"):
        attached(lambda: net().to(torch.float8_e4m3fn), tmp_path)


def test_quantised_files_whose_scales_are_elsewhere_are_refused(tmp_path):
    state = {name: value.to(torch.float8_e4m3fn) for name, value in net().state_dict().items()}
    save_file(state, tmp_path / "model.safetensors")
    with attached(net, tmp_path) as handle:  # plain values of eight bits
        assert torch.equal(handle.model.state_dict()["0.weight"], state["0.weight"].float())
    (tmp_path / "config.json").write_text(json.dumps({"quantization_config": {"quant_method": "fp8"}}))
    with pytest.raises(WeightsError, match="cannot be converted"):
        attached(net, tmp_path)


class Two(nn.Module):
    """A student whose weights have the names of its teacher's, and a prefix."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.proj = nn.Linear(64, 64, bias=False)
        self.student = nn.ModuleDict({"proj": nn.Linear(64, 64, bias=False)})

    def forward(self, x):
        return self.student["proj"](self.proj(x))


def test_a_weight_is_never_taken_from_another_one(tmp_path):
    save_file({"proj.weight": torch.ones(64, 64)}, tmp_path / "model.safetensors")
    with pytest.raises(WeightsError, match=r"student\.proj\.weight"):
        attached(Two, tmp_path)


@pytest.mark.parametrize("prefix", ["model.", "model.encoder."])
def test_one_prefix_serves_all_weights(prefix, tmp_path):
    whole = net()
    state = {prefix + name: value for name, value in whole.state_dict().items()}
    save_file({**state, "head.weight": torch.ones(2)}, tmp_path / "model.safetensors")  # of the larger model
    with attached(net, tmp_path) as handle:
        assert torch.equal(handle.model(torch.ones(1, 64)), whole(torch.ones(1, 64)))
    save_file({**state, prefix + "other": torch.ones(2)}, tmp_path / "model.safetensors")
    with pytest.raises(WeightsError, match=rf"no use to the model, such as {prefix}other"):
        attached(net, tmp_path)


def test_files_of_the_base_model_serve_a_model_around_it(tmp_path):
    save_file(net().state_dict(), tmp_path / "model.safetensors")
    with attached(lambda: nn.ModuleDict({"model": net()}), tmp_path) as handle:
        assert torch.equal(handle.model.state_dict()["model.3.weight"], net().state_dict()["3.weight"])


@pytest.mark.parametrize("extra", [{"6.weight": torch.ones(64, 64)}, {"0.bias": torch.ones(64)}])
def test_a_tensor_that_nothing_uses_is_an_error(extra, tmp_path):
    save_file({**net().state_dict(), **extra}, tmp_path / "model.safetensors")
    with pytest.raises(WeightsError, match=f"no use to the model, such as {next(iter(extra))}"):
        attached(net, tmp_path)


def normed():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 64), nn.BatchNorm1d(64), nn.Linear(64, 64), nn.Linear(64, 64))


def test_buffers_of_the_state_come_from_the_files(tmp_path):
    """The running mean of a skeleton was the one of a new model."""
    whole = normed().train()
    whole(torch.randn(8, 64))
    whole.eval()
    save_file(whole.state_dict(), tmp_path / "model.safetensors")
    with attached(lambda: normed().eval(), tmp_path) as handle:
        assert torch.equal(handle.model(torch.ones(3, 64)), whole(torch.ones(3, 64)))
    state = {name: each for name, each in whole.state_dict().items() if name != "1.running_mean"}
    save_file(state, tmp_path / "model.safetensors")
    with pytest.raises(WeightsError, match=r"1\.running_mean"):
        attached(normed, tmp_path)


def test_a_bin_file_of_a_plain_model_is_named(tmp_path):
    torch.save(net().state_dict(), tmp_path / "pytorch_model.bin")
    with pytest.raises(WeightsError, match=r"(?s)no safetensors files.*pytorch_model\.bin"):
        attached(net, tmp_path)


# Models of libraries


def mixtral():
    transformers = pytest.importorskip("transformers")
    config = transformers.MixtralConfig(
        hidden_size=64, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        vocab_size=100, num_local_experts=4, max_position_embeddings=64,
    )  # fmt: skip
    torch.manual_seed(0)
    return transformers.MixtralForCausalLM(config)


def llama():
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        hidden_size=128, intermediate_size=128, num_hidden_layers=3, num_attention_heads=4, vocab_size=100,
        max_position_embeddings=64,
    )  # fmt: skip
    torch.manual_seed(0)
    return transformers.LlamaForCausalLM(config)


def logits(model):
    with torch.no_grad():
        return model.eval()(torch.arange(8)[None]).logits


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("form", ["renamed and fused", "bin"])
def test_a_folder_that_only_transformers_can_read_is_read_by_it(form, tmp_path):
    """Experts are one tensor in the model and many in the files: it was "name the model's folder"."""
    build = mixtral if form == "renamed and fused" else llama
    whole = build()
    whole.save_pretrained(tmp_path)
    if form == "bin":
        torch.save(load_file(tmp_path / "model.safetensors"), tmp_path / "pytorch_model.bin")
        (tmp_path / "model.safetensors").unlink()
    with attached(build, tmp_path, 500_000) as handle:
        assert handle.plan.slots
        assert torch.equal(logits(handle.model), logits(whole))
        assert handle.detach("cpu") is handle.model
    with pytest.raises(WeightsError):
        attached(lambda: llama().model if build is mixtral else mixtral(), tmp_path, 500_000)


def eight_bits(state):
    """As DeepSeek-V3 stores them: blocks of 128 x 128, each with the inverse of its scale."""
    found = {}
    for name, value in state.items():
        if not name.endswith("_proj.weight"):
            found[name] = value
            continue
        scale = value.abs().max() / 448
        found[name] = (value / scale).to(torch.float8_e4m3fn)
        found[name.replace("weight", "weight_scale_inv")] = scale.float().reshape(1, 1)
    return found


@pytest.mark.filterwarnings("ignore")
def test_eight_bits_with_scales_are_dequantised_by_transformers(tmp_path):
    pytest.importorskip("accelerate")
    whole = llama()
    whole.save_pretrained(tmp_path)
    state = eight_bits(load_file(tmp_path / "model.safetensors"))
    save_file(state, tmp_path / "model.safetensors", {"format": "pt"})
    config = json.loads((tmp_path / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "fp8", "weight_block_size": [128, 128]}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with attached(llama, tmp_path, 500_000) as handle:
        name = "model.layers.1.mlp.up_proj.weight"
        want = state[name].float() * state[name.replace("weight", "weight_scale_inv")]
        found = handle.model.state_dict()[name]
        assert torch.allclose(found, want, rtol=2e-2, atol=1e-5)  # by way of bf16
        whole.load_state_dict(handle.model.state_dict())
        assert torch.equal(logits(handle.model), logits(whole))
    config["quantization_config"] = {"quant_method": "compressed-tensors"}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(WeightsError, match=r"compressed-tensors.*LlamaForCausalLM is not"):
        attached(llama, tmp_path, 500_000)


def four_bits(parts):
    """Codes of 4 bits, eight in an int32, with zero points and scales."""

    def convert(weight):
        rows, columns = weight.shape
        found = {
            "qweight": torch.zeros(columns // 8, rows, dtype=torch.int32),
            "qzeros": torch.zeros(1, rows // 8, dtype=torch.int32),
            "scales": torch.ones(1, rows, dtype=torch.float16),
            "g_idx": torch.zeros(columns, dtype=torch.int32),
        }
        return {name: found[name] for name in parts}

    return convert


def bitsandbytes(bits):
    def convert(weight):
        if bits == 8:
            return {"weight": torch.zeros(weight.shape, dtype=torch.int8), "SCB": torch.ones(weight.shape[0])}
        return {
            "weight": torch.zeros(weight.numel() // 2, 1, dtype=torch.uint8),
            "weight.absmax": torch.ones(weight.numel() // 64),
            "weight.quant_map": torch.zeros(16),
        }

    return convert


def rows(dtype):
    """Codes, and a scale for each row."""
    return lambda weight: {
        "weight": torch.zeros(weight.shape, dtype=dtype),
        "weight_scale": torch.ones(weight.shape[0], 1),
    }


def parts(weight):
    """A subclass of tensors, taken apart."""
    return {"_weight_qdata": torch.zeros(weight.shape, dtype=torch.int8), "_weight_scale": torch.ones(weight.shape[0])}


QUANTISED = {
    "compressed-tensors int8": ({"quant_method": "compressed-tensors"}, rows(torch.int8)),
    "compressed-tensors fp8": ({"quant_method": "compressed-tensors"}, rows(torch.float8_e4m3fn)),
    "torchao": ({"quant_method": "torchao"}, parts),
    "gptq": ({"quant_method": "gptq", "bits": 4}, four_bits(("qweight", "qzeros", "scales", "g_idx"))),
    "awq": ({"quant_method": "awq", "bits": 4}, four_bits(("qweight", "qzeros", "scales"))),
    "bitsandbytes 4": ({"quant_method": "bitsandbytes", "load_in_4bit": True}, bitsandbytes(4)),
    "bitsandbytes 8": ({"quant_method": "bitsandbytes", "load_in_8bit": True}, bitsandbytes(8)),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("said", [True, False], ids=["config.json", "no config.json"])
@pytest.mark.parametrize("kind", QUANTISED)
def test_quantised_folders_are_refused_by_the_name_of_a_weight(kind, said, tmp_path):
    method, convert = QUANTISED[kind]
    llama().save_pretrained(tmp_path)
    state = {}
    for name, value in load_file(tmp_path / "model.safetensors").items():
        if name.endswith("_proj.weight"):
            stem = name.removesuffix("weight")
            state |= {stem + part: each for part, each in convert(value).items()}
        else:
            state[name] = value
    save_file(state, tmp_path / "model.safetensors", {"format": "pt"})
    config = json.loads((tmp_path / "config.json").read_text())
    config["quantization_config"] = method
    if said:
        (tmp_path / "config.json").write_text(json.dumps(config))
    else:
        (tmp_path / "config.json").unlink()
    with pytest.raises(WeightsError) as caught:
        attached(llama, tmp_path, 500_000)
    scales_only = kind == "compressed-tensors fp8" and not said  # codes of FP8 alone may be numbers
    first = "mlp.down_proj.weight_scale" if scales_only else "self_attn.q_proj.weight"
    assert f"model.layers.0.{first}" in str(caught.value)
    if said:
        assert f"is quantised ({method['quant_method']})" in str(caught.value)
        stored = re.search(r"q_proj.weight is stored as (.*?);", str(caught.value))[1]
        assert sorted(stored.split(", ")) == sorted(convert(torch.zeros(128, 128)))
        assert "from_pretrained(folder), and attach it without disk=folder" in str(caught.value)
    else:
        assert "dequantise the files" in str(caught.value)


# What is wrong is known from the headers, before a library reads anything


def edited(change):
    def edit(folder):
        state = load_file(folder / "model.safetensors")
        change(state)
        save_file(state, folder / "model.safetensors", {"format": "pt"})

    return edit


def as_bin(change):
    def edit(folder):
        state = load_file(folder / "model.safetensors")
        change(state)
        torch.save(state, folder / "pytorch_model.bin")
        (folder / "model.safetensors").unlink()

    return edit


POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:abc\nsize 4976698672\n"
UP = "model.layers.1.mlp.up_proj.weight"
EXPERT = "model.layers.1.block_sparse_moe.experts.2.w1.weight"
CODES = torch.ones(128, 128, dtype=torch.int8)


def shorten(folder, name="model.safetensors"):
    with (folder / name).open("r+b") as stream:
        stream.truncate((folder / name).stat().st_size // 2)


def short_bin(folder):
    as_bin(lambda state: None)(folder)
    shorten(folder, "pytorch_model.bin")


def bin_pointer(folder):
    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_text(POINTER)


def index_pointer(folder):
    (folder / "model.safetensors.index.json").write_text(POINTER)


WRONG = {
    "missing": (llama, edited(lambda state: state.pop(UP)), rf"not in the files.* {UP}.*29 tensors .*, 30 weights"),
    "extra": (llama, edited(lambda state: state.update(other=torch.ones(4))), "no use to the model, such as other"),
    "layers": (llama, edited(lambda state: [state.pop(each) for each in list(state) if ".2." in each]), r"layers\.2\."),
    "shape": (llama, edited(lambda state: state.update({UP: torch.ones(128, 127)})), rf"{UP} has another shape"),
    "int8": (llama, edited(lambda state: state.update({UP: CODES})), rf"{UP}: torch.int8 in model.safetensors"),
    "cut short": (llama, shorten, r"model\.safetensors is no safetensors file.*cut short: .* ends at byte \d+ of \d+"),
    "pointer": (llama, lambda folder: (folder / "model.safetensors").write_text(POINTER), "Git LFS.*4976698672"),
    "index pointer": (llama, index_pointer, r"index\.json is a pointer of Git LFS"),
    "bin missing": (llama, as_bin(lambda state: state.pop(UP)), rf"not in the files.* {UP}"),
    "bin int8": (llama, as_bin(lambda state: state.update({UP: CODES})), rf"{UP}: torch.int8 in pytorch_model.bin"),
    "bin cut short": (llama, short_bin, r"pytorch_model\.bin is no file of weights, or is damaged"),
    "bin pointer": (llama, bin_pointer, r"pytorch_model\.bin is a pointer of Git LFS"),
    "expert missing": (mixtral, edited(lambda state: state.pop(EXPERT)), "25 tensors of the files are of no use"),
    "expert int8": (
        mixtral,
        edited(lambda state: state.update({EXPERT: state[EXPERT].to(torch.int8)})),
        rf"cannot be converted, such as {EXPERT}: I8",
    ),
}


@pytest.mark.parametrize("what", WRONG)
def test_a_library_reads_no_files_that_are_not_the_models(what, tmp_path, monkeypatch, capfd):
    """transformers read the whole model first, printed a report, and cast codes of 8 bits to floats without a word."""
    build, edit, words = WRONG[what]
    build().save_pretrained(tmp_path)
    edit(tmp_path)
    monkeypatch.setattr("toprope.tiers.engine.attach.load_values", lambda *_: pytest.fail("the library reads it"))
    capfd.readouterr()
    with pytest.raises(WeightsError, match=f"(?s){words}"):
        attached(build, tmp_path, 500_000)
    assert capfd.readouterr() == ("", "")


@pytest.mark.filterwarnings("ignore")
def test_a_library_that_reads_a_folder_prints_nothing(tmp_path, capfd):
    mixtral().save_pretrained(tmp_path)
    from transformers.utils import logging

    before = logging.get_verbosity(), logging.is_progress_bar_enabled()
    capfd.readouterr()
    attached(mixtral, tmp_path, 500_000).detach()
    assert capfd.readouterr() == ("", "")
    assert (logging.get_verbosity(), logging.is_progress_bar_enabled()) == before


def test_next_to_a_config_the_files_that_libraries_load_count(tmp_path):
    """A folder with the same weights under other names in another file, as of a model's first release."""
    whole = llama()
    whole.save_pretrained(tmp_path)
    save_file({"layers.0.wq": torch.ones(4)}, tmp_path / "consolidated.safetensors")
    with attached(llama, tmp_path, 500_000) as handle:
        assert torch.equal(logits(handle.model), logits(whole))
