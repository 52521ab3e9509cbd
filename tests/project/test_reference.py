"""docs/api and docs/command_help.md are what scripts/reference.py makes of the docstrings and the help."""

import ast
import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest

import reference

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.slow
@pytest.mark.process
def test_the_pages_are_those_of_the_sources():
    command = [sys.executable, str(ROOT / "scripts" / "reference.py")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, f"python scripts/reference.py --write\n{done.stdout[-5000:]}{done.stderr}"


def test_no_page_is_left_over():
    assert {page.stem for page in (ROOT / "docs" / "api").glob("*.md")} == {"index", *reference.PARTS}


def test_a_cached_function_has_its_signature_and_not_its_repr():
    pages = {page.name: page.read_text(encoding="utf-8") for page in (ROOT / "docs" / "api").glob("*.md")}
    assert "\nall_rules() -> dict[str, Rule]\n" in pages["api_port.md"]
    shown = {name: re.findall(r"^\w+ = <(?!toprope\.).*", text, re.MULTILINE) for name, text in pages.items()}
    assert {name: lines for name, lines in shown.items() if lines} == {}


def test_every_part_with_public_names_has_a_page():
    package = ROOT / "src" / "toprope"
    have = {module for modules in reference.PARTS.values() for module in modules}
    public = set()
    for door in package.glob("*/__init__.py"):
        for node in ast.parse(door.read_text(encoding="utf-8")).body:
            if not isinstance(node, ast.Assign | ast.AnnAssign | ast.AugAssign):
                continue
            target = node.targets[0] if isinstance(node, ast.Assign) else node.target
            is_empty = isinstance(node.value, ast.List) and not node.value.elts
            if isinstance(target, ast.Name) and target.id == "__all__" and not is_empty:
                public.add(f"toprope.{door.parent.name}")
    # of the command line docs/command_help.md has the help
    assert public - have == {"toprope.cli"}


def test_every_command_is_on_the_page_of_the_command_line():
    from toprope.cli.app import VERBS

    page = (ROOT / "docs" / "command_help.md").read_text(encoding="utf-8")
    assert [verb for verb in VERBS if f"\n## toprope {verb}\n" not in page] == []


def example(first: int, *others: str, key: str = "a, b") -> list[str]:
    """Make a list.

    Text with `code`, a * b and <angles>.

    Args:
        first: a number, which goes on
            in a second line.
        others: texts.

    Raises:
        ValueError: never.
    """
    return [str(first), *others, key]


def test_sections_of_a_docstring_become_lists():
    assert reference.prose(inspect.getdoc(example)) == [
        "Make a list.",
        "",
        "Text with `code`, a \\* b and &lt;angles>.",
        "",
        "Arguments:",
        "",
        "- `first`: a number, which goes on in a second line.",
        "- `others`: texts.",
        "",
        "Raises:",
        "",
        "- `ValueError`: never.",
    ]


def test_code_in_a_docstring_stays_as_it_is():
    assert reference.prose("One.\n\n    x = a * b\n\nTwo:\n- a\n- b") == [
        "One.", "", "    x = a * b", "", "Two:", "", "- a", "- b",
    ]  # fmt: skip


def test_a_long_signature_has_a_line_for_each_argument():
    arguments = ["a: dict[str, int]", "/", "*b: str", "text: str = 'a, b'", "c=1", "**d: tuple[dict[str, int], ...]"]
    (node,) = ast.parse(f"def f({', '.join(arguments)}) -> int: ...").body
    lines = "".join(f"    {each},\n" for each in arguments)
    assert reference._signature(node) == f"(\n{lines}) -> int"


def test_self_is_no_argument_of_a_method():
    (node,) = ast.parse("def f(self, a=1): ...").body
    assert reference._signature(node, bound=True) == "(a=1)"
