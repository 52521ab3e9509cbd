"""Public threads about what could not be done with offloaded weights: it works here, or an error says what to do.

Each test is named for its project and number. Threads of the specification are in test_tiers_threads.py, more in
test_tiers_reports.py.
"""

import threading

import pytest
import torch
from safetensors.torch import save_file
from torch import nn
from torch.nn import functional
from torch.nn.utils import parametrize

from toprope.errors import TierAbsentError, UsageError, WeightsError
from toprope.tiers import attach, skeleton

pytestmark = [pytest.mark.process, pytest.mark.usefixtures("one_thread")]
WIDTH = 64
KB = 1000


def chain(layers=6, width=WIDTH):
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Linear(width, width) for _ in range(layers)))


def attached(model, folder=None, device=50 * KB, **options):
    return attach(model, device, "10MB" if folder is None else 0, folder, on="cpu", small=1000, **options)


def absent(handle):
    """A module whose weight is not on the device, and the name of that weight."""
    name = sorted(each.name for unit in handle._engine._units for each in unit.weights)[0]
    return handle.model.get_submodule(name.rpartition(".")[0]), name


def test_deepspeed_8375_and_940_parameters_without_elements_and_with_one(tmp_path):
    """https://github.com/deepspeedai/DeepSpeed/pull/8375, https://github.com/deepspeedai/DeepSpeed/issues/940"""

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers, self.one = chain(), nn.Linear(WIDTH, 1)
            self.none = nn.Parameter(torch.zeros(0, WIDTH))

        def forward(self, x):
            x = self.layers(x)
            return self.one(x) + functional.linear(x, self.none).sum()

    x = torch.randn(3, WIDTH)
    model, same = Net(), Net()
    same.load_state_dict(model.state_dict())
    save_file(same.state_dict(), tmp_path / "model.safetensors")
    optimizers = [torch.optim.AdamW(each.parameters(), 0.01) for each in (model, same)]
    with attached(model, device=150 * KB, training=True) as handle:
        assert handle.plan.slots
        for _ in range(2):
            for each, optimizer in zip((model, same), optimizers, strict=True):
                optimizer.zero_grad()
                each(x).square().sum().backward()
                optimizer.step()
    assert all(torch.equal(*each) for each in zip(model.parameters(), same.parameters(), strict=True))
    with skeleton():
        empty = Net()
    with attached(empty, tmp_path) as handle:  # it was "1 weights of the model have no values"
        assert handle.plan.slots
        assert empty.none.shape == (0, WIDTH)
        with torch.no_grad():
            same.load_state_dict(handle.model.state_dict())
            assert torch.equal(empty(x), same(x))
    assert all(each.is_meta for each in empty.parameters() if each.numel())


def test_deepspeed_4176_a_module_that_is_added_later_trains():
    """https://github.com/deepspeedai/DeepSpeed/issues/4176: "expected a non-empty list of Tensors"."""
    model, same = chain(), chain()
    x = torch.randn(3, WIDTH)
    with attached(model, device=150 * KB, training=True):
        optimizers = []
        for each in (model, same):
            torch.manual_seed(3)
            each.append(nn.Linear(WIDTH, 5))
            optimizers.append(torch.optim.AdamW((one for one in each.parameters()), 0.01))
        for _ in range(2):
            for each, optimizer in zip((model, same), optimizers, strict=True):
                optimizer.zero_grad()
                each(x).square().sum().backward()
                optimizer.step()
    assert all(torch.equal(*each) for each in zip(model.parameters(), same.parameters(), strict=True))


def test_accelerate_1261_a_function_is_given_the_weight_of_a_module():
    """https://github.com/huggingface/accelerate/issues/1261: "size mismatch, got ...": the weight was not there."""
    model = chain()
    x = torch.randn(3, WIDTH)
    want = [functional.linear(x, each.weight) for each in model]
    with attached(model) as handle:
        module, name = absent(handle)
        with pytest.raises(TierAbsentError, match=rf"{name} is not on the device.*\n.*linear"):
            functional.linear(x, module.weight)
        for each, wanted in zip(model, want, strict=True):
            with handle.weights(each):
                assert torch.equal(functional.linear(x, each.weight), wanted)


def test_accelerate_3542_attention_uses_the_weights_of_the_module_in_it():
    """https://github.com/huggingface/accelerate/issues/3542: its out_proj is never called, and stayed on meta."""
    torch.manual_seed(0)
    model = nn.ModuleList(nn.MultiheadAttention(WIDTH, 4, batch_first=True) for _ in range(4))
    x = torch.randn(2, 5, WIDTH)
    want = [each(x, x, x)[0] for each in model]
    with attached(model, device=140 * KB) as handle:
        assert handle.plan.slots
        for _ in range(2):
            assert all(torch.equal(each(x, x, x)[0], wanted) for each, wanted in zip(model, want, strict=True))


class Tied(nn.Module):
    def __init__(self, tie=True):
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.layers = nn.Embedding(100, WIDTH), chain()
        self.head = nn.Linear(WIDTH, 100, bias=False)
        self.register_buffer("mask", torch.ones(5, 5).tril(), persistent=False)
        if tie:
            self.head.weight = self.embed.weight

    def forward(self, tokens):
        return self.head(self.mask @ self.layers(self.embed(tokens)))


def test_accelerate_2906_and_938_tied_weights_and_buffers_that_no_file_has(tmp_path):
    """https://github.com/huggingface/accelerate/issues/2906: "weight is on the meta device, we need a `value`";
    https://github.com/huggingface/accelerate/issues/938: a mask that is computed, and stored nowhere."""
    whole, tokens = Tied(), torch.arange(5)[None]
    state = {name: each for name, each in whole.state_dict().items() if name != "head.weight"}
    save_file(state, tmp_path / "model.safetensors")
    with skeleton():
        model = Tied(tie=False)
    with pytest.raises(WeightsError, match=r"such as head\.weight"):
        attached(model, tmp_path)
    model.head.weight = model.embed.weight
    with attached(model, tmp_path, device=80 * KB) as handle, torch.no_grad():
        assert handle.plan.slots
        assert torch.equal(model(tokens), whole(tokens))


class Queries(nn.Module):
    """Uses the table of an embedding as it is, as the decoders of detection models do."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.queries, self.layers = nn.Embedding(WIDTH, WIDTH), chain()

    def forward(self, x):
        return self.layers(x + self.queries.weight)


def test_transformers_31560_the_table_of_an_embedding_is_used_as_it_is():
    """https://github.com/huggingface/transformers/issues/31560: "Cannot copy out of meta tensor"."""
    model, x = Queries(), torch.randn(WIDTH, WIDTH)
    want = model(x).detach()
    with attached(model, device=55 * KB) as handle, torch.no_grad():
        assert "queries.weight" in handle.plan.fixed
        for _ in range(2):
            assert torch.equal(model(x), want)


def test_diffusers_3922_a_row_of_the_token_embeddings_is_set(tmp_path):
    """https://github.com/huggingface/diffusers/issues/3922: a textual inversion writes to a table on meta."""
    whole, tokens = Tied(), torch.arange(5)[None]
    state = {name: each for name, each in whole.state_dict().items() if name != "head.weight"}
    save_file(state, tmp_path / "model.safetensors")
    with skeleton():
        model = Tied()
    row = torch.randn(WIDTH)
    whole.embed.weight.data[3] = row
    with attached(model, tmp_path, device=55 * KB) as handle, torch.no_grad():
        assert handle._engine.model.weights["embed.weight"].home is not None
        with pytest.raises(TierAbsentError, match=r"embed\.weight is not on the device"):
            model.embed.weight.data[3] = row
        with handle.weights(model.embed):
            model.embed.weight.data[3] = row
        for _ in range(2):
            assert torch.equal(model(tokens), whole(tokens))
        handle.detach("cpu")
    assert torch.equal(model.embed.weight, whole.embed.weight)


def test_diffusers_12673_blocks_that_a_call_leaves_out():
    """https://github.com/huggingface/diffusers/issues/12673: blocks that were not used made a mess of the picture."""
    model, x = chain(8), torch.randn(3, WIDTH)
    same = chain(8)

    def some(each, numbers):
        y = x
        for number in numbers:
            y = each[number](y)
        return y

    with attached(model, poison=True), torch.no_grad():
        for numbers in (range(8), range(0, 8, 2), range(7, -1, -1), [5, 5, 1], range(8)):
            assert torch.equal(some(model, numbers), some(same, numbers))


class Plus(nn.Module):
    def __init__(self, delta):
        super().__init__()
        self.delta = delta

    def forward(self, weight):
        return weight + self.delta


def test_peft_2916_a_parametrisation_of_a_weight():
    """https://github.com/huggingface/peft/issues/2916: the shape of a weight that is not there was (0,)."""
    model, x = chain(), torch.randn(3, WIDTH)
    want = model(x)
    with attached(model) as handle:
        module, name = absent(handle)
        assert module.weight.shape == (WIDTH, WIDTH)
        with pytest.raises(TierAbsentError, match=f"{name} is not on the device"):
            parametrize.register_parametrization(module, "weight", Plus(torch.ones(WIDTH, WIDTH)))
        assert not parametrize.is_parametrized(module)
        assert torch.equal(model(x), want)


def test_transformer_lens_1280_a_cast_by_hand_and_accelerate_2897_a_move():
    """https://github.com/TransformerLensOrg/TransformerLens/issues/1280: `parameter.data = parameter.data.to(dtype)`;
    https://github.com/huggingface/accelerate/issues/2897: `model.to(device)` of an offloaded model."""
    model, same, x = chain(), chain().to(torch.bfloat16), torch.randn(3, WIDTH, dtype=torch.bfloat16)
    with attached(model) as handle, torch.no_grad():
        module, name = absent(handle)
        with pytest.raises(TierAbsentError, match=f"{name} is not on the device"):
            module.weight.data = module.weight.data.to(torch.bfloat16)
        with pytest.raises(UsageError, match="cannot move"):
            model.to("meta")
        model.to(torch.bfloat16)
        assert torch.equal(model(x), same(x))


def test_llm_compressor_1301_weights_on_the_disk_are_changed(tmp_path):
    """https://github.com/vllm-project/llm-compressor/issues/1301: "Updating weights_map with disk offloading"."""
    model, same, x = chain(), chain(), torch.randn(3, WIDTH)
    with attached(model, tmp_path) as handle, torch.no_grad():
        assert handle.plan.disk
        for each, other in zip(model, same, strict=True):
            with handle.weights(each):
                each.weight.clamp_(-0.05, 0.05)
            other.weight.clamp_(-0.05, 0.05)
        assert torch.equal(model(x), same(x))
    assert all(torch.equal(*each) for each in zip(model.parameters(), same.parameters(), strict=True))


def test_flexllmgen_6_all_weights_on_the_disk_and_none_in_the_hosts_memory(tmp_path):
    """https://github.com/FMInference/FlexLLMGen/issues/6: memory was filled, and nothing was written to the disk."""
    model, same, x = chain(), chain(), torch.randn(3, WIDTH)
    with attached(model, tmp_path) as handle, torch.no_grad():
        assert handle.plan.disk
        assert not handle.plan.host
        assert handle.stats().moved["disk_write"] >= len(handle.plan.disk) * WIDTH * WIDTH * 4
        assert handle.stats().peak_bytes["host"] < WIDTH * WIDTH * 4
        assert torch.equal(model(x), same(x))


def test_airllm_254_layers_that_have_room_stay_between_requests():
    """https://github.com/lyogavin/airllm/issues/254: every request loads every layer."""
    model, same, x = chain(12), chain(12), torch.randn(1, WIDTH)
    with attached(model, device=8 * WIDTH * WIDTH * 4 + 12 * 256) as handle, torch.no_grad():
        for _ in range(3):
            model(x)
        handle.reset_stats()
        for _ in range(5):
            assert torch.equal(model(x), same(x))
        assert handle.stats().loads <= 5 * (12 - 6) + handle.plan.slots


def test_alpaca_lora_321_a_model_is_wrapped_after_it_was_attached():
    """https://github.com/tloen/alpaca-lora/issues/321: names with the prefix of the wrapper were looked up."""
    model, x = chain(), torch.randn(3, WIDTH)
    want = model(x).detach()
    with attached(model) as handle:
        wrapped = nn.ModuleDict({"base_model": nn.ModuleDict({"model": model})})
        for _ in range(2):
            assert torch.equal(wrapped["base_model"]["model"](x), want)
        state = wrapped.state_dict()
        assert torch.equal(state["base_model.model.0.weight"], chain()[0].weight)
        assert handle.plan.slots


def test_accelerate_1711_a_thread_that_only_looks_sees_no_wrong_values():
    """https://github.com/huggingface/accelerate/issues/1711: after a call the weights are on meta again."""
    model, x = chain(), torch.randn(3, WIDTH)
    found = []
    with attached(model) as handle:
        model(x)
        module, _ = absent(handle)

        def look():
            try:
                found.append(module.weight.detach().norm())
            except TierAbsentError as error:
                found.append(error)

        thread = threading.Thread(target=look)
        thread.start()
        thread.join()
        assert isinstance(found[0], TierAbsentError)
