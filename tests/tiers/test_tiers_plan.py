"""The planner of tiers (`tiers.plan`): budgets are never passed, hits are Belady's, and small models get the best plan.

Random models; plans of small ones are compared with trying every set.
"""

import re
from collections import Counter
from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import toprope.tiers.plan as plan_package
from toprope.errors import PlanError
from toprope.sizes import parse_size
from toprope.tiers.plan import Budgets, Group, Link, Links, Member, Plan, Use, plan, training_order, uses
from toprope.tiers.plan.model import Tier, aligned
from toprope.tiers.plan.search import _placements, enough
from toprope.tiers.plan.units import problem_of

MB = 10**6
KINDS = ("weight", "weight", "weight", "norm", "bias", "buffer")
LINK = Link(1e9, "measured")
LINKS = Links(LINK, LINK, LINK, Link(1e8), Link(1e8))
UNIFIED = Links(LINK, LINK, LINK, Link(1e8), Link(1e8), unified=True)


@st.composite
def models(draw: st.DrawFn, training: bool) -> tuple[list[Group], list[Use]]:
    count = draw(st.integers(1, 7))
    groups = []
    for number in range(count):
        members = [
            Member(f"{number}.{place}", draw(st.integers(0, 12 * MB)), draw(st.sampled_from(KINDS)))
            for place in range(draw(st.integers(0, 3)))
        ]
        if draw(st.booleans()):
            members.append(Member(f"{number}.tied", 4 * MB, storage="tied"))
        size = sum(each.bytes for each in members) if training else 0
        saved = draw(st.sampled_from([0, 3 * MB])) if training else 0
        groups.append(
            Group(str(number), tuple(members), draw(st.sampled_from([0.0, 0.001, 0.01])), size, 2 * size, saved)
        )
    names = draw(st.lists(st.sampled_from([each.name for each in groups]), min_size=1, max_size=9))
    return groups, [*training_order(names)] if training else [Use(each) for each in names]


@st.composite
def asked(draw: st.DrawFn) -> tuple[list[Group], list[Use], Budgets, Links, bool]:
    training = draw(st.booleans())
    groups, order = draw(models(training))
    budgets = Budgets(
        draw(st.integers(0, 80 * MB)),
        draw(st.sampled_from([0, 10 * MB, 60 * MB, 10**9])),
        draw(st.sampled_from([None, 0, 50 * MB, 10**9])),
        draw(st.sampled_from([0, MB])),
    )
    return groups, order, budgets, draw(st.sampled_from([LINKS, UNIFIED])), training


def carried_out(made: Plan) -> None:
    """Run three steps' loads on a ring of slots and see that every use finds its group, and no reader is overrun."""
    moving = {each.name for each in made.groups if made.streamed(each.name)}
    ring: dict[str, int] = dict.fromkeys(made.carried, -1)  # group -> the last use of it
    by_use = {load.use: load for load in made.loads}
    count = len(made.order)
    for step in range(3):
        if made.training:
            ring.clear()
        for place, use in enumerate(made.order):
            at = step * count + place
            if place in by_use:
                load = by_use[place]
                assert load.group == use.group
                assert use.group not in ring
                assert load.after < place
                if load.replaces in ring:
                    if ring[load.replaces] >= 0:
                        assert ring[load.replaces] == step * count + load.after
                    del ring[load.replaces]
                assert load.bytes >= sum(each.bytes for each in made.streamed(use.group))
                ring[use.group] = at
            if use.group in moving:
                assert use.group in ring
                ring[use.group] = at
            assert len(ring) <= made.slots


@pytest.mark.slow
@given(asked())
def test_no_budget_is_passed_and_every_use_finds_its_group(
    question: tuple[list[Group], list[Use], Budgets, Links, bool],
) -> None:
    groups, order, budgets, links, training = question
    try:
        made = plan(groups, order, budgets, links, training=training)
    except PlanError:
        return  # the next test
    assert made.resident_bytes + made.slots * made.slot_bytes + budgets.reserve <= budgets.device
    assert made.bytes_in("host") + made.staging * made.slot_bytes <= budgets.host
    assert made.slots == 0 or (2 if training else 1) <= made.slots <= 8
    if training:
        assert made.bytes_in("disk") <= (budgets.disk or 0)
    assert budgets.disk is not None or not made.bytes_in("disk")
    # each memory has one home
    names = [name for each in made.homes for name in each.members] + list(made.fixed)
    assert sorted(names) == sorted(each.name for group in groups for each in group.members)
    assert {each.name for group in groups for each in group.members if each.kind != "weight"} <= set(made.fixed)
    assert all(sum(each.bytes for each in made.streamed(group.name)) <= made.slot_bytes for group in made.groups)
    assert made.predicted_seconds >= made.limit_seconds >= made.compute_seconds * (1 - 1e-9)
    assert made.ratio >= 1
    assert made.matches(order)
    assert not made.matches([*order, order[0]])
    carried_out(made)


@pytest.mark.slow
@given(asked())
def test_what_a_refusal_says_would_suffice_does(question: tuple[list[Group], list[Use], Budgets, Links, bool]) -> None:
    groups, order, budgets, links, training = question
    device, host = budgets.device, budgets.host
    for _ in range(2):  # at most once for the device, and once for the host
        try:
            plan(groups, order, Budgets(device, host, budgets.disk, budgets.reserve), links, training=training)
            return
        except PlanError as error:
            size = parse_size(re.search(r"at least ([\d.]+ \w+)", error.do)[1])  # type: ignore[index]
            if "give the device" in error.do:
                assert size > device
                device = size
            else:
                assert size > host
                host = size
    plan(groups, order, Budgets(device, host, budgets.disk, budgets.reserve), links, training=training)


FIVE = aligned(5 * MB)


@pytest.mark.slow
@given(st.integers(3, 40), st.integers(2, 39), st.sampled_from([0.0, 0.0005, 0.03]))
def test_a_cycle_hits_all_but_two(count: int, room: int, compute: float) -> None:
    groups = [Group.of(str(number), 5 * MB, compute) for number in range(count)]
    made = plan(groups, [each.name for each in groups], Budgets(room * FIVE, 10**9), LINKS)
    assert made.hits >= min(room - 2, count)
    if compute == 0.03:  # a load takes 0.005 s
        assert made.predicted_seconds == pytest.approx(made.compute_seconds)


def belady(order: list[str], room: int, steps: int = 8) -> float:
    """Hits of a step with the best that there is: what is used last again goes."""
    whole = order * steps
    held: set[str] = set()
    hits = 0
    for place, name in enumerate(whole):
        if name in held:
            hits += place >= 2 * len(order)
            continue
        if len(held) == room:
            rest = whole[place + 1 :]
            held.remove(max(held, key=lambda each: rest.index(each) if each in rest else len(rest)))
        held.add(name)
    return hits / (steps - 2)


@pytest.mark.parametrize(("count", "room"), [(32, 16), (32, 24), (32, 8), (20, 5), (12, 4)])
def test_forward_and_backward_hit_as_often_as_beladys_choice(count: int, room: int) -> None:
    groups = [Group.of(str(number), 5 * MB, 0.001) for number in range(count)]
    order = [Use(each.name) for each in groups]
    both = [*order, *(Use(each.group, True) for each in reversed(order))]
    made = plan(groups, both, Budgets(room * FIVE, 10**9), LINKS)
    best = belady([each.group for each in both], room)
    assert made.hits >= best - 0.05 * len(both)
    cycle = plan(groups, order, Budgets(room * FIVE, 10**9), LINKS)
    assert cycle.hits >= belady([each.group for each in order], room) - 2


small_sizes = st.lists(st.sampled_from([2 * MB, 3 * MB, 5 * MB]), min_size=3, max_size=7)


@given(small_sizes, st.integers(12, 25), st.sampled_from([0.0, 0.002, 0.004, 0.01]), st.booleans())
@settings(max_examples=30)
def test_small_models_are_as_fast_as_the_best_set_of_all(
    sizes: list[int], room: int, compute: float, both: bool
) -> None:
    groups = [Group.of(str(number), size, compute) for number, size in enumerate(sizes)]
    order = tuple(Use(each.name) for each in groups)
    order = training_order(order) if both else order
    budgets = Budgets(room * MB, 10**9)
    made = plan(groups, order, budgets, LINKS)
    problem = problem_of(groups, order, budgets, LINKS, training=False, stored=True, small=0)
    best = made.predicted_seconds
    units = [(unit.what, unit.name) for unit in problem.units]
    for number in range(len(units)):
        for kept in combinations(units, number):
            size = max(unit.bytes for unit in problem.units if (unit.what, unit.name) not in kept)
            held = sum(unit.bytes for unit in problem.units if (unit.what, unit.name) in kept)
            for slots in range(2, 9):
                if held + slots * size <= problem.available:
                    best = min(best, *(each.predicted for each in _placements(problem, kept, slots, size)))
    assert made.predicted_seconds <= best * 1.05


def test_a_group_larger_than_a_slot_is_loaded_tensor_by_tensor() -> None:
    wide = Group("wide", tuple(Member(f"wide.{place}", 4 * MB) for place in range(4)), 0.4)
    groups = [wide, Group.of("next", 4 * MB)]
    made = plan(groups, training_order(["wide", "next"]), Budgets(17 * MB, 10**9), LINKS)
    assert {each.group for each in made.split} == {"wide"}
    assert [name for each in made.split for name in each.members] == [each.name for each in wide.members]
    forward = [each.group for each in made.order if not each.backward]
    assert [each.group for each in made.order if each.backward] == forward[::-1]
    assert made.compute_seconds == pytest.approx(1.2)
    assert made.matches(["wide", "next", Use("next", True), Use("wide", True)])
    carried_out(made)


def test_tied_weights_count_once_and_stay_where_they_save_most() -> None:
    head = Member("head", 4 * MB, storage="table")
    groups = [
        Group("embed", (Member("embed", 4 * MB, storage="table"),)),
        *(Group.of(str(number), 4 * MB) for number in range(4)),
        Group("head", (head,)),
    ]
    order = [each.name for each in groups]
    made = plan(groups, order, Budgets(13 * MB, 100 * MB), LINKS)
    assert {"embed", "head"} <= {*made.fixed, *(name for name in made.resident)}
    assert sum(each.bytes for each in made.homes) <= 20 * MB + 5 * 256
    assert any("one tensor" in each for each in made.reasons)


def test_training_moves_what_it_makes() -> None:
    groups = [Group(str(n), (Member(f"{n}.w", 4 * MB),), 0.001, 4 * MB, 8 * MB, 2 * MB, 0.001) for n in range(8)]
    order = training_order(each.name for each in groups)
    made = plan(groups, order, Budgets(20 * MB, 30 * MB, 10**9), LINKS, training=True)
    assert made.traffic.device_to_host >= 8 * (4 + 8 + 2) * MB
    assert made.traffic.disk_write == made.bytes_in("disk") > 0
    assert not made.carried
    assert made.limited_by == "the disk"
    assert made.working_bytes == 2 * (4 + 2) * MB
    whole = plan(groups, order, Budgets(200 * MB), LINKS, training=True)
    assert (whole.slots, whole.loads, whole.traffic.host_to_device) == (0, (), 0)
    assert whole.predicted_seconds == pytest.approx(whole.compute_seconds) == 8 * 0.004


@pytest.mark.parametrize("where", ["host", "disk"])
def test_states_lie_where_they_were_asked_to_and_leave_the_device_to_others(where: Tier) -> None:
    """They were planned to stay on the device, where they never were, and pushed gradients from it to the disk."""
    groups = [Group(str(n), (Member(f"{n}.w", 4 * MB),), 0.001, 4 * MB, 8 * MB, 0, 0.001) for n in range(8)]
    order = training_order(each.name for each in groups)
    budgets = Budgets(8 * (4 + 4) * MB + 3 * 8 * MB, 40 * MB, 10**9)
    made = plan(groups, order, budgets, LINKS, training=True, states=where)
    places = Counter((each.what, each.tier) for each in made.homes)
    assert places["weights", "device"] == places["gradients", "device"] == 8
    assert not places["states", "device"]
    assert places["states", "disk"] == (8 if where == "disk" else 3)  # the host has room for five
    assert made.resident_bytes + made.slots * made.slot_bytes <= budgets.device
    assert made.traffic.disk_write == made.traffic.disk_read == places["states", "disk"] * aligned(8 * MB)
    best = Counter((each.what, each.tier) for each in plan(groups, order, budgets, LINKS, training=True).homes)
    assert best["states", "device"]


def test_reads_ahead_of_the_slots_hide_a_slow_disk() -> None:
    groups = [Group.of(str(number), 10 * MB, 0.02) for number in range(20)]
    order = [each.name for each in groups]
    links = Links(Link(1e9), Link(1e9), LINK, Link(0.1e9), Link(0.1e9))
    made = plan(groups, order, Budgets(35 * MB, 160 * MB, 10**9), links)
    assert made.disk
    assert made.staging
    problem = problem_of(groups, uses(order), made.budgets, links, training=False, stored=True, small=0)
    kept = [(unit.what, unit.name) for unit in problem.units if unit.name in made.resident]
    without = next(each for each in _placements(problem, kept, made.slots, made.slot_bytes) if not each.staging)
    assert made.predicted_seconds < without.predicted * 0.9


def test_budgets_that_cannot_do_are_refused_with_what_would() -> None:
    groups = [Group.of(str(number), 10 * MB) for number in range(4)]
    order = [each.name for each in groups]
    with pytest.raises(PlanError, match="one tensor alone is larger than the device's budget: 0") as error:
        plan(groups, order, Budgets(5 * MB, 10**9), LINKS)
    assert error.value.do == "give the device at least 10.1 MB"
    with pytest.raises(PlanError, match="no room for 2 slots") as error:
        plan(groups, training_order(order), Budgets(15 * MB, 10**9), LINKS, training=True)
    assert error.value.do == "give the device at least 20.1 MB"
    with pytest.raises(PlanError, match="no room for 1 slot"):
        plan([*groups, Group("norm", (Member("norm", 6 * MB, "norm"),))], order, Budgets(15 * MB, 10**9), LINKS)
    with pytest.raises(PlanError, match="there is no disk"):
        plan(groups, order, Budgets(25 * MB, 5 * MB), LINKS)
    with pytest.raises(PlanError, match="host and disk have no room"):
        plan(groups, order, Budgets(25 * MB, 5 * MB, 5 * MB), LINKS, stored=False)
    with pytest.raises(PlanError, match="norms, biases and buffers alone"):
        plan([Group("0", (Member("0", 9, "norm"),))], ["0"], Budgets(8), LINKS)
    with pytest.raises(PlanError, match="a ring of 1 slot cannot"):
        plan(groups, order, Budgets(25 * MB, 10**9), LINKS, slots=1)
    with pytest.raises(PlanError, match="names an unknown group"):
        plan(groups, ["9"], Budgets(25 * MB), LINKS)


def test_a_budget_below_two_slots_has_one_where_nothing_trains() -> None:
    """Two slots of the largest tensor were the least, where accelerate needs one: 12 % of a Llama, 4 % of a UNet."""
    groups = [Group.of(str(number), size * MB, 0.01) for number, size in enumerate((10, 10, 9, 10))]
    order = [each.name for each in groups]
    made = plan(groups, order, Budgets(17 * MB, 10**9), LINKS)
    assert made.slots == 1
    assert made.device_bytes <= 17 * MB
    carried_out(made)
    assert any("1 slot of 10.0 MB: two have no room" in each for each in made.reasons)
    assert plan(groups, order, Budgets(21 * MB, 10**9), LINKS).slots == 2
    with pytest.raises(PlanError, match="no room for 3 slots"):
        plan(groups, order, Budgets(17 * MB, 10**9), LINKS, slots=3)


WIDE = tuple(Member(f"wide.{place}", 4 * MB) for place in range(4))


@pytest.mark.parametrize(
    ("together", "least"),
    [((), 1), ((("wide.0", "wide.1"),), 2), ((("wide.0", "wide.1", "wide.2"), ("wide.3",)), 3), (None, 2)],
)
def test_parts_that_a_module_needs_at_the_same_time_have_a_slot_each(
    together: tuple[tuple[str, ...], ...] | None, least: int
) -> None:
    """With two slots for three tensors of one module the plan was accepted, and its first call had no slot."""
    groups = [Group("wide", WIDE, 0.4, together=together), Group.of("next", 4 * MB)]
    size = aligned(4 * MB)
    made = plan(groups, ["wide", "next"], Budgets(least * size, 10**9), LINKS)
    assert (made.slots, made.slot_bytes) == (least, size)
    assert made.split
    carried_out(made)
    with pytest.raises(PlanError, match=f"no room for {least} slot|one tensor alone"):
        plan(groups, ["wide", "next"], Budgets(least * size - 1, 10**9), LINKS)


@given(st.integers(0, 10**14))
def test_a_rounded_size_is_read_back_as_enough(size: int) -> None:
    assert size == 0 or size <= parse_size(enough(size)) <= size * 1.1 + 1


def test_a_small_model_took_six_percent_longer_than_with_the_best_set() -> None:
    groups = [Group.of(str(number), size * MB) for number, size in enumerate((3, 5, 5, 5, 2, 3))]
    made = plan(groups, tuple(Use(each.name) for each in groups), Budgets(17 * MB, 10**9), LINKS)
    assert made.predicted_seconds <= 0.01701


def test_the_former_name_of_bytes_over_links_is_deprecated() -> None:
    with pytest.warns(DeprecationWarning, match="plan.Traffic is LinkBytes now"):
        assert plan_package.Traffic is plan_package.LinkBytes
    with pytest.raises(AttributeError, match="no attribute 'Trafic'"):
        plan_package.Trafic  # noqa: B018
