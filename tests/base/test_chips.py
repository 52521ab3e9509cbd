"""The catalogue of chips: every figure has a public source, and any spelling of a chip's name finds it.

Holds src/toprope/chips against the vendor's published figures (910B, 310P, 950), figures that must fit together, and
docs/chips.md.
"""

import datetime
import pathlib
import pickle
import shutil
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toprope import chips
from toprope.chips import catalogue, model, table
from toprope.errors import ChipDataError, UnknownChipError

pytestmark = pytest.mark.process

ROOT = pathlib.Path(__file__).resolve().parents[2]
CHIPS = [chips.get(name) for name in chips.names()]
EVERY_NAME = [(word, chip.name) for chip in CHIPS for word in (chip.name, chip.soc_name, *chip.aliases) if word]


# -- the data


def test_the_chips_that_are_asked_for_are_there():
    asked = ["910A", "910B1", "910B2", "910B3", "910B4", "910B4-1", "910C", "310P3", "950"]
    dies = ["Ascend910_9391", "Ascend910_9392", "Ascend910_9381", "Ascend910_9382", "Ascend910_9372", "Ascend910_9362"]
    assert {chips.get(name).name for name in asked + dies} <= set(chips.names())


@pytest.mark.parametrize("chip", CHIPS, ids=lambda chip: chip.name)
def test_every_figure_has_a_source_with_a_public_address(chip):
    assert chip.figures
    for name, figure in chip.figures.items():
        assert figure is chip.figure(name)
        assert figure.value == getattr(chip, name)
        assert figure.value is not None
        assert figure.sources
        for source in figure.sources:
            assert source.url.startswith("https://")
            assert " " not in source.url
            assert source.what
            assert datetime.date.fromisoformat(source.read).year >= 2026


@pytest.mark.parametrize("chip", CHIPS, ids=lambda chip: chip.name)
def test_a_field_without_a_source_is_unknown(chip):
    for name in model.FIGURES:
        if name not in chip.figures:
            assert getattr(chip, name) is None
            assert chip.figure(name) is None


def test_no_source_is_there_unused():
    used = {source.id for chip in CHIPS for figure in chip.figures.values() for source in figure.sources}
    assert used == set(catalogue._read(catalogue.FOLDER / "sources.toml"))


@pytest.mark.parametrize(
    ("name", "soc_name", "npu_smi", "soc_version", "cube", "vector", "hbm_mib"),
    [
        ("910A", "Ascend910A", "910A", 102, 32, 0, 32768),
        ("310P3", "Ascend310P3", "310P3", 202, 8, 7, 24576),
        ("910B1", "Ascend910B1", "910B1", 220, 24, 48, 65536),
        ("910B2", "Ascend910B2", "910B2", 221, 24, 48, 65536),
        ("910B3", "Ascend910B3", "910B3", 223, 20, 40, 65536),
        ("910B4", "Ascend910B4", "910B4", 224, 20, 40, 32768),
        ("910B4-1", "Ascend910B4-1", "910B4-1", 225, 20, 40, 65536),
        ("9391", "Ascend910_9391", "Ascend910", 250, 24, 48, 65536),
        ("9392", "Ascend910_9392", "Ascend910", 251, 24, 48, 65536),
        ("9381", "Ascend910_9381", "Ascend910", 252, 24, 48, 65536),
        ("9382", "Ascend910_9382", "Ascend910", 253, 24, 48, 65536),
        ("9372", "Ascend910_9372", "Ascend910", 254, 20, 40, 65536),
        ("9362", "Ascend910_9362", "Ascend910", 255, 20, 40, 65536),
        ("950PR", "Ascend950PR_9589", "Ascend950PR", 260, 32, 64, 131072),
        ("950PR_9599", "Ascend950PR_9599", "Ascend950PR", 260, 36, 72, 131072),
        ("950DT_9591", "Ascend950DT_9591", "Ascend950DT", 260, 36, 72, 147456),
    ],
)
def test_well_known_chips(name, soc_name, npu_smi, soc_version, cube, vector, hbm_mib):
    chip = chips.get(name)
    assert (chip.soc_name, chip.npu_smi_name, chip.soc_version) == (soc_name, npu_smi, soc_version)
    assert (chip.cube_cores, chip.vector_cores, chip.hbm_mib) == (cube, vector, hbm_mib)
    assert chip.hbm_bytes == hbm_mib * 1024 * 1024
    assert chip.missing == ()


@pytest.mark.parametrize("chip", CHIPS, ids=lambda chip: chip.name)
def test_figures_of_one_chip_fit_together(chip):
    assert chip.hbm_usable_mib is None or chip.hbm_usable_mib < chip.hbm_mib
    assert set(chip.cube_macs_per_cycle or ()) <= set(chip.dtypes)
    if chip.core_structure == "split":
        assert chip.vector_cores == 2 * chip.cube_cores
    else:
        assert chip.vector_cores < chip.cube_cores


def test_bfloat16_is_missing_on_the_first_generations_only():
    # torch_npu: bfloat16 from SocVersion Ascend910B1 (220) on.
    assert {"910A", "310P3"} <= {chip.name for chip in CHIPS if not chip.supports("bfloat16")}
    assert all(chip.supports("bfloat16") == (chip.soc_version >= 220) for chip in CHIPS)


def test_no_chip_computes_float64_and_all_compute_float16_and_float32():
    for chip in CHIPS:
        assert chip.supports("torch.float16")
        assert chip.supports("float32")
        assert not chip.supports("float64")


@pytest.mark.parametrize(
    ("name", "bfloat16"),
    [("910B2", 353.9), ("910B3", 294.9), ("910B4", 245.8), ("9382", 353.9), ("9362", 245.8), ("950PR", 432.5)],
)
def test_computed_peaks_are_those_that_the_vendor_publishes(name, bfloat16):
    # Profiles of MindStudio's performance model, and the white paper of the 950 as quoted by its readers.
    chip = chips.get(name)
    assert chip.peak_tflops["bfloat16"] == bfloat16
    assert chip.peak_tflops["int8"] == pytest.approx(2 * bfloat16, abs=0.2)


def test_a_computed_figure_names_the_sources_it_is_made_from():
    figure = chips.get("910B3").figure("peak_tflops")
    assert figure.value == chips.get("910B3").peak_tflops
    assert "cann-ini" in [source.id for source in figure.sources]
    assert "cube_mhz" in figure.note


def test_an_unknown_figure_name_is_a_mistake_and_an_unknown_value_is_not():
    with pytest.raises(KeyError):
        chips.get("910A").figure("colour")
    assert chips.get("910A").figure("host_link") is None


def test_a_chip_with_less_known_says_so():
    chip = chips.Chip(name="990", family="none")
    assert chip.missing == model.NEEDED
    assert chip.hbm_bytes is None
    assert chip.peak_tflops == {}
    assert chip.figure("peak_tflops") is None
    assert chip.supports("float16") is None


def test_chips_can_be_sent_to_another_process_and_kept_in_sets():
    chip = chips.get("910B3")
    again = pickle.loads(pickle.dumps(chip))
    assert again == chip
    assert again.figure("hbm_mib") == chip.figure("hbm_mib")
    assert len({chip, again, chips.get("910B2")}) == 2
    with pytest.raises(AttributeError):
        chip.hbm_mib = 1


# -- lookup


@pytest.mark.parametrize(("word", "name"), EVERY_NAME)
def test_found_by_name_soc_name_and_alias(word, name):
    assert chips.get(word).name == name


@given(st.sampled_from(EVERY_NAME), st.data())
def test_case_prefix_spaces_and_dashes_do_not_count(pair, data):
    word, name = pair
    word = word.removeprefix("Ascend")
    word = "".join(data.draw(st.sampled_from("-_ ")) if letter in "-_" else letter for letter in word)
    word = "".join(data.draw(st.sampled_from([letter.lower(), letter.upper()])) for letter in word)
    word = data.draw(st.sampled_from(["", "Ascend", "ascend", "ASCEND ", "Ascend_", " "])) + word
    assert chips.get(word) is chips.get(name)


@given(st.one_of(st.text(max_size=20), st.text(alphabet="Ascend910BCPR-_ 35", max_size=12)))
def test_any_text_finds_a_chip_or_says_that_it_does_not(text):
    meant = {name for word, name in EVERY_NAME if catalogue._key(word) == catalogue._key(text)}
    if meant:
        assert {chips.get(text).name} == meant
    else:
        with pytest.raises(UnknownChipError) as caught:
            chips.get(text)
        assert repr(text) in caught.value.what
        assert "910B3" in caught.value.looked_at
        assert caught.value.do


def test_an_unknown_name_gets_the_known_ones_and_the_likely_one():
    with pytest.raises(UnknownChipError) as caught:
        chips.get("Ascend910B33")
    error = caught.value
    assert error.what == "there is no chip 'Ascend910B33'."
    for name in chips.names():
        assert name in error.looked_at
    assert error.do.startswith("did you mean 910B3")
    assert error.page == "unknown-chip"


@pytest.mark.parametrize(
    ("family", "do"),
    [
        ("910B", "write 910B1 or 910B2 or 910B3 or 910B4 or 910B4-1"),
        ("Ascend950DT", "write 950DT_9591 or 950DT_9581 or 950DT_9571"),
    ],
)
def test_the_name_of_a_family_is_not_guessed(family, do):
    with pytest.raises(UnknownChipError) as caught:
        chips.get(family)
    assert caught.value.what == f"{family!r} is not one chip but a family."
    assert caught.value.do == do


def test_a_name_like_no_other_points_to_the_page():
    with pytest.raises(UnknownChipError) as caught:
        chips.get("H100")
    assert "toprope explain chips" in caught.value.do


# -- what a wrong file does

GOOD = """
family = "Test"
[[chip]]
name = "777"
hbm_mib = { value = 1024, source = "page" }
"""
SOURCES = """
[page]
url = "https://example.org/"
what = "a page"
read = 2026-01-31
"""


def described(folder, text, sources=SOURCES):
    (folder / "sources.toml").write_text(sources, encoding="utf-8")
    (folder / "test.toml").write_text(text, encoding="utf-8")
    return catalogue.load(folder)


def test_a_new_file_is_a_new_family(tmp_path):
    chip = described(tmp_path, GOOD).get("777")
    assert (chip.family, chip.hbm_mib) == ("Test", 1024)
    assert chip.figure("hbm_mib").sources == (chips.Source("page", "https://example.org/", "a page", "2026-01-31"),)


def test_what_is_common_holds_for_all_and_a_chip_can_differ(tmp_path):
    text = 'family = "Test"\n[common]\nl2_mib = { value = 8, source = "page" }\n'
    text += '[[chip]]\nname = "777"\n[[chip]]\nname = "778"\nl2_mib = { value = 4, source = "page", note = "cut" }\n'
    read = described(tmp_path, text)
    assert [chip.l2_mib for chip in read.chips] == [8, 4]
    assert read.get("778").figure("l2_mib").note == "cut"


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        (', source = "page"', "", "test.toml, 777, hbm_mib: a figure is a table of value and source"),
        ('{ value = 1024, source = "page" }', "1024", "a figure is a table of value and source"),
        ('source = "page"', 'source = "pag"', "source 'pag' is not in sources.toml"),
        ('source = "page"', "source = []", "source [] is not in sources.toml"),
        ('source = "page"', 'source = ["page", "other"]', "is not in sources.toml"),
        ("hbm_mib", "hbm_gib", "there is no such figure; there are soc_name,"),
        ("1024", "-1", "-1 is no value of this figure"),
        ("1024", "true", "True is no value of this figure"),
        ("1024", '"64 GB"', "'64 GB' is no value of this figure"),
        ("hbm_mib = { value = 1024", 'dtypes = { value = "float16"', "is no value of this figure"),
        ("hbm_mib = { value = 1024", 'core_structure = { value = "mixed"', "is no value of this figure"),
        ("hbm_mib = { value = 1024", "cube_macs_per_cycle = { value = { int8 = 0 }", "is no value of this figure"),
        ("hbm_mib = { value = 1024", "memory_gb_per_s = { value = 0.0", "is no value of this figure"),
        ('name = "777"', 'name = ""', "a chip has a name"),
        ('name = "777"', 'name = "777"\naliases = [7]', "a chip has a name"),
        ('name = "777"', 'name = "777"\naliases = "seven"', "a chip has a name"),
        ('family = "Test"', "", "a family has a name"),
        ('family = "Test"', 'family = "Test"\ncommon = 1', "a family has a name"),
        ('family = "Test"\n[[chip]]', 'family = "Test"\nchip = [1]\n[rest]', "a family has a name"),
        ('family = "Test"\n[[chip]]', 'family = "Test"\n[chip]', "a family has a name"),
        ('family = "Test"', 'family = "Test"\nchips = 1', "a family has a name"),
        ("[[chip]]", '[[chip]]\nname = "77-7"\n[[chip]]', "the chips 77-7 and 777 both answer to '777'"),
        ("1024,", "1024", "test.toml cannot be read"),
    ],
)
def test_a_wrong_description_is_one_clear_error(tmp_path, old, new, says):
    assert old in GOOD
    with pytest.raises(ChipDataError) as caught:
        described(tmp_path, GOOD.replace(old, new))
    assert says in str(caught.value)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('url = "https://example.org/"', ""),
        ("https://example.org/", "a book"),
        ('what = "a page"', 'what = ""'),
        ("read = 2026-01-31", ""),
        ("read = 2026-01-31", 'read = "lately"'),
        ("[page]", "page = 1\n[other]"),
    ],
)
def test_a_source_without_address_meaning_or_day_is_an_error(tmp_path, old, new):
    with pytest.raises(ChipDataError, match=r"sources\.toml, page: a source"):
        described(tmp_path, GOOD, SOURCES.replace(old, new))


# -- the page and the import


def test_the_page_is_in_step_with_the_data():
    page = (ROOT / "docs" / "chips.md").read_text(encoding="utf-8")
    assert table.renewed(page, CHIPS) == page, "run: python -m toprope.chips toprope explain chips"


def test_the_module_prints_the_table_and_renews_the_page(tmp_path):
    page = tmp_path / "chips.md"
    shutil.copy(ROOT / "docs" / "chips.md", page)
    kept = page.read_text(encoding="utf-8")
    page.write_text(kept.replace("| **910B3** |", "| **911B3** |"), encoding="utf-8")
    command = [sys.executable, "-m", "toprope.chips"]
    shown = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout
    assert shown == table.markdown(CHIPS)
    assert "| **910B3** |  | Ascend910B3 | 910B3 | 223 | 20 / 40 | 65536 | 192 |" in shown
    subprocess.run([*command, str(page)], check=True, timeout=60)
    assert page.read_text(encoding="utf-8") == kept
    page.write_text("no marks", encoding="utf-8")
    failed = subprocess.run([*command, str(page)], capture_output=True, text=True, check=False, timeout=60)
    assert failed.returncode == 2
    assert "the page has no" in failed.stderr
    assert page.read_text(encoding="utf-8") == "no marks"


def test_importing_the_package_reads_nothing_and_loads_no_torch():
    code = (
        "import sys, toprope.chips as chips\n"
        "assert not {'tomllib', 'dataclasses', 'toprope.chips.catalogue'} & set(sys.modules)\n"
        "assert chips.get('910B3').cube_cores == 20\n"
        "assert 'torch' not in sys.modules and 'difflib' not in sys.modules\n"
        "assert not hasattr(chips, 'nothing') and all(hasattr(chips, name) for name in chips.__all__)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
