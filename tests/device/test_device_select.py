"""The choice of a device and its reasons, with two kinds of card that are stand-ins in this process.

Holds `device.select` and `device.device_string`; docs/device.md has the same order for users.
"""

import itertools
import logging
import os
import pickle
import sys
import threading
import warnings

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from toprope import device
from toprope.device import Availability, FallbackWarning, State, kinds, select
from toprope.device.base import Device
from toprope.device.cpu import CpuDevice
from toprope.device.device_string import DeviceRequest, read_name
from toprope.errors import (
    DeviceBrokenError,
    DeviceIndexError,
    DeviceMaskError,
    DeviceNameError,
    DeviceNotInstalledError,
    DeviceNotVisibleError,
    DeviceUnavailableError,
    SettingError,
)

pytestmark = pytest.mark.native

SOURCES = ("argument", "context", "TOPROPE_DEVICE", "PREFERRED_DEVICE", "pyproject", "automatic")
DEVICES = ("npu:0", "npu:1", "cuda:0", "cuda:2", "cpu")


class StandIn(CpuDevice):
    """A kind of card whose tensors lie on the CPU."""

    state = State.WORKS
    count = 3
    current = 0
    surprising = False
    __slots__ = ()

    def __init__(self, index):
        self.index, self.torch_device = index, torch.device("cpu")

    __str__ = Device.__str__

    @classmethod
    def look(cls):
        if cls.state is State.WORKS:
            return Availability(cls.kind, State.WORKS, cls.count)
        return Availability(
            cls.kind,
            cls.state,
            reason="its driver sleeps",
            looked_at="the bed",
            do="wake it",
            surprising=cls.surprising,
        )

    @classmethod
    def facts(cls):
        return "three cards"

    @classmethod
    def current_index(cls):
        return cls.current


@pytest.fixture
def cards(monkeypatch, tmp_path):
    """Makes the kinds of this process: 3 npu, 3 cuda, and the CPU; nothing is set."""

    class Npu(StandIn):
        kind, priority, mask_variable, index_code = "npu", 300, "STAND_IN_DEVICES", "107001 (invalid device id)"

    class Cuda(StandIn):
        kind, priority = "cuda", 200

    monkeypatch.setattr(sys.modules["toprope.device.kinds"], "_classes", {"npu": Npu, "cuda": Cuda, "cpu": CpuDevice})
    monkeypatch.setattr(select, "_granted", {})
    monkeypatch.setattr(select, "_told", set())
    monkeypatch.setattr(select, "_masks", {})
    for name in ("TOPROPE_DEVICE", "PREFERRED_DEVICE", "TOPROPE_FALLBACK", "STAND_IN_DEVICES"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    return {"npu": Npu, "cuda": Cuda}


# Names


@given(
    st.from_regex(r"[a-z][a-z0-9_]*", fullmatch=True), st.none() | st.integers(0, 999), st.sampled_from(["", " ", "\n"])
)
def test_a_name_is_read_as_it_is_written(kind, index, blank):
    asked = DeviceRequest(kind, index)
    assert read_name(f"{blank}{str(asked).upper()}{blank}") == asked


@given(st.text())
def test_every_text_is_a_name_or_an_error(text):
    try:
        asked = read_name(text)
    except DeviceNameError:
        return
    assert read_name(str(asked)) == asked


@pytest.mark.parametrize(
    "bad", ["", ":", "npu:", "npu:-1", "npu:01", "npu: 1", "npu:1:2", ":1", -1, True, 1.5, object(), b"npu"]
)
def test_what_is_no_name(bad):
    with pytest.raises(DeviceNameError, match="is not the name of a device"):
        read_name(bad)


def test_a_number_as_text_was_refused_with_the_advice_to_give_a_number():
    with pytest.raises(DeviceNameError) as caught:
        read_name(" 2 ")
    assert caught.value.do == 'put the kind before the number: "npu:2", "cuda:2"'
    with pytest.raises(DeviceNameError, match=r"'0\\x1f' is not the name of a device"):
        read_name("0\x1f")


def test_things_that_name_a_device(cards):
    assert read_name(torch.device("cuda", 1)) == DeviceRequest("cuda", 1)
    assert read_name(torch.device("cpu")) == DeviceRequest("cpu")
    assert read_name(device.get("npu:2")) == DeviceRequest("npu", 2)
    assert read_name(2) == DeviceRequest("auto", 2)


# The order


def every_subset():
    for size in range(len(SOURCES)):
        yield from itertools.combinations(SOURCES[:-1], size)


@pytest.mark.parametrize("given_by", list(every_subset()), ids=" ".join)
def test_the_first_that_says_something_decides(cards, monkeypatch, tmp_path, given_by):
    wanted = dict(zip(SOURCES, DEVICES[: len(SOURCES) - 1], strict=False))
    for name in ("TOPROPE_DEVICE", "PREFERRED_DEVICE"):
        if name in given_by:
            monkeypatch.setenv(name, wanted[name])
    if "pyproject" in given_by:
        (tmp_path / "pyproject.toml").write_text(f'[tool.toprope]\ndevice = "{wanted["pyproject"]}"\n')

    def choice():
        return device.choose(wanted["argument"] if "argument" in given_by else None)

    if "context" in given_by:
        with device.use(wanted["context"]):
            made = choice()
    else:
        made = choice()
    first = given_by[0] if given_by else "automatic"
    assert str(made.device) == wanted.get(first, "npu:0")
    assert first in made.source
    assert made.asked == wanted.get(first, "auto")


def test_automatic_is_npu_then_cuda_then_cpu_with_the_reasons(cards):
    assert [each.kind for each in device.survey()] == ["npu", "cuda", "cpu"]
    assert str(device.get()) == "npu:0"
    cards["npu"].state = State.NO_CARD
    assert str(device.get()) == "cuda:0"
    cards["cuda"].state = State.BROKEN
    made = device.choose()
    assert (str(made.device), made.asked, made.source) == ("cpu", "auto", "automatic")
    assert made.passed_over == ("npu: its driver sleeps", "cuda: its driver sleeps")
    assert made.text == "cpu (automatic; npu: its driver sleeps; cuda: its driver sleeps)"


def test_a_program_may_have_another_automatic_order(cards, monkeypatch):
    assert str(device.choose(first=("cuda",)).device) == "cuda:0"
    assert str(device.choose("auto", first=("cuda", "npu")).device) == "cuda:0"
    assert str(device.choose(2, first=("cuda",)).device) == "cuda:2"
    assert device.choose(first=("cpu",)).passed_over == ()
    cards["cuda"].state = State.NO_CARD
    made = device.choose(first=("cuda",))
    assert (str(made.device), made.passed_over) == ("npu:0", ("cuda: its driver sleeps",))
    cards["cuda"].state = State.WORKS
    cards["npu"].state = State.NO_CARD
    with pytest.warns(FallbackWarning):
        assert str(device.choose("npu", fallback=True, first=("cpu",)).device) == "cpu"
    monkeypatch.setenv("TOPROPE_DEVICE", "cuda:1")
    assert str(device.choose(first=("cpu",)).device) == "cuda:1"  # what the user set goes before any order
    with pytest.raises(DeviceNameError):
        device.choose("auto", first=("tpu",))


def test_auto_by_name_ignores_the_variables(cards, monkeypatch):
    monkeypatch.setenv("TOPROPE_DEVICE", "cpu")
    assert str(device.get()) == "cpu"
    assert str(device.get("auto")) == "npu:0"


def test_an_empty_variable_is_not_set(cards, monkeypatch):
    monkeypatch.setenv("TOPROPE_DEVICE", "")
    monkeypatch.setenv("PREFERRED_DEVICE", " ")
    assert device.choose().source == "automatic"


@pytest.mark.parametrize(("name", "got"), [("NPU", "npu:1"), (" Cuda:2 ", "cuda:2"), ("auto", "npu:1"), ("cpu", "cpu")])
def test_names_in_variables_are_as_lenient_as_arguments(cards, monkeypatch, name, got):
    cards["npu"].current = 1
    monkeypatch.setenv("PREFERRED_DEVICE", name)
    assert str(device.get()) == got


@pytest.mark.parametrize("variable", ["TOPROPE_DEVICE", "PREFERRED_DEVICE"])
@pytest.mark.parametrize("text", ["tpu", "npu:x", "0"])
def test_a_name_in_a_variable_that_is_none_is_an_error_with_the_variable(cards, monkeypatch, variable, text):
    monkeypatch.setenv(variable, text)
    with pytest.raises(SettingError) as caught:
        device.get()
    assert variable in str(caught.value)
    assert str(device.get("cpu")) == "cpu"  # an argument does not look there


def test_a_name_in_pyproject_that_is_none_is_an_error_with_the_file(cards, tmp_path):
    (tmp_path / "pyproject.toml").write_text('[tool.toprope]\ndevice = "tpu"\n')
    with pytest.raises(SettingError, match="no kind of device 'tpu'") as caught:
        device.get()
    assert str(tmp_path / "pyproject.toml") in caught.value.looked_at


def test_without_an_index_the_current_one_of_the_thread_is_meant(cards):
    cards["npu"].current = 2
    assert str(device.get("npu")) == "npu:2"
    assert str(device.get()) == "npu:2"
    assert str(device.get(1)) == "npu:1"


def test_sim_is_an_npu_that_must_be_the_simulated_one(cards):
    with pytest.raises(DeviceNotInstalledError, match="no simulated card in this process, the npu is a real one"):
        device.get("sim")
    cards["npu"].state = State.NOT_INSTALLED
    with pytest.raises(DeviceNotInstalledError, match="no simulated card in this process") as caught:
        device.get("sim")
    assert caught.value.looked_at == "npu: its driver sleeps"
    assert "`toprope run --device sim`, set TOPROPE_SIM=910B3, or use cuda, cpu" in caught.value.do
    cards["npu"].state = State.NO_CARD  # a mask may hide it, and then its reason is the one to tell
    with pytest.raises(DeviceNotVisibleError, match="there is no sim: its driver sleeps"):
        device.get("sim")


# Devices


def test_a_device_is_one_object_and_a_value(cards):
    one = device.get("npu:1")
    assert one is device.get(" NPU:1 ") is device.get(1) is device.get(one)
    assert one == device.get("npu:1") != device.get("npu:2") != "npu:2"
    assert {one: 1}[device.get("npu:1")] == 1
    assert pickle.loads(pickle.dumps(one)) is one
    assert (str(one), repr(one), one.kind, one.index) == ("npu:1", "<toprope device npu:1>", "npu", 1)


def test_all_that_is_there(cards):
    names = ["npu:0", "npu:1", "npu:2", "cuda:0", "cuda:1", "cuda:2", "cpu"]
    assert [str(each) for each in device.available()] == names
    assert [str(each) for each in device.available("cuda")] == names[3:6]
    cards["npu"].state = State.BROKEN
    assert device.available("npu") == []
    assert [str(each) for each in device.available()] == names[3:]
    with pytest.raises(DeviceNameError):
        device.available("tpu")


def test_kinds_are_named_whether_they_work_or_not(cards):
    cards["npu"].state = State.NOT_INSTALLED
    assert kinds() == ("npu", "cuda", "cpu")


# What is not there


@pytest.mark.parametrize(
    ("state", "error"),
    [
        (State.NOT_INSTALLED, DeviceNotInstalledError),
        (State.BROKEN, DeviceBrokenError),
        (State.NO_CARD, DeviceNotVisibleError),
    ],
)
def test_what_is_not_there_is_an_error_that_says_why_and_what_there_is(cards, state, error):
    cards["npu"].state = state
    for name in ("npu", "npu:1"):
        with pytest.raises(error) as caught:
            device.get(name)
        assert isinstance(caught.value, DeviceUnavailableError)
        assert caught.value.what == "there is no npu: its driver sleeps."
        assert caught.value.looked_at == "the bed"
        assert caught.value.do == "wake it, or use cuda, cpu"


def test_the_setting_that_asked_is_named(cards, monkeypatch, tmp_path):
    cards["npu"].state = State.BROKEN
    monkeypatch.setenv("PREFERRED_DEVICE", "npu")
    with pytest.raises(DeviceBrokenError, match="asked for by environment variable PREFERRED_DEVICE; the bed"):
        device.get()
    (tmp_path / "pyproject.toml").write_text('[tool.toprope]\ndevice = "npu:7"\n')
    monkeypatch.delenv("PREFERRED_DEVICE")
    cards["npu"].state = State.WORKS
    with pytest.raises(DeviceIndexError) as caught:
        device.get()
    assert str(tmp_path / "pyproject.toml") in caught.value.looked_at
    assert caught.value.code == "107001 (invalid device id)"


def test_an_index_that_is_not_there(cards, monkeypatch):
    monkeypatch.setenv("STAND_IN_DEVICES", "0,1,2")
    with pytest.raises(DeviceIndexError) as caught:
        device.get("npu:3")
    assert str(caught.value).splitlines() == [
        "there is no npu:3, the program sees 3 devices (npu:0, npu:1, npu:2).",
        "  looked at  three cards",
        "  do         use npu:0 or npu:1 or npu:2, or widen STAND_IN_DEVICES before the program starts",
        "  the card's own code for this is 107001 (invalid device id)",
        "  more       toprope explain device-index",
    ]
    cards["cuda"].count = 16
    with pytest.raises(DeviceIndexError) as caught:
        device.get("cuda:16")
    assert caught.value.what == "there is no cuda:16, the program sees 16 devices (cuda:0, cuda:1, ..., cuda:15)."
    assert caught.value.do == "use cuda:0 to cuda:15"
    with pytest.raises(DeviceIndexError, match=r"there is no cpu:1, the program sees 1 device \(cpu\)"):
        device.get("cpu:1")
    assert "the card's own code" in str(pickle.loads(pickle.dumps(caught.value))) or not caught.value.code


# Fallback


def test_fallback_only_where_it_is_allowed_with_one_warning(cards, monkeypatch):
    cards["npu"].state = State.BROKEN
    monkeypatch.setenv("TOPROPE_FALLBACK", "1")
    with pytest.raises(DeviceBrokenError):
        device.get("npu", fallback=False)
    with pytest.warns(FallbackWarning) as caught:
        made = device.choose("npu")
    assert len(caught) == 1
    assert (
        str(caught[0].message) == "npu was asked for (argument) and cuda:0 is used: there is no npu: its driver sleeps"
    )
    assert caught[0].filename == __file__
    assert (str(made.device), made.asked) == ("cuda:0", "npu")
    assert made.text == "cuda:0 (npu asked for by argument; there is no npu: its driver sleeps)"  # said once
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert str(device.get("npu")) == "cuda:0"  # warned once
    monkeypatch.delenv("TOPROPE_FALLBACK")
    with pytest.raises(DeviceBrokenError):
        device.get("npu")
    assert str(device.get("npu", fallback=True)) == "cuda:0"


def test_fallback_from_a_variable_and_from_an_index(cards, monkeypatch):
    monkeypatch.setenv("TOPROPE_DEVICE", "npu:9")
    with pytest.warns(
        FallbackWarning, match=r"npu:9 was asked for \(environment variable TOPROPE_DEVICE\) and npu:0 is used"
    ):
        assert str(device.get(fallback=True)) == "npu:0"


def test_no_fallback_from_what_is_no_device(cards):
    with pytest.raises(DeviceNameError):
        device.get("tpu", fallback=True)


def test_what_was_to_be_expected_is_not_passed_over_in_silence(cards, caplog):
    caplog.set_level(logging.INFO, "toprope")
    cards["npu"].state = State.NO_CARD
    assert str(device.get()) == "cuda:0"
    assert [record.levelname for record in caplog.records] == ["INFO"]
    caplog.clear()
    cards["npu"].surprising = True
    for _ in range(3):
        device.get()
    assert [(record.levelname, record.getMessage()) for record in caplog.records] == [
        ("WARNING", "device cuda:0 is used; npu: its driver sleeps (wake it)")
    ]


# Masks


def test_a_mask_that_changes_after_the_first_look_is_an_error(cards, monkeypatch):
    monkeypatch.setenv("STAND_IN_DEVICES", "0,1,2")
    first = device.get("npu:1")
    monkeypatch.setenv("STAND_IN_DEVICES", "1")
    for name in ("npu:1", "npu", None, torch.device("cpu")):
        if isinstance(name, torch.device):
            assert str(device.get(name)) == "cpu"
            continue
        with pytest.raises(DeviceMaskError, match="'0,1,2' at first, now '1'"):
            device.get(name, fallback=True)
    monkeypatch.delenv("STAND_IN_DEVICES")
    with pytest.raises(DeviceMaskError, match="now not set"):
        device.get("npu:1")
    monkeypatch.setenv("STAND_IN_DEVICES", "0,1,2")
    assert device.get("npu:1") is first


# Contexts


def test_use_nests_and_ends_with_an_error(cards):
    assert str(device.current()) == "npu:0"
    with device.use("cuda:1") as outer:
        assert device.current() is device.get() is outer
        with pytest.raises(ZeroDivisionError), device.use("cpu") as inner:
            inner.index / int(str(device.current()) != "cpu")
        assert device.current() is outer
    assert str(device.current()) == "npu:0"


def test_use_refuses_on_entry_and_leaves_things_as_they_were(cards):
    context = device.use("npu:9")
    with pytest.raises(DeviceIndexError), context:
        pass
    assert str(device.current()) == "npu:0"


def test_use_holds_for_its_thread_and_decorates_work_for_others(cards):
    found = {}

    def work(name):
        found[name] = str(device.current())

    with device.use("cuda:2"):
        plain = threading.Thread(target=work, args=("plain",))
        taken = threading.Thread(target=device.use(device.current())(work), args=("taken",))
        for thread in (plain, taken):
            thread.start()
            thread.join()
    assert found == {"plain": "npu:0", "taken": "cuda:2"}


def test_one_use_can_be_entered_again_inside_itself(cards):
    context = device.use("cuda:1")

    @context
    def depth(left):
        assert str(device.current()) == "cuda:1"
        return 0 if not left else 1 + depth(left - 1)

    assert depth(5) == 5
    with context, context:
        assert str(device.current()) == "cuda:1"
    assert str(device.current()) == "npu:0"


def test_the_environment_of_this_process_is_left_alone(cards):
    before = dict(os.environ)
    device.survey()
    device.get()
    assert dict(os.environ) == before
