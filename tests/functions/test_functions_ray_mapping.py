"""Requests as resources of Ray, and Ray's nodes as a ledger (`ray.nodes`); without Ray."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toprope.functions.arguments import lower
from toprope.functions.objects import ObjectRef
from toprope.functions.ray import refs
from toprope.functions.ray.nodes.cluster_view import (
    Seen,
    allowed_nodes,
    charged,
    fits,
    has_bundle_room,
    node_of,
    resources_of,
    shortage,
    smallest_hbm,
)
from toprope.functions.ray.nodes.resource_mapping import amounts, card_labels, plain_key, share, whole_resources
from toprope.functions.scheduling.cards import Card
from toprope.functions.scheduling.requests import CardRequest, Request, parse


def seen(name, cards=2, used=0.0, model="910B4", hbm=32768, scalars=None, labels=None, cpu=8.0, memory=16):
    total = {"CPU": 8.0, "memory": 16 * 2**30, "NPU": cards, "node:1.2.3.4": 1.0, "object_store_memory": 1e8}
    total |= scalars or {}
    free = total | {"NPU": cards - used, "CPU": cpu, "memory": memory * 2**30}
    told = {"toprope.io/npu-model": model, "toprope.io/npu-hbm": str(hbm), "ray.io/node-id": name} if model else {}
    return Seen(name, "1.2.3.4", total, free, told | (labels or {}))


def asked(count, model=".+", **more):
    return Request(500, 500, (CardRequest("NPU", model, count=count),), **more)


@pytest.mark.parametrize(("keys", "others", "gpus"), [
    ({"NPU/.+/count": 2}, {"NPU": 2}, 0),
    ({"NPU/910B4/count": 0.5}, {"NPU": 0.5}, 0),
    ({"NPU/.+/count": 0.33333}, {"NPU": 0.3334}, 0),
    ({"GPU/.+/count": 1}, {}, 1),
    ({"NPU/.+/count": 1, "GPU/.+/count": 2, "ssd": 3}, {"ssd": 3, "NPU": 1}, 2),
    ({"NPU": 1}, {"toprope:NPU": 1}, 0),
    ({"ssd": 0}, {}, 0),
    ({"NPU/.+/HBM": 8192, "NPU/.+/latency": 1, "NPU/.+/stream": 1}, {"NPU": 0.25}, 0),
    ({"NPU/.+/HBM": 1, "NPU/.+/latency": 1, "NPU/.+/stream": 55}, {"NPU": 0.5}, 0),
])  # fmt: skip
def test_keys_as_amounts_of_ray(keys, others, gpus):
    made = amounts(parse(keys, 1500, 256), {"NPU": 32768})
    assert (made.cpus, made.memory, made.gpus, dict(made.others)) == (1.5, 256 * 2**20, gpus, others)


@given(st.integers(1, 200_000), st.integers(1, 110), st.integers(1000, 200_000))
def test_shares_by_memory_never_come_to_more_than_a_card(hbm, stream, total):
    asked = CardRequest("NPU", ".+", hbm=min(hbm, total), latency=1, stream=stream)
    part = share(asked, total)
    many = int((1 + 1e-9) / part)
    assert many * asked.hbm <= total
    assert many * stream <= 110
    assert round(part * 10000) == pytest.approx(part * 10000)


def test_what_living_instances_hold_is_not_free_before_the_node_says_so():
    """A request behind them had room then, and its limit did not hold."""
    there, other = charged(
        [seen("a", cards=2), seen("b", cards=2, used=2)], [("a", {"NPU": 1.0, "CPU": 0.5}), ("a", {"NPU": 1.0})]
    )
    assert (there.free["NPU"], there.free["CPU"]) == (0, 7.5)
    assert other.free["NPU"] == 0
    assert not fits([there, other], asked(1))
    again = charged([there], [("a", {"NPU": 1.0})])[0]
    assert again.free["NPU"] == 0  # what the node has said counts too
    late = charged([seen("c", scalars={"ssd": 1})], [("c", {"ssd": 2.0, "tape": 1.0})])[0]
    assert late.free["ssd"] == 0


def test_room_in_a_bundle_is_not_that_of_the_node():
    """A node whose cards all belong to bundles had none for the instances in them, which ended with 1002 too early."""
    full = seen("a", cards=2, used=2)
    inside = dict(full.free) | {"NPU_group_1_pg": 1.0, "CPU_group_1_pg": 0.5, "memory_group_1_pg": 500 * 2**20}
    node = replace(full, free=inside)
    assert not fits([node], asked(1))
    assert has_bundle_room([node], asked(1), ["_group_0_pg", "_group_1_pg"])
    assert not has_bundle_room([node], asked(1), ["_group_0_pg"])
    assert not has_bundle_room([node], asked(2), ["_group_1_pg"])
    rounded = replace(full, free=inside | {"NPU_group_1_pg": 0.7 - 0.4})  # a little less than 0.3
    assert has_bundle_room([rounded], asked(0.3), ["_group_1_pg"])


def test_a_node_tells_of_its_cards_by_resources_and_labels():
    cards = [Card(0, "NPU", "910B4", 32768), Card(1, "NPU", "910B4", 32768, healthy=False), Card(0, "GPU", "A 100", 40)]
    assert whole_resources(cards, {"ssd": 5, "NPU": 1, "none": 0}) == ({"ssd": 5, "toprope:NPU": 1, "NPU": 1}, 1)
    assert card_labels(cards) == {
        "toprope.io/npu-model": "910B4", "toprope.io/npu-hbm": "32768",
        "toprope.io/gpu-model": "A_100", "toprope.io/gpu-hbm": "40",
    }  # fmt: skip
    node = node_of(seen("a", labels={"rack": "1"} | card_labels(cards), scalars={plain_key("NPU"): 1.0, "GPU": 1.0}))
    assert [(card.vendor, card.model, card.hbm) for card in node.cards] == [
        ("NPU", "910B4", 32768), ("NPU", "910B4", 32768), ("GPU", "A 100", 40),
    ]  # fmt: skip
    assert dict(node.scalars) == {"NPU": 1.0}
    assert dict(node.labels) == {"NODE_ID": "a", "HOST_IP": "1.2.3.4", "rack": "1"}


def test_a_node_that_others_started_tells_what_ray_has_found():
    unknown = seen("a", model="")
    assert {card.model for card in node_of(unknown).cards} == {"Ascend"}
    found = seen("a", model="", scalars={"accelerator_type:Ascend910B3": 1.0})
    assert {card.model for card in node_of(found).cards} == {"Ascend910B3"}
    assert allowed_nodes([unknown, found], asked(1, "910B3")) == [found]


def test_the_nodes_of_a_request_are_those_with_its_model_its_memory_and_its_labels():
    old, new = seen("old", model="910B3", hbm=65536), seen("new", labels={"rack": "1"})
    assert allowed_nodes([old, new], asked(1)) is None
    assert allowed_nodes([old, new], Request()) is None
    assert allowed_nodes([old, new], asked(1, "(910B4|310P)")) == [new]
    assert allowed_nodes([old, new], asked(1, "910")) == []
    large = Request(0, 0, (CardRequest("NPU", ".+", hbm=40000, latency=1, stream=1),))
    assert allowed_nodes([old, new], large) == [old]
    assert allowed_nodes([old, new], asked(1), lambda node: "rack" in node.labels) == [new]
    assert smallest_hbm([old, new]) == {"NPU": 32768}


def test_a_shortage_is_told_as_everywhere():
    nodes = [seen("a", used=2), seen("b", used=1.5)]
    found = shortage(nodes, asked(1))
    assert found.ever
    assert "\t2 unit with [card count: Not Enough]." in found.text
    assert not shortage(nodes, asked(0.5)).reasons.keys() - {"card count: Not Enough"}
    assert fits(nodes, asked(0.5))
    assert not fits(nodes, asked(0.6))
    assert not shortage(nodes, asked(3)).ever
    assert "Card Type Not Found (there are NPU/910B4)" in shortage(nodes, asked(1, "910")).text
    assert "NPU: Not Found" in shortage(nodes, Request(scalars={"NPU": 1})).text
    assert "CPU: Not Enough" in shortage([seen("a", cpu=0.25)], Request()).text
    assert "No Resource In Cluster" in shortage([], Request()).text


def test_requests_that_wait_already_come_first():
    nodes = [seen("a")]
    assert fits(nodes, asked(1), [asked(1)])
    assert not fits(nodes, asked(1), [asked(1), asked(1)])


def test_what_is_free_is_what_ray_has_not_given_out():
    told = resources_of(seen("a", used=0.5, scalars={"ssd": 5.0, "CPU_group_0_ab": 1.0, "bundle_group_ab": 1.0}))
    assert told["capacity"] == {"CPU": 8000, "Memory": 16384, "ssd": 5.0, "NPU/910B4": 2}
    assert told["allocatable"] == {"CPU": 8000, "Memory": 16384, "ssd": 5.0, "NPU/910B4": 1.5}


def ref(value, error=None):
    return ObjectRef(SimpleNamespace(), refs.Entry(f"ray {value}", "", error))


def test_references_that_are_arguments_are_taken_out_and_come_back_in_their_places():
    inner = ref(9)
    arguments, keywords, found = refs.lift((ref(0), [inner], 5), {"key": ref(1), "plain": {"a": inner}})
    assert found == ["ray 0", "ray 1"]
    assert lower(arguments, keywords, "ab") == (("a", [inner], 5), {"key": "b", "plain": {"a": inner}})


def test_what_has_no_references_is_left_as_it_is():
    arguments = ([1, [2]], {"a": (3,)})
    lifted, _, found = refs.lift(arguments, {})
    assert lifted is arguments
    assert not found


def test_an_argument_that_has_failed_fails_the_call():
    error = ValueError("why")
    with pytest.raises(refs.FailedArgumentError) as caught:
        refs.lift((ref(1, error),), {})
    assert caught.value.entry.error is error


def test_a_class_has_its_methods_on_ray_without_arguments_too():
    from toprope.functions.ray.worker.actor import AsyncHost, Host, host_of

    class Counter:
        limit = 3

        def __init__(self):
            self.value = 0

        def add(self):
            self.value += 1
            return self.value

    class Later(Counter):
        async def wait(self):
            return self.value

    made = host_of(Counter, False)
    assert issubclass(made, Host)
    assert {each for each in vars(made) if each.startswith("bare_")} == {"bare_add"}
    host = made.__new__(made)
    host.instance = Counter()
    assert [host.bare_add(), host.bare_add()] == [1, 2]
    assert host_of(Counter, False) is made, "one class of actors for one class"
    later = host_of(Later, True)
    assert issubclass(later, AsyncHost)
    waiting = later.__new__(later)
    waiting.instance = Later()
    import asyncio

    assert asyncio.run(waiting.bare_wait()) == 0
