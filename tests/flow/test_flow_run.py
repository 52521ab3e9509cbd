"""Graphs that run, on processes of this machine and two simulated cards: one session for all of them.

Held: `FlowGraph`, `flow.executor` and `flow.worker` together; results are compared with eager torch.
"""

import os
import threading
import time
from collections import Counter

import numpy as np
import pytest
import torch

from flow_graphs import Point, chain, data, feed, fetch, left_behind, node, running
from functions_session import session, within
from toprope.flow.exceptions import (
    DATA_NOT_ALIGNED,
    FAILED,
    FLOW_FUNC_FAILED,
    MODEL_EXECUTE_TIMEOUT,
    PARAM_INVALID,
    QUEUE_EMPTY,
    QUEUE_FULL,
    USER_RAISE_EXCEPTION,
    DfException,
)
from toprope.flow.executor.runner import Runner
from toprope.flow.graph.nodes import plan
from toprope.flow.stage.spec import EMPTY, EOS, PICKLED, TENSOR, CountBatch, Deploy, Head, Message, StageFunction
from toprope.functions.transport.serialization import dumps
from toprope.sim.metrics import counters
from toprope.sim.tracing import tracer

pytestmark = [pytest.mark.native, pytest.mark.process]

COPIES = ("copies_to_card", "copies_from_card", "copies_between")


@pytest.fixture(scope="module", autouse=True)
def cards(tmp_path_factory):
    """A session on two simulated cards, which count what is done to them and trace it."""
    folder = tmp_path_factory.mktemp("run")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TOPROPE_RUN_DIR", str(folder))
        patch.setenv("TOPROPE_TRACE", "1")
        with session("910B4x2"):
            yield folder
    assert not left_behind()


def crop(x):
    return x[..., 32:160, 32:160]


def small(x):
    return torch.nn.functional.interpolate(x, size=(64, 64), mode="bilinear")


def normal(x):
    return (x - 0.5) / 0.5


def post(x):
    return torch.nn.functional.interpolate(x * 0.5 + 0.5, size=(128, 128), mode="bilinear")


STEPS = (crop, small, normal, post)


def eager(x):
    for step in STEPS:
        x = step(x)
    return x


def copies(folder):
    found = counters.read_run(folder)
    return [sum(getattr(each, name) for each in found) for name in COPIES]


def acts_of(runner):
    return [each for each in runner.trace()["traceEvents"] if each["ph"] == "X"]


@pytest.mark.parametrize(
    ("devices", "crossing", "colocate"), [((0, 0, 0, 0), 0, False), ((0, 1, 1, 0), 2, False), ((0, 0, 0, 0), 0, True)]
)
def test_the_data_stays_on_the_card(cards, devices, crossing, colocate):
    """One copy to the card for each input and one back; one from card to card for each edge that crosses, no other."""
    images = [torch.randn(1, 3, 192, 192) for _ in range(4)]
    graph = chain(*STEPS, kind="npu")
    deploy = {each.name: Deploy((device,)) for each, device in zip(graph.nodes, devices, strict=True)}
    before = copies(cards)
    with running(graph, deploy=deploy, colocate=colocate, trace=True) as runner:
        for image in images:
            assert feed(runner, image) == 0
        for image in images:
            got, code = fetch(runner)
            assert code == 0, got
            assert got.device.type == "cpu"
            assert torch.allclose(got, eager(image), atol=1e-5)
        edges, pids, count = runner.metrics(), runner.pids(), len(images)
        # an act has ended only after its result is out
        within(60, lambda: len(acts_of(runner)) == len(STEPS) * count)
    assert [now - then for now, then in zip(copies(cards), before, strict=True)] == [count, count, crossing * count]
    # and the trace says in which process
    places = [pids[each.name] for each in graph.nodes]
    if not colocate:
        traces = {each.pid: Counter(record.act for record in each.records) for each in tracer.read_run(cards)}
        assert [traces[pid]["copy to card"] for pid in places] == [count, 0, 0, 0]
        assert [traces[pid]["copy from card"] for pid in places] == [0, 0, 0, count]
        assert [traces[pid]["copy between cards"] for pid in places] == (
            [0, count, 0, count] if crossing else [0, 0, 0, 0]
        )
        assert [each.shared for each in edges] == [0, count, count, count, 0]
        assert [each.between for each in edges] == [0, count if crossing else 0, 0, count if crossing else 0, 0]
        assert len(set(places)) == 4
    else:
        assert len(set(places)) == 1
    assert [each.to_host for each in edges] == [0, 0, 0, 0, count]


def test_a_view_is_bit_equal_to_eager_and_what_was_borrowed_can_be_passed_on():
    with running(chain(lambda x: x.transpose(0, 1)[1:], lambda x: x, lambda x: x[::2], kind="npu")) as runner:
        x = torch.randn(5, 7)
        for _ in range(20):
            assert feed(runner, x) == 0
            got, code = fetch(runner)
            assert code == 0, got
            assert torch.equal(got, x.transpose(0, 1)[1:][::2])


def test_what_an_npu_model_may_not_take_or_return_fails_alone():
    def step(x):
        return {0: lambda: x, 1: lambda: x.cpu(), 2: lambda: 5, 3: lambda: (x, x)}[int(x[0])]()

    with running(chain(step, kind="npu")) as runner:
        for value in (0, 1, 2, 3, 0):
            assert feed(runner, torch.full((3,), float(value))) == 0
        assert feed(runner, "no tensor") == 0
        assert runner.feed({0: Message(TENSOR, np.zeros(3, np.float32))}) == 0
        assert runner.feed({0: Message(EMPTY, None, Head(flags=EOS))}) == 0
        found = [runner.fetch(timeout_ms=20_000) for _ in range(8)]
    bad = FLOW_FUNC_FAILED
    assert [each.code for each in found] == [0, bad, bad, bad, 0, bad, 0, 0]
    assert "must be on npu:0, it is on cpu" in str(found[1].errors[0].error)
    assert found[7].messages[0].payload is None
    assert found[7].head.flags == EOS


def test_values_order_transactions_user_data_and_codes():
    with running(chain(lambda x: x, lambda x: x)) as runner:
        for value in ([1, "a"], None, {"k": np.arange(3)}, torch.ones(3)):
            assert feed(runner, value, user_data=b"hello world", data_size=11, start_time=5) == 0
        found = [runner.fetch(timeout_ms=20_000) for _ in range(4)]
        assert [each.head.transaction_id for each in found] == [1, 2, 3, 4]
        assert {(each.head.user_data, each.head.data_size, each.head.start_time) for each in found} == {
            (b"hello world", 11, 5)
        }
        assert found[0].messages[0].payload == [1, "a"]
        assert found[1].messages[0].kind == EMPTY
        began = time.monotonic()
        assert fetch(runner, timeout=100) == ([], MODEL_EXECUTE_TIMEOUT)
        assert 0.09 < time.monotonic() - began < 30
        assert fetch(runner, timeout=0) == ([], QUEUE_EMPTY)
        assert fetch(runner, timeout=-2)[1] == FAILED
        assert feed(runner, 1, timeout=-2) == FAILED
        assert runner.feed({}, 100) == PARAM_INVALID
        assert feed(runner, 1, transaction_id=77) == 0  # ignored in a plain graph
        assert runner.fetch().head.transaction_id == 5
    assert feed(runner, 1) == FAILED
    assert fetch(runner)[1] == FAILED


def test_back_pressure_reaches_feed_and_overwrite_keeps_the_newest(tmp_path):
    go = tmp_path / "go"

    def gated(x):
        while not go.exists():
            time.sleep(0.005)
        return x

    def slow(x):
        time.sleep(0.05)
        return x

    with running(chain(gated, _flow_attr_depth=2)) as runner:
        codes, took = [], []
        for value in range(6):
            began = time.monotonic()
            codes.append(feed(runner, value, timeout=10))
            took.append(time.monotonic() - began)
        assert QUEUE_FULL in codes
        assert max(took) < 5
        go.touch()
        fed = codes.count(0)
        assert sorted(fetch(runner)[0] for _ in range(fed)) == [value for value in range(6) if not codes[value]]
        assert runner.metrics()[0].waited_ms > 5
    with running(chain(slow, _flow_attr_depth=2, _flow_attr_enqueue_policy="OVERWRITE")) as runner:
        assert [feed(runner, value, timeout=0) for value in range(40)] == [0] * 40
        assert runner.drain(10)
        found = []
        while (got := fetch(runner, timeout=50))[1] == 0:
            found.append(got[0])
        assert found == sorted(found)
        assert found[-1] == 39
        assert runner.metrics()[0].lost == 40 - len(found) > 20


def test_many_in_flight_drain_and_metrics():
    graph = chain(lambda x: x + 1, lambda x: x * 2)
    with running(graph) as runner:
        feeder = threading.Thread(target=lambda: [feed(runner, value) for value in range(1000)])
        feeder.start()
        assert [fetch(runner)[0] for _ in range(500)] == [(value + 1) * 2 for value in range(500)]
        threading.Thread(target=lambda: (feeder.join(), runner.drain(20))).start()
        assert [fetch(runner)[0] for _ in range(500)] == [(value + 1) * 2 for value in range(500, 1000)]
        feeder.join()
        assert runner.drain(5)
        edges = runner.metrics()
        assert [each.messages for each in edges] == [1000] * 3
        assert [each.depth for each in edges] == [0] * 3
        assert [each.source for each in edges] == ["x", *(each.name for each in graph.nodes)]


def test_several_outputs_in_the_users_order_partial_inputs_and_places():
    x, y = data("x"), data("y")
    first, second = node(Point(lambda a: (a, -a), outputs=2), x)
    third = node(Point(lambda b: b * 100), y)
    with running(plan([third, first, second])) as runner:
        assert feed(runner, 1, 2) == 0
        assert runner.feed({0: Message(PICKLED, 5)}) == PARAM_INVALID
        found = [each.payload for each in runner.fetch(timeout_ms=20_000).messages]
        assert sorted(found) == [-1, 1, 200]
        assert runner.feed({0: Message(PICKLED, 5)}, partial=True) == 0
        at = [place for place, each in enumerate(found) if each != 200]
        assert sorted(each.payload for each in runner.fetch(at, 20_000).messages) == [-5, 5]
        assert runner.fetch(timeout_ms=50).code == MODEL_EXECUTE_TIMEOUT


def test_one_that_changes_its_input_in_place_changes_nobody_elses():
    x = data("x")
    start = node(Point(lambda a: a * 1), x)
    left, right = node(Point(lambda a: a.add_(1)), start), node(Point(lambda a: a.mul_(10)), start)
    with running(plan([left, right])) as runner:
        for _ in range(3):
            assert feed(runner, torch.ones(10_000)) == 0
            values, code = fetch(runner)
            assert code == 0
            assert sorted({each.unique().item() for each in values}) == [2, 10]


def test_n_mapping_generators_choice_and_ids_of_the_users_own():
    def five(x):
        for number in range(5):
            yield x * 10 + number

    odd = Point(lambda x: x, choice=(lambda value: value % 2,))
    with running(chain(five, odd), n_mapping=True) as runner:
        assert [feed(runner, 1, transaction_id=id) for id in (10, 10, 9, 2**64 - 1)] == [
            0, 0, PARAM_INVALID, PARAM_INVALID,
        ]  # fmt: skip
        found = [runner.fetch(timeout_ms=20_000) for _ in range(4)]
        assert [(each.head.transaction_id, each.messages[0].payload) for each in found] == [(10, 11), (10, 13)] * 2
        assert fetch(runner, timeout=50)[1] == MODEL_EXECUTE_TIMEOUT


def test_stream_inputs_take_what_they_like():
    def two_of_a_one_of_b(a, b):
        return a.get().payload + a.get().payload + b.get().payload

    x, y = data("x"), data("y")
    graph = plan([node(Point(two_of_a_one_of_b, inputs=2, stream=True), x, y)])
    with running(graph, n_mapping=True) as runner:
        for value in range(1, 7):
            assert runner.feed({0: Message(PICKLED, value)}, partial=True) == 0
            if value % 2 == 0:
                assert runner.feed({1: Message(PICKLED, value * 100)}, partial=True) == 0
        found = [runner.fetch(timeout_ms=20_000) for _ in range(3)]
        assert [each.messages[0].payload for each in found] == [203, 407, 611]
        assert [each.head.transaction_id for each in found] == [1, 2, 3]


def test_batches_in_front_of_a_stage():
    x = data("x")
    point = Point(lambda a: a.tolist())
    out = node(point, x)
    out.node.map_input(0, point, 0, [CountBatch(3, timeout=1000, padding=True)])
    with running(plan([out]), n_mapping=True) as runner:
        for value in range(4):
            assert runner.feed({0: Message(TENSOR, np.array(value))}) == 0
        assert fetch(runner) == ([0, 1, 2], 0)
        began = time.monotonic()
        assert fetch(runner) == ([3, 0, 0], 0)
        assert time.monotonic() - began < 5


def who(context):
    def run(x):
        time.sleep(0.002 * (x % 3))
        return x, context.instance_id, context.instance_num, context.device_id, os.getpid()

    return run


def test_several_instances_share_the_work_and_joins_pair_by_transaction():
    x = data("x")
    several = node(Point(None, make=who), x, name="several")
    out = node(Point(lambda a, b: (a, b), inputs=2), several, node(Point(lambda a: a), x), name="join")
    name = several.node.name
    with running(plan([out]), deploy={name: Deploy((0, 1))}) as runner:
        for value in range(40):
            assert feed(runner, value) == 0
        found = [fetch(runner)[0] for _ in range(40)]
    assert all(a[0] == b for a, b in found)
    assert sorted(b for _, b in found) == list(range(40))
    assert {(a[1], a[2], a[3]) for a, _ in found} == {(0, 2, 0), (1, 2, 1)}
    assert len({a[4] for a, _ in found}) == 2


def test_groups_that_stay_incomplete_are_told_by_their_code():
    x = data("x")
    left = node(Point(lambda a: a, choice=(lambda value: value != 2,)), x)
    right = node(Point(lambda a: -a), x)
    with running(plan([left, right]), align=16, align_timeout_ms=1000, n_mapping=True) as runner:
        for value in (1, 2, 3):
            assert feed(runner, value) == 0
        found = [runner.fetch(timeout_ms=20_000, aligned=True) for _ in range(3)]
        assert sorted((each.head.transaction_id, each.code) for each in found) == [
            (1, 0),
            (2, DATA_NOT_ALIGNED),
            (3, 0),
        ]


def test_an_exception_that_a_function_reports_reaches_all_stages_and_fetch():
    seen = Point(None, kind="messages", make=None)

    def first(activation):
        for message in activation.inputs:
            if message.payload == 3:
                activation.raise_exception(9900001, 7)
            else:
                activation.set_output(0, Message(PICKLED, message.payload))
        return 0

    def second(context):
        caught = []

        def run(activation):
            there = activation.take_exception()
            if there[0]:
                caught.append(there)
            for message in activation.inputs:
                activation.set_output(0, Message(PICKLED, (message.payload, list(caught))))
            return 0

        return run

    seen.make = second
    graph = chain(Point(first, kind="messages"), seen)
    with running(graph, align=100, exception_catch=True) as runner:
        for value in range(1, 6):
            assert feed(runner, value, user_data=bytes([value])) == 0
        found = [runner.fetch(timeout_ms=20_000, aligned=True) for _ in range(5)]
        given_up = [each for each in found if each.code]
        assert [(each.code, each.head.transaction_id, each.head.user_data) for each in given_up] == [
            (USER_RAISE_EXCEPTION, 3, b"\x03")
        ]
        assert [each.messages[0].payload[0] for each in found if not each.code] == [1, 2, 4, 5]

        def is_told():  # by another way than the values come
            assert feed(runner, 9) == 0
            return fetch(runner)[0] == (9, [(True, 9900001, 7)])

        within(60, is_told)
    with pytest.raises(DfException, match="aligned"):
        Runner(graph, runner._options.__class__(exception_catch=True)).start()


def test_several_functions_of_one_stage_run_beside_each_other():
    def make(context):
        started = threading.Barrier(2)

        def alpha(a, b):
            started.wait(10)
            return a + b, a - b

        def zeta(a):
            started.wait(10)
            return a * 2

        return {"alpha": alpha, "zeta": zeta}

    split = (StageFunction("alpha", (0, 1), (0, 1)), StageFunction("zeta", (2,), (2,)))
    x, y, z = data("x"), data("y"), data("z")
    outs = node(Point(None, 3, 3, make=make, options={"split": split}), x, y, z)
    with running(plan(list(outs))) as runner:
        for value in range(3):
            assert feed(runner, value, 10, 7) == 0
        assert [fetch(runner)[0] for _ in range(3)] == [[value + 10, value - 10, 14] for value in range(3)]


def test_a_masked_stage_sees_its_card_as_number_0_and_hooks_run_first(tmp_path):
    def hook():
        os.environ["HOOK_RAN"] = "before"

    def make(context):
        ran = os.environ.get("HOOK_RAN")

        def run(x):
            return x + torch.tensor(
                [float(os.environ["ASCEND_RT_VISIBLE_DEVICES"]), context.device_id, float(ran == "before"),
                 torch.get_num_threads()],
                device=x.device,
            )  # fmt: skip

        return run

    options = {"env_hook": dumps(hook), "visible_device": True, "workspace": str(tmp_path / "ws"),
               "resources": {"num_cpus": 3, "memory": 200}}  # fmt: skip
    graph = chain(lambda x: x, Point(None, kind="npu", make=make, options=options), lambda x: x, kind="npu")
    deploy = {each.name: Deploy((1,)) for each in graph.nodes[:2]}
    with running(graph, deploy=deploy) as runner:
        assert feed(runner, torch.zeros(4)) == 0
        got, code = fetch(runner)
        assert code == 0, got
        threads = float(os.environ.get("OMP_NUM_THREADS") or 3)  # as many as it has cores
        assert got.tolist() == [1.0, 0.0, 1.0, threads]
        assert (tmp_path / "ws").is_dir()
        edges = runner.metrics()
        assert (edges[1].shared, edges[1].to_host) == (1, 0)  # the same card by another number


def test_neighbours_in_one_process_pass_objects_by_reference():
    def first(x):
        return [id(kept), kept]

    kept = ["the same"]
    graph = chain(first, lambda pair: pair[0] == id(pair[1]), lambda x: x)
    with running(graph, colocate=True) as runner:
        for _ in range(5):
            assert feed(runner, 1) == 0
        assert [fetch(runner) for _ in range(5)] == [(True, 0)] * 5
        assert len(set(runner.pids().values())) == 1
        assert runner.drain(5)
