"""Files that a reader finds whole: what is there while one is written, after an error, and with which permissions.

Holds `toprope.whole_file`.
"""

import errno
import os
import resource
from contextlib import contextmanager

import pytest

from toprope.errors import UsageError
from toprope.whole_file import check_named, write_named, writing_named, writing_whole


@contextmanager
def full_disk():
    """No file of this process may grow, as on a full disk; EFBIG in the place of ENOSPC."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("durable", [False, True])
def test_the_old_file_is_there_until_the_new_one_is_whole(tmp_path, durable) -> None:
    path = tmp_path / "facts.json"
    path.write_bytes(b"old")
    with writing_whole(path, durable=durable) as file:
        file.write(b"new")
        file.flush()
        assert path.read_bytes() == b"old"
    assert (path.read_bytes(), os.listdir(tmp_path)) == (b"new", ["facts.json"])


@pytest.mark.parametrize("durable", [False, True])
def test_what_must_not_be_lost_is_on_the_disk_before_and_after_it_has_its_name(tmp_path, durable, monkeypatch) -> None:
    synced = []

    def sync(descriptor: int) -> None:
        synced.append((os.readlink(f"/proc/self/fd/{descriptor}"), path.exists()))

    path = tmp_path / "facts.json"
    monkeypatch.setattr(os, "fsync", sync)
    with writing_whole(path, durable=durable) as file:
        file.write(b"new")
    if not durable:
        assert synced == []
        return
    (hidden, was_there), folder = synced
    assert hidden.startswith(f"{tmp_path}/.facts.json.")
    assert not was_there
    assert folder == (str(tmp_path), True)


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


@pytest.mark.parametrize("there", [False, True])
def test_a_result_that_does_not_fit_on_the_disk_does_not_empty_the_file_of_before(tmp_path, there) -> None:
    path = tmp_path / "report.html"
    if there:
        path.write_text("old")
    with pytest.raises(UsageError, match="cannot be written: File too large"), full_disk():
        write_named(path, "new")
    assert {each.name: each.read_text() for each in tmp_path.iterdir()} == ({"report.html": "old"} if there else {})


def test_a_named_file_keeps_its_link_its_rights_and_a_device_stays_a_device(tmp_path) -> None:
    real, link = tmp_path / "real.txt", tmp_path / "link.txt"
    real.write_text("old")
    real.chmod(0o640)
    link.symlink_to(real)
    write_named(link, "new")
    assert link.is_symlink()
    assert (real.read_text(), real.stat().st_mode & 0o777) == ("new", 0o640)
    write_named("/dev/null", "lost")
    assert not os.path.isfile("/dev/null")
    reading, writing = os.pipe()
    write_named(f"/dev/fd/{writing}", b"bytes")
    assert os.read(reading, 9) == b"bytes"
    os.close(reading)
    os.close(writing)


def test_a_file_that_is_open_elsewhere_under_dev_is_written_in_place(tmp_path) -> None:
    with (tmp_path / "out").open("w+b") as out:
        with writing_named(f"/dev/fd/{out.fileno()}") as file:
            file.write(b"here")
        out.seek(0)
        assert out.read() == b"here"


def test_trying_a_file_leaves_nothing_and_changes_nothing(tmp_path) -> None:
    check_named(tmp_path / "new")
    assert not list(tmp_path.iterdir())
    (tmp_path / "old").write_text("old")
    check_named(tmp_path / "old")
    assert (tmp_path / "old").read_text() == "old"
    with pytest.raises(OSError, match="No such file"):
        check_named(tmp_path / "none" / "file")
