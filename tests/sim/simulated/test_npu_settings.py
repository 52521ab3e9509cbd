"""Settings of torch.npu: what is checked, kept and read back, and what is said of those without effect.

Holds sim/npu/npu_config.py, deterministic.py, launch.py, overflow.py, _recovery.py against torch_npu's values and
texts. tests/sim/test_simulated.py runs this module in a process with simulated cards.
"""

import importlib
import threading
import warnings

import pytest
import torch

from children import facts, run
from toprope.sim.native import TASK, native

npu = torch.npu


# ---- options, arithmetic


def test_options_become_text_in_the_callers_dictionary() -> None:
    option = {"ACL_OP_DEBUG_LEVEL": 2, "FORCE_ACLNN_OP_LIST": "index", "MM_BMM_ND_ENABLE": "enable"}
    assert npu.set_option(option) is None
    assert option == {"ACL_OP_DEBUG_LEVEL": "2", "FORCE_ACLNN_OP_LIST": "index", "MM_BMM_ND_ENABLE": "enable"}


@pytest.mark.parametrize(
    "option",
    [
        {"ACL_PRECISION_MODE": "500"},
        {"ACL_OP_DEBUG_LEVEL": "300"},
        {"ACL_OP_COMPILER_CACHE_MODE": "2"},
        {"ACL_AICORE_NUM": "at"},
        {"ACL_AICORE_NUM": 33},
        {"ACL_OP_SELECT_IMPL_MODE": "100"},
    ],
)
def test_options_with_a_value_they_do_not_have(option) -> None:
    (name,) = option
    with pytest.raises(
        ValueError, match=rf"^value of {name} should be in .* but got .*\n.*ERR00001 PTA invalid parameter"
    ):
        npu.set_option(option)


def test_options_that_there_are_not() -> None:
    with pytest.raises(TypeError, match=r"^npu option must be a dict\."):
        npu.set_option([("ACL_AICORE_NUM", "1")])
    with pytest.raises(RuntimeError, match="invalid npu option name:NO_SUCH_OPTION"):
        npu.set_option({"NO_SUCH_OPTION": "1"})
    with pytest.raises(TypeError, match="option name is nullptr or is not string"):
        npu.set_option({1: "1"})


@pytest.mark.parametrize("name", ["ACL_OP_SELECT_IMPL_MODE", "ACL_OPTYPELIST_FOR_IMPLMODE"])
def test_options_that_are_deprecated(name) -> None:
    with pytest.warns(UserWarning, match=f"{name} is deprecated"):
        npu.set_option({name: "high_precision"})


def test_an_option_and_its_attribute_are_one() -> None:
    npu.set_option({"ALLOW_MATMUL_HF32": "enable"})
    assert npu.matmul.allow_hf32 is True
    npu.matmul.allow_hf32 = False
    assert npu.matmul.allow_hf32 is False


def test_arithmetic() -> None:
    assert facts(
        """
        import json, torch
        npu = torch.npu
        found = [npu.matmul.allow_hf32, npu.conv.allow_hf32, npu.matmul.cube_math_type]
        npu.matmul.allow_hf32, npu.conv.allow_hf32 = True, False
        npu.matmul.cube_math_type = npu.CubeMathType.USE_HF32
        found += [npu.matmul.allow_hf32, npu.conv.allow_hf32, npu.matmul.cube_math_type.name]
        print(json.dumps(found))
        """
    ) == [False, True, None, True, False, "USE_HF32"]
    assert npu.CubeMathType(4) is npu.CubeMathType.USE_FP32_ADD is npu.CubeMathType.FORCE_GRP_ACC_FOR_FP32


@pytest.mark.parametrize("settings", [npu.matmul, npu.conv])
@pytest.mark.parametrize("value", [1, None, "enable"])
def test_hf32_is_a_bool(settings, value) -> None:
    with pytest.raises(TypeError, match=r"^allow_hf32 must be a bool, but got .*\n.*ERR00002 PTA invalid type$"):
        settings.allow_hf32 = value


def test_attributes_that_torch_npu_does_not_know_either() -> None:
    with pytest.raises(TypeError, match="value should be one of Enum CubeMathType"):
        npu.matmul.cube_math_type = 3
    npu.conv.cube_math_type = 3
    assert npu.conv.cube_math_type is None
    assert not hasattr(npu.conv, "__wrapped__")


def test_the_internal_format_is_set_and_not_read() -> None:
    npu.config.allow_internal_format = False
    npu.config.nothing = 1
    for name in ("allow_internal_format", "nothing"):
        with pytest.raises(AttributeError, match="can be set and not be read"):
            getattr(npu.config, name)


def test_the_compile_mode() -> None:
    assert npu.is_jit_compile_false() is True
    npu.set_compile_mode(jit_compile=True)
    try:
        assert npu.is_jit_compile_false() is False
    finally:
        npu.set_compile_mode(False)
    assert npu.is_jit_compile_false() is True


@pytest.mark.parametrize(("sim", "expected"), [("310P3", False), ("910A", False), ("950PR_9599", True)])
def test_the_compile_mode_of_other_chips(sim, expected) -> None:
    assert facts("import torch; print(str(torch.npu.is_jit_compile_false()).lower())", sim=sim) is expected


def test_the_950_compiles_nothing() -> None:
    assert facts(
        """
        import json, torch, warnings
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            torch.npu.set_compile_mode(True)
            torch.npu.config.allow_internal_format = True
        print(json.dumps([torch.npu.is_jit_compile_false(), [str(each.message) for each in caught]]))
        """,
        sim="950PR_9599",
    ) == [
        True,
        [
            "This chip does not have jitCompile: it stays off.",
            "This chip does not have ALLOW_INTERNAL_FORMAT: it stays off.",
        ],
    ]


# ---- waiting, queue


@pytest.mark.parametrize(("mode", "kept"), [("default", 0), ("warn", 1), ("error", 2), (0, 0), (1, 1), (2, 2)])
def test_the_sync_debug_mode(mode, kept) -> None:
    tensor = torch.ones(3, device="npu")
    waits = (lambda: tensor[0].item(), tensor.cpu, tensor.nonzero, lambda: tensor[tensor > 0])
    npu.set_sync_debug_mode(mode)
    try:
        assert npu.get_sync_debug_mode() == kept
        npu.synchronize()  # a wait that is asked for is no finding
        tensor + 1
        for wait in waits:
            if kept == 0:
                wait()
            elif kept == 1:
                with pytest.warns(UserWarning, match="called a synchronizing NPU operation"):
                    wait()
            else:
                with pytest.raises(RuntimeError, match="called a synchronizing NPU operation"):
                    wait()
    finally:
        npu.set_sync_debug_mode(0)


def test_the_longest_wait() -> None:
    gate = threading.Event()
    task = TASK(lambda _: 0 if gate.wait(30) else 1)
    npu.set_op_timeout_ms(200)
    try:
        native().launch(0, 0, task, None)
        with pytest.raises(RuntimeError, match="error code is 107019"):
            npu.synchronize()
    finally:
        gate.set()
        npu.set_op_timeout_ms(1091 * 1000)
    npu.synchronize()
    for wrong in (0, -1, True, 2**32, "1"):
        with pytest.raises(RuntimeError, match=r"number of milliseconds|negative value to unsigned|Overflow when"):
            npu.set_op_timeout_ms(wrong)


def test_a_stopped_card_drops_its_work_and_fails_until_it_is_started_again() -> None:
    kept = torch.arange(3, device="npu:1")
    gate, ran = threading.Event(), []
    first, second = TASK(lambda _: 0 if gate.wait(30) else 1), TASK(lambda _: ran.append(1) or 0)
    native().launch(1, 0, first, None)
    native().launch(1, 0, second, None)
    npu.stop_device(1)
    gate.set()
    for use in (lambda: torch.ones(1, device="npu:1"), lambda: kept + 1, lambda: npu.set_device(1)):
        with pytest.raises(RuntimeError, match=r"FORCE STOP.*error code is 107022"):
            use()
    assert (torch.ones(1, device="npu:0") + 1).item() == 2
    npu.restart_device(1)
    assert ran == []
    assert kept.tolist() == [0, 1, 2]
    with pytest.raises(AssertionError, match="Invalid device id"):
        npu.stop_device(99)


def test_a_card_that_stops_in_a_backward_pass_does_not_end_the_process() -> None:
    weight = torch.ones(3, device="npu:1", requires_grad=True)
    loss = (weight * 2).sum()
    npu.stop_device(1)
    with pytest.raises(RuntimeError, match="FORCE STOP"):
        loss.backward()
    npu.restart_device(1)
    (weight * 2).sum().backward()
    assert weight.grad.tolist() == [2, 2, 2]


def test_tensors_of_a_rebuilt_card_are_not_read() -> None:
    recovery = importlib.import_module("torch.npu._recovery")
    damaged = torch.ones(3, device="npu")
    npu.restart_device(0, rebuild_all_resources=True)
    try:
        assert not recovery.check_npu_tensor_is_safe(damaged)
        with pytest.raises(RuntimeError, match=r"There is unsafe data in the input tensor\."):
            damaged + 1
        damaged.copy_(torch.zeros(3))
        assert (damaged + 1).tolist() == [1, 1, 1]
    finally:
        recovery.set_npu_tensor_unsafe_check_flag(False)


def test_a_snapshot_lists_pieces_and_their_blocks() -> None:
    npu.empty_cache()
    small, large = torch.empty(1000, device="npu"), torch.empty(3 << 20, dtype=torch.uint8, device="npu")
    pieces = {piece["address"]: piece for piece in npu.memory_snapshot() if piece["device"] == 0}
    for tensor, kind, size in ((small, "small", 2 << 20), (large, "large", 20 << 20)):
        (piece,) = (each for each in pieces.values() if 0 <= tensor.data_ptr() - each["address"] < each["total_size"])
        assert (piece["segment_type"], piece["total_size"], piece["stream"]) == (kind, size, 0)
        (block,) = (each for each in piece["blocks"] if each["address"] == tensor.data_ptr())
        assert block["state"] == "active_allocated"
        assert block["requested_size"] == tensor.numel() * tensor.element_size()
        assert sum(each["size"] for each in piece["blocks"]) == size
    assert sum(piece["allocated_size"] for piece in pieces.values()) == npu.memory_allocated(0)
    assert sum(piece["total_size"] for piece in pieces.values()) == npu.memory_reserved(0)
    assert npu.memory_snapshot((1, 0)) == []


def test_the_figures_of_pinned_memory() -> None:
    torch.ones(1, device="npu")
    npu.host_empty_cache()
    before = npu.host_memory_stats()
    pinned = torch.empty(1000, dtype=torch.uint8).pin_memory()
    stats = npu.host_memory_stats()
    for group in ("allocated_bytes", "active_bytes"):
        assert stats[f"{group}.current"] == before[f"{group}.current"] + 1024  # sizes are powers of two
        assert stats[f"{group}.peak"] >= before[f"{group}.current"] + 1024
    assert stats["num_host_alloc"] >= 1
    assert torch.accelerator.is_available()
    del pinned
    stats = npu.host_memory_stats()
    assert stats["allocated_bytes.current"] == before["allocated_bytes.current"] + 1024  # kept for the next one
    assert stats["active_bytes.current"] == before["active_bytes.current"]
    npu.host_empty_cache()
    npu.reset_peak_host_memory_stats()
    npu.reset_accumulated_host_memory_stats()
    size = before["allocated_bytes.current"]
    stats = npu.host_memory_stats_as_nested_dict()
    assert stats["allocated_bytes"] == {"current": size, "peak": size, "allocated": 0, "freed": 0}


@pytest.mark.parametrize(
    ("mode", "text"),
    [
        ("loud", "expected one of `default`, `warn`, `error`"),
        (3, "expected one of 0,1,2"),
        (-1, "expected one of 0,1,2"),
        (1.0, "debug_mode type must long"),
    ],
)
def test_sync_debug_modes_that_there_are_not(mode, text) -> None:
    with pytest.raises(RuntimeError, match=text):
        npu.set_sync_debug_mode(mode)
    assert npu.get_sync_debug_mode() == 0


def test_the_task_queue(monkeypatch) -> None:
    assert npu.get_task_queue_enable() == 1
    try:
        npu.set_task_queue_enable("2")
        assert npu.get_task_queue_enable() == 2
        monkeypatch.setenv("ASCEND_LAUNCH_BLOCKING", "1")
        assert npu.get_task_queue_enable() == 0
    finally:
        npu.set_task_queue_enable(1)
    with pytest.raises(RuntimeError, match="mode must be 0, 1, or 2, but got 3"):
        npu.set_task_queue_enable(3)


# ---- determinism


def test_deterministic_between_two_places() -> None:
    seen = []

    def look(tensor):
        tensor.register_hook(lambda gradient: seen.append(torch.are_deterministic_algorithms_enabled()))
        return tensor

    x = torch.ones(3, device="npu", requires_grad=True)
    before = look(x * 2)
    inside = look(npu.enable_deterministic_with_backward(before) * 2)
    assert torch.are_deterministic_algorithms_enabled()
    after = npu.disable_deterministic_with_backward(inside)
    assert not torch.are_deterministic_algorithms_enabled()
    after.sum().backward()
    assert seen == [True, False]
    assert not torch.are_deterministic_algorithms_enabled()
    assert x.grad.cpu().tolist() == [4.0] * 3


def test_the_deterministic_level() -> None:
    try:
        for level, expected in ((1, True), (2, True), (0, False)):
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                npu.set_deterministic_level(level)
            said = [f"sets torch.use_deterministic_algorithms({expected})"] * (level != 2)
            for one, expected_text in zip(caught, [*said, "leave torch.use_deterministic_algorithms"], strict=True):
                assert expected_text in str(one.message)
            assert torch.are_deterministic_algorithms_enabled() is expected
            assert npu.deterministic._get_deterministic_level() == level
        torch.use_deterministic_algorithms(True)
        assert npu.deterministic._get_deterministic_level() == 1
        for level in (4, -1):
            with pytest.raises(RuntimeError, match="supports configuring 0/1/2/3"):
                npu.set_deterministic_level(level)
        with pytest.raises(RuntimeError, match=r"set_deterministic_level\(3\)' requires CANN"):
            npu.set_deterministic_level(3)
        assert torch.are_deterministic_algorithms_enabled()
    finally:
        torch.use_deterministic_algorithms(False)


# ---- the card


def test_peers() -> None:
    assert npu.can_device_access_peer(0, 1) is True
    assert npu.can_device_access_peer("npu:1", torch.device("npu:0")) is True
    assert npu.can_device_access_peer(2, 2) is False
    with pytest.raises(AssertionError, match=r"^Invalid device id"):
        npu.can_device_access_peer(-1, 0)
    with pytest.raises(AssertionError, match=r"^Invalid peer device id"):
        npu.can_device_access_peer(0, 4)


def test_the_capability_is_what_the_variable_says(monkeypatch) -> None:
    for text, expected, said in (
        ("", None, "it is not set"),
        ("8", None, "it is '8', which is not of that form"),
        ("8.x", None, "not of that form"),
        ("8.0", (8, 0), "it tells nothing about the NPU"),
        ("10.3", (10, 3), "it tells nothing about the NPU"),
    ):
        monkeypatch.setenv("TORCH_NPU_DEVICE_CAPABILITY", text)
        with pytest.warns(UserWarning, match=said):
            assert npu.get_device_capability(0) == expected


def test_things_an_npu_has_not() -> None:
    with pytest.warns(UserWarning, match="no blas handle"):
        assert npu.current_blas_handle() is None
    with pytest.warns(UserWarning, match="one library only"):
        assert npu._backends.preferred_linalg_library("magma") == torch._C._LinalgBackend.Default
    assert npu.utils.get_cann_version() == npu.utils.get_cann_version("DRIVER") == ""
    with pytest.raises(RuntimeError, match="module must be string"):
        npu.utils.get_cann_version(1)
    assert npu.check_uce_in_memory(0) == 0
    assert npu.ipc_collect() is None


@pytest.mark.parametrize("kind", ["flash", "mem_efficient", "math"])
def test_switches_of_attention_are_torchs(kind) -> None:
    enable, enabled = getattr(npu._backends, f"enable_{kind}_sdp"), getattr(npu._backends, f"{kind}_sdp_enabled")
    with pytest.warns(UserWarning, match="chooses its attention by itself"):
        enable(False)
    try:
        assert getattr(torch.backends.cuda, f"{kind}_sdp_enabled")() is False
        with pytest.warns(UserWarning, match="chooses its attention by itself"):
            assert enabled() is False
    finally:
        getattr(torch.backends.cuda, f"enable_{kind}_sdp")(True)


def test_switches_of_attention_for_a_while() -> None:
    now = [getattr(torch.backends.cuda, f"{kind}_sdp_enabled") for kind in ("flash", "math", "mem_efficient")]

    def fail_inside() -> None:
        with npu._backends.sdp_kernel(False, True, False):
            assert [switch() for switch in now] == [False, True, False]
            raise KeyError

    with pytest.warns(UserWarning, match="only torch's switches are set"), pytest.raises(KeyError):
        fail_inside()
    assert [switch() for switch in now] == [True, True, True]


# ---- overflow


INF, NAN = float("inf"), float("nan")


def test_overflow_is_looked_for_in_the_values() -> None:
    assert npu.utils.is_support_inf_nan() is True
    check = npu.utils.npu_check_overflow
    assert [check(value) for value in (1.0, INF, -INF, NAN)] == [False, True, True, True]
    for value in (INF, NAN):
        assert check(torch.tensor([1.0, value], device="npu")) is True
    assert check(torch.ones(3, dtype=torch.float16, device="npu")) is False
    assert check(torch.full((8,), 60000.0, dtype=torch.float16, device="npu")) is False
    with pytest.raises(RuntimeError, match=r"^Unsupported type\."):
        check(1)


def test_there_is_no_flag_to_ask() -> None:
    with pytest.raises(
        RuntimeError, match=r"^Unsupported api when soc_version >= Ascend910B1, please use npu_check_over"
    ):
        npu.get_npu_overflow_flag()
    with pytest.warns(UserWarning, match="no flag to clear"):
        npu.clear_npu_overflow_flag()


FLAGS = """
import json, torch
found = [torch.npu.utils.is_support_inf_nan()]
for call in ("get_npu_overflow_flag()", "clear_npu_overflow_flag()", "utils.npu_check_overflow(1.0)"):
    try:
        eval(f"torch.npu.{call}")
    except NotImplementedError as error:
        found.append("has no flag of overflows" in str(error))
print(json.dumps(found))
"""


@pytest.mark.parametrize("sim", ["910A", "310P3"])
def test_chips_with_a_flag(sim) -> None:
    assert facts(FLAGS, sim=sim) == [False, True, True, True]


def test_inf_and_nan_can_be_switched_off() -> None:
    assert facts(FLAGS, INF_NAN_MODE_FORCE_DISABLE="1") == [False, True, True, True]
    assert facts(FLAGS, INF_NAN_MODE_FORCE_DISABLE="1", INF_NAN_MODE_ENABLE="0") == [False, True, True, True]
    assert facts(FLAGS, sim="910A", INF_NAN_MODE_ENABLE="0") == [False, True, True, True]
    ask = "import torch; print(str(torch.npu.utils.is_support_inf_nan()).lower())"
    assert facts(ask, sim="950PR_9599", INF_NAN_MODE_ENABLE="0", INF_NAN_MODE_FORCE_DISABLE="1") is True


def test_inf_and_nan_are_not_switched_off_by_halves(monkeypatch) -> None:
    monkeypatch.setenv("INF_NAN_MODE_ENABLE", "0")
    with pytest.raises(RuntimeError, match="INF_NAN_MODE_ENABLE shouldn't be set to 0 on the current device"):
        npu.utils.is_support_inf_nan()
    monkeypatch.setenv("INF_NAN_MODE_ENABLE", "yes")
    with pytest.raises(RuntimeError, match="INF_NAN_MODE_ENABLE should be 0 or 1"):
        npu.utils.is_support_inf_nan()


# ---- marks for tools


def test_marks_and_ranges() -> None:
    mstx, stream = npu.mstx, npu.current_stream()
    assert mstx.mark("here") is None
    assert mstx.mark("here", stream, domain="mine") is None
    assert (mstx.range_start("a", stream), mstx.range_push("b"), mstx.range_pop()) == (0, -1, -1)
    assert mstx.range_end(0) is None

    @mstx.mstx_range("work")
    def double(x, *, by=2):
        """Doubles."""
        return x * by

    assert (double(3), double(3, by=5), double.__name__) == (6, 15, "double")
    with mstx.annotate("a range", stream) as annotated:
        assert annotated.range_id == 0
    assert annotated.range_id is None

    @mstx.annotate()
    def fails():
        raise KeyError

    with pytest.raises(KeyError):
        fails()


def test_marks_that_are_not_valid_are_ignored() -> None:
    mstx = npu.mstx
    for call, wrong in (
        (lambda: mstx.mark(""), "message"),
        (lambda: mstx.mark(3), "message"),
        (lambda: mstx.range_start("a", stream="npu"), "stream"),
        (lambda: mstx.range_push("a", domain=""), "domain"),
        (lambda: mstx.range_pop(domain=3), "domain"),
        (lambda: mstx.range_end("a"), "range_id"),
        (lambda: mstx.range_end(0, domain=""), "domain"),
    ):
        with pytest.warns(UserWarning, match=f"does nothing: its {wrong} is not"):
            assert call() in (None, 0, -1)


def test_no_setting_prints_anything() -> None:
    done = run("import torch; torch.npu.set_option({}); torch.npu.set_compile_mode(); torch.npu.mstx.mark('a')")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
