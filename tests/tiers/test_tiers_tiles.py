"""Tiles of a tensor (`training.tiles`): updated as the whole is, with the same elements in vectors and one by one.

A model of the way in which ATen divides work decides; a torch that divides in another way shows in
test_tiers_training_optimizer.py.
"""

from hypothesis import given
from hypothesis import strategies as st

from toprope.tiers.training.tiles import GRAIN, UNIT, Tile, tiles


def parted(start, stop, threads):
    """The runs of one operation on these elements, as ATen parts it."""
    n = stop - start
    if threads == 1 or n < GRAIN:
        return [(start, stop)]
    length = -(-n // min(threads, -(-n // GRAIN)))
    return [(at, min(at + length, stop)) for at in range(start, stop, length)]


def one_by_one(runs):
    """The elements that no full vector covers."""
    return {at for start, stop in runs for at in range(stop - (stop - start) % UNIT, stop)}


@given(
    elements=st.integers(0, 500_000),
    most=st.integers(2_000, 100_000),
    threads=st.integers(1, 12),
)
def test_the_same_elements_are_left_over(elements, most, threads):
    cut = tiles(elements, most, threads)
    at = 0
    for tile in cut:
        for start, stop in tile.pieces:
            assert start == at
            at = stop
        assert tile.stop == at
        assert tile.stop - tile.start <= max(most, UNIT)
    assert at == elements
    pieces = [run for tile in cut for piece in tile.pieces for run in parted(*piece, threads)]
    assert one_by_one(pieces) == one_by_one(parted(0, elements, threads))


@given(elements=st.integers(0, 500_000), most=st.integers(2_000, 100_000), threads=st.integers(1, 12))
def test_fused_updates_have_one_end(elements, most, threads):
    cut = tiles(elements, most, threads, fused=True)
    assert [cut[0].start, *(tile.stop for tile in cut)] == [*(tile.start for tile in cut), elements]
    assert all(tile.start % UNIT == 0 and tile.pieces == ((tile.start, tile.stop),) for tile in cut)


def test_a_tensor_no_larger_than_a_tile_is_one_piece():
    size = 4 * GRAIN
    assert tiles(size, size, 2) == [Tile(0, size, ((0, size),))]
    assert len(tiles(size + 1, size, 2)) == 2


def test_a_tile_is_one_piece_where_every_thread_has_a_part_and_small_ones_where_one_would_have_none():
    size = 4 * GRAIN + 5
    assert tiles(size, 2 * GRAIN, 2)[0] == Tile(0, 2 * GRAIN, ((0, 2 * GRAIN),))
    small = GRAIN - UNIT
    assert tiles(size, GRAIN, 2)[0] == Tile(0, GRAIN, ((0, small), (small, GRAIN)))
