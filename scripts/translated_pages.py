"""Keep the blocks of code in translated pages the same as in the English ones.

    python scripts/translated_pages.py            fail if a page differs from its English page
    python scripts/translated_pages.py --update   copy the blocks of the English pages

A page NAME.zh.md is the Chinese NAME.md next to it: the same headings, links and blocks in the same order. Comments in
blocks may be translated.

tests/project/test_pages.py fails where they differ.
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path

from words import prose

ROOT = Path(__file__).resolve().parent.parent
PAGES = sorted((ROOT / "docs").rglob("*.zh.md"))
BLOCK = re.compile(r"(?:^<!-- [^\n]* -->\n)?^```.*?^```$", re.MULTILINE | re.DOTALL)


def english(page: Path) -> Path:
    """The English page of a translated one."""
    return page.with_name(page.name.replace(".zh.md", ".md"))


def outline(page: Path) -> tuple[list[str], list[str], list[str]]:
    """Levels of headings, blocks of code without their comments, and links without their language."""
    text = page.read_text(encoding="utf-8")
    blocks = [re.sub(r"[ \t]*(?<!\S)#[^\n]*", "", block) for block in BLOCK.findall(text)]
    links = re.findall(r"\]\(([^)\s]+)\)", prose(text))
    return (
        re.findall(r"^#+ ", prose(text), re.MULTILINE),
        blocks,
        sorted(link.replace(".zh.md", ".md") for link in links),
    )


def faults(page: Path) -> list[str]:
    """Differences between a translated page and the English one."""
    name, pairs = page.relative_to(ROOT), zip(outline(page), outline(english(page)), strict=True)
    return [
        f"{name}: other {what} than in the English page"
        for what, (mine, theirs) in zip(("headings", "blocks of code", "links"), pairs, strict=True)
        if mine != theirs
    ]


def update(page: Path) -> str:
    """A translated page with the blocks of the English one.

    Raises:
        ValueError: they have not the same number of blocks.
    """
    text, blocks = page.read_text(encoding="utf-8"), BLOCK.findall(english(page).read_text(encoding="utf-8"))
    if len(BLOCK.findall(text)) != len(blocks):
        raise ValueError(f"{page.relative_to(ROOT)} has not the {len(blocks)} blocks of its English page")
    following = iter(blocks)
    return BLOCK.sub(lambda _: next(following), text)


def main() -> int:
    """Compare the pages, or update them."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--update", action="store_true")
    if parser.parse_args().update:
        for page in PAGES:
            page.write_text(update(page), encoding="utf-8")
    wrong = [fault for page in PAGES for fault in faults(page)]
    sys.stdout.write(("\n".join(wrong) or f"{len(PAGES)} pages") + "\n")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
