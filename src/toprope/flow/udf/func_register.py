"""Functions of the UDF interface by the names of their module and class, as `proc_wrapper` registers them.

For users (`FlowFuncRegister`, `FlowFuncInfos`), who may register functions without decorators; `FuncProcessPoint`
reads it. Names and methods are those of CANN's `dataflow.flow_func`, but for `FlowFuncInfos.functions`. One register
for the process. Tests: tests/flow/test_flow_func.py, tests/flow/test_flow_semantics.py.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from toprope.flow.exceptions import DfException
from toprope.flow.stage.spec import StageFunction

__all__ = ["FlowFuncInfos", "FlowFuncRegister", "read_ports"]

_PORT = re.compile(r"([io])(\d+)")


def read_ports(text: str) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Inputs and outputs of a text such as "i0,i1,o0".

    Raises:
        DfException: the text is something else, or names one twice.
    """
    ports: dict[str, list[int]] = {"i": [], "o": []}
    for each in text.split(","):
        match = _PORT.fullmatch(each.strip())
        if match is None:
            raise DfException(f"proc_wrapper takes inputs and outputs such as i0,i1,o0, got {text!r}")
        if int(match[2]) in ports[match[1]]:
            raise DfException(f"proc_wrapper got {each.strip()} twice in {text!r}")
        ports[match[1]].append(int(match[2]))
    return tuple(ports["i"]), tuple(ports["o"])


class FlowFuncInfos:
    """The functions of a class, and what their stage needs."""

    def __init__(self) -> None:
        self._params: dict[str, str] = {}
        self._resources: list[dict[str, Any]] = []
        self._object: Any = None
        self._hook: Callable[[], Any] | None = None
        self._visible: bool | None = None

    def add_func_params(self, func_name: str, func_params: str) -> None:
        """Add a function.

        Args:
            func_name: name of the method.
            func_params: its inputs and outputs: "i0,i1,o0".
        """
        self._params[func_name] = func_params

    def get_all_func_params(self) -> dict[str, str]:
        """Inputs and outputs of each function."""
        return self._params

    def add_running_resources_info(self, type: str, num: int) -> None:
        """Add a resource that the stage needs: "cpu", "memory" (MB) or "num_npus"."""
        self._resources.append({"type": type, "num": num})

    def get_running_resources_info(self) -> list[dict[str, Any]]:
        """Return the resources of the stage."""
        return self._resources

    def set_func_object(self, func_object: Any) -> None:
        """Set the object that runs in the stage, in place of one that is made of the class there."""
        self._object = func_object

    def get_func_object(self) -> Any:
        """The object that runs in the stage; None where the class does."""
        return self._object

    def set_env_hook_func(self, env_hook_func: Callable[[], Any] | None) -> None:
        """Set the function that runs in the stage's process before anything of the user's is unpickled."""
        self._hook = env_hook_func

    def get_env_hook_func(self) -> Callable[[], Any] | None:
        """Return the function that runs in the stage's process first."""
        return self._hook

    def set_visible_device_enable(self, visible_device_enable: bool | None) -> None:
        """Set whether the stage's process is shown only its own card."""
        self._visible = visible_device_enable

    def get_visible_device_enable(self) -> bool | None:
        """Ask whether the stage's process is shown only its own card; None where that was not set."""
        return self._visible

    def functions(self) -> tuple[StageFunction, ...]:
        """The functions. Not in the reference.

        Raises:
            DfException: inputs and outputs of one cannot be read.
        """
        return tuple(StageFunction(name, *read_ports(params)) for name, params in self._params.items())


class FlowFuncRegister:
    """The functions of all classes of this process."""

    _infos: dict[tuple[str, str], FlowFuncInfos] = {}  # noqa: RUF012 - one for the process, as in the reference

    @classmethod
    def register_flow_func(cls, model_name: str, clz_name: str, func_name: str, params: str) -> None:
        """Register a function; `FuncProcessPoint` takes the class then.

        Args:
            model_name: name of the class's module.
            clz_name: name of the class.
            func_name: name of the method.
            params: its inputs and outputs: "i0,i1,o0".
        """
        cls._infos.setdefault((model_name, clz_name), FlowFuncInfos()).add_func_params(func_name, params)

    @classmethod
    def get_flow_func(cls, model_name: str, clz_name: str) -> dict[str, str] | None:
        """Inputs and outputs of each function of a class; None where it has none."""
        infos = cls._infos.get((model_name, clz_name))
        return None if infos is None else infos.get_all_func_params()

    @classmethod
    def register_flow_func_infos(cls, model_name: str, clz_name: str, flow_func_infos: FlowFuncInfos) -> None:
        """Register all functions of a class at once; those that were registered before are forgotten."""
        cls._infos[model_name, clz_name] = flow_func_infos

    @classmethod
    def get_flow_func_infos(cls, model_name: str, clz_name: str) -> FlowFuncInfos | None:
        """The functions of a class and what their stage needs; None where it has none."""
        return cls._infos.get((model_name, clz_name))
