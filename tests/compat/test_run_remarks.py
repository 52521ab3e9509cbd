"""Remarks of a run: processes leave them, the run's report shows each once.

Holds src/toprope/compat/run_remarks.py.
"""

from pathlib import Path

import pytest

from toprope.compat.run_remarks import note, read


def test_notes_are_kept_in_the_runs_folder_once_each(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOPROPE_RUN_DIR", str(tmp_path))
    note("second", "of another kind: ü")
    note("first", "said by one process")
    note("first", "and by the next")
    assert read(tmp_path) == ("said by one process", "of another kind: ü")


def test_outside_a_run_nothing_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TOPROPE_RUN_DIR", raising=False)
    note("key", "text")
    monkeypatch.setenv("TOPROPE_RUN_DIR", str(tmp_path / "gone"))
    note("key", "text")
    assert list(tmp_path.iterdir()) == []
    assert read(tmp_path) == ()
