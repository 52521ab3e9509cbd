"""Devices whose software is missing or broken: each error and its advice, with stand-ins in processes of their own.

Holds `device.select`, `device.npu` and `device.torch_import`; the torch is the real one, the stand-ins are
helpers/device_stand_ins.py.
"""

import re
from pathlib import Path

import pytest

import published_wheel
from device_stand_ins import MISSING, cuda, in_python, install, run, run_anew, told

pytestmark = pytest.mark.process

LOADED_WITH_TORCH = "[torch.backends]\ntorch_npu = torch_npu:_autoload\n"
DEVICES = "from toprope import device\ntell(str(device.get()), [str(each) for each in device.available()])"

ERROR = """
from toprope import device
from toprope.errors import TopropeError
try:
    device.get({name!r})
except TopropeError as error:
    tell(type(error).__name__, error.what, error.looked_at, error.do)
else:
    tell("no error", "", "", "")
"""


# torch_npu


def test_without_torch_npu(tmp_path):
    kind, what, looked_at, do = told(ERROR.format(name="npu"))
    assert (kind, what) == ("DeviceNotInstalledError", "there is no npu: torch_npu is not installed.")
    assert "torch 2." in looked_at
    assert "/dev/davinci" in looked_at
    assert "torch-npu of the same version" in do
    assert do.endswith("or use cpu")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("code", "reason", "advice"),
    [
        (f"raise ImportError({MISSING!r})", "libhccl.so is missing", "the environment of CANN"),
        (f"raise ImportError({MISSING.replace('hccl', 'atb')!r})", "libatb.so is missing", "the environment of NNAL"),
        (f"raise OSError({MISSING.replace('hccl', 'ascend_hal')!r})", "libascend_hal.so is missing", "driver"),
        (
            "raise RuntimeError('Two accelerators\\ncannot be used.')",
            "RuntimeError: Two accelerators cannot be used",
            "fix",
        ),
        ("import torch; torch.no_such_name", "AttributeError: module 'torch' has no attribute 'no_such_name'", "fix"),
        ("raise SystemExit(3)", "SystemExit: 3", "fix"),
        ("import no_such_module", "ModuleNotFoundError: No module named", "package that has the module no_such_module"),
        ("raise ImportError('x.so: undefined symbol: _Z1')", "ImportError: x.so: undefined symbol", "for this torch"),
        ("raise RuntimeError('error code is 507008')", "RuntimeError: error code is 507008", "`toprope doctor 507008`"),
        ("this is no Python", "SyntaxError: ", "fix"),
    ],
)
def test_a_torch_npu_that_cannot_be_loaded(tmp_path, code, reason, advice):
    install(tmp_path, "torch_npu", code)
    kind, what, looked_at, do = told(ERROR.format(name="npu:0"), tmp_path)
    assert kind == "DeviceBrokenError"
    assert what.startswith(f"there is no npu: torch_npu 2.13.0 is installed but cannot be loaded: {reason}")
    assert "torch_npu 2.13.0, " in looked_at
    assert advice in do
    # where toprope chooses, the CPU is taken, and said once
    done = run("from toprope import device; print(device.get(), device.get(), device.choose().text)", tmp_path)
    assert done.stdout.startswith("cpu cpu cpu (automatic; npu: torch_npu 2.13.0 is installed but cannot be loaded: ")
    assert done.stderr.count("device cpu is used; npu: torch_npu 2.13.0") == 1


def test_what_is_broken_is_tried_once_and_leaves_the_variables_alone(tmp_path):
    install(tmp_path, "torch_npu", "import os, sys\nsys.tried = getattr(sys, 'tried', 0) + 1\n"
            "os.environ['TORCH_DEVICE_BACKEND_AUTOLOAD'] = 'x'\nraise ImportError('no')")  # fmt: skip
    code = """
    import os, sys
    from toprope import device
    for _ in range(3):
        device.survey()
        device.get("npu", fallback=True)
    tell(sys.tried, os.environ.get("TORCH_DEVICE_BACKEND_AUTOLOAD"))
    """
    done = run("def tell(*v): print(*v)\n" + re.sub(r"^    ", "", code, flags=re.M), tmp_path)
    assert done.stdout == "1 0\n"
    assert done.stderr.count("FallbackWarning") == 1


@pytest.mark.slow
def test_a_torch_npu_that_breaks_import_torch(tmp_path):
    """torch loads it by its entry point; where toprope is the first to import torch, it says what is wrong."""
    install(tmp_path, "torch_npu", f"raise ImportError({MISSING!r})", entry_points=LOADED_WITH_TORCH)
    alone = run_anew("import torch", tmp_path, TORCH_DEVICE_BACKEND_AUTOLOAD="1")
    assert "Failed to load the backend extension: torch_npu" in alone.stderr
    kind, what, looked_at, do = told(ERROR.format(name="cpu"), tmp_path, by=run_anew, TORCH_DEVICE_BACKEND_AUTOLOAD="1")
    assert (kind, what) == ("DeviceBrokenError", "torch cannot be imported: libhccl.so is missing.")
    assert "backend extension: torch_npu" in looked_at
    assert "the environment of CANN" in do
    assert "TORCH_DEVICE_BACKEND_AUTOLOAD=0" in do
    assert told("from toprope import device\ntell(str(device.get()))", tmp_path) == "cpu"


@pytest.mark.slow
def test_asking_again_after_torch_failed_says_the_same(tmp_path):
    install(tmp_path, "torch_npu", f"raise ImportError({MISSING!r})", entry_points=LOADED_WITH_TORCH)
    code = """
    from toprope import device
    said = []
    for ask in (device.get, device.survey, device.available, device.seed_all):
        try:
            ask()
        except Exception as error:
            said.append(str(error))
    tell(said)
    """
    said = told(code, tmp_path, by=run_anew, TORCH_DEVICE_BACKEND_AUTOLOAD="1")
    assert len(said) == 4
    assert len(set(said)) == 1


def test_without_torch():
    without = f"""
import sys
sys.path = [{str(Path(__file__).parents[1] / "src")!r}, *(each for each in sys.path if "site-packages" not in each)]
"""
    kind, what, _, _ = told(without + ERROR.format(name="cpu"), by=run_anew)
    assert (kind, what) == ("DeviceNotInstalledError", "torch is not installed.")


def test_a_torch_that_is_itself_broken_was_advised_to_leave_out_other_backends(tmp_path):
    install(tmp_path, "torch", f"raise OSError({MISSING.replace('hccl', 'torch_cpu')!r})")
    kind, what, _, do = told(ERROR.format(name="cpu"), tmp_path, by=run_anew)
    assert (kind, what) == ("DeviceBrokenError", "torch cannot be imported: libtorch_cpu.so is missing.")
    assert do == "install torch again"


def test_torch_npu_is_imported_where_torch_was_set_not_to(tmp_path):
    install(tmp_path, "torch_npu", in_python(2))
    assert told("from toprope import device\ntell([str(each) for each in device.available()])", tmp_path) == [
        "npu:0",
        "npu:1",
        "cpu",
    ]


def test_no_card(tmp_path):
    install(tmp_path, "torch_npu", in_python(0))
    kind, what, looked_at, do = told(ERROR.format(name="npu"), tmp_path)
    assert kind == "DeviceNotVisibleError"
    assert what.startswith("there is no npu: no card is visible: there is no /dev/davinci*")
    assert looked_at.startswith("torch_npu 2.13.0, no CANN, no driver, no /dev/davinci*")
    assert do


def test_a_hidden_card_is_not_a_surprise(tmp_path):
    install(tmp_path, "torch_npu", in_python(0))
    code = "from toprope import device; print(device.get())"
    assert "device cpu is used; npu: no card is visible" in run(code, tmp_path).stderr
    hidden = run(code, tmp_path, ASCEND_RT_VISIBLE_DEVICES="")
    assert (hidden.stdout, hidden.stderr) == ("cpu\n", "")


def test_a_driver_that_refuses_to_count(tmp_path):
    install(
        tmp_path,
        "torch_npu",
        in_python(1) + "def refuse(): raise RuntimeError('drvGetDevNum failed, code 87')\nnpu.device_count = refuse\n",
    )
    kind, what, _, do = told(ERROR.format(name="npu"), tmp_path)
    assert kind == "DeviceBrokenError"
    assert "torch_npu cannot count the cards: RuntimeError: drvGetDevNum failed, code 87" in what
    assert "npu-smi info" in do


MOCKED = """
import sys, torch
from unittest.mock import MagicMock
torch.npu = MagicMock()
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("code", "reason", "advice"),
    [
        ("x = 1", "torch_npu 2.13.0 was imported, but gives torch no npu", "in the way of the vendor's package"),
        (MOCKED, "torch knows no device of this name, as with a mock", "take the mock away"),
        ("import torch, types\ntorch.npu = types.ModuleType('npu')", "has no attribute 'device_count'", "npu-smi info"),
    ],
)
def test_a_torch_npu_that_is_none_was_called_not_installed_or_broke_every_choice(tmp_path, code, reason, advice):
    install(tmp_path, "torch_npu", code)
    kind, what, _, do = told(ERROR.format(name="npu"), tmp_path)
    assert kind == "DeviceBrokenError"
    assert reason in what
    assert advice in do
    assert told("from toprope import device\ntell(str(device.get()))", tmp_path) == "cpu"


def test_mocks_that_a_conftest_makes_are_no_npu(tmp_path):
    mocks = "sys.modules['torch_npu'] = MagicMock()\n"
    kind, what, looked_at, _ = told(MOCKED.replace("torch.npu = MagicMock()\n", mocks) + ERROR.format(name="npu"))
    assert (kind, what) == ("DeviceBrokenError", "there is no npu: torch_npu was imported, but gives torch no npu.")
    assert looked_at.startswith("made by this program, ")
    assert told(MOCKED + mocks + ERROR.format(name="npu"))[0] == "DeviceBrokenError"


def test_a_mere_folder_of_the_name_is_no_torch_npu(tmp_path):
    (tmp_path / "torch_npu").mkdir()
    assert told(ERROR.format(name="npu"), tmp_path)[0] == "DeviceNotInstalledError"


@pytest.mark.slow
def test_choosing_does_not_use_a_card_but_heeds_the_current_one(tmp_path):
    """torch.npu.current_device() would use the card, after which a fork of this process may not."""
    install(tmp_path, "torch_npu", in_python(3) + "npu.current_device = lambda: 1 / 0\n")
    ask = "from toprope import device\ntell(str(device.get()), str(device.get('npu:2')), len(device.available()))"
    assert told(ask, tmp_path) == ["npu:0", "npu:2", 4]
    # set by torch.npu.set_device, which torch_npu does not count as a use
    peek = "import types\n_C = types.SimpleNamespace(_npu_getDeviceWithoutSet=lambda: {})\n"
    for said, index in ((2, 2), (-1, 0)):
        folder = tmp_path / str(said)
        install(folder, "torch_npu", in_python(3) + "npu.current_device = lambda: 1 / 0\n" + peek.format(said))
        assert told("from toprope import device\ntell(str(device.get('npu')))", folder) == f"npu:{index}"
    folder = tmp_path / "used"
    install(folder, "torch_npu", in_python(3, current=1, used=True))
    assert told("from toprope import device\ntell(str(device.get('npu')))", folder) == "npu:1"


def test_a_device_without_generators(tmp_path):
    install(tmp_path, "torch_npu", in_python(2))
    code = """
    from toprope import device
    from toprope.errors import UnsupportedError
    card = device.get()
    try:
        card.generator(3)
    except UnsupportedError as error:
        said = error.what, error.do
    generator = card.generator(3, on="cpu")
    tell(str(card), card.capabilities.generators, said, str(generator.device), generator.initial_seed())
    """
    card, generators, said, where, seed = told(code, tmp_path)
    assert (card, generators, where, seed) == ("npu:0", False, "cpu", 3)
    assert said == [
        "npu:0 draws no random numbers itself.",
        "draw them on the CPU and move them: generator(seed, on='cpu')",
    ]


def test_a_run_without_an_npu_says_so(tmp_path):
    code = "from toprope.compat import no_npu\nno_npu.install()\n" + ERROR.format(name="npu")
    kind, what, _, do = told(code)
    assert (kind, what) == ("DeviceNotVisibleError", "there is no npu: this run was given no NPU.")
    assert "toprope run --device npu" in do


# The published wheel itself


real_torch_npu = pytest.fixture(published_wheel.unpacked, scope="module")


@pytest.mark.slow
def test_the_published_torch_npu_without_cann(real_torch_npu):
    kind, what, looked_at, do = told(ERROR.format(name="npu"), real_torch_npu)
    assert kind == "DeviceBrokenError"
    found = re.fullmatch(
        r"there is no npu: torch_npu (\S+) is installed but cannot be loaded: (lib\w+\.so\S*) is missing\.", what
    )
    assert found, what
    assert f"torch_npu {found[1]}" in looked_at
    assert "CANN" in do or "driver" in do
    done = run("import torch; from toprope import device; print(device.get())", real_torch_npu)
    assert done.stdout == "cpu\n"
    assert found[2] in done.stderr


@pytest.mark.slow
def test_the_published_torch_npu_without_cann_and_with_autoload(real_torch_npu):
    kind, what, _, do = told(ERROR.format(name="cpu"), real_torch_npu, by=run_anew, TORCH_DEVICE_BACKEND_AUTOLOAD="1")
    assert kind == "DeviceBrokenError"
    assert re.fullmatch(r"torch cannot be imported: lib\w+\.so\S* is missing\.", what)
    assert "TORCH_DEVICE_BACKEND_AUTOLOAD=0" in do


# CUDA


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mask", "index", "names"),
    [
        ("0,1", 0, ["cuda:0", "cuda:1", "cpu"]),
        ("3", 0, ["cuda:0", "cpu"]),
        ("", None, ["cpu"]),
        ("-1", None, ["cpu"]),
        ("GPU-abc", 0, ["cuda:0", "cpu"]),
        ("2,0", 0, ["cuda:0", "cuda:1", "cpu"]),
        (None, 0, ["cuda:0", "cuda:1", "cuda:2", "cuda:3", "cpu"]),
    ],
)
def test_indices_of_cuda_are_logical_whatever_the_mask_says(mask, index, names):
    variables = {} if mask is None else {"CUDA_VISIBLE_DEVICES": mask}
    assert told(cuda(4) + DEVICES, **variables) == ["cpu" if index is None else f"cuda:{index}", names]


def test_an_index_of_cuda_that_is_not_there():
    kind, what, looked_at, do = told(cuda(4) + ERROR.format(name="cuda:1"), CUDA_VISIBLE_DEVICES="3")
    assert (kind, what) == ("DeviceIndexError", "there is no cuda:1, the program sees 1 device (cuda:0).")
    assert "CUDA_VISIBLE_DEVICES=3" in looked_at
    assert do == "use cuda:0, or widen CUDA_VISIBLE_DEVICES before the program starts"
    assert told(cuda(4) + ERROR.format(name="cuda:1"))[0] == "no error"


def test_a_torch_that_is_built_without_cuda():
    kind, what, looked_at, do = told(ERROR.format(name="cuda"))
    assert kind == "DeviceNotInstalledError"
    assert re.fullmatch(r"there is no cuda: torch \S+ is built without CUDA\.", what)
    assert "built without CUDA" in looked_at
    assert do == "install a torch that is built for CUDA, or use cpu"


def test_no_gpu_for_a_torch_that_is_built_for_cuda():
    code = "import torch\ntorch.version.cuda = '12.8'\n"
    kind, what, looked_at, _ = told(code + ERROR.format(name="cuda"))
    assert (kind, what) == ("DeviceNotVisibleError", "there is no cuda: no GPU is visible.")
    assert "built for CUDA 12.8" in looked_at


def test_a_driver_of_cuda_that_is_too_old():
    code = """
    import torch, warnings
    torch.version.cuda = '12.8'
    torch.cuda.is_available = lambda: warnings.warn("CUDA initialization: The NVIDIA driver on your system is too old")
    """
    kind, what, _, do = told(re.sub(r"^    ", "", code, flags=re.M) + ERROR.format(name="cuda"))
    assert kind == "DeviceBrokenError"
    assert "The NVIDIA driver on your system is too old" in what
    assert "repair the driver" in do


def test_npu_goes_before_cuda(tmp_path):
    install(tmp_path, "torch_npu", in_python(1))
    assert told(cuda(2) + DEVICES, tmp_path) == ["npu:0", ["npu:0", "cuda:0", "cuda:1", "cpu"]]
