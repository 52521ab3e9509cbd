"""A new kind of device is one file and an entry point `toprope.backends`: here is one.

Holds `device.base` and `device.kinds`: what docs/adding.md promises to other packages.
"""

import ast
import inspect
import re
from pathlib import Path

import pytest

from device_stand_ins import install, told
from toprope.device.base import Device
from toprope.device.cpu import CpuDevice
from toprope.device.cuda import CudaDevice
from toprope.device.npu import NpuDevice

pytestmark = pytest.mark.process

HELD = ("base", "select", "kinds", "probing", "seeds", "memory", "device_string", "api", "npu", "cuda", "cpu")
POINT = "[toprope.backends]\nabacus = abacus:Abacus\n"

# The kind "abacus" of the page docs/adding.md: two devices whose tensors lie on torch's "meta", which computes nothing.
PAGE = (Path(__file__).resolve().parents[2] / "docs" / "adding.md").read_text(encoding="utf-8")
(ABACUS,) = (each for each in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL) if "class Abacus(Device)" in each)


def abacus(priority):
    return ABACUS.replace("priority = 100\n", f"priority = {priority}\n")


LOOK = """
from toprope import device
from toprope.errors import TopropeError
def asked(*names):
    for name in names:
        try:
            yield str(device.get(name))
        except TopropeError as error:
            yield f"{type(error).__name__}: {error.what}"
"""


@pytest.mark.slow
def test_a_kind_from_another_package(tmp_path):
    install(tmp_path, "abacus", abacus(100), entry_points=POINT)
    code = (
        LOOK
        + """
card = device.get("abacus:0")
with device.use(card):
    inside = str(device.current())
tell(
    list(device.kinds()), [str(each) for each in device.available()], list(asked("abacus", None, "abacus:2")),
    card.memory().as_dict(), card.name, inside, [each.text for each in device.survey()],
    card.software_version(), type(card).manual_seed_all(7), sys.modules["abacus"].seeds,
)
"""
    )
    kinds, there, got, memory, name, inside, survey, version, _, seeds = told("import sys" + code, tmp_path)
    assert kinds == ["npu", "cuda", "abacus", "cpu"]
    assert there == ["abacus:0", "abacus:1", "cpu"]
    assert got[:2] == ["abacus:1", "abacus:1"]  # its current one; and it goes before the CPU
    assert got[2] == "DeviceIndexError: there is no abacus:2, the program sees 2 devices (abacus:0, abacus:1)."
    assert memory == {"allocated": 10, "reserved": None, "peak": None, "free": 90, "total": 100}
    assert (name, inside) == ("Wooden", "abacus:0")
    assert survey[2] == "abacus: 2 devices"
    assert version is None
    assert seeds == [[0, 7], [1, 7]]


@pytest.mark.slow
@pytest.mark.parametrize(("priority", "chosen"), [(400, "abacus:1"), (-1, "cpu")])
def test_its_place_in_the_order_is_its_own(tmp_path, priority, chosen):
    install(tmp_path, "abacus", abacus(priority), entry_points=POINT)
    assert told(LOOK + "tell(list(asked(None)))", tmp_path) == [chosen]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("raise OSError('no wood')", "the kind of device 'abacus' cannot be loaded: OSError: no wood"),
        ("", "the kind of device 'abacus' cannot be loaded: AttributeError: "),
        ("class Abacus: kind = 'abacus'", "abacus:Abacus is not a subclass of toprope.device.Device"),
        (abacus(1).replace('"abacus"', '"other"'), "with kind = 'abacus'"),
    ],
)
def test_a_package_that_is_broken_harms_only_who_asks_for_it(tmp_path, code, said):
    install(tmp_path, "abacus", code, entry_points=POINT)
    broken = "[each.reason for each in device.survey() if each.kind == 'abacus']"
    here, asked, broken = told(LOOK + f"tell(list(asked(None, 'cpu')), *asked('abacus'), *{broken})", tmp_path)
    assert here == ["cpu", "cpu"]
    assert asked.startswith("DeviceBrokenError: ")
    assert said in asked
    assert said in broken


def test_a_kind_of_our_own_cannot_be_replaced(tmp_path):
    code = abacus(900).replace('"abacus"', '"cpu"')
    install(tmp_path, "abacus", code, entry_points="[toprope.backends]\ncpu = abacus:Abacus\n")
    name, kinds = told(LOOK + "tell(device.get('cpu').name, list(device.kinds()))", tmp_path)
    assert name != "Wooden"
    assert kinds == ["npu", "cuda", "cpu"]


def test_a_package_that_comes_later_is_found(tmp_path):
    install(tmp_path, "abacus", abacus(100), entry_points=POINT)
    code = f"import sys\nfirst = list(asked('abacus'))\nsys.path.insert(0, {str(tmp_path)!r})\n"
    first, then = told(LOOK + code + "tell(first, *asked('abacus'))")
    assert first == ["DeviceNameError: there is no kind of device 'abacus'."]
    assert then == "abacus:1"


# The class itself


def test_the_class_stays_small():
    abstract = Device.__abstractmethods__
    assert 15 <= len(abstract) <= 25
    public = {name: inspect.getattr_static(Device, name) for name in dir(Device) if not name.startswith("_")}
    work = {name: value for name, value in public.items() if not isinstance(value, (str, int, tuple))}
    assert [name for name, value in work.items() if not value.__doc__] == []


@pytest.mark.parametrize("kind", [NpuDevice, CudaDevice, CpuDevice])
def test_a_kind_fills_in_the_class_and_adds_nothing(kind):
    assert not kind.__abstractmethods__
    own = {name for name in vars(kind) if not name.startswith("_")}
    assert own <= {name for name in dir(Device) if not name.startswith("_")} | {"kind", "title"}
    for name in own:
        value, base = vars(kind)[name], inspect.getattr_static(Device, name, None)
        if inspect.isfunction(value):
            assert list(inspect.signature(value).parameters) == list(inspect.signature(base).parameters), name


def test_there_are_no_chains_of_kinds():
    """A device is asked what it can do, and never compared with a name, outside of names and of the loader's map."""
    for name in HELD:  # a file that is missing is an error: one that moved would be checked by nobody
        path = Path(inspect.getfile(Device)).with_name(f"{name}.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Compare) and ast.unparse(node.left).endswith((".kind", ".type")):
                assert not [each for each in node.comparators if isinstance(each, ast.Constant)], path
