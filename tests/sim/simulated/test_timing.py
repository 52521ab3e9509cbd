"""Shapes of what runs, and the time that a card would take for it.

Holds sim/tracing/timing.py and csrc/core/signatures.h against shapes and work known from the program.
tests/sim/test_simulated.py runs this module in a process with simulated cards.
"""

import time

import pytest
import torch
from torch import nn

import toprope.sim
from toprope.compat import torch_npu
from toprope.sim.tracing.timing import timing_of

SIM = "910B3x2,hbm=1GiB"


def calls_of(block):
    with toprope.sim.trace() as recorded:
        block()
    numbers = [
        (record.act, record.signature)
        for record in recorded.trace.records
        if record.act in ("operator", "composite") and not record.is_part
    ]
    return [recorded.trace.calls[number - 1] for _, number in numbers]


def shapes(call):
    return [(each.sizes, each.role) for each in call.tensors]


def test_an_operator_is_recorded_with_the_shapes_of_its_tensors():
    a, b = torch.ones(3, 4, device="npu", dtype=torch.float16), torch.ones(4, 5, device="npu", dtype=torch.float16)
    (call,) = calls_of(lambda: a @ b)
    assert call.name == "aten::mm"
    assert shapes(call) == [((3, 4), "read"), ((4, 5), "read"), ((3, 5), "result")]
    assert {each.dtype for each in call.tensors} == {"float16"}


def test_what_is_written_in_place_is_told_from_what_is_read():
    a, b = torch.ones(3, device="npu"), torch.ones(3, device="npu")
    (call,) = calls_of(lambda: a.add_(b))
    assert shapes(call) == [((3,), "written"), ((3,), "read")]
    (call,) = calls_of(lambda: b @ b)
    assert shapes(call) == [((3,), "read"), ((3,), "read"), ((), "result")]  # given twice, read twice
    (call,) = calls_of(lambda: torch.mul(a, 2, out=a))
    assert shapes(call)[0] == ((3,), "written")


def test_a_transposed_operand_is_strided_and_an_expanded_one_is_small():
    a = torch.ones(4, 6, device="npu")
    (call,) = calls_of(lambda: a.t().relu())
    assert [each.strided for each in call.tensors if each.role == "read"] == [True]
    (call,) = calls_of(lambda: torch.ones(1, device="npu").expand(100).neg())[1:]
    assert call.tensors[0].bytes == 4


def test_a_list_of_tensors_is_one_operator():
    many = [torch.ones(3, device="npu") for _ in range(12)]
    (call,) = calls_of(lambda: torch._foreach_add_(many, 1))
    assert call.name == "aten::_foreach_add_"
    assert len(call.tensors) == 8
    assert call.more_written == 4 * 12
    (made,) = calls_of(lambda: torch._foreach_mul(many, 2))
    assert made.more_read + made.more_written == 16 * 12


def test_convolutions_say_what_they_compute():
    images = torch.ones(2, 3, 8, 8, device="npu", requires_grad=True)
    layer = nn.Conv2d(3, 5, 3, padding=1, device="npu")
    forward = calls_of(lambda: layer(images))[-1]
    assert forward.operations == 2 * (2 * 5 * 8 * 8) * (3 * 3 * 3)
    result = layer(images).sum()
    backward = next(call for call in calls_of(result.backward) if "convolution_backward" in call.name)
    assert backward.operations == 2 * forward.operations
    up = nn.ConvTranspose2d(3, 5, 2, stride=2, device="npu")
    assert calls_of(lambda: up(images))[-1].operations == 2 * images.numel() * (5 * 2 * 2)


def test_attention_says_what_it_computes():
    q = torch.ones(1, 2, 16, 8, device="npu", requires_grad=True)
    made = []
    forward = calls_of(lambda: made.append(nn.functional.scaled_dot_product_attention(q, q, q)))[-1]
    assert forward.operations == 4 * q.numel() * 16
    backward = calls_of(lambda: made[0].sum().backward())
    assert max(call.operations for call in backward) == 10 * q.numel() * 16
    causal = calls_of(lambda: nn.functional.scaled_dot_product_attention(q, q, q, is_causal=True))[-1]
    assert causal.operations == forward.operations // 2


def test_an_operator_of_torch_npu_is_one_though_others_compute_it():
    x, gamma = torch.ones(2, 8, device="npu"), torch.ones(8, device="npu")
    (call,) = calls_of(lambda: torch_npu.npu_rms_norm(x, gamma))
    assert call.name == "npu::npu_rms_norm"
    q = torch.ones(1, 16, 32, device="npu", dtype=torch.float16)
    (attention,) = calls_of(lambda: torch_npu.npu_fusion_attention(q, q, q, 4, "BSH"))
    assert attention.operations == 4 * 4 * 16 * 16 * 8
    with pytest.raises(RuntimeError):
        torch_npu.npu_rms_norm(x, torch.ones(3, device="npu"))
    (after,) = calls_of(lambda: x.neg())
    assert after.name == "aten::neg"


def test_the_time_of_a_product_is_within_the_range_of_its_peak():
    a = torch.ones(1024, 1024, device="npu", dtype=torch.float16)
    with toprope.sim.rehearse() as r:
        for _ in range(20):
            a = a @ a
    least = 20 * 2 * 1024**3 / 294.9e12  # at the peak of a 910B3
    assert r.timing.kinds["matmul"].low > least
    assert r.timing.kinds["matmul"].high < 4 * least
    assert r.timing.calls == {"matmul": 20}


def test_steps_are_the_optimizers():
    model = nn.Linear(64, 64, device="npu")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with toprope.sim.rehearse() as r:
        for _ in range(5):
            model(torch.ones(8, 64, device="npu")).sum().backward()
            optimizer.step()
    assert r.timing.steps == ("training", 4)
    assert r.timing.bound == "launches"
    assert 4 * r.timing.step.likely < r.timing.total.likely


def test_a_trace_inside_a_rehearsal_has_its_own_part():
    x = torch.ones(4, device="npu")
    with toprope.sim.rehearse() as r:
        x + 1
        with toprope.sim.trace() as recorded:
            x * 2
        x - 1
    assert [record.name for record in recorded.records if record.act == "operator"] == ["aten::mul"]
    assert r.timing.calls == {"elementwise": 3}


def test_two_cards_run_side_by_side():
    a, b = (torch.ones(512, 512, device=f"npu:{card}") for card in range(2))
    with toprope.sim.trace() as one:
        for _ in range(4):
            a @ a
    with toprope.sim.trace() as both:
        for _ in range(4):
            a @ a
            b @ b
    single, double = timing_of(one.trace), timing_of(both.trace)
    assert double.card.likely == pytest.approx(2 * single.card.likely)
    assert double.total.likely < 2 * single.total.likely


def test_a_graph_spares_the_host_its_launches():
    x = torch.ones(64, device="npu")
    graph = torch.npu.NPUGraph()
    with torch.npu.graph(graph):
        y = x
        for _ in range(50):
            y = y + 1
    with toprope.sim.rehearse() as eager:
        y = x
        for _ in range(50):
            y = y + 1
    with toprope.sim.rehearse() as replayed:
        graph.replay()
    assert replayed.timing.calls == eager.timing.calls
    assert replayed.timing.total.high < eager.timing.total.low
    assert y.tolist() == [51.0] * 64


def test_an_operator_on_the_host_waits_and_copies_both_ways():
    x = torch.ones(2**20, device="npu")
    with toprope.sim.rehearse() as on_card:
        torch.exp(x)
    with toprope.sim.rehearse() as on_host:
        torch.lgamma(x)
    assert on_host.facts.totals.on_host[0].operator == "aten::lgamma.out"
    assert on_host.timing.total.low > 5 * on_card.timing.total.high


def test_copies_inside_the_card_were_called_waits():
    x = torch.ones(64, 64, device="npu", dtype=torch.bfloat16)
    with toprope.sim.rehearse() as r:
        for _ in range(50):
            x.float()
    assert r.timing.calls == {"copy": 50}
    assert not any("wait" in one.what for one in r.timing.changes)


def test_loading_is_no_advice_for_the_steps():
    with toprope.sim.rehearse() as r:
        model = nn.Sequential(*(nn.Linear(64, 64) for _ in range(10))).to("npu")
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(4):
            model(torch.ones(8, 64, device="npu")).sum().backward()
            optimizer.step()
    assert r.timing.changes
    assert not any("wait" in one.what for one in r.timing.changes)


def test_a_graph_is_not_proposed_where_the_host_asks_all_the_time():
    x = torch.ones(64, device="npu")
    with toprope.sim.rehearse() as r:
        for _ in range(30):
            (x + 1).sum().item()
    assert any("wait" in one.what for one in r.timing.changes)
    assert not any("graph" in one.what for one in r.timing.changes)


def test_the_programs_own_code_is_measured_apart():
    x = torch.ones(64, device="npu")
    with toprope.sim.rehearse() as r:
        x + 1
        time.sleep(0.2)
        x + 1
    assert 0.2 <= r.timing.own < 5
    assert r.timing.total.high < 0.01


def kinds_of(block):
    return [(call.name, call.operations) for call in calls_of(block)]


@pytest.mark.parametrize(
    "options", [{"enable_gqa": True}, {"dropout_p": 0.1}, {"attn_mask": True}], ids=lambda options: next(iter(options))
)
def test_attention_that_this_host_composes_is_one_kernel_and_so_is_its_gradient(options):
    heads = 2 if "enable_gqa" in options else 4
    q = torch.ones(1, 4, 16, 8, device="npu", requires_grad=True)
    k = torch.ones(1, heads, 16, 8, device="npu", requires_grad=True)
    v = torch.ones(1, heads, 16, 8 if "attn_mask" not in options else 4, device="npu", requires_grad=True)
    if "attn_mask" in options:  # and values of another size, which the host's kernel does not take
        options = {"attn_mask": torch.ones(16, 16, dtype=torch.bool, device="npu")}
    made = []
    forward = kinds_of(lambda: made.append(nn.functional.scaled_dot_product_attention(q, k, v, **options)))
    operations = 2 * 4 * 16 * 16 * (8 + v.shape[3])
    assert forward == [("aten::scaled_dot_product_attention", operations)]
    seed = torch.ones_like(made[0])
    backward = kinds_of(lambda: made[0].backward(seed, retain_graph=True))
    gradient = [("aten::scaled_dot_product_attention_backward", operations * 5 // 2)]
    assert [each for each in backward if each[1]] == gradient
    assert not {"aten::bmm", "aten::_softmax_backward_data"} & {name for name, _ in backward}
    again = kinds_of(lambda: made[0].backward(seed))  # once for each pass
    assert [each for each in again if each[1]] == gradient


def test_a_mask_that_the_kernel_of_the_card_does_not_take_is_composed():
    q = torch.ones(1, 4, 16, 8, device="npu")
    k = torch.ones(1, 2, 16, 8, device="npu")
    mask = torch.zeros(16, 16, device="npu")
    names = [
        name
        for name, _ in kinds_of(
            lambda: nn.functional.scaled_dot_product_attention(q, k, k, attn_mask=mask, enable_gqa=True)
        )
    ]
    assert names.count("aten::bmm") == 2


@pytest.mark.parametrize("name", ["npu_rms_norm", "npu_swiglu", "npu_fusion_attention", "npu_geglu"])
def test_the_gradient_of_an_operator_of_torch_npu_is_one(name):
    x = torch.ones(2, 16, 32, device="npu", dtype=torch.float16, requires_grad=True)
    weight = torch.ones(32, device="npu", dtype=torch.float16, requires_grad=True)
    given = {"npu_rms_norm": (x, weight), "npu_fusion_attention": (x, x, x, 4, "BSH")}.get(name, (x,))
    made = getattr(torch_npu, name)(*given)  # nothing is traced: nothing is kept
    assert len(kinds_of(lambda: made[0].sum().backward())) > 2
    results = []
    forward = calls_of(lambda: results.append(getattr(torch_npu, name)(*given)))
    result = results[0] if isinstance(results[0], torch.Tensor) else results[0][0]
    seed = torch.ones_like(result)
    backward = calls_of(lambda: result.backward(seed))
    (gradient,) = [call for call in backward if call.name.startswith("npu::")]
    assert gradient.name == f"npu::{name}_backward"
    assert gradient.operations == forward[0].operations * 5 // 2
    assert {call.name for call in backward} <= {gradient.name, "aten::add_", "aten::copy_", "aten::add"}


def test_the_gradient_of_a_product_stays_two_products():
    x = torch.ones(4, 8, device="npu", requires_grad=True)
    weight = torch.ones(6, 8, device="npu", requires_grad=True)
    results = []
    calls_of(lambda: results.append(torch_npu.npu_linear(x, weight)))
    backward = [call.name for call in calls_of(lambda: results[0].backward(torch.ones_like(results[0])))]
    assert backward.count("aten::mm") == 2


def test_a_failed_gradient_leaves_later_operators_whole():
    class Fails(torch.autograd.Function):
        @staticmethod
        def forward(context, x):
            return x.clone()

        @staticmethod
        def backward(context, gradient):
            raise RuntimeError("on purpose")

    x = torch.ones(2, 16, device="npu", requires_grad=True)
    results = []
    calls_of(lambda: results.append(torch_npu.npu_swiglu(Fails.apply(x))))

    def fail():
        with pytest.raises(RuntimeError, match="on purpose"):
            results[0].sum().backward()

    calls_of(fail)
    assert kinds_of(lambda: x.detach().neg()) == [("aten::neg", 0)]


def test_a_tensor_that_fits_into_the_cache_is_cold_when_more_than_the_cache_was_touched_since():
    cache = 192 * 2**20
    x = torch.ones(2**20, device="npu")
    others = [torch.ones(2**22, device="npu") for _ in range(cache // 2**24 + 2)]

    def cold(call):
        return [tensor.cold for tensor in call.tensors]

    first, second = calls_of(lambda: (x.neg(), x.neg()))
    assert (cold(first), cold(second)) == ([True, False], [False, False])
    calls = calls_of(lambda: [x.neg(), *(each.add_(1) for each in others), x.neg()])
    assert cold(calls[-1]) == [True, False]
    chain = calls_of(lambda: x.neg().exp().add(1))
    assert [cold(call)[0] for call in chain[1:]] == [False, False]  # made by the operator before


def test_what_composes_an_operator_does_not_warm_the_cache():
    gamma = torch.ones(2**10, device="npu")
    x = torch.ones(4, 2**10, device="npu")
    first, second = calls_of(lambda: (torch_npu.npu_rms_norm(x, gamma), torch_npu.npu_rms_norm(x, gamma)))
    assert [each.cold for each in first.tensors if each.role == "read"] == [True, True]
    assert not any(each.cold for each in second.tensors)
