"""The table [tool.toprope.port] of pyproject.toml: defaults of the options of `toprope port`.

Called by `cli.port`. A key that is added is documented in docs/port.md; unknown keys are an error. Tests:
tests/port/test_port_folders.py.
"""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from toprope.errors import SettingError

__all__ = ["Config", "read"]


@dataclass(frozen=True)
class Config:
    """Contents of the table.

    Attributes:
        select, ignore: beginnings of codes.
        exclude: globs of files and folders that are left alone, from the file's folder.
        include: globs of folders that are looked at although they look vendored.
        vendor: folder of the vendored file; "" for the folder that is ported; None: ported code needs toprope.
        chip: name of the chip that operators are looked up for.
        torch_npu: release of torch_npu that operators are looked up for.
        file: where the table is; None where there is none.
    """

    select: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    include: tuple[str, ...] = ()
    vendor: str | None = None
    chip: str | None = None
    torch_npu: str | None = None
    file: Path | None = None

    @property
    def folder(self) -> Path:
        """The folder that its globs count from."""
        return Path() if self.file is None else self.file.parent


def read(paths: Sequence[Path]) -> Config:
    """The nearest table, from the first folder that is ported upward.

    Raises:
        SettingError: a pyproject.toml cannot be read, or the table has an unknown key or a value of another kind.
    """
    first = Path(paths[0]).absolute()
    for folder in (first, *first.parents) if first.is_dir() else first.parents:
        file = folder / "pyproject.toml"
        table = _table(file) if file.is_file() else None
        if table is not None:
            return _config(table, file)
    return Config()


def _table(file: Path) -> Mapping[str, Any] | None:
    try:
        text = file.read_text(encoding="utf-8")
        if "toprope" not in text:
            return None
        tool = tomllib.loads(text).get("tool", {})
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise SettingError(f"{file} cannot be read: {error}.", do="correct the file") from None
    toprope = tool.get("toprope") if isinstance(tool, dict) else None
    table = toprope.get("port") if isinstance(toprope, dict) else None
    if table is not None and not isinstance(table, dict):
        raise SettingError(f"tool.toprope.port is no table: {table!r}.", looked_at=str(file), do="write it as a table")
    return table


def _config(table: Mapping[str, Any], file: Path) -> Config:
    values: dict[str, Any] = {}
    for key, value in table.items():
        read_value = _KEYS.get(key)
        if read_value is None:
            near = difflib.get_close_matches(key.replace("-", "_"), _KEYS, 1, 0.5)
            raise SettingError(
                f"[tool.toprope.port] has no key {key!r}.",
                looked_at=f"{file}; the keys are {', '.join(_KEYS)}",
                do=f"write {near[0]}" if near else "leave it out, or use one of these keys",
            )
        values[key] = read_value(key, value, file)
    return Config(**values, file=file)


def _list(key: str, value: object, file: Path) -> tuple[str, ...]:
    if isinstance(value, list) and all(isinstance(each, str) and each.strip() for each in value):
        return tuple(each.strip() for each in value)
    raise _wrong(key, value, file, 'a list of texts, such as ["TR098"]')


def _codes(key: str, value: object, file: Path) -> tuple[str, ...]:
    return tuple(each.upper() for each in _list(key, value, file))


def _text(key: str, value: object, file: Path) -> str:
    if isinstance(value, str) and value.strip():
        return value.strip()
    raise _wrong(key, value, file, "a text")


def _vendor(key: str, value: object, file: Path) -> str | None:
    if isinstance(value, bool):
        return "" if value else None
    if isinstance(value, str) and value.strip():
        return str(file.parent / value.strip())
    raise _wrong(key, value, file, "true, false or a folder")


def _wrong(key: str, value: object, file: Path, wanted: str) -> SettingError:
    return SettingError(
        f"{key} in [tool.toprope.port] is {value!r}.", looked_at=str(file), do=f"give {wanted}, or leave it out"
    )


_KEYS: dict[str, Callable[[str, object, Path], Any]] = {
    "select": _codes,
    "ignore": _codes,
    "exclude": _list,
    "include": _list,
    "vendor": _vendor,
    "chip": _text,
    "torch_npu": _text,
}
