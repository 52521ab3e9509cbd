"""Models on the meta device: operators and memory of small ones, division among cards, what is refused.

Holds src/toprope/estimate/model and src/toprope/estimate/record against figures computed by hand.
"""

import json
import math
from dataclasses import replace

import pytest
import torch

from toprope import chips
from toprope.errors import UsageError
from toprope.estimate.cost.costs import cost_of
from toprope.estimate.cost.span import Span
from toprope.estimate.model.configs import load
from toprope.estimate.model.estimate import as_dict, estimate
from toprope.estimate.model.layout import Layout, exposed
from toprope.estimate.model.text import span_text
from toprope.estimate.model.workloads import Work, record
from toprope.estimate.record.ledger import Ledger, rounded
from toprope.estimate.record.recorder import Recorder

CHIP = chips.get("910B3")
LLAMA = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 256, "intermediate_size": 512,
    "num_attention_heads": 8, "num_key_value_heads": 4, "num_hidden_layers": 4, "vocab_size": 1024,
    "tie_word_embeddings": False, "max_position_embeddings": 4096,
}  # fmt: skip
MOE = {
    "model_type": "qwen3_moe", "architectures": ["Qwen3MoeForCausalLM"], "hidden_size": 128, "intermediate_size": 256,
    "moe_intermediate_size": 64, "num_experts": 8, "num_experts_per_tok": 2, "num_attention_heads": 4, "head_dim": 32,
    "num_key_value_heads": 2, "num_hidden_layers": 2, "vocab_size": 512, "tie_word_embeddings": False,
}  # fmt: skip


@pytest.fixture
def folder(tmp_path):
    def make(config, **changes):
        (tmp_path / "config.json").write_text(json.dumps({**config, **changes}), encoding="utf-8")
        return str(tmp_path)

    return make


def names(events):
    return [each.call.name for each in events if each.call is not None]


# ---- the ledger


def test_the_peak_is_what_was_alive_at_once():
    ledger = Ledger()
    kept = ledger.allocate(1000, "weights", "a")
    gone = ledger.allocate(2000, "activations", "b")
    ledger.release(gone)
    ledger.release(gone)
    ledger.allocate(512, "activations", "c")
    assert (ledger.now, ledger.peak) == (1024 + 512, 1024 + 2048)
    assert ledger.peak_by_kind() == {"activations": 2048, "weights": 1024}
    assert ledger.peak_by_label("activations") == {"b": 2048}
    assert kept.died < 0
    assert [rounded(size) for size in (0, 1, 512, 513)] == [0, 512, 512, 1024]


# ---- operators


def test_views_launch_nothing_and_products_do():
    with Recorder() as recorder:
        left = torch.empty(4, 8, device="meta")
        left.t().reshape(8, 2, 2).transpose(0, 1)
        left @ left.t()
    assert names(recorder.events) == ["aten::mm"]
    (event,) = recorder.events
    assert cost_of(event.call).operations == 2 * 4 * 4 * 8


def test_attention_is_one_kernel_forward_and_one_backward():
    query = torch.empty(2, 8, 64, 32, device="meta", dtype=torch.float16, requires_grad=True)
    key = torch.empty(2, 4, 64, 32, device="meta", dtype=torch.float16, requires_grad=True)
    with Recorder() as recorder:
        result = torch.nn.functional.scaled_dot_product_attention(query, key, key, enable_gqa=True)
        torch.autograd.backward([result], [torch.empty_like(result)])
    made = [each.call for each in recorder.events if "fusion_attention" in each.call.name]
    assert [each.name for each in made] == ["npu::npu_fusion_attention", "npu::npu_fusion_attention_grad"]
    forward = 4 * query.numel() * 64
    assert [each.operations for each in made] == [forward, forward // 2 * 5]
    assert {cost_of(each).kind for each in made} == {"attention"}
    assert query.grad.shape == query.shape
    assert key.grad.shape == key.shape


def test_a_causal_call_makes_the_mask_that_the_kernel_wants():
    query = torch.empty(1, 2, 64, 32, device="meta")
    with Recorder() as recorder:
        torch.nn.functional.scaled_dot_product_attention(query, query, query, is_causal=True)
    assert names(recorder.events) == ["aten::ones", "aten::triu", "npu::npu_fusion_attention"]
    assert recorder.events[-1].call.operations == 2 * query.numel() * 64


@pytest.mark.parametrize("fused", [True, False])
def test_attention_without_a_kernel_is_composed(fused):
    query = torch.empty(1, 2, 64, 32, device="meta")
    mask = torch.empty(64, 64, device="meta")  # not boolean
    with Recorder(fused=fused) as recorder:
        torch.nn.functional.scaled_dot_product_attention(query, query, query, mask)
    assert names(recorder.events).count("aten::bmm") == 2
    assert not any("fusion" in name for name in names(recorder.events))


def test_attention_outside_of_a_recorder_is_torch_s_own():
    with Recorder():
        pass
    query = torch.ones(1, 1, 4, 8)
    assert torch.equal(torch.nn.functional.scaled_dot_product_attention(query, query, query), query)


def test_a_value_that_is_read_is_refused_but_for_what_can_be_assumed():
    mask = torch.empty(4, dtype=torch.bool, device="meta")
    with Recorder() as recorder:
        assert bool(mask.all()) is True
        assert bool(mask.any()) is False
        with pytest.raises(UsageError, match="reads values"):
            torch.empty(3, device="meta").sum().item()
    assert [each.call is None for each in recorder.events].count(True) == 2


@pytest.mark.parametrize(("how", "products"), [("loop", 8), ("grouped", 1)])
def test_experts_are_a_loop_or_one_kernel(folder, how, products):
    (component,) = load(folder(MOE, num_hidden_layers=1))
    one = record(component, Work("prefill", length=64, experts=how), chips.get("910B3"))
    grouped = [each for each in one.events if each.call and each.call.name == "npu::npu_grouped_matmul"]
    looped = [each for each in one.events if each.call and each.times == 8]
    assert (len(grouped), len(looped)) == ((0, 2) if how == "loop" else (2, 0))
    rows = 64 * 2 // 8
    shape = (looped or grouped)[0].call.tensors[0].sizes
    assert shape == ((rows, 128) if how == "loop" else (128, 128))
    waits = [each for each in one.events if each.call is None]
    assert len(waits) == (2 if how == "loop" else 0)


def test_one_token_takes_as_many_experts_as_it_is_sent_to(folder):
    (component,) = load(folder(MOE, num_hidden_layers=1))
    one = record(component, Work("decode", length=8, experts="loop"), chips.get("910B3"))
    assert [each.times for each in one.events if each.call and each.times > 1] == [2, 2]


# ---- memory: the masks of causal attention are 4 MiB a layer, so weights are made larger

WIDE = {**LLAMA, "vocab_size": 65536}


def test_training_holds_weights_gradients_and_states(folder):
    one = estimate(folder(WIDE), CHIP, Work("train", length=64))
    weights = one.parts[0].weight_bytes
    held = one.memory.held
    assert held["weights"] == pytest.approx(weights, rel=0.01)
    assert held["optimizer states"] == pytest.approx(2 * weights, rel=0.01)
    assert held["gradients"] == pytest.approx(weights, rel=0.01)


def test_float32_weights_of_the_optimizer_take_18_bytes_a_parameter(folder):
    # Megatron-LM's figure for bf16 weights with gradients in float32
    one = estimate(folder(WIDE), CHIP, Work("train", length=1, master=True, optimizer="adamw-fused"))
    held = sum(size for kind, size in one.memory.held.items() if kind not in ("activations", "inputs", "buffers"))
    assert held == pytest.approx(18 * one.parameters, rel=0.01)


def test_checkpointing_keeps_less_and_computes_more(folder):
    model = folder(LLAMA)
    plain, again = (estimate(model, CHIP, Work("train", 4, 512, checkpointing=each)) for each in (False, True))
    assert again.memory.peak < plain.memory.peak
    assert again.time.card.likely > plain.time.card.likely


@pytest.mark.parametrize("optimizer", ["adamw", "adamw-fused", "sgd"])
def test_optimizers(folder, optimizer):
    one = estimate(folder(WIDE), CHIP, Work("train", length=16, optimizer=optimizer))
    states = 1 if optimizer == "sgd" else 2
    assert one.memory.held["optimizer states"] == pytest.approx(states * one.parts[0].weight_bytes, rel=0.01)


def test_decode_holds_the_cache_and_reads_it(folder):
    model = folder(LLAMA)
    short, long = (estimate(model, CHIP, Work("decode", length=each)) for each in (128, 1024))
    per_token = 2 * 4 * (4 * 32) * 2  # keys and values, layers, heads of them, bytes
    assert long.memory.held["KV cache"] == pytest.approx(1024 * per_token, rel=0.4)
    assert long.memory.held["KV cache"] > short.memory.held["KV cache"]
    fixed = estimate(model, CHIP, Work("decode", length=1024, graph=True))
    assert fixed.memory.held["KV cache"] == pytest.approx(1025 * per_token, rel=0.01)
    assert fixed.time.host.likely < long.time.host.likely


# ---- division among cards


def test_tensor_parallelism_divides_weights_and_adds_collectives(folder):
    model = folder(LLAMA)
    whole, part = (estimate(model, CHIP, Work("prefill", length=128), Layout(tp=each)) for each in (1, 4))
    norms = (2 * 4 + 1) * 256 * 2
    assert part.memory.held["weights"] - norms == pytest.approx((whole.memory.held["weights"] - norms) / 4, rel=0.02)
    kinds = {kind: count for kind, count, _ in part.time.kinds}
    assert kinds["communication"] == 2 * 4 + 1
    assert part.memory.buffers == 2 * 200 * 2**20
    assert part.parameters == whole.parameters


def test_checkpointing_repeats_the_collectives_of_the_forward_pass(folder):
    one = estimate(folder(LLAMA), CHIP, Work("train", length=64, checkpointing=True), Layout(tp=2))
    kinds = {kind: count for kind, count, _ in one.time.kinds}
    assert kinds["communication"] == (2 * 4 + 1) + (2 * 2 * 4 + 1)


def test_stages_hold_their_layers_and_wait_in_the_bubble(folder):
    model = folder(LLAMA)
    whole = estimate(model, CHIP, Work("train", length=256))
    layout = Layout(pp=2, micro_batches=6)
    assert layout.bubble == pytest.approx(1 / 7)
    part = estimate(model, CHIP, Work("train", length=256), layout)
    assert part.memory.held["weights"] < 0.75 * whole.memory.held["weights"]
    assert "between stages: send" in dict(part.time.outside)


@pytest.mark.parametrize("zero", [0, 1, 2, 3])
def test_zero_divides_more_and_more(folder, zero):
    one = estimate(folder(WIDE), CHIP, Work("train", length=16), Layout(dp=4, zero=zero))
    weights, held = one.parts[0].weight_bytes, one.memory.held
    assert held["optimizer states"] == pytest.approx(2 * weights / (4 if zero else 1), rel=0.02)
    assert held["weights"] == pytest.approx(weights / (4 if zero == 3 else 1), rel=0.02)
    names = [name for name, _ in one.time.outside]
    assert names == (["gradients: reduce-scatter", "weights: all-gather"] if zero else ["gradients: all-reduce"])


def test_experts_are_divided_among_copies(folder):
    model = folder(MOE)
    whole, part = (estimate(model, CHIP, Work("prefill", length=64), Layout(dp=4, ep=each)) for each in (1, 4))
    experts = 2 * 8 * (2 * 64 * 128 + 64 * 128) * 2
    assert whole.memory.held["weights"] - part.memory.held["weights"] == pytest.approx(experts * 3 / 4, rel=0.02)
    kinds = {kind: count for kind, count, _ in part.time.kinds}
    assert kinds["communication"] == 2 * 2


def test_a_part_of_an_expert_that_each_card_has_is_not_divided_again(folder):
    one = estimate(folder(MOE, vocab_size=65536), CHIP, Work("train", length=16), Layout(dp=4, ep=4, zero=3))
    experts = 2 * 8 * (2 * 64 * 128 + 64 * 128)
    others = one.parameters - experts
    assert one.memory.held["weights"] == pytest.approx(2 * (experts + others) / 4, rel=0.02)
    half = estimate(folder(MOE, vocab_size=65536), CHIP, Work("train", length=16), Layout(dp=4, ep=2, zero=3))
    assert half.memory.held["weights"] == pytest.approx(2 * (experts / 2 / 2 + others / 4), rel=0.02)


def test_beyond_a_node_no_upper_end_is_known(folder):
    one = estimate(folder(LLAMA), CHIP, Work("train", length=16), Layout(dp=16))
    assert math.isinf(one.time.total.high)
    assert span_text(one.time.total).endswith("or more")
    assert as_dict(one)["time"]["total"][2] is None
    json.dumps(as_dict(one), allow_nan=False)


def test_what_is_hidden_is_a_range():
    assert span_text(exposed(Span(1, 2, 3), Span(4, 5, 6))) == "0 to 3 s"
    assert span_text(Span(0, 0, 0)) == "none"
    assert exposed(Span(1, 2, 3), Span(4, 5, 6)) == Span(0, 0, 3)
    assert exposed(Span(5, 6, 7), Span(1, 2, 3)) == Span(4, 4, 7)


@pytest.mark.parametrize(
    ("config", "layout", "said"),
    [
        (LLAMA, {"tp": 3}, "cannot be divided by 3"),
        (LLAMA, {"tp": 16}, "8 attention heads cannot be divided by 16"),
        (LLAMA, {"pp": 3}, "4 layers cannot be divided by 3"),
        (LLAMA, {"dp": 2, "ep": 2}, "has no experts"),
        (MOE, {"dp": 16, "ep": 16}, "8 experts cannot be divided by 16"),
        (MOE, {"dp": 4, "ep": 3}, "cannot share experts"),
        (LLAMA, {"zero": 1}, "zero divides among the copies"),
        (LLAMA, {"dp": 0}, "at least 1"),
    ],
)
def test_a_division_that_does_not_work_out_is_an_error(folder, config, layout, said):
    with pytest.raises(UsageError, match=said):
        estimate(folder(config), CHIP, Work("prefill", length=16), Layout(**layout))


# ---- classes of the user


class Net(torch.nn.Module):
    def __init__(self, width=64):
        super().__init__()
        self.first, self.norm = torch.nn.Conv2d(3, width, 3, padding=1), torch.nn.BatchNorm2d(width)
        self.last = torch.nn.Linear(width, 10)

    def forward(self, picture):
        return self.last(self.norm(self.first(picture)).relu().mean((2, 3)))


@pytest.fixture
def user_class(tmp_path):
    import inspect
    import textwrap

    path = tmp_path / "net_of_a_user.py"
    path.write_text("import torch\n\n\n" + textwrap.dedent(inspect.getsource(Net)), encoding="utf-8")
    return f"{path}:Net"


def test_a_class_of_the_user(user_class):
    work = Work("forward", inputs={"0": ((2, 3, 32, 32), "bfloat16")})
    one = estimate(user_class, CHIP, work, arguments={"width": 32})
    assert one.parameters == 3 * 32 * 9 + 32 + 2 * 32 + 32 * 10 + 10
    kinds = {kind: count for kind, count, _ in one.time.kinds}
    assert (kinds["convolution"], kinds["normalisation"]) == (1, 1)
    trained = estimate(user_class, CHIP, Work("train", inputs=work.inputs), arguments={"width": 32})
    assert any("mean of the squares" in note for note in trained.notes)


def test_the_verdict_on_memory_leaves_room_for_workspaces(user_class):
    work = Work("forward", inputs={"0": ((2, 3, 512, 512), "bfloat16")})

    def fit(usable):
        return estimate(user_class, replace(CHIP, hbm_usable_mib=usable), work, arguments={"width": 32}).memory

    peak = fit(2**16).peak / 2**20
    assert [fit(round(share * peak)).fit for share in (1.2, 1.05, 0.95)] == ["fits", "may not fit", "does not fit"]


@pytest.mark.parametrize(
    ("work", "arguments", "said"),
    [
        (Work("forward"), {}, "inputs of Net are not known"),
        (Work("forward", inputs={"0": ((2, 4, 32, 32), "bfloat16")}), {}, "cannot do this on paper"),
        (Work("prefill", inputs={"0": ((2, 3, 32, 32), "bfloat16")}), {}, "does not generate tokens"),
        (Work("forward"), {"depth": 3}, "cannot be made on the meta device"),
        (Work("train", checkpointing=True, inputs={"0": ((2, 3, 8, 8), "bfloat16")}), {}, "gradient_checkpointing"),
    ],
)
def test_what_a_class_of_the_user_cannot_do(user_class, work, arguments, said):
    with pytest.raises(UsageError, match=said):
        estimate(user_class, CHIP, work, arguments=arguments)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "cannot be read"),
        ("[]", "it has no names"),
        ("{}", "neither model_type"),
        ('{"model_type": "no_such_model"}', "does not know 'no_such_model'"),
        ('{"model_type": "llama", "architectures": ["NoSuchClass"]}', "no class NoSuchClass"),
        ('{"_class_name": "NoSuchModel"}', "no class NoSuchModel"),
    ],
)
def test_configurations_that_say_nothing(tmp_path, text, said):
    (tmp_path / "config.json").write_text(text, encoding="utf-8")
    with pytest.raises(UsageError, match=said):
        load(str(tmp_path))


def test_arguments_of_a_configuration_are_refused(folder):
    model = folder(LLAMA)
    with pytest.raises(UsageError, match="arguments of a class"):
        load(model, arguments={"layers": 3})


def test_a_pipeline_counts_its_components_and_says_what_it_left_out(tmp_path):
    vae = {
        "_class_name": "AutoencoderKL", "block_out_channels": [32, 32], "latent_channels": 4, "norm_num_groups": 8,
        "down_block_types": ["DownEncoderBlock2D"] * 2, "up_block_types": ["UpDecoderBlock2D"] * 2,
    }  # fmt: skip
    index = {
        "_class_name": "APipeline", "vae": ["diffusers", "AutoencoderKL"], "second": ["diffusers", "AutoencoderKL"],
        "scheduler": ["diffusers", "EulerDiscreteScheduler"], "checker": ["a_package", "Checker"], "none": [None, None],
    }  # fmt: skip
    (tmp_path / "model_index.json").write_text(json.dumps(index), encoding="utf-8")
    with pytest.raises(UsageError, match=r"there is no .*vae"):
        load(str(tmp_path))
    for name in ("vae", "second"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(json.dumps(vae), encoding="utf-8")
    one = estimate(str(tmp_path), CHIP, Work(height=64, width=64))
    assert [each.name for each in one.parts] == ["vae", "second"]
    assert one.memory.held["weights"] == pytest.approx(2 * one.parameters, rel=0.1)
    assert [note for note in one.notes if "checker" in note]
    with pytest.raises(UsageError, match="belongs to one model"):
        estimate(str(tmp_path), CHIP, Work("train"))


def test_a_folder_without_a_configuration_and_a_name_of_nothing(tmp_path):
    with pytest.raises(UsageError, match=r"has no config\.json"):
        load(str(tmp_path))
    with pytest.raises(UsageError, match="there is no model 'nothing'"):
        load("nothing")


# ---- quantised weights

GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 128}
W8A8 = {
    "quant_method": "compressed-tensors", "ignore": ["lm_head"],
    "config_groups": {"group_0": {"weights": {"num_bits": 8, "type": "int"}, "input_activations": {"num_bits": 8}}},
}  # fmt: skip


@pytest.mark.parametrize(
    ("config", "bits"),
    [
        (GPTQ, 4 + 20 / 128),
        ({"quant_method": "awq", "w_bit": 4, "q_group_size": 64}, 4 + 20 / 64),
        ({"load_in_8bit": True}, 8),
        ({"load_in_4bit": True}, 4 + 20 / 64),
        ({"quant_method": "fp8"}, 8),
        ({"quant_method": "mxfp4"}, 4 + 20 / 32),
        (W8A8, 8),
    ],
    ids=lambda value: value.get("quant_method", "bitsandbytes") if isinstance(value, dict) else "",
)
def test_quantised_weights_were_counted_in_the_dtype_asked_for(folder, config, bits):
    plain = estimate(folder(LLAMA), CHIP, Work("decode", length=64))
    one = estimate(folder(LLAMA, quantization_config=config), CHIP, Work("decode", length=64))
    layer = 2 * 256 * 256 + 2 * 256 * 128 + 3 * 256 * 512  # attention with half the heads for keys, MLP
    assert one.parameters == plain.parameters
    saved = round(4 * layer * (2 - bits / 8))
    assert plain.parts[0].weight_bytes - one.parts[0].weight_bytes == saved
    assert plain.memory.held["weights"] - one.memory.held["weights"] == pytest.approx(saved, abs=4 * 7 * 512)
    assert any("stored by" in note for note in one.notes)
    assert not any("stored by" in note for note in plain.notes)


def test_a_product_of_quantised_weights_reads_their_bytes_and_of_8_bits_runs_in_them(folder):
    def products(config):
        component = load(folder(LLAMA, **config))[0]
        events = record(component, Work("prefill", length=64), CHIP).events
        return [each.call for each in events if each.call is not None and each.call.base in ("mm", "npu_dynamic_quant")]

    plain, gptq = products({}), products({"quantization_config": GPTQ})
    assert [each.base for each in gptq] == [each.base for each in plain]
    for before, after in list(zip(plain, gptq, strict=True))[:-1]:
        assert after.tensors[1].bytes == pytest.approx(before.tensors[1].bytes * (4 + 20 / 128) / 16, abs=1)
        assert cost_of(after).dtype == "bfloat16"
    both = products({"quantization_config": W8A8})
    assert [each.base for each in both].count("npu_dynamic_quant") == len(plain) - 1
    in_8_bits = [cost_of(each) for each in both if each.base == "mm"]
    assert {each.dtype for each in in_8_bits[:-1]} == {"int8"}
    assert in_8_bits[-1].dtype == "bfloat16"  # the head


def test_experts_are_quantised_too(folder):
    config = {"quant_method": "mxfp4"}
    for how, name in (("loop", "mm"), ("grouped", "npu_grouped_matmul")):
        component = load(folder(MOE, quantization_config=config))[0]
        events = record(component, Work("prefill", length=64, experts=how), CHIP).events
        calls = [each.call for each in events if each.call is not None and each.call.base == name]
        experts = [
            each.tensors[1] for each in calls if each.tensors[1].sizes[-2:] in ((64, 128), (128, 64), (128, 128))
        ]
        assert experts
        assert all(each.bytes == round(each.elements * (4 + 20 / 32) / 8) for each in experts)


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"quant_method": "gptq", "bits": "many"}, "quantization_config of the method 'gptq' cannot be read"),
        ({"quant_method": "awq"}, "quantization_config of the method 'awq' cannot be read"),
        ({"quant_method": "compressed-tensors", "config_groups": 3}, "cannot be read"),
        ({**W8A8, "ignore": ["re:("]}, "cannot be read"),
    ],
)
def test_a_broken_quantization_config_is_one_error(folder, config, said):
    with pytest.raises(UsageError, match=said):
        load(folder(LLAMA, quantization_config=config))


def test_an_unknown_method_is_named_and_quantised_weights_are_not_trained(folder):
    one = estimate(folder(LLAMA, quantization_config={"quant_method": "new"}), CHIP, Work("decode", length=8))
    assert any("a method not known here (new)" in note for note in one.notes)
    with pytest.raises(UsageError, match="such weights are not trained"):
        estimate(folder(LLAMA, quantization_config=GPTQ), CHIP, Work("train", length=8))


def test_temporaries_of_adamw_were_activations_here_and_the_optimizers_in_a_run(folder):
    peaks = {}
    for optimizer in ("adamw", "adamw-fused"):
        one = estimate(folder(LLAMA), CHIP, Work("train", length=1, optimizer=optimizer))
        peaks[optimizer] = one.memory.held
    states = 2 * 2 * one.parameters
    for held in peaks.values():
        assert held["optimizer states"] == pytest.approx(states, rel=0.01)
    assert peaks["adamw"]["optimizer temporaries"] > 0
    assert "optimizer temporaries" not in peaks["adamw-fused"]


# ---- positions


@pytest.mark.parametrize("mode", ["prefill", "decode", "train"])
def test_a_text_longer_than_the_model_takes_was_estimated_in_silence(folder, mode):
    most = 4096 - (mode == "decode")
    fits = estimate(folder(LLAMA, num_hidden_layers=1), CHIP, Work(mode, length=most))
    longer = estimate(folder(LLAMA, num_hidden_layers=1), CHIP, Work(mode, length=most + 1))
    assert not any("4,096 positions" in note for note in fits.notes)
    assert any("4,097 tokens are more than the 4,096 positions" in note for note in longer.notes)
    gpt2 = {"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "n_embd": 32, "n_head": 2, "n_layer": 1,
            "n_positions": 64, "vocab_size": 128}  # fmt: skip
    estimate(folder(gpt2), CHIP, Work(mode, length=64 - (mode == "decode")))
    with pytest.raises(UsageError, match="65 tokens are more than the 64 positions"):
        estimate(folder(gpt2), CHIP, Work(mode, length=65 - (mode == "decode")))


# ---- cold reads


def test_weights_of_a_second_pass_are_cold_where_more_than_the_cache_lies_between():
    with Recorder(cache=2**20) as recorder:
        first, other = torch.empty(2**16, device="meta"), torch.empty(2**19, device="meta")
        result = first + 1
        first + 1
        other + 1
        first + 1
        result + 1
    cold = [[each.cold for each in event.call.tensors if each.role == "read"] for event in recorder.events]
    assert cold == [[True], [False], [True], [True], [True]]


# ---- the command


def command(*words, capfd):
    from toprope.cli import main

    status = main(["estimate", *words])
    out, err = capfd.readouterr()
    return status, out, err


def test_the_command_marks_its_figures(folder, capfd):
    status, out, err = command(folder(LLAMA), "--length", "64", capfd=capfd)
    assert (status, err) == (0, "")
    assert "(counted)" in out
    assert "at the peak (estimate), of 61.0 GiB (profile): fits" in out
    assert "a step (estimate); host-bound" in out
    assert ": the chip's figures, fitted to public measurements" in out
    assert "not in it: workspaces of kernels" in out


def test_the_command_as_json(folder, capfd):
    status, out, _ = command(folder(LLAMA), "--mode", "train", "--dp", "2", "--json", capfd=capfd)
    facts = json.loads(out)
    assert status == 0
    assert facts["layout"]["cards"] == 2
    assert facts["memory"]["word"] == facts["time"]["word"] == "estimate"
    low, likely, high = facts["time"]["total"]
    assert low < likely < high


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--chip", "910X"], "there is no chip '910X'"),
        (["--mode", "sleep"], "there is no mode 'sleep'"),
        (["--dtype", "int3"], "no dtype of weights"),
        (["--experts", "some"], "--experts loop or grouped"),
        (["--kwargs", "{"], "--kwargs is no JSON"),
        (["--input", "3,x"], "is no shape"),
        (["--size", "big"], "no size of a picture"),
        (["--checkpointing"], "add --mode train"),
        (["--tp", "5"], "cannot be divided by 5"),
    ],
)
def test_the_command_refuses_in_one_message(folder, capfd, words, said):
    status, out, err = command(folder(LLAMA), *words, capfd=capfd)
    assert (status, out) == (2, "")
    assert said in err
    assert "Traceback" not in err


def test_a_chip_without_fused_attention_and_one_without_figures_for_time(folder):
    model = folder(LLAMA)
    old = estimate(model, chips.get("310P3"), Work("prefill", length=64))
    assert any("no fused kernel" in note for note in old.notes)
    for name in chips.names():
        one = estimate(model, chips.get(name), Work("decode", length=8))
        assert (one.time is None) == bool(one.why_no_time)


def test_a_forward_pass_left_out_the_logits_of_all_tokens_but_the_last(folder):
    path = folder(LLAMA, vocab_size=32768)
    with_all = estimate(path, CHIP, Work("forward", batch=8, length=256))
    last = estimate(path, CHIP, Work("prefill", batch=8, length=256))
    assert with_all.memory.peak > 8 * 256 * 32768 * 2 > last.memory.peak


def test_a_picture_was_counted_in_tokens(user_class):
    work = Work("train", inputs={"0": ((2, 3, 32, 32), "bfloat16")})
    assert estimate(user_class, CHIP, work, arguments={"width": 32}).time.tokens_per_second.likely == 0


@pytest.mark.parametrize("changes", [{"hidden_size": "big"}, {"num_attention_heads": 15, "hidden_size": 2048}])
def test_a_configuration_that_the_library_refuses_was_a_traceback(folder, changes):
    with pytest.raises(UsageError, match="cannot be made"):
        estimate(folder(LLAMA, **changes), CHIP, Work("prefill", length=16))
