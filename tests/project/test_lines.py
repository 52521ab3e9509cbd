"""Code lines are counted without blanks, comments and docstrings, in every language of the repository.

Holds scripts/lines.py.
"""

import json
import subprocess

import pytest

import lines

PYTHON = '''\
"""Docstring of the module,

of three lines."""

import os  # a comment after code

# a comment
TEXT = """not a docstring # and no comment

that counts three lines, one of them blank"""
LIMIT = 1
"""Docstring of an attribute."""


def f(
    a,  # one
):
    """Docstring
    of two lines."""
    return "# no comment"


class A:
    'One in single quotes.'

    def g(self): "On the line of its function."

    async def h(self):
        r"""Raw \\docstring."""
        x = "a" \\
            "b"  # no blank
        g("""an
argument""")
'''


def test_python():
    #        import, TEXT, LIMIT, def f, return, class, def g, async def, x, g(
    expected = 1 + 2 + 1 + 3 + 1 + 1 + 1 + 1 + 2 + 2
    assert lines.count(PYTHON, "Python") == expected
    assert lines.count('"""Only a docstring."""\n# and a comment\n', "Python") == 0
    assert lines.count("", "Python") == 0
    with pytest.raises(SyntaxError):
        lines.count("def f(:\n", "Python")


CPP = r"""
/* a block
   of comments */
#include <a.h>  // after code
// line \
   that goes on
int x = 1'000; /* between */ int y;  /* to
the next line */ int z;
const char* url = "http://a /* no comment";
const char* quote = "\"//";
char slash = '/', star = '"'; // a quote in a character
/* '"' */
const char* raw = R"(
// no comment

" */ /*
)";
auto named = u8R"end()" /* )end" /* comment */;
}
"""


def test_cpp():
    #        include, x, z, url, quote, slash, raw (4 without the blank), named, }
    assert lines.count(CPP, "C++") == 1 + 1 + 1 + 1 + 1 + 1 + 4 + 1 + 1


@pytest.mark.parametrize(
    ("language", "text", "expected"),
    [
        ("TOML", '# comment\na = "#"  # comment\nb = """\n# text\n\nmore"""\nc = \'\'\'\n#\'\'\'\nd = \'#"\'\n\n', 7),
        ("shell", "#!/bin/sh\n# it's a comment\necho $# 'a\n# text' \"#\n# b\"\ncat <<'EOF'\n# text\nEOF\n x#y\n", 7),
        ("make", "# comment\n\t# comment\n\nall: # after code\n\techo '#'\n", 2),
        ("YAML", "# comment\na: '#b'\n\n  # comment\n", 1),
        ("JavaScript", "// a\nlet u = 'http://b'; /* c\n*/\nlet t = `\n// text`;\n", 3),
        ("CSS", "/* a\n */\nb { content: '/*' }\n", 1),
        ("HTML", "<!-- a\n-->\n<p>b</p> <!-- c -->\n", 1),
    ],
)
def test_other_languages(language, text, expected):
    assert lines.count(text, language) == expected


@pytest.mark.parametrize(
    ("path", "language", "area"),
    [
        ("src/toprope/__init__.py", "Python", "src/toprope (modules)"),
        ("src/toprope/sim/csrc/core/a.h", "C++", "src/toprope/sim"),
        ("src/toprope/tiers/csrc/a.inl", "C++", "src/toprope/tiers"),
        ("src/toprope/chips/a.toml", "TOML", "src/toprope/chips"),
        (".ci/run", "shell", "project files"),
        ("Makefile", "make", "project files"),
        ("benchmarks/parts/a.py", "Python", "benchmarks"),
        ("tests/conftest.py", "Python", "tests"),
        ("tests/sim/simulated/test_tiers.py", "Python", "tests/sim"),
        ("tests/helpers/a.py", "Python", "tests/helpers"),
        # as they were at the base
        ("tests/test_tiers_plan.py", "Python", "tests/tiers"),
        ("tests/test_hccl_cores.py", "Python", "tests/cores"),
        ("tests/test_device_utils.py", "Python", "tests/compat"),
        ("tests/test_device_cpu.py", "Python", "tests/device"),
        ("tests/test_documents.py", "Python", "tests/sim"),
        ("tests/simulated/test_device_weights.py", "Python", "tests/sim"),
        ("tests/simulated/test_tiers_threads.py", "Python", "tests/tiers"),
        ("tests/simulated/against_cpu.py", "Python", "tests/helpers"),
        ("tests/cuda/test_cuda_device.py", "Python", "tests/device"),
        ("tests/flow_graphs.py", "Python", "tests/helpers"),
        ("docs/index.md", None, "project files"),
        ("examples/cores/figure.json", None, "examples"),
    ],
)
def test_files_belong_to_an_area_and_a_language(path, language, area):
    assert lines.language(path) == language
    assert lines.area(path) == area


def test_the_table_has_both_trees_and_the_difference(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(lines, "ROOT", tmp_path)
    monkeypatch.setattr(lines, "area", lambda path: path.split("/")[0])
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@b", "-C", str(tmp_path)]
    (tmp_path / "one").mkdir()
    (tmp_path / "one" / "a.py").write_text("a = 1\nb = 2\n")
    (tmp_path / "one" / "notes.md").write_text("no code\n")
    for arguments in (["init", "-q"], ["add", "."], ["commit", "-qm", "base"]):
        subprocess.run([*git, *arguments], check=True, timeout=60)
    (tmp_path / "one" / "a.py").write_text("a = 1\n")
    (tmp_path / "two").mkdir()
    (tmp_path / "two" / "new.cpp").write_text("int a;\nint b;\n\n")
    (tmp_path / ".gitignore").write_text("ignored.py\n")
    (tmp_path / "ignored.py").write_text("a = 1\n")
    assert lines.main(["--base", "HEAD"]) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["one", "2", "1", "-1"] in rows
    assert ["two", "0", "2", "+2"] in rows
    assert ["C++", "0", "2", "+2"] in rows
    assert rows.count(["total", "2", "3", "+1"]) == 2
    assert lines.main(["--base", "HEAD", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {
        "commit": "HEAD",
        "base": {"one": {"Python": 2}},
        "now": {"one": {"Python": 1}, "two": {"C++": 2}},
    }
    with pytest.raises(SystemExit, match="no-such-commit cannot be read"):
        lines.main(["--base", "no-such-commit"])
