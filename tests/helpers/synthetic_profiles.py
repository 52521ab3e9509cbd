"""Files of the vendor's profiler, written from known rates: what `toprope calibrate` must find in them."""

import csv
import random
from itertools import product

from toprope.estimate.cost.costs import cost_of
from toprope.estimate.cost.timeline import Act, Timeline
from toprope.estimate.measured.profiler_files import KernelRow
from toprope.estimate.measured.vendor_kernels import call_of

# as torch_npu 2.7 writes it at Level1 with AiCMetrics.PipeUtilization; the first columns
HEADER = (
    "Step Id", "Device_id", "Model ID", "Task ID", "Stream ID", "Name", "Type", "OP State", "Accelerator Core",
    "Start Time(us)", "Duration(us)", "Wait Time(us)", "Block Num", "Mix Block Num", "HF32 Eligible", "Input Shapes",
    "Input Data Types", "Input Formats", "Output Shapes", "Output Data Types", "Output Formats", "Context ID",
    "aicore_time(us)", "aic_total_cycles",
)  # fmt: skip
# as msprof of CANN 8 writes it; the first columns
OP_SUMMARY = (
    "Device_id", "Model ID", "Task ID", "Stream ID", "Op Name", "OP Type", "OP State", "Task Type",
    "Task Start Time(us)", "Task Duration(us)", "Task Wait Time(us)", "Block Dim", "Mix Block Dim", "HF32 Eligible",
    "Input Shapes", "Input Data Types", "Input Formats", "Output Shapes", "Output Data Types", "Output Formats",
    "Context ID", "aicore_time(us)",
)  # fmt: skip
BEGIN_NS = 1_775_885_424_228_162_176


def side(shapes, dtype):
    """Shapes and dtypes as the profiler writes them."""
    return ";".join(",".join(map(str, shape)) for shape in shapes), ";".join([dtype] * len(shapes))


def kernels():
    """Types of kernels with their inputs and outputs: the operators of a training step in several sizes."""
    for dtype, sizes in (("DT_BF16", (1, 16, 256, 1024, 2048, 4096, 8192)), ("FLOAT", (256, 1024, 2048, 4096))):
        for rows, (columns, depth) in product(
            sizes, ((256, 256), (1024, 256), (1024, 1024), (4096, 512), (4096, 4096), (11008, 4096), (4096, 11008))
        ):
            yield "MatMulV3", [(rows, depth), (depth, columns)], [(rows, columns)], dtype
    for batch, channels, edge in product((1, 8, 32), (64, 256), (28, 56)):
        shape = (batch, channels, edge, edge)
        yield "Conv2D", [shape, (channels, channels, 3, 3)], [shape], "FLOAT16"
    for heads, length, head in product((1, 8, 32), (512, 1024, 2048, 8192), (64, 128, 256)):
        query, rest = (1, heads, length, head), (1, heads, length, 8)
        yield "FlashAttentionScore", [query, query, query], [rest, rest, (0,), query], "DT_BF16"
    elements = [(1, 512), (1, 4096), (4, 4096), (64, 4096), (512, 4096), (2048, 4096), (4096, 4096), (8192, 8192),
                (16384, 8192), (16384, 16384)]  # fmt: skip
    for kind, shape in product(("Add", "Relu", "Gelu", "Swish", "Cast", "Mul"), elements):
        yield kind, [shape] * (2 if kind in ("Add", "Mul") else 1), [shape], "FLOAT16"
    for kind, shape in product(("SoftmaxV2", "LayerNormV3", "ReduceSum"), elements):
        row = (*shape[:-1], 1)
        made = {"SoftmaxV2": [shape], "LayerNormV3": [shape, row, row], "ReduceSum": [row]}[kind]
        yield kind, [shape, shape[-1:], shape[-1:]] if kind == "LayerNormV3" else [shape], made, "FLOAT16"


def rows(rates, *, repeats=6, noise=0.0, outliers=0.0, seed=1):
    """Kernels that a host launched one after the other; after every twentieth it waits, and does something else.

    Args:
        rates: how long everything takes.
        repeats: of each kernel.
        noise: standard deviation of the logarithm of each duration.
        outliers: share of the durations that are three times as long.
        seed: of the noise.
    """
    draw = random.Random(seed)
    exact = {}
    for kind, inputs, outputs, dtype in kernels():
        cost = cost_of(call_of(kind, *side(inputs, dtype), *side(outputs, dtype)))
        exact[kind, str(inputs), dtype] = rates.seconds(cost).likely, rates.launch(cost.kind).likely
    calls = [each for each in kernels() for _ in range(repeats)]
    draw.shuffle(calls)
    acts, durations = [], []
    for number, (kind, inputs, _, dtype) in enumerate(calls):
        if number % 20 == 0:
            acts.append(Act("synchronise", stream=-1, host=(500e-6,) * 3))
        on_card, launch = exact[kind, str(inputs), dtype]
        taken = on_card * draw.lognormvariate(0, noise) * (3 if draw.random() < outliers else 1)
        host = launch * draw.lognormvariate(0, noise)
        durations.append(taken)
        acts.append(Act("launch", host=(host,) * 3, card=(taken,) * 3))
    spans = [span for act, span in zip(acts, Timeline.of(acts, keep=True).spans, strict=True) if act.what == "launch"]
    for (kind, inputs, outputs, dtype), (begin, _), taken in zip(calls, spans, durations, strict=True):
        yield KernelRow(
            f"aclnn{kind}_{kind}AiCore_{kind}", kind, "AI_CORE" if kind == "MatMulV3" else "AI_VECTOR_CORE", "0",
            BEGIN_NS + round(begin * 1e9), round(taken * 1e6, 3),
            side(inputs, dtype), side(outputs, dtype),
        )  # fmt: skip


def write(path, kernels, header=HEADER):
    """Write kernels as the vendor does: shapes in quotes, a tab after the time of the begin."""
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(header)
        for number, row in enumerate(kernels):
            begin = f"{row.start_ns // 1000}.{row.start_ns % 1000:03}\t"
            formats = [";".join(["ND"] * len(side[1].split(";"))) for side in (row.inputs, row.outputs)]
            fields = {
                "Step Id": 1, "Device_id": row.device, "Model ID": 4294967295, "Task ID": number, "Stream ID": 2,
                "OP State": "dynamic", "HF32 Eligible": "NO", "Context ID": "N/A", "Block Num": 20, "Mix Block Num": 0,
                "Block Dim": 20, "Mix Block Dim": 0, "Input Formats": formats[0], "Output Formats": formats[1],
                "Input Data Types": row.inputs[1], "Output Data Types": row.outputs[1],
                "Input Shapes": f'"{row.inputs[0]}"', "Output Shapes": f'"{row.outputs[0]}"',
                "Name": row.name, "Op Name": row.name, "Type": row.kind, "OP Type": row.kind,
                "Accelerator Core": row.core, "Task Type": row.core, "Start Time(us)": begin,
                "Task Start Time(us)": begin, "Duration(us)": row.duration_us, "Task Duration(us)": row.duration_us,
            }  # fmt: skip
            writer.writerow([fields.get(name, "N/A") for name in header])
