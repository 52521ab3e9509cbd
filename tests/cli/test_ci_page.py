"""The workflows of docs/ci.md, for GitHub and GitLab: their commands run on the program and the test of the page.

A change of an option that CI uses fails here before it fails users.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from toprope.settings import Settings

pytestmark = [pytest.mark.native, pytest.mark.process, pytest.mark.slow]

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "ci.md").read_text(encoding="utf-8")
BLOCK = re.compile(r"^```(?:python|yaml)\n# (\S+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
FILES: dict[str, str] = dict(BLOCK.findall(PAGE))


def commands(name: str) -> list[str]:
    data = yaml.safe_load(FILES[name])
    if name == ".gitlab-ci.yml":
        return list(data["npu"]["script"])
    return [step["run"] for step in data["jobs"]["npu"]["steps"] if "run" in step]


@pytest.fixture
def project(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def test_the_commands_of_both_pass(project: Path) -> None:
    github, gitlab = commands(".github/workflows/npu.yml"), commands(".gitlab-ci.yml")
    assert github == gitlab
    install, *others = github
    assert install.startswith("pip install torch ")  # which needs a network
    assert [command.split()[0] for command in others] == ["toprope", "pytest"]
    unset = ("TOPROPE_SIM", "TOPROPE_DEVICE", "TOPROPE_RUN_DIR", "PYTEST", "TORCH", "ASCEND")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(unset)}
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    cache = str(Settings.load(trust_env=True).cache_dir)
    for command in others:
        done = subprocess.run(
            ["sh", "-euc", command], cwd=project, env=kept | {"PATH": path, "TOPROPE_CACHE_DIR": cache},
            capture_output=True, text=True, timeout=280,
        )  # fmt: skip
        assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
    assert "Runs on the card" in (project / "report.html").read_text()
