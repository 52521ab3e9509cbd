"""Shared memory (`transport.arena`, `transport.serialization`): blocks, their reuse, a full store, and values in it."""

import errno
import gc
import os
import stat
import threading

import numpy as np
import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from toprope import functions as yr
from toprope.functions.backend import Backend
from toprope.functions.transport import arena as arena_module
from toprope.functions.transport.arena import Arena, Block, Reader
from toprope.functions.transport.serialization import INLINE, Packed, pack, unpack

MB = 2**20


@pytest.fixture
def folder(tmp_path):
    return tmp_path


def filled(arena: Arena, size: int, byte: int) -> Block:
    block, room = arena.new(size)
    room[:] = bytes([byte]) * size
    return block


def read(reader: Reader, block: Block) -> bytes:
    return bytes(reader.view(block, lambda: None))


def test_blocks_are_read_by_others_and_used_again(folder):
    arena, reader = Arena(folder, "a"), Reader(folder)
    first, second = filled(arena, 5000, 1), filled(arena, 10, 2)
    assert (read(reader, first), read(reader, second)) == (b"\1" * 5000, b"\2" * 10)
    assert first.offset % 4096 == second.offset % 4096 == 0
    assert arena.used == 8192 + 4096
    arena.free(first)
    third = filled(arena, 4000, 3)
    assert (third.segment, third.offset) == (first.segment, first.offset)
    assert read(reader, third) == b"\3" * 4000
    arena.free(second)
    arena.free(third)
    assert arena.used == 0
    assert len(list(folder.iterdir())) == 1  # kept for later
    arena.close()
    assert list(folder.iterdir()) == []


def test_files_are_the_users_alone_whatever_the_umask(folder):
    old = os.umask(0)
    try:
        filled(Arena(folder, "a"), 10, 1)
    finally:
        os.umask(old)
    (file,) = folder.iterdir()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_a_name_that_is_taken_or_a_link_is_not_written_to(folder):
    (folder / "victim").write_bytes(b"x")
    (folder / "a-1").symlink_to(folder / "victim")
    with pytest.raises(yr.YRRuntimeError):
        Arena(folder, "a").new(10)
    assert (folder / "victim").read_bytes() == b"x"
    with pytest.raises(OSError, match="symbolic link"):
        Reader(folder).view(Block("a-1", 0, 1), lambda: None)


def test_what_a_reader_writes_is_seen_by_nobody_else_and_not_in_what_comes_next(folder):
    """Views of a block shared their pages once: the second showed what had been written to the first."""
    arena, reader = Arena(folder, "a"), Reader(folder)
    block = filled(arena, 5000, 1)
    mine, yours = reader.view(block, lambda: None), reader.view(block, lambda: None)
    mine[:] = b"\7" * 5000
    assert bytes(yours) == b"\1" * 5000
    assert bytes(reader.view(block, lambda: None)) == b"\1" * 5000
    arena.free(block)
    assert filled(arena, 5000, 2) == block
    assert bytes(reader.view(block, lambda: None)) == b"\2" * 5000


def test_the_end_of_the_last_view_is_told_once(folder):
    arena, reader = Arena(folder, "a"), Reader(folder)
    told = []
    view = reader.view(filled(arena, 5000, 1), lambda: told.append(1))
    array = np.frombuffer(view, dtype=np.uint8)[10:20]
    del view
    gc.collect()
    assert told == []
    assert array.sum() == 10
    del array
    gc.collect()
    assert told == [1]


def test_views_hold_no_descriptors(folder):
    arena, reader = Arena(folder, "a"), Reader(folder)
    block = filled(arena, 5000, 1)
    before = len(os.listdir("/proc/self/fd"))
    views = [reader.view(block, lambda: None) for _ in range(2000)]
    assert len(os.listdir("/proc/self/fd")) == before
    assert all(view[0] == 1 for view in views)


class Store:
    """A file system of so many bytes."""

    def __init__(self, monkeypatch, folder, size):
        self.folder, self.size = folder, size
        self.real = os.posix_fallocate
        monkeypatch.setattr(os, "posix_fallocate", self.fallocate)

    def fallocate(self, file, offset, size):
        taken = sum(path.stat().st_size for path in self.folder.iterdir())
        if taken + size > self.size:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self.real(file, offset, size)


def test_a_full_store_is_an_error_that_says_so_and_leaves_nothing(folder, monkeypatch):
    Store(monkeypatch, folder, 3 * MB)
    arena = Arena(folder, "a")
    block = filled(arena, 2 * MB, 1)
    with pytest.raises(yr.YRRuntimeError, match=r"store in .* cannot take 2097152 bytes more: No space") as caught:
        arena.new(2 * MB)
    assert (caught.value.code, caught.value.module_code) == (4202, 30)
    assert "TOPROPE_OBJECT_STORE" in str(caught.value)
    assert len(list(folder.iterdir())) == 1
    arena.free(block)
    assert read(Reader(folder), filled(arena, 2 * MB, 3)) == b"\3" * (2 * MB)


def test_a_store_with_room_only_in_what_is_kept_for_later_is_not_full(folder, monkeypatch):
    """A block for which segments without blocks had to go was refused once although there was room then."""
    Store(monkeypatch, folder, 150 * MB)
    arena = Arena(folder, "a")
    arena.free(arena.new(70 * MB)[0])
    block, _ = arena.new(100 * MB)
    assert [path.name for path in folder.iterdir()] == [block.segment]


def test_a_value_that_does_not_fit_takes_no_memory(folder, monkeypatch):
    Store(monkeypatch, folder, 3 * MB)
    arena = Arena(folder, "a")
    with pytest.raises(yr.YRRuntimeError, match="object store"):
        pack([np.ones(2 * MB, np.uint8), np.ones(2 * MB, np.uint8)], arena)
    assert arena.used == 0


def test_more_than_is_kept_goes_back(folder, monkeypatch):
    monkeypatch.setattr(arena_module, "_SEGMENT", MB)
    arena = Arena(folder, "a", keep=2 * MB)
    blocks = [filled(arena, MB, 1) for _ in range(5)]
    for block in blocks:
        arena.free(block)
    assert len(list(folder.iterdir())) == 2


def test_threads_share_an_arena(folder):
    arena, reader = Arena(folder, "a"), Reader(folder)
    wrong = []

    def work(byte):
        for size in (100, 5000, 70000) * 20:
            block = filled(arena, size, byte)
            if read(reader, block) != bytes([byte]) * size:
                wrong.append(byte)
            arena.free(block)

    threads = [threading.Thread(target=work, args=(byte,)) for byte in range(1, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert arena.used == 0


class Blocks(RuleBasedStateMachine):
    """Blocks come and go; none lies on another, and all keep what was put into them."""

    def __init__(self):
        super().__init__()
        import tempfile
        from pathlib import Path

        self.temporary = tempfile.TemporaryDirectory()
        self.folder = Path(self.temporary.name)
        self.arena = Arena(self.folder, "a", keep=0)
        self.reader = Reader(self.folder)
        self.blocks: list[tuple[Block, int]] = []
        self.byte = 0

    @rule(size=st.sampled_from([1, 4096, 4097, 100_000, 300_000]))
    def take(self, size):
        self.byte = self.byte % 255 + 1
        self.blocks.append((filled(self.arena, size, self.byte), self.byte))

    @precondition(lambda self: self.blocks)
    @rule(data=st.data())
    def give(self, data):
        block, _ = self.blocks.pop(data.draw(st.integers(0, len(self.blocks) - 1)))
        self.arena.free(block)

    @invariant()
    def all_is_kept(self):
        for block, byte in self.blocks:
            assert read(self.reader, block) == bytes([byte]) * block.size
        assert self.arena.used == sum(-(-block.size // 4096) * 4096 for block, _ in self.blocks)

    def teardown(self):
        for block, _ in self.blocks:
            self.arena.free(block)
        assert list(self.folder.iterdir()) == []
        self.temporary.cleanup()


Blocks.TestCase.settings = settings(max_examples=15, stateful_step_count=25)


@pytest.fixture
def small_segments(monkeypatch):
    monkeypatch.setattr(arena_module, "_SEGMENT", MB)


@pytest.mark.usefixtures("small_segments")
class TestBlocks(Blocks.TestCase):
    pass


# Values


class Way:
    """A value's way to another process and back, without the process."""

    def __init__(self, folder):
        self.arena, self.reader = Arena(folder, "a"), Reader(folder)
        self.let_go: list[tuple[str, int, int]] = []

    def pack(self, value) -> Packed:
        return pack(value, self.arena)

    def unpack(self, packed: Packed):
        return unpack(packed.data, packed.spec, packed.parts, self.reader, self.let_go.append)

    def there(self, value):
        return self.unpack(self.pack(value))


@pytest.fixture
def way(folder):
    return Way(folder)


ARRAYS = [
    np.arange(10.0), np.arange(40000.0), np.zeros((300, 300), order="F"), np.ones((400, 300))[:, ::2],
    np.arange("2020", "2060", dtype="M8[D]"), np.arange(40000).astype("m8[s]"), np.array(["abc"] * 9999),
    np.array([b"abc"] * 20000), np.ones(99999, bool), np.ones((0, 5)), np.array(3.5), np.ones(60000, "f2"),
    np.ones(60000, [("a", "i4"), ("b", "f8")]), np.ones(9999, "c16"), np.arange(40000, dtype=">i4"),
    np.ones((50, 20, 30, 2)).transpose(2, 0, 1, 3), np.array([None, "x", 3], dtype=object),
]  # fmt: skip


@pytest.mark.parametrize("array", ARRAYS, ids=lambda array: f"{array.dtype}{list(array.shape)}")
def test_arrays_arrive_as_they_were_and_read_only(way, array):
    again = way.there(array)
    assert again.dtype == array.dtype
    assert again.shape == array.shape
    assert (again == array).all()
    assert not again.flags.writeable or array.dtype.hasobject


TENSORS = [
    torch.randn(300, 300), torch.zeros(200000, dtype=torch.bfloat16), torch.zeros(99999, dtype=torch.complex64),
    torch.tensor(3.0), torch.nn.Parameter(torch.randn(4)), torch.nn.Parameter(torch.randn(200, 200)),
    torch.randn(100, 200, requires_grad=True), torch.zeros(0, 3), torch.ones(50000, dtype=torch.bool),
    torch.randn(400, 300).t(), torch.randn(400, 300)[::2, 1:], torch.randn(9).conj(), torch.eye(3).to_sparse(),
    torch.randn(300, 300).to(torch.float8_e4m3fn),
]  # fmt: skip


@pytest.mark.parametrize("tensor", TENSORS, ids=lambda tensor: f"{tensor.dtype}{list(tensor.shape)}")
def test_tensors_arrive_as_they_were_and_may_be_written_to(way, tensor):
    again = way.there(tensor)
    assert type(again) is type(tensor)
    assert again.dtype == tensor.dtype
    assert (again.requires_grad, again.is_leaf) == (tensor.requires_grad, True)
    if tensor.is_sparse:
        assert torch.equal(again.to_dense(), tensor.to_dense())
        return
    assert torch.equal(again.detach().to(torch.complex64), tensor.detach().to(torch.complex64))
    with torch.no_grad():
        again.fill_(0)


def test_large_values_are_read_where_they_lie_and_given_back(way):
    array = np.random.default_rng(0).random((1000, 1000))
    packed = way.pack({"a": [array], "n": 1})
    assert len(packed.blocks()) == 1
    assert len(packed.data) < 500
    again = way.unpack(packed)["a"][0]
    part = again[5:10]
    assert (again == array).all()
    del again
    gc.collect()
    assert way.let_go == []
    assert (part == array[5:10]).all()
    del part
    gc.collect()
    assert way.let_go == packed.blocks()


def test_two_receivers_of_one_tensor_have_each_their_own(way):
    """Both lay in the same pages once, so that `+=` of one was seen by the other."""
    tensor = torch.arange(100000.0)
    packed = way.pack(tensor)
    first = way.unpack(packed)
    first += 1
    second = way.unpack(packed)
    assert torch.equal(second, tensor)
    assert torch.equal(first, tensor + 1)


@pytest.mark.parametrize("size", [INLINE - 200, INLINE, 3 * MB])
def test_long_texts_and_bytes_arrive(way, size):
    for value in (b"x" * size, "é" * size, ["x" * size], bytearray(size), memoryview(b"x" * size).tobytes()):
        assert way.there(value) == value


@pytest.mark.parametrize("kind", [bytes, bytearray])
def test_large_bytes_were_copied_into_the_pickle_and_then_into_shared_memory(folder, kind):
    arena, reader = Arena(folder, "a"), Reader(folder)
    data = kind(os.urandom(MB))
    for value in (data, ((data, 1), {"more": data})):
        packed = pack(value, arena)
        assert len(packed.data) < 1000
        assert {block[2] for block in packed.blocks()} == {MB}
        found = unpack(packed.data, packed.spec, packed.parts, reader, lambda key: None)
        assert found == value
        first = found if value is data else found[0][0]
        assert type(first) is kind
    assert pack((data[:100],), arena).blocks() == []


def test_what_only_cloudpickle_takes_arrives(way):
    big = np.ones(100000)

    class Local:
        def __init__(self):
            self.array = big

    again = way.there((Local(), lambda x: x + big.sum(), {"k": Local}))
    assert (again[0].array == big).all()
    assert again[1](1) == 100001
    assert again[2]["k"] is Local  # in the process that it comes from


def test_what_is_the_programs_own_goes_by_value_wherever_it_lies(way, monkeypatch):
    """Keys of a dictionary, too: a worker has no such module."""
    kind = type("Key", (), {"__module__": "__main__", "__hash__": lambda self: 1, "__eq__": lambda self, other: True})
    key = kind()
    for value in ({key: 1}, {1: key}, [[key]], ((key,), {}), {"deep": [{key: 1}]}):
        packed = pack(value, None)
        assert b"_make_skeleton_class" in packed.data, value
    assert b"_make_skeleton_class" not in pack({"a": [1, (2, None)]}, None).data


def test_a_reference_is_sent_in_calls_alone():
    import pickle

    class Other(Backend):
        """One whose references are sent by nobody else."""

    Other.__abstractmethods__ = frozenset()
    with pytest.raises(TypeError, match="can be sent in arguments, results and objects that are put"):
        pickle.dumps(yr.ObjectRef(Other(), None))
