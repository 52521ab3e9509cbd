"""The bytes and the seconds of one placement (`plan.placement`, `plan.clock`), worked out by hand.

A KB takes 1 s to the device and 2 s back, 3 s to read, 5 s to write, and each group is 8 KB.
"""

from collections.abc import Sequence
from itertools import pairwise

import pytest

from toprope.tiers.plan.clock import COMPUTE, DISK, IN, OUT
from toprope.tiers.plan.model import Budgets, Group, Link, LinkBytes, Links, Member, Tier, Use, training_order, uses
from toprope.tiers.plan.placement import STEPS, Placement
from toprope.tiers.plan.units import problem_of

KB = 1024
EACH = 8 * KB
SEPARATE = Links(Link(KB), Link(KB / 2), Link(KB / 4), Link(KB / 3), Link(KB / 5))
UNIFIED = Links(Link(KB), Link(KB / 2), Link(KB * 99), Link(KB / 3), Link(KB / 5), unified=True)
SLOW_MEMORY = Links(Link(KB), Link(KB / 2), Link(KB / 4), Link(KB / 3), Link(KB / 5), unified=True)


def group(
    name: str, compute: float = 2.0, optimizer: float = 0.0, *, gradients: bool = False, states: bool = False,
    activations: bool = False,
) -> Group:  # fmt: skip
    return Group(
        name, (Member(f"{name}.w", EACH),), compute, EACH * gradients, EACH * states, EACH * activations, optimizer
    )


def place(
    groups: Sequence[Group], away: dict[tuple[str, str], Tier], slots: int = 1, staging: int = 0,
    links: Links = SEPARATE, order: Sequence[Use | str] = (),
) -> Placement:  # fmt: skip
    """A placement in which all is on the device but `away`; it trains if a use of the order is backward."""
    whole = uses(order or [each.name for each in groups])
    room = Budgets(10**9, 10**9, 10**9)
    training = any(use.backward for use in whole)
    problem = problem_of(groups, whole, room, links, training=training, stored=True, small=0)
    tiers: dict[tuple[str, str], Tier] = {(unit.what, unit.name): "device" for unit in problem.units}
    assert away.keys() <= tiers.keys()
    return Placement(problem, tiers | away, slots, 2 * EACH, staging)


def weights(tier: Tier, names: str) -> dict[tuple[str, str], Tier]:
    return {("weights", name): tier for name in names}


# Seconds of a step without training


def test_what_is_on_the_device_computes_and_no_more():
    placement = place([group("a"), group("b", 3.0)], {})
    assert placement.loaded == {}
    assert placement.schedule == ((), ())
    assert placement.traffic == LinkBytes()
    assert placement.predicted == placement.limit == placement.compute == 5.0
    assert [(span.resource, span.label, span.begin, span.end) for span in placement.last_step()] == [
        (COMPUTE, "a", 0.0, 2.0), (COMPUTE, "b", 2.0, 5.0),
    ]  # fmt: skip


def test_a_use_takes_the_seconds_of_its_own_or_of_its_group_and_twice_of_them_backward():
    order = [Use("a"), Use("a", seconds=7.0), Use("a", True, 0.0), Use("a", True)]
    placement = place([group("a", 2.0, 5.0), group("b", 9.0, 1.0)], {}, order=order)
    assert [placement.seconds(number) for number in range(4)] == [2.0, 7.0, 0.0, 4.0]
    assert placement.compute == 13.0 + 5.0 + 1.0  # the optimizer changes what is not used, too
    assert place([group("a", 2.0, 5.0)], {}, order=order[:2]).compute == 9.0


def test_one_slot_loads_and_computes_by_turns():
    placement = place([group("a"), group("b")], weights("host", "ab"))
    assert placement.predicted == 2 * (8 + 2)
    assert placement.traffic == LinkBytes(host_to_device=2 * EACH)
    assert placement.limits == {
        "compute": 4.0, "the link host -> device": 16.0, "the link device -> host": 0.0, "the disk": 0.0
    }  # fmt: skip
    assert placement.limit == 16.0


def test_a_slot_is_not_loaded_while_it_is_read_not_in_the_first_step_either():
    spans = sorted(place([group("a"), group("b")], weights("host", "ab")).run(), key=lambda span: span.begin)
    assert len(spans) == 4 * STEPS
    assert all(one.end <= other.begin for one, other in pairwise(spans))


def test_two_slots_load_while_they_compute():
    by_link = place([group(name) for name in "abc"], weights("host", "abc"), slots=2)
    assert by_link.predicted == by_link.limit == 3 * 8
    by_compute = place([group(name, 11.0) for name in "abc"], weights("host", "abc"), slots=2)
    assert by_compute.predicted == by_compute.limit == 3 * 11


def test_what_a_step_finds_in_the_ring_is_not_loaded():
    placement = place([group("a"), group("b")], weights("host", "ab"), slots=2)
    assert placement.schedule == ((), ("a", "b"))
    assert placement.predicted == 4.0


def test_a_group_on_the_disk_comes_through_a_small_buffer_in_four_pieces():
    """Reads of 2 KB in 6 s, and copies of each in 2 s while the next is read."""
    placement = place([group("a"), group("b")], weights("disk", "ab"))
    assert placement.loaded == {"a": {"disk": EACH}, "b": {"disk": EACH}}
    assert placement.predicted == 2 * (4 * 6 + 2 + 2)
    assert placement.traffic == LinkBytes(2 * EACH, 0, 2 * EACH, 0)
    assert placement.limits["the disk"] == 2 * 24
    spans = [span for span in placement.last_step() if span.label == "b" and span.resource in (DISK, IN)]
    assert sorted(span.end - span.begin for span in spans) == [2.0] * 4 + [6.0] * 4


def test_a_slow_link_copies_the_pieces_one_after_another():
    links = Links(Link(KB / 4), Link(KB), Link(KB), Link(KB / 3), Link(KB))
    placement = place([group("a"), group("b")], weights("disk", "ab"), links=links)
    assert placement.predicted == 2 * (6 + 4 * 8 + 2)


def test_a_read_on_unified_memory_needs_no_copy():
    placement = place([group("a"), group("b")], weights("disk", "ab"), links=UNIFIED)
    assert placement.predicted == 2 * (24 + 2)
    assert placement.traffic == LinkBytes(0, 0, 2 * EACH, 0)
    placement = place([group("a"), group("b")], weights("host", "ab"), links=UNIFIED)
    assert placement.traffic == LinkBytes(2 * EACH, 0, 0, 0)
    assert placement.predicted == 2 * (8 + 2)


@pytest.mark.parametrize(("staging", "seconds"), [(1, 24 + 8), (2, 24)])
@pytest.mark.parametrize("links", [SEPARATE, UNIFIED])
def test_buffers_of_the_host_are_read_ahead_of_the_slot(staging, seconds, links):
    """With one the next read waits for its copy, with two the disk never rests."""
    placement = place([group("a"), group("b")], weights("disk", "ab"), staging=staging, links=links)
    assert placement.predicted == 2 * seconds
    assert placement.traffic == LinkBytes(2 * EACH, 0, 2 * EACH, 0)
    assert placement.limits["the disk"] == 48.0


def test_a_copy_from_a_buffer_waits_for_its_slot():
    placement = place([group("a", 30.0), group("b", 30.0)], weights("disk", "ab"), staging=2)
    assert placement.predicted == 2 * (30 + 8)


def test_a_group_in_two_tiers_waits_for_both():
    table = Member("t", EACH, storage="table")
    groups = [
        Group("a", (Member("a.w", EACH), table), 2.0), Group("b", (Member("b.w", EACH),), 2.0),
        Group("c", (Member("t2", EACH, storage="table"),), 2.0),
    ]  # fmt: skip
    placement = place(groups, {("weights", "a"): "host", ("tied", "table"): "disk", ("weights", "b"): "host"})
    assert placement.loaded == {"a": {"host": EACH, "disk": EACH}, "b": {"host": EACH}, "c": {"disk": EACH}}
    assert placement.traffic == LinkBytes(4 * EACH, 0, 2 * EACH, 0)
    spans = {each: [span for span in placement.last_step() if span.label == each] for each in "abc"}
    assert max(span.end for span in spans["a"]) - min(span.begin for span in spans["a"]) >= 26


def test_codes_take_fewer_bytes_on_the_way():
    groups = [Group(name, (Member(f"{name}.w", EACH, coded=EACH // 4),), 2.0) for name in "ab"]
    placement = place(groups, weights("host", "ab"))
    assert placement.traffic == LinkBytes(EACH // 2)
    assert placement.predicted == 2 * (2 + 2)


def test_copies_read_and_write_the_one_memory():
    """Of copies each byte twice, of the disk's once, and all weights once for the products; at 8 s a KB of both."""
    groups = [group(name) for name in "abc"]
    placement = place(groups, weights("host", "a") | weights("disk", "b"), links=SLOW_MEMORY)
    moved = 2 * EACH + EACH + 3 * EACH
    assert placement.predicted == placement.limits["the memory"] == moved / 2 / KB * 4
    trained = place(
        [group("a", states=True)], {("states", "a"): "disk"}, links=SLOW_MEMORY, order=training_order(["a"])
    )  # fmt: skip
    assert trained.traffic == LinkBytes(0, EACH, EACH, EACH)
    assert trained.limits["the memory"] == (2 * EACH + EACH + EACH + EACH) / 2 / KB * 4
    assert "the memory" not in place(groups, weights("host", "a")).limits


def test_no_step_is_faster_than_its_slowest_link():
    without_disk = Links(Link(KB), Link(KB / 2), Link(KB / 4))
    placement = place([group("a"), group("b")], weights("host", "ab"), links=without_disk)
    assert placement.limits["the disk"] == 0.0
    trained = place([group("a", states=True)], {("states", "a"): "disk"}, order=training_order(["a"]))
    assert trained.limits["the disk"] == 8 * 3 + 8 * 5
    assert trained.limits["the link host -> device"] == 8.0
    assert trained.limits["the link device -> host"] == 16.0
    assert trained.predicted > trained.limit == 64.0


# Training


@pytest.mark.parametrize("what", ["gradients", "states", "activations"])
@pytest.mark.parametrize(("tier", "links", "expected"), [
    ("host", SEPARATE, LinkBytes(EACH, EACH, 0, 0)),
    ("host", UNIFIED, LinkBytes(EACH, EACH, 0, 0)),
    ("disk", SEPARATE, LinkBytes(EACH, EACH, EACH, EACH)),
    ("disk", UNIFIED, LinkBytes(0, EACH, EACH, EACH)),
])  # fmt: skip
def test_what_training_makes_goes_out_and_comes_back_once(what, tier, links, expected):
    made = group("a", gradients=True, states=True, activations=True)
    placement = place([made], {(what, "a"): tier}, links=links, order=training_order(["a"]))
    assert placement.traffic == expected


def test_weights_of_training_are_loaded_read_again_by_the_optimizer_and_written():
    placement = place([group("a")], weights("host", "a"), order=training_order(["a"]))
    assert placement.traffic == LinkBytes(2 * EACH, EACH, 0, 0)
    placement = place([group("a")], weights("disk", "a"), order=training_order(["a"]))
    assert placement.traffic == LinkBytes(2 * EACH, EACH, 2 * EACH, EACH)


def test_states_are_read_after_backward_and_written_while_the_next_step_computes():
    made = group("a", 4.0, 1.0, states=True)
    placement = place([made], {("states", "a"): "host"}, order=training_order(["a"]))
    assert placement.predicted == 4 + 8 + 8 + 1
    on_disk = place([made], {("states", "a"): "disk"}, order=training_order(["a"]))
    assert [span.end - span.begin for span in on_disk.run() if span.resource == DISK] == [24.0, 40.0] * STEPS


def test_the_optimizer_of_a_group_runs_while_the_states_of_the_next_are_read():
    """The third waits until the first is written: there are two buffers."""
    two = [group(name, 8.0, 1.0, states=True) for name in "ab"]
    away: dict[tuple[str, str], Tier] = {("states", name): "host" for name in "abc"}
    order = training_order("ab")
    first = place(two, {key: away[key] for key in list(away)[:2]}, order=order)
    assert first.predicted == 2 * 24 + 8 + 8 + 1
    three = [*two, group("c", 8.0, 1.0, states=True)]
    placement = place(three, away, order=training_order("abc"))
    assert placement.predicted == 3 * 24 + (8 + 1 + 16) + 8 + 1


def test_the_optimizer_needs_gradients_states_and_weights_of_its_group():
    """All three are read before it runs; states and weights are written after it, and gradients are not."""
    made = group("a", 20.0, 1.0, gradients=True, states=True)
    away: dict[tuple[str, str], Tier] = {("gradients", "a"): "host", ("states", "a"): "host", ("weights", "a"): "host"}
    placement = place([made], away, order=training_order(["a"]))
    spans = placement.last_step()
    optimizer = next(span for span in spans if span.resource == COMPUTE and span.end - span.begin == 1.0)
    backward = next(span for span in spans if span.resource == COMPUTE and span.end - span.begin == 40.0)
    reads = [span for span in spans if span.resource == IN and span.begin >= backward.end]
    assert [span.end - span.begin for span in reads] == [8.0] * 3
    assert max(span.end for span in reads) == optimizer.begin
    whole = placement.run()
    ends = placement.ends(whole)
    begin = next(span.end for span in whole if span.resource == COMPUTE and span.end - span.begin == 1.0)
    outs = [span for span in whole if span.resource == OUT and begin <= span.begin < ends[1]]
    assert len(outs) == 3  # states and weights of the first step, gradients of the second


def test_weights_are_loaded_again_once_they_are_written():
    """Load, forward, backward from the same slot, read for the optimizer, write, and again."""
    placement = place([group("a", 4.0, 1.0)], weights("host", "a"), order=training_order(["a"]))
    assert placement.predicted == 8 + 4 + 8 + 8 + 1 + 16


def test_the_user_of_a_tied_weight_waits_until_its_owner_has_written_it():
    groups = [Group(name, (Member(f"{name}.t", EACH, storage="t"),), 4.0, optimizer_seconds=1.0) for name in "eh"]
    placement = place(groups, {("tied", "t"): "host"}, slots=2, order=training_order("eh"))
    # load e; load h while e runs; h forward, h and e backward; read, two optimizers, of which e's is written
    assert placement.predicted == (8 + 8 + 4) + (8 + 8) + 8 + 1 + 16


def test_activations_go_out_after_forward_and_are_back_before_backward():
    made = group("a", 4.0, 1.0, activations=True)
    order = training_order(["a"])
    host = place([made], {("activations", "a"): "host"}, order=order)
    assert host.predicted == 4 + 16 + 8 + 8 + 1
    disk = place([made], {("activations", "a"): "disk"}, order=order)
    assert disk.predicted == 4 + (16 + 40) + (24 + 8) + 8 + 1
    unified = place([made], {("activations", "a"): "disk"}, order=order, links=UNIFIED)
    assert unified.predicted == 4 + (16 + 40) + 24 + 8 + 1


def test_what_a_step_makes_has_two_buffers():
    """The third activations are made once the first are out, and come back once those used last are done with."""
    groups = [group(name, 1.0, activations=True) for name in "abc"]
    away: dict[tuple[str, str], Tier] = {("activations", name): "host" for name in "abc"}
    placement = place(groups, away, order=training_order("abc"))
    spans = placement.last_step()
    forward = [span for span in spans if span.resource == COMPUTE and span.end - span.begin == 1.0]
    outs = [span for span in spans if span.resource == OUT]
    assert [span.label for span in outs] == ["a", "b", "c"]
    assert forward[1].begin == forward[0].end
    assert forward[2].begin == outs[0].end
    backs = [span for span in spans if span.resource == IN]
    assert [span.label for span in backs] == ["c", "b", "a"] or [span.label for span in backs] == ["a", "b", "c"]


def test_gradients_go_out_after_the_last_backward_run_of_their_group():
    order = [Use("a"), Use("a"), Use("a", True), Use("a", True)]
    made = group("a", 4.0, 1.0, gradients=True)
    placement = place([made], {("gradients", "a"): "host"}, order=order)
    spans = placement.last_step()
    backward = [span for span in spans if span.resource == COMPUTE and span.end - span.begin == 8.0]
    (out,) = [span for span in spans if span.resource == OUT and span.begin > 0.0]
    assert out.begin == backward[1].end


def test_activations_of_a_group_that_runs_twice_go_out_and_come_back_once():
    order = [Use("a"), Use("b"), Use("a"), Use("a", True), Use("b", True), Use("a", True)]
    placement = place(
        [group("a", 4.0, activations=True), group("b", 4.0)], {("activations", "a"): "host"}, order=order
    )  # fmt: skip
    spans = placement.last_step()
    computed = [span for span in spans if span.resource == COMPUTE and span.end > span.begin]
    (out,) = [span for span in spans if span.resource == OUT]
    (back,) = [span for span in spans if span.resource == IN]
    assert out.begin == computed[0].end
    assert back.begin >= out.end
    assert back.end <= computed[3].begin


# The last step


@pytest.mark.parametrize("tier", ["host", "disk"])
def test_the_last_step_is_cut_out_of_the_clock(tier):
    placement = place([group(name) for name in "abc"], weights(tier, "abc"), slots=2)
    whole, spans = placement.run(), placement.last_step()
    ends = placement.ends(whole)
    assert len(ends) == STEPS == 3
    assert ends == [[span.end for span in whole if span.resource == COMPUTE][number] for number in (2, 5, 8)]
    length = ends[2] - ends[1]
    assert placement.predicted == (ends[2] - ends[0]) / 2
    assert all(0.0 <= span.begin < span.end <= length for span in spans)
    assert [span.label for span in spans if span.resource == COMPUTE] == ["a", "b", "c"]
    assert sum(span.end - span.begin for span in spans if span.resource == COMPUTE) == 6.0
    busy = sum(min(span.end, ends[2]) - max(span.begin, ends[1]) for span in whole
               if span.resource == IN and span.end > ends[1] and span.begin < ends[2])  # fmt: skip
    assert sum(span.end - span.begin for span in spans if span.resource == IN) == pytest.approx(busy)
