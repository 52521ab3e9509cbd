"""The rules' pages, docs/port, are what `python -m toprope.port.pages` makes of the rules."""

from pathlib import Path

from toprope.port.pages import advice, pages
from toprope.port.registry import all_rules

FOLDER = Path(__file__).resolve().parents[2] / "docs" / "port"


def test_the_pages_are_those_of_the_rules():
    there = {path.name: path.read_text(encoding="utf-8") for path in FOLDER.glob("*.md")}
    wanted = pages()
    stale = sorted(name for name in there.keys() | wanted.keys() if there.get(name) != wanted.get(name))
    assert stale == [], "make them anew: python -m toprope.port.pages docs/port"


def test_every_rule_has_its_page_and_stands_in_the_table_once():
    table = pages()["index.md"]
    for code, rule in all_rules().items():
        assert rule.page == f"toprope explain {code}"
        assert table.count(f"| [{code}]({code}.md) |") == 1


def test_every_page_says_what_to_do_when_the_rule_is_wrong_and_its_keywords():
    assert advice().keys() == all_rules().keys()
    made = pages()
    for code in all_rules():
        page = made[f"{code}.md"]
        for section in ("## What to do\n\n", "## When the rule is wrong\n\n", "Keywords: `"):
            assert page.count(section) == 1, code
        found = advice()[code]
        assert set(found) == {"do", "wrong", "keywords"}, code
        assert all(found[each].endswith(".") and len(found[each]) >= 20 for each in ("do", "wrong")), code
        assert len(found["keywords"]) >= 2, code
        assert len(found["keywords"]) == len(set(found["keywords"])), code
