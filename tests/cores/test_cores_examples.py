"""Every schedule under examples/cores is read, agrees with its note, and gets the verdict that it expects.

Each of them retells a public thread or a rule of the vendor, named in its note.
"""

import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from toprope.cores import Discipline, record
from toprope.cores.findings import findings

FOLDER = Path(__file__).resolve().parents[2] / "examples" / "cores"
FILES = sorted(FOLDER.glob("*.json"))
# Threads 1 to 5 and 12 of the core limits' list, 47 and 48 of the users' (the same as 2 and 4).
THREADS = (
    "https://github.com/vllm-project/vllm-ascend/issues/3881",
    "https://github.com/vllm-project/vllm-ascend/issues/14296",
    "https://github.com/vllm-project/vllm-ascend/issues/14928",
    "https://github.com/vllm-project/vllm-ascend/issues/16446",
    "https://github.com/vllm-project/vllm-ascend/pull/15500",
    "https://github.com/deepseek-ai/DeepEP/issues/496",
)


def data(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def test_every_thread_has_a_schedule_that_deadlocks() -> None:
    hanging = [data(path)["note"] for path in FILES if data(path)["expect"]["verdict"] == "deadlock"]
    assert [thread for thread in THREADS if not any(note.startswith(thread + ":") for note in hanging)] == []


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_findings(path: Path) -> None:
    expect = data(path)["expect"]
    assert set(expect) == {"verdict", "weaker", "findings"}
    found = findings(record.read(path))
    assert sorted({each.rule for each in found}) == expect["findings"]
    assert all(each.text.endswith(".") and each.ops for each in found)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_the_way_to_json_and_back(path: Path) -> None:
    program = record.read(path)
    assert record.from_json(record.to_json(program)) == program


@pytest.mark.skipif(importlib.util.find_spec("toprope.cores.check") is None, reason="the checker is not built yet")
@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_verdict(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from toprope.cores.check import check

    # a loaded machine must not leave a question undecided
    monkeypatch.setattr(sys.modules["toprope.cores.check"], "SIDE_SECONDS", 60)
    expect = data(path)["expect"]
    result = check(record.read(path), seconds=200)
    assert result.verdict == expect["verdict"], result.proof
    assert {str(each): str(verdict) for each, verdict in result.weaker.items() if each != Discipline.D0} == expect[
        "weaker"
    ]
    assert sorted({each.rule for each in result.findings}) == expect["findings"]
    if result.verdict == "deadlock":
        assert result.witness is not None
        assert result.witness.is_stuck(Discipline.D0)
