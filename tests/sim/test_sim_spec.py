"""TOPROPE_SIM and the arguments of `install`: pure reading, writing and checking.

Holds src/toprope/sim/spec.py.
"""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toprope import chips
from toprope.errors import SettingError, SizeError, UnknownChipError, UsageError
from toprope.sim.spec import MAX_CARDS, SimSpec

pytestmark = pytest.mark.native

SPECS = st.builds(
    lambda numerics, **given: SimSpec.make(**given, numerics=numerics if given["chip"] in HF32 else "host"),
    chip=st.sampled_from(chips.names()),
    count=st.integers(1, MAX_CARDS),
    hbm=st.none() | st.integers(1, 2**48),
    force=st.booleans(),
    refuse=st.booleans(),
    numerics=st.sampled_from(["host", "card"]),
)
HF32 = [name for name in chips.names() if name.startswith(("910B", "910_93", "950", "310B"))]


@given(SPECS)
def test_what_is_written_is_read_back(spec: SimSpec):
    assert SimSpec.parse(spec.format()) == spec


@given(SPECS)
def test_writing_is_the_same_every_time(spec: SimSpec):
    assert SimSpec.parse(spec.format()).format() == spec.format()


@pytest.mark.parametrize("chip", chips.names())
def test_every_chip_can_be_asked_for_with_any_number(chip: str):
    # Names with digits and an x in them must not be cut at the wrong place.
    for count in (1, 2, 9, 10, 16):
        assert SimSpec.parse(f"{chip}x{count}") == SimSpec(chip, count)
        assert SimSpec.parse(f"{chip.lower()}X{count}") == SimSpec(chip, count)
    assert SimSpec.parse(chip) == SimSpec(chip)


@pytest.mark.parametrize(
    ("text", "spec"),
    [
        ("910B3", SimSpec("910B3")),
        ("910b3", SimSpec("910B3")),
        ("910B3x2", SimSpec("910B3", 2)),
        ("910B3x2,hbm=256MB", SimSpec("910B3", 2, 256 * 10**6)),
        ("910B3,hbm=1GiB", SimSpec("910B3", 1, 2**30)),
        ("910B3,hbm=4096", SimSpec("910B3", 1, 4096)),
        ("910B3,force=on", SimSpec("910B3", force=True)),
        ("910B3,force=1,hbm=1.5GB", SimSpec("910B3", 1, 15 * 10**8, True)),
        ("910B3,force=off", SimSpec("910B3")),
        ("910B3,refuse=off", SimSpec("910B3", refuse=False)),
        ("910B3,numerics=card", SimSpec("910B3", numerics="card")),
        (" 910B3x2 , hbm=64 MiB , force=ON ", SimSpec("910B3", 2, 2**26, True)),
        ("910B4-1x4", SimSpec("910B4-1", 4)),
    ],
)
def test_texts(text: str, spec: SimSpec):
    assert SimSpec.parse(text) == spec


@pytest.mark.parametrize(
    "text",
    ["", " ", ",", ",hbm=1GB", "910B3,", "910B3,,hbm=1GB", "910B3,hbm", "910B3,hbm=", "910B3,HBM=1GB", "910B3,cards=2",
     "910B3,force", "910B3,force=", "910B3,force=maybe", "910B3 x2", "910B3=2", "910B3:2", "910B3;hbm=1GB", "卡"],
)  # fmt: skip
def test_a_malformed_text_is_one_clear_error(text: str):
    with pytest.raises(SettingError) as caught:
        SimSpec.parse(text)
    message = str(caught.value)
    assert f"TOPROPE_SIM={text!r}" in message
    assert "910B3x2,hbm=256MB" in message, "the error shows how it is written"


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("910B7", UnknownChipError),
        ("x2", UnknownChipError),
        ("h100x2", UnknownChipError),
        ("910B3x0", UsageError),
        ("910B3x17", UsageError),
        ("910B3x99999999999999999999", UsageError),
        ("910B3,hbm=much", SizeError),
        ("910B3,hbm=0", SizeError),
        ("910B3,hbm=-1", SizeError),
        ("910B3,hbm=1XB", SizeError),
    ],
)
def test_what_makes_no_sense_is_the_error_of_its_part(text: str, error: type[Exception]):
    with pytest.raises(error) as caught:
        SimSpec.parse(text)
    assert type(caught.value) is error


@pytest.mark.parametrize("text", ["910B3,hbm=1GB,hbm=2GB", "910B3,force=on,force=off", "910B3,refuse=on,refuse=on"])
def test_an_option_given_twice_is_refused(text: str):
    with pytest.raises(SettingError):
        SimSpec.parse(text)


@given(st.text(max_size=30) | st.text("910B3xX24,=hbmforceonGi. ", max_size=24))
def test_any_text_is_a_specification_or_one_of_our_errors(text: str):
    try:
        spec = SimSpec.parse(text)
    except (SettingError, UnknownChipError, UsageError, SizeError):
        return  # any other error would be a bug
    assert SimSpec.parse(spec.format()) == spec


@pytest.mark.parametrize("count", [0, -1, 17, True, 1.0, "2", None])
def test_numbers_of_cards(count: object):
    with pytest.raises(UsageError, match="is not a number of cards") as caught:
        SimSpec.make("910B3", count)  # type: ignore[arg-type]
    assert "1 to 16" in str(caught.value)


@given(st.integers())
def test_every_number_of_cards(count: int):
    if 1 <= count <= 16:
        assert SimSpec.make("910B3", count).count == count
    else:
        with pytest.raises(UsageError):
            SimSpec.make("910B3", count)


@pytest.mark.parametrize("hbm", ["", "much", "1 PB", "-1GB", "0", 0, -5, True])
def test_sizes(hbm: object):
    with pytest.raises(SizeError):
        SimSpec.make("910B3", 1, hbm)  # type: ignore[arg-type]


@given(st.text(max_size=10))
def test_any_chip_is_known_or_told(name: str):
    try:
        made = SimSpec.make(name)
    except UnknownChipError:
        made = None
    # A chip may go by another name than its own.
    assert made.chip in chips.names() if made else name not in chips.names()


def test_the_memory_of_a_card():
    # 60.96 GiB, as in the out-of-memory errors of real ones; npu-smi shows 65536 MiB
    assert (SimSpec.make("910B3").capacity, SimSpec.make("910B3").nominal) == (62423 * 2**20, 65536 * 2**20)
    smaller = SimSpec.make("910B3", hbm="256MB")
    assert smaller.capacity == smaller.nominal == 256 * 10**6
    for chip in chips.names():
        figure = chips.get(chip).hbm_usable_mib or chips.get(chip).hbm_mib
        if figure is None:
            with pytest.raises(UsageError, match="is not public"):
                _ = SimSpec.make(chip).capacity
        else:
            assert SimSpec.make(chip).capacity == figure * 2**20
        assert SimSpec.make(chip, hbm="1GiB").capacity == 2**30


def test_a_specification_does_not_change():
    spec = SimSpec.make("910B3")
    with pytest.raises(dataclasses.FrozenInstanceError):
        spec.count = 2  # type: ignore[misc]
    assert spec == SimSpec.make("910b3", 1, None, force=False)
    assert hash(spec) == hash(SimSpec("910B3"))


@pytest.mark.parametrize(("text", "wrong"), [("910A,numerics=card", "is not public"), ("910B3,numerics=gpu", "'gpu'")])
def test_an_arithmetic_that_nobody_documents_is_refused(text: str, wrong: str):
    with pytest.raises(UsageError, match=wrong):
        SimSpec.parse(text)


@given(SPECS)
def test_a_setting_of_the_cards_was_lost_where_an_option_changed_another(spec: SimSpec):
    changed = spec.changed(count=2)
    assert changed == dataclasses.replace(spec, count=2)
