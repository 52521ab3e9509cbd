"""Shapes of what runs, and the time that a card would take for it."""

import time

import pytest
import torch
from torch import nn

import toprope.sim
from toprope.compat import torch_npu
from toprope.sim.timing import timing_of

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
