"""A rule's examples are its test: what is reported, the exact text afterwards, and a second run that does nothing.

Holds every file of `port.rules`, by the examples in it.
"""

import ast
import pathlib
import re

import pytest

from toprope import port
from toprope.port.registry import families, python_rules, table

RULES = python_rules()
CASES = [
    pytest.param(rule, example, id=f"{rule.code}-{number}")
    for rule in RULES.values()
    for number, example in enumerate(rule.examples)
]


@pytest.mark.parametrize(("rule", "example"), CASES)
def test_example(rule, example):
    data = example.before.encode()
    ported = port.port(data)
    assert ported.skipped == ""
    assert ported.after.decode() == (example.before if example.after is None else example.after)
    said = [finding for finding in ported.findings if finding.rule is rule]
    assert bool(said) == example.reported, ported.findings
    assert any(finding.converted for finding in ported.findings) == (example.after is not None)
    again = port.port(ported.after)
    assert again.after == ported.after
    assert port.port(data).after == ported.after
    ast.parse(ported.after)


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
def test_a_rule_says_what_it_is(rule):
    assert re.fullmatch(r"TR(00[1-9]|0[1-9]\d|1[0-2]\d)[a-z]?", rule.code)
    assert rule.title
    assert len(rule.why) > 40
    assert rule.why.endswith(".")
    assert rule.source, "where is it known from?"
    assert any(example.reported for example in rule.examples) or rule.code == "TR103"  # messages: never reported
    if rule.kind is port.Kind.NOT_CONVERTIBLE:
        assert all(example.after is None for example in rule.examples), "N is reported, never rewritten"
    if rule.kind is port.Kind.PRESERVING:
        assert any(example.after for example in rule.examples)


def test_codes_and_files():
    codes = [rule.code for family in families() for rule in family.rules]
    assert len(codes) == len(set(codes))
    folder = pathlib.Path(port.__file__).parent / "rules"
    assert {family.name for family in families()} == {
        file.stem for file in folder.glob("*.py") if not file.stem.startswith("_")
    }
    assert all(len(file.read_text(encoding="utf-8").splitlines()) < 400 for file in folder.glob("*.py"))


def test_every_example_has_a_word_that_the_prefilter_knows():
    for rule in RULES.values():
        for example in rule.examples:
            if example.reported:
                assert table().words.search(example.before.encode())
