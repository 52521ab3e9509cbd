"""The grammar of requests (`scheduling.requests`): sections 2.1 to 2.3 of the vendor's rules, in its words."""

import math
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toprope.functions.scheduling.requests import (
    CardRequest,
    InvalidRequestError,
    is_card_key,
    matches,
    model_names,
    parse,
)

MIXED = "Heterogeneous resources count being non-zero and other heterogeneous resources exist is invalid."
MISSING = "Heterogeneous resources (exclude count) must be 3, but now have {} missing."
ZERO = "Heterogeneous resources {} being 0 is invalid in schedule request, non-zero required."
FRACTION = "specified quantity {} is invalid because quantity >1 must be whole numbers or can not less than 0.0001"
CPU = "Required CPU resource size {} millicores is invalid. Valid value range is [300,16000] millicores"
MEMORY = "Required memory resource size {} MB is invalid. Valid value range is [128,1073741824] MB"
WHOLE = {"NPU/.+/HBM": 1000, "NPU/.+/latency": 5, "NPU/.+/stream": 1}


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"NPU/(Ascend910/count": 1}, "Heterogeneous product regex syntax error: NPU/(Ascend910"),
        ({"NPU/[910/count": 1}, "Heterogeneous product regex syntax error: NPU/[910"),
        ({"NPU/.+/count": 0}, ZERO.format("NPU/.+/count")),
        ({"NPU/.+/count": -1}, ZERO.format("NPU/.+/count")),
        ({"NPU/.+/count": math.nan}, ZERO.format("NPU/.+/count")),
        ({"NPU/.+/count": math.inf}, ZERO.format("NPU/.+/count")),
        ({**WHOLE, "NPU/.+/HBM": 0}, ZERO.format("NPU/.+/HBM")),
        ({"NPU/.+/count": 1, "NPU/.+/HBM": 5}, MIXED),
        ({"NPU/.+/count": 1, "NPU/.+/stream": 5}, MIXED),
        ({"NPU/.+/count": 1, **WHOLE}, MIXED),
        ({"NPU/.+/HBM": 5}, MISSING.format(2)),
        ({"NPU/.+/HBM": 5, "NPU/.+/stream": 1}, MISSING.format(1)),
        ({"NPU/.+/Count": 1}, MISSING.format(3)),
        ({"NPU/.+/count": 1.5}, FRACTION.format(1.5)),
        ({"NPU/.+/count": 5.33}, FRACTION.format(5.33)),
        ({"NPU/.+/count": 0.00005}, FRACTION.format(5e-05)),
    ],
)  # fmt: skip
def test_what_makes_no_sense_is_refused_in_the_vendors_words(asked, message):
    with pytest.raises(InvalidRequestError) as caught:
        parse(asked)
    assert (str(caught.value), caught.value.code) == (message, 1006)


@pytest.mark.parametrize(("cpu", "memory", "message"), [
    (299, 500, CPU.format(299)), (16001, 500, CPU.format(16001)), (-500, 500, CPU.format(-500)),
    (500, 127, MEMORY.format(127)), (500, 1073741825, MEMORY.format(1073741825)),
])  # fmt: skip
def test_cores_and_memory_have_bounds(cpu, memory, message):
    with pytest.raises(InvalidRequestError) as caught:
        parse({}, cpu, memory)
    assert (str(caught.value), caught.value.code) == (message, 1006)


def test_requests_with_cards_have_no_bounds_of_cores_but_take_no_less_than_none():
    assert parse({"NPU/.+/count": 1}, 100, 50).cpu == 100
    assert parse({}, 300, 128).memory == 128
    with pytest.raises(InvalidRequestError, match=re.escape(CPU.format(-500))):
        parse({"NPU/.+/count": 1}, -500, 500)


def test_keys_of_cards_have_three_fields():
    assert [is_card_key(key) for key in ("NPU/.+/count", "NPU", "ssd", "NPU/count", "NPU/a/b/count")] == [
        True, False, False, False, False,
    ]  # fmt: skip


def test_a_plain_key_is_a_named_resource_and_no_card():
    request = parse({"NPU": 1, "ssd": 2.5})
    assert (request.cards, request.scalars) == ((), {"NPU": 1, "ssd": 2.5})
    with pytest.raises(InvalidRequestError, match="specified quantity -1 of ssd is invalid"):
        parse({"ssd": -1})


@pytest.mark.parametrize(
    ("model", "there", "expected"),
    [
        (".+", "910B4", True),
        ("910B4", "910B4", True),
        ("Ascend910B4", "910B4", True),
        ("Ascend.*", "910B4", True),
        ("910.*", "910B4", True),
        ("(910B3|910B4)", "910B4", True),
        ("910B[34]", "910B4", True),
        ("910B4", "Ascend910B4", True),
        ("910", "910B4", False),
        ("^910.*", "910B4", False),
        ("910b4", "910B4", False),
        ("910B3|910B4", "910B4", False),
        ("Ascend", "Ascend", True),
        ("Ascend910", "Ascend910", True),
        ("", "910B4", False),
    ],
)
def test_a_model_is_matched_as_a_whole(model, there, expected):
    assert matches(CardRequest("NPU", model, count=1), "NPU", there) is expected


def test_the_prefix_is_of_npus_alone_and_vendors_are_names():
    gpu = CardRequest("GPU", "AscendA100", count=1)
    assert not matches(gpu, "GPU", "A100")
    assert matches(CardRequest("GPU", ".+", count=1), "GPU", "NVIDIA A100-SXM4-40GB")
    assert not matches(CardRequest("GPU", ".+", count=1), "NPU", "910B4")
    assert not matches(CardRequest(".*", ".+", count=1), "NPU", "910B4")
    assert model_names("910B4") == ("910B4", "Ascend910B4")
    assert model_names("Ascend") == ("Ascend",)


def test_a_request_of_two_vendors_is_one_of_each():
    npu, gpu = parse({"NPU/.+/count": 2, "GPU/.+/count": 1}).cards
    assert (npu.vendor, npu.whole_cards, gpu.vendor, gpu.whole_cards) == ("NPU", 2, "GPU", 1)


def test_two_models_of_one_vendor_are_one_expression_or_an_error():
    with pytest.raises(InvalidRequestError, match=re.escape("as in NPU/(A|B)/count")):
        parse({"NPU/910B3/count": 1, "NPU/910B4/count": 1})


def test_a_share_of_a_card_is_no_whole_card():
    (half,) = parse({"NPU/.+/count": 0.5}).cards
    assert (half.whole_cards, half.count, half.kind) == (0, 0.5, "count")
    (least,) = parse({"NPU/.+/count": 0.0001}).cards
    assert least.whole_cards == 0
    (memory,) = parse(WHOLE).cards
    assert (memory.hbm, memory.latency, memory.stream, memory.kind) == (1000, 5, 1, "HBM")


AMOUNTS = st.one_of(st.integers(-2, 8), st.floats(allow_nan=True, allow_infinity=True), st.floats(0, 3))
KEYS = st.one_of(
    st.tuples(st.sampled_from(["NPU", "GPU"]), st.sampled_from([".+", "910.*", "(a|b)", "(", "910B4"]),
              st.sampled_from(["count", "HBM", "latency", "stream", "other"])).map("/".join),
    st.sampled_from(["ssd", "NPU", "NPU/x", "a/b/c/d"]),
)  # fmt: skip


@given(st.dictionaries(KEYS, AMOUNTS, max_size=5), st.integers(-10, 20000), st.integers(-10, 20000))
def test_whatever_is_asked_for_is_either_sound_or_refused(asked, cpu, memory):
    try:
        request = parse(asked, cpu, memory)
    except InvalidRequestError:
        return
    assert request.cpu >= 0
    assert request.memory >= 0
    assert len({each.vendor for each in request.cards}) == len(request.cards)
    for each in request.cards:
        shared = each.hbm > 0 and each.latency > 0 and each.stream > 0
        assert (each.count > 0) != shared
        assert each.count <= 1 or each.count == each.whole_cards
    assert all(0 <= amount < math.inf for amount in request.scalars.values())
    assert {key for key in asked if not is_card_key(key)} == set(request.scalars)


@given(st.from_regex(r"[0-9]{3}[A-Z][0-9]?", fullmatch=True))
def test_a_model_is_matched_by_its_own_name_with_and_without_prefix(model):
    for name in model_names(model):
        assert matches(CardRequest("NPU", name, count=1), "NPU", model)
    assert not matches(CardRequest("NPU", model + "X", count=1), "NPU", model)


@pytest.mark.parametrize(("asked", "advice"), [
    ({"NPU/.+/cnt": 1}, "given: cnt. do: NPU/.+/count for cards or a share of one, or HBM, latency, stream together"),
    ({"NPU/910B3/HBM": 5}, "given: HBM. do: NPU/910B3/count for cards"),
    ({"NPU/.+/count": 1, "NPU/.+/HBM": 5}, "given: count, HBM. do: count alone, or HBM, latency, stream without it"),
])  # fmt: skip
def test_a_wrong_kind_of_card_resource_is_refused_with_what_to_do(asked, advice):
    """`NPU/.+/cnt` was said to have three resources missing."""
    with pytest.raises(InvalidRequestError) as caught:
        parse(asked)
    assert advice in caught.value.explained
    assert caught.value.explained.startswith(str(caught.value))
