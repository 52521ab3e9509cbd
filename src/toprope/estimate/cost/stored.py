"""Rates that were fitted on a user's own card: one TOML file for each chip, in the folder of the user's settings.

`toprope calibrate` and `toprope verify --read` write them, rates.py reads them. Users keep these files: a new release
must read the old ones. Keys are the names of figures in rates.toml, and no others are taken. A damaged file never
ends an estimate: the shipped rates are used, and the report says so. Tests: tests/estimate/test_stored_rates.py.
"""

from __future__ import annotations

import tomllib
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from toprope.errors import SettingError, UsageError
from toprope.settings import config_dir
from toprope.whole_file import write_named

__all__ = ["Figures", "StoredRates", "forget", "place", "read", "stored_for", "write"]

Figures = dict[str, float | list[float]]

_HEAD = """\
# How fast one card does what operators cost, fitted to what was measured on it. `toprope calibrate` and
# `toprope verify --read` write this file; `toprope calibrate --forget --chip {chip}` removes it from the settings.
# The figures take the place of those of the same names in toprope/estimate/cost/rates.toml; [rows] says how many
# measurements are behind each.
"""


@dataclass(frozen=True)
class StoredRates:
    """Figures of one card.

    Attributes:
        chip: name of the chip.
        date: day of the fit, as YYYY-MM-DD.
        origin: name of the file with the measurements.
        figures: by their place in rates.toml: {"products.attained": 0.83}.
        rows: measurements behind each figure.
    """

    chip: str
    date: str
    origin: str
    figures: Figures
    rows: dict[str, int] = field(default_factory=dict)

    @property
    def basis(self) -> str:
        """Basis of a time that these figures give."""
        return f"measured on your card ({self.origin}, {self.date})"

    def into(self, table: dict[str, Any]) -> dict[str, Any]:
        """The table of rates with these figures in it."""
        made = deepcopy(table)
        for name, value in self.figures.items():
            section, _, key = name.partition(".")
            made[section][key] = value
        return made

    @property
    def text(self) -> str:
        """The file's text."""
        lines = [_HEAD.format(chip=self.chip)]
        lines += [f"{name} = {_quoted(getattr(self, name))}\n" for name in ("chip", "date", "origin")]
        for title, rows in (("figures", self.figures), ("rows", self.rows)):
            lines.append(f"\n[{title}]\n")
            lines += [f'"{name}" = {_number(value)}\n' for name, value in sorted(rows.items())]
        return "".join(lines)


def _quoted(text: str) -> str:
    kept = "".join(each if each.isprintable() else "?" for each in text)
    return '"' + kept.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _number(value: float | list[float]) -> str:
    if isinstance(value, list):
        return f"[{', '.join(map(_number, value))}]"
    return str(value) if isinstance(value, int) else repr(float(f"{value:.5g}"))


def place(chip: str) -> Path:
    """The file of a chip's stored rates.

    Raises:
        SettingError: there is no home folder.
    """
    return config_dir() / "rates" / f"{chip}.toml"


def read(path: Path, tables: dict[str, Any]) -> StoredRates:
    """Read a file of rates.

    Args:
        path: the file.
        tables: the sections of rates.toml, which alone may be in it.

    Raises:
        UsageError: it cannot be read, or holds something else.
    """
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
        found = StoredRates(
            str(data["chip"]), str(data["date"]), str(data["origin"]),
            {str(name): _checked(name, value, tables) for name, value in data["figures"].items()},
            {str(name): int(value) for name, value in data.get("rows", {}).items()},
        )  # fmt: skip
    except (
        OSError,
        UnicodeDecodeError,
        tomllib.TOMLDecodeError,
        LookupError,
        TypeError,
        ValueError,
        AttributeError,
    ) as error:
        raise UsageError(
            f"{path} holds no rates of a card.",
            looked_at=f"{type(error).__name__}: {error}",
            do="give a file that `toprope calibrate` wrote; `toprope calibrate --forget` removes a stored one",
        ) from None
    return found


def _checked(name: str, value: Any, tables: dict[str, Any]) -> float | list[float]:
    section, _, key = str(name).partition(".")
    if not key or section not in tables or (section not in ("vector", "start") and key not in tables[section]):
        raise ValueError(f"no figure {name!r}")
    made = [float(each) for each in (value if isinstance(value, list) else [value])]
    if not all(0 < each < 1e15 for each in made) or isinstance(value, list) != isinstance(
        tables[section].get(key), list
    ):
        raise ValueError(f"{name} is {value!r}")
    return made if isinstance(value, list) else made[0]


def stored_for(chip: str, tables: dict[str, Any]) -> tuple[StoredRates | None, str]:
    """The stored rates of a chip, and why those that are there are not used; None and "" where none are stored."""
    try:
        path = place(chip)
        if not path.is_file():
            return None, ""
        found = read(path, tables)
    except SettingError:
        return None, ""  # no home folder, so nothing is stored
    except UsageError as error:
        return None, f"{path} is damaged ({error.looked_at}); remove it: toprope calibrate --forget --chip {chip}"
    if found.chip != chip:
        return None, f"{path} has the rates of the {found.chip}; remove it: toprope calibrate --forget --chip {chip}"
    return found, ""


def write(rates: StoredRates, path: Path | None = None) -> Path:
    """Write rates to a file, or to the place where estimates for this chip find them.

    Raises:
        UsageError: the file cannot be written.
        SettingError: there is no home folder.
    """
    target = place(rates.chip) if path is None else path
    advice = "name a file in a folder that is yours: --output FILE"
    if path is None:
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UsageError(f"{target} cannot be written: {error.strerror}.", do=advice) from None
    write_named(target, rates.text, advice)
    return target


def forget(chip: str) -> Path | None:
    """Remove the stored rates of a chip; the file that was removed, None where there was none.

    Raises:
        UsageError: the file cannot be removed.
        SettingError: there is no home folder.
    """
    path = place(chip)
    try:
        path.unlink()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise UsageError(f"{path} cannot be removed: {error.strerror}.", do="remove it by hand") from None
    return path
