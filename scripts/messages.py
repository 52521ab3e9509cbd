"""Collect what the catalogues of src/toprope/locale have to translate.

    python scripts/messages.py            fail if a catalogue lacks a text, or has one that is gone
    python scripts/messages.py --update   add the new texts, without a translation, and remove those that are gone

Texts are the first arguments of `Message` and `joined` in src, the advice on operators (support/operator_advice.toml),
and the help of the command line: sentences of the verbs, of their arguments and options.

Fixed by gettext: the form of .po files (`quoted`, `entry`). Fixed by typer: the texts of `FRAME`.
tests/base/test_messages.py fails where a catalogue is incomplete; then run `--update` and translate the new entries in
locale/zh.po.
"""

from __future__ import annotations

import argparse
import ast
import inspect
import re
import string
import sys
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCES = ROOT / "src" / "toprope"
CATALOGUES = SOURCES / "locale"

FRAME = (
    "Usage: ", "Arguments", "Options", "Commands", "Show this message and exit.", "default: {value}",
    "required",
)  # fmt: skip
"""Texts of the frame of the help, which are typer's (toprope/cli/help_text.py)."""

GRAMMAR = {"s", "are", "falls"}
"""Fields that hold English grammar alone, such as the s of a plural: a translation may leave them out."""


def texts() -> dict[str, str]:
    """Every text with its file, in the order of the catalogues."""
    found: dict[str, str] = {}
    for path in sorted(SOURCES.rglob("*.py")):
        source = path.read_text(encoding="utf-8")
        if "toprope.messages" in source or path.name == "messages.py":
            for text in in_source(ast.parse(source)):
                found.setdefault(text, str(path.relative_to(SOURCES)))
    advice = tomllib.loads((SOURCES / "support" / "operator_advice.toml").read_text(encoding="utf-8"))
    for text in (row["text"] for rows in advice.values() for row in rows):
        found.setdefault(text, "support/operator_advice.toml")
    for text in FRAME:
        found.setdefault(text, "cli/help_text.py")
    for verb, text in of_help():
        found.setdefault(text, f"cli/{verb}.py")
    return found


def in_source(tree: ast.AST) -> Iterator[str]:
    """The texts of a module that have words or marks: literals in `Message` and `joined`.

    Raises:
        ValueError: a call has something else than a literal.
    """
    for node in ast.walk(tree):
        if not (
            isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("Message", "joined")
        ):
            continue
        first = node.args[0] if node.args else None
        if not (isinstance(first, ast.Constant) and isinstance(first.value, str)):
            if isinstance(first, ast.Subscript):  # of data, which `texts` reads by itself
                continue
            raise ValueError(f"line {node.lineno}: {ast.unparse(node)}: the text is no literal")
        if re.search(r"[A-Za-z]{2,}|[.,;:()]", without_fields(first.value)):
            yield first.value


def without_fields(text: str) -> str:
    """A template without its fields."""
    return "".join(literal for literal, *_ in string.Formatter().parse(text)) if "{" in text else text


def fields(text: str) -> set[str]:
    """The fields of a template, with their format: "seconds:.1f"."""
    parsed = string.Formatter().parse(text)
    return {
        name + (f"!{conversion}" if conversion else "") + (f":{form}" if form else "")
        for _, name, form, conversion in parsed
        if name is not None
    }


def of_help() -> Iterator[tuple[str, str]]:
    """The verbs and the texts of their help."""
    from typer.main import get_command

    from toprope.cli.app import VERBS, app

    group = get_command(app)
    for verb, line in VERBS.items():
        yield verb, line
    yield from (("app", text) for text in of_command(group))
    for verb in VERBS:
        yield from ((verb, text) for text in of_command(group.get_command(None, verb)))  # type: ignore[attr-defined]


def of_command(command: object) -> Iterator[str]:
    """The texts of the help of a command and of those below it."""
    if text := getattr(command, "help", None):
        yield inspect.cleandoc(text)
    for parameter in getattr(command, "params", ()):
        if text := getattr(parameter, "help", None):
            yield inspect.cleandoc(text)
    for name, below in getattr(command, "commands", {}).items():
        assert name
        yield from of_command(below)


def entry(text: str, translation: str, file: str) -> str:
    """A text as an entry of a catalogue."""
    return f"#: {file}\nmsgid {quoted(text)}\nmsgstr {quoted(translation)}\n"


def quoted(text: str) -> str:
    """A text as .po files have it, a line of the file for each line."""
    lines = text.split("\n")
    pieces = [line + "\n" for line in lines[:-1]] + lines[-1:]
    escaped = ['"' + one.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"' for one in pieces]
    return escaped[0] if len(escaped) == 1 else '""\n' + "\n".join(escaped)


def faults(wanted: Mapping[str, str], catalogue: Mapping[str, str]) -> list[str]:
    """Reasons why a catalogue is incomplete."""
    found = [f"not translated: {text!r} ({file})" for text, file in wanted.items() if not catalogue.get(text)]
    found += [f"no longer there: {text!r}" for text in catalogue if text not in wanted]
    for text, translation in catalogue.items():
        mine, theirs = (fields(one) if "{" in text and wanted.get(text) else set() for one in (text, translation))
        if translation and (theirs - mine or mine - theirs - GRAMMAR):
            found.append(f"other fields: {text!r} -> {translation!r}")
    return found


HEADER = """# Translation of toprope's texts, one entry each; scripts/messages.py adds and removes entries.
msgid ""
msgstr ""
"Language: {name}\\n"
"Content-Type: text/plain; charset=UTF-8\\n"
"Content-Transfer-Encoding: 8bit\\n"

"""


def main() -> int:
    """Compare the catalogues with the sources, or update them."""
    sys.path.insert(0, str(ROOT / "src"))
    from toprope.messages import LANGUAGES, catalogue

    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--update", action="store_true")
    update = parser.parse_args().update
    wanted = texts()
    wrong = []
    for name in LANGUAGES:
        if name == "en":
            continue
        path = CATALOGUES / f"{name}.po"
        known = catalogue(name) if path.exists() else {}
        if update:
            entries = [entry(text, known.get(text, ""), file) for text, file in wanted.items()]
            path.write_text(HEADER.format(name=name) + "\n".join(entries), encoding="utf-8")
        else:
            wrong += [f"{path.name}: {fault}" for fault in faults(wanted, known)]
    sys.stdout.write(("\n".join(wrong) or f"{len(wanted)} texts") + "\n")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
