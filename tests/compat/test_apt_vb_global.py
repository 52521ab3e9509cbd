"""Facade apt_model.optimization.vb_global: a mode that it reports as active is active.

On the CPU in this process, and on a simulated card in another.
"""

import importlib
import os
import subprocess
import sys
import threading

import psutil
import pytest
import torch

from apt_machines import FACADES, SIMULATED
from device_stand_ins import told
from toprope.compat.apt_model.optimization import vb_global as vb
from toprope.device import FallbackWarning
from toprope.device.cpu import CpuDevice
from toprope.errors import ModeUnavailable, SettingError, UnsupportedError, UsageError
from toprope.tiers import modes
from toprope.tiers.modes import switch

pytestmark = pytest.mark.process

OFF = {
    "use_fp4": False, "use_flash_attn": False, "mixed_precision": False, "gradient_checkpointing": False,
    "activation_offload": False, "auto_estimate": False, "verbose": True,
}  # fmt: skip
BALANCED = OFF | {"use_flash_attn": True, "auto_estimate": True}
MEMORY = BALANCED | {"mixed_precision": True, "gradient_checkpointing": True, "activation_offload": True}
LINE = "=" * 70


@pytest.fixture(autouse=True)
def on_the_cpu_and_off(monkeypatch, capsys):
    monkeypatch.setenv("TOPROPE_DEVICE", "cpu")
    memory = psutil.virtual_memory()._replace(available=2**35)  # other programs do not decide what is free
    monkeypatch.setattr(psutil, "virtual_memory", lambda: memory)
    monkeypatch.setattr(CpuDevice, "memory_info", lambda self: (memory.available, memory.available))
    vb.disable()
    capsys.readouterr()
    yield
    vb.disable()
    torch.set_grad_enabled(True)


def measured(monkeypatch, speedup):
    """What `speed` and `full` are told of quantised products."""
    found = modes.Verdict("cpu", "nvfp4", torch.float32, ((1, speedup), (32, speedup)))
    monkeypatch.setattr(switch, "verdict", lambda device, format: found)


def mlp():
    torch.manual_seed(42)
    return torch.nn.Sequential(torch.nn.Linear(256, 512), torch.nn.ReLU(), torch.nn.Linear(512, 256))


def test_the_balanced_mode_shows_what_is_active_and_why_the_rest_is_not(capsys):
    vb.enable_balanced_mode()
    shown = capsys.readouterr().out.splitlines()
    head = shown.index("")  # how much of the disk is free is the machine's own matter
    assert shown[1] == "  Level 0: cpu - 4000MB @ 50.0GB/s（配置值）"
    assert shown[head:] == [
        "",
        LINE,
        "\N{ROCKET} 虚拟Blackwell已全局启用",
        LINE,
        "加速设备:        \N{LARGE BLUE CIRCLE} CPU",
        "FP4量化:         \N{CROSS MARK} 禁用",
        "Flash Attention: \N{WHITE HEAVY CHECK MARK} 启用",
        "混合精度:        \N{CROSS MARK} 禁用",
        "梯度检查点:      \N{CROSS MARK} 禁用",
        "激活值卸载:      \N{CROSS MARK} 禁用",
        "自动估算:        \N{WHITE HEAVY CHECK MARK} 启用",
        LINE,
        "",
    ]
    assert vb.is_enabled()
    assert vb.get_config() == BALANCED
    assert vb.get_stack().get_stats() | {"models": []} == vb.get_stats()


def test_flash_attention_is_shown_only_where_torch_would_take_it(capsys):
    """torch's own switch is off: the mode says so, and to ask for it by name is refused."""
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        vb.enable_balanced_mode()
        shown = capsys.readouterr().out
        assert "Flash Attention: \N{CROSS MARK} 禁用（scaled_dot_product_attention: math, float32）" in shown
        assert vb.get_config()["use_flash_attn"] is False
        before = vb.get_stack()
        with pytest.raises(UnsupportedError, match="fused attention is not in force on cpu"):
            vb.enable(use_flash_attn=True)
        assert vb.get_stack() is before
    vb.enable(use_flash_attn=True)
    assert vb.get_config()["use_flash_attn"] is True


def test_what_decides_about_flash_attention_is_what_attention_then_does():
    q = torch.ones(1, 2, 64, 64)
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.FLASH_ATTENTION):
        torch.nn.functional.scaled_dot_product_attention(q, q, q)  # raises where there is no such kernel
    assert torch._fused_sdp_choice(q, q, q) == torch.nn.attention.SDPBackend.FLASH_ATTENTION.value


@pytest.mark.parametrize(
    ("preset", "config"),
    [
        (vb.enable_balanced_mode, BALANCED),
        (vb.enable_memory_mode, MEMORY),
        (vb.enable_speed_mode, OFF | {"use_fp4": True, "auto_estimate": True}),
        (vb.enable_full_optimization, MEMORY | {"use_fp4": True}),
    ],
)
def test_each_preset_does_what_its_configuration_says(monkeypatch, capsys, preset, config):
    """Assertion 20, on a plain MLP without a `config`; the measurement is the test's."""
    measured(monkeypatch, 2.0)
    plain, x = mlp(), torch.randn(3, 256)
    expected = plain(x).detach()
    preset()
    assert vb.get_config() == config
    assert ("2.00 times as fast with 1 row" in capsys.readouterr().out) == config["use_fp4"]
    model = mlp()
    assert vb.optimize_model(model, "mine") is model
    assert "mine: 参数 262,912" in capsys.readouterr().out
    seen = []
    for layer in (model[0], model[2]):
        layer.register_forward_hook(lambda module, args, output: seen.append(output.dtype))
    with torch.no_grad():
        out = model(x)
    (told_of,) = vb.get_stats()["models"]
    assert (told_of["quantised_layers"] == 2) == config["use_fp4"]
    if config["use_fp4"]:
        assert told_of["quantised_bytes"] <= 0.57 * 2 * 256 * 512
        assert 0.01 < float((out - expected).norm() / expected.norm()) < 0.25
    elif config["mixed_precision"]:
        assert seen == [torch.bfloat16] * 2
        assert torch.allclose(out, expected, atol=0.02)
    else:
        assert torch.equal(out, expected)
    assert out.dtype == torch.float32
    model(x).sum().backward()
    assert all(each.grad is not None for each in model.parameters())
    vb.disable()
    assert torch.equal(model(x), expected)
    assert [type(each) for each in model] == [type(each) for each in plain]


def test_what_is_not_faster_is_refused_and_nothing_changes(monkeypatch, capsys):
    measured(monkeypatch, 0.5)
    for call in (vb.enable_speed_mode, vb.enable_full_optimization, lambda: vb.enable(use_fp4=True)):
        with pytest.raises(ModeUnavailable, match="not faster here"):
            call()
        assert (vb.is_enabled(), vb.get_stack(), vb.get_config()) == (False, None, OFF)
    assert capsys.readouterr().out == ""
    vb.enable(verbose=False)
    before = vb.get_stack()
    with pytest.raises(ModeUnavailable):
        vb.enable_speed_mode()
    assert vb.get_stack() is before
    monkeypatch.setenv("TOPROPE_FALLBACK", "1")
    with pytest.warns(FallbackWarning, match="goes on without what is not available") as said:
        vb.enable_full_optimization()
    assert len(said) == 1
    assert vb.get_config() == MEMORY
    assert "FP4量化:         \N{CROSS MARK} 禁用（nvfp4 on cpu" in capsys.readouterr().out


def test_budgets_come_from_the_configuration_or_the_variable(monkeypatch):
    """An absolute size from levels, a percentage of what the model needs from the variable."""
    torch.manual_seed(0)
    model, x = torch.nn.Sequential(*(torch.nn.Linear(256, 256) for _ in range(6))), torch.randn(3, 256)
    expected = model(x).detach()
    levels = [{"capacity_mb": 100, "device": "cpu"}]
    vb.enable(vgpu_config={"levels": levels}, verbose=False)
    assert torch.equal(model(x), expected)
    assert [each["attached"] for each in vb.get_stats()["models"]] == [False]
    monkeypatch.setenv("TOPROPE_DEVICE_MEMORY", "55%")
    vb.enable(verbose=False)
    with torch.no_grad():
        assert torch.equal(model(x), expected)
    assert [each["attached"] for each in vb.get_stats()["models"]] == [True]
    with pytest.raises(UsageError, match="vgpu_config has no 'gpu'"):
        vb.enable(vgpu_config={"gpu": "8GB"})


def test_models_are_estimated(capsys):
    with pytest.raises(UsageError, match="mine cannot be optimised: nothing is enabled"):
        vb.optimize_model(mlp(), "mine")
    counted = vb.estimate_model_resources(mlp())
    size = 262912 * 4 / 2**20
    assert (counted["parameters"], counted["weights_mb"], counted["total_mb"]) == (262912, size, 4 * size)
    assert (counted["activations_mb"], counted["source"]) == (None, "counted")
    found = vb.estimate_model_resources(
        {"hidden_size": 768, "num_hidden_layers": 12, "vocab_size": 50257}, batch_size=2
    )
    assert found["parameters"] == pytest.approx(124e6, rel=0.02)  # GPT-2's, without its positions
    assert found["activations_mb"] == pytest.approx(12 * 2 * 1024 * (8 * 768 + 2 * 3072) * 4 / 2**20)
    assert "estimated for a transformer" in capsys.readouterr().out
    with pytest.raises(UsageError, match="has no hidden_size, vocab_size"):
        vb.estimate_model_resources({"num_layers": 2})
    with pytest.raises(UsageError, match="vocab_size=0 is no positive number"):
        vb.estimate_model_resources({"num_layers": 2, "d_model": 8, "vocab_size": 0})


def test_off_again(capsys):
    assert vb.get_stats() == {}
    vb.print_stats()
    vb.enable_balanced_mode()
    vb.get_stack().put("a", torch.ones(2))
    capsys.readouterr()
    vb.print_stats()
    assert "管理tensor数: 1" in capsys.readouterr().out
    vb.disable()
    assert capsys.readouterr().out == "虚拟Blackwell已禁用\n"
    assert (vb.is_enabled(), vb.get_stack(), vb.get_stats(), vb.get_config()) == (False, None, {}, OFF)


def test_the_levels_can_be_given_and_printing_switched_off(capsys):
    levels = [{"capacity_mb": 3, "device": "cpu", "speed_gbps": 1}, {"capacity_mb": 5, "device": "cpu"}]
    vb.enable(vgpu_config={"levels": levels}, auto_estimate=False, verbose=False)
    assert [each["capacity_mb"] for each in vb.get_stats()["levels"]] == [3, 5]
    assert vb.get_config() == OFF | {"verbose": False}
    assert modes.active().room.device.size == 3 * 2**20
    assert capsys.readouterr().out == ""


def test_the_configuration_is_a_copy():
    vb.get_config()["use_fp4"] = True
    assert vb.get_config() == OFF


@pytest.mark.slow
def test_threads_see_one_state():
    seen, failures = set(), []

    def work():
        try:
            for _ in range(20):
                vb.enable(verbose=False)
                seen.add((vb.is_enabled(), vb.get_stack() is not None, len(vb.get_stats())))
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert (seen, failures) == ({(True, True, 7)}, [])


# The variables, read when the module is imported


def imported_anew(monkeypatch, **variables):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    name = vb.__name__
    monkeypatch.delitem(sys.modules, name, raising=False)
    return importlib.import_module(name)


@pytest.mark.parametrize("variables", [{}, {"VB_MODE": "nonsense"}, {"ENABLE_VIRTUAL_BLACKWELL": "0"}])
def test_without_the_switch_importing_prints_and_changes_nothing(monkeypatch, capsys, variables):
    module = imported_anew(monkeypatch, **variables)
    assert not module.is_enabled()
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("variables", [{}, {"VB_MODE": "Balanced"}])
def test_the_switch_enables_the_balanced_mode(monkeypatch, capsys, variables):
    module = imported_anew(monkeypatch, ENABLE_VIRTUAL_BLACKWELL="true", **variables)
    assert module.is_enabled()
    shown = capsys.readouterr().out
    assert "\N{ROCKET} 虚拟Blackwell已全局启用" in shown
    assert shown.endswith("\N{WHITE HEAVY CHECK MARK} 通过环境变量自动启用虚拟Blackwell (balanced模式)\n")


def test_an_unknown_mode_is_an_error_that_lists_the_four(monkeypatch):
    with pytest.raises(SettingError, match="no mode 'fast'") as caught:
        imported_anew(monkeypatch, ENABLE_VIRTUAL_BLACKWELL="1", VB_MODE="fast")
    assert "give full, speed, memory, balanced" in str(caught.value)
    with pytest.raises(SettingError, match="'perhaps' is not a truth value"):
        imported_anew(monkeypatch, ENABLE_VIRTUAL_BLACKWELL="perhaps", VB_MODE="balanced")


@pytest.mark.parametrize("mode", ["full", "speed", "memory"])
def test_each_mode_is_enabled_by_its_name(monkeypatch, mode):
    measured(monkeypatch, 2.0)
    module = imported_anew(monkeypatch, ENABLE_VIRTUAL_BLACKWELL="yes", VB_MODE=mode)
    assert modes.active().mode == mode
    module.disable()


PROGRAM = """
import torch
layer = torch.nn.MultiheadAttention(64, 4)
torch.nn.functional.scaled_dot_product_attention = lambda *args, **kwargs: 1 / 0
try:
    layer(*3 * [torch.ones(2, 3, 64)])
except ZeroDivisionError:
    print("fused")
import apt_model.optimization.vb_global as vb
print(vb.is_enabled(), vb.get_config()["use_flash_attn"])
"""


@pytest.mark.slow
def test_any_program_of_a_run_is_in_the_mode(tmp_path):
    """It imports torch, and knows nothing of modes; an unknown mode is told before it starts. (21)"""
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    command = [sys.executable, "-m", "toprope", "run", "--device", "cpu", "-q", str(program)]

    def run(**variables):
        return subprocess.run(command, env=os.environ | variables, capture_output=True, text=True, timeout=200)

    done = run(ENABLE_VIRTUAL_BLACKWELL="1", VB_MODE="balanced")
    assert done.stdout.splitlines()[-2:] == ["fused", "True True"], done.stderr
    assert done.stdout.count("虚拟Blackwell已全局启用") == 1
    done = run(ENABLE_VIRTUAL_BLACKWELL="1", VB_MODE="fast")
    assert (done.returncode, done.stdout) == (2, "")
    assert "there is no mode 'fast'" in done.stderr
    done = run(VB_MODE="speed")
    assert done.stdout.splitlines() == ["False False"]


def test_on_a_simulated_card():
    shown, config, levels = told(
        SIMULATED
        + FACADES
        + """
import contextlib, io
import apt_model.optimization.vb_global as vb
text = io.StringIO()
with contextlib.redirect_stdout(text):
    vb.enable_balanced_mode()
tell(text.getvalue(), vb.get_config(), [each["device"] for each in vb.get_stats()["levels"]])
"""
    )
    assert (
        "加速设备:        \N{LARGE YELLOW CIRCLE} 华为昇腾NPU\n"
        "FP4量化:         \N{CROSS MARK} 禁用\n"
        "Flash Attention: \N{WHITE HEAVY CHECK MARK} 启用\n"
    ) in shown
    assert config == BALANCED
    assert levels[:2] == ["npu:0", "cpu"]
