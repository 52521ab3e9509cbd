"""Rules TR089 to TR091: marks for profilers, and torch's profiler.

Found by `port.registry`. The examples of a rule are its test (tests/port/test_port_rules.py), and make its page.
Codes are public and stay.
"""

from __future__ import annotations

import ast
import re

from toprope.port.family import Family
from toprope.port.file import File
from toprope.port.rule import Example, Kind

__all__ = ["FAMILY"]

FAMILY = Family("profiling", "Profilers", words=[b"cuda", b"CUDA", b"nvtx"])

MARKS = FAMILY.rule(
    "TR089",
    Kind.PRESERVING,
    "torch.cuda.nvtx.range_push and its like: marks on CUDA, nothing elsewhere",
    why="""A torch without CUDA raises "NVTX functions not installed". A range as a block is recorded by torch's own
    profiler elsewhere.""",
    source="tried: torch.cuda.nvtx.range_push raises RuntimeError on the CPU",
    examples=[
        Example(
            """
            import torch

            torch.cuda.nvtx.range_push("forward")
            torch.cuda.nvtx.range_pop()
            """,
            """
            import torch
            from toprope.device import portable

            portable.range_push("forward")
            portable.range_pop()
            """,
        ),
        Example(
            """
            import torch.cuda.nvtx as nvtx

            with nvtx.range("step"):
                step()
            """,
            """
            from toprope.device import portable

            with portable.range("step"):
                step()
            """,
        ),
    ],
)
_MARKS = ("range_push", "range_pop", "range", "mark")
FAMILY.drop_in(MARKS, _MARKS, below="torch.cuda.nvtx")

NVTX = FAMILY.rule(
    "TR089a",
    Kind.NOT_CONVERTIBLE,
    "import nvtx: NVIDIA's own package",
    why="""It can be installed without a GPU and does nothing there, but it is one more thing to install. torch's
    record_function marks a block on every device.""",
    source="NVIDIA's nvtx package; torch.profiler.record_function",
    examples=[Example("import nvtx\n\nnvtx.push_range('x')"), Example("from torch.cuda import nvtx", reported=False)],
)


@FAMILY.module("nvtx")
def _nvtx(file: File, node: ast.Import | ast.ImportFrom) -> bool:
    file.report(NVTX, node)
    return False


SWITCH = FAMILY.rule(
    "TR090",
    Kind.REVIEW,
    "torch.cuda.profiler.start() and stop(), cudaProfilerStart: on CUDA alone",
    why="""They begin and end what Nsight records. Other vendors have profilers of their own (torch_npu.profiler), which
    are begun in other ways.""",
    source="torch/cuda/profiler.py",
    examples=[
        Example(
            """
            import torch

            torch.cuda.profiler.start()
            """,
            """
            import torch
            from toprope.device import portable

            portable.profiler_start()
            """,
        ),
        Example(
            """
            import torch

            torch.cuda.cudart().cudaProfilerStart()
            """,
            """
            import torch
            from toprope.device import portable

            portable.profiler_start()
            """,
        ),
    ],
)
FAMILY.drop_in(SWITCH, {"torch.cuda.profiler.start": "profiler_start", "torch.cuda.profiler.stop": "profiler_stop"})
_SWITCHES = {"cudaProfilerStart": "profiler_start", "cudaProfilerStop": "profiler_stop"}


@FAMILY.method(*_SWITCHES)
def _cudart(file: File, node: ast.Call) -> bool:
    assert isinstance(node.func, ast.Attribute)
    runtime = node.func.value
    if not isinstance(runtime, ast.Call) or file.dotted(runtime.func) != "torch.cuda.cudart" or node.args:
        return False
    file.report(SWITCH, node, edits=file.replace(node, f"{file.portable(_SWITCHES[node.func.attr])}()"))
    return True


ACTIVITIES = FAMILY.rule(
    "TR091",
    Kind.REVIEW,
    "activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]: those that can be recorded here",
    why="""A list with CUDA alone stops with an assertion where there is no CUDA, and another card is not recorded.
    The list of the runtime always has the CPU's activities too.""",
    source="tried: profile(activities=[ProfilerActivity.CUDA]) raises on the CPU",
    examples=[
        Example(
            """
            from torch.profiler import profile, ProfilerActivity

            with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as prof:
                model(x)
            """,
            """
            from torch.profiler import profile, ProfilerActivity
            from toprope.device import portable

            with profile(activities=portable.profiler_activities()) as prof:
                model(x)
            """,
        ),
        Example(
            """
            from torch.profiler import profile, ProfilerActivity

            with profile(activities=[ProfilerActivity.CPU]) as prof:
                model(x)
            """,
            reported=False,
        ),
    ],
)
_ACTIVITY = ("torch.profiler.ProfilerActivity", "torch.autograd.ProfilerActivity")


@FAMILY.keyword("activities")
def _activities(file: File, node: ast.keyword) -> bool:
    value = node.value
    if not isinstance(value, ast.List | ast.Tuple | ast.Set) or not value.elts:
        return False
    names = [file.dotted(each) or "" for each in value.elts]
    if not all(name.rpartition(".")[0] in _ACTIVITY for name in names) or not any(n.endswith(".CUDA") for n in names):
        return False
    file.report(ACTIVITIES, value, edits=file.replace(value, f"{file.portable('profiler_activities')}()"))
    for each in value.elts:
        file.done(each)
    return True


@FAMILY.reference(*(f"{name}.CUDA" for name in _ACTIVITY))
def _activity(file: File, node: ast.expr) -> bool:
    file.report(ACTIVITIES, node, "elsewhere portable.profiler_activities() is the list of what can be recorded")
    return True


TIMES = FAMILY.rule(
    "TR091a",
    Kind.REVIEW,
    'sort_by="cuda_time_total", event.self_cuda_time_total: the name that the installed torch has for it',
    why="""The figures of a profile have lost the device's name: "device_time_total" since torch 2.4, where the old
    names are a warning, and are gone some day. Older releases know the old names alone. Attributes of events are read
    by that name too; `cuda_time` and `cuda_memory_usage` only in a file that calls a profiler, since other objects
    may have them.""",
    source="torch/autograd/profiler_util.py",
    examples=[
        Example(
            """
            import torch

            print(prof.key_averages().table(sort_by="self_cuda_time_total", row_limit=10))
            """,
            """
            import torch
            from toprope.device import portable

            print(prof.key_averages().table(sort_by=portable.profiler_key("self_cuda_time_total"), row_limit=10))
            """,
        ),
        Example(
            """
            import torch

            def busy(prof):
                events = prof.key_averages()
                print(events.table("cuda_time_total"))
                return sum(event.self_cuda_time_total for event in events)
            """,
            """
            import torch
            from toprope.device import portable

            def busy(prof):
                events = prof.key_averages()
                print(events.table(portable.profiler_key("cuda_time_total")))
                return sum(getattr(event, portable.profiler_key("self_cuda_time_total")) for event in events)
            """,
        ),
        Example('def show(prof, by="self_cuda_time_total"):\n    print(prof.table(sort_by=by))\n'),
        Example('columns.sort(sort_by="cuda_version")\nprint(self.cuda_time)', reported=False),
    ],
)
_TIMES = {f"{prefix}cuda_{figure}" for prefix in ("", "self_") for figure in ("time_total", "time", "memory_usage")}
_PROFILES = re.compile(r"\bprofiler\b|key_averages|use_cuda=True")


@FAMILY.string(*_TIMES)
def _column(file: File, node: ast.Constant) -> bool:
    around = file.parent(node)
    call = file.parent(around) if isinstance(around, ast.keyword) else around
    if isinstance(call, ast.Call) and file.calls_runtime(call, "profiler_key"):
        return True
    if not str(node.value).endswith("time_total") and not _PROFILES.search(file.source.text):
        return False
    keyed = isinstance(around, ast.keyword) and around.arg == "sort_by"
    if keyed or (isinstance(call, ast.Call) and getattr(call.func, "attr", "") == "table" and call.args[:1] == [node]):
        file.report(TIMES, node, edits=file.replace(node, f"{file.portable('profiler_key')}(", node, ")"))
    elif not isinstance(around, ast.Expr | ast.JoinedStr):
        said = f"portable.profiler_key({file.text(node)}) is the name that the installed torch has for it"
        file.report(TIMES, node, said)
    return True


@FAMILY.attribute(*_TIMES)
def _figure(file: File, node: ast.Attribute) -> bool:
    sure = node.attr.startswith("self_cuda_") or node.attr.endswith("time_total")
    if isinstance(node.ctx, ast.Load) and (sure or _PROFILES.search(file.source.text)):
        key = f'{file.portable("profiler_key")}("{node.attr}")'
        file.report(TIMES, node, edits=file.replace(node, "getattr(", node.value, f", {key})"))
    return False


OLD = FAMILY.rule(
    "TR091b",
    Kind.REVIEW,
    "torch.autograd.profiler.profile(use_cuda=True): use_device names the device in use",
    why="""use_cuda is deprecated, and means CUDA; use_device takes its place since torch 2.1. On the CPU neither is
    given, which records the CPU alone, as use_cuda=True does there with a warning.""",
    source="torch/autograd/profiler.py",
    examples=[
        Example(
            """
            import torch

            with torch.autograd.profiler.profile(use_cuda=True) as prof:
                model(x)
            """,
            """
            import torch
            from toprope.device import portable

            with torch.autograd.profiler.profile(**portable.profiler_device()) as prof:
                model(x)
            """,
        ),
    ],
)


@FAMILY.call("torch.autograd.profiler.profile")
def _old(file: File, node: ast.Call) -> bool:
    used = file.keyword(node, "use_cuda")
    if used is None or not isinstance(used.value, ast.Constant) or used.value.value is not True:
        return False
    file.report(OLD, used.value, edits=file.replace(used, f"**{file.portable('profiler_device')}()"))
    return False
