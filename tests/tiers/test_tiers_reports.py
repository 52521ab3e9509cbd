"""More public threads about offloaded weights, each as a small program: it works here, or an error says what to do.

Each test is named for its project and number. Others are in test_tiers_complaints.py and test_tiers_threads.py.
"""

import pytest
import torch
from safetensors.torch import save_file
from torch import nn
from torch.nn import functional

from toprope.errors import TierAbsentError, UsageError
from toprope.tiers import attach, skeleton

pytestmark = [pytest.mark.process, pytest.mark.usefixtures("one_thread")]
WIDTH = 64
LAYER = WIDTH * WIDTH * 4
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


class Eight(nn.Module):
    """A layer with a weight in 8 bits and a scale for each row, which it multiplies when it runs."""

    def __init__(self, dtype, as_buffer=False):
        super().__init__()
        codes = torch.randn(WIDTH, WIDTH) * (1 if dtype.is_floating_point else 40)
        if as_buffer:
            self.register_buffer("weight", codes.to(dtype))
        else:
            self.weight = nn.Parameter(codes.to(dtype), requires_grad=False)
        self.register_buffer("scale", torch.rand(WIDTH, 1) / 100)

    def dequantised(self):
        return self.weight.float() * self.scale

    def forward(self, x):
        return functional.linear(x, self.dequantised())


def eights(dtype, count=8):
    torch.manual_seed(0)
    return nn.Sequential(*(Eight(dtype) for _ in range(count)))


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2, torch.int8], ids=str)
def test_accelerate_4151_and_1699_layers_of_8_bits_on_the_disk(dtype, tmp_path):
    """https://github.com/huggingface/accelerate/pull/4151: "unsupported ScalarType Float8_e4m3fn" when it was written;
    https://github.com/huggingface/accelerate/pull/1699: layers on the disk were in full precision."""
    model, same, x = eights(dtype), eights(dtype), torch.randn(3, WIDTH)
    with attached(model, tmp_path, device=14 * KB) as handle:
        assert handle.stats().moved["disk_write"] <= 8 * WIDTH * WIDTH
        assert handle.plan.bytes_in("disk") == len(handle.plan.disk) * WIDTH * WIDTH > 0
        for _ in range(2):
            assert torch.equal(model(x), same(x))
    assert all(torch.equal(*each) for each in zip(model.state_dict().values(), same.state_dict().values(), strict=True))


def test_onetrainer_1673_a_weight_is_dequantised_outside_of_its_layer():
    """https://github.com/Nerogar/OneTrainer/pull/1673: the weight was elsewhere, and its scale was not."""
    model, same = eights(torch.int8), eights(torch.int8)
    with attached(model, device=14 * KB) as handle:
        module, name = absent(handle)
        with pytest.raises(TierAbsentError, match=f"{name} is not on the device"):
            module.dequantised()
        for each, other in zip(model, same, strict=True):
            with handle.weights(each):
                assert torch.equal(each.dequantised(), other.dequantised())


class Patches(nn.Module):
    """Has a buffer of its own and one that no file has, as an embedding of patches."""

    def __init__(self):
        super().__init__()
        self.proj = nn.Linear(WIDTH, WIDTH)
        self.register_buffer("positions", torch.arange(WIDTH).float()[None], persistent=False)
        self.register_buffer("mean", torch.randn(WIDTH))

    def forward(self, x):
        return self.proj(x) + self.positions


class Vision(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.scale = nn.Parameter(torch.randn(WIDTH, WIDTH))  # of the model itself
        self.clip_mean = nn.Parameter(torch.randn(1, WIDTH))
        self.patches, self.layers = Patches(), chain()

    def forward(self, x):
        return self.layers(self.patches(x) - self.patches.mean) @ self.scale

    def post_process(self, x):
        return x * self.clip_mean + self.patches.mean


@pytest.mark.parametrize("place", ["host", "files"])
def test_accelerate_2701_767_and_diffusers_14695_13666_what_is_used_without_a_call(place, tmp_path):
    """https://github.com/huggingface/accelerate/issues/2701: models with buffers do not work;
    https://github.com/huggingface/accelerate/issues/767: a parameter of the model itself stayed on meta;
    https://github.com/huggingface/diffusers/pull/14695: a method that is called after forward uses parameters;
    https://github.com/huggingface/diffusers/pull/13666: a pipeline reads statistics of a module."""
    whole, x = Vision(), torch.randn(3, WIDTH)
    save_file(whole.state_dict(), tmp_path / "model.safetensors")
    if place == "files":
        with skeleton():
            model = Vision()
    else:
        model = Vision()
    with attached(model, tmp_path if place == "files" else None, device=70 * KB) as handle, torch.no_grad():
        assert handle.plan.slots
        for _ in range(2):
            assert torch.equal(model(x), whole(x))
            assert torch.equal(model.post_process(x), whole.post_process(x))
            assert torch.equal(model.patches.mean, whole.patches.mean)


def test_diffusers_2907_a_model_is_offloaded_twice():
    """https://github.com/huggingface/diffusers/issues/2907: hooks of the first time were left: "device mismatch"."""
    model, same, x = chain(), chain(), torch.randn(3, WIDTH)
    hooks = [len(each._forward_pre_hooks) for each in model.modules()]
    for device in (50 * KB, 70 * KB):
        with attached(model, device=device):
            with pytest.raises(UsageError, match="attached already"):
                attached(nn.ModuleDict({"unet": model}))
            assert torch.equal(model(x), same(x))
    assert [len(each._forward_pre_hooks) for each in model.modules()] == hooks
    assert torch.equal(model(x), same(x))


class Speech(nn.Module):
    """Models in a model, which are called one by one, and not by its own forward."""

    def __init__(self):
        super().__init__()
        self.semantic, self.coarse, self.codec = chain(4), chain(4), chain(4)

    @torch.no_grad()
    def generate(self, x, count=3):
        for _ in range(count):
            x = self.semantic(x)
        for each in self.coarse:
            x = each(x)
        return self.codec(x)


def test_transformers_47169_and_diffusers_5060_parts_are_called_by_themselves():
    """https://github.com/huggingface/transformers/issues/47169: parts of Bark were left on the host in `generate`;
    https://github.com/huggingface/diffusers/issues/5060: a text encoder that the program calls before the pipeline."""
    model, same, x = Speech(), Speech(), torch.randn(3, WIDTH)
    with attached(model, device=60 * KB) as handle:
        assert handle.plan.slots
        for _ in range(3):
            assert torch.equal(model.generate(x), same.generate(x))
            assert torch.equal(model.coarse(x), same.coarse(x))
        assert handle.plan.device_bytes <= 60 * KB


def test_transformers_23693_another_order_in_training_than_in_evaluation():
    """https://github.com/huggingface/transformers/issues/23693: "expected the next 4 parameters in the fetch queue"."""
    model, same, x = chain(8), chain(8), torch.randn(3, WIDTH)
    optimizers = [torch.optim.SGD(each.parameters(), 0.1) for each in (model, same)]
    with attached(model, device=100 * KB, training=True, poison=True):
        for step in range(4):
            found = []
            for each, optimizer in zip((model, same), optimizers, strict=True):
                optimizer.zero_grad()
                y = x
                for number in (range(8), (0, 3, 7), (7, 1, 1, 0), range(8))[step]:
                    y = torch.relu(each[number](y))
                y.square().mean().backward()
                optimizer.step()
                with torch.no_grad():
                    found.append(each[:5](x))
            assert torch.equal(*found)
    assert all(torch.equal(*each) for each in zip(model.parameters(), same.parameters(), strict=True))


def test_deepspeed_3570_a_layer_is_replaced_by_another_with_its_weight():
    """https://github.com/deepspeedai/DeepSpeed/issues/3570: layers for compression had empty weights."""

    class Compressed(nn.Linear):
        def forward(self, x):
            return functional.linear(x, self.weight.round(decimals=2), self.bias)

    model, same, x = chain(), chain(), torch.randn(3, WIDTH)
    with attached(model) as handle:
        module, name = absent(handle)
        made = Compressed(WIDTH, WIDTH)
        made.weight, made.bias = module.weight, module.bias
        model[int(name.partition(".")[0])] = made
        with pytest.raises(TierAbsentError, match=f"{name} is not on the device"):
            model(x)
    same[int(name.partition(".")[0])].__class__ = Compressed
    with attached(model):  # detached, replaced, attached
        assert torch.equal(model(x), same(x))


def test_deepspeed_846_and_4421_parameters_are_set_outside_of_their_module():
    """https://github.com/deepspeedai/DeepSpeed/issues/846: embeddings that another class initialises;
    https://github.com/deepspeedai/DeepSpeed/issues/4421: a bias that the gathering did not bring."""
    model, same, x = chain(), chain(), torch.randn(3, WIDTH)
    with attached(model) as handle:
        module, name = absent(handle)
        with pytest.raises(TierAbsentError, match=f"{name} is not on the device"):
            nn.init.normal_(module.weight)
        for each, other in zip(model, same, strict=True):
            for one in (each, other):
                torch.manual_seed(4)
                with handle.weights(each):
                    nn.init.normal_(one.weight, std=0.1)
                    nn.init.normal_(one.bias)
        assert torch.equal(model(x), same(x))


def test_deepspeed_7670_weights_are_let_go_once_their_layer_has_run():
    """https://github.com/deepspeedai/DeepSpeed/issues/7670: gathered parameters stayed until the end of forward."""
    model, x = chain(10), torch.randn(3, WIDTH)
    most = []
    with attached(model, device=3 * LAYER + 10 * 256) as handle:
        there = [each for unit in handle._engine._units for each in unit.weights]

        def count(*_):
            most.append(sum(each.parameters[0].__class__ is nn.Parameter for each in there))

        for each in model:
            each.register_forward_hook(count)
        for _ in range(2):
            model(x).sum().backward()
    assert max(most) == 1


def test_flextensor_3_hooks_of_the_program_run_once():
    """https://github.com/ai-dynamo/flextensor/issues/3: a hook ran four times once the model had been planned again."""
    model, same, x = chain(), chain(), torch.randn(3, WIDTH)
    calls = []
    with attached(model) as handle:
        for each in (model, same):
            added = each[2].register_forward_hook(lambda module, args, output: calls.append(module) or output + 1)
            if each is model:
                mine = added
        for count in range(1, 5):
            assert torch.equal(model(x), same(x))
            assert calls.count(model[2]) == count
        assert handle._engine.steps
        mine.remove()
        model(x)
        assert calls.count(model[2]) == 4
    assert not model[2]._forward_hooks


def test_airllm_324_a_model_that_fits_is_not_loaded_layer_by_layer(tmp_path):
    """https://github.com/lyogavin/airllm/pull/324: a model of 6 % of the memory came from the disk for each token."""
    whole, x = chain(), torch.randn(3, WIDTH)
    save_file(whole.state_dict(), tmp_path / "model.safetensors")
    with skeleton():
        model = chain()
    with attached(model, tmp_path, device="1MB") as handle:
        handle.reset_stats()
        for _ in range(3):
            assert torch.equal(model(x), whole(x))
        assert handle.plan.slots == 0
        assert handle.stats().loads == 0
        assert sum(handle.stats().moved.values()) == 0


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", ["granite", "phi", "qwen2", "gemma2"])
def test_airllm_191_and_172_any_family_of_models(kind, tmp_path):
    """https://github.com/lyogavin/airllm/issues/191, https://github.com/lyogavin/airllm/issues/172: names of layers and
    numbers of heads that are written into the program are those of one family."""
    transformers = pytest.importorskip("transformers")
    sizes = {
        "vocab_size": 160, "hidden_size": 48, "intermediate_size": 96, "num_hidden_layers": 4, "num_attention_heads": 4,
        "num_key_value_heads": 1, "head_dim": 12, "max_position_embeddings": 64, "pad_token_id": 0, "bos_token_id": 1,
        "eos_token_id": 2,
    }  # fmt: skip
    config = transformers.AutoConfig.for_model(kind, **sizes)
    torch.manual_seed(0)
    whole = transformers.AutoModelForCausalLM.from_config(config).eval()
    whole.save_pretrained(tmp_path)
    with skeleton():
        model = transformers.AutoModelForCausalLM.from_config(config).eval()
    model.tie_weights()
    size = sum(each.nbytes for each in whole.parameters())
    options = {"max_new_tokens": 5, "do_sample": False, "pad_token_id": 0}
    prompt = torch.arange(3, 9)[None]
    with attached(model, tmp_path, device=size // 2) as handle:
        assert handle.plan.slots
        assert torch.equal(model.generate(prompt, **options), whole.generate(prompt, **options))
