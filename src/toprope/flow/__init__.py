"""Dataflow pipelines whose data stays on the device, with the names and the meaning of CANN's dataflow API.

Example:
    from toprope import flow as df

    @df.npu_model()
    def normalise(image):
        return (image - 0.5) / 0.5

    df.init({})
    data = df.FlowData()
    graph = df.FlowGraph([normalise.fnode()(data)])
    graph.feed({data: image})
    (result,), code = graph.fetch()
    df.finalize()

The names are those of CANN's Python package `dataflow`, which is "the reference" in this package and in docs/flow.md.
Tests: tests/base/test_import.py.
"""

from toprope.flow import exports
from toprope.flow.exports import *  # noqa: F403 - fifty names, listed there

__all__: list[str] = []
__all__ += exports.__all__
