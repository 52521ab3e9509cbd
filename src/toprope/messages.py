"""Texts for people, in English and in the reader's language.

A text is made in English, as a `Message` that knows its template and values, and translated where it is shown
(`toprope.terminal`). JSON, comparisons and exit statuses therefore never see a translation. The catalogues are .po
files of gettext in the folder `locale`; `scripts/messages.py` collects what they have to translate.

Example:
    >>> text = Message("{number} problems", number=2)
    >>> text, text.translated({"{number} problems": "{number} 个问题"})
    ('2 problems', '2 个问题')

Made in all packages whose text a person reads; a new text needs its translation in locale/zh.po, see
scripts/messages.py, which finds only literals. The form of the catalogues is gettext's. A `Message` must stay a `str`
in every respect: in comparisons, pickles and JSON. Tests: tests/base/test_messages.py, tests/cli/test_language.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from typing import Any

__all__ = ["LANGUAGES", "Message", "catalogue", "joined", "language", "local", "pack", "shown_in", "unpack"]

LANGUAGES = ("en", "zh")
"""Languages of the command line; English needs no catalogue."""


class Message(str):
    """An English text that can be translated: a `str` in all respects. With another text added it stays one.

    Args:
        template: the English text, with fields as of `str.format`. It is the key in the catalogues, so it is a literal.
        values: of the fields. A value that is a Message is translated with it.
    """

    __slots__ = ("_template", "_values")

    _template: str
    _values: Mapping[str, Any]

    def __new__(cls, template: str, /, **values: Any) -> Message:
        """Fill in the fields."""
        made = super().__new__(cls, template.format(**values) if values else template)
        made._template, made._values = template, values
        return made

    def __getnewargs_ex__(self) -> tuple[tuple[str], dict[str, Any]]:
        # for copies: the text alone could be read as a template again
        return (self._template,), dict(self._values)

    def __add__(self, other: str) -> Message:
        return joined("", (self, other))

    def __radd__(self, other: str) -> Message:
        return joined("", (other, self))

    def translated(self, catalogue: Mapping[str, str]) -> str:
        """The text in the language of a catalogue, and in English what that lacks."""
        found = catalogue.get(self._template, self._template)
        if not self._values:
            return found
        return found.format(**{name: _in(catalogue, value) for name, value in self._values.items()})


class _Joined(Message):
    """Texts with a separator between them; the separator is translated too."""

    __slots__ = ()

    def __new__(cls, separator: str, parts: tuple[str, ...]) -> _Joined:
        """Join the parts."""
        made = str.__new__(cls, separator.join(parts))
        made._template, made._values = separator, {"parts": parts}
        return made

    def __getnewargs_ex__(self) -> Any:
        return (self._template, self._values["parts"]), {}

    def translated(self, catalogue: Mapping[str, str]) -> str:
        """The parts in the language of a catalogue, with the separator between them."""
        return catalogue.get(self._template, self._template).join(
            _in(catalogue, part) for part in self._values["parts"]
        )


def pack(text: str) -> object:
    """A text as plain data that keeps what can be translated, for JSON between processes; `unpack` reads it."""
    if isinstance(text, _Joined):
        return {"separator": text._template, "parts": [pack(part) for part in text._values["parts"]]}
    if isinstance(text, Message):
        values = {name: pack(value) if isinstance(value, str) else value for name, value in text._values.items()}
        return {"template": text._template, "values": values}
    return text


def unpack(data: Any) -> str:
    """The text that `pack` was given."""
    if not isinstance(data, dict):
        return str(data)
    if "parts" in data:
        return _Joined(data["separator"], tuple(map(unpack, data["parts"])))
    values = data["values"].items()
    return Message(
        data["template"], **{name: unpack(one) if isinstance(one, str | dict) else one for name, one in values}
    )


def joined(separator: str, parts: Iterable[str]) -> Message:
    """Texts with a separator between them, each translated by itself.

    Args:
        separator: a literal, as of `Message`.
        parts: the texts.
    """
    return _Joined(separator, tuple(parts))


def local(text: str) -> str:
    """The text in the language that texts are shown in; one that is no Message stays as it is."""
    if _language == "en" or not isinstance(text, Message):
        return text
    return text.translated(catalogue(_language))


def _in(catalogue: Mapping[str, str], value: Any) -> Any:
    return value.translated(catalogue) if isinstance(value, Message) else value


_language = "en"


def language() -> str:
    """The language that texts are shown in: English, unless `shown_in` says otherwise."""
    return _language


@contextmanager
def shown_in(name: str) -> Iterator[None]:
    """Show texts in this language, one of LANGUAGES, until the context ends. The command line does so."""
    global _language
    before, _language = _language, name
    try:
        yield
    finally:
        _language = before


@cache
def catalogue(name: str) -> Mapping[str, str]:
    """The translations of a language by their English templates; none for English."""
    if name == "en":
        return {}
    from importlib.resources import files

    return _read(files("toprope").joinpath("locale", f"{name}.po").read_text(encoding="utf-8"))


def _read(text: str) -> dict[str, str]:
    """The entries of a .po file that have a translation. Pure.

    Read are msgid and msgstr, each in one or more quoted lines: the file needs no plural forms and no contexts.
    """
    from ast import literal_eval

    entries: list[dict[str, str]] = []
    field = ""
    for line in text.splitlines():
        word, _, rest = line.partition(" ")
        if word == "msgid":
            entries.append({"msgid": "", "msgstr": ""})
        if word in ("msgid", "msgstr"):
            field, line = word, rest
        if line.startswith('"'):
            entries[-1][field] += literal_eval(line)
    return {one["msgid"]: one["msgstr"] for one in entries if one["msgid"] and one["msgstr"]}
