"""Find words that the project avoids, in docstrings, comments, strings and names of src and in the pages.

    python scripts/words.py            fail if a package has more, or fewer, than words_allowed.toml says
    python scripts/words.py --update   lower the numbers of words_allowed.toml to what is there; refuse to raise one
    python scripts/words.py PATH...    list everything in files or folders, allowed or not

The words are those of "How we write" in the architecture notes. Standard English is not reported: "stands for" of an
abbreviation, "stand in for", "told apart", "so many that", "besides". Noun clauses are looked for at the beginning of
docstrings alone ("What the queue holds."). Words of a private vocabulary ("hub", "away") are looked for in the names of
modules and classes alone, where they are a whole part of the name ("EdgeHub", not "github"). Code in pages is skipped.

Part of `make lint`; tests/project/test_words.py holds which uses are standard English. A word is added to the tables
below together with its replacement.
"""

from __future__ import annotations

import argparse
import ast
import io
import re
import sys
import tokenize
import tomllib
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from lines import GRAMMARS, docstrings

ROOT = Path(__file__).resolve().parent.parent
ALLOWED = ROOT / "scripts" / "words_allowed.toml"

# kind: what to find, and what to write instead
TEXT = {
    "anew": (r"anew", "again"),
    "beside": (r"beside", "next to, or in addition to"),
    "heed": (r"(?:un)?heed(?:s|ed|ing|less)?", "follow, or respect"),
    "let-go": (r"(?:(?:is|are|be|been|was|were)\s+)?let(?:s|ting)?\s+go", "released, or release"),
    "mend": (r"mend(?:s|ed|ing)?", "fix"),
    "so-many": (r"so\s+many(?!\s+that\b)", "the number itself, or N"),
    "stands": (r"(?:stands|stood)(?!\s+(?:for|in\s+for)\b)|stand\s+(?:on|at|there|where|next|beside)", "is, or are"),
    "than-what": (r"(?:\w+er|more|less)\s+than\s+what", "a comparison of two named things"),
    "that-of": (r"that\s+of", "the noun again, or the possessive"),
    "told": (r"told(?!\s+apart\b)", "reported, or given"),
    "whoever": (r"who(?:so)?ever", "anyone, or the role: the caller, the user"),
}
PATTERNS = {kind: re.compile(rf"\b(?:{pattern})\b", re.IGNORECASE) for kind, (pattern, _) in TEXT.items()}
CLAUSE = re.compile(r"\W*(What|Whether|Which|Whose|Who|Where|When|Why|How (?:long|many|much|far|often|well))\b")
# Parts of names, and what to write instead.
WORDS = {
    "anew": "again", "beside": "next_to", "heed": "follow", "heeded": "followed", "mend": "fix", "stands": "is",
    "told": "reported", "whoever": "anyone",
}  # fmt: skip
VOCABULARY = {
    "away": "offload", "board": "scheduler", "holding": "what is held", "hub": "connections", "look": "theme",
    "traffic": "dispatcher", "watching": "progress", "zygote": "forkserver",
}  # fmt: skip
# Names that are this word alone; standard as a part of a longer one.
WHOLE = {"page": "what it is: ring_buffer, quantized_tensor", "values": "object_store"}
INSTEAD = {kind: instead for kind, (_, instead) in TEXT.items()} | {
    "clause": "an imperative or a noun phrase: Wake the peer if it sleeps.",
}


@dataclass(frozen=True)
class Hit:
    """One word that is avoided."""

    path: str
    line: int
    kind: str
    word: str
    instead: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.word!r}: write {self.instead}"


def _in_text(text: str, path: str, line: int) -> Iterator[Hit]:
    for kind, pattern in PATTERNS.items():
        for hit in pattern.finditer(text):
            word = " ".join(hit[0].split())
            yield Hit(path, line + text.count("\n", 0, hit.start()), kind, word, INSTEAD[kind])


def _in_name(name: str, path: str, line: int, bad: dict[str, str]) -> Iterator[Hit]:
    for part in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", name):
        if part.lower() in bad:
            yield Hit(path, line, "name", name, bad[part.lower()])


def _in_noun(name: str, path: str, line: int) -> Iterator[Hit]:
    """Hits in the name of a module or class."""
    yield from _in_name(name, path, line, WORDS | VOCABULARY)
    if name.lower() in WHOLE:
        yield Hit(path, line, "name", name, WHOLE[name.lower()])


_TEXT_TOKENS = {tokenize.COMMENT, tokenize.STRING, getattr(tokenize, "FSTRING_MIDDLE", tokenize.STRING)}
_FIELD = re.compile(r"\{[^{}]*\}")


def in_python(source: str, path: str) -> Iterator[Hit]:
    """Hits in the docstrings, comments, strings and names of a Python module."""
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type in _TEXT_TOKENS:
            formatted = token.type == tokenize.STRING and "f" in token.string.partition(token.string[-1])[0].lower()
            # before Python 3.12 the code inside an f-string is a part of its token
            text = _FIELD.sub(lambda hit: re.sub(".", "_", hit[0]), token.string) if formatted else token.string
            yield from _in_text(text, path, token.start[0])
    tree = ast.parse(source)
    for node in docstrings(tree):
        if found := CLAUSE.match(str(node.value)):
            yield Hit(path, node.lineno, "clause", f"{found[1]} ...", INSTEAD["clause"])
    yield from _in_noun(Path(path).stem, path, 1)
    for each in ast.walk(tree):
        if isinstance(each, ast.ClassDef):
            yield from _in_noun(each.name, path, each.lineno)
        elif isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef):
            yield from _in_name(each.name, path, each.lineno, WORDS)


def in_cpp(text: str, path: str) -> Iterator[Hit]:
    """Hits in the comments, strings and names of classes of a C++ file."""
    for each in GRAMMARS["C++"].finditer(text):
        yield from _in_text(each[0], path, text.count("\n", 0, each.start()) + 1)
    code = GRAMMARS["C++"].sub(lambda hit: "\n" * hit[0].count("\n"), text)
    yield from _in_noun(Path(path).stem, path, 1)
    for each in re.finditer(r"\b(?:class|struct)\s+(\w+)\s*(?:final\s*)?[:{]", code):
        yield from _in_noun(each[1], path, code.count("\n", 0, each.start()) + 1)


_CODE = re.compile(r"^[ ]*(```+|~~~+).*?^[ ]*\1[ ]*$|`[^`\n]+`", re.MULTILINE | re.DOTALL)


def prose(page: str) -> str:
    """A page with its code blanked; the lines stay."""
    return _CODE.sub(lambda hit: "\n" * hit[0].count("\n") or "`", page)


def in_page(text: str, path: str) -> Iterator[Hit]:
    """Hits in the prose of a page."""
    yield from _in_text(prose(text), path, 1)


_READERS = {".py": in_python, ".cpp": in_cpp, ".h": in_cpp, ".inl": in_cpp, ".md": in_page}


def hits(paths: Iterable[Path]) -> list[Hit]:
    """Hits in files, and in the files of folders."""
    found: list[Hit] = []
    for path in paths:
        for file in sorted(path.rglob("*")) if path.is_dir() else [path]:
            if file.suffix in _READERS and file.is_file() and not file.is_symlink():  # docs/changelog.md is read once
                name = file.resolve().relative_to(ROOT).as_posix()
                found += sorted(_READERS[file.suffix](file.read_text(encoding="utf-8"), name), key=lambda hit: hit.line)
    return found


def area(path: str) -> str:
    """The table of words_allowed.toml for a file: a package of toprope, toprope for its modules, docs or README."""
    parts = path.split("/")
    if parts[:2] == ["src", "toprope"]:
        return parts[2] if len(parts) > 3 else "toprope"
    return parts[0] if len(parts) > 1 else "README"


Counts = dict[tuple[str, str], int]


def read_allowed(path: Path) -> Counts:
    """Allowed numbers by area and kind."""
    tables = tomllib.loads(path.read_text(encoding="utf-8"))
    return {(name, kind): number for name, table in tables.items() for kind, number in table.items()}


def write_allowed(path: Path, counts: Counts) -> None:
    """Write the allowed numbers, one table for each area."""
    lines = ["# Written by `python scripts/words.py --update`. The numbers only become smaller; 0 is left out."]
    for name in sorted({each for each, _ in counts}):
        lines += ["", f"[{name}]"]
        lines += [f"{kind} = {counts[name, kind]}" for each, kind in sorted(counts) if each == name]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def main(arguments: list[str]) -> int:
    """Check, update or list; return the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("paths", nargs="*", type=Path, metavar="PATH", help="list all hits there")
    parser.add_argument("--update", action="store_true", help="lower the allowed numbers")
    options = parser.parse_args(arguments)
    if options.paths:
        sys.stdout.writelines(f"{hit}\n" for hit in hits(options.paths))
        return 0
    found = hits([ROOT / "src", ROOT / "docs", *sorted(ROOT.glob("[RC]*.md"))])
    counts = Counter((area(hit.path), hit.kind) for hit in found)
    allowed = read_allowed(ALLOWED)
    risen = sorted(key for key in counts if counts[key] > allowed.get(key, 0))
    fallen = sorted(key for key in allowed if counts[key] < allowed[key])
    for name, kind in risen:
        sys.stdout.writelines(f"{hit}\n" for hit in found if (area(hit.path), hit.kind) == (name, kind))
        sys.stdout.write(f"{name}: {kind}: {counts[name, kind]}, allowed are {allowed.get((name, kind), 0)}\n")
    if options.update and not risen:
        write_allowed(ALLOWED, {key: number for key, number in counts.items() if number})
    elif not options.update:
        for name, kind in fallen:
            sys.stdout.write(f"{name}: {kind}: {counts[name, kind]}, allowed are {allowed[name, kind]}\n")
        if fallen:
            sys.stdout.write("do: python scripts/words.py --update, so that the numbers only become smaller\n")
    return 1 if risen or (fallen and not options.update) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
