"""The site has every page, in the groups of the front page, and loads nothing from elsewhere.

The site is mkdocs.yml over docs/.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from words import prose

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
CONFIG = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))


def leaves(entry):
    if isinstance(entry, str):
        return [entry]
    if isinstance(entry, dict):
        entry = list(entry.values())
    return [page for each in entry for page in leaves(each)]


def groups():
    """The groups of the front page, each with the pages that it links."""
    parts = re.split(r"^## (.+)$", prose((DOCS / "index.md").read_text(encoding="utf-8")), flags=re.MULTILINE)
    return dict(zip(parts[1::2], (re.findall(r"\]\(([^)#]+\.md)", text) for text in parts[2::2]), strict=True))


def test_the_menu_has_the_groups_and_pages_of_the_front_page():
    menu = {title: leaves(entry) for each in CONFIG["nav"] for title, entry in each.items()}
    assert menu.pop("Home") == ["index.md"]
    assert list(menu) == list(groups())
    assert {name: sorted(pages) for name, pages in menu.items()} == {
        name: sorted(pages) for name, pages in groups().items()
    }


def test_every_page_is_in_the_menu_once():
    pages = leaves(CONFIG["nav"])
    listed = {str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md")}
    by_their_index = {page for page in listed if re.fullmatch(r"errors/(?!index).*|port/TR.*", page)}
    assert sorted(pages) == sorted(listed - by_their_index)


@pytest.mark.slow
@pytest.mark.process
def test_the_site_builds_strictly_and_loads_nothing_from_elsewhere(tmp_path):
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)]
    done = subprocess.run(
        command, cwd=ROOT, env=os.environ | {"NO_MKDOCS_2_WARNING": "1"}, capture_output=True, text=True, timeout=280
    )
    assert done.returncode == 0, done.stderr
    html = [page.read_text(encoding="utf-8") for page in tmp_path.rglob("*.html")]
    assert len(html) > 150
    loaded = re.compile(
        r"<(?:script|img|iframe)[^>]+src=\"?(https?:[^\"\s>]+)|<link[^>]+rel=\"?stylesheet[^>]+(https?:[^\"\s>]+)"
    )
    assert [hit for page in html for hit in loaded.findall(page)] == []
    assert (tmp_path / "search" / "search_index.json").stat().st_size > 100_000
