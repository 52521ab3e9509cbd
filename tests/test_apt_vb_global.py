"""apt_model.optimization.vb_global: what is shown is what is active. On the CPU here, on a simulated card elsewhere."""

import importlib
import sys
import threading
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))

from apt_machines import FACADES, SIMULATED
from device_stand_ins import told
from toprope.compat.apt_model.optimization import vb_global as vb
from toprope.errors import SettingError, UnsupportedError

OFF = {
    "use_fp4": False, "use_flash_attn": False, "mixed_precision": False, "gradient_checkpointing": False,
    "auto_estimate": False, "verbose": True,
}  # fmt: skip
LINE = "=" * 70


@pytest.fixture(autouse=True)
def on_the_cpu_and_off(monkeypatch, capsys):
    monkeypatch.setenv("TOPROPE_DEVICE", "cpu")
    vb.disable()
    capsys.readouterr()


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
        "混合精度:        \N{CROSS MARK} 禁用（optimize_model 尚未提供）",
        "梯度检查点:      \N{CROSS MARK} 禁用",
        "自动估算:        \N{CROSS MARK} 禁用（estimate_model_resources 尚未提供）",
        LINE,
        "",
    ]
    assert vb.is_enabled()
    assert vb.get_config() == OFF | {"use_flash_attn": True}
    assert vb.get_stack().get_stats() == vb.get_stats()


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
    ("call", "says"),
    [
        (vb.enable_speed_mode, "FP4 cannot"),
        (vb.enable_memory_mode, "mixed precision and gradient checkpointing cannot"),
        (vb.enable_full_optimization, "FP4 and mixed precision and gradient checkpointing cannot"),
        (lambda: vb.enable(use_fp4=True), "FP4 cannot"),
        (lambda: vb.enable(True), "FP4 cannot"),
        (lambda: vb.enable(mixed_precision=True), "mixed precision cannot"),
        (lambda: vb.enable(gradient_checkpointing=True), "gradient checkpointing cannot"),
    ],
)
def test_what_is_not_there_is_refused_and_nothing_changes(call, says, capsys):
    with pytest.raises(UnsupportedError, match=says):
        call()
    assert (vb.is_enabled(), vb.get_stack(), vb.get_config()) == (False, None, OFF)
    assert capsys.readouterr().out == ""
    vb.enable(verbose=False)
    before = vb.get_stack()
    with pytest.raises(UnsupportedError):
        call()
    assert vb.get_stack() is before


def test_models_are_neither_changed_nor_estimated_yet():
    model = torch.nn.Linear(2, 2)
    with pytest.raises(UnsupportedError, match="optimize_model is not there yet, mine is as it was"):
        vb.optimize_model(model, "mine")
    with pytest.raises(UnsupportedError, match="estimate_model_resources is not there yet"):
        vb.estimate_model_resources({"hidden_size": 768}, batch_size=8)


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
    assert capsys.readouterr().out == ""


def test_the_configuration_is_a_copy():
    vb.get_config()["use_fp4"] = True
    assert vb.get_config() == OFF


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
    assert (seen, failures) == ({(True, True, 6)}, [])


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
def test_a_mode_that_is_not_there_is_refused(monkeypatch, mode):
    with pytest.raises(UnsupportedError):
        imported_anew(monkeypatch, ENABLE_VIRTUAL_BLACKWELL="yes", VB_MODE=mode)


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
    assert config == OFF | {"use_flash_attn": True}
    assert levels[:2] == ["npu:0", "cpu"]
