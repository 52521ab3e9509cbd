"""Helper of the dataflow API: writes a template of a deploy file.

For users, under CANN's name (`dataflow.utils`); the format is in `graph.deploy_file`. Tests:
tests/flow/test_flow_graph.py.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from toprope.flow.graph.deploy_file import template

if TYPE_CHECKING:
    from toprope.flow.flow_graph import FlowGraph

__all__ = ["generate_deploy_template"]


def generate_deploy_template(graph: FlowGraph, file_path: str) -> None:
    """Write a deploy file that names each stage of a graph and puts it on card 0.

    Raises:
        DfException: it is no graph.
        OSError: the file cannot be written.
    """
    from toprope.flow.exceptions import DfException
    from toprope.flow.flow_graph import FlowGraph

    if not isinstance(graph, FlowGraph):
        raise DfException(f"generate_deploy_template takes a FlowGraph, got {type(graph).__name__}")
    Path(file_path).write_text(template(node.deploy_name for node in graph.plan.nodes), encoding="utf-8")
