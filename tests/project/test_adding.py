"""The examples of docs/adding.md are whole: their code is taken from the page and used."""

import re
import shutil
import tomllib
from pathlib import Path

import pytest

from device_stand_ins import told
from toprope.chips import catalogue

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src" / "toprope"
PAGE = (ROOT / "docs" / "adding.md").read_text(encoding="utf-8")


def block(text):
    """The block of code of the page that has this text."""
    (found,) = (each for each in re.findall(r"^```\w+\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL) if text in each)
    return found


def test_the_chip_of_the_page_can_be_simulated(tmp_path):
    folder = shutil.copytree(SOURCE / "chips", tmp_path / "chips")
    with (folder / "sources.toml").open("a", encoding="utf-8") as sources:
        sources.write("\n" + block("[made-up-manual]"))
    (folder / "ascend990.toml").write_text(block('family = "Ascend 990"'), encoding="utf-8")
    chips = catalogue.load(folder)
    assert set(chips.names()) == {*catalogue.names(), "990X"}
    chip = chips.get("Ascend990X")
    assert chip.missing == ()
    assert chip.family == "Ascend 990"
    assert chip.supports("bfloat16")


def test_the_figures_of_the_page_are_the_fewest(tmp_path):
    """The page calls them the fewest with which a chip can be simulated, but for the structure of its cores."""
    (entry,) = tomllib.loads(block('family = "Ascend 990"'))["chip"]
    assert set(entry) - {"name", "core_structure"} == set(catalogue.load(SOURCE / "chips").chips[0].missing) | {
        "soc_name", "npu_smi_name", "soc_version", "hbm_mib", "cube_cores", "vector_cores", "dtypes",
    }  # fmt: skip


def test_the_operator_of_the_page_is_the_one_of_its_file():
    text = (SOURCE / "compat" / "torch_npu" / "operators" / "activation.py").read_text(encoding="utf-8")
    assert block('@operator("npu_mish")').strip() in text


@pytest.mark.process
def test_the_rule_of_the_page_is_found_and_reports_its_examples(tmp_path):
    (tmp_path / "made_up.py").write_text(block('Family("made_up"'), encoding="utf-8")
    (tmp_path / "advice.toml").write_text(block("[TR129]"), encoding="utf-8")
    code = f"""
import tomllib
from pathlib import Path
import toprope.port.rules as rules
rules.__path__.append({str(tmp_path)!r})
from toprope import port
from toprope.port import pages
from toprope.port.registry import all_rules, table
rule = all_rules()["TR129"]
found = [[each.rule.code for each in port.port(example.before.encode()).findings] for example in rule.examples]
words = bool(table().words.search(rule.examples[0].before.encode()))
pages.advice().update(tomllib.loads(Path({str(tmp_path / "advice.toml")!r}).read_text()))
tell(found, words, pages.page(rule), "TR129.md" in pages.pages())
"""
    found, words, page, written = told(code)
    assert found == [["TR129"], []]
    assert words
    assert "Leave the library out" in page
    assert written
