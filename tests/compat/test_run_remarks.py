"""Remarks of a run: processes leave them, the run's report shows each once.

Holds src/toprope/compat/run_remarks.py.
"""

from pathlib import Path

import pytest

from toprope.compat.run_remarks import note, read
from toprope.messages import Message


def test_notes_are_kept_in_the_runs_folder_once_each(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOPROPE_RUN_DIR", str(tmp_path))
    note("second", "of another kind: ü")
    note("first", "said by one process")
    note("first", "and by the next")
    assert read(tmp_path) == ("said by one process", "of another kind: ü")


def test_a_note_is_translated_where_it_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOPROPE_RUN_DIR", str(tmp_path))
    note("count", Message("{number} problems", number=2))
    (found,) = read(tmp_path)
    assert found == "2 problems"
    assert isinstance(found, Message)
    assert found.translated({"{number} problems": "{number} 个问题"}) == "2 个问题"


def test_outside_a_run_nothing_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TOPROPE_RUN_DIR", raising=False)
    note("key", "text")
    monkeypatch.setenv("TOPROPE_RUN_DIR", str(tmp_path / "gone"))
    note("key", "text")
    assert list(tmp_path.iterdir()) == []
    assert read(tmp_path) == ()
