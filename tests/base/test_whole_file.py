"""Files that a reader finds whole: what is there while one is written, after an error, and with which permissions.

Holds `toprope.whole_file`.
"""

import errno
import os

import pytest

from toprope.whole_file import writing_whole


@pytest.mark.parametrize("durable", [False, True])
def test_the_old_file_is_there_until_the_new_one_is_whole(tmp_path, durable) -> None:
    path = tmp_path / "facts.json"
    path.write_bytes(b"old")
    with writing_whole(path, durable=durable) as file:
        file.write(b"new")
        file.flush()
        assert path.read_bytes() == b"old"
    assert (path.read_bytes(), os.listdir(tmp_path)) == (b"new", ["facts.json"])


@pytest.mark.parametrize("failed", [KeyboardInterrupt(), ValueError("half"), OSError(errno.ENOSPC, "full")])
def test_after_an_error_the_old_file_is_there_and_no_other(tmp_path, failed) -> None:
    path = tmp_path / "facts.json"
    path.write_bytes(b"old")

    def half() -> None:
        with writing_whole(path) as file:
            file.write(b"new")
            raise failed

    with pytest.raises(type(failed)):
        half()
    assert (path.read_bytes(), os.listdir(tmp_path)) == (b"old", ["facts.json"])


def test_an_error_where_it_cannot_take_its_place_leaves_nothing(tmp_path) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(IsADirectoryError), writing_whole(tmp_path / "folder") as file:
        file.write(b"new")
    assert os.listdir(tmp_path) == ["folder"]
    with pytest.raises(FileNotFoundError), writing_whole(tmp_path / "absent" / "file"):
        raise AssertionError("the folder is not there")


def test_permissions_are_the_mode_less_the_mask(tmp_path) -> None:
    before = os.umask(0o027)
    try:
        for name, mode in (("shared", 0o666), ("own", 0o600)):
            with writing_whole(tmp_path / name, mode=mode) as file:
                assert os.fstat(file.fileno()).st_mode & 0o777 == mode & ~0o027
            assert (tmp_path / name).stat().st_mode & 0o777 == mode & ~0o027
    finally:
        os.umask(before)


def test_a_link_is_replaced_and_what_it_points_to_stays(tmp_path) -> None:
    (tmp_path / "other").write_bytes(b"another's")
    (tmp_path / "link").symlink_to("other")
    with writing_whole(tmp_path / "link") as file:
        file.write(b"new")
    assert not (tmp_path / "link").is_symlink()
    assert (tmp_path / "other").read_bytes() == b"another's"
