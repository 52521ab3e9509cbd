"""One test for each public thread that `toprope.device` answers, named for it; numbered as in test_doctor_threads.

The list at the end holds all of them together.

The measure is the thread that each test's docstring names.
"""

import re
from pathlib import Path

import pytest
import torch

from device_stand_ins import MISSING, in_python, install, run_anew, told
from toprope.visible_devices import explain, explain_grant, npu_map, visible_cards

pytestmark = [pytest.mark.native, pytest.mark.process]

CARDS = """
import os
os.environ.update({variables!r})
import toprope.sim
toprope.sim.install({chip!r}, count={count})
import torch
from toprope import device
from toprope.errors import TopropeError
def error_of(call, *arguments, **named):
    try:
        call(*arguments, **named)
    except TopropeError as error:
        return [type(error).__name__, str(error)]
"""


def cards(chip="910B3", count=2, **variables):
    return CARDS.format(chip=chip, count=count, variables=variables)


def test_thread_1_libhccl_is_missing_and_that_is_not_no_npu(tmp_path):
    """https://github.com/vllm-project/vllm-ascend/issues/262: "Failed to infer device type"."""
    install(tmp_path, "torch_npu", f"raise ImportError({MISSING!r})")
    kind, what, do = told(REFUSED, tmp_path)
    assert kind == "DeviceBrokenError"
    assert "libhccl.so is missing" in what
    assert "the environment of CANN" in do


def test_thread_2_libatb_is_missing_which_is_another_advice(tmp_path):
    """https://github.com/vllm-project/vllm-ascend/issues/152: the environment of NNAL is not loaded."""
    install(tmp_path, "torch_npu", f"raise ImportError({MISSING.replace('hccl', 'atb')!r})")
    kind, what, do = told(REFUSED, tmp_path)
    assert kind == "DeviceBrokenError"
    assert "libatb.so is missing" in what
    assert "the environment of NNAL" in do


REFUSED = """
from toprope import device
from toprope.errors import DeviceUnavailableError
try:
    device.get("npu")
except DeviceUnavailableError as error:
    tell(type(error).__name__, error.what, error.do)
"""


@pytest.mark.slow
def test_thread_6_importing_toprope_imports_no_torch_and_a_failing_backend_is_explained(tmp_path):
    """https://github.com/flagos-ai/FlagTree/issues/1024: "Failed to load the backend extension: torch_npu"."""
    points = "[torch.backends]\ntorch_npu = torch_npu:_autoload\n"
    install(tmp_path, "torch_npu", "raise ImportError('undefined symbol: x')", entry_points=points)
    code = "import sys\nimport toprope.device\nassert 'torch' not in sys.modules\n" + REFUSED
    kind, what, do = told(code.replace("DeviceUnavailableError", "DeviceError"), tmp_path, by=run_anew,
                          TORCH_DEVICE_BACKEND_AUTOLOAD="1")  # fmt: skip
    assert (kind, what) == ("DeviceBrokenError", "torch cannot be imported: ImportError: undefined symbol: x.")
    assert "TORCH_DEVICE_BACKEND_AUTOLOAD=0" in do


def test_thread_7_a_name_that_torch_does_not_know():
    """https://github.com/pytorch/pytorch/issues/180712: twenty kinds of device are listed, and not why."""
    with pytest.raises(RuntimeError, match="Expected one of cpu, cuda"):
        torch.device("npu")
    kind, what, _ = told(REFUSED)
    assert (kind, what) == ("DeviceNotInstalledError", "there is no npu: torch_npu is not installed.")


def test_thread_8_no_visible_device_names_what_was_looked_at(tmp_path):
    """https://github.com/vllm-project/vllm-ascend/issues/14631: a bare AssertionError, and words about GPUs."""
    install(tmp_path, "torch_npu", in_python(0))
    code = REFUSED.replace('get("npu")', 'get("npu:7")').replace("error.what, error.do", "str(error), error.looked_at")
    kind, text, looked_at = told(code, tmp_path)
    assert kind == "DeviceNotVisibleError"
    assert "/dev/davinci" in text
    assert "driver" in looked_at
    assert "GPU" not in text


@pytest.mark.slow
@pytest.mark.parametrize("mask", ["1,0", "0,0"])
def test_thread_9_a_mask_that_does_not_rise_is_not_a_silent_no(mask):
    """https://github.com/agentscope-ai/Trinity-RFT/pull/618: is_available() is False and nobody says why."""
    assert visible_cards(mask, 2).cards == ()
    assert "numbers must rise" in explain(mask, 2)
    code = cards(ASCEND_RT_VISIBLE_DEVICES=mask) + "tell(torch.npu.is_available(), *error_of(device.get, 'npu'))"
    available, kind, text = told(code)
    assert (available, kind) == (False, "DeviceNotVisibleError")
    assert f"ASCEND_RT_VISIBLE_DEVICES={mask}: numbers must rise" in text


@pytest.mark.slow
def test_thread_11_a_mask_with_gaps():
    """https://github.com/vllm-project/vllm-ascend/issues/449: 0,1,2,5 and then "Invalid device id"."""
    ids = npu_map("0,1,2,5", None, range(8))
    assert [ids.to_physical(logical) for logical in range(len(ids))] == [0, 1, 2, 5]
    assert ids.from_physical(5) == 3
    code = cards(count=8, ASCEND_RT_VISIBLE_DEVICES="0,1,2,5")
    code += "tell(str(device.get('npu:3')), len(device.available('npu')), *error_of(device.get, 'npu:5'))"
    third, count, kind, text = told(code)
    assert (third, count, kind) == ("npu:3", 4, "DeviceIndexError")
    assert "ASCEND_RT_VISIBLE_DEVICES=0,1,2,5" in text


@pytest.mark.parametrize(
    ("mask", "granted", "nodes", "wrong"),
    [
        (None, "5", range(8), "never granted"),
        ("0", "5", range(8), "never granted"),
        ("5", "5", range(8), ""),
        (None, "5", [5], ""),
        ("0", "5", [5], ""),
        ("5", "5", [5], "shows none of card 5"),
    ],
)
def test_thread_12_a_card_that_the_container_was_never_granted(mask, granted, nodes, wrong):
    """https://github.com/Project-HAMi/HAMi/issues/1894: one variable is set and the runtime reads the other."""
    found = explain_grant(mask, granted, list(nodes))
    assert (wrong in found) if wrong else not found


@pytest.mark.slow
def test_thread_17_no_bfloat16_tensor_is_made_on_a_chip_that_has_none(tmp_path):
    """https://github.com/hiyouga/LlamaFactory/issues/4165, https://github.com/vllm-project/vllm-ascend/issues/6490."""
    code = (
        cards("310P3", 1)
        + """
from safetensors.torch import save_file
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten

class Made(TorchDispatchMode):
    found = set()
    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        self.found |= {str(each.dtype) for each in tree_flatten(result)[0]
                       if isinstance(each, torch.Tensor) and each.device.type == "npu"}
        return result

save_file({"w": torch.ones(3, dtype=torch.bfloat16)}, PATH)
with Made() as made:
    card = device.get()
    best = card.best_dtype()
    loaded = card.load(PATH, dtype=best)["w"].dtype
tell(card.name, str(best), str(loaded), sorted(made.found), card.probe(torch.bfloat16).reason)
""".replace("PATH", repr(str(tmp_path / "w.safetensors")))
    )
    name, best, loaded, made, reason = told(code)
    assert (best, loaded) == ("torch.float16", "torch.float16")
    assert "torch.bfloat16" not in made
    assert "torch.float16" in made
    assert reason == f"{name} has no bfloat16 (torch.npu.is_bf16_supported)"


def test_thread_18_weights_are_loaded_under_every_name_of_a_device(tmp_path):
    """https://github.com/ModelTC/LightX2V/issues/935, https://github.com/safetensors/safetensors/issues/674."""
    code = (
        cards()
        + f"""
from safetensors.torch import save_file
path = {str(tmp_path / "w.safetensors")!r}
save_file({{"w": torch.ones(3)}}, path)
names = ["npu", "npu:1", " NPU:1 ", 1, torch.device("npu:1"), device.get("npu:1"), "cpu", "auto", None]
tell([str(device.load(path, name)["w"].device) for name in names], error_of(device.load, path, "gcu"))
"""
    )
    devices, refused = told(code)
    assert devices == ["npu:0", *["npu:1"] * 5, "cpu", "npu:0", "npu:0"]
    assert refused[0] == "DeviceNameError"
    assert "there is no kind of device 'gcu'" in refused[1]


def test_thread_22_a_question_about_the_card_does_not_fall_into_cuda():
    """https://github.com/Comfy-Org/ComfyUI/issues/6483: torch.cuda.get_device_properties on a machine with an NPU."""
    code = (
        cards()
        + """
import sys
class Poison:
    def __getattr__(self, name):
        raise AssertionError(f"torch.cuda.{name} was asked for")
torch.cuda = sys.modules["torch.cuda"] = Poison()
card = device.get()
with device.use(card), card.side_stream():
    card.synchronize()
total, seed = card.properties().total_memory, card.generator(1).initial_seed()
tell(card.name, total, card.memory().total, str(card.best_dtype()), seed)
"""
    )
    assert told(code) == ["Ascend910B3", 62423 * 2**20, 62423 * 2**20, "torch.bfloat16", 1]


def test_thread_23_what_was_asked_for_and_what_was_got():
    """https://github.com/open-compass/opencompass/pull/1618: no error at all, the job ran on the CPU."""
    code = (
        cards()
        + """
import warnings
with warnings.catch_warnings(record=True) as said:
    warnings.simplefilter("always")
    made = device.choose("cuda", fallback=True)
tell(error_of(device.get, "cuda"), made.asked, str(made.device), [str(each.message) for each in said])
"""
    )
    refused, asked, got, said = told(code)
    assert refused[0] == "DeviceNotInstalledError"
    assert "or use npu, cpu" in refused[1]
    assert (asked, got) == ("cuda", "npu:0")
    assert len(said) == 1
    assert said[0].startswith("cuda was asked for (argument) and npu:0 is used: there is no cuda: torch")


def test_thread_36_whether_offloading_saves_memory_is_asked_and_not_listed():
    """https://github.com/huggingface/diffusers/pull/14786: a guard that lists cuda and xpu misses the next kind."""
    code = cards() + "tell({each.kind: each.capabilities.separate_memory for each in device.available()})"
    assert told(code) == {"npu": True, "cpu": False}


@pytest.mark.slow
def test_thread_40_a_scheduler_that_hands_out_the_machines_number():
    """https://github.com/verl-project/verl/pull/7507: Ray says 5, the runtime sees 0 to 3, and answers 107001."""
    assert npu_map(None, "4-7", range(8)).from_physical(5) == 1
    assert npu_map("4,5,6,7", None, range(8)).from_physical(5) == 1
    assert npu_map("0-3", None, range(8)).from_physical(5) is None
    code = cards(count=8, ASCEND_RT_VISIBLE_DEVICES="4,5,6,7") + "tell(error_of(device.get, 'npu:5'))"
    kind, text = told(code)
    assert kind == "DeviceIndexError"
    assert "the program sees 4 devices (npu:0, npu:1, npu:2, npu:3)" in text
    assert "107001" in text


def test_thread_41_a_mask_that_is_set_too_late():
    """https://github.com/Ascend/pytorch/issues/67: changed after the first touch, and then 507033."""
    code = (
        cards(ASCEND_RT_VISIBLE_DEVICES="0,1")
        + """
device.get()
os.environ["ASCEND_RT_VISIBLE_DEVICES"] = "1"
said = [error_of(device.get), error_of(device.get, "npu:1"), error_of(device.load, "nothing")]
os.environ["ASCEND_RT_VISIBLE_DEVICES"] = ""
tell(*said, error_of(device.get))
"""
    )
    for kind, text in told(code):
        assert kind == "DeviceMaskError"
        assert "ASCEND_RT_VISIBLE_DEVICES: '0,1' at first, now '" in text


def test_thread_42_choosing_a_device_does_not_use_it(tmp_path):
    """https://github.com/vllm-project/vllm-ascend/issues/4502: "Cannot re-initialize NPU in forked subprocess"."""
    uses = """
def use(*arguments, **named):
    raise AssertionError("the card was used")
for name in ("init", "_lazy_init", "current_device", "set_device", "synchronize", "mem_get_info", "current_stream",
             "get_device_properties", "Stream", "memory_allocated"):
    setattr(npu, name, use)
"""
    install(tmp_path, "torch_npu", in_python(2) + uses)
    code = """
from toprope import device
made = [device.get(), device.get("npu:1"), device.choose("npu").device, *device.available(), device.current()]
device.survey()
tell([str(each) for each in made])
"""
    assert told(code, tmp_path) == ["npu:0", "npu:1", "npu:0", "npu:0", "npu:1", "cpu", "npu:0"]


def test_thread_50_worker_threads_of_a_web_page_get_the_device_they_are_given():
    """https://github.com/AUTOMATIC1111/stable-diffusion-webui/pull/14801: set_device in each worker thread."""
    code = (
        cards()
        + """
from concurrent.futures import ThreadPoolExecutor
def generate(_):
    return torch.ones(1, device="npu").device.index, str(device.current())
with ThreadPoolExecutor(3) as pool, device.use("npu:1"):
    tell(list(pool.map(generate, range(3))), list(pool.map(device.use("npu:1")(generate), range(6))))
"""
    )
    without, taken = told(code)
    assert without == [[0, "npu:0"]] * 3
    assert taken == [[1, "npu:1"]] * 6


# Every thread in which devices have a part and that can be tried without a card, by its number here.
THREADS = {
    1: ["vllm-project/vllm-ascend/issues/262"],
    2: ["vllm-project/vllm-ascend/issues/152"],
    3: ["Ascend/pytorch/issues/7"],
    4: ["Ascend/pytorch/issues/37"],
    6: ["flagos-ai/FlagTree/issues/1024"],
    7: ["pytorch/pytorch/issues/180712"],
    8: ["vllm-project/vllm-ascend/issues/14631"],
    9: ["agentscope-ai/Trinity-RFT/pull/618"],
    11: ["vllm-project/vllm-ascend/issues/449"],
    12: ["Project-HAMi/HAMi/issues/1894"],
    13: ["verl-project/verl/issues/6756"],
    17: ["hiyouga/LlamaFactory/issues/4165", "vllm-project/vllm-ascend/issues/6490"],
    18: ["ModelTC/LightX2V/issues/935", "safetensors/safetensors/issues/674"],
    22: ["Comfy-Org/ComfyUI/issues/6483"],
    23: ["open-compass/opencompass/pull/1618"],
    27: ["hiyouga/LlamaFactory/issues/5674"],
    36: ["huggingface/diffusers/pull/14786"],
    40: ["verl-project/verl/pull/7507"],
    41: ["Ascend/pytorch/issues/67"],
    42: ["vllm-project/vllm-ascend/issues/4502"],
    50: ["vllm-project/vllm-omni/issues/261", "AUTOMATIC1111/stable-diffusion-webui/pull/14801"],
}


@pytest.mark.parametrize(("number", "link"), [(number, link) for number in THREADS for link in THREADS[number]])
def test_every_thread_has_a_test_that_is_named_for_it(number, link):
    folder = Path(__file__).resolve().parents[1]
    tests = [
        test
        for file in folder.rglob("test_*.py")
        for test in re.split(r"^(?=def test_)", file.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]
        if re.search(rf"https://github.com/{re.escape(link)}\b", test)
    ]
    name = rf"def test_(thread_{number}|\w*_{link.rpartition('/')[2]})_"
    assert any(re.match(name, test) for test in tests), f"no test is named for {link}"
