"""Facade `device_utils`: what a port of an image editor asks of its DeviceManager, and the original's defects.

Numbers in names are those of the assertions in the port's specification. What doctor says of the same machines is in
tests/device/test_doctor_wheel.py (3, 4), and what toprope.device answers itself in tests/device.
"""

import json
import textwrap
import threading
import weakref

import numpy
import pytest
import torch
from safetensors.torch import save_file
from torch.utils._python_dispatch import TorchDispatchMode

import published_wheel
from device_stand_ins import MISSING, cuda, in_python, install, run, told
from toprope.compat import device_utils, run_remarks
from toprope.compat.device_utils import DeviceManager
from toprope.device import FallbackWarning, probing
from toprope.device.cpu import CpuDevice
from toprope.errors import DeviceNameError, DeviceNotInstalledError, SeedError, WeightsError

pytestmark = [pytest.mark.native, pytest.mark.process]

FACADE = """
from toprope.compat import install
install()
import device_utils
from device_utils import DeviceManager
"""

# What happens to a name: the device, or the error.
ASK = (
    FACADE
    + """
def asked(*names, **more):
    for name in names:
        try:
            yield str(DeviceManager(name, **more).device)
        except Exception as error:
            yield f"{type(error).__name__}: {error}"
"""
)

# Two simulated cards in a process that has imported torch already.
SIMULATED = "import toprope.sim\ntoprope.sim.install(chip='910B3', count=2)\n" + FACADE


@pytest.fixture(autouse=True)
def bare(monkeypatch, tmp_path):
    """Nothing is set in this process, and nobody has asked yet."""
    for name in ("TOPROPE_DEVICE", "PREFERRED_DEVICE", "TOPROPE_FALLBACK", "NPU_DEVICE_ID", "TOPROPE_RUN_DIR"):
        monkeypatch.delenv(name, raising=False)
    for name in device_utils.WITHOUT_EFFECT:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(device_utils, "_managers", {})
    monkeypatch.setattr(device_utils, "_reported", set())


def cpu():
    return DeviceManager("cpu")


# ---- the choice


def test_01_without_an_accelerator_it_is_the_cpu_with_one_line_in_the_log():
    code = """
import logging
kept = []
class Keep(logging.Handler):
    def emit(self, record): kept.append((record.levelname, record.name, record.getMessage()))
before = logging.root.level, list(logging.root.handlers)
logging.root.addHandler(Keep())
for name in ("toprope", "device_utils"):
    logging.getLogger(name).setLevel(logging.INFO)
"""
    ask = "dm = DeviceManager()\ntell(dm.device_type, str(dm.device), str(dm.dtype), repr(dm), kept)"
    kind, where, dtype, text, kept = told(code + FACADE + ask)
    assert (kind, where, dtype) == ("cpu", "cpu", "torch.float32")
    assert text == "DeviceManager(device=cpu, dtype=torch.float32)"
    assert len(kept) == 1, kept
    assert kept[0][:2] == ["INFO", "device_utils"]
    assert kept[0][2].startswith("device cpu (automatic; npu: torch_npu is not installed; cuda: ")


def test_01_defect_importing_it_configured_the_programs_logging():
    code = "import logging, sys\n" + FACADE + "tell(logging.root.level, len(logging.root.handlers))\nDeviceManager()"
    done = run("def tell(*values): print(*values)\n" + code)
    assert (done.stdout, done.stderr) == (f"{30} 0\n", "")


def test_importing_it_imports_no_torch():
    code = "import sys\nsys.modules['torch'] = None\n" + FACADE + "print(DeviceManager.__module__)"
    assert run(code).stdout == "device_utils\n"


def test_02_defect_what_was_asked_for_was_replaced_in_silence():
    with pytest.raises(DeviceNotInstalledError, match="there is no npu: torch_npu is not installed") as caught:
        DeviceManager("npu")
    assert caught.value.do.endswith("or use cpu")
    # where it is allowed: the next device, and one warning that names the program's line
    code = """
import warnings
with warnings.catch_warnings(record=True) as said:
    warnings.simplefilter("always")
    got = [str(DeviceManager("npu", fallback=True).device) for _ in range(2)]
tell(got, [(each.category.__name__, str(each.message), each.filename) for each in said])
"""
    got, said = told(FACADE + code)
    assert got == ["cpu", "cpu"]
    text = "npu was asked for (argument) and cpu is used: there is no npu: torch_npu is not installed"
    assert said == [["FallbackWarning", text, "<string>"]]


def test_02_fallback_by_the_variable(monkeypatch):
    monkeypatch.setenv("TOPROPE_FALLBACK", "1")
    with pytest.warns(FallbackWarning, match=r"cuda was asked for \(argument\) and cpu is used"):
        assert DeviceManager("cuda").device_type == "cpu"


@pytest.mark.parametrize("raised", [f"OSError({MISSING!r})", f"RuntimeError({MISSING!r})"])
def test_03_defect_a_broken_torch_npu_ended_the_program(tmp_path, raised):
    install(tmp_path, "torch_npu", f"raise {raised}")
    chosen, asked = told(ASK + "tell(*asked(None, 'npu'))", tmp_path)
    assert chosen == "cpu"
    assert asked.startswith("DeviceBrokenError: there is no npu: torch_npu 2.13.0 is installed but cannot be loaded")
    assert "libhccl.so is missing" in asked


wheel = pytest.fixture(published_wheel.unpacked, scope="module")


@pytest.mark.slow
def test_04_the_published_torch_npu_without_cann(wheel):
    assert told(ASK + "tell(*asked(None))", wheel) == "cpu"


@pytest.mark.slow
def test_05_defect_the_mask_of_cuda_was_read_as_an_index():
    for mask, chosen in {"0,1": "cuda:0", "3": "cuda:0", "GPU-abc": "cuda:0", "": "cpu", "-1": "cpu"}.items():
        assert told(cuda(4) + ASK + "tell(*asked(None))", CUDA_VISIBLE_DEVICES=mask) == chosen, mask


def test_06_defect_an_index_was_lost_or_out_of_range(tmp_path):
    install(tmp_path, "torch_npu", in_python(2))
    two = told(cuda(2) + ASK + "tell(*asked('npu:1', 'cuda:1', 'NPU:0 '))", tmp_path)
    assert two == ["npu:1", "cuda:1", "npu:0"]
    one = told(cuda(1) + ASK + "import torch_npu\ntorch.npu.count = 1\ntell(*asked('npu:1', 'cuda:1'))", tmp_path)
    assert one[0].startswith("DeviceIndexError: there is no npu:1, the program sees 1 device (npu:0).")
    assert one[1].startswith("DeviceIndexError: there is no cuda:1, the program sees 1 device (cuda:0).")


def test_07_defect_a_name_with_a_slip_was_ignored():
    with pytest.raises(DeviceNameError, match="there is no kind of device 'tpu'") as caught:
        DeviceManager("tpu")
    assert "use one of cpu, cuda, npu" in caught.value.do
    with pytest.raises(DeviceNameError):
        DeviceManager("npu:one")
    assert DeviceManager(" CPU ").device == "cpu"


def test_what_was_set_decides_where_no_argument_does(monkeypatch):
    monkeypatch.setenv("PREFERRED_DEVICE", "npu")
    with pytest.raises(DeviceNotInstalledError, match="PREFERRED_DEVICE"):
        DeviceManager()
    with pytest.raises(DeviceNotInstalledError):
        DeviceManager("")  # what os.environ.get("...", "") hands on is no name
    assert DeviceManager("cpu").device_type == "cpu"
    monkeypatch.setenv("TOPROPE_DEVICE", "cpu")
    assert DeviceManager().device_type == "cpu"


NUMBERED = (
    ASK
    + """
import os
def numbered(value, *names):
    os.environ["NPU_DEVICE_ID"] = value
    return list(asked(*names))
"""
)


def test_npu_device_id_is_the_index_where_none_was_given(tmp_path):
    """Also where torch's current card cannot be asked for: the original asked for it all the same."""
    install(tmp_path, "torch_npu", in_python(3) + "npu.current_device = lambda: 1 / 0\n")
    code = "tell(numbered(' 2 ', None, 'npu', 'npu:1', 'cpu', 2), numbered('', 'npu'))"
    named, empty = told(NUMBERED + code, tmp_path)
    assert named == ["npu:2", "npu:2", "npu:1", "cpu", "npu:2"]
    assert empty == ["npu:0"]


def test_defect_a_wrong_npu_device_id_was_swallowed(tmp_path):
    install(tmp_path, "torch_npu", in_python(3))
    code = "tell(*numbered('one', None), *numbered('-1', 'npu'), *numbered('3', None), *numbered('1.0', None, 'cpu'))"
    for allowed in ("0", "1"):
        word, negative, beyond, point, unconcerned = told(NUMBERED + code, tmp_path, TOPROPE_FALLBACK=allowed)
        assert word.startswith("SettingError: 'one' is not the index of an npu.")
        assert "environment variable NPU_DEVICE_ID=one" in word
        assert negative.startswith("SettingError: '-1' is not")
        assert beyond.startswith("DeviceIndexError: there is no npu:3, the program sees 3 devices (")
        assert "environment variable NPU_DEVICE_ID=3" in beyond
        assert point.startswith("SettingError: '1.0' is not")
        assert unconcerned == "cpu"


# ---- the dtype


class NoMatmul(TorchDispatchMode):
    """A device that multiplies bfloat16 element by element, but not as matrices."""

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        if "aten::mm" in function.name() and result.dtype is torch.bfloat16:
            raise RuntimeError("EZ1001: not implemented for DT_BFLOAT16")
        return result


@pytest.mark.slow
def test_09_defect_a_dtype_was_tried_with_one_product_element_by_element(monkeypatch):
    monkeypatch.setattr(probing, "_known", {})
    monkeypatch.setattr(CpuDevice, "dtype_order", ("bfloat16", "float16", "float32"))
    with NoMatmul():
        assert (torch.ones(2, dtype=torch.bfloat16) * 2).tolist() == [2, 2]
        assert cpu().dtype in (torch.float16, torch.float32)


def test_defect_scripts_took_float16_on_the_cpu():
    assert cpu().dtype is torch.float32


# ---- generators and seeds


def test_08_a_device_without_generators_has_them_on_the_cpu_and_says_so(tmp_path):
    install(tmp_path, "torch_npu", in_python(2))
    code = """
drawn = lambda: [dm.create_generator(3).device.type, dm.generator_device, dm.last_seed]
dm = DeviceManager()
print(dm.device, dm.generator_device, dm.last_seed, *drawn(), *drawn())
"""
    done = run(FACADE + code, tmp_path)
    assert done.stdout == "npu:0 None None cpu cpu 3 cpu cpu 3\n"
    assert done.stderr.count("npu:0 draws no random numbers itself, its generators are on the CPU") == 1


@pytest.mark.parametrize("seed", [None, "random", " Random ", -1, "-1", numpy.int64(-1)])
def test_11_defect_no_seed_was_an_error_or_a_number_nobody_knew(seed):
    dm = cpu()
    first = dm.create_generator(seed)
    assert first.initial_seed() == dm.last_seed
    assert 0 <= dm.last_seed < 2**63
    assert dm.generator_device == str(first.device) == "cpu"
    json.dumps([dm.last_seed, dm.generator_device])
    again = dm.create_generator(dm.last_seed)
    numbers = [torch.randn(64, generator=each).numpy().tobytes() for each in (first, again)]
    assert numbers[0] == numbers[1]


@pytest.mark.parametrize("seed", [3, "3", " 3\n", 3.0, numpy.float32(3), numpy.int32(3), torch.tensor(3)])
def test_11_what_int_takes_is_a_seed(seed):
    assert cpu().create_generator(seed).initial_seed() == 3


@pytest.mark.parametrize("seed", [-2, 3.5, "3.5", "three", "", 2**64, float("nan"), float("inf"), True, [3]])
def test_11_what_is_no_seed(seed):
    dm = cpu()
    with pytest.raises(SeedError):
        dm.create_generator(seed)
    assert dm.last_seed is None


# ---- memory and files


def test_10_defect_memory_stats_returned_nothing(capsys):
    figures = cpu().memory_stats()
    assert list(figures) == ["allocated", "reserved", "peak", "free", "total"]
    assert json.loads(json.dumps(figures)) == figures
    assert figures["reserved"] is None
    assert 0 < figures["allocated"] <= figures["total"]
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith(
        f"\N{BAR CHART} CPU Memory Stats (cpu): allocated {figures['allocated'] / 2**30:.2f} GB, peak "
    )
    assert line.endswith(f"total {figures['total'] / 2**30:.2f} GB")
    assert "reserved" not in line


def test_12_nothing_on_the_cpu_raises(capsys):
    dm = cpu()
    dm.empty_cache()
    dm._device.synchronize()
    dm._device.reset_peak_memory()
    assert dm.memory_stats()["peak"] > 0


def test_12_defect_empty_cache_left_what_python_held_and_swallowed_errors(monkeypatch):
    class Picture:
        pass

    picture = Picture()
    picture.itself = picture  # only the collector frees it
    gone = weakref.ref(picture)
    del picture
    cpu().empty_cache()
    assert gone() is None

    def fails(self):
        raise RuntimeError("507034")

    monkeypatch.setattr(CpuDevice, "empty_cache", fails)
    with pytest.raises(RuntimeError, match="507034"):
        cpu().empty_cache()


def test_13_defect_saving_memory_switched_tf32_on(capsys):
    before = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    assert cpu().set_memory_efficient_mode() == ["gc.collect", "empty_cache"]
    assert (torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32) == before
    assert capsys.readouterr().out == "✓ CPU memory efficient mode: gc.collect, empty_cache\n"


def test_a_file_that_is_none(tmp_path):
    (tmp_path / "cut.safetensors").write_bytes(b"\x00\x01")
    with pytest.raises(WeightsError):
        cpu().load_safetensors(tmp_path / "cut.safetensors")
    with pytest.raises(FileNotFoundError):
        cpu().load_safetensors(tmp_path / "none.safetensors")


def test_on_a_card_indices_are_kept_and_tensors_moved(tmp_path):
    """Defects: the generator lost its index, load_safetensors left the tensors on the CPU."""
    save_file({"up": torch.ones(4, 8), "down": torch.zeros(8, 4)}, tmp_path / "lora.safetensors")
    code = """
    import json, os, torch
    dm = DeviceManager("npu:1")
    flags = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    torch.npu.set_compile_mode(jit_compile=True)
    measures = dm.set_memory_efficient_mode(), torch.npu.is_jit_compile_false()
    measures += (flags == (torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32),)
    generators = [dm.create_generator(seed) for seed in (7, 7, 8)]
    numbers = [torch.randn(3, generator=each, device=each.device).cpu().tolist() for each in generators]
    loaded = dm.load_safetensors("lora.safetensors")
    where = {name: str(tensor.device) for name, tensor in loaded.items()}
    figures = dm.memory_stats()
    random = dm.create_generator("random")
    os.environ["PREFERRED_DEVICE"] = "npu:1"
    tell(
        str(dm.device), str(dm.dtype), measures, [str(each.device) for each in generators], numbers,
        dm.generator_device, dm.last_seed == random.initial_seed(), where, json.loads(json.dumps(figures)),
        str(DeviceManager().device), str(DeviceManager(0).device),
    )
    """
    change = f"import os\nos.chdir({str(tmp_path)!r})\n"
    dm, dtype, measures, generators, numbers, drawn_on, known, where, figures, preferred, first = told(
        change + SIMULATED + textwrap.dedent(code)
    )
    assert (dm, dtype) == ("npu:1", "torch.bfloat16")
    assert measures == [["jit_compile=False", "gc.collect", "empty_cache"], True, True]
    assert generators == ["npu:1"] * 3
    assert numbers[0] == numbers[1] != numbers[2]
    assert (drawn_on, known) == ("npu:1", True)
    assert where == {"down": "npu:1", "up": "npu:1"}
    assert 0 < figures["allocated"] <= figures["reserved"] <= figures["total"] == 62423 * 2**20
    assert figures["free"] < figures["total"]
    assert (preferred, first) == ("npu:1", "npu:0")


# ---- the module's functions


def test_one_manager_for_everybody_and_one_for_each_device_that_is_named():
    made, start = [], threading.Barrier(8)

    def ask():
        start.wait()
        made.append(device_utils.get_device_manager())

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({id(each) for each in made}) == 1
    assert device_utils.get_device_manager("cpu") is made[0]
    assert device_utils.auto_device() == made[0].device
    assert device_utils.auto_dtype() is made[0].dtype
    with pytest.raises(DeviceNotInstalledError):
        device_utils.get_device_manager("npu")


def test_defect_another_device_got_the_first_ones_manager(tmp_path):
    install(tmp_path, "torch_npu", in_python(2))
    code = """
    ask = device_utils.get_device_manager
    first = ask("npu:1")
    tell(*[str(ask(each).device) for each in (None, "", "npu:0", "cpu", "npu:1")], ask("npu:1") is first is ask())
    """
    got = told(FACADE + textwrap.dedent(code), tmp_path)
    assert got == ["npu:1", "npu:1", "npu:0", "cpu", "npu:1", True]


# ---- variables that nobody reads


def test_variables_without_effect_are_reported_once(monkeypatch, tmp_path, caplog):
    monkeypatch.setenv("DIFFUSERS_ATTENTION_TYPE", "vanilla")
    monkeypatch.setenv("NPU_FALLBACK_MODE", "1")
    monkeypatch.setenv("TOPROPE_RUN_DIR", str(tmp_path))
    for _ in range(2):
        cpu()
    said = [each.getMessage() for each in caplog.records if (each.name, each.levelname) == ("toprope", "WARNING")]
    assert len(said) == 2
    assert said[0].startswith("DIFFUSERS_ATTENTION_TYPE=vanilla has no effect: ")
    assert "DIFFUSERS_ATTN_BACKEND" in said[0]
    assert said[1].startswith("NPU_FALLBACK_MODE=1 has no effect: ")
    assert sorted(run_remarks.read(tmp_path)) == said
    caplog.clear()
    monkeypatch.delenv("NPU_FALLBACK_MODE")
    monkeypatch.setattr(device_utils, "_reported", set())
    monkeypatch.delenv("DIFFUSERS_ATTENTION_TYPE")
    cpu()
    assert [each for each in caplog.records if each.levelname == "WARNING"] == []


def test_a_file_of_the_program_wins(tmp_path):
    (tmp_path / "device_utils.py").write_text("DeviceManager = 'own'\n")
    assert told(FACADE + "tell(DeviceManager)", tmp_path) == "own"
