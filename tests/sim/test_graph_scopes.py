"""The pure parts of graph mode: attributes of nodes in scopes, and numbers of cores as text.

Holds src/toprope/sim/air/scopes.py and src/toprope/sim/graph/core_numbers.py (texts of the graph engine's E10001).
"""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toprope.errors import SimulatorError
from toprope.sim.air import scopes
from toprope.sim.air.scopes import Enter, Exit, attributed, merged
from toprope.sim.graph import core_numbers
from toprope.sim.graph.core_numbers import CoreNumberError, Cores

KEYS = [scopes.AICORE, scopes.VECTORCORE, scopes.STREAM_LABEL, scopes.STREAM_PRIORITY, scopes.NEVER_TIMEOUT]
SCOPE = st.dictionaries(st.sampled_from(KEYS), st.sampled_from("0123"), min_size=1)
# A tree: a node is a number, a scope is its attributes and what is inside.
TREES = st.recursive(
    st.lists(st.integers(), max_size=3),
    lambda inner: st.lists(st.one_of(st.integers(), st.tuples(SCOPE, inner)), max_size=4),
    max_leaves=12,
)
WHOLE = Cores(24, 48)


def flat(tree):
    for each in tree:
        if isinstance(each, tuple):
            yield Enter(each[0])
            yield from flat(each[1])
            yield Exit()
        else:
            yield each


def walked(tree, around):
    """The nodes with what is around them, found by walking the tree."""
    for each in tree:
        if isinstance(each, tuple):
            yield from walked(each[1], {**around, **each[0]})
        else:
            yield each, around


@given(TREES)
def test_a_node_carries_what_is_around_it_and_the_innermost_counts(tree):
    assert [(each.node, dict(each.attributes)) for each in attributed(flat(tree))] == list(walked(tree, {}))


@given(TREES, st.data())
def test_scopes_that_do_not_pair_are_refused(tree, data):
    marks = list(flat(tree))
    ends = [place for place, each in enumerate(marks) if isinstance(each, Enter | Exit)]
    if not ends:
        return
    place = data.draw(st.sampled_from(ends))
    lost = marks[:place] + marks[place + 1 :]
    with pytest.raises(SimulatorError, match=r"is entered and never left|is left that was never entered"):
        list(attributed(lost))


def test_the_example_of_the_limits():
    nodes = ["a", Enter({"x": "1", "y": "2"}), "b", Enter({"x": "3", "y": "4"}), "c", Exit(), "d", Exit(), "e"]
    assert [(each.node, dict(each.attributes)) for each in attributed(nodes)] == [
        ("a", {}), ("b", {"x": "1", "y": "2"}), ("c", {"x": "3", "y": "4"}), ("d", {"x": "1", "y": "2"}), ("e", {}),
    ]  # fmt: skip


def test_a_super_kernel_without_a_name_takes_out_of_the_one_around():
    inside = {scopes.SUPER_KERNEL: "k", scopes.SUPER_KERNEL_OPTIONS: "o"}
    outside = {scopes.SUPER_KERNEL: "", scopes.SUPER_KERNEL_OPTIONS: ""}
    assert merged([inside, {"a": "1"}]) == {**inside, "a": "1"}
    assert merged([inside, {"a": "1"}, outside]) == {"a": "1"}
    assert merged([inside, outside, inside]) == inside


def test_a_mark_has_a_value_for_each_key():
    assert Enter.of(["a", "b"], ["1", "2"]).attributes == {"a": "1", "b": "2"}
    with pytest.raises(SimulatorError, match="2 keys and 1 values"):
        Enter.of(["a", "b"], ["1"])


# --- numbers of cores


@given(st.integers(0, 48))
def test_every_number_in_range_is_read_and_none_is_not_set(cores):
    assert core_numbers.number("_op_vectorcore_num", str(cores), 48) == (cores or None)


@given(st.text(max_size=6))
def test_any_text_is_a_plain_number_in_range_or_refused(text):
    plain = text.isascii() and text.isdigit() and str(int(text)) == text
    if plain and int(text) <= 24:
        assert core_numbers.number("n", text, 24) == (int(text) or None)
    else:
        with pytest.raises(CoreNumberError, match=r"^Value (.|\n)* for parameter n is invalid\. Reason: (It is|Inv)"):
            core_numbers.number("n", text, 24)


FORMAT = (
    "Invalid integer format: only non-negative decimal digits are allowed (no leading zeros, spaces, or mixed"
    " characters)."
)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("abc", "It is not integer."),
        ("", "It is not integer."),
        ("None", "It is not integer."),
        ("99999999999", "It is not integer."),
        ("٣", "It is not integer."),
        ("012", FORMAT),
        (" 12", FORMAT),
        ("12 ", FORMAT),
        ("+5", FORMAT),
        ("1.5", FORMAT),
        ("12abc", FORMAT),
        ("-1", "It is out of range, value must be in range (0, 24]."),
        ("25", "It is out of range, value must be in range (0, 24]."),
    ],
)
def test_the_reasons(text, reason):
    with pytest.raises(CoreNumberError) as caught:
        core_numbers.number("_op_aicore_num", text, 24)
    assert str(caught.value) == f"Value {text} for parameter _op_aicore_num is invalid. Reason: {reason}"


@pytest.mark.parametrize(
    ("text", "cores"),
    [
        ("24|48", (24, 48)),
        ("3|5", (3, 5)),
        ("10|", (10, None)),
        ("|7", (None, 7)),
        ("0|0", (None, None)),
        ("", (None, None)),
    ],
)
@pytest.mark.parametrize("clamps", [True, False])
def test_the_option_of_the_whole_graph(text, cores, clamps):
    assert core_numbers.from_option(text, WHOLE, clamps=clamps) == (Cores(*cores), "")


def test_too_many_cores_in_the_option_by_version():
    assert core_numbers.from_option("24|100", WHOLE, clamps=True)[0] == WHOLE
    with pytest.raises(CoreNumberError) as caught:
        core_numbers.from_option("24|100", WHOLE, clamps=False)
    assert str(caught.value) == (
        "Value 100 for parameter ge.vectorcoreNum is invalid. Reason: It is out of range, value must be in range"
        " (0, 48]."
    )


@pytest.mark.parametrize("clamps", [True, False])
def test_the_option_that_is_no_number(clamps):
    with pytest.raises(CoreNumberError, match=r"Value abc for parameter ge\.aicoreNum is invalid.*not integer"):
        core_numbers.from_option("abc|1", WHOLE, clamps=clamps)


def test_the_option_without_its_division_is_about_cube_cores():
    cores, warning = core_numbers.from_option("12", WHOLE, clamps=False)
    assert cores == Cores(12, None)
    assert warning == "Invalid format for ge.aicoreNum: 12. Expected format: aicore_num|vectorcore_num."
