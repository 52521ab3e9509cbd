"""`CompilerConfig`: how a model is compiled, with torchair's options and its rules about their values.

Programs import it from torchair. The options themselves are data: options.toml. A new option is a row there. Tests:
tests/sim/simulated/test_graph.py.
"""

from __future__ import annotations

import functools
import os
import tomllib
from collections.abc import Mapping
from importlib import resources
from typing import Any

from toprope.sim.npu._state import message

__all__ = ["CompilerConfig", "Option", "Options"]

_ENDS = {ValueError: "ERR03001 GRAPH invalid parameter", FileNotFoundError: "ERR03008 GRAPH resource not found"}
"""How torch_npu ends an error of its graphs, by kind."""

_INTERNAL = "ERR03005 GRAPH internal error"


@functools.cache
def _data() -> dict[str, Any]:
    return tomllib.loads(resources.files("toprope.sim.graph").joinpath("options.toml").read_text(encoding="utf-8"))


class Option:
    """One option; its `value` is text where it is a plain value: "1" and "0" for True and False, as in torchair.

    Args:
        default: the value it has at first.
        one_of: the values it takes; None for any of the kind.
        kind: "integer", "integers", "text", "table", "callable", "file", "folder" or "" for anything.
        least: the smallest integer.
    """

    def __init__(
        self, default: Any = None, one_of: list[Any] | None = None, kind: str = "", least: int | None = None
    ) -> None:
        self.default = default
        self.optional = one_of
        self._kind = kind
        self._least = least
        self._value = default

    def __bool__(self) -> bool:
        return bool(self._value)

    @property
    def value(self) -> Any:
        """The value; setting it checks the new one."""
        if self._kind in ("callable", "table", "integers") or self._value is None:
            return self._value
        return str(int(self._value)) if isinstance(self._value, bool) else str(self._value)

    @value.setter
    def value(self, value: Any) -> None:
        if self.optional is not None and value not in self.optional:
            raise ValueError(f"Value {value!r} (type: {type(value)}) not in optional list {self.optional!r}.")
        check = _CHECKS.get(self._kind)
        if check is not None:
            check(self, value)
        self._value = value

    def _integer(self, value: Any) -> None:
        if not isinstance(value, int):
            raise ValueError(f"Please set integer type, but got {type(value)}")
        if self._least is not None and not self._least <= value < 2**63:
            raise ValueError(f"Please set value in [{self._least}, {2**63 - 1}], {value} is out of range.")

    def _integers(self, value: Any) -> None:
        if value is not None and not (isinstance(value, list | tuple) and all(isinstance(each, int) for each in value)):
            raise TypeError(f"the set value must be None or a list of int, got {value!r}")

    def _text(self, value: Any) -> None:
        if value is not None and not isinstance(value, str):
            raise TypeError(f"value must be str or None, got {type(value)}")

    def _table(self, value: Any) -> None:
        if value is not None and not isinstance(value, dict):
            raise TypeError(f"value must be dict or None, got {type(value)}")

    def _callable(self, value: Any) -> None:
        if value is not None and not callable(value):
            raise TypeError(f"value must be Callable or None, got {type(value)}")

    def _file(self, value: Any) -> None:
        if value is not None and not os.path.isfile(value):
            raise FileNotFoundError(f"Please set legal file path, {value} is not found or is not a file!")

    def _folder(self, value: Any) -> None:
        if value is None or not os.path.isdir(value):
            raise FileNotFoundError(f"Please set legal dir path, {value} is not found or is not a file directory!")


_CHECKS = {
    "integer": Option._integer,
    "integers": Option._integers,
    "text": Option._text,
    "table": Option._table,
    "callable": Option._callable,
    "file": Option._file,
    "folder": Option._folder,
}


class Options:
    """A group of options. `group.name = value` sets one; `group.name.value` reads it back.

    Args:
        place: the place of the group: "" for the whole, "ge_config", "experimental_config.aclgraph".
    """

    def __init__(self, place: str = "") -> None:
        prefix = f"{place}." if place else ""
        members: dict[str, Option | Options] = {}
        for path, rule in _data()["options"].items():
            if path.startswith(prefix):
                name, _, rest = path.removeprefix(prefix).partition(".")
                if name not in members:
                    members[name] = _kind(prefix + name)(prefix + name) if rest else Option(**rule)
        vars(self).update(members)
        vars(self)["_place"] = place

    def __setattr__(self, name: str, value: Any) -> None:
        known = [each for each in vars(self) if each != "_place"]
        try:
            if name not in known:
                label = _data()["classes"][self._place]
                raise ValueError(f"{label} has no option {name}, all options {known}")
            option = vars(self)[name]
            if isinstance(option, Option):
                option.value = value
            elif type(value) is type(option):
                vars(self)[name] = value
            else:
                raise ValueError(f"{name} is a group of options, not a value: {value!r}")
        except (ValueError, TypeError, FileNotFoundError) as error:
            raise type(error)(message(str(error), _ENDS.get(type(error), _INTERNAL))) from None

    def __getattr__(self, name: str) -> Any:
        known = [each for each in vars(self) if each != "_place"]
        label = _data()["classes"].get(vars(self).get("_place"), type(self).__name__)
        raise AttributeError(f"{label!r} object has no attribute {name!r}; all options {known}")

    def items(self) -> dict[str, Any]:
        """Every option's value by its path."""
        found: dict[str, Any] = {}
        for name, each in vars(self).items():
            if isinstance(each, Options):
                found |= {f"{name}.{path}": value for path, value in each.items().items()}
            elif isinstance(each, Option):
                found[name] = each.value
        return found

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and isinstance(other, Options) and self.items() == other.items()

    __hash__ = None  # type: ignore[assignment]


@functools.cache
def _kind(place: str) -> type[Options]:
    """The class of the group of that place, which has torchair's name."""
    return type(_data()["classes"][place], (Options,), {"__doc__": f"The options of `{place}`."})


class CompilerConfig(Options):
    """How a model is compiled.

    Example:
        >>> config = CompilerConfig()
        >>> config.mode = "reduce-overhead"
        >>> config.ge_config.aicore_num = "12|24"
        >>> config.mode.value, config.ge_config.aicore_num.value
        ('reduce-overhead', '12|24')
    """

    def __init__(self) -> None:
        super().__init__()

    def set(self, options: Mapping[str, Any]) -> None:
        """Set options by the names that the backend "npugraph_ex" has for them.

        Raises:
            ValueError: there is no such option, or it does not take the value.
        """
        names = _data()["npugraph_ex"]
        for name, value in options.items():
            if name not in names:
                raise ValueError(f"Invalid option {name!r}, allowed options: {sorted(names)}")
            path = names[name]
            if path.startswith("!"):
                path, value = path[1:], not value
            *groups, last = path.split(".")
            setattr(functools.reduce(getattr, groups, self), last, value)
