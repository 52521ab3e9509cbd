"""Facade apt_model.optimization.vgpu_stack, on the CPU in this process and on a simulated card in another.

Numbers in names are those of the specification's assertions.
"""

import copy

import pytest
import torch

from apt_machines import FACADES, MACHINES, SIMULATED
from device_stand_ins import told
from toprope.compat.apt_model.optimization import vgpu_stack as module
from toprope.compat.apt_model.optimization.vgpu_stack import VGPULevel, VGPUStack, VGPUStackLinear, create_vgpu_stack
from toprope.device.cpu import CpuDevice
from toprope.errors import TierCapacityError, UsageError

pytestmark = pytest.mark.process

MIB = 2**20
LEVEL_KEYS = [
    "level", "device", "capacity_mb", "used_mb", "usage", "hit_rate", "hits", "misses", "evictions", "cached_tensors",
]  # fmt: skip
STACK_KEYS = ["levels", "total_requests", "l0_hit_rate", "promotions", "demotions", "total_tensors"]
TWO = {"levels": [{"capacity_mb": 10, "device": "cpu", "speed_gbps": 50}, {"capacity_mb": 50, "device": "cpu"}]}


@pytest.fixture(autouse=True)
def on_the_cpu(monkeypatch):
    monkeypatch.setenv("TOPROPE_DEVICE", "cpu")


@pytest.fixture
def stack():
    return VGPUStack(TWO, verbose=False)


def used(stack):
    return [level["used_mb"] * MIB for level in stack.get_all_stats()]


def test_13_eviction_loses_nothing(stack):
    originals = {f"w{number}": torch.randn(MIB // 4) for number in range(40)}
    for key, tensor in originals.items():
        stack.register(key, tensor)
    assert used(stack) == [10 * MIB, 30 * MIB]
    assert stack.get_stats()["demotions"] >= 30
    assert all(torch.equal(stack.access(key), tensor) for key, tensor in originals.items())
    stats = stack.get_stats()
    assert used(stack)[0] <= 10 * MIB
    assert (stats["total_tensors"], stats["total_requests"]) == (40, 40)
    assert 30 <= stats["promotions"] == 40 - stats["levels"][0]["hits"]


def test_the_documented_keys_and_no_others(stack, capsys):
    stack.put("a", torch.ones(MIB // 4))
    stack.get("a")
    stack.get("nobody")
    stats = stack.get_stats()
    assert list(stats) == STACK_KEYS
    assert [list(each) for each in stats["levels"]] == [LEVEL_KEYS] * 2
    assert stack.get_all_stats() == stats["levels"]
    assert stats["levels"][0] == {
        "level": 0, "device": "cpu", "capacity_mb": 10.0, "used_mb": 1.0, "usage": 0.1, "hit_rate": 0.5, "hits": 1,
        "misses": 1, "evictions": 0, "cached_tensors": 1,
    }  # fmt: skip
    assert stats["l0_hit_rate"] == 0.5  # an unknown key is a miss: the rate is no longer 100 % by construction
    stack.print_stats()
    shown = capsys.readouterr().out
    assert "虚拟Blackwell堆叠统计" in shown
    assert "容量: 1.0/10.0 MB (10.0%)" in shown
    assert "传输速度: 50.0GB/s（配置值）" in shown
    assert "传输速度: 未知" in shown


def test_put_and_get_are_there(stack):
    tensor = torch.ones(3)
    assert stack.put("a", tensor) is True
    assert stack.get("a") is tensor
    assert stack.get("b") is None


def test_15_the_same_key_eight_times_is_one_copy_and_remove_and_clear_return_to_nothing(stack):
    for _ in range(8):
        stack.register("a", torch.ones(MIB // 4))
    assert used(stack) == [MIB, 0]
    stack.remove("a")
    assert used(stack) == [0, 0]
    stack.register("a", torch.ones(MIB // 4))
    stack.clear()
    assert (used(stack), stack.get_stats()["total_tensors"]) == ([0, 0], 0)


def test_16_too_large_is_a_typed_error_and_no_line_that_goes_by(stack, capsys):
    stack.register("a", torch.ones(4))
    before = stack.get_stats()
    with pytest.raises(TierCapacityError, match=r"51\.0 MiB has no room on any level"):
        stack.register("large", torch.ones(51 * MIB, dtype=torch.uint8))
    assert stack.get_stats() == before
    assert stack.get("large") is None
    assert capsys.readouterr().out == ""


def test_priority_is_heeded(stack):
    for number, priority in enumerate([5, 1, 5]):
        stack.register(str(number), torch.ones(3 * MIB, dtype=torch.uint8), priority)
    stack.register("more", torch.ones(3 * MIB, dtype=torch.uint8))
    assert stack.levels[1].get("1") is not None
    assert stack.levels[1].get("0") is None


def test_prefetch_brings_to_level_0(stack):
    for number in range(12):
        stack.register(str(number), torch.ones(MIB, dtype=torch.uint8))
    stack.prefetch(["0", "1", "nobody"])
    assert [stack.levels[0].get(key) is not None for key in ("0", "1", "2")] == [True, True, False]
    assert stack.get_stats()["demotions"] == 4


def test_a_level_alone_refuses_what_it_cannot_keep():
    level = VGPULevel(3, 1, "cpu", 50)
    assert level.put("a", torch.ones(MIB, dtype=torch.uint8))
    assert not level.put("b", torch.ones(1))  # the original dropped "a" for it
    assert level.get("a") is not None
    assert level.get_stats()["level"] == 3
    assert (level.current_bytes, level.capacity_bytes, level.transfer_speed) == (MIB, MIB, 50e9)
    assert level.remove("a").numel() == MIB
    assert level.remove("a") is None
    assert list(level.get_stats()) == LEVEL_KEYS


def test_12_the_default_takes_no_more_than_is_free(monkeypatch, capsys):
    monkeypatch.setattr(CpuDevice, "memory_info", lambda self: (2**40, 2**40))
    monkeypatch.setattr(module, "free_on_disk", lambda folder: 2**40)
    monkeypatch.setattr(module, "is_memory", lambda folder: False)
    stack = create_vgpu_stack()
    assert [(each["device"], each["capacity_mb"]) for each in stack.get_all_stats()] == [("cpu", 4000), ("ssd", 16000)]
    assert capsys.readouterr().out.splitlines() == [
        "[VGPU Stack] 初始化完成，2层堆叠", "  Level 0: cpu - 4000MB @ 50.0GB/s（配置值）",
        "  Level 1: ssd - 16000MB @ 7.0GB/s（配置值）",
    ]  # fmt: skip
    assert [(each.transfer_speed, each.transfer_speed_source) for each in stack.levels] == [
        (50e9, "configured"), (7e9, "configured"),
    ]  # fmt: skip
    monkeypatch.setattr(CpuDevice, "memory_info", lambda self: (1000 * MIB, 4000 * MIB))
    monkeypatch.setattr(module, "free_on_disk", lambda folder: 2000 * MIB)
    assert [each["capacity_mb"] for each in create_vgpu_stack().get_all_stats()] == [900, 1800]
    monkeypatch.setattr(module, "is_memory", lambda folder: True)  # a file there would be no disk
    assert [each["device"] for each in create_vgpu_stack().get_all_stats()] == ["cpu"]
    with pytest.raises(TierCapacityError):
        create_vgpu_stack({"levels": [{"capacity_mb": 1001, "device": "cpu", "speed_gbps": 50}]})


def test_a_level_of_half_a_mib_was_shown_as_none(capsys):
    create_vgpu_stack({"levels": [{"capacity_mb": mib, "device": "cpu", "speed_gbps": 50} for mib in (0.5, 10)]})
    shown = capsys.readouterr().out.splitlines()[1:]
    assert [line.partition(" @")[0] for line in shown] == ["  Level 0: cpu - 0.5MB", "  Level 1: cpu - 10MB"]


def test_13_and_14_a_level_on_an_ssd_is_a_file_in_its_folder(tmp_path, capsys):
    ssd = {"capacity_mb": 200, "device": "ssd", "speed_gbps": 7, "path": str(tmp_path)}
    with create_vgpu_stack({"levels": [*TWO["levels"], ssd]}) as stack:
        assert "  Level 2: ssd - 200MB @ 7.0GB/s（配置值）" in capsys.readouterr().out
        originals = {f"w{number}": torch.randn(MIB) for number in range(20)}
        for key, tensor in originals.items():
            stack.register(key, tensor.clone())
        assert used(stack) == [8 * MIB, 48 * MIB, 24 * MIB]
        (file,) = tmp_path.iterdir()
        assert file.stat().st_size >= 24 * MIB
        assert stack.get_stats()["demotions"] >= 18
        stack.prefetch(["w0", "nobody"])
        assert all(torch.equal(stack.access(key), tensor) for key, tensor in originals.items())
        stack.print_stats()
        shown = capsys.readouterr().out
        assert shown.count("GB/s（实测）") == 2  # read and written
        assert stack.levels[2].transfer_speed_source == "measured"
        low = next(key for key in originals if stack.levels[2].get(key) is not None)
        assert torch.equal(stack.remove(low), originals[low])
        assert used(stack)[2] == 20 * MIB
    assert not list(tmp_path.iterdir())


def test_14_a_level_on_an_ssd_alone(tmp_path):
    level = VGPULevel(2, 4, "ssd", 7, tmp_path)
    value = torch.randn(1000)
    assert level.put("a", value)
    assert not level.put("b", torch.zeros(5 * MIB, dtype=torch.uint8))
    assert torch.equal(level.get("a"), value)
    assert (level.device, level.current_bytes) == ("ssd", 4000)
    assert torch.equal(level.remove("a"), value)


def test_17_every_documented_call_is_there(stack, capsys):
    stack.register("a", torch.ones(4))
    stack.put("b", torch.zeros(4))
    stack.prefetch(["a", "b"])
    assert torch.equal(stack.access("a"), torch.ones(4))
    assert torch.equal(stack.get("b"), torch.zeros(4))
    assert stack.get_stats()["levels"] == stack.get_all_stats()
    stack.print_stats()
    assert "管理tensor数: 2" in capsys.readouterr().out  # the script of 17 is in test_example_npu_integration.py


@pytest.mark.parametrize(
    "config",
    [
        {},
        {"levels": []},
        {"levels": TWO["levels"], "prefetch": True},
        {"levels": [{"device": "cpu"}]},
        {"levels": [{"device": "cpu", "capacity_mb": -1}]},
        {"levels": [{"device": "cpu", "capacity_mb": "10"}]},
        {"levels": [{"device": "cpu", "capacity_mb": 1, "speed": 5}]},
        {"levels": ["cpu"]},
        {"levels": [{"device": "ssd", "capacity_mb": 1, "path": 5}]},
        [],
    ],
)
def test_a_configuration_that_cannot_be_read_is_refused(config):
    with pytest.raises(UsageError, match="cannot be read"):
        VGPUStack(config)


def test_the_weights_of_a_layer_train(stack):
    torch.manual_seed(0)
    layer = VGPUStackLinear(8, 4, stack)
    assert [name for name, _ in layer.named_parameters()] == ["weight", "bias"]
    assert stack.get_stats()["total_tensors"] == 1
    before = layer.weight.detach().clone()
    optimiser = torch.optim.Adam(layer.parameters())
    x = torch.randn(3, 8)
    for _ in range(2):
        optimiser.zero_grad()
        layer(x).square().sum().backward()
        optimiser.step()
    assert layer.weight.grad.abs().sum() > 0
    assert not torch.equal(layer.weight, before)
    assert stack.get_stats()["total_requests"] == 2


def test_a_layer_follows_double_and_load_state_dict(stack):
    layer, plain = VGPUStackLinear(8, 4, stack, bias=False), torch.nn.Linear(8, 4, bias=False).double()
    x = torch.randn(3, 8, dtype=torch.float64)
    layer(x.float())
    layer.double()
    assert list(layer.state_dict()) == ["weight"]
    layer.load_state_dict(plain.state_dict())
    assert torch.equal(layer(x), plain(x))
    twin = copy.deepcopy(torch.nn.Sequential(layer))
    assert torch.equal(twin(x), plain(x))
    assert twin[0].vgpu_stack is stack
    assert used(stack) == [2 * 8 * 4 * 8, 0]


# Which levels a machine gets, in Python alone: no tensor can live there


WHICH = FACADES + """
from toprope.device import Memory, available
for each in available():
    type(each).memory = lambda self: Memory(0, 0, 0, 1 << 40, 1 << 40)
import apt_model.optimization.vgpu_stack as module
from apt_model.core.system import get_device
from toprope.tiers.stack import tier
module.free_on_disk = tier.free_on_disk = lambda folder: 1 << 40
module.is_memory = lambda folder: False
stack = module.VGPUStack(verbose=False)
levels = [
    [each["device"], each["capacity_mb"], level.transfer_speed, level._stats().speed_source]
    for each, level in zip(stack.get_all_stats(), stack.levels)
]
tell(levels, str(get_device()))
"""  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(
    ("machine", "levels"),
    [
        ("none", [["cpu", 4000, 50e9], ["ssd", 16000, 7e9]]),
        ("npu", [["npu:0", 2000, 600e9], ["cpu", 8000, 40e9], ["ssd", 32000, 7e9]]),
        ("both", [["cuda:0", 2000, 900e9], ["cpu", 8000, 50e9], ["ssd", 32000, 7e9]]),
    ],
)
def test_12_level_0_is_where_get_device_goes(machine, levels):
    found, device = told(MACHINES[machine] + WHICH)
    assert [each[:3] for each in found] == levels
    assert all(each[3] == "configured" for each in found)
    assert found[0][0].partition(":")[0] == device.partition(":")[0]


# On a simulated card


CARD = SIMULATED + FACADES + """
from toprope.device.cpu import CpuDevice
CpuDevice.memory_info = lambda self: (1 << 40, 1 << 40)
import apt_model.optimization.vgpu_stack as module
answers = {}
stack = module.create_vgpu_stack()
answers["default"] = [[each["device"], each["capacity_mb"]] for each in stack.get_all_stats()][:2]
config = {"levels": [{"capacity_mb": 10, "device": "npu:1"}, {"capacity_mb": 50, "device": "cpu", "speed_gbps": 40}]}
stack = module.VGPUStack(config, verbose=False)
originals = [torch.randn(2**18) for _ in range(40)]
for number, tensor in enumerate(originals):
    stack.register(str(number), tensor)
low = stack.levels[1].get("0")
answers["low"] = str(low.device)
answers["up"] = [str(stack.access("0").device), stack.levels[1].get("0") is None]
answers["equal"] = all(torch.equal(stack.access(str(n)).cpu(), tensor) for n, tensor in enumerate(originals))
answers["stats"] = [[each["used_mb"] for each in stack.get_all_stats()], stack.get_stats()["demotions"]]
answers["measured"] = [level._stats().speed_source for level in stack.levels]
small = module.VGPUStack({"levels": [{"capacity_mb": 0.001, "device": "npu:0"}, {"capacity_mb": 1, "device": "cpu"}]})
layer = module.VGPUStackLinear(64, 32, small)
before = layer.weight.detach().clone()
optimiser = torch.optim.Adam(layer.parameters())
y = layer(torch.randn(4, 64, device="npu:0"))
y.square().sum().backward()
optimiser.step()
answers["layer"] = [str(layer.weight.device), str(y.device), bool(layer.weight.grad.abs().sum() > 0),
                    not torch.equal(layer.weight, before), [each["cached_tensors"] for each in small.get_all_stats()]]
tell(answers)
"""  # fmt: skip


@pytest.mark.slow
def test_on_a_card_tensors_are_where_their_level_is():
    card = told(CARD)
    assert card["default"] == [["npu:0", 2000], ["cpu", 8000]]
    assert card["low"] == "cpu"
    assert card["up"] == ["npu:1", True]
    assert card["equal"]
    used, demotions = card["stats"]
    assert used == [10, 30]
    assert demotions >= 30
    assert card["measured"] == ["measured", "measured"]
    assert card["layer"] == ["cpu", "npu:0", True, True, [0, 1]]
