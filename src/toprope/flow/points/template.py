"""Template of a class of the UDF interface: a beginning that users fill in.

For users, by the facade's command `python -m dataflow.tools.create_func_ws`. The command, its options, `FuncWsCreator`
and the files' names are those of CANN's dataflow API, without the CMake project; the text of the class is free as long
as it runs as it is. Tests: tests/flow/test_flow_func.py.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from toprope.flow.exceptions import DfException, DfValueError
from toprope.flow.points.workspace import check_ports, snake, write
from toprope.flow.stage.spec import StageFunction
from toprope.flow.udf.func_register import FlowFuncInfos, read_ports

__all__ = ["FuncWsCreator", "command", "main", "source"]


def source(functions: Sequence[tuple[str, Sequence[str]]], name: str) -> str:
    """The text of the class's file.

    Args:
        functions: name, and inputs and outputs such as "i0", of each.
        name: of the class.
    """
    lines = [
        "import dataflow.flow_func as ff",
        "",
        "",
        f"class {name}:",
        "    @ff.init_wrapper()",
        "    def init_flow_func(self, meta_params):",
        "        return ff.FLOW_FUNC_SUCCESS",
    ]
    for function, ports in functions:
        first = next((port[1:] for port in ports if port.startswith("o")), "0")
        lines += [
            "",
            f'    @ff.proc_wrapper("{",".join(ports)}")',
            f"    def {function}(self, run_context, input_flow_msgs):",
            f"        # run_context.set_output({first}, array) sends an output",
            "        return ff.FLOW_FUNC_SUCCESS",
        ]
    return "\n".join(lines) + "\n"


class FuncWsCreator:
    """The folder of a class of functions: its beginning, and a description. No CMake project: nothing is compiled here.

    Args:
        funcs_param: such as "sub:i0:i1:o0", several separated by commas.
        clz_name: name of the class; "" joins the names of the first four functions.
        ws_dir: the folder; "" for the current one.
        flow_func_infos: what the stage needs; None for nothing.

    Raises:
        DfValueError: a name is none, or the inputs or the outputs cannot be.
    """

    def __init__(
        self, funcs_param: str, clz_name: str = "", ws_dir: str = "", flow_func_infos: FlowFuncInfos | None = None
    ) -> None:
        self.ws_dir = Path(ws_dir).absolute()
        listed = [[part.strip() for part in each.split(":")] for each in funcs_param.split(",")]
        for name, *ports in listed:
            if not name.isidentifier() or len(ports) < 2:
                raise DfValueError(f"a function is NAME:i0:...:o0, got {':'.join([name, *ports])!r}")
        self.clz_name = clz_name or "".join(name.title() for name, *_ in listed[:4])
        if not self.clz_name.isidentifier():
            raise DfValueError(f"{self.clz_name!r} is no name of a class")
        self._listed = [(name, ports) for name, *ports in listed]
        try:
            self._functions = [StageFunction(name, *read_ports(",".join(ports))) for name, ports in self._listed]
        except DfException as error:
            raise DfValueError(error.message) from None
        self._ports = check_ports(self.clz_name, self._functions)
        self._infos = flow_func_infos or FlowFuncInfos()

    @property
    def path(self) -> Path:
        """The file of the class."""
        return self.ws_dir / "src_python" / f"func_{snake(self.clz_name)}.py"

    def generate(self) -> None:
        """Write the class, in place of one that was written before, and the description.

        Raises:
            OSError: the class cannot be written.
        """
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.write_text(source(self._listed, self.clz_name), encoding="utf-8")
        rows = self._infos.get_running_resources_info()
        resources = {"num_cpus" if each["type"] == "cpu" else each["type"]: each["num"] for each in rows}
        write(
            self.ws_dir, self.clz_name, self._ports, self._functions, resources,
            bool(self._infos.get_visible_device_enable()),
        )  # fmt: skip

    def get_config_file(self) -> str:
        """The description's file."""
        return str(self.ws_dir / f"func_{snake(self.clz_name)}.json")


def main(arguments: Sequence[str] | None = None) -> int:
    """Create the folder after asking; 1 where the answer is no.

    Args:
        arguments: of the command line; None for this process's.

    Raises:
        DfValueError: a function or a name that cannot be.
    """
    parser = argparse.ArgumentParser(prog="create_func_ws", description="Begin a class of functions for a graph.")
    parser.add_argument("-f", "--functions", required=True, help="such as sub:i0:i1:o0, several separated by commas")
    parser.add_argument("-w", "--workspace", default="", help="folder to write to, left out the current one")
    parser.add_argument("-c", "--clz_name", default="", help="name of the class, left out those of the functions")
    given = parser.parse_args(arguments)
    creator = FuncWsCreator(given.functions, given.clz_name, given.workspace)
    if input(f"write {creator.path}? [y/yes] ").strip().lower() not in ("y", "yes"):
        return 1
    creator.generate()
    return 0


def command() -> int:
    """The command line: `main`, whose errors are one line. Returns the exit status."""
    try:
        return main()
    except DfException as error:
        sys.stderr.write(f"create_func_ws: error: {error.message}\n")
        return 2
