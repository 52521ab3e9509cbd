"""How to install an extra: never from an index where the name toprope is not this project's.

Holds `toprope.extras`.
"""

import importlib.metadata
import json
import re
import tomllib
from pathlib import Path
from types import SimpleNamespace

import pytest

from toprope import extras

ROOT = Path(__file__).resolve().parents[2]
REQUIRES = [
    "torch>=2.10",
    'ortools>=9.12; extra == "plan"',
    'ray>=2.49; extra == "cluster"',
    'pillow>=11 ; extra=="plan"',
]


def installed(monkeypatch, tmp_path, url):
    """As where a wheel is installed, from an address that pip recorded or did not record."""
    record = json.dumps({"url": url}) if url else None
    found = SimpleNamespace(requires=REQUIRES, read_text=lambda name: {"direct_url.json": record}[name])
    monkeypatch.setattr(extras, "_CHECKOUT", tmp_path / "lib")
    monkeypatch.setattr(importlib.metadata, "distribution", lambda name: {"toprope": found}[name])


def test_a_checkout_is_installed_again_with_the_extra():
    assert extras.advice("images") == f"pip install -e '.[images]' in {ROOT}"


def test_the_wheel_that_pip_recorded_is_installed_with_the_extra(monkeypatch, tmp_path):
    wheel = tmp_path / "my wheels" / "toprope-0.1.0-py3-none-any.whl"
    wheel.parent.mkdir()
    wheel.touch()
    installed(monkeypatch, tmp_path, wheel.as_uri())
    assert extras.advice("plan") == f"pip install '{wheel}[plan]'"


@pytest.mark.parametrize("url", ["", "file:///gone/toprope-0.1.0-py3-none-any.whl", "https://example.org/toprope.whl"])
def test_without_the_wheel_the_libraries_are_named(monkeypatch, tmp_path, url):
    installed(monkeypatch, tmp_path, url)
    assert extras.advice("plan") == "pip install 'ortools>=9.12' 'pillow>=11'"
    assert extras.advice("cluster") == "pip install 'ray>=2.49'"


def test_every_extra_that_is_named_exists():
    known = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    asked = [
        name
        for file in (ROOT / "src").rglob("*.py")
        for name in re.findall(r"\badvice\(['\"](\w+)['\"]\)", file.read_text(encoding="utf-8"))
    ]
    assert len(asked) >= 9
    assert set(asked) <= known.keys()


def test_pip_was_advised_to_install_a_toprope_that_anybody_may_register():
    texts = [
        *ROOT.glob("*.md"),
        *(ROOT / "docs").rglob("*.md"),
        *(ROOT / "src").rglob("*.py"),
        *ROOT.glob("examples/*"),
    ]
    wrong = [
        f"{file.relative_to(ROOT)}: {found[0]}"
        for file in texts
        if file.is_file()
        for found in re.finditer(
            r"pip install [^\n`]*(?<![\w/.-])toprope(?=[\[\s'\"`]|$)[^\n]*", file.read_text("utf-8")
        )
    ]
    assert wrong == []
