"""The front page reaches every page, and no page calls something missing that is there."""

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
OTHERS = {"docs/errors/name.md", "docs/NPU_INTEGRATION_GUIDE.md"}  # to be written; of another project


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


def test_the_first_pages_doctor_and_all_errors_are_in_chinese():
    translated = {str(page.relative_to(DOCS)).replace(".zh.md", ".md") for page in translated_pages.PAGES}
    errors = {f"errors/{page.name}" for page in (DOCS / "errors").glob("*.md") if not page.name.endswith(".zh.md")}
    assert sorted({"start.md", "tutorials/cuda.md", "doctor.md", *errors} - translated) == []


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
