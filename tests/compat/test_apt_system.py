"""Facade apt_model.core.system. Numbers in names are those of the specification's assertions.

Cards are stand-ins (tests/helpers/apt_machines.py), each machine in one process that answers all questions; real
tensors lie on the simulated card.
"""

import functools
import shutil

import pytest
import torch

from apt_machines import FACADES, GPUS, MACHINES, NPUS, SIMULATED
from device_stand_ins import MISSING, install, run, told

pytestmark = pytest.mark.process

KEYS = ["cuda_available", "cuda_version", "device_count", "device_name", "device_type", "npu_available", "npu_version"]
FIGURES = ["allocated_gb", "max_allocated_gb", "reserved_gb"]

ASK = (
    FACADES
    + """
from apt_model.core import system
from apt_model.core.system import get_device, get_device_info, get_memory_info, memory_cleanup, set_device, set_seed
from apt_model.optimization.npu_backend import get_accelerator_type
asked_by_import = "device" in vars(system)
cleaned = memory_cleanup()
tell({
    "chosen": [str(get_device()), str(get_device(prefer_npu=True)), str(get_device(force_cpu=True)),
               str(get_device(force_cpu=True, prefer_npu=True))],
    "info": get_device_info(), "type": get_accelerator_type(), "memory": get_memory_info(), "cleaned": cleaned,
    "device": [asked_by_import, str(system.device), system.device is system.device],
})
"""
)


@functools.cache
def answers(machine):
    return told(MACHINES[machine] + ASK)


def refused(code):
    """Code, with the error that it raises at its end given to `tell`."""
    return f"from toprope.errors import TopropeError\ntry:\n    {code}\nexcept TopropeError as error:\n    " + (
        "tell(type(error).__name__, error.what)\n"
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("machine", "chosen"),
    [
        pytest.param("none", ["cpu", "cpu", "cpu", "cpu"], id="assertion-1"),
        pytest.param("npu", ["npu:0", "npu:0", "cpu", "cpu"], id="assertion-2-npu"),
        pytest.param("cuda", ["cuda:0", "cuda:0", "cpu", "cpu"], id="assertion-2-cuda"),
        pytest.param("both", ["cuda:0", "npu:0", "cpu", "cpu"], id="assertion-2-both"),
    ],
)
def test_1_2_which_device(machine, chosen):
    assert answers(machine)["chosen"] == chosen


@pytest.mark.parametrize("machine", MACHINES)
def test_3_the_device_info_agrees_with_the_choice_and_tells_all_vendors(machine):
    """Mended: with both, the original named the NPU while get_device chose CUDA, and left a version out."""
    found, info = answers(machine), answers(machine)["info"]
    npu, cuda = machine in ("npu", "both"), machine in ("cuda", "both")
    assert sorted(info) == KEYS
    assert info["device_type"] == found["chosen"][0].partition(":")[0] == found["type"]
    assert (info["npu_available"], info["cuda_available"]) == (npu, cuda)
    assert info["cuda_version"] == ("12.8" if cuda else None)
    assert info["npu_version"] == (torch.__version__.partition("+")[0] if npu else None)  # the facade's
    assert (info["device_name"], info["device_count"]) == {
        "none": ("CPU", 0), "npu": ("NPU Ascend 910B3", 2), "cuda": ("NVIDIA A100", 2), "both": ("NVIDIA A100", 2),
    }[machine]  # fmt: skip


@pytest.mark.parametrize("machine", MACHINES)
def test_4_memory_of_the_machine_and_of_every_card(machine):
    found = answers(machine)["memory"]
    npu, cuda = machine in ("npu", "both"), machine in ("cuda", "both")
    assert sorted(found) == ["npu_memory", "ram", "vram"]
    assert sorted(found["ram"]) == ["available_gb", "percent", "total_gb", "used_gb"]
    assert list(found["vram"]) == (["gpu_0", "gpu_1"] if cuda else [])
    assert list(found["npu_memory"]) == (["npu_0", "npu_1"] if npu else [])
    assert all(sorted(card) == FIGURES for cards in (found["vram"], found["npu_memory"]) for card in cards.values())
    if npu:
        assert found["npu_memory"]["npu_1"] == {"allocated_gb": 2.0, "reserved_gb": 4.0, "max_allocated_gb": 3.0}


def test_4_without_psutil_the_figures_are_those_of_proc_and_a_sick_card_stops_nothing():
    code = (
        NPUS
        + FACADES
        + """
from pathlib import Path
from apt_model.core.system import get_memory_info
def sick(index):
    raise RuntimeError("the card sleeps")
npu.memory_allocated = sick
def kib(name):
    return next(int(line.split()[1]) for line in open("/proc/meminfo") if line.startswith(name + ":"))
def asked():  # between two looks that agree: other programs take and give back memory at any time
    for _ in range(20):
        before, found, after = kib("MemAvailable"), get_memory_info(), kib("MemAvailable")
        if abs(before - after) < 0.01 * kib("MemTotal"):
            break
    return found, after
good = asked()
sys.modules["psutil"] = None
bare = asked()
from toprope.device.memory import HostMemory
HostMemory._lines = lambda self, path: []
tell(good, bare, get_memory_info()["ram"], kib("MemTotal"))
"""
    )
    (good, free), (bare, also_free), none, total = told(code)
    for ram, available in ((good["ram"], free), (bare["ram"], also_free)):
        assert ram["total_gb"] == pytest.approx(total / 2**20, rel=0.001)
        assert ram["available_gb"] == pytest.approx(available / 2**20, abs=0.02 * ram["total_gb"])
        assert ram["used_gb"] == pytest.approx(ram["total_gb"] - ram["available_gb"], abs=0.1 * ram["total_gb"])
        assert ram["percent"] == pytest.approx(100 * (1 - ram["available_gb"] / ram["total_gb"]), abs=0.1)
    assert list(none) == ["error"]
    assert good["npu_memory"]["npu_1"] == {"error": "RuntimeError: the card sleeps"}


@pytest.mark.slow
def test_5_memory_cleanup_gives_dropped_cycles_back_to_the_system():
    """Mended: the original collected, and the C library kept the memory."""
    code = (
        FACADES
        + """
import gc, psutil, torch
from apt_model.core.system import memory_cleanup
rss = psutil.Process().memory_info
def cycles():  # 1 GiB of tensors that malloc keeps: small ones, with one in use now and then
    kept = []
    for number in range(16384):
        cycle = [torch.ones(16384)]
        cycle.append(cycle)
        if number % 1000 == 999:
            kept.append(cycle[0].clone())
    return kept
gc.disable()
kept = cycles()
full = rss().rss
gc.collect()
collected = rss().rss
first = [memory_cleanup(), memory_cleanup()]
alone = full - rss().rss
kept += cycles()
full, threads, given = rss().rss, [], []
for _ in range(4):
    threads.append(threading.Thread(target=lambda: given.append(memory_cleanup())))
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
tell(first, given, alone / 2**30, (full - rss().rss) / 2**30, (full - collected) / 2**30)
"""
    )
    first, given, alone, together, by_collecting = told(code)
    assert first == [None] * 2
    assert given == [None] * 4
    assert alone > 0.9
    assert together > 0.9
    assert by_collecting < 0.5  # so it was not the garbage collector alone


def test_11_one_seed_gives_the_same_numbers_on_every_device():
    code = (
        SIMULATED
        + FACADES
        + """
import random, numpy
from apt_model.core.system import get_device, get_device_info, get_memory_info, memory_cleanup, set_device, set_seed
def drawn():
    tensors = [torch.randn(4, device=place).tolist() for place in ("cpu", "npu:0", "npu:1")]
    return [random.random(), numpy.random.rand(3).tolist(), *tensors]
given = set_seed(42)
first = drawn()
set_seed()
again = drawn()
set_seed(43)
info = get_device_info()
before, moved = torch.npu.current_device(), str(set_device(1))
ones = torch.ones(2**20, device="npu:1")
tell(first, again, drawn(), given, info, [before, moved, torch.npu.current_device(), str(get_device())],
     get_memory_info()["npu_memory"], torch.backends.cudnn.deterministic, torch.__version__)
"""
    )
    first, again, other, given, info, moved, memory, deterministic, torch_version = told(code)
    assert given is None
    assert first == again
    assert all(one != two for one, two in zip(first, other, strict=True))
    # the simulated card: a version as torch_npu's would be, the kind whose card set_device makes current, memory
    assert sorted(info) == KEYS
    assert info["npu_version"] == torch_version.partition("+")[0]
    assert (info["device_name"], info["device_count"]) == ("NPU Ascend 910B3", 2)
    assert moved == [0, "npu:1", 1, "npu:1"]
    assert memory["npu_1"]["allocated_gb"] >= 4 * 2**20 / 2**30
    assert memory["npu_1"]["reserved_gb"] >= memory["npu_1"]["allocated_gb"]
    assert deterministic is False  # there is no CUDA, and its switches are left alone


def test_a_seed_switches_cudnn_to_determinism_where_there_is_cuda():
    code = (
        GPUS
        + FACADES
        + """
from apt_model.core.system import set_seed
torch.backends.cudnn.benchmark = True
set_seed(7)
tell(torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark)
"""
    )
    assert told(code) == [True, False]


@pytest.mark.slow
def test_set_device_is_for_the_chosen_kind_and_refuses_a_card_that_is_not_there():
    """Mended: the original knew CUDA alone."""
    code = (
        NPUS
        + FACADES
        + """
from apt_model.core.system import set_device
npu.set_device = lambda index: made.append(index)
made = []
set_device(1)
assert made == [1], made
"""
        + refused("set_device(2)")
    )
    assert told(code) == ["DeviceIndexError", "there is no npu:2, the program sees 2 devices (npu:0, npu:1)."]
    on_the_cpu = FACADES + "from apt_model.core.system import set_device\ntell(str(set_device()), str(set_device(3)))"
    assert told(on_the_cpu) == ["cpu", "cpu"]


@pytest.mark.parametrize("machine", MACHINES)
def test_the_variable_device_is_asked_for_at_its_first_use(machine):
    """Mended: the original asked when it was imported."""
    found = answers(machine)
    assert found["device"] == [False, found["chosen"][0], True]
    assert found["cleaned"] is None


def test_arguments_go_before_what_the_user_set_and_that_goes_before_the_order():
    code = (
        MACHINES["both"]
        + FACADES
        + """
from apt_model.core import system
from apt_model.core.system import get_device, get_device_info, get_memory_info, memory_cleanup, set_device, set_seed
from apt_model.optimization.npu_backend import get_accelerator_type
from toprope import device as devices
os.environ["TOPROPE_DEVICE"] = "npu:1"
set_to_npu = [str(get_device()), str(get_device(prefer_npu=True)), str(get_device(force_cpu=True)),
              get_device_info()["device_type"], get_accelerator_type()]
os.environ["TOPROPE_DEVICE"] = "cpu"
set_to_cpu = [str(get_device()), str(get_device(prefer_npu=True)), str(system.device), get_device_info()]
del os.environ["TOPROPE_DEVICE"]
npu.device = lambda index: devices.get("cpu").as_current()
with devices.use("npu:1"):
    inside = [str(get_device()), get_accelerator_type()]
os.environ["TOPROPE_DEVICE"] = "cuda:5"
"""
        + refused("get_device()").replace("tell(", "tell(set_to_npu, set_to_cpu, inside, ")
    )
    set_to_npu, set_to_cpu, inside, error, what = told(code)
    assert set_to_npu == ["npu:1", "npu:1", "cpu", "npu", "npu"]
    assert set_to_cpu[:3] == ["cpu", "npu:0", "cpu"]
    assert set_to_cpu[3]["device_count"] == 0
    assert set_to_cpu[3]["npu_available"] is set_to_cpu[3]["cuda_available"] is True
    assert inside == ["npu:1", "npu"]
    assert (error, what.split(",")[0]) == ("DeviceIndexError", "there is no cuda:5")


def test_a_torch_npu_that_cannot_be_loaded_is_no_error_where_nobody_asked_for_it(tmp_path):
    """Mended: the original let its OSError out of every call."""
    install(tmp_path, "torch_npu", f"raise OSError({MISSING!r})")
    done = run("def tell(found): print('told', found)\n" + ASK, tmp_path)
    assert done.returncode == 0, done.stderr
    assert "told {'chosen': ['cpu', 'cpu', 'cpu', 'cpu']" in done.stdout
    assert "'npu_available': False" in done.stdout
    assert "'npu_version': None" in done.stdout
    assert done.stderr.count("libhccl.so is missing") == 1  # and it is said why the NPU is not used


@pytest.mark.slow
def test_3_the_version_is_that_of_the_torch_npu_that_is_installed(tmp_path):
    install(tmp_path, "torch_npu", NPUS + "\n__version__ = '2.13.0.post1+git'", version="2.13.0.post1")
    code = FACADES + "from apt_model.core.system import get_device_info\ntell(get_device_info()['npu_version'])"
    assert told(code, tmp_path) == "2.13.0.post1"
    shutil.rmtree(tmp_path / "torch_npu-2.13.0.post1.dist-info")
    assert told(code, tmp_path) == "2.13.0.post1+git"


def test_importing_prints_nothing_and_asks_nothing():
    code = FACADES + "import sys, apt_model.core.system\nassert 'torch_npu' not in sys.modules"
    done = run(code)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
