"""The text of a file: its encoding, its lines, and where a node of its tree is in it.

A file is decoded as Python itself would, edited as text, and encoded again the same way; a file that would not come
back byte for byte is not touched.

Made by `engine`, `notebook` and `scan`; tests/port/test_port_engine.py has the encodings.
"""

from __future__ import annotations

import ast
import codecs
import io
import re
import tokenize
import warnings
from functools import cached_property

__all__ = ["Source", "UnreadableError"]

_LINE_END = re.compile(r"\r\n|\r|\n")
_PYTHON_2 = re.compile(
    r"Missing parentheses in call to '(?:print|exec)'|multiple exception types must be parenthesized"
    r"|leading zeros in decimal integer|invalid decimal literal"
)


class UnreadableError(Exception):
    """A file cannot be read as Python. The text is the reason, without a full stop."""


class Source:
    """The text of a Python file.

    Args:
        data: the bytes of the file.

    Raises:
        UnreadableError: its encoding is unknown, its bytes are not of that encoding, or would not come back the same.
    """

    def __init__(self, data: bytes) -> None:
        self.data = data
        self._mark = codecs.BOM_UTF8 if data.startswith(codecs.BOM_UTF8) else b""
        try:
            self.encoding = tokenize.detect_encoding(io.BytesIO(data).readline)[0].removesuffix("-sig")
            self.text = data[len(self._mark) :].decode(self.encoding)
        except (SyntaxError, LookupError) as error:
            raise UnreadableError(f"its encoding cannot be read: {error}") from None
        except UnicodeDecodeError as error:
            raise UnreadableError(f"byte {error.start} is not {error.encoding}") from None
        if self.encode(self.text) != data:
            raise UnreadableError(f"its bytes are not the only way to write its text in {self.encoding}")
        self._ascii = self.text.isascii()

    def encode(self, text: str) -> bytes:
        """Text as bytes of this file's encoding, with its byte order mark.

        Raises:
            UnreadableError: the encoding has no such characters.
        """
        try:
            return self._mark + text.encode(self.encoding)
        except UnicodeEncodeError as error:
            raise UnreadableError(f"{error.object[error.start]!r} cannot be written in {self.encoding}") from None

    @cached_property
    def starts(self) -> list[int]:
        """Return where each line begins in the text. Lines end as Python says: at CR LF, CR or LF, and nowhere else."""
        return [0, *(found.end() for found in _LINE_END.finditer(self.text))]

    @cached_property
    def newline(self) -> str:
        """How lines end here, by the first one."""
        found = _LINE_END.search(self.text)
        return found[0] if found else "\n"

    def line(self, number: int) -> str:
        """The text of a line, counted from 1, with its end."""
        start = self.starts[number - 1]
        return self.text[start : self.starts[number]] if number < len(self.starts) else self.text[start:]

    def offset(self, line: int, column: int) -> int:
        """Offset in the text of a place in the tree, which counts columns in bytes of UTF-8 for any encoding."""
        start = self.starts[line - 1]
        if self._ascii:
            return start + column
        text = self.line(line)
        return start + (column if text.isascii() else len(text.encode()[:column].decode(errors="replace")))

    def span(self, node: ast.AST) -> tuple[int, int]:
        """Return where a node begins and ends in the text."""
        at: ast.expr = node  # type: ignore[assignment]  # all that is asked for has a place
        return self.offset(at.lineno, at.col_offset), self.offset(at.end_lineno or 0, at.end_col_offset or 0)

    def place(self, offset: int) -> tuple[int, int]:
        """Line and column of an offset, both counted from 1, columns in characters."""
        low, high = 0, len(self.starts)
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self.starts[middle] <= offset else (low, middle)
        return low + 1, offset - self.starts[low] + 1

    def parse(self) -> ast.Module:
        """The tree of the text.

        Raises:
            UnreadableError: it is no Python of this version.
        """
        return parse(self.text)

    @cached_property
    def comments(self) -> list[tuple[int, int]]:
        """Return where the comments begin and end."""
        found = []
        # tokenize counts characters, and keeps a lone CR inside a line
        for token in tokenize.generate_tokens(io.StringIO(self.text, newline="").readline):
            if token.type == tokenize.COMMENT:
                start = self.starts[token.start[0] - 1] + token.start[1]
                found.append((start, start + len(token.string)))
        return found

    def has_comment(self, start: int, end: int) -> bool:
        """Return whether a comment begins in this part of the text; if it cannot be tokenised, every # begins one."""
        if "#" not in self.text[start:end]:
            return False
        try:
            return any(start <= at < end for at, _ in self.comments)
        except (tokenize.TokenError, SyntaxError):
            return True


def parse(text: str) -> ast.Module:
    """The tree of a text, without the warnings that the compiler has about it.

    Raises:
        UnreadableError: it is no Python of this version.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return ast.parse(text)
    except SyntaxError as error:
        where = f"line {error.lineno}: {error.msg}" if error.lineno else str(error.msg)
        raise UnreadableError(f"it is Python 2 ({where})" if _PYTHON_2.search(error.msg) else where) from None
    except ValueError as error:
        raise UnreadableError(str(error)) from None
    except (RecursionError, MemoryError):
        raise UnreadableError("it is nested too deeply") from None
