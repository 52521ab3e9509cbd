"""The rules' pages of the documentation, made from the rules: `python -m toprope.port.pages docs/port`.

A rule's examples are its tests, so that what a page shows is what happens.

Run by hand after a change of a rule; tests/port/test_port_docs.py fails until then.
"""

from __future__ import annotations

import sys
import tomllib
from functools import cache
from pathlib import Path
from typing import Any

from toprope.port.registry import all_rules, families
from toprope.port.rule import Example, Kind, Rule

__all__ = ["advice", "index", "main", "page", "pages"]

_KINDS = {
    Kind.PRESERVING: "P: the same on CUDA, and it works elsewhere",
    Kind.REVIEW: "R: look at it; numerics, speed or the branch taken may change off CUDA",
    Kind.NOT_CONVERTIBLE: "N: reported with advice, never rewritten",
}
_HINT = "A hint: advice on code that is not CUDA's. It is listed and counted apart, and `--check` does not fail for it."
_LANGUAGES = {
    "TR106": "text", "TR106a": "text", "TR107": "dockerfile", "TR108": "sh", "TR108a": "sh", "TR108b": "sh",
    "TR108c": "sh",
    "TR110": "markdown",
    "TR109": "text", "TR110a": "yaml", "TR120": "cpp", "TR120a": "cpp",
}  # fmt: skip


def page(rule: Rule) -> str:
    """The page of one rule."""
    comment = "//" if _LANGUAGES.get(rule.code) == "cpp" else "#"
    parts = [
        f"# {rule.code}: {_plain(rule.title)}",
        _HINT if rule.hint else f"{_KINDS[rule.kind]}.",
        rule.why,
        f"Known from: {rule.source}." if rule.source else "",
        *(_example(rule, example) for example in rule.examples),
        *_advice(rule),
        f"`{comment} toprope: ignore[{rule.code}]` at the end of a line leaves it as it is; [more](../port.md).",
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


@cache
def advice() -> dict[str, dict[str, Any]]:
    """Advice by the rules' codes: what to do (`do`), when the rule is wrong (`wrong`), and its `keywords`."""
    return tomllib.loads(Path(__file__).with_name("advice.toml").read_text(encoding="utf-8"))


def _advice(rule: Rule) -> list[str]:
    """The sections that a reader of a report looks for."""
    found = advice()[rule.code]
    return [
        f"## What to do\n\n{found['do']}",
        f"## When the rule is wrong\n\n{found['wrong']}",
        "Keywords: " + ", ".join(f"`{each}`" for each in found["keywords"]) + ".",
    ]


def _example(rule: Rule, example: Example) -> str:
    if not example.reported:
        return f"Left alone:\n\n{_fenced(rule, example.before)}"
    if example.after is None:
        return f"Reported:\n\n{_fenced(rule, example.before)}"
    return f"Before:\n\n{_fenced(rule, example.before)}\n\nAfter:\n\n{_fenced(rule, example.after)}"


def _fenced(rule: Rule, text: str) -> str:
    fence = "~~~~" if "```" in text else "```"
    return f"{fence}{_LANGUAGES.get(rule.code, 'python')}\n{text.rstrip()}\n{fence}"


def _plain(text: str) -> str:
    """A line of text that Markdown takes as it is."""
    for each in ("\\", "`", "*", "_", "[", "]", "<", ">", "|"):
        text = text.replace(each, f"\\{each}")
    return text


def index() -> str:
    """The table of all rules."""
    titles = {family.name: family.title for family in families()} | {
        "files": "Files that are not Python", "trace": "What a run shows",
    }  # fmt: skip
    lines = [
        "# Rules of toprope port",
        "",
        "Made by `python -m toprope.port.pages docs/port` from the rules themselves. "
        "What P, R and N mean, and how to leave a place alone: [toprope port](../port.md).",
    ]
    for name, title in titles.items():
        lines += ["", f"## {_plain(title)}", "", "| rule | class | pattern |", "| --- | --- | --- |"]
        lines += [
            f"| [{rule.code}]({rule.code}.md) | {rule.label} | {_plain(rule.title)} |"
            for rule in all_rules().values()
            if rule.family == name
        ]
    return "\n".join(lines) + "\n"


def pages() -> dict[str, str]:
    """Every page by its file's name."""
    return {"index.md": index()} | {f"{code}.md": page(rule) for code, rule in all_rules().items()}


def main(folder: Path) -> None:
    """Write all pages into a folder, and remove those of rules that are gone."""
    folder.mkdir(parents=True, exist_ok=True)
    wanted = pages()
    for old in folder.glob("*.md"):
        if old.name not in wanted:
            old.unlink()
    for name, text in wanted.items():
        (folder / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
