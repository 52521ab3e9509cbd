"""The settings of toprope: argument > environment variable > [tool.toprope] in pyproject.toml > default.

Example:
    >>> from toprope.settings import Settings
    >>> settings = Settings.load(device="npu:0", trust_env=False)
    >>> settings.device
    'npu:0'
    >>> settings.origins["device"], settings.origins["log"]
    ('argument', 'default')

Tests: tests/base/test_settings.py. A setting that is added is a field of `Settings` with its text, a row of `_KNOWN`,
and a row of docs/environment.md. The order of the origins is a promise to users. No torch and no third-party library is
imported here: a process that starts reads it first.
"""

# For maintainers: read by all that a user can set: `device`, `sim`, `tiers`, `flow`, `cli`. A setting is a field, a row
# of the table below, and an entry of docs/environment.md (tests/project/test_docs.py).

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, NamedTuple

from toprope.errors import SettingError

__all__ = ["Settings", "config_dir"]

_LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")
_BOOLEANS = {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False, "off": False}
_DEVICE = re.compile(r"[a-z]+(:\d+)?")
_LANGUAGE = re.compile(r"(en|zh|auto)([-_][a-z_.-]+)?")
_VERSION = re.compile(r"[0-9]{1,4}(\.[A-Za-z0-9]+)*")


@dataclass(frozen=True)
class Settings:
    """Settings of toprope, each value with its origin. Made by `Settings.load`."""

    device: str | None = None
    """Device of programs: a kind ("auto", "npu", "sim", "cuda", "cpu"), with or without an index; None: not chosen."""

    sim: str | None = None
    """The simulated card, as text for toprope.sim ("910B3x2,hbm=256MB"); None: there is none."""

    cache_dir: Path = field(default_factory=lambda: _default_cache_dir({})[0])
    """Folder for what can be made again, such as the compiled simulator."""

    log: str = "WARNING"
    """Lowest level that the logger "toprope" lets through: DEBUG, INFO, WARNING, ERROR or CRITICAL; see `apply_log`."""

    fallback: bool = False
    """True if less is acceptable than was asked for (CPU instead of a card); otherwise it is an error."""

    cann: str = "9.0.0"
    """Version of CANN whose rules the simulated card keeps where versions differ, such as "8.5.0"."""

    lang: str = "auto"
    """Language of the command line and of the page of `toprope ui`: "en", "zh", or "auto" for the locale's and the
    browser's."""

    origins: Mapping[str, str] = field(default_factory=dict, compare=False, repr=False)
    """Origin of each value: "argument", "environment variable NAME", a pyproject.toml's path or "default"."""

    @classmethod
    def load(
        cls,
        *,
        device: str | None = None,
        sim: str | None = None,
        cache_dir: str | os.PathLike[str] | None = None,
        log: str | None = None,
        fallback: bool | None = None,
        cann: str | None = None,
        lang: str | None = None,
        trust_env: bool = True,
    ) -> Settings:
        """The settings in force here and now.

        Args:
            device, sim, cache_dir, log, fallback, cann, lang: the fields of the same names; None leaves the choice to
                the others.
            trust_env: False ignores environment variables and pyproject.toml.

        Raises:
            SettingError: a value cannot be read, or [tool.toprope] has a key that toprope does not know.
        """
        arguments = {
            "device": device, "sim": sim, "cache_dir": cache_dir, "log": log, "fallback": fallback, "cann": cann,
            "lang": lang,
        }  # fmt: skip
        environment: Mapping[str, str] = os.environ if trust_env else {}
        file, table = _project_table(_working_directory()) if trust_env else (None, {})
        values: dict[str, Any] = {}
        origins: dict[str, str] = {}
        for name, known in _KNOWN.items():
            text = environment.get(known.variable, "")
            if arguments[name] is not None:
                values[name] = known.read(arguments[name], f"the argument {name}", Path())
                origins[name] = "argument"
            elif text:  # an empty variable counts as unset, as in a shell
                values[name] = known.read(text, known.variable, Path())
                origins[name] = f"environment variable {known.variable}"
            elif name in table and file is not None:
                values[name] = known.read(table[name], f"{name} in [tool.toprope] of {file}", file.parent)
                origins[name] = str(file)
        if "cache_dir" not in values:
            values["cache_dir"], origins["cache_dir"] = _default_cache_dir(environment)
        return cls(**values, origins={name: origins.get(name, "default") for name in _KNOWN})

    def apply_log(self) -> None:
        """Have the logger "toprope" let through what `log` says, to stderr where nothing else listens to it.

        `toprope run` does so in the program's processes. A library has no business with its user's logging otherwise.
        """
        import logging

        logger = logging.getLogger("toprope")
        logger.setLevel(self.log)
        if not logger.hasHandlers():
            handler = logging.StreamHandler()
            handler.setFormatter(logging.Formatter("toprope: %(levelname)s: %(message)s"))
            logger.addHandler(handler)

    def show(self) -> str:
        """One line for each setting: its name, its value and where the value came from."""
        rows = [(each.name, getattr(self, each.name)) for each in fields(self) if each.name != "origins"]
        shown = [(name, _shown(value), self.origins.get(name, "not recorded")) for name, value in rows]
        name_width, value_width = (max(len(row[column]) for row in shown) for column in (0, 1))
        return "\n".join(f"{name:<{name_width}}  {value:<{value_width}}  {origin}" for name, value, origin in shown)


def _shown(value: object) -> str:
    if value is None:
        return "not set"
    return str(value).lower() if isinstance(value, bool) else str(value)


def _malformed(value: object, source: str, wanted: str) -> SettingError:
    return SettingError(f"{value!r} is not {wanted}.", looked_at=source, do=f"give {wanted}, or leave {source} out")


def _read_text(value: object, source: str, _folder: Path) -> str:
    if not isinstance(value, str) or not value.strip():
        raise _malformed(value, source, "a text that is not empty")
    return value.strip()


def _read_device(value: object, source: str, _folder: Path) -> str:
    if not isinstance(value, str) or not _DEVICE.fullmatch(value.strip().lower()):
        raise _malformed(value, source, 'a device such as "npu", "npu:1", "cuda:0" or "cpu"')
    return value.strip().lower()


def _read_folder(value: object, source: str, folder: Path) -> Path:
    """An absolute path; a relative one counts from `folder`, the pyproject.toml's or the working directory."""
    if not isinstance(value, (str, os.PathLike)) or not str(value).strip() or "\0" in str(value):
        raise _malformed(value, source, "a folder's path")
    path = os.path.join(folder, os.path.expanduser(value))
    if os.path.isabs(path):
        return Path(path)
    here = _working_directory()
    if here is None:
        raise _malformed(value, source, "an absolute path (the working directory no longer exists)")
    return here / path


def _read_level(value: object, source: str, _folder: Path) -> str:
    if not isinstance(value, str) or value.strip().upper() not in _LEVELS:
        raise _malformed(value, source, f"a log level ({', '.join(_LEVELS)})")
    return value.strip().upper()


def _read_boolean(value: object, source: str, _folder: Path) -> bool:
    if isinstance(value, bool):
        return value
    if not isinstance(value, str) or value.strip().lower() not in _BOOLEANS:
        raise _malformed(value, source, "a truth value (1, true, yes, on or 0, false, no, off)")
    return _BOOLEANS[value.strip().lower()]


def _read_version(value: object, source: str, _folder: Path) -> str:
    if not isinstance(value, str) or not _VERSION.fullmatch(value.strip()):
        raise _malformed(value, source, 'a version of CANN such as "8.5.0" or "8.2.RC1"')
    return value.strip()


def _read_language(value: object, source: str, _folder: Path) -> str:
    found = _LANGUAGE.fullmatch(value.strip().lower()) if isinstance(value, str) else None
    if found is None:
        raise _malformed(value, source, 'a language: "en", "zh" or "auto"')
    return found[1]


class _Known(NamedTuple):
    variable: str
    read: Callable[[object, str, Path], Any]  # (value, its place, folder that relative paths count from)


_KNOWN = {
    "device": _Known("TOPROPE_DEVICE", _read_device),
    "sim": _Known("TOPROPE_SIM", _read_text),
    "cache_dir": _Known("TOPROPE_CACHE_DIR", _read_folder),
    "log": _Known("TOPROPE_LOG", _read_level),
    "fallback": _Known("TOPROPE_FALLBACK", _read_boolean),
    "cann": _Known("TOPROPE_CANN", _read_version),
    "lang": _Known("TOPROPE_LANG", _read_language),
}

_TABLES = {"port"}
"""Tables in [tool.toprope] that a command reads by itself."""


def _default_cache_dir(environment: Mapping[str, str]) -> tuple[Path, str]:
    """The cache folder that nobody chose, with its origin."""
    return _user_folder(environment, "XDG_CACHE_HOME", ".cache", "the cache", "TOPROPE_CACHE_DIR")


def config_dir() -> Path:
    """The folder of files that a user keeps for toprope, such as rates of a card; it need not exist.

    Raises:
        SettingError: there is no home folder.
    """
    return _user_folder(os.environ, "XDG_CONFIG_HOME", ".config", "files", "XDG_CONFIG_HOME")[0]


def _user_folder(
    environment: Mapping[str, str], variable: str, hidden: str, kept: str, remedy: str
) -> tuple[Path, str]:
    """A folder of the XDG specification, with its origin."""
    base = environment.get(variable, "")
    if os.path.isabs(base):  # the specification: a relative path is to be ignored
        return Path(base, "toprope"), f"environment variable {variable}"
    try:
        home = Path.home()
        if not home.is_absolute() or home == Path(home.root):  # HOME is set to nothing
            raise RuntimeError
        return home / hidden / "toprope", "default"
    except RuntimeError:
        raise SettingError(
            f"there is no home folder to keep {kept} in.",
            looked_at=f"{variable} and HOME",
            do=f"set {remedy} to a folder that can be written",
        ) from None


def _working_directory() -> Path | None:
    try:
        return Path.cwd()
    except FileNotFoundError:  # somebody removed it
        return None


def _project_table(start: Path | None) -> tuple[Path | None, Mapping[str, object]]:
    """The nearest pyproject.toml from `start` upward that has a [tool.toprope], and that table."""
    for folder in [start, *start.parents] if start else []:
        file = folder / "pyproject.toml"
        table = _table_of(file) if os.path.isfile(file) else None
        if table is not None:
            return file, table
    return None, {}


def _table_of(file: Path) -> Mapping[str, object] | None:
    """The table [tool.toprope] of a pyproject.toml; None if it has none."""
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise SettingError(f"{file} cannot be read: {error}.", do="fix the file or its permissions") from None
    if "toprope" not in text:  # spares a foreign project the parser, and us its mistakes
        return None
    import tomllib

    try:
        tool = tomllib.loads(text).get("tool", {})
    except tomllib.TOMLDecodeError as error:
        raise SettingError(f"{file} is not valid TOML: {error}.", do="fix the file") from None
    table = tool.get("toprope") if isinstance(tool, dict) else None
    if table is None:
        return None
    if not isinstance(table, dict):
        raise _malformed(table, f"tool.toprope in {file}", "a table")
    unknown = sorted(set(table) - set(_KNOWN) - _TABLES)
    if unknown:
        raise SettingError(
            f"[tool.toprope] has no setting {', '.join(map(repr, unknown))}.",
            looked_at=str(file),
            do=f"use {', '.join(sorted(_KNOWN))}",
        )
    return table
