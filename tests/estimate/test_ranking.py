"""Pairs of variants whose order is known: the estimate has to name the faster one.

Each pair says how its order is known. Holds src/toprope/estimate/cost as a whole.
"""

import pytest

from toprope import chips
from toprope.estimate.cost.costs import cost_of
from toprope.estimate.cost.rates import rates_of
from toprope.estimate.cost.timeline import Act, Timeline
from toprope.estimate.record.calls import OperatorCall, TensorShape

HALF, SINGLE = "float16", "float32"


def call(name, *shapes, dtype=HALF, made=None, operations=0, strided=False):
    made = shapes[-1] if made is None else made
    read = tuple(TensorShape(dtype, shape, "read", strided=strided) for shape in shapes)
    return OperatorCall(f"aten::{name}", (*read, TensorShape(dtype, made, "result")), operations)


def mm(rows, depth, columns, dtype=HALF):
    return call("mm", (rows, depth), (depth, columns), made=(rows, columns), dtype=dtype)


def attention(heads, rows, columns, head, causal=False):
    operations = 4 * heads * rows * columns * head // (2 if causal else 1)
    return call("npu_fusion_attention", (heads * rows, head), (heads, columns, head), operations=operations)


def composed_attention(heads, length, head):
    scores = (heads, length, length)
    return [
        call("bmm", (heads, length, head), (heads, head, length), made=scores), call("mul", scores),
        call("_softmax", scores), call("bmm", scores, (heads, length, head), made=(heads, length, head)),
    ]  # fmt: skip


def acts(calls, chip="910B3", *, wait_each=False, wait=True, graph=False, queue=1):
    rates = rates_of(chips.get(chip))
    for one in calls:
        cost = cost_of(one)
        yield Act("launch", host=rates.launch(cost.kind, graph=graph, queue=queue), card=rates.seconds(cost))
        if wait_each:
            yield Act("synchronise", host=rates.synchronise())
    if wait:
        yield Act("synchronise", host=rates.synchronise())


def seconds(calls, chip="910B3", **options):
    return Timeline.of(acts(calls, chip, **options)).total.likely


def copies(sizes, *, pinned):
    rates = rates_of(chips.get("910B3"))
    return Timeline.of(Act("synchronise", host=rates.copy(size, pinned=pinned)) for size in sizes).total.likely


def collective(name, size, ranks, chip="910B3"):
    return rates_of(chips.get(chip)).collective(name, size, ranks).likely


ROWS = (4096, 4096)
NORM = [call("pow", ROWS), call("mean", ROWS, made=(4096, 1)), call("add", (4096, 1)), call("rsqrt", (4096, 1)),
        call("mul", ROWS), call("mul", ROWS)]  # fmt: skip
LIST = OperatorCall("aten::_foreach_add_", (TensorShape(SINGLE, (768,), "written"),), more_written=768 * 4 * 198)
SMALL = [call("add", (64, 64))] * 100

PAIRS = {
    # first principles: what is computed or moved is less
    "float16 before float32": lambda: (seconds([mm(4096, 4096, 4096)]), seconds([mm(4096, 4096, 4096, SINGLE)])),
    "int8 before float16": lambda: (seconds([mm(4096, 4096, 4096, "int8")]), seconds([mm(4096, 4096, 4096)])),
    "a causal mask before none": lambda: (
        seconds([attention(16, 4096, 4096, 128, causal=True)]), seconds([attention(16, 4096, 4096, 128)])
    ),
    "a step of decoding before the prompt": lambda: (seconds([mm(1, 4096, 4096)]), seconds([mm(2048, 4096, 4096)])),
    "contiguous before transposed": lambda: (
        seconds([call("add", ROWS, ROWS)]), seconds([call("add", ROWS, ROWS, strided=True)])
    ),
    "8 sequences at once before one after the other": lambda: (
        seconds([mm(8, 4096, 4096)]), seconds([mm(1, 4096, 4096)] * 8)
    ),
    "few rows of a table before all": lambda: (
        seconds([call("embedding", (32000, 4096), (16,), made=(16, 4096))]),
        seconds([call("embedding", (32000, 4096), (30000,), made=(30000, 4096))]),
    ),
    "a larger chip before a smaller one": lambda: (
        seconds([mm(8192, 8192, 8192)], "910B1"), seconds([mm(8192, 8192, 8192)], "910B4")
    ),
    "fast memory before slow memory": lambda: (
        seconds([call("add", (2**28,), (2**28,))], "910B3"), seconds([call("add", (2**28,), (2**28,))], "910B4")
    ),
    "half the bytes over the link": lambda: (
        collective("allreduce", 2**28, 8), collective("allreduce", 2**29, 8)
    ),
    "all_gather before all_reduce of the same size": lambda: (  # half the traffic; limulidae measured 38 and 18 GB/s
        collective("allgather", 2**28, 8), collective("allreduce", 2**28, 8)
    ),
    "a large copy before a thousand small ones": lambda: (
        copies([2**26], pinned=True), copies([2**16] * 1024, pinned=True)
    ),
    "pinned memory before pageable memory": lambda: (copies([2**28], pinned=True), copies([2**28], pinned=False)),
    # public measurements
    "fused attention before composed": lambda: (  # Ascend/ModelZoo-PyTorch's and MindSpeed's reason for it
        seconds([attention(32, 4096, 4096, 128)]), seconds(composed_attention(32, 4096, 128))
    ),
    "npu_rms_norm before five operators": lambda: (  # candle: 0.21 ms for five
        seconds([call("npu_rms_norm", ROWS)]), seconds(NORM)
    ),
    "one foreach before 199 operators": lambda: (  # transformers 26194: fused optimizer 150, loop 97 samples/s
        seconds([LIST]), seconds([call("add_", (768,), dtype=SINGLE)] * 199)
    ),
    "a graph before eager launches": lambda: (  # vllm-ascend 904: decode in a graph and without
        seconds(SMALL, graph=True), seconds(SMALL)
    ),
    "TASK_QUEUE_ENABLE=2 before 1": lambda: (  # the vendor's page on the variable
        seconds(SMALL, queue=2), seconds(SMALL, queue=1)
    ),
    "one wait before a hundred": lambda: (seconds(SMALL), seconds(SMALL, wait_each=True)),  # candle: 22 and 57 us
    "GELU after SiLU": lambda: (  # xPU-simulator: 49 and 78 us for 4096 x 4096
        seconds([call("silu", ROWS)]), seconds([call("gelu", ROWS)])
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", PAIRS)
def test_the_faster_one_is_named(name):
    faster, slower = PAIRS[name]()
    assert faster < slower
