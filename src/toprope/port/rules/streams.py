"""Rules TR046 to TR050: streams, events and graphs.

Found by `port.registry`. The examples of a rule are its test (tests/port/test_port_rules.py), and make its page.
Codes are public and stay.
"""

from __future__ import annotations

import ast

from toprope.port.family import Family
from toprope.port.file import File
from toprope.port.rule import Example, Kind

__all__ = ["FAMILY"]

FAMILY = Family("streams", "Streams, events and graphs", words=[b"cuda", b"record_stream"])

EVENT = FAMILY.rule(
    "TR046",
    Kind.REVIEW,
    "torch.cuda.Event(...): an event of the device in use",
    why="""On the CPU work is done when a call returns; the event used instead takes the time of record(), so that
    elapsed_time() is the wall-clock time between two of them.""",
    source="tried: torch.Event of the CPU has no time",
    examples=[
        Example(
            """
            import torch

            start = torch.cuda.Event(enable_timing=True)
            start.record()
            """,
            """
            import torch
            from toprope.device import portable

            start = portable.Event(enable_timing=True)
            start.record()
            """,
        ),
        Example(
            """
            import torch

            def wait(event: torch.cuda.Event | None = None) -> None: ...

            class Named(torch.cuda.Event): ...
            """,
            """
            import torch
            from toprope.device import portable

            def wait(event: portable.Event | None = None) -> None: ...

            class Named(portable.Event): ...
            """,
        ),
    ],
)
FAMILY.drop_in(EVENT, ["Event"])
FAMILY.drop_in(EVENT, ["Event"], below="torch.cuda.streams")

NUMBER = FAMILY.rule(
    "TR047a",
    Kind.NOT_CONVERTIBLE,
    "torch.cuda.current_stream().cuda_stream: the address of a stream of CUDA",
    why="""Libraries of CUDA (cupy, Triton's launchers, ctypes) are given it. A stream of another device has no such
    attribute; torch_npu's has npu_stream, for libraries of NPUs.""",
    source="torch.cuda.Stream; torch_npu.npu.Stream",
    examples=[
        Example("launch(x.data_ptr(), stream.cuda_stream)"),
        Example("event.cuda_event"),
    ],
)


@FAMILY.attribute("cuda_stream", "cuda_event")
def _address(file: File, node: ast.Attribute) -> bool:
    if isinstance(node.ctx, ast.Load) and file.dotted(node) is None:
        file.report(NUMBER, node)
    return False


STREAM = FAMILY.rule(
    "TR047",
    Kind.REVIEW,
    "torch.cuda.Stream(), current_stream(), default_stream(): a stream of the device in use",
    why="""An accelerator overlaps the work of streams, the CPU does one thing after the other: the results are the
    same, the time is not. In annotations, isinstance and derived classes, too, the class is the device's own.""",
    source="torch.Stream; tried on CPU and simulated card",
    examples=[
        Example(
            """
            import torch

            side = torch.cuda.Stream()
            side.wait_stream(torch.cuda.current_stream())
            """,
            """
            import torch
            from toprope.device import portable

            side = portable.Stream()
            side.wait_stream(portable.current_stream())
            """,
        ),
        Example(
            """
            import torch

            def run(stream: torch.cuda.Stream | None) -> bool:
                return isinstance(stream, torch.cuda.Stream)
            """,
            """
            import torch
            from toprope.device import portable

            def run(stream: portable.Stream | None) -> bool:
                return isinstance(stream, portable.Stream)
            """,
        ),
    ],
)
FAMILY.drop_in(STREAM, ("Stream", "current_stream", "default_stream"))
FAMILY.drop_in(STREAM, ["Stream"], below="torch.cuda.streams")

BLOCK = FAMILY.rule(
    "TR048",
    Kind.REVIEW,
    "with torch.cuda.stream(s): a block whose work goes to a stream of the device in use",
    why="""torch.cuda.stream knows CUDA's streams alone. On the CPU the block runs as it is.""",
    source="torch.cuda.stream; tried",
    examples=[
        Example(
            """
            import torch

            with torch.cuda.stream(side):
                work()
            """,
            """
            import torch
            from toprope.device import portable

            with portable.stream(side):
                work()
            """,
        ),
    ],
)
FAMILY.drop_in(BLOCK, ["stream"])

SET_STREAM = FAMILY.rule(
    "TR048a",
    Kind.NOT_CONVERTIBLE,
    "torch.cuda.set_stream, StreamContext, ExternalStream: CUDA's own",
    why="""What they take or give belongs to CUDA's runtime. `with portable.stream(s):` does what set_stream does, for a
    block.""",
    source="torch/cuda/streams.py",
    examples=[
        Example(
            """
            import torch

            torch.cuda.set_stream(side)
            """
        ),
    ],
)


@FAMILY.reference("torch.cuda.set_stream", "torch.cuda.StreamContext", "torch.cuda.ExternalStream")
def _set_stream(file: File, node: ast.expr) -> bool:
    file.report(SET_STREAM, node)
    return True


RECORD = FAMILY.rule(
    "TR049",
    Kind.REVIEW,
    "x.record_stream(s): only where the tensor is on an accelerator",
    why="""It keeps the allocator from handing memory out again that a stream still reads. A tensor of the CPU has no
    such thing and raises NotImplementedError. A class of the program may have a record_stream of its own: the runtime's
    function calls it. Arguments that are handed on with a star are left.""",
    source="tried: record_stream of a CPU tensor raises",
    examples=[
        Example(
            """
            import torch

            batch.record_stream(torch.cuda.current_stream())
            """,
            """
            import torch
            from toprope.device import portable

            portable.record_stream(batch, portable.current_stream())
            """,
        ),
        Example(
            """
            recorder.record_stream(video, rate=30)
            """,
            reported=False,
        ),
        Example(
            """
            class Nested:
                def record_stream(self, *arguments):
                    self.tensors.record_stream(*arguments)
            """
        ),
    ],
)


@FAMILY.method("record_stream")
def _record(file: File, node: ast.Call) -> bool:
    assert isinstance(node.func, ast.Attribute)
    if any(isinstance(each, ast.Starred) for each in node.args) or any(each.arg is None for each in node.keywords):
        file.report(RECORD, node, held_back="its arguments are not known here")
        return False
    if len(node.args) != 1 or node.keywords:
        return False
    edits = file.replace(node, file.portable("record_stream"), "(", node.func.value, ", ", node.args[0], ")")
    file.report(RECORD, node, edits=edits)
    return False


GRAPH = FAMILY.rule(
    "TR050",
    Kind.NOT_CONVERTIBLE,
    "torch.cuda.CUDAGraph, torch.cuda.graph and what belongs to them",
    why="""Capturing launches is done by each vendor in its own way (torch.npu.NPUGraph and torch.npu.graph for NPUs).
    Run the code eagerly where the device is another one: `if torch.version.cuda and torch.cuda.is_available():`.""",
    source="torch/cuda/graphs.py; torch_npu's npu/graphs.py",
    examples=[
        Example(
            """
            import torch

            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                out = model(x)
            """
        ),
    ],
)


@FAMILY.reference(
    "torch.cuda.CUDAGraph", "torch.cuda.graph", "torch.cuda.make_graphed_callables", "torch.cuda.graph_pool_handle",
    "torch.cuda.is_current_stream_capturing", "torch.cuda.graphs", "torch.cuda.graphs.*",
)  # fmt: skip
def _graph(file: File, node: ast.expr) -> bool:
    file.report(GRAPH, node)
    return True
