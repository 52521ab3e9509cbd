"""Numbers of a card in the process, in the mask and on the machine: `npu_map`, `cuda_map`, grants of containers.

Holds `toprope.visible_devices`; pure, and one of the modules of scripts/mutants.py.
"""

import os
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toprope.visible_devices import IdMap, cuda_map, explain_grant, granted_cards, npu_map, visible_cards

MACHINES = st.sets(st.integers(0, 63), min_size=1, max_size=16).map(sorted)
GPUS = ["GPU-8932f937-d72c", "GPU-8932f900-aaaa", "GPU-11111111-0000", "GPU-22222222-0000"]


def holds_together(ids: IdMap) -> None:
    """Check what is true of every map: the three numbers of a card lead to each other."""
    assert len(ids.visible) == len(ids.physical) == len(ids)
    assert len(set(ids.physical)) == len(ids)
    for logical in range(len(ids)):
        assert ids.from_physical(ids.to_physical(logical)) == logical
        assert ids.from_visible(ids.to_visible(logical)) == logical


@given(MACHINES, st.data())
def test_numbers_lead_to_each_other_under_any_mask_container_and_gap(machine: list[int], data: st.DataObject) -> None:
    granted = data.draw(st.none() | st.sets(st.sampled_from(machine), min_size=1))
    here = sorted(machine if granted is None else granted)
    chosen = data.draw(st.sets(st.integers(0, len(here) - 1)).map(sorted))
    mask = ",".join(map(str, chosen)) if chosen else None
    ids = npu_map(mask, None if granted is None else ",".join(map(str, granted)), machine)
    holds_together(ids)
    assert ids.problem == ""
    assert list(ids.physical) == ([here[each] for each in chosen] if chosen else here)
    # a child that gets the mask for some of this process's cards sees exactly these
    if len(ids):
        some = data.draw(st.sets(st.integers(0, len(ids) - 1), min_size=1))
        child = npu_map(ids.mask_for(*some), None, here)
        assert set(child.physical) == {ids.to_physical(each) for each in some}


@given(st.text("0123456789,-x "), st.none() | st.text("0123456789,-A "), MACHINES)
def test_every_mask_and_grant_has_an_answer(mask: str, granted: str | None, machine: list[int]) -> None:
    ids = npu_map(mask, granted, machine)
    holds_together(ids)
    assert list(ids.physical) == sorted(ids.physical)
    assert set(ids.physical) <= set(machine)
    assert len(ids) or ids.problem
    explain_grant(mask, granted, machine)


@given(st.text("0123456789,x"), st.integers(1, 16))
def test_without_container_and_gaps_the_machine_counts_as_the_mask(mask: str, count: int) -> None:
    ids = npu_map(mask, None, range(count))
    assert ids.physical == ids.visible == visible_cards(mask, count).cards


@pytest.mark.parametrize(
    ("granted", "cards"),
    [
        ("0", (0,)),
        ("0,2", (0, 2)),
        ("4-6", (4, 5, 6)),
        ("0-1,4", (0, 1, 4)),
        ("Ascend910-0,Ascend910-3", (0, 3)),
        ("Ascend310P-2", (2,)),
        ("2,0,2", (0, 2)),
        (" 1 , 3", (1, 3)),
        ("void", ()),
        ("", ()),
        ("x", ()),
        ("3-1", ()),
        ("0-99999999", ()),
    ],
)
def test_what_a_container_is_granted(granted: str, cards: tuple[int, ...]) -> None:
    found = granted_cards(granted)
    assert found.cards == cards
    assert bool(found.problem) == (not cards)


@given(st.sets(st.integers(0, 63), min_size=1))
def test_a_grant_is_read_as_it_was_written(cards: set[int]) -> None:
    assert granted_cards(",".join(f"Ascend910-{card}" for card in cards)).cards == tuple(sorted(cards))


def test_a_grant_of_what_the_machine_has_not_is_reported() -> None:
    assert npu_map(None, "6-9", range(8)) == IdMap((0, 1), (6, 7), "the machine has no card 8")


@pytest.mark.parametrize("logical", [-1, 2, 99])
def test_a_card_that_the_process_does_not_see_has_no_number(logical: int) -> None:
    ids = npu_map("1,3", None, range(4))
    for ask in (ids.to_physical, ids.to_visible, ids.mask_for):
        with pytest.raises(IndexError, match="sees 2 cards"):
            ask(logical)
    assert ids.from_physical(0) is None
    assert ids.from_visible(2) is None


def as_torch_counts(mask: str, count: int, uuids: list[str]) -> list[int]:
    """torch.cuda's own reading of the variable, cut at the number of GPUs as it does."""
    from torch import cuda

    with mock.patch.dict(os.environ, {"CUDA_VISIBLE_DEVICES": mask}):
        listed = cuda._parse_visible_devices()
    if listed and isinstance(listed[0], str):
        return cuda._transform_uuid_to_ordinals(listed, uuids)
    return listed[: next((place for place, each in enumerate(listed) if each >= count), len(listed))]


NUMBERS = st.lists(st.integers(-2, 9).map(str) | st.sampled_from(["1gpu", "", " 2", "x"])).map(",".join)
UUIDS = st.lists(st.sampled_from([*GPUS, "GPU-8932", "GPU-1", "GPU-", "MIG-1", "0", "GPU-9"]), min_size=1).map(",".join)


@given(NUMBERS | UUIDS, st.integers(0, 4))
def test_gpus_are_counted_as_torch_counts_them(mask: str, count: int) -> None:
    ids = cuda_map(mask, count, GPUS[:count])
    holds_together(ids)
    assert list(ids.physical) == as_torch_counts(mask, count, GPUS[:count])
    assert len(ids) or ids.problem


def test_a_gpu_that_two_names_mean_is_listed_twice() -> None:
    ids = cuda_map(f"{GPUS[0]},{GPUS[0][:-1]}", 2, GPUS[:2])
    assert ids == IdMap((), (), "GPU 0 is listed twice")
    assert as_torch_counts(f"{GPUS[0]},{GPUS[0][:-1]}", 2, GPUS[:2]) == []


@given(st.permutations(range(4)))
def test_gpus_keep_the_order_of_the_mask(order: list[int]) -> None:
    assert list(cuda_map(",".join(map(str, order)), 4).physical) == order
    assert list(cuda_map(",".join(GPUS[each] for each in order), 4, GPUS).physical) == order


@pytest.mark.parametrize(
    ("mask", "granted", "nodes", "said"),
    [
        (None, None, range(8), ""),
        ("0", None, range(8), ""),
        (None, "4,5", [4, 5], ""),
        ("0,1", "4,5", [4, 5], ""),
        ("5", "5", range(8), ""),
        ("4,5", "4,5", [4, 5], "shows none of cards 4, 5: there is no card 4: the mask counts the 2 cards here from 0"),
        (None, "5", range(8), "grants card 5, and programs see 8 cards: npu:0 is card 0, which was never granted"),
        ("2", "5", range(8), "programs see 1 card: npu:0 is card 2, which was never granted"),
        (None, "void", [], "it grants no card"),
    ],
)
def test_what_is_wrong_between_grant_and_use(mask, granted, nodes, said) -> None:
    found = explain_grant(mask, granted, list(nodes))
    assert said in found
    assert bool(found) == bool(said)
