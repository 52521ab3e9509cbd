"""`toprope explain`: pages of the documentation, which the package has in its folder `docs`.

Errors, help texts and reports name such pages; src/toprope/docs is a link to docs/, and a wheel has a copy. A page is
found by its file's name in small letters, so no two folders of `_FRONT` may have files of one name. Messages and the
order of the list are free. Tests: tests/cli/test_explain.py, tests/cli/test_language.py (Chinese pages),
tests/cli/test_wrong_use.py.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import PurePath
from typing import Annotated

import typer

from toprope import errors
from toprope.cli.group import HELP, verb
from toprope.errors import TopropeError, UsageError
from toprope.messages import language

__all__ = ["app", "pages"]

app = verb()

_LINK = re.compile(r"\[([^\]]+)\]\((?!\w+:)([^)\s]*\.md)(?:#[\w-]*)?\)")


def _page_names(incomplete: str) -> list[str]:
    """The pages whose names begin so, for the shell; the rules of the port in capitals."""
    names = (name.upper() if _RULE.fullmatch(name) else name for name in sorted(pages()))
    return [name for name in names if name.lower().startswith(incomplete.lower())]


_RULE = re.compile(r"tr\d+[a-z]?")
_FRONT = {"": "index", "tutorials": "tutorials", "api": "api", "errors": "errors", "port": "rules"}
"""Names of the pages index.md, by their folders."""


@app.command(context_settings=HELP)
def explain(
    page: Annotated[
        str | None,
        typer.Argument(
            metavar="[PAGE]",
            autocompletion=_page_names,
            show_default=False,
            help="Its name, as errors name it after `more`, the class of an error, or a rule of toprope port.",
        ),
    ] = None,
) -> None:
    """Print a page of the documentation: what an error means and what to do, how a command works; or list the pages.

    `toprope doctor CODE` explains codes of CANN and torch_npu, `toprope cores explain` those of core limits.
    """
    from toprope.terminal import say

    if page is None:
        say(_list())
        return
    known = pages()
    of_class = {error.__name__.lower(): name for name, error in _errors().items()}
    name = of_class.get(page.lower(), PurePath(page.lower()).stem.removesuffix(".zh"))
    if name not in known:
        raise UsageError(f"there is no page {page!r}.", looked_at=f"{len(known)} pages", do=_advice(page, name, known))
    translated = pages(language()).get(name) if language() != "en" else None
    say(_LINK.sub(_as_command, (translated or known[name]).read_text(encoding="utf-8")))


def _advice(page: str, name: str, known: Collection[str]) -> str:
    from toprope.codes import explain as explain_code

    try:
        explain_code(page)
    except TopropeError:
        pass
    else:
        return f"that is a code of the card, and not a page: toprope doctor {page}"
    near = difflib.get_close_matches(name, known, n=3, cutoff=0.6)
    shown = [each.upper() if _RULE.fullmatch(each) else each for each in near]
    nearest = f"toprope explain {' or '.join(shown)}; " if shown else ""
    return f"{nearest}toprope explain lists all pages, toprope doctor CODE explains a code of the card"


def pages(language: str = "") -> dict[str, Traversable]:
    """The file of every page, by the page's name in small letters.

    Args:
        language: "zh" for the pages that are translated; "" for all pages, in English.
    """
    found = {}
    ending = f".{language}.md" if language else ".md"
    for folder, front in _FRONT.items():
        for file in files("toprope").joinpath("docs", folder).iterdir():
            if file.name.endswith(ending) and file.name.count(".") == ending.count("."):
                name = file.name.removesuffix(ending).lower()
                found[front if name == "index" else name] = file
    return found


def _errors() -> dict[str, type[TopropeError]]:
    """The classes of errors that have a page, by the page's name."""
    classes: list[type[TopropeError]] = [getattr(errors, name) for name in errors.__all__]
    return {each.page: each for each in classes if each.page}


def _as_command(link: re.Match[str]) -> str:
    """A link between pages as the command that shows the other page."""
    text, target = link[1], PurePath(link[2].replace(".zh.md", ".md"))
    name = _FRONT.get(target.parent.name.strip("."), "index") if target.stem == "index" else target.stem
    return f"{text} (toprope explain {name})"


def _list() -> str:
    """Every page with its title, those of errors first; of the rules' pages the list of them alone."""
    titles = {name: (error.__doc__ or "").partition("\n")[0] for name, error in sorted(_errors().items())}
    translated = pages(language()) if language() != "en" else {}
    for name, file in sorted(pages().items()):
        file = translated.get(name, file)
        if name not in titles and not _RULE.fullmatch(name):
            titles[name] = file.read_text(encoding="utf-8").partition("\n")[0].removeprefix("# ")
    width = max(map(len, titles))
    return "".join(f"{name:<{width}}  {title}\n" for name, title in titles.items())
