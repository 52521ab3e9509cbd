"""Process points other than decorated functions: UDF classes, model files, and graphs as closures.

For users; `FlowNode.add_process_point` takes them. Each describes its stage as a `StageSpec` (`stage.spec`). Classes,
arguments and the keys of configuration files are those of CANN's dataflow API, but for `Framework.TORCH`. A model file
is looked for when the graph is first fed, not when the point is made. Tests: tests/flow/test_flow_func.py,
tests/flow/test_flow_graph.py, tests/flow/test_flow_decorators.py.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Iterable, Mapping
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any

from toprope.flow.data_type import DType
from toprope.flow.exceptions import FLOW_FUNC_FAILED, DfException, DfTypeError
from toprope.flow.graph.nodes import FlowNode, Plan, unique_name
from toprope.flow.points.python_points import Options
from toprope.flow.points.workspace import check_ports, snake, write
from toprope.flow.registry import msg_type_register
from toprope.flow.stage.spec import StageFunction, StageSpec
from toprope.flow.udf.func_register import FlowFuncInfos, FlowFuncRegister

if TYPE_CHECKING:
    from toprope.flow.flow_graph import FlowGraph
    from toprope.flow.points.closures import GraphClosure, ModelClosure

__all__ = ["FlowGraphProcessPoint", "Framework", "FuncProcessPoint", "GraphProcessPoint", "ProgramPoint"]

_SCALARS = (str, int, float, bool, DType)


class Framework(Enum):
    """Framework of a model file: torch.export or ONNX, or one that is refused."""

    TENSORFLOW = 0
    ONNX = 1
    MINDSPORE = 2
    TORCH = 3
    """A program of torch.export (.pt2). Not in the reference."""


def _pickled(value: Any) -> bytes:
    from toprope.functions.transport.serialization import dumps

    return dumps(value)


class ProgramPoint:
    """A program of torch.export, run on the stage's device.

    Args:
        path: the file.
        options: of the stage.
        functions: with the places of their inputs and outputs; empty for all of the node's.
    """

    def __init__(self, path: Path, options: Options, functions: tuple[StageFunction, ...] = ()) -> None:
        self.path = path
        self._options = options
        self._functions = functions

    def stage_spec(self) -> StageSpec:
        """The stage's specification."""
        from toprope.flow.points.model_files import program_stage

        options = self._options
        hook = _pickled(options.env_hook) if options.env_hook is not None else None
        name = self._functions[0].name if self._functions else "run"
        return StageSpec(
            self.path.stem, "npu", _pickled(functools.partial(program_stage, str(self.path), name)), self._functions,
            options.resources, hook, options.visible_device, str(self.path.parent), b"", options.instances,
            options.batch, options.wait_ns,
        )  # fmt: skip


class GraphProcessPoint:
    """A model file as a stage.

    Args:
        framework: `Framework.ONNX` (needs onnxruntime) or `Framework.TORCH`; also MINDSPORE for a .pt2 file.
        graph_file: the file. It is read when the graph is first fed.
        load_params: for the compiler; only checked.
        compile_config_path: a JSON file with "build_options" and "inputs_tensor_desc"; empty for none.
        name: its name.

    Raises:
        DfException: the framework is none.
    """

    def __init__(
        self, framework: Framework, graph_file: str, load_params: Mapping[str, str] | None = None,
        compile_config_path: str = "", name: str | None = None,
    ) -> None:  # fmt: skip
        if not isinstance(framework, Framework):
            raise DfException(f"framework must be a Framework, got {framework!r}")
        if load_params is not None and not isinstance(load_params, Mapping):
            raise DfException(f"load_params must be a dict, got {type(load_params).__name__}")
        self.framework = framework
        self.graph_file = graph_file
        self.path = Path(graph_file).absolute()
        self.load_params = dict(load_params or {})
        self.compile_config_path = compile_config_path
        self.name = unique_name(name, "GraphProcessPoint")

    def fnode(self, input_num: int, output_num: int, name: str | None = None) -> FlowNode:
        """A node that runs it."""
        node = FlowNode(input_num, output_num, name)
        node.add_process_point(self)
        return node

    def stage_spec(self) -> StageSpec:
        """The stage's specification.

        Raises:
            DfException: the file is not there, its format cannot be run here, or onnxruntime is not installed.
        """
        if self.compile_config_path:
            read_config(self.compile_config_path)
        return StageSpec(self.name, *self.maker())

    def maker(self) -> tuple[str, bytes, tuple[StageFunction, ...]]:
        """Kind, code and functions of its stage. Errors as of `stage_spec`."""
        from toprope.flow.points.model_files import check_onnx, onnx_stage

        if not self.path.is_file():
            raise DfException(f"the model file {self.path} is not there")
        if self.path.suffix == ".pt2" and self.framework in (Framework.TORCH, Framework.MINDSPORE):
            return ProgramPoint(self.path, Options()).stage_spec().kind, self._program(), ()
        if self.framework is Framework.ONNX:
            check_onnx()
            return "python", _pickled(functools.partial(onnx_stage, str(self.path))), ()
        raise DfException(
            f"{self.path.name} is of {self.framework.name}, whose files need CANN: export the model to ONNX, or with "
            "torch.export.save to a .pt2 file and Framework.TORCH"
        )

    def _program(self) -> bytes:
        return ProgramPoint(self.path, Options()).stage_spec().code


class FlowGraphProcessPoint:
    """A graph that a function of a stage runs by `run_flow_model`.

    Args:
        flow_graph: the graph; it is not fed itself.
        compile_config_path: not used.
        name: its name.

    Raises:
        DfException: it is no graph, or was fed before.
    """

    is_graph_of_nodes = True

    def __init__(self, flow_graph: FlowGraph, compile_config_path: str = "", name: str | None = None) -> None:
        from toprope.flow.flow_graph import FlowGraph

        if not isinstance(flow_graph, FlowGraph):
            raise DfException(f"flow_graph must be a FlowGraph, got {type(flow_graph).__name__}")
        if flow_graph.is_running:
            raise DfException(f"the graph {flow_graph.name} was fed: a graph that a stage runs is made beforehand")
        self.flow_graph = flow_graph
        self.compile_config_path = compile_config_path
        self.name = unique_name(name, "FlowGraphProcessPoint")

    @property
    def plan(self) -> Plan:
        """The graph's plan."""
        return self.flow_graph.plan


class FuncProcessPoint:
    """An object with functions that `flow_func.proc_wrapper` decorates.

    Args:
        compile_config_path: a JSON file, of which "running_resources_info" and "visible_device_enable" are used.
            Without py_func it describes functions in C++, which a graph refuses: they cannot be run here.
        name: its name.
        py_func: the object, or its class.
        workspace_dir: the stage's folder; left out ./<Class>_ws.

    Attributes:
        compile_config_path: the JSON file; with py_func the one in the stage's folder.
        is_native: whether the functions are in C++.

    Raises:
        DfTypeError: the path is no text.
        DfException: py_func has no such functions (564000).
        DfValueError: the inputs or the outputs of the functions are not 0, 1, 2, ...
    """

    def __init__(
        self, compile_config_path: str | None = None, name: str | None = None, py_func: Any = None,
        workspace_dir: str | None = None,
    ) -> None:  # fmt: skip
        if compile_config_path is not None and not isinstance(compile_config_path, str | Path):
            raise DfTypeError(f"compile_config_path must be a str, got {compile_config_path!r}")
        if py_func is None and compile_config_path is None:
            raise DfException(
                "a FuncProcessPoint needs py_func, an object or class with functions of dataflow.flow_func"
            )
        self.name = unique_name(name, "FuncProcessPoint")
        self.is_native = py_func is None
        self.compile_config_path = str(compile_config_path) if compile_config_path else ""
        self._params: dict[str, Any] = {}
        self._closures: dict[str, GraphProcessPoint | FlowGraphProcessPoint] = {}
        if py_func is not None:
            self._set_object(py_func, workspace_dir)

    def _set_object(self, py_func: Any, workspace_dir: str | None) -> None:
        from toprope.flow.udf.flow_func import functions_of

        cls = py_func if isinstance(py_func, type) else type(py_func)
        infos = FlowFuncRegister.get_flow_func_infos(cls.__module__, cls.__name__) or FlowFuncInfos()
        made = infos.get_func_object()
        self._object = py_func if made is None else made
        self._functions = functions_of(cls)
        if not self._functions:
            raise DfException(f"{cls.__name__} has no function that proc_wrapper decorates", FLOW_FUNC_FAILED)
        config = read_config(self.compile_config_path) if self.compile_config_path else {}
        self._resources = _resources([*config.get("running_resources_info", []), *infos.get_running_resources_info()])
        self._hook = infos.get_env_hook_func()
        visible = infos.get_visible_device_enable()
        self._is_visible = bool(config.get("visible_device_enable", False) if visible is None else visible)
        self._workspace = Path(workspace_dir or f"{cls.__name__}_ws").absolute()
        ports = check_ports(cls.__name__, self._functions)
        name = snake(cls.__name__)
        self.compile_config_path = str(
            write(self._workspace, name, ports, self._functions, self._resources, self._is_visible)
        )

    def set_init_param(self, attr_name: str, value: Any) -> None:
        """Give a value to the stage's `init_wrapper` function, which reads it by `get_attr_...`.

        Args:
            attr_name: its name.
            value: a text, number, bool or DType, a list of one of them, or a list of lists of ints.

        Raises:
            DfTypeError: it is something else.
        """
        flat = value if isinstance(value, list) else [value]
        if flat and all(isinstance(each, list) for each in flat):
            is_valid = all(type(item) is int for each in flat for item in each)
        else:
            is_valid = all(isinstance(each, _SCALARS) for each in flat) and len({type(each) for each in flat}) <= 1
        if not isinstance(attr_name, str) or not is_valid:
            raise DfTypeError(f"{attr_name!r} cannot be set to {value!r}")
        self._params[attr_name] = value

    def add_invoked_closure(self, graph_key: str, pp: GraphProcessPoint | FlowGraphProcessPoint) -> None:
        """Let the functions run a model or a graph by `run_flow_model(graph_key, ...)`.

        Raises:
            DfException: it is something else, or the key is taken.
        """
        if not isinstance(pp, GraphProcessPoint | FlowGraphProcessPoint):
            raise DfException(f"an invoked closure is a GraphProcessPoint or FlowGraphProcessPoint, got {pp!r}")
        if graph_key in self._closures:
            raise DfException(f"the key {graph_key} is taken")
        self._closures[graph_key] = pp

    def stage_spec(self) -> StageSpec:
        """The stage's specification. Errors as of `GraphProcessPoint.stage_spec`, for closures."""
        from toprope.flow.udf.flow_func import make_stage

        closures = {key: _closure(each) for key, each in self._closures.items()}
        code = functools.partial(make_stage, self._object, self._functions, dict(self._params), closures)
        hook = None if self._hook is None else _pickled(self._hook)
        return StageSpec(
            self.name, "messages", _pickled(code), self._functions, self._resources, hook, self._is_visible,
            str(self._workspace), msg_type_register.pickled(),
        )  # fmt: skip


def _resources(rows: Iterable[Mapping[str, Any]]) -> dict[str, float]:
    """Convert resources of the reference's files: "cpu" becomes "num_cpus", unknown ones are left out."""
    found = {"num_cpus" if row["type"] == "cpu" else row["type"]: row["num"] for row in rows}
    return {name: value for name, value in found.items() if name in ("num_cpus", "memory", "num_npus")}


def _closure(point: GraphProcessPoint | FlowGraphProcessPoint) -> GraphClosure | ModelClosure:
    """Description of a process point that a function may run, for the function's stage.

    Raises:
        DfException: its files cannot be run.
    """
    from toprope.flow.points.closures import GraphClosure, ModelClosure, portable

    if isinstance(point, GraphProcessPoint):
        kind, *_ = point.maker()
        is_onnx = kind == "python" and point.framework is Framework.ONNX
        return ModelClosure(str(point.path), is_onnx)
    return GraphClosure(portable(point.plan), point.flow_graph.run_options())


def read_config(path: str) -> dict[str, Any]:
    """A configuration of a process point.

    Raises:
        DfException: the file cannot be read, or is no JSON object.
    """
    try:
        found = json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise DfException(f"the configuration {path} cannot be read: {error}") from error
    if not isinstance(found, dict):
        raise DfException(f"the configuration {path} must be a JSON object")
    for row in found.get("running_resources_info", []):
        if not isinstance(row, dict) or not isinstance(row.get("type"), str) or type(row.get("num")) is not int:
            raise DfException(f"running_resources_info of {path} must have type and num, got {row!r}")
        if row["num"] < 0:
            raise DfException(f"num in running_resources_info of {path} must be at least 0, got {row['num']}")
    return found
