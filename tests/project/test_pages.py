"""Pages: all can be reached, nothing is called missing that is there, translations have the blocks of the original."""

import pathlib
import re

import pytest

import translated_pages
from words import prose

ROOT = pathlib.Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PAGES = [*sorted(ROOT.glob("[RC]*.md")), *(each for each in sorted(DOCS.rglob("*.md")) if not each.is_symlink())]


def linked(page):
    links = re.findall(r"\]\(([^)#:\s]+)(?:#[^)\s]*)?\)", prose(page.read_text(encoding="utf-8")))
    return {(page.parent / link).resolve() for link in links}


def test_the_front_page_links_every_page():
    front = DOCS / "index.md"
    # the pages of errors and of rules are many: each folder has its own front page
    folders = [DOCS / "errors" / "index.md", DOCS / "errors" / "index.zh.md", DOCS / "port" / "index.md"]
    assert set(folders) <= linked(front)
    reached = {front}.union(*(linked(each) for each in (front, *folders)))
    assert (
        sorted(str(page.relative_to(ROOT)) for page in {each.resolve() for each in DOCS.rglob("*.md")} - reached) == []
    )


def test_the_readme_links_the_page_of_every_package():
    packages = {each.name for each in (ROOT / "src" / "toprope").iterdir() if each.is_dir()}
    pages = {page for page in DOCS.glob("*.md") if page.stem in packages}
    assert len(pages) >= 7
    assert sorted(page.name for page in (pages | {DOCS / "index.md"}) - linked(ROOT / "README.md")) == []


# Paths in a page: from the root of the repository, or from the package's folder.
PATH = re.compile(r"`((?:src|tests|scripts|benchmarks|examples|docs)/[\w./-]+\.\w+)`")
# to be written; of another project; of the reader's own
OTHERS = {"docs/errors/name.md", "docs/NPU_INTEGRATION_GUIDE.md", "tests/test_block.py"}


def test_the_files_that_pages_name_are_there():
    named = {(str(page.relative_to(ROOT)), path) for page in PAGES for path in PATH.findall(page.read_text("utf-8"))}
    assert len(named) >= 40
    assert sorted(each for each in named if each[1] not in OTHERS and not (ROOT / each[1]).exists()) == []


def test_the_files_of_the_architecture_are_there():
    text = (DOCS / "architecture.md").read_text(encoding="utf-8")
    rows = [line for line in text.splitlines() if line.startswith("| `")]
    assert len(rows) >= 50
    package = ROOT / "src" / "toprope"
    named = set(re.findall(r"`([\w/]+\.(?:py|cpp|h))`", text))
    assert sorted(path for path in named if not (package / path).is_file()) == []
    assert all(re.fullmatch(r"\| (`[\w/]+\.(py|cpp|h)`(, )?)+ \| .+ \|", line) for line in rows)


def test_the_torch_that_make_setup_installs_is_the_one_that_the_versions_call_run():
    page = (DOCS / "versions.md").read_text(encoding="utf-8")
    pinned = re.search(r"^TORCH \?= torch==(\S+)$", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)[1]
    assert re.findall(r"^\| (\d[\w.]*) \| run \|", page, re.MULTILINE) == [pinned]
    pythons = re.findall(r"Python :: (3\.\d+)", (ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert pythons
    assert [each for each in pythons if not re.search(rf"^\| {re.escape(each)}[ .,]", page, re.MULTILINE)] == []


def outline(page):
    """Levels of headings, links, and blocks of code without their comments."""
    text = (ROOT / page).read_text(encoding="utf-8")
    blocks = re.findall(r"^```.*?^```$", text, re.MULTILINE | re.DOTALL)
    code = ["\n".join(re.sub(r"\s*#.*$", "", line) for line in block.splitlines()) for block in blocks]
    headings = re.findall(r"^#+ (?:\w+(?=[:：]))?", prose(text), re.MULTILINE)
    return headings, code, sorted(re.findall(r"\]\(([^)\s]+)\)", prose(text)))


def test_the_chinese_readme_has_the_headings_and_snippets_of_the_english_one():
    (headings, code, links), chinese = outline("README.md"), outline("README.zh.md")
    assert len(headings) >= 12
    assert len(code) >= 12
    assert chinese[0] == headings
    assert chinese[1] == code
    assert sorted(each.replace(".zh.md", ".md") for each in chinese[2]) == sorted(
        each.replace(".zh.md", ".md") for each in links
    )


@pytest.mark.parametrize("page", translated_pages.PAGES, ids=lambda page: page.name)
def test_a_chinese_page_has_the_headings_links_and_blocks_of_the_english_one(page):
    assert translated_pages.faults(page) == [], "python scripts/translated_pages.py --update copies the blocks"


def test_blocks_of_a_chinese_page_become_those_of_the_english_one(tmp_path, monkeypatch):
    monkeypatch.setattr(translated_pages, "ROOT", tmp_path)
    page = tmp_path / "a.zh.md"
    (tmp_path / "a.md").write_text("# A\n\nOne.\n\n```python\nnew()  # why\n```\n\nTwo.\n")
    page.write_text("# 甲\n\n一。\n\n```python\nold()\n```\n\n二。\n")
    assert translated_pages.faults(page) == ["a.zh.md: other blocks of code than in the English page"]
    page.write_text(translated_pages.update(page))
    assert page.read_text() == "# 甲\n\n一。\n\n```python\nnew()  # why\n```\n\n二。\n"
    assert translated_pages.faults(page) == []
    page.write_text("# 甲\n")
    with pytest.raises(ValueError, match="has not the 1 blocks"):
        translated_pages.update(page)


def test_start_tutorials_doctor_and_all_errors_are_in_chinese():
    translated = {str(page.relative_to(DOCS)).replace(".zh.md", ".md") for page in translated_pages.PAGES}
    errors = {f"errors/{page.name}" for page in (DOCS / "errors").glob("*.md") if not page.name.endswith(".zh.md")}
    tutorials = {f"tutorials/{page.name}" for page in (DOCS / "tutorials").glob("*.md") if ".zh" not in page.name}
    assert sorted({"start.md", "doctor.md", *tutorials, *errors} - translated) == []


def test_comments_that_the_tests_read_are_not_translated():
    prints = [
        re.findall(r"# prints .+", (ROOT / name).read_text(encoding="utf-8")) for name in ("README.md", "README.zh.md")
    ]
    assert len(prints[0]) >= 8
    assert prints[0] == prints[1]


FIGURES = [
    ("41 of 43", "operators_by_release.md", "41 of 43 agree"),
    ("7 of 15", "time.md", "7 of 15 are inside"),
    ("37 %", "time.md", "the median error is 37 %"),
]


# Figures that explanations and the comparison take from other pages: the page, its words, the source, the words there.
TAKEN = [
    ("card_device", "an addition of 16 floats | 1.40 times", "benchmarks", "| add, 16 floats | 1.16 | 1.63 | 1.40 |"),
    ("card_device", "a small GPT | 1.10 times", "benchmarks", "B2 T32, train step | 3074 | 3382 | 1.10 |"),
    ("card_device", "a larger one | 1.00 times", "benchmarks", "B4 T128, train step | 139299 | 139358 | 1.00 |"),
    ("card_device", "for the report | 1.01 times", "benchmarks", "traced / plain | 138513 | 140395 | 1.01 |"),
    ("card_device", "48 to 57 ms more", "benchmarks", "**+48, +57, +55 and +48 ms**"),
    ("optimal_plan", "from the disk, 1 row | 1.13 | 1.55 to 2.60 against 0.72 to 0.79", "benchmarks", "1 row | 1.13 |"),
    ("optimal_plan", "128 rows | 1.22 | 2.53 to 3.07 against 0.99 to 1.35", "benchmarks", "128 rows | 1.22 |"),
    ("optimal_plan", "1.46, target 1.25 missed", "benchmarks", "| from the disk, 128 rows, copied | 1.46 |"),
    ("optimal_plan", "over an emulated link of 4 GB/s, 16 rows | 1.03", "benchmarks", "4 GB/s, 16 rows | 1.03 |"),
    ("optimal_plan", "took 1.01 to 1.04 of accelerate's time", "benchmarks", "1.04 (1.01 to 1.07)"),
    ("core_proof", "0.93 to 1.16 s", "benchmarks", "80,000 operators in 8 streams | 48 cores | 1.16 |"),
    ("core_proof", "0.20 to 0.83 s", "benchmarks", "24 four times, D0 | deadlock | 0.83 |"),
    ("core_proof", "| 4 alarms | 2 | 0 | 0 |", "benchmarks", "| 4 of 20 | 2 of 20 | 0 of 20 | 0 of 20 |"),
    ("estimate_errors", "bound by the card | 112 | 62 % | 14 %", "time", "first look | card | 112 | 62 % | 14 % |"),
    ("estimate_errors", "bound by the host | 57 | 32 % | 41 %", "time", "first look | host | 57 | 32 % | 41 % |"),
    ("estimate_errors", "15 | 7 of 15 | 37 % |", "time", "7 of 15 are inside, the median error is 37 %"),
    ("estimate_errors", "1,042 measurements of operators and 206", "time", "1,042 of operators and 206 of models"),
    ("comparison", "1.55 to 6.01 s against toprope's 0.72 to 3.93", "benchmarks", "6.01 against 3.25 to 3.93"),
    ("comparison", "0.62 of accelerate's time over a link of 4 GB/s", "benchmarks", "0.62 of accelerate's time"),
    ("comparison", "0.43 ms; toprope 0.41 to 0.45 ms", "benchmarks", "| 0.43 | 0.47 | 4.8 |"),
    ("comparison", "1.03 (100 MB by value) to 124.5 times", "benchmarks", "124.50"),
    ("comparison", "0.21 to 0.55 of Ray's time", "benchmarks", "| 29 | 52 | 0.55 |"),
    ("comparison", "**2.39 times** as long; 0.19 for 1 MB", "benchmarks", "64 MB 2.39 (2.04 to 2.51)"),
    ("comparison", "1.23 times LitServe's requests per second and 9.8", "benchmarks", "97 %) times LitServe and 9.8"),
    ("comparison", "700 of 711 places", "benchmarks", "| 700 of 711 |"),
    ("comparison", "references became 42 in 521 s, with 44 %", "benchmarks", "references to 42 in 521 s, with 44 %"),
    ("comparison", "likely value by its figure is 1.34", "time", "our likely value by its figure is 1.34"),
]  # fmt: skip


@pytest.mark.parametrize(("page", "words", "source", "there"), TAKEN)
def test_figures_of_explanations_are_those_of_their_sources(page, words, source, there):
    for name, text in ((page, words), (source, there)):
        assert text in " ".join((DOCS / f"{name}.md").read_text(encoding="utf-8").split()), name


def test_the_explanation_counts_the_rows_of_the_memory_table():
    page = (DOCS / "estimate.md").read_text(encoding="utf-8")
    off = [abs(float(each)) for each in re.findall(r"\| ([+-]\d+\.\d)% \|$", page, re.MULTILINE)]
    near = sum(each <= 3.0 for each in off)
    text = " ".join((DOCS / "estimate_errors.md").read_text(encoding="utf-8").split())
    assert f"of {len(off)} published measurements, {near} are within 3.0 %, one is off by 6.7 %" in text
    assert sorted(each for each in off if each > 3) == [3.7, 6.7, 13.5, 136.7]


def test_the_explanation_counts_the_tests_of_other_libraries():
    page = (DOCS / "compat.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| \w+ \(`.*?`? \w+\) \|(.*)\|$", page, re.MULTILINE)
    numbers = [[int(each) for each in row.split("|")] for row in rows]
    assert len(numbers) == 4
    cpu, npu, differ, known = (sum(row[place] for row in numbers) for place in (2, 3, 8, 9))
    assert differ == known
    text = " ".join((DOCS / "card_device.md").read_text(encoding="utf-8").split())
    assert f"{npu:,} tests of transformers, accelerate, diffusers and Inductor pass on it" in text
    assert f"against {cpu:,} on the CPU" in text
    assert f"all {differ} that end differently" in text


@pytest.mark.parametrize(("figure", "page", "words"), FIGURES)
def test_figures_of_the_readme_are_those_of_the_pages(figure, page, words):
    assert words in (DOCS / page).read_text(encoding="utf-8")
    for readme in ("README.md", "README.zh.md"):
        assert figure in (ROOT / readme).read_text(encoding="utf-8"), readme


MISSING = re.compile(
    r"\byet\b|\bso\s+far\b|\bfor\s+now\b|\bwill\s+(?:be|come|follow|get|have)\b|\bplanned\s+for\b"
    r"|\bnot\s+(?:built|implemented|supported)\b(?!\s+(?:for|in)\b)|\bdoes\s+not\s+exist\b|\b(?:future|later)\s+versions?\b"
    r"|\bcomes?\s+(?:later|with\s+the\s+(?:rooms?|packages?))\b|\bTODO\b|\bunder\s+construction\b|\bcoming\s+soon\b",
    re.IGNORECASE,
)  # fmt: skip
# Lines that say that something is missing, and why they are right. A line that is gone goes here, too.
RIGHT = {
    ("docs/compat.md", "By name only: they agree, and raise NotImplementedError so far."): "the table below names two",
    ("docs/compat.md", "and raise NotImplementedError so far.\n"): "the same two names",
    ("docs/compat.md", "A card not used so far is not refused"): "a card in the user's program",
    ("docs/doctor.md", "None of this has run on a real card yet"): "no part of toprope has",
    ("docs/errors/program.md", "the file does not exist"): "a file of the user",
    ("docs/images.md", "never yet"): "no real weights have been run",
    ("docs/limits.md", "has run on real Ascend hardware so far"): "no part of toprope has",
    ("docs/limits.md", "a peer that was not launched yet"): "a kernel of the user's program",
    ("docs/benchmarks.md", "is not done yet"): "work of a pipeline that is measured",
}


def claims():
    """Page and the text around each claim."""
    for page in PAGES:
        if page.parent.name == "api":
            continue  # docstrings, which say what a running program has and has not
        text = prose(page.read_text(encoding="utf-8"))
        for hit in MISSING.finditer(text):
            line = text.count("\n", 0, hit.start()) + 1
            yield str(page.relative_to(ROOT)), line, text[max(0, hit.start() - 80) : hit.end() + 80]
    # the section of import-linter and all after it describe layers, not features
    comments = re.findall(
        r"#.*", (ROOT / "pyproject.toml").read_text(encoding="utf-8").partition("[tool.importlinter]")[0]
    )
    for line in comments:
        if MISSING.search(line):
            yield "pyproject.toml", 0, line


def test_what_is_called_missing_is_missing():
    said = list(claims())
    wrong = [
        f"{page}:{line}: {text!r}"
        for page, line, text in said
        if not any(page == where and words in text for where, words in RIGHT)
    ]
    assert wrong == [], "correct the page, or list the line above with the reason why it is right"
    stale = [key for key in RIGHT if not any(page == key[0] and key[1] in text for page, _, text in said)]
    assert stale == [], "these lines are gone: remove them above"


@pytest.mark.parametrize(
    "text",
    [
        "is not built yet",
        "*not there yet*",
        "it will be one file",
        "not implemented",
        "comes with the rooms for",
        "so far",
    ],
)
def test_claims_are_found(text):
    assert MISSING.search(text)


@pytest.mark.parametrize("text", ["a device that is not there", "the plan", "a later run", "not given"])
def test_other_sentences_are_no_claims(text):
    assert not MISSING.search(text)


def test_the_page_of_changes_was_a_copy_that_stayed_behind() -> None:
    assert (ROOT / "docs" / "changelog.md").readlink() == pathlib.Path("../CHANGELOG.md")
