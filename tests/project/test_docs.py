"""Snippets of the pages run, links lead somewhere, and every environment variable of the sources is documented."""

import os
import pathlib
import re
import subprocess
import sys

import pytest

import forkserver

pytestmark = [pytest.mark.native, pytest.mark.process]

ROOT = pathlib.Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", ROOT / "README.zh.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
# A block is tested where the line above it is the comment <!-- tested -->. Blocks of a console: test_sessions.py.
BLOCK = re.compile(r"^<!-- tested -->\n```(python|sh)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SNIPPETS = [
    pytest.param(
        language,
        text,
        id=f"{page.relative_to(ROOT)}-{number}",
        # README and CONTRIBUTING are quick, but for what loads diffusers
        marks=() if page.parent == ROOT and "toprope edit" not in text else pytest.mark.slow,
    )
    for page in PAGES
    if not page.name.endswith(".zh.md")  # their snippets are those of the English pages: test_pages.py
    for number, (language, text) in enumerate(BLOCK.findall(page.read_text(encoding="utf-8")), 1)
]


def test_there_are_snippets_to_run():
    assert len(SNIPPETS) >= 4
    pages = [page.read_text(encoding="utf-8") for page in PAGES if not page.name.endswith(".zh.md")]
    marks = sum(page.count("<!-- tested -->\n") - page.count("<!-- tested -->\n```console\n") for page in pages)
    assert marks == len(SNIPPETS)


@pytest.mark.parametrize(("language", "text"), SNIPPETS)
def test_snippet_runs(language, text):
    """In a process of its own; a comment `# prints X` holds the program to X."""
    command = [sys.executable, "-c", text] if language == "python" else ["sh", "-euc", text]
    path = f"{pathlib.Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    start = forkserver.run if language == "python" and "import torch\n" in text else subprocess.run
    done = start(command, cwd=ROOT, capture_output=True, text=True, timeout=280, env={**os.environ, "PATH": path})
    assert done.returncode == 0, done.stderr
    wanted = re.findall(r"# prints (.+)$", text, re.MULTILINE)
    printed = done.stdout.splitlines()
    assert [line for line in wanted if line not in printed] == []


def test_every_variable_of_the_sources_is_on_the_page():
    page = (ROOT / "docs" / "environment.md").read_text(encoding="utf-8")
    files = [ROOT / "tests" / "conftest.py"]
    for kind in ("py", "cpp", "h"):
        files += (ROOT / "src").rglob(f"*.{kind}")
    # A variable's name is in quotes; macros of the C++ sources do not.
    used = {
        name for file in files for name in re.findall(r"[\"'](TOPROPE_[A-Z_]+)\b", file.read_text(encoding="utf-8"))
    }
    assert {"TOPROPE_DEVICE", "TOPROPE_SIM", "TOPROPE_SOAK"} <= used
    assert sorted(name for name in used if f"`{name}" not in page) == []


def test_links_between_pages_lead_somewhere():
    code = re.compile(r"^(```|~~~~).*?^\1$", re.MULTILINE | re.DOTALL)  # f[x](y) is no link there
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", code.sub("", page.read_text(encoding="utf-8"))):
            assert (page.parent / target).exists(), f"{page.relative_to(ROOT)} links to {target}"


def test_nobody_is_told_that_it_ran_on_a_card():
    assert "has never run on" in (ROOT / "README.md").read_text(encoding="utf-8")
    assert "has run on real Ascend hardware" in (ROOT / "docs" / "limits.md").read_text(encoding="utf-8")
