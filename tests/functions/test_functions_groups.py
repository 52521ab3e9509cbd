"""Bundles, strategies and grants of several requests together (`functions.scheduling`): pure, held by properties."""

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toprope.functions.exceptions import YRequestError
from toprope.functions.options import (
    Affinity,
    AffinityKind,
    AffinityType,
    InvokeOptions,
    LabelOperator,
    OperatorType,
)
from toprope.functions.scheduling.affinity import Wishes, instance_labels
from toprope.functions.scheduling.bundles import (
    bundle_node,
    check_function_group,
    check_name,
    check_strategy,
    parse_bundles,
    rest_of_cards,
)
from toprope.functions.scheduling.ledger import Card, Ledger, Node
from toprope.functions.scheduling.requests import parse
from toprope.functions.scheduling.strategies import STRATEGIES, arrange


def node(name, cards=2, cpu=4000, hbm=1000):
    return Node(name, cpu, 4000, tuple(Card(id, "NPU", "910B4", hbm) for id in range(cards)), labels={"NODE_ID": name})


def cards(count):
    return parse({"NPU/.+/count": count}, 300, 128)


# Bundles


def test_bundles_have_the_vendors_defaults():
    first, second, third = parse_bundles([{"CPU": 2000, "Memory": 2048}, {"CPU": 0, "ssd": 0}, {"NPU/.+/count": 2}])
    assert (first.cpu, first.memory) == (2000, 2048)
    assert (second.cpu, second.memory, dict(second.scalars)) == (300, 128, {})
    assert (third.cpu, third.memory, third.cards[0].whole_cards) == (300, 128, 2)
    assert parse_bundles([{"CPU": 64000}])[0].cpu == 64000  # the limit for one instance is none for a bundle


@pytest.mark.parametrize(
    ("bundles", "kind", "text"),
    [
        ({"CPU": 1}, TypeError, "invalid bundles type, actual: <class 'dict'>"),
        ([3], TypeError, "invalid bundles type, bundle index: 0: 'int' object has no attribute 'items'"),
        ([{"CPU": "many"}], TypeError, "value of CPU: must be real number, not str"),
        ([], ValueError, "invalid bundles number, actual: 0, expect: > 0."),
        ([{}, {"CPU": -1}], YRequestError, "invalid bundle, bundle index: 1, please set the value of CPU >= 0."),
        ([{"NPU/(a/count": 1}], YRequestError, "Heterogeneous product regex syntax error: NPU/(a"),
        ([{"NPU/.+/count": 1.5}], YRequestError, "quantity >1 must be whole numbers"),
    ],
)
def test_bundles_that_cannot_be(bundles, kind, text):
    with pytest.raises(kind) as error:
        parse_bundles(bundles)
    assert text in str(error.value)


def test_names_and_strategies_that_cannot_be():
    for name in ("", "primary"):
        with pytest.raises(YRequestError, match="please set the name other than primary or empty") as error:
            check_name(name)
        assert error.value.code == 1001
    with pytest.raises(TypeError, match="invalid name type"):
        check_name(3)
    assert check_strategy(None) == ""
    with pytest.raises(ValueError, match="invalid strategy, actual: PILE"):
        check_strategy("PILE")


@pytest.mark.parametrize(("size", "bundle"), [(0, 1), (257, 1), (8, 3), (2, 4), (4, 0), (4, None), (True, 1)])
def test_sizes_that_no_function_group_has(size, bundle):
    with pytest.raises(ValueError, match=r"invalid (bundle|group) size"):
        check_function_group(size, bundle, None)


def test_sizes_of_function_groups():
    check_function_group(256, 8, -1)
    with pytest.raises(ValueError, match="invalid timeout -2"):
        check_function_group(4, 2, -2)


# Strategies


@given(st.lists(st.integers(1, 4), min_size=1, max_size=5), st.lists(st.integers(0, 5), min_size=1, max_size=4),
       st.sampled_from(STRATEGIES))  # fmt: skip
def test_things_lie_as_the_strategy_says_and_are_all_placed_where_that_is_possible(sizes, rooms, strategy):
    room = {str(place): size for place, size in enumerate(rooms)}

    def take(index, name):
        if room[name] < sizes[index]:
            return False
        room[name] -= sizes[index]
        return True

    def give_back(index, name):
        room[name] += sizes[index]

    before = dict(room)
    found = arrange(len(sizes), strategy, list(room), take, give_back)
    possible = list(placements(sizes, before))
    if strategy == "STRICT_PACK":
        possible = [each for each in possible if len(set(each)) == 1]
    if strategy == "STRICT_SPREAD":
        possible = [each for each in possible if len(set(each)) == len(each)]
    if found is None:
        assert not possible
        assert room == before
        return
    assert tuple(found) in possible
    used = Counter()
    for size, name in zip(sizes, found, strict=True):
        used[name] += size
    assert all(room[name] == before[name] - used[name] for name in room)
    if strategy in ("", "PACK") and any(len(set(each)) == 1 for each in possible):
        assert len(set(found)) == 1
    if strategy == "SPREAD" and any(len(set(each)) == len(each) for each in possible):
        assert len(set(found)) == len(found)


@pytest.mark.parametrize(("strategy", "shares"), [("SPREAD", [2, 2, 1]), ("PACK", [5]), ("STRICT_SPREAD", None)])
def test_more_things_than_nodes_lie_evenly_or_on_few_nodes(strategy, shares):
    found = arrange(5, strategy, ["a", "b", "c"], lambda index, name: True, lambda index, name: None)
    assert (None if found is None else sorted(Counter(found).values(), reverse=True)) == shares


def placements(sizes, room):
    """Every way to place the things, by trying all of them."""
    if not sizes:
        yield ()
        return
    for name, free in room.items():
        if free >= sizes[0]:
            for rest in placements(sizes[1:], {**room, name: free - sizes[0]}):
                yield (name, *rest)


# The ledger


def test_bundles_are_granted_together_or_not_at_all():
    ledger = Ledger([node("a", 2)])
    (holder,) = ledger.ask_together([cards(1)])
    assert [grant.number for grant in ledger.serve()] == [holder]
    numbers = ledger.ask_together([cards(1), cards(1)])
    assert ledger.serve() == ()
    assert len(ledger.free("a").cards) == 1
    ledger.release(holder)
    assert {grant.number for grant in ledger.serve()} == set(numbers)
    assert sorted(grant.cards["NPU"] for grant in ledger.grants) == [(0,), (1,)]


def test_small_requests_do_not_starve_a_group():
    ledger = Ledger([node("a", 4)])
    held = [ledger.ask(cards(1)) for _ in range(3)]
    ledger.serve()
    numbers = ledger.ask_together([cards(1), cards(2)])
    late = ledger.ask(cards(1))
    assert ledger.serve() == ()  # the free card is kept for the group
    ledger.release(held[0])
    assert ledger.serve() == ()
    ledger.release(held[1])
    assert [grant.number for grant in ledger.serve()] == list(numbers)
    ledger.release(held[2])
    assert [grant.number for grant in ledger.serve()] == [late]


def test_a_group_that_can_never_be_met_holds_nobody_up():
    ledger = Ledger([node("a", 2)])
    numbers = ledger.ask_together([cards(1), cards(1)], "STRICT_SPREAD")
    later = ledger.ask(cards(2))
    assert [grant.number for grant in ledger.serve()] == [later]
    assert not ledger.could_ever(numbers[0])
    ledger.add(node("b", 1))
    ledger.release(later)
    assert {grant.node for grant in ledger.serve()} == {"a", "b"}


def test_withdrawing_one_withdraws_those_that_were_to_be_granted_with_it():
    ledger = Ledger([node("a", 1)])
    numbers = ledger.ask_together([cards(1), cards(1)])
    ledger.withdraw(numbers[1])
    ledger.add(node("b", 4))
    assert ledger.serve() == ()


def test_members_that_belong_together_lie_on_one_node():
    ledger = Ledger([node("a", 3), node("b", 3)])
    ledger.ask_together([cards(1)] * 4, each=2)
    nodes = [grant.node for grant in ledger.serve()]
    assert nodes == ["a", "a", "b", "b"]


def test_a_better_node_is_taken_first():
    ledger = Ledger([node("a"), node("b")])
    ledger.ask(cards(1), rank=lambda each: (each.id != "b", 0))
    assert ledger.serve()[0].node == "b"


steps = st.lists(
    st.one_of(
        st.tuples(st.lists(st.integers(1, 3), min_size=1, max_size=3), st.sampled_from(STRATEGIES)),
        st.integers(0, 20),
    ),
    max_size=25,
)


@pytest.mark.slow
@given(steps, st.lists(st.integers(1, 3), min_size=1, max_size=3))
def test_no_card_is_granted_twice_and_all_is_given_back(moves, nodes):
    hosts = [node(str(place), count) for place, count in enumerate(nodes)]
    ledger = Ledger(hosts)
    asked = {}
    for move in moves:
        if isinstance(move, tuple):
            counts, strategy = move
            numbers = ledger.ask_together([cards(count) for count in counts], strategy)
            asked[numbers] = strategy
        elif ledger.grants:
            grants = ledger.grants
            ledger.release(grants[move % len(grants)].number)
        new = {grant.number: grant for grant in ledger.serve()}
        for numbers, strategy in asked.items():
            mine = [new[number] for number in numbers if number in new]
            assert len(mine) in (0, len(numbers))
            if mine and strategy == "STRICT_PACK":
                assert len({grant.node for grant in mine}) == 1
            if mine and strategy == "STRICT_SPREAD":
                assert len({grant.node for grant in mine}) == len(mine)
        held = Counter((grant.node, id) for grant in ledger.grants for id in grant.cards["NPU"])
        assert all(times == 1 for times in held.values())
    for grant in ledger.grants:
        ledger.release(grant.number)
    # what waits and could be met is met, one after the other: nothing is lost, and nothing starves
    for _ in asked:
        for grant in ledger.serve():
            ledger.release(grant.number)
    assert [ledger.free(host.id) for host in hosts] == [replace(host) for host in hosts]


# What a bundle hands on


def test_a_bundle_hands_on_its_part_and_no_more():
    host = node("a", 2)
    ledger = Ledger([host])
    ledger.ask_together(parse_bundles([{"CPU": 1000, "NPU/.+/count": 1}]))
    (grant,) = ledger.serve()
    bundle = bundle_node(0, host, grant)
    assert (bundle.cpu, bundle.memory, [card.id for card in bundle.cards]) == (1000, 128, [0])
    assert bundle.labels == {"NODE_ID": "a", "bundle": "0"}
    assert rest_of_cards(bundle, grant) is None


@pytest.mark.parametrize(
    ("bundle", "fits", "too_much"),
    [
        ({"NPU/.+/count": 0.5}, {"NPU/.+/count": 0.5}, {"NPU/.+/count": 0.51}),
        ({"NPU/.+/count": 0.5}, {"NPU/.+/count": 0.25}, {"NPU/.+/count": 1}),
        ({"NPU/.+/HBM": 400, "NPU/.+/stream": 10, "NPU/.+/latency": 1},) * 2
        + ({"NPU/.+/HBM": 300, "NPU/.+/stream": 11, "NPU/.+/latency": 1},),
    ],
)
def test_a_bundle_with_a_share_of_a_card_hands_on_that_share(bundle, fits, too_much):
    host = node("a", 1)
    ledger = Ledger([host])
    ledger.ask_together(parse_bundles([bundle]))
    (grant,) = ledger.serve()
    handed = bundle_node(0, host, grant)
    own = Ledger([handed])
    own.hold(handed.id, rest_of_cards(handed, grant))
    own.ask(parse(too_much, 300, 128))
    assert own.serve() == ()
    number = own.ask(parse(fits, 300, 128))
    assert [each.number for each in own.serve()] == [number]


# Affinity


def affinity(kind, strength, *keys):
    return Affinity(kind, strength, [LabelOperator(OperatorType.LABEL_EXISTS, key) for key in keys])


def wishes(*affinities, **options):
    return Wishes(InvokeOptions(schedule_affinities=list(affinities), **options))


def test_affinities_of_a_kind_are_alternatives_and_different_kinds_are_not():
    a = affinity(AffinityKind.RESOURCE, AffinityType.REQUIRED, "a")
    b = affinity(AffinityKind.RESOURCE, AffinityType.REQUIRED, "b")
    near = affinity(AffinityKind.INSTANCE, AffinityType.REQUIRED, "x")
    both = affinity(AffinityKind.RESOURCE, AffinityType.REQUIRED, "a", "b")
    assert wishes(a, b).allow({"b": ""}, [])
    assert not wishes(a, b).allow({"c": ""}, [])
    assert not wishes(both).allow({"b": ""}, [])
    assert not wishes(a, near).allow({"a": ""}, [])
    assert wishes(a, near).allow({"a": ""}, [{"x": ""}])


def test_anti_affinity_keeps_away_from_instances():
    away = affinity(AffinityKind.INSTANCE, AffinityType.REQUIRED_ANTI, "x")
    assert wishes(away).allow({}, [{"y": ""}])
    assert not wishes(away).allow({}, [{"y": ""}, {"x": "1"}])


def test_preferences_order_nodes_and_exclude_none():
    first = affinity(AffinityKind.RESOURCE, AffinityType.PREFERRED, "a")
    second = affinity(AffinityKind.RESOURCE, AffinityType.PREFERRED, "b")
    nodes = [{}, {"b": ""}, {"a": ""}, {"a": "", "b": ""}]
    ranked = wishes(first, second)
    assert all(ranked.allow(each, []) for each in nodes)
    assert sorted(nodes, key=lambda each: ranked.rank(each, [])) == [nodes[2], nodes[3], nodes[1], nodes[0]]
    counted = wishes(first, second, preferred_priority=False)
    assert min(nodes, key=lambda each: counted.rank(each, [])) == nodes[3]
    strict = wishes(first, second, preferred_anti_other_labels=True)
    assert [strict.allow(each, []) for each in nodes] == [False, True, True, True]


def test_required_alternatives_are_ranked_where_that_was_asked_for():
    options = [affinity(AffinityKind.RESOURCE, AffinityType.REQUIRED, key) for key in "ab"]
    ranked = wishes(*options, required_priority=True)
    assert ranked.rank({"a": ""}, []) < ranked.rank({"b": ""}, [])
    assert wishes(*options).rank({"a": ""}, []) == wishes(*options).rank({"b": ""}, [])


def test_the_older_spelling_of_affinity():
    near = Wishes(InvokeOptions(affinity={"stage:first": "required", "big": "required_anti"}))
    assert near.allow({}, [instance_labels(["stage:first"])])
    assert not near.allow({}, [instance_labels(["stage:second"])])
    assert not near.allow({}, [instance_labels(["stage:first"]), instance_labels(["big"])])
    with pytest.raises(ValueError, match="invalid affinity of label x: often"):
        Wishes(InvokeOptions(affinity={"x": "often"}))
