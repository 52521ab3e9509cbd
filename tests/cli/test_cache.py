"""`toprope cache`: everything that is kept is listed, and nothing that is in use is removed.

Holds `cli.cache` on real folders and processes.
"""

import fcntl
import io
import json
import os
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest

from toprope.cli import main
from toprope.cli.cache import KINDS, find
from toprope.native_build import NOTE

LONG_AGO = time.time() - 100_000


@pytest.fixture
def kept(tmp_path, monkeypatch):
    """A cache with one entry of each kind, and what is not toprope's next to it."""
    cache, config, temporary = (tmp_path / name for name in ("cache", "config", "tmp"))
    monkeypatch.setenv("TOPROPE_CACHE_DIR", str(cache))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(config))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "runtime"))
    (tmp_path / "runtime").mkdir()
    monkeypatch.setenv("TOPROPE_OBJECT_STORE", str(temporary))
    monkeypatch.setattr("tempfile.tempdir", str(temporary))
    build = cache / "sim" / "torch-2.13.0-aaaa-bbbb"
    build.mkdir(parents=True)
    (build / NOTE).write_text(json.dumps({"torch": "2.13.0"}))
    (build / "libcard.so").write_bytes(b"x" * 5000)
    (cache / "sim" / "torch-2.13.0-aaaa-bbbb.lock").touch()
    (cache / "pages" / "cccc-dddd").mkdir(parents=True)
    (cache / "tiers").mkdir()
    (cache / "tiers" / "weights").write_bytes(b"w" * 9000)
    (cache / "strange").write_text("?")
    rates = config / "toprope" / "rates"
    rates.mkdir(parents=True)
    (rates / "910B3.toml").write_text("figures = []")
    run = temporary / "toprope-run-a1b2c3_d"
    run.mkdir(parents=True, mode=0o700)
    for name in ("toprope-checkout", "toprope-run-notes", "toprope-tests-a1b2c3_d", "others"):
        (temporary / name).mkdir(mode=0o700)
    os.utime(run, (LONG_AGO, LONG_AGO))
    return tmp_path


def kinds(root):
    return {entry.kind: str(entry.path.relative_to(root)) for entry in find() if entry.path.is_relative_to(root)}


EVERYTHING = {
    "card": "cache/sim/torch-2.13.0-aaaa-bbbb", "kernels": "cache/pages/cccc-dddd", "tiers": "cache/tiers/weights",
    "runs": "tmp/toprope-run-a1b2c3_d", "rates": "config/toprope/rates/910B3.toml", "other": "cache/strange",
}  # fmt: skip


def test_everything_that_is_kept_is_shown_and_nothing_else(kept, capsys):
    assert kinds(kept) == EVERYTHING
    assert main(["cache"]) == 0
    shown = capsys.readouterr().out
    for kind, path in EVERYTHING.items():
        assert str(kept / path) in shown
        assert str(KINDS[kind]) in shown
    assert "the simulated card, compiled, for torch 2.13.0" in shown
    assert "checkout" not in shown


def test_json_has_what_where_size_age_and_use(kept, capsys):
    assert main(["cache", "--json"]) == 0
    (build,) = (one for one in json.loads(capsys.readouterr().out) if one["what"] == "card")
    assert build["path"] == str(kept / EVERYTHING["card"])
    assert build["bytes"] >= 5000
    assert (build["made_for"], build["in_use"]) == ("torch 2.13.0", None)
    assert time.time() - build["made"] < 1000


def test_clear_removes_all_but_the_rates(kept, capsys):
    assert main(["cache", "clear", "--yes"]) == 0
    assert "removed" in capsys.readouterr().out
    assert kinds(kept) == {"rates": EVERYTHING["rates"]}
    assert sorted(path.name for path in (kept / "tmp").iterdir()) == [
        "others", "toprope-checkout", "toprope-run-notes", "toprope-tests-a1b2c3_d"
    ]  # fmt: skip
    assert main(["cache", "clear", "--yes"]) == 0
    assert "nothing to remove" in capsys.readouterr().out


def test_what_is_named_is_removed_and_nothing_else(kept):
    assert main(["cache", "clear", "rates", "tiers", "--yes"]) == 0
    assert set(kinds(kept)) == set(EVERYTHING) - {"rates", "tiers"}


def test_a_name_that_is_no_kind_is_an_error(kept, capsys):
    assert main(["cache", "clear", "cards", "--yes"]) == 2
    assert "give some of card, kernels" in capsys.readouterr().err
    assert kinds(kept) == EVERYTHING


def test_it_asks_and_without_a_terminal_it_does_nothing(kept, capsys, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.StringIO("y\n"))
    assert main(["cache", "clear"]) == 2
    assert "toprope cache clear --yes" in capsys.readouterr().err
    assert kinds(kept) == EVERYTHING


@pytest.mark.parametrize(("answer", "left"), [("n\n", len(EVERYTHING)), ("y\n", 1)])
def test_the_answer_decides(answer, left, kept, monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    monkeypatch.setattr("sys.stdin", Terminal(answer))
    assert main(["cache", "clear"]) == (0 if left == 1 else 1)
    assert len(kinds(kept)) == left


def test_a_build_that_is_being_made_stays(kept, capsys):
    lock = os.open(kept / "cache" / "sim" / "torch-2.13.0-aaaa-bbbb.lock", os.O_RDWR)
    fcntl.flock(lock, fcntl.LOCK_EX)
    try:
        assert main(["cache"]) == 0
        assert "being built" in capsys.readouterr().out
        assert main(["cache", "clear", "card", "--yes"]) == 0
        assert "1 in use: kept" in capsys.readouterr().out
    finally:
        os.close(lock)
    assert "card" in kinds(kept)
    assert main(["cache", "clear", "card", "--yes"]) == 0
    assert "card" not in kinds(kept)


HOLDERS = {
    "maps": "m = mmap.mmap(os.open(sys.argv[1] + '/libcard.so', os.O_RDONLY), 0, prot=mmap.PROT_READ)",
    "opens": "f = open(sys.argv[1] + '/libcard.so')",
    "environment": "",
}


@pytest.mark.process
@pytest.mark.parametrize("how", HOLDERS)
def test_what_a_process_uses_stays(how, kept):
    entry = "runs" if how == "environment" else "card"
    path = str(kept / EVERYTHING[entry])
    program = f"import mmap, os, sys\n{HOLDERS[how]}\nprint(flush=True)\nsys.stdin.read()"
    variables = os.environ | ({"TOPROPE_RUN_DIR": path} if how == "environment" else {})
    with subprocess.Popen(
        [sys.executable, "-c", program, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=variables
    ) as holder:
        holder.stdout.readline()
        (found,) = (one for one in find() if str(one.path) == path)
        assert found.in_use == f"by process {holder.pid}"
        assert main(["cache", "clear", "--yes"]) == 0
        assert set(kinds(kept)) == {entry, "rates"}
        holder.stdin.close()
    assert main(["cache", "clear", "--yes"]) == 0
    assert set(kinds(kept)) == {"rates"}


def test_the_folder_of_a_run_that_has_just_begun_stays(kept):
    os.utime(kept / EVERYTHING["runs"])
    assert main(["cache", "clear", "runs", "--yes"]) == 0
    assert "runs" in kinds(kept)


def test_a_folder_that_others_may_enter_is_not_of_a_run(kept):
    (kept / EVERYTHING["runs"]).chmod(0o755)
    assert "runs" not in kinds(kept)


def test_the_cards_of_a_deployment_stay(kept, monkeypatch):
    cards = kept / "tmp" / "toprope-cards-a1b2c3_d"
    cards.mkdir(mode=0o700)
    os.utime(cards, (LONG_AGO, LONG_AGO))
    monkeypatch.setattr("toprope.functions.deployment.state_file.read", lambda: SimpleNamespace(cards=str(cards)))
    assert main(["cache", "clear", "runs", "--yes"]) == 0
    assert [one.path.name for one in find() if one.path.parent == cards.parent] == [cards.name]


def test_nothing_is_kept(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("TOPROPE_CACHE_DIR", str(tmp_path / "none"))
    monkeypatch.setattr("toprope.cli.cache.find", list)
    assert main(["cache"]) == 0
    assert str(tmp_path / "none") in capsys.readouterr().out


def test_a_link_in_the_cache_is_removed_and_not_what_it_points_to(kept):
    target = kept / "precious"
    target.mkdir()
    (target / "file").write_text("x")
    (kept / "cache" / "tiers" / "link").symlink_to(target)
    assert main(["cache", "clear", "tiers", "--yes"]) == 0
    assert (target / "file").exists()
    assert not (kept / "cache" / "tiers" / "link").is_symlink()


def test_a_build_whose_removal_fails_is_found_by_no_process(kept, monkeypatch, capsys):
    def fail(path):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr("shutil.rmtree", fail)
    assert main(["cache", "clear", "card", "--yes"]) == 3
    assert "1 of 1 could not be removed" in capsys.readouterr().err
    assert not (kept / EVERYTHING["card"]).exists()
    (left,) = (entry.path.name for entry in find() if entry.kind == "card")
    assert left.startswith("torch-2.13.0-aaaa-bbbb.building-removed-")


def test_the_size_is_the_room_on_the_disk(kept):
    (kept / "cache" / "tiers" / "sparse").touch()
    os.truncate(kept / "cache" / "tiers" / "sparse", 1 << 30)
    (sparse,) = (one for one in find() if one.path.name == "sparse")
    assert sparse.size < 1 << 20
