"""`toprope explain`: what errors, helps and reports name is a page that an installed toprope has.

Holds `cli.explain`.
"""

import ast
import re
from pathlib import Path

import pytest

from toprope.cli import explain, main
from toprope.port.registry import all_rules

ROOT = Path(__file__).resolve().parents[2]


def test_a_page_is_printed_by_its_name_its_error_its_rule_and_its_old_path(capsys):
    printed = []
    for name in ("device-broken", "DeviceBrokenError", "docs/errors/device-broken.md"):
        assert main(["explain", name]) == 0
        printed.append(capsys.readouterr().out)
    assert len(set(printed)) == 1
    assert printed[0].startswith("# DeviceBrokenError\n")
    assert main(["explain", "TR017"]) == 0
    assert capsys.readouterr().out.startswith("# TR017: ")


def test_links_are_the_command_that_shows_the_other_page(capsys):
    assert main(["explain", "card"]) == 0
    assert "`toprope doctor` (toprope explain doctor) shows what is" in capsys.readouterr().out
    main(["explain", "index"])
    text = capsys.readouterr().out
    assert "(toprope explain errors)" in text
    assert "(toprope explain rules)" in text
    for name in re.findall(r"\(toprope explain ([\w-]+)\)", text):
        assert name.lower() in explain.pages()


def test_without_a_name_every_page_is_listed_but_those_of_rules(capsys):
    assert main(["explain"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert {line.split()[0] for line in lines} | {code.lower() for code in all_rules()} == explain.pages().keys()
    assert lines[0].startswith("build")
    assert "cannot be built" in lines[0]


def test_an_unknown_page_is_one_error_with_the_nearest_names(capsys):
    assert main(["explain", "device-brocken"]) == 2
    text = capsys.readouterr().err
    assert text.startswith("toprope: there is no page 'device-brocken'.\n")
    assert "toprope explain device-broken" in text


def named_commands():
    """Every `toprope explain NAME` in the sources, with its file."""
    for file in [*(ROOT / "src").rglob("*.py"), *(ROOT / "src").rglob("*.cpp"), *(ROOT / "docs").rglob("*.md")]:
        for name in re.findall(r"toprope explain ([a-zA-Z][\w-]+)", file.read_text(encoding="utf-8")):
            if name not in ("NAME", "PAGE", "and", "lists", "prints"):
                yield f"{file.relative_to(ROOT)}: {name}", name


def test_what_is_named_is_there():
    said = list(named_commands())
    assert len(said) > 30
    assert [where for where, name in said if name.lower() not in explain.pages()] == []


def texts(tree, *, helps):
    """String constants without docstrings; with those of functions where they are the help of commands."""
    docstrings = {
        node.body[0].value
        for node in ast.walk(tree)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef)
        and not (helps and isinstance(node, ast.FunctionDef) and node.decorator_list)
        and node.body
        and isinstance(node.body[0], ast.Expr)
    }
    return (each.value for each in ast.walk(tree) if isinstance(each, ast.Constant) and each not in docstrings)


@pytest.mark.slow
def test_messages_named_files_that_an_installed_user_has_not_got():
    writes_pages = ("chips/table.py", "port/pages.py", "support/refusals_page.py")
    wrong = []
    for file in (ROOT / "src" / "toprope").rglob("*.py"):
        name = str(file.relative_to(ROOT / "src" / "toprope"))
        if name not in writes_pages:
            tree = ast.parse(file.read_text(encoding="utf-8"))
            said = (each for each in texts(tree, helps=name.startswith("cli/")) if isinstance(each, str))
            wrong += [f"{name}: {each}" for each in said if re.search(r"(?<![\w/])docs/[\w/-]+\.md", each)]
    assert wrong == []


@pytest.mark.parametrize("folder", ["", "errors", "port"])
def test_the_pages_are_those_of_the_documentation(folder):
    there = {file.name for file in (ROOT / "docs" / folder).glob("*.md")}
    assert there == {file.name for file in (ROOT / "src" / "toprope" / "docs" / folder).glob("*.md")}
