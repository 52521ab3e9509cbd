"""`toprope run --report` and `--fail-on`: a program with one problem of each kind, and one without any.

Holds `cli.reports.rehearsal_file` and `rehearsal_page`; the facts themselves are held in tests/sim.
"""

import html
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import jsonschema
import pytest

from toprope.cli.launch.select_target import Choice
from toprope.cli.reports import rehearsal_page
from toprope.cli.reports.rehearsal_file import check, failures, smallest
from toprope.cli.reports.rehearsal_page import page_of
from toprope.cli.reports.run_report import Outcome
from toprope.errors import UsageError
from toprope.sim.rehearsal.facts import schema
from toprope.sim.spec import SimSpec

SIM = Choice("sim", SimSpec("910B3"))
EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
TROUBLES = """\
import torch
from torch import nn

model = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64)).to("npu")
optimizer = torch.optim.AdamW(model.parameters())
x = torch.ones(256, 64).to("npu")
for epoch in range(2):
    for step in range(4):
        optimizer.zero_grad()
        loss = model(x).pow(2).mean()
        loss.backward()
        optimizer.step()
        loss.item()  # sync-in-loop
    loss.item()
try:
    torch.bincount(torch.ones(4, device="npu", dtype=torch.float16))  # refused
except RuntimeError:
    pass
torch.lgamma(torch.ones(4, device="npu"))  # host
x = torch.ones(2 * 2**20, 64, device="npu")
try:
    model(x)  # memory
except torch.OutOfMemoryError:
    pass
"""


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    names = ("TOPROPE_SIM", "TOPROPE_DEVICE", "TOPROPE_RUN_DIR", "PYTEST", "TORCH", "ASCEND")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(names)}
    return subprocess.run(
        [sys.executable, "-m", "toprope", "run", *arguments], cwd=folder, env=kept, capture_output=True, text=True,
        timeout=280,
    )  # fmt: skip


def line_of(text: str) -> int:
    (number,) = [place for place, line in enumerate(TROUBLES.splitlines(), 1) if f"# {text}" in line]
    return number


@pytest.mark.native
@pytest.mark.process
@pytest.mark.slow
def test_each_trouble_is_named_with_its_line_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(TROUBLES)
    options = "--chip", "910B3", "--hbm", "1GiB", "--fail-on", "refused,sync-in-loop"
    done = run(tmp_path, *options, "--report", "report.json", "--report", "page.html", "program.py")
    facts = json.loads((tmp_path / "report.json").read_text())
    jsonschema.validate(facts, schema())
    (card,) = facts["cards"]
    found = [(one["kind"], Path(one["file"]).name, one["line"]) for one in card["findings"]]
    assert found == [(kind, "program.py", line_of(kind)) for kind in ("refused", "memory", "host", "sync-in-loop")]
    (memory,) = card["memory"]
    assert memory["shortage"]["kinds"]["others"] >= 512 * 2**20  # x, which the program has made itself
    words = " ".join(done.stderr.split())
    fallback = "1 operator falls back to the host"
    assert f"verdict will be refused (1 operator); does not fit; {fallback}; waits in every step at 1 line" in words
    line = f"aten::bincount (float16) is refused, program.py:{line_of('refused')}"
    assert f"toprope: failed by --fail-on refused, sync-in-loop: {line}" in done.stderr
    assert done.returncode == 1
    page = (tmp_path / "page.html").read_text()
    each_step = line_of("sync-in-loop")
    loop, once = (re.search(rf"<tr><td>program.py:{line}</td>.*</tr>", page)[0] for line in (each_step, each_step + 1))
    assert "<td>yes: " in loop
    assert "<td>yes: " not in once
    for one in card["findings"]:
        assert html.escape(one["text"]) in page


@pytest.mark.native
@pytest.mark.process
@pytest.mark.slow
def test_the_digits_have_no_finding(tmp_path: Path) -> None:
    program = str(EXAMPLES / "digits_npu.py"), "--epochs", "2", "--require", "0"
    done = run(
        tmp_path,
        "--chip",
        "910B3",
        "--report",
        "-",
        "--quiet",
        "--fail-on",
        "host,refused,memory,sync-in-loop",
        *program,
    )
    assert done.returncode == 0
    assert "toprope:" not in done.stderr
    (card,) = json.loads(done.stdout.splitlines()[-1])["cards"]
    assert (card["findings"], card["verdict"]) == ([], "runs on the card")
    assert card["steps"]["training"] == 2 * 42


def test_wrong_options_are_one_error_before_the_program_starts(tmp_path: Path) -> None:
    for report_to, fail_on, text in (
        (("a.txt",), None, "neither a page nor JSON"),
        ((str(tmp_path / "a.html"), str(tmp_path / "none" / "a.html")), None, "cannot be written"),
        ((), "hosts", "names no kind of trouble: hosts"),
        ((), ",", "--fail-on is empty"),
    ):
        with pytest.raises(UsageError, match=text):
            check(report_to, fail_on, SIM)
    with pytest.raises(UsageError, match="--report is about the simulated card"):
        check(("-",), None, Choice("cpu"))
    assert check(("-",), "sync-in-loop, host", SIM) == ("host", "sync-in-loop")


def test_lines_are_recorded_where_somebody_reads_them() -> None:
    assert smallest(False, (), ()) == 2**20
    assert smallest(True, (), ()) is None
    assert smallest(True, ("-",), ()) == smallest(True, (), ("host",)) == 0


def test_a_run_without_findings_fails_nothing_and_its_page_loads_nothing() -> None:
    outcome = Outcome(SIM, 1.0, 0)
    assert failures(outcome, ("host", "memory")) == ""
    page = page_of(outcome)
    assert "did not touch the card" in page
    assert not re.search(r"<link|<img|<script|@import|url\((?!#)|https?://(?!www\.w3\.org/2000/svg)", page)


def test_a_name_of_the_program_is_no_html_in_a_table() -> None:
    assert "<td>&lt;b&gt;</td>" in rehearsal_page._table(["a"], [["<b>"]])
