"""Writes the beginning of a class whose functions see messages."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from toprope.flow.workspace import snake

__all__ = ["main", "source"]

_PORT = re.compile(r"[io]\d+")


def source(functions: Sequence[tuple[str, Sequence[str]]], name: str) -> str:
    """The text of the class.

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
        lines += [
            "",
            f'    @ff.proc_wrapper("{",".join(ports)}")',
            f"    def {function}(self, run_context, input_flow_msgs):",
            "        # run_context.set_output(0, array) sends an output",
            "        return ff.FLOW_FUNC_SUCCESS",
        ]
    return "\n".join(lines) + "\n"


def main(arguments: Sequence[str]) -> int:
    """The command; it asks before it writes. Returns the exit status."""
    parser = argparse.ArgumentParser(prog="create_func_ws", description="Begin a class of functions for a graph.")
    parser.add_argument("-f", "--functions", required=True, help="such as sub:i0:i1:o0, several separated by commas")
    parser.add_argument("-w", "--workspace", default=".", help="folder to write to")
    parser.add_argument("-c", "--clz_name", default="UserFlowFunc", help="name of the class")
    given = parser.parse_args(arguments)
    functions = [(each.split(":")[0].strip(), each.strip().split(":")[1:]) for each in given.functions.split(",")]
    for name, ports in functions:
        if not name.isidentifier() or not ports or not all(_PORT.fullmatch(port) for port in ports):
            parser.error(f"a function is NAME:i0:...:o0, got {':'.join([name, *ports])!r}")
    if not given.clz_name.isidentifier():
        parser.error(f"{given.clz_name!r} is no name of a class")
    path = Path(given.workspace) / f"{snake(given.clz_name)}.py"
    sys.stdout.write(f"write {path}? [y/yes] ")
    sys.stdout.flush()
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        return 1
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(source(functions, given.clz_name), encoding="utf-8")
    return 0
