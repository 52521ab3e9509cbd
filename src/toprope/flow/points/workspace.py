"""Workspace of a stage: its folder `<node>_ws`, and the description in it, with the names of CANN's dataflow API.

Written while a graph is built, by `python_points` and `process_points`, for people and CANN's tools: nothing of toprope
reads it back. The keys of the description and its file's name are fixed by that; a folder that cannot be written to
must stop no graph. Tests: tests/flow/test_flow_decorators.py, tests/flow/test_flow_func.py.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from toprope.flow.exceptions import DfException, DfValueError
from toprope.flow.session import logger
from toprope.flow.stage.spec import StageFunction

__all__ = ["check_ports", "check_resources", "snake", "write"]

_RESOURCES = ("memory", "num_cpus", "num_npus")


def check_resources(resources: Mapping[str, Any] | None) -> dict[str, float]:
    """The resources of a stage.

    Args:
        resources: "memory" (MB), "num_cpus", "num_npus" (1).

    Raises:
        DfTypeError: it is no dict.
        DfException: another name, or a number that cannot be.
    """
    from toprope.flow.exceptions import DfTypeError

    if resources is None:
        return {}
    if not isinstance(resources, dict):
        raise DfTypeError(f"resources must be a dict, got {type(resources).__name__}")
    for name, value in resources.items():
        if name not in _RESOURCES:
            raise DfException(f"resources has {name!r}: it takes {', '.join(_RESOURCES)}")
        if type(value) is not int or value < 0:
            raise DfException(f"{name} in resources must be an int of at least 0, got {value!r}")
        if name == "num_npus" and value != 1:
            raise DfException(f"num_npus in resources must be 1, got {value}")
    return dict(resources)


def check_ports(name: str, functions: Sequence[StageFunction]) -> tuple[int, int]:
    """Number of inputs and outputs of a class.

    Args:
        name: of the class.
        functions: its functions.

    Raises:
        DfValueError: the inputs are not i0, i1, ..., each of one function, or the outputs not o0, o1, ...
    """
    inputs = sorted(index for each in functions for index in each.inputs)
    outputs = sorted({index for each in functions for index in each.outputs})
    for letter, kind, found in (("i", "inputs", inputs), ("o", "outputs", outputs)):
        if found != list(range(len(found))):
            listed = ", ".join(f"{letter}{each}" for each in found)
            once = ", each of one function" if letter == "i" else ""
            raise DfValueError(
                f"the {kind} of {name} must be {letter}0 to {letter}{len(found) - 1}{once}: got {listed}"
            )
    return len(inputs), len(outputs)


def snake(name: str) -> str:
    """A name as files have it: "MyModel" is "my_model"."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name).lower()


def write(
    folder: Path, name: str, ports: tuple[int, int], functions: Sequence[StageFunction], resources: Mapping[str, float],
    visible_device: bool,
) -> Path:  # fmt: skip
    """Describe a stage in its folder, with the reference's names. A folder that cannot be written to is logged.

    Args:
        folder: the stage's folder; it is made.
        name: of the function or class.
        ports: number of inputs and outputs.
        functions, resources, visible_device: see `StageSpec`.

    Returns:
        The file.
    """
    needed = {"cpu": resources.get("num_cpus", 1), "memory": resources.get("memory", 100)}
    needed |= {key: value for key, value in resources.items() if key not in ("num_cpus", "memory")}
    content: dict[str, Any] = {
        "workspace": str(folder), "input_num": ports[0], "output_num": ports[1],
        "func_list": [
            {
                "func_name": each.name, "inputs_index": list(each.inputs), "outputs_index": list(each.outputs),
                "stream_input": each.stream_input,
            }
            for each in functions
        ],
        "running_resources_info": [{"type": key, "num": value} for key, value in needed.items()],
        "heavy_load": True, "visible_device_enable": visible_device,
    }  # fmt: skip
    file = folder / f"func_{snake(name)}.json"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(content, indent=4) + "\n", encoding="utf-8")
    except OSError as error:
        logger.warning("the workspace %s cannot be written: %s", folder, error)
    return file
