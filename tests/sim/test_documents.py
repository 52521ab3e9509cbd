"""The table of refused dtypes in the form that the C++ core reads.

Holds src/toprope/sim/installation/documents.py.
"""

import os
from pathlib import Path

import pytest

from toprope import chips
from toprope.sim.dtypes import NUMBERS, bits, names
from toprope.sim.installation import documents
from toprope.support import refusals

CHIP = chips.get("910B3")


def rules() -> dict[tuple[str, int], tuple[int, int]]:
    """Refused and known dtypes, as bits, by operator and position."""
    found = {}
    for line in documents.lines(CHIP):
        tag, *fields = line.split("\t")
        if tag == "rule":
            operator, position, refused, known, _, _ = fields
            found[operator, int(position)] = (int(refused, 16), int(known, 16))
    return found


def test_every_row_is_there_with_its_dtypes():
    found = rules()
    for operator, positions in refusals.table(CHIP).items():
        for position, refused in positions.items():
            assert found[operator, position][0] == bits(refused)
            assert found[operator, position][0] & ~found[operator, position][1] == 0  # what is refused is known
    assert "float64" in names(found["aten::repeat_interleave.self_int", 0][0])


def test_the_vendors_names_of_dtypes_are_there():
    found = dict(line.split("\t")[1:] for line in documents.lines(CHIP) if line.startswith("dtype\t"))
    assert found[str(NUMBERS["float64"])] == "DT_DOUBLE"
    assert len(found) == len(refusals.VENDOR_NAMES)


def test_no_field_holds_what_separates_fields():
    tabs = {"dtype": 2, "rule": 6, "dimensions": 4}
    assert all(line.count("\t") == tabs[line.partition("\t")[0]] for line in documents.lines(CHIP))
    assert not any("\n" in line for line in documents.lines(CHIP))


def test_it_is_made_once_and_kept_beside_the_build(tmp_path: Path):
    with documents.ready(tmp_path, CHIP) as path:
        assert path.parent == tmp_path
        assert path.read_text().splitlines() == list(documents.lines(CHIP))
        made = path.stat().st_mtime_ns
    with documents.ready(tmp_path, CHIP) as path:
        assert path.stat().st_mtime_ns == made
    with documents.ready(tmp_path, chips.get("310P3")) as other:
        assert other != path
    assert len(list(tmp_path.iterdir())) == 2


def test_a_build_that_one_may_not_write_to_still_serves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(os, "access", lambda *_: False)
    with documents.ready(tmp_path, CHIP) as path:
        assert path.parent != tmp_path
        assert path.read_text().splitlines() == list(documents.lines(CHIP))
    assert not path.exists()
    assert list(tmp_path.iterdir()) == []
