"""Rates: every chip has them, and extreme questions are answered.

Holds src/toprope/estimate/cost/rates.py.
"""

import pytest

from toprope import chips
from toprope.estimate.cost.costs import KINDS, Cost, cost_of
from toprope.estimate.cost.rates import UnknownRateError, rates_of
from toprope.estimate.record.calls import OperatorCall, TensorShape

LARGE = Cost("matmul", 2.0 * 8192**3, "float16", 3 * 8192 * 8192 * 2, 8192 * 8192, 8192, 8192, 8192)


def costs():
    yield LARGE
    yield Cost("attention", 4.0 * 16 * 4096 * 4096 * 128, "float16", 1e7, 1e6, rows_of_queries=65536, head=128)
    yield Cost("convolution", 1e10, "float16", 1e6, 1e6)
    for kind in KINDS:
        yield Cost(kind)
        yield Cost(kind, 0, "float32", 1e9, 2.5e8, rearranged=1000, row_bytes=2)


@pytest.mark.parametrize("name", chips.names())
def test_every_chip_has_a_range_or_says_what_is_not_known(name):
    rates = rates_of(chips.get(name))
    for cost in costs():
        try:
            span = rates.seconds(cost)
        except UnknownRateError as error:
            unknown = str(error)
        else:
            unknown = ""
        if unknown:
            assert name in unknown
            continue
        assert 0 < span.low <= span.likely <= span.high < 3600
    assert 0 < rates.launch().low < rates.launch("attention").high < 1e-3


@pytest.mark.parametrize("name", [name for name in chips.names() if chips.get(name).peak_tflops])
def test_no_rate_is_above_the_peak_or_the_bandwidth(name):
    chip = chips.get(name)
    rates = rates_of(chip)
    try:
        product = rates.seconds(LARGE)
        copied = rates.seconds(Cost("copy", 0, "float32", 1e11, 2.5e10))
    except UnknownRateError:
        return
    assert LARGE.operations / product.low <= chip.peak_tflops["float16"] * 1e12
    assert 1e11 / copied.low <= chip.memory_gb_per_s * 1e9


def test_widths_are_those_that_are_promised():
    rates = rates_of(chips.get("910B3"))
    assert rates.seconds(LARGE).ratio == pytest.approx(1.3)
    assert rates.seconds(Cost("elementwise", 0, "float16", 1e8, 5e7)).ratio == pytest.approx(1.6)
    assert rates.launch().ratio == pytest.approx(2.0)
    assert rates.seconds(Cost("other", 0, "float16", 1e8, 5e7)).ratio == pytest.approx(3.0)


def test_a_product_grows_with_each_side():
    def seconds(rows, depth, columns):
        shapes = ((rows, depth), "read"), ((depth, columns), "read"), ((rows, columns), "result")
        call = OperatorCall("aten::mm", tuple(TensorShape("bfloat16", sizes, role) for sizes, role in shapes))
        return rates_of(chips.get("910B2")).seconds(cost_of(call)).likely

    for less, more in (((1024, 4096, 4096), (8192, 4096, 4096)), ((4096, 512, 4096), (4096, 8192, 4096))):
        assert seconds(*less) < seconds(*more)
    assert seconds(1, 4096, 4096) == pytest.approx(seconds(16, 4096, 4096), rel=0.1)  # the weights' bytes decide


def test_collectives_grow_with_their_bytes():
    rates = rates_of(chips.get("910B3"))
    assert rates.collective("hccl::allreduce", 2**20, 1).high == 0
    assert rates.collective("hccl::allreduce", 2**20, 8).likely < rates.collective("hccl::allreduce", 2**28, 8).likely
    assert (
        rates.collective("hccl::_allgather_base", 2**28, 8).likely
        < rates.collective("hccl::allreduce", 2**28, 8).likely
    )
