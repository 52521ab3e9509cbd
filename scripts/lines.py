"""Count the code lines of the repository by package, next to a base commit.

    python scripts/lines.py [--base COMMIT] [--json]

A code line holds something other than white space, a comment or a docstring. Every string that is a statement by itself
is a docstring, so the texts below attributes are too; the lines of every other string count, except blank ones.
Markdown, JSON and CSV are not code. The working tree includes untracked files that git does not ignore.

For contributors who restructure a package. scripts/assertions.py reads files of a commit with it, scripts/words.py asks
it for docstrings; tests/project/test_lines.py.
"""

from __future__ import annotations

import argparse
import ast
import functools
import io
import json
import re
import subprocess
import sys
import tarfile
import tokenize
from collections import Counter
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

ROOT = Path(__file__).resolve().parent.parent
BASE = "86362f9"

SUFFIXES = {
    ".py": "Python", ".cpp": "C++", ".h": "C++", ".inl": "C++", ".toml": "TOML", ".sh": "shell", ".yml": "YAML",
    ".yaml": "YAML", ".html": "HTML", ".css": "CSS", ".js": "JavaScript",
}  # fmt: skip
NAMES = {"Makefile": "make", ".ci/run": "shell"}

# Each finds strings as well as comments, so that a comment sign inside a string is not taken for one.
_QUOTED = r'"(?:\\.|[^"\\\n])*"'
_SLASHES = r"(?P<comment>//(?:\\\n|[^\n])*|/\*.*?\*/)"
_HASH_LINES = re.compile(r"(?P<comment>^[ \t]*#[^\n]*)", re.MULTILINE)
GRAMMARS = {
    "C++": re.compile(
        _SLASHES + r'|(?<!\w)(?:u8|[uUL])?R"(?P<end>[^()\\\s]{0,16})\(.*?\)(?P=end)"|' + _QUOTED
        # numbers, since 1'000 holds no character
        + r"|(?<!\w)\d(?:'?[\w.])*|'(?:\\.|[^'\\\n])+'",
        re.DOTALL,
    ),
    "JavaScript": re.compile(_SLASHES + "|" + _QUOTED + r"|'(?:\\.|[^'\\\n])*'|`(?:\\.|[^`\\])*`", re.DOTALL),
    "CSS": re.compile(r"(?P<comment>/\*.*?\*/)|" + _QUOTED, re.DOTALL),
    "HTML": re.compile(r"(?P<comment><!--.*?-->)", re.DOTALL),
    "TOML": re.compile(
        r"(?P<comment>#[^\n]*)|\"\"\"(?:\\.|[^\\])*?\"\"\"|'''.*?'''|" + _QUOTED + r"|'[^'\n]*'", re.DOTALL
    ),
    "shell": re.compile(
        r"(?P<comment>(?<!\S)#[^\n]*)|\\.|'[^']*'|\"(?:\\.|[^\"\\])*\""
        r"|<<-?\s*(?P<quote>[\"']?)(?P<end>\w+)(?P=quote).*?^\s*(?P=end)$",
        re.DOTALL | re.MULTILINE,
    ),
    "make": _HASH_LINES,
    "YAML": _HASH_LINES,
}  # fmt: skip


def language(path: str) -> str | None:
    """The language of a file by its name, None if the file is not code."""
    return NAMES.get(path) or SUFFIXES.get(PurePosixPath(path).suffix)


def docstrings(tree: ast.AST) -> Iterator[ast.Constant]:
    """Strings that are statements by themselves."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield node.value


_NOT_CODE = {
    tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENCODING,
    tokenize.ENDMARKER,
}  # fmt: skip


def _python_lines(text: str) -> set[int]:
    """Numbers of the lines that have code: no blank lines, comments or docstrings."""
    lines = text.splitlines()
    documented = []
    for node in docstrings(ast.parse(text)):
        assert node.end_lineno is not None
        documented.append((node.lineno, node.end_lineno))
    code: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        first, last = token.start[0], token.end[0]
        if token.type in _NOT_CODE:
            continue
        if token.type == tokenize.STRING and any(begin <= first and last <= end for begin, end in documented):
            continue
        code.update(range(first, last + 1))
    return {number for number in code if lines[number - 1].strip()}


@functools.cache  # most files are the same in both trees
def count(text: str, language: str) -> int:
    """Code lines of a text.

    Raises:
        SyntaxError: Python that does not parse.
    """
    if language == "Python":
        return len(_python_lines(text))

    def blanked(hit: re.Match[str]) -> str:
        return "\n" * hit[0].count("\n") if hit["comment"] is not None else hit[0]

    return sum(1 for line in GRAMMARS[language].sub(blanked, text).splitlines() if line.strip())


# The base has its tests in one folder; the first prefix that fits names the package.
_FLAT = (
    ("project", "digits docs example project"),
    ("cores", "cores hccl_cores"),
    ("compat", "apt compat data_parallel device_utils exported finder libraries notes npu_fusion pytest torch"),
    ("base", "chips codes errors import settings sizes visible"),
    ("cli", "choose cli npu_smi probe program report run"),
    ("device", "device doctor cuda"),
    ("tiers", "tiers pages"),
    *((each, each) for each in ("flow", "functions", "images", "port")),
)  # fmt: skip


def _flat_test(inside: tuple[str, ...]) -> str:
    name = inside[-1]
    if not name.startswith("test_"):
        return "helpers"
    simulated = inside[0] == "simulated"
    for package, prefixes in _FLAT:
        if simulated and package not in ("images", "tiers"):
            continue
        if name.removeprefix("test_").startswith(tuple(prefixes.split())):
            return package
    return "sim"


def area(path: str) -> str:
    """The row of the table to which a file belongs."""
    parts = PurePosixPath(path).parts
    if parts[:2] == ("src", "toprope"):
        return f"src/toprope/{parts[2]}" if len(parts) > 3 else "src/toprope (modules)"
    if parts[0] == "tests" and parts[1:] != ("conftest.py",):
        if len(parts) == 2 or parts[1] in ("simulated", "cuda", "programs"):
            return f"tests/{_flat_test(parts[1:])}"
        return f"tests/{parts[1]}"
    if parts[0] in ("tests", "benchmarks", "examples", "scripts"):
        return parts[0]
    return "project files"


def tree_files() -> Iterator[tuple[str, str]]:
    """Path and text of the code files in the working tree."""
    done = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        check=True,
    )
    for path in sorted(set(done.stdout.decode().split("\0"))):
        if path and language(path) and (ROOT / path).is_file():
            yield path, (ROOT / path).read_text(encoding="utf-8")


def commit_files(commit: str) -> Iterator[tuple[str, str]]:
    """Path and text of the code files of a commit; the working tree is not touched."""
    done = subprocess.run(["git", "archive", "--format=tar", commit], cwd=ROOT, capture_output=True)
    if done.returncode:
        reason = done.stderr.decode().strip()
        sys.exit(f"{commit} cannot be read: {reason}\n  do  git fetch --unshallow, or name another --base")
    with tarfile.open(fileobj=io.BytesIO(done.stdout)) as archive:
        for member in archive:
            content = archive.extractfile(member) if language(member.name) else None
            if content is not None:
                yield member.name, content.read().decode()


Counts = dict[str, Counter[str]]


def counted(files: Iterator[tuple[str, str]]) -> Counts:
    """Code lines by area, then by language."""
    counts: Counts = {}
    for path, text in files:
        kind = language(path)
        assert kind is not None
        counts.setdefault(area(path), Counter())[kind] += count(text, kind)
    return counts


def _by_language(counts: Counts) -> Counter[str]:
    return sum(counts.values(), Counter())


def _table(title: str, base: dict[str, int], now: dict[str, int]) -> str:
    rows = [(name, base.get(name, 0), now.get(name, 0)) for name in sorted(base.keys() | now.keys())]
    rows.append(("total", sum(base.values()), sum(now.values())))
    width = max(len(name) for name, *_ in rows)
    lines = [f"{title:<{width}}  {'base':>8}  {'now':>8}  {'difference':>10}"]
    lines += [f"{name:<{width}}  {before:>8,}  {after:>8,}  {after - before:>+10,}" for name, before, after in rows]
    return "\n".join(lines)


def main(arguments: list[str]) -> int:
    """Print the tables; return the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--base", default=BASE, metavar="COMMIT", help=f"the commit to compare with ({BASE})")
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args(arguments)
    base, now = counted(commit_files(options.base)), counted(tree_files())
    if options.json:
        json.dump({"commit": options.base, "base": base, "now": now}, sys.stdout, indent=1, sort_keys=True)
        sys.stdout.write("\n")
        return 0

    def totals(counts: Counts) -> dict[str, int]:
        return {name: each.total() for name, each in counts.items()}

    sys.stdout.write(
        f"Code lines without blanks, comments and docstrings; the base is {options.base}.\n\n"
        f"{_table('part', totals(base), totals(now))}\n\n"
        f"{_table('language', _by_language(base), _by_language(now))}\n"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
