"""The owner of the project is in project.toml, and scripts/owner.py writes it into every file that names it."""

import importlib.util
import re
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[2]
SPEC = importlib.util.spec_from_file_location("owner", ROOT / "scripts" / "owner.py")
owner = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(owner)


def test_every_file_that_names_the_owner_is_written():
    files = [*ROOT.glob("*.md"), *ROOT.glob("*.toml"), *(ROOT / ".github").rglob("*.*"), *(ROOT / "docs").rglob("*.md")]
    naming = {path.relative_to(ROOT).as_posix(): set(re.findall(r"github\.com/([\w.-]+)/toprope", path.read_text()))
              for path in files if path.is_file()}  # fmt: skip
    assert {name for name, found in naming.items() if found} | {"project.toml"} == set(owner.FILES)
    assert set().union(*naming.values()) == {owner.facts()["owner"]}


def test_an_owner_is_written_everywhere_and_can_be_changed_again():
    now, new = owner.facts(), {"owner": "someone", "contact": "reports@someone.example"}
    for name in owner.FILES:
        text = (ROOT / name).read_text(encoding="utf-8")
        changed = owner.change(text, now, *new.values())
        assert changed != text
        assert now["contact"] not in changed
        assert f"github.com/{now['owner']}/toprope" not in changed
        assert owner.change(changed, new, *now.values()) == text


def test_the_workflow_runs_the_gate_on_each_python_that_is_named():
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text())
    job = workflow["jobs"]["run"]
    assert job["strategy"]["matrix"]["python"][0] == "3.11"
    assert [step["run"] for step in job["steps"] if "run" in step] == [".ci/run"]
    assert all(yaml.safe_load(path.read_text()) for path in (ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml"))
