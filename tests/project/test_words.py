"""The words that the project avoids are found where they count, and their allowed numbers only become smaller.

Holds scripts/words.py.
"""

import textwrap

import pytest

import words


def found(reader, text, path="src/toprope/x/good.py"):
    return [(hit.line, hit.kind, hit.word) for hit in reader(textwrap.dedent(text), path)]


@pytest.mark.parametrize(
    ("text", "kinds"),
    [
        ("it is told so", ["told"]),
        ("cannot be told apart", []),
        ("the name that stands here", ["stands"]),
        ("HBM stands for memory; fakes that stand in for it, a stand-in", []),
        ("two stand next to each other", ["stands"]),
        ("so many values", ["so-many"]),
        ("So many that it fails", []),
        ("beside the point, besides", ["beside"]),
        ("plan anew and mended, not mentioned or recommended", ["anew", "mend"]),
        ("Ctrl-C is heeded by whoever asks", ["heed", "whoever"]),
        ("the size is that of the page", ["that-of"]),
        ("it is let go, they let go of it", ["let-go", "let-go"]),
        ("larger than what fits", ["than-what"]),
        ("larger than the page, other than what?", ["than-what"]),
    ],
)
def test_words(text, kinds):
    assert [kind for _, kind, _ in found(words.in_python, f"# {text}\n")] == kinds
    assert [kind for _, kind, _ in found(words.in_page, text, "docs/x.md")] == kinds


def test_python_has_hits_in_comments_strings_docstrings_and_names():
    text = '''\
    """What a queue holds.

    It is told
    so
    many times.
    """
    told = 1  # mend it
    text = f"{told} anew"

    class EdgeHub:
        """The hub, away from the board."""

        def look(self):
            """How long a reader waits."""

        def plan_anew(self, github):
            """Whether it is so."""

    class Page: "Wake the peer."
    class PageTable: "When it runs."
    class Keyboard: "Whatever it is."
    '''
    assert sorted(found(words.in_python, text, "src/toprope/x/edge_hub.py")) == [
        (1, "clause", "What ..."), (1, "name", "edge_hub"), (3, "told", "told"), (4, "so-many", "so many"),
        (7, "mend", "mend"), (8, "anew", "anew"), (10, "name", "EdgeHub"), (14, "clause", "How long ..."),
        (16, "name", "plan_anew"), (17, "clause", "Whether ..."), (19, "name", "Page"), (20, "clause", "When ..."),
    ]  # fmt: skip


def test_cpp_has_hits_in_comments_strings_and_class_names():
    text = """\
    // told
    /* x
       anew */
    int told = beside;  // class Hub {
    auto text = "mend";
    struct Board final : Base {
    """
    assert sorted(found(words.in_cpp, text, "src/toprope/x/good.h")) == [
        (1, "told", "told"), (3, "anew", "anew"), (5, "mend", "mend"), (6, "name", "Board"),
    ]  # fmt: skip


def test_code_in_pages_is_skipped():
    text = "a\n```py\ntold\n```\n`told` told\n\n  ~~~~\n  told\n  ~~~~\nwhat is told\n"
    assert found(words.in_page, text, "docs/x.md") == [(5, "told", "told"), (10, "told", "told")]


def test_messages_say_where_and_what_to_write():
    (hit,) = words.in_page("a\nanew", "docs/x.md")
    assert str(hit) == "docs/x.md:2: 'anew': write again"


@pytest.fixture
def project(tmp_path, monkeypatch):
    monkeypatch.setattr(words, "ROOT", tmp_path)
    monkeypatch.setattr(words, "ALLOWED", tmp_path / "allowed.toml")
    for folder in ("src/toprope/x", "docs"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "src/toprope/x/a.py").write_text("# told\n# told\n")
    (tmp_path / "src/toprope/b.py").write_text("# anew\n")
    (tmp_path / "docs/c.md").write_text("mend\n")
    (tmp_path / "README.md").write_text("beside\n")
    words.write_allowed(
        tmp_path / "allowed.toml",
        {("x", "told"): 2, ("toprope", "anew"): 1, ("docs", "mend"): 1, ("README", "beside"): 1},
    )
    return tmp_path


def test_what_is_allowed_passes(project, capsys):
    assert words.main([]) == 0
    assert capsys.readouterr().out == ""


def test_more_than_allowed_fails_and_is_not_written(project, capsys):
    (project / "src/toprope/x/new.py").write_text("\n# told\n")
    before = words.read_allowed(words.ALLOWED)
    for arguments in ([], ["--update"]):
        assert words.main(arguments) == 1
        lines = capsys.readouterr().out.splitlines()
        assert "src/toprope/x/new.py:2: 'told': write reported, or given" in lines
        assert lines[-1] == "x: told: 3, allowed are 2"
    assert words.read_allowed(words.ALLOWED) == before


def test_fewer_than_allowed_fails_until_it_is_written(project, capsys):
    (project / "src/toprope/x/a.py").write_text("# told\n")
    (project / "docs/c.md").write_text("fix\n")
    assert words.main([]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[:2] == ["docs: mend: 0, allowed are 1", "x: told: 1, allowed are 2"]
    assert "--update" in lines[2]
    assert words.main(["--update"]) == 0
    assert words.main([]) == 0
    assert words.read_allowed(words.ALLOWED) == {("x", "told"): 1, ("toprope", "anew"): 1, ("README", "beside"): 1}


def test_paths_are_listed_without_the_allowed_numbers(project, capsys):
    assert words.main([str(project / "src/toprope/x"), str(project / "README.md")]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "src/toprope/x/a.py:1: 'told': write reported, or given",
        "src/toprope/x/a.py:2: 'told': write reported, or given",
        "README.md:1: 'beside': write next to, or in addition to",
    ]
