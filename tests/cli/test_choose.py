"""The card that a program of `toprope run` gets, for every combination of options, settings and machines.

Holds `cli.launch.select_target`. Pure: machines are results of a search, written by hand.
"""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toprope import chips
from toprope.cli.launch.select_target import Choice, DeviceOption, Probe, choose
from toprope.errors import CardError, SettingError, SizeError, TopropeError, UnknownChipError, UsageError
from toprope.settings import Settings
from toprope.sim.spec import SimSpec

pytestmark = pytest.mark.native

WORKS = Probe("works", "2.13.0", 2, "Ascend910B3")
BROKEN = Probe("broken", "2.13.0", reason="libhccl.so is missing")
NO_CARD = Probe("no card", "2.13.0")
NONE = Probe("not installed")
PROBES = [WORKS, BROKEN, NO_CARD, NONE]


def never() -> Probe:
    raise AssertionError("the machine was searched for a real card")


def pick(
    asked: DeviceOption | None = None,
    *,
    chip: str | None = None,
    count: int | None = None,
    hbm: str | None = None,
    device: str | None = None,
    sim: str | None = None,
    torch_npu: str | None = None,
    probe: Probe | Callable[[], Probe] = never,
) -> Choice:
    return choose(
        asked, chip=chip, count=count, hbm=hbm, settings=Settings(device=device, sim=sim), torch_npu=torch_npu,
        probe=(lambda: probe) if isinstance(probe, Probe) else probe,
    )  # fmt: skip


def test_options_of_the_simulated_card_kept_its_other_settings() -> None:
    chosen = pick(DeviceOption.SIM, count=2, sim="910B3,refuse=off,numerics=card").spec
    assert chosen is not None
    assert chosen.format() == "910B3x2,force=on,refuse=off,numerics=card"


def test_the_arithmetic_of_a_card_asks_for_the_simulated_one() -> None:
    chosen = choose(None, numerics="card", settings=Settings(), probe=never).spec
    assert chosen is not None
    assert chosen.numerics == "card"


def test_torch_npu_chooses_the_release_of_a_simulated_card() -> None:
    chosen = pick(torch_npu="2.7.1.post2", sim="910B4,torch_npu=2.1.0")
    assert chosen.spec is not None
    assert chosen.spec.format() == "910B4,force=on,torch_npu=2.7.1.post2"
    assert SimSpec.parse(chosen.spec.format()) == chosen.spec
    with pytest.raises(UsageError, match=r"no source of torch_npu 9\.9"):
        pick(torch_npu="9.9")
    with pytest.raises(UsageError, match="contradict"):
        pick(DeviceOption.CPU, torch_npu="2.7.1")


def test_auto_takes_a_real_card_that_works() -> None:
    assert pick(probe=WORKS) == Choice("npu", probe=WORKS, automatic=True)
    assert pick(DeviceOption.AUTO, probe=WORKS).device == "npu"


@pytest.mark.parametrize("probe", [BROKEN, NO_CARD, NONE])
def test_auto_takes_the_simulated_card_otherwise(probe: Probe) -> None:
    choice = pick(probe=probe)
    assert (choice.device, choice.probe, choice.automatic) == ("sim", probe, True)
    assert choice.spec is not None
    assert (choice.spec.chip, choice.spec.count, choice.spec.hbm) == ("910B3", 1, None)


def test_chip_implies_the_simulated_card_and_searches_for_nothing() -> None:
    choice = pick(chip="910b2", count=2, hbm="1GiB")
    assert (choice.device, choice.automatic) == ("sim", False)
    assert choice.spec is not None
    assert (choice.spec.chip, choice.spec.count, choice.spec.hbm) == ("910B2", 2, 2**30)
    assert choice.spec.force
    assert pick(DeviceOption.AUTO, chip="910B2").device == "sim"


def test_sim_searches_for_nothing() -> None:
    assert pick(DeviceOption.SIM).device == "sim"


@pytest.mark.parametrize("asked", [DeviceOption.CPU, DeviceOption.CUDA])
def test_cpu_and_cuda_search_for_nothing(asked: DeviceOption) -> None:
    assert pick(asked) == Choice(asked.value)


@pytest.mark.parametrize(
    ("probe", "words"),
    [
        (BROKEN, "ascend-toolkit/set_env.sh"),
        (Probe("broken", "2.13.0", reason="libatb.so is missing"), "nnal"),
        (Probe("broken", "2.13.0", reason="ValueError: x"), "--device sim"),
        (NO_CARD, "/dev/davinci*"),
        (NONE, "--device sim"),
    ],
)
def test_npu_without_a_real_card_says_why_and_what_to_do(probe: Probe, words: str) -> None:
    with pytest.raises(CardError) as caught:
        pick(DeviceOption.NPU, probe=probe)
    assert caught.value.looked_at == probe.text
    assert words in caught.value.do
    assert "--device sim" in caught.value.do


def test_npu_with_a_real_card() -> None:
    assert pick(DeviceOption.NPU, probe=WORKS) == Choice("npu", probe=WORKS)


@pytest.mark.parametrize("asked", [DeviceOption.CPU, DeviceOption.CUDA, DeviceOption.NPU])
@pytest.mark.parametrize("options", [{"chip": "910B3"}, {"count": 2}, {"hbm": "1GB"}, {"chip": "910B3", "hbm": "1GB"}])
def test_a_described_card_and_another_device_contradict_each_other(
    asked: DeviceOption, options: dict[str, object]
) -> None:
    with pytest.raises(UsageError) as caught:
        pick(asked, **options)  # type: ignore[arg-type]
    for option in options:
        assert f"--{option}" in caught.value.what
    assert f"--device {asked.value}" in caught.value.what


@pytest.mark.parametrize("options", [{"count": 2}, {"hbm": "1GB"}])
def test_what_only_the_simulated_card_can_give_is_not_dropped_where_a_real_one_is(options: dict[str, object]) -> None:
    with pytest.raises(UsageError) as caught:
        pick(probe=WORKS, **options)  # type: ignore[arg-type]
    assert "--device sim" in caught.value.do
    assert pick(probe=NONE, **options).device == "sim"  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"chip": "910Z9"}, UnknownChipError),
        ({"count": 0}, UsageError),
        ({"count": -1}, UsageError),
        ({"count": 99}, UsageError),
        ({"hbm": "64G"}, SizeError),
        ({"hbm": "0MB"}, SizeError),
        ({"sim": "910B3 two"}, SettingError),
        ({"sim": "910B3,colour=red"}, SettingError),
        ({"device": "xpu:0"}, SettingError),
    ],
)
def test_bad_input_is_found_before_the_machine_is_searched(options: dict[str, object], error: type[Exception]) -> None:
    with pytest.raises(error):
        pick(**options)  # type: ignore[arg-type]


def test_a_chip_whose_memory_is_not_public_needs_it_given() -> None:
    for name in chips.names():
        if chips.get(name).hbm_mib is None:
            with pytest.raises(UsageError):
                pick(chip=name)
            assert pick(chip=name, hbm="128GiB").device == "sim"
        else:
            assert pick(chip=name).device == "sim"


@pytest.mark.parametrize(("device", "result"), [("cpu", "cpu"), ("cuda:1", "cuda"), ("sim", "sim")])
def test_the_settings_name_the_device_when_no_option_does(device: str, result: str) -> None:
    assert pick(device=device).device == result
    assert pick(DeviceOption.CPU, device=device).device == "cpu"
    assert pick(chip="910B3", device=device).device == "sim"


def test_npu_in_the_settings_is_any_npu() -> None:
    assert pick(device="npu:1", probe=NONE).device == "sim"
    assert pick(device="npu:1", probe=WORKS).device == "npu"


def test_options_win_over_the_card_in_the_settings() -> None:
    spec = pick(DeviceOption.SIM, count=3, sim="310P3x2,hbm=1GB").spec
    assert spec is not None
    assert (spec.chip, spec.count, spec.hbm) == ("310P3", 3, 10**9)
    spec = pick(chip="910B2", sim="310P3x2,hbm=1GB").spec
    assert spec is not None
    assert (spec.chip, spec.count, spec.hbm) == ("910B2", 2, None)


@given(
    asked=st.sampled_from([None, *DeviceOption]),
    chip=st.sampled_from([None, "910B3", "310P3", "nonsense"]),
    count=st.sampled_from([None, 0, 1, 4]),
    hbm=st.sampled_from([None, "1GiB", "x"]),
    device=st.sampled_from([None, "auto", "npu:1", "cpu", "cuda", "sim", "tpu"]),
    sim=st.sampled_from([None, "910B2x2", "???"]),
    probe=st.sampled_from(PROBES),
)
def test_granted_is_what_was_asked_or_it_is_an_error(
    asked: DeviceOption | None, chip: str | None, count: int | None, hbm: str | None,
    device: str | None, sim: str | None, probe: Probe,
) -> None:  # fmt: skip
    try:
        choice = pick(asked, chip=chip, count=count, hbm=hbm, device=device, sim=sim, probe=probe)
    except TopropeError:
        return
    assert (choice.spec is not None) == (choice.device == "sim")
    if asked not in (None, DeviceOption.AUTO):
        assert choice.device == asked
    if choice.device == "npu":
        assert probe is WORKS
        assert (chip, count, hbm) == (None, None, None)
    if choice.spec is not None:
        assert chip is None or choice.spec.chip == chip
        assert count is None or choice.spec.count == count
        assert hbm is None or choice.spec.hbm == 2**30
