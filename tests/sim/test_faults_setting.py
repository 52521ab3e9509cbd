"""The variable TOPROPE_SIM_FAULTS as text, and failures where there is no card.

Holds src/toprope/sim/faults.py; failures on a card are in tests/sim/simulated/test_faults.py.
"""

import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toprope.errors import SettingError, SimulatorError
from toprope.sim import faults

pytestmark = [pytest.mark.native, pytest.mark.process]


@pytest.mark.parametrize(
    ("text", "calls"),
    [
        ("", []),
        ("  ;; ", []),
        ("slow_link(2GB)", [("slow_link", ("2GB",), {})]),
        ("fail(aten::add, 507015, after=3)", [("fail", ("aten::add", 507015), {"after": 3})]),
        (
            " refuse( mm , bfloat16 ) ; out_of_memory() ",
            [("refuse", ("mm", "bfloat16"), {}), ("out_of_memory", (), {})],
        ),
        ("refuse('mm', None)", [("refuse", ("mm", None), {})]),
        ("unhealthy(1, code=507033);", [("unhealthy", (1,), {"code": 507033})]),
    ],
)
def test_what_the_text_spells(text: str, calls: list[object]) -> None:
    assert faults.parse(text) == calls


@pytest.mark.parametrize("text", ["x", "fail", "fail(", "fail(add", "burn()", "fail(add) refuse(mm)x", "fail(1+=2)"])
def test_what_it_does_not_spell(text: str) -> None:
    with pytest.raises(SettingError, match="TOPROPE_SIM_FAULTS="):
        faults.parse(text)


WORDS = st.from_regex(r"[a-z_]+(::[a-z_]+)?", fullmatch=True).filter(lambda word: word not in ("none", "true", "false"))
VALUES = st.one_of(st.integers(0, 600000), WORDS)


@pytest.mark.slow
@given(
    st.lists(
        st.tuples(
            st.sampled_from(sorted(faults.__all__)).filter(lambda name: name != "parse"),
            st.lists(VALUES, max_size=3).map(tuple),
            st.dictionaries(st.from_regex(r"[a-z]+", fullmatch=True), VALUES, max_size=2),
        )
    )
)
def test_what_is_spelt_is_read_back(calls: list[tuple[str, tuple[object, ...], dict[str, object]]]) -> None:
    text = "; ".join(
        f"{name}({', '.join([*map(str, arguments), *(f'{key}={value}' for key, value in keywords.items())])})"
        for name, arguments, keywords in calls
    )
    assert faults.parse(text) == calls


@given(st.text())
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        calls = faults.parse(text)
    except SettingError:
        return
    for name, arguments, keywords in calls:
        assert name in faults.__all__
        assert isinstance(arguments, tuple)
        assert all(key.isidentifier() for key in keywords)


def test_without_a_card_nothing_can_fail() -> None:
    with pytest.raises(SimulatorError, match="there is no simulated card that could fail"), faults.fail("add", 507015):
        pass
    code = "import sys, toprope.sim.faults; print('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "False\n"
