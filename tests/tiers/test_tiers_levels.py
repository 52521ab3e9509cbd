"""Which keys move where in a stack (`stack.levels`): against a simple model for keys of one size, else by rules."""

import ast
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toprope.tiers.stack import levels as module
from toprope.tiers.stack.levels import Future, Levels, Move

KEYS = st.sampled_from("abcdefghij")
STEP = st.tuples(st.sampled_from(["put", "access", "remove"]), KEYS, st.integers(0, 9), st.integers(0, 2))


def put(levels, key, nbytes, priority=5, at=None):
    """Puts a key as a stack does, and tells whether there was room."""
    found = levels.plan_put(key, nbytes, at)
    if found is None:
        return False
    for move in found.moves:
        levels.apply(move)
    levels.place(key, nbytes, found.level, priority)
    return True


def access(levels, key, keep=()):
    for move in levels.plan_access(key, keep):
        levels.apply(move)
    levels.use(key)


class Lists:
    """The simple model, for keys of one byte: a list a level, the least recently used in front."""

    def __init__(self, capacities):
        self.capacities, self.lists = capacities, [[] for _ in capacities]

    def put(self, key):
        before = [list(each) for each in self.lists]
        self.remove(key)
        first = next((at for at, capacity in enumerate(self.capacities) if capacity), None)
        pushed = key
        for at in range(len(self.lists) if first is not None else 0):
            if self.capacities[at]:
                self.lists[at].append(pushed)
                if len(self.lists[at]) <= self.capacities[at]:
                    return True
                pushed = self.lists[at].pop(0)
        self.lists = before
        return False

    def remove(self, key):
        for each in self.lists:
            if key in each:
                each.remove(key)


@pytest.mark.slow
@given(st.lists(st.integers(0, 3), min_size=1, max_size=3), st.lists(STEP, max_size=60))
def test_keys_of_one_size_lie_where_the_simple_model_says(capacities, steps):
    levels, model = Levels(capacities), Lists(capacities)
    levels.future = Never()
    for what, key, _, _ in steps:
        if what == "put":
            assert put(levels, key, 1) == model.put(key)
        elif what == "remove":
            levels.remove(key)
            model.remove(key)
        elif key in levels:
            access(levels, key)
            assert model.put(key)  # what is there already always finds room
        assert [levels.order(at) for at in range(len(capacities))] == model.lists


@given(st.lists(st.integers(0, 20), min_size=1, max_size=4), st.lists(STEP, max_size=60))
def test_no_key_is_lost_and_no_level_holds_more_than_it_may(capacities, steps):
    levels, there = Levels(capacities), {}
    for what, key, nbytes, priority in steps:
        before = {name: levels.level_of(name) for name in there}
        if what == "put":
            if put(levels, key, nbytes, priority):
                there[key] = nbytes
            else:
                assert {name: levels.level_of(name) for name in there} == before
                assert all(nbytes > free for free in free_without(levels, key))
        elif what == "remove":
            assert (levels.remove(key) is None) == (there.pop(key, None) is None)
        elif key in there:
            access(levels, key)
            assert levels.level_of(key) <= before[key]
            if there[key] <= capacities[0] and len(capacities) == 1:
                assert levels.level_of(key) == 0
        assert set(levels) == set(there)
        for at, capacity in enumerate(capacities):
            held = [name for name in there if levels.level_of(name) == at]
            assert sorted(levels.order(at)) == sorted(held)
            assert levels.used[at] == sum(levels.bytes_of(name) for name in held) <= capacity
        assert {name: levels.bytes_of(name) for name in there} == there


def free_without(levels, key):
    """Bytes free on each level if the key were not there."""
    lies_on, size = levels.level_of(key), levels.bytes_of(key) if key in levels else 0
    return [
        capacity - used + (size if at == lies_on else 0)
        for at, (capacity, used) in enumerate(zip(levels.capacities, levels.used, strict=True))
    ]


@pytest.mark.slow
@given(st.lists(STEP, max_size=30), KEYS, st.integers(0, 9))
def test_a_plan_changes_nothing_and_its_moves_can_be_undone(steps, key, nbytes):
    levels = Levels([9, 14])
    for _, name, size, priority in steps:
        put(levels, name, size, priority)

    def state():
        return {name: (levels.level_of(name), levels.bytes_of(name)) for name in levels}, levels.used

    before = state()
    found = levels.plan_put(key, nbytes)
    moves = found.moves if found else ()
    assert state() == before
    for move in moves:
        levels.apply(move)
    for move in reversed(moves):
        levels.apply(move.back)
    assert state() == before


def test_the_lowest_priority_goes_first_then_the_least_recently_used():
    levels = Levels([3, 9])
    for key, priority in (("low", 1), ("old", 5), ("new", 5)):
        put(levels, key, 1, priority)
    levels.use("low")
    assert levels.plan_put("x", 1).moves == (Move("low", 1, 0, 1),)
    assert levels.plan_put("x", 2).moves == (Move("low", 1, 0, 1), Move("old", 1, 0, 1))


def test_a_key_and_the_one_it_pushes_out_change_places():
    levels = Levels([2, 2])
    for key in "abcd":
        put(levels, key, 1)
    assert [levels.order(0), levels.order(1)] == [["c", "d"], ["a", "b"]]
    assert levels.plan_access("b") == (Move("c", 1, 0, 1), Move("b", 1, 1, 0))
    assert levels.plan_access("d") == ()
    assert levels.plan_put("e", 1) is None


def test_what_is_too_large_for_level_0_goes_lower_and_pushes_nothing_out():
    levels = Levels([2, 8])
    put(levels, "a", 1)
    put(levels, "large", 5)
    assert (levels.level_of("a"), levels.level_of("large")) == (0, 1)
    assert levels.plan_access("large") == ()


def test_what_is_too_large_for_the_next_level_goes_to_the_one_below():
    levels = Levels([4, 1, 4])
    put(levels, "a", 3)
    assert levels.plan_put("b", 3).moves == (Move("a", 3, 0, 2),)


def test_bytes_that_must_stay_are_never_pushed_out():
    levels = Levels([4, 4])
    levels.place("weight", 3, 0, movable=False)
    put(levels, "a", 1)
    assert levels.plan_put("b", 2).level == 1
    assert levels.plan_put("b", 1).moves == (Move("a", 1, 0, 1),)
    assert levels.plan_access("weight") == ()
    levels.use("weight")
    assert levels.used == (4, 0)
    assert levels.remove("weight") == 0


def test_keys_to_be_kept_are_not_pushed_out():
    levels = Levels([1, 2])
    for key in "ab":
        put(levels, key, 1)
    assert levels.plan_access("a", keep={"b"}) == ()
    assert levels.plan_access("a") != ()


def test_levels_can_be_named():
    levels = Levels([4, 4])
    assert levels.plan_put("a", 1, levels=[1]).level == 1
    assert levels.plan_put("a", 5, levels=[1]) is None


@pytest.mark.parametrize("nbytes", [0, 7])
def test_replacing_counts_one_copy(nbytes):
    levels = Levels([8, 8])
    for _ in range(8):
        assert put(levels, "a", nbytes)
    assert levels.used == (nbytes, 0)
    assert len(levels) == 1


# The order of uses


class Never:
    """What knows no order: the least recently used goes first."""

    trusted = False

    def use(self, key):
        pass


def hits_of(order, room, passes, future=None):
    """Hits of each pass over an order, by a level with room for so many keys above one for all."""
    levels, found = Levels([room, len(order)]), []
    if future is not None:
        levels.future = future
    for key in dict.fromkeys(order):
        put(levels, key, 1)
    for _ in range(passes):
        found.append(0)
        for key in order:
            found[-1] += levels.level_of(key) == 0
            access(levels, key)
    return found


def best_hits(order, room, passes):
    """Belady's choice, by brute force: what is used again the latest goes, the one just used never."""
    uses, here, found = order * passes, set(), [0] * passes
    for at, key in enumerate(uses):
        found[at // len(order)] += key in here
        here.add(key)
        if len(here) > room:
            rest = uses[at + 1 :]
            here.remove(max(here - {key}, key=lambda each: rest.index(each) if each in rest else len(rest)))
    return found


@pytest.mark.parametrize("room", [8, 16, 24])
def test_19_a_cycle_hits_all_but_two_of_its_room(room):
    hits = hits_of(list(range(32)), room, 8)
    assert min(hits[2:]) >= room - 2
    assert hits_of(list(range(32)), room, 8, Never()) == [0] * 8


@pytest.mark.parametrize("room", [8, 16, 24])
def test_19_there_and_back_hits_as_the_best_choice_does(room):
    order = [*range(32), *reversed(range(32))]
    hits, best = hits_of(order, room, 8), best_hits(order, room, 9)
    assert sum(hits[2:]) >= 0.95 * sum(best[2:8])


def test_an_order_that_changes_is_learned_anew():
    order = list(range(20))
    levels = Levels([10, 40])
    for key in order:
        put(levels, key, 1)
    for step in range(12):
        if step == 6:
            order = order[::2] + order[1::2]
        hits = 0
        for key in order:
            hits += levels.level_of(key) == 0
            access(levels, key)
        if step in (5, 11):
            assert hits >= 8


def test_what_is_brought_ahead_of_its_use_stays_for_it_whatever_the_order_says():
    levels = Levels([3, 20])
    for key in ("x", "y", *range(8)):
        put(levels, key, 1)
    for _ in range(4):
        for key in range(8):
            access(levels, key)
    for key in ("x", "y"):
        for move in levels.plan_access(key):
            levels.apply(move)
        levels.use(key, ahead=True)
    for key in range(4):
        access(levels, key)
    assert (levels.level_of("x"), levels.level_of("y")) == (0, 0)
    for key in (*range(4, 8), *range(8)):
        access(levels, key)
    assert (levels.level_of("x"), levels.level_of("y")) == (1, 1)  # nobody came for them


@pytest.mark.slow
@given(st.lists(st.sampled_from("abcd"), max_size=40), st.integers(1, 5))
def test_what_is_expected_is_what_came_after_the_same_two_uses(uses, period):
    future = Future()
    for key in uses:
        future.use(key)
    for key in [*uses[:period]] * (6 + len(uses)):  # what came before may be followed for as long as it was
        future.use(key)
    if uses and len(set(uses[:period])) == len(uses[:period]):
        assert future.trusted
        cycle = uses[:period]
        assert [future.distance(key) for key in cycle] == list(range(1, len(cycle) + 1))
    assert future.distance("nobody") == float("inf")


def test_only_so_many_uses_are_remembered(monkeypatch):
    monkeypatch.setattr(module, "KEPT", 16)
    future = Future()
    for number in range(1000):
        future.use(number % 10)
        if number > 50:
            assert future.trusted
            assert future.distance((number + 3) % 10) == 3
    assert len(future._uses) < 32
    for number in range(1000, 1100):
        future.use(number)
    assert not future.trusted
    assert len(future._at) < 32 > len(future._after)


@pytest.mark.slow
@given(st.lists(STEP, max_size=60))
def test_no_key_is_lost_on_a_level_of_blocks(steps):
    levels, there = Levels([10, 16, 24], [1, 1, 4]), {}
    for what, key, nbytes, priority in steps:
        if what == "put":
            if put(levels, key, nbytes, priority):
                there[key] = nbytes
        elif what == "remove":
            levels.remove(key)
            there.pop(key, None)
        elif key in there:
            access(levels, key)
        assert set(levels) == set(there)
        low = [nbytes for key, nbytes in there.items() if levels.level_of(key) == 2]
        assert levels.taken[2] == sum(max(1, -(-nbytes // 4)) * 4 for nbytes in low) <= 24
        assert levels.used[2] == sum(low)
        assert levels.taken[:2] == levels.used[:2]


def test_the_file_is_pure():
    imported = set()
    tree = ast.parse(Path(module.__file__).read_text(encoding="utf-8"))
    imported |= {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    imported |= {name.name for node in ast.walk(tree) if isinstance(node, ast.Import) for name in node.names}
    assert imported == {"__future__", "bisect", "collections", "collections.abc", "dataclasses"}
