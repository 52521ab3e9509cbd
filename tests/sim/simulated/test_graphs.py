"""NPUGraph: capture, replay with changed inputs, pools, errors, random numbers, callables, torch.accelerator.

Holds sim/npu/graphs.py and graph_capture.py against the same operators without a graph, and torch_npu's names and
errors. tests/sim/test_simulated.py runs this module in a process with simulated cards.
"""

import gc
import json
import threading
import time
from typing import ClassVar

import pytest
import torch

import toprope.compat.torch_npu as torch_npu

SIM = "910B3x2,refuse=off"
MIB = 1 << 20

# Torch's advice about backward passes on another stream than the forward pass of before.
pytestmark = pytest.mark.filterwarnings("ignore:The AccumulateGrad node's stream does not match")


@pytest.fixture(autouse=True)
def side_stream():
    torch.npu.synchronize()
    yield
    gc.collect()
    torch.npu.empty_cache()


def captured(function, **options):
    graph = torch.npu.NPUGraph()
    with torch.npu.graph(graph, **options):
        result = function()
    return graph, result


def test_a_replay_reads_what_the_inputs_hold_now():
    x = torch.ones(4, device="npu")
    graph, y = captured(lambda: (x + 1).mul_(3).relu())
    for value in (1.0, 5.0, -9.0):
        x.fill_(value)
        graph.replay()
        assert y.tolist() == [max(0.0, (value + 1) * 3)] * 4


def test_a_capture_computes_nothing():
    x = torch.zeros(4, device="npu")
    graph, _ = captured(lambda: x.add_(1))
    assert x.tolist() == [0.0] * 4
    graph.replay()
    graph.replay()
    assert x.tolist() == [2.0] * 4


def test_memory_freed_in_a_capture_is_used_again_in_it_and_stays_reserved():
    x = torch.ones(MIB, device="npu")
    before = torch.npu.memory_reserved()

    def chain():
        y = x
        for _ in range(20):
            y = y + 1
        return y

    graph, y = captured(chain)
    grown = torch.npu.memory_reserved() - before
    assert 4 * MIB <= grown <= 3 * 4 * MIB + 8 * MIB  # two of twenty intermediate results at a time
    assert {each["segment_pool_id"] for each in torch.npu.memory_snapshot()} >= {graph.pool()}
    del y
    torch.npu.empty_cache()
    assert torch.npu.memory_reserved() - before == grown
    graph.replay()
    graph.reset()
    torch.npu.empty_cache()
    assert torch.npu.memory_reserved() == before


def test_graphs_share_a_pool():
    x = torch.ones(8 * MIB, device="npu")
    pool = torch.npu.graph_pool_handle()
    first, y = captured(lambda: x * 2, pool=pool)
    del y
    one = torch.npu.memory_reserved()
    second, z = captured(lambda: x * 3, pool=pool)
    assert torch.npu.memory_reserved() == one
    assert first.pool() == second.pool() == pool
    second.replay()
    assert z[:3].tolist() == [3.0] * 3


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda x: x.sum().item(), "107027"),
        (lambda x: x.cpu(), "107027"),
        (lambda x: x.nonzero(), "107027"),
        (lambda x: torch.npu.synchronize(), "107030"),
        (lambda x: torch.npu.current_stream().synchronize(), "107027"),
        (lambda x: x.copy_(torch.ones(4)), "107027"),
        (lambda x: torch.npu.manual_seed(torch.npu.initial_seed() + 1), "same as the original seed"),
    ],
)
def test_what_a_capture_cannot_hold_is_an_error_and_ends_it(call, text):
    x = torch.ones(4, device="npu")
    with pytest.raises(RuntimeError, match=text):
        captured(lambda: call(x))
    assert not torch.npu.is_current_stream_capturing()
    assert x.sum().item() == 4
    graph, y = captured(lambda: x + 1)  # the next capture works
    graph.replay()
    assert y.tolist() == [2.0] * 4


def test_the_order_of_calls_is_checked():
    graph = torch.npu.NPUGraph()
    with pytest.raises(RuntimeError, match="must be captured on a non-default stream"):
        graph.capture_begin()
    with pytest.raises(RuntimeError, match="without a preceding successful capture"):
        graph.replay()
    with pytest.raises(RuntimeError, match="before capture_begin"):
        graph.capture_end()
    with pytest.raises(RuntimeError, match="Unknown capture error mode"):
        captured(lambda: None, capture_error_mode="strict")
    x = torch.ones(2, device="npu")
    graph, _ = captured(lambda: x + 1)
    with pytest.raises(RuntimeError, match="already owns a captured graph"), torch.npu.graph(graph):
        pass
    with pytest.raises(RuntimeError, match="107030"):
        captured(lambda: captured(lambda: x + 1))


def test_an_empty_graph_is_warned_of():
    with pytest.warns(UserWarning, match="The NPU Graph is empty"):
        captured(lambda: None)


def test_pinned_memory_is_read_at_each_replay():
    host = torch.ones(4).pin_memory()
    x = torch.zeros(4, device="npu")
    graph, _ = captured(lambda: x.copy_(host, non_blocking=True))
    host.fill_(7)
    graph.replay()
    assert x.tolist() == [7.0] * 4


def test_random_numbers_go_on_from_replay_to_replay():
    torch.npu.manual_seed(3)
    wanted = [torch.rand(4, device="npu").cpu() for _ in range(4)]
    torch.npu.manual_seed(3)
    graph, pair = captured(
        lambda: (torch.rand(4, device="npu"), torch.nn.functional.dropout(torch.ones(2, device="npu")))
    )
    graph.replay()
    assert torch.equal(pair[0].cpu(), wanted[0])
    graph.replay()
    assert torch.equal(pair[0].cpu(), wanted[2])
    assert torch.npu._get_rng_state_offset() == 4 * 12


def test_a_training_step_in_a_graph_is_that_of_eager():
    def made():
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.Linear(16, 1)).to("npu")
        return model, torch.optim.Adam(model.parameters(), lr=0.01, capturable=True)

    batches = [torch.randn(4, 8) for _ in range(5)]

    def step(model, optimizer, x):
        optimizer.zero_grad(set_to_none=True)
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss

    model, optimizer = made()
    eager = [step(model, optimizer, batch.to("npu")).item() for batch in batches]
    model, optimizer = made()
    x = batches[0].to("npu")
    with torch.npu.stream(torch.npu.Stream()):
        for _ in range(2):
            step(model, optimizer, x)
    model2, _ = made()
    model.load_state_dict(model2.state_dict())
    for state in optimizer.state.values():
        for value in state.values():
            value.zero_()
    graph, loss = captured(lambda: step(model, optimizer, x))
    found = []
    for batch in batches:
        x.copy_(batch)
        graph.replay()
        found.append(loss.item())
    assert found == pytest.approx(eager, rel=1e-5)


def test_callables_become_graphs_in_both_passes():
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Tanh()).to("npu")
    x = torch.randn(4, 8, device="npu", requires_grad=True)
    y = torch.randn(4, 8, device="npu", requires_grad=True)
    expected = model(y).square().sum()
    gradients = torch.autograd.grad(expected, [y, *model.parameters()])
    graphed = torch.npu.make_graphed_callables(model, (x,))
    found = graphed(y).square().sum()
    torch.testing.assert_close(found, expected)
    for got, want in zip(torch.autograd.grad(found, [y, *model.parameters()]), gradients, strict=True):
        torch.testing.assert_close(got, want)
    model.eval()
    assert graphed(y).shape == (4, 8)


def test_streams_that_fork_and_join():
    x, side = torch.full((4,), 2.0, device="npu"), torch.npu.Stream()

    def branches():
        main = torch.npu.current_stream()
        side.wait_stream(main)
        with torch.npu.stream(side):
            b = x * x
        a = x + 1
        main.wait_stream(side)
        return a + b

    graph, y = captured(branches)
    graph.replay()
    assert y.tolist() == [7.0] * 4


def test_a_stream_that_is_not_joined_ends_the_capture_with_107025():
    x, side = torch.ones(4, device="npu"), torch.npu.Stream()

    def fork():
        side.wait_stream(torch.npu.current_stream())
        with torch.npu.stream(side):
            return x * 2

    with pytest.raises(RuntimeError, match="107025"):
        captured(fork)


def test_an_event_that_was_freed_joins_no_stream_through_a_new_one_with_its_id():
    x, side = torch.ones(4, device="npu"), torch.npu.Stream()

    def fork():
        side.wait_stream(torch.npu.current_stream())
        with torch.npu.stream(side):
            doubled = x * 2
            torch.npu.Event().record()
        events = [torch.npu.Event() for _ in range(10)]  # the first has the address of the freed one
        for event in events:
            event.wait()
        return doubled

    with pytest.raises(RuntimeError, match="107025"):
        captured(fork)


@pytest.fixture
def updatable():
    """A graph whose operator takes a list on the host: the graph, its result, and a function that updates it."""
    from toprope.sim.npu._npugraph_handlers import npugraph_handler as handlers

    library = torch.library.Library("graph_tests", "FRAGMENT")
    library.define("scaled(Tensor x, *, int[] factors) -> Tensor")
    library.impl("scaled", lambda x, *, factors: x * factors[0], "CompositeExplicitAutograd")

    @torch.npu.register_npu_graph_handler("scaled.default")
    class Handler(torch.npu.NpuGraphOpHandler):
        UPDATE_SPECS: ClassVar = {"scaled.default": [("kwarg", "factors", "factors")]}

    x = torch.ones(4, device="npu")
    graph, y = captured(lambda: torch.ops.graph_tests.scaled(x, factors=[2]) + 1, auto_dispatch_capture=True)
    yield graph, y, lambda factor: graph.update(cpu_update_input=[{"factors": [factor]}])
    del handlers._NPU_GRAPH_OP_HANDLERS["scaled.default"]
    library._destroy()


def test_an_update_after_the_replay_was_seen_by_the_next_one_only(updatable):
    """A replay waits for its update, in whatever order they are called, and from another thread."""
    graph, y, update = updatable
    update(5)
    graph.replay()
    assert y.tolist() == [6.0] * 4
    graph.replay()
    update(7)
    assert y.tolist() == [8.0] * 4
    thread = threading.Thread(target=lambda: (time.sleep(0.05), update(9)))
    thread.start()
    graph.replay()
    assert y.tolist() == [10.0] * 4
    thread.join()


def test_a_group_of_operators_is_updated_and_an_external_event_holds_the_replay_up():
    x, out = torch.ones(4, device="npu"), torch.empty(4, device="npu")
    event, update_stream, handles = torch.npu.ExternalEvent(), torch.npu.Stream(), []

    def group():
        stream = torch.npu.current_stream()
        event.wait(stream)
        event.reset(stream)
        torch.npu.graph_task_group_begin(stream)
        torch.mul(x, 2.0, out=out)
        handles.append(torch.npu.graph_task_group_end(stream))
        return out + 1

    graph, y = captured(group)
    graph.replay()  # held up until the event is recorded
    with torch.npu.stream(update_stream):
        torch.npu.graph_task_update_begin(update_stream, handles[0])
        torch.mul(x, 5.0, out=out)
        torch.npu.graph_task_update_end(update_stream)
        event.record(update_stream)
    assert y.tolist() == [6.0] * 4
    torch.npu.graph_task_update_begin(update_stream, handles[0])
    torch.add(x, 5.0, out=out)
    with pytest.raises(RuntimeError, match="107040"):
        torch.npu.graph_task_update_end(update_stream)
    with pytest.raises(RuntimeError, match="107029"):
        torch.npu.graph_task_group_begin(update_stream)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"optimize_options": 3}, "must be dict or None"),
        ({"optimize_options": {"speed": 1}}, "Invalid optimize_options param key: 'speed'"),
        ({"debug_options": {"debug_sync_all": "yes"}}, "must be int, got str"),
        ({"optimize_options": {"dcci_disable_on_kernel": [1]}}, r"\[0\] must be str, got int"),
        ({"optimize_options": {"aggressive_opt_strategies": {"all": 1}}}, "Invalid sub_key 'all'"),
    ],
)
def test_options_of_super_kernels_are_checked(options, text):
    graph = torch.npu.NPUGraph()
    with pytest.raises(RuntimeError, match=text):
        graph.super_kernel_optimize(**options)
    graph.super_kernel_optimize({"stream_fusion": 1, "aggressive_opt_strategies": {"task_breaker_bypass": 0}}, None)


def test_a_graph_of_the_accelerator():
    x = torch.ones(4, device="npu")
    graph = torch.accelerator.Graph()
    with torch.npu.Stream(), graph:
        y = x * 3
    x.fill_(2)
    graph.replay()
    assert y.tolist() == [6.0] * 4
    assert graph.pool() != (0, 0)
    graph.reset()
    with pytest.raises(RuntimeError, match="without a preceding"):
        graph.replay()


def test_the_operators_are_written_as_a_trace_and_laid_out_in_a_second_file(tmp_path, monkeypatch, caplog):
    x = torch.ones(4, device="npu")
    graph, _ = captured(lambda: (x + 1) * 2)
    graph.debug_dump(str(tmp_path / "graph.json"))
    for name in ("graph.json", "graph.aligned.json"):
        events = json.loads((tmp_path / name).read_text())
        assert [event["name"] for event in events] == ["aten.add.Tensor", "aten.mul.Tensor"]
        assert {event["ph"] for event in events} == {"X"}
    assert [(event["ts"], event["dur"]) for event in events] == [(0.0, 1.0), (1.2, 1.0)]

    def fail(*args):
        raise RuntimeError("no room")

    monkeypatch.setattr("toprope.sim.npu._npugraph_utils.align_trace_json", fail)
    graph.debug_dump(str(tmp_path / "other.json"))
    assert (tmp_path / "other.json").exists()
    assert not (tmp_path / "other.aligned.json").exists()
    assert "Failed to generate aligned trace" in caplog.text


def test_a_stream_that_sleeps_holds_up_its_own_work_only():
    stream = torch.npu.Stream()
    with torch.npu.stream(stream):
        torch.npu._sleep(300_000_000)
        event = stream.record_event()
    assert not event.query()
    assert torch.ones(2, device="npu").tolist() == [1.0, 1.0]
    event.synchronize()
    with pytest.raises(RuntimeError, match="at least 0"):
        torch.npu._sleep(-1)


def test_a_pool_of_the_program():
    pool = torch.npu.MemPool()
    assert pool.use_count() == 1
    with torch.npu.use_mem_pool(pool):
        assert pool.use_count() == 2
        x = torch.ones(MIB, device="npu")
    y = torch.ones(MIB, device="npu")
    inside = pool.snapshot()
    assert [each["segment_pool_id"] for each in inside] == [pool.id]
    spans = [(each["address"], each["address"] + each["total_size"]) for each in inside]
    assert any(begin <= x.data_ptr() < end for begin, end in spans)
    assert not any(begin <= y.data_ptr() < end for begin, end in spans)
    name = pool.id
    del x, pool
    gc.collect()
    torch.npu.empty_cache()
    assert all(each["segment_pool_id"] != name for each in torch.npu.memory_snapshot())


def test_every_replay_draws_the_dropout_of_fused_attention_again():
    x = torch.ones(1, 2, 16, 8, device="npu")
    graph = torch.npu.NPUGraph()
    with torch.npu.graph(graph):
        y = torch_npu.npu_fusion_attention(x, x, x, 2, "BNSD", keep_prob=0.5)[0]
    graph.replay()
    first = y.clone()
    graph.replay()
    assert not torch.equal(first, y)


def test_replays_draw_the_dropout_of_fused_attention_that_calls_without_a_graph_draw():
    x = torch.rand(1, 2, 16, 8, device="npu")

    def attended():
        noise = torch.rand(1, 2, 16, 8, device="npu")
        out, largest, total, _, seed, offset = torch_npu.npu_fusion_attention_v3(x, x, x, 2, "BNSD", keep_prob=0.5)
        gradients = torch_npu.npu_fusion_attention_grad_v3(
            x, x, x, noise, 2, "BNSD", softmax_max=largest, softmax_sum=total, attention_in=out, keep_prob=0.5,
            seed=seed, offset=offset,
        )  # fmt: skip
        return out, noise, *gradients[:3]

    state = torch.npu.get_rng_state()
    wanted = [attended() for _ in range(2)]
    graph = torch.npu.NPUGraph()
    with torch.npu.graph(graph):
        found = attended()
    torch.npu.set_rng_state(state)
    for each in wanted:
        graph.replay()
        assert all(torch.equal(have, want) for have, want in zip(found, each, strict=True))
    assert not torch.equal(wanted[0][0], wanted[1][0])


def test_gradient_of_fused_attention_v3_is_captured_with_its_seed_on_the_cpu():
    x, ones = torch.rand(1, 2, 4, 8, device="npu"), torch.ones(1, 2, 4, 8, device="npu")

    def gradient():
        out, largest, total, _, seed, offset = torch_npu.npu_fusion_attention_v3(x, x, x, 2, "BNSD")
        return torch_npu.npu_fusion_attention_grad_v3(
            x, x, x, ones, 2, "BNSD", softmax_max=largest, softmax_sum=total, attention_in=out, seed=seed, offset=offset
        )[0]

    graph = torch.npu.NPUGraph()
    with torch.npu.graph(graph):
        result = gradient()
    graph.replay()
    assert torch.equal(result, gradient())


def test_a_pool_serves_a_full_card_if_it_was_made_for_that():
    def taken(pool):
        with torch.npu.use_mem_pool(pool):
            return torch.empty(40 * MIB, dtype=torch.int8, device="npu").data_ptr()

    torch.npu.empty_cache()
    closed, opened = torch.npu.MemPool(), torch.npu.MemPool(use_on_oom=True)
    allowed = torch.npu.memory_reserved() + 88 * MIB
    torch.npu.set_per_process_memory_fraction(allowed / torch.npu.mem_get_info()[1])
    try:
        taken(closed)
        address = taken(opened)
        x = torch.empty(30 * MIB, dtype=torch.int8, device="npu")
        assert x.data_ptr() == address
        with pytest.raises(torch.OutOfMemoryError):
            torch.empty(30 * MIB, dtype=torch.int8, device="npu")
        del x, opened
        with pytest.raises(torch.OutOfMemoryError):
            torch.empty(80 * MIB, dtype=torch.int8, device="npu")
    finally:
        torch.npu.set_per_process_memory_fraction(1.0)


def test_a_pool_without_splits_has_one_block_in_each_piece():
    pools = torch.npu.MemPool(), torch.npu.MemPool(no_split=True)
    tensors = []
    for pool in pools:
        with torch.npu.use_mem_pool(pool):
            tensors += [torch.empty(4 * MIB, dtype=torch.int8, device="npu") for _ in range(2)]
    assert [[len(piece["blocks"]) for piece in pool.snapshot()] for pool in pools] == [[3], [1, 1]]


def test_a_block_that_a_stream_used_is_reused_before_its_piece_is_cut():
    stream = torch.npu.Stream()
    with torch.npu.use_mem_pool(torch.npu.MemPool()):
        x = torch.empty(MIB, dtype=torch.int8, device="npu")
        address = x.data_ptr()
        x.record_stream(stream)
        del x
        torch.npu.synchronize()
        assert torch.empty(MIB, dtype=torch.int8, device="npu").data_ptr() == address


def test_no_crash_when_a_graph_outlives_its_results_and_inputs():
    def made():
        x = torch.ones(4, device="npu")
        return captured(lambda: x * 2)[0]

    graph = made()
    gc.collect()
    for _ in range(3):
        filler = torch.zeros(4, device="npu")
        graph.replay()
        assert filler.sum().item() == 0


# ---- conditions, functions of the host, plans of updates


def captured_condition(function, *args):
    from toprope.sim.npu._npugraph_conditional_nodes import NPUGraphCaptureControlFlowOpDispatchMode

    graph = torch.npu.NPUGraph()
    with torch.npu.graph(graph, stream=torch.npu.Stream()), NPUGraphCaptureControlFlowOpDispatchMode():
        result = function(*args)
    return graph, result


def test_a_replay_takes_the_branch_that_the_tensor_of_the_card_says():
    x, outer, inner = torch.tensor([1.0, 2.0], device="npu"), *torch.ones(2, dtype=torch.bool, device="npu").unbind()

    def nested(x, outer, inner):
        within = lambda x: torch.cond(inner, lambda x: x + 1, lambda x: x * 10, (x,))  # noqa: E731
        return torch.cond(outer, within, lambda x: x - 1, (x,)) + 0.5

    graph, y = captured_condition(nested, x, outer, inner)
    for first, second, wanted in ((True, True, [2.5, 3.5]), (True, False, [10.5, 20.5]), (False, True, [0.5, 1.5])):
        outer.fill_(first)
        inner.fill_(second)
        graph.replay()
        assert y.tolist() == wanted


def test_conditions_of_a_graph_are_one_bool_of_its_card_and_draw_no_random_numbers():
    x = torch.ones(2, device="npu")

    def branch(condition, function=torch.sin):
        return captured_condition(lambda: torch.cond(condition, function, torch.cos, (x,)))

    with pytest.raises(ValueError, match="Conditions must be on an npu device"):
        branch(torch.tensor(True))
    with pytest.raises(RuntimeError, match="Conditions must be bool tensors"):
        branch(torch.ones((), dtype=torch.int32, device="npu"))
    with pytest.raises(RuntimeError, match="generator is not registered"):
        branch(torch.ones((), dtype=torch.bool, device="npu"), lambda x: x + torch.rand_like(x))
    with pytest.raises(RuntimeError, match="not currently capturing"):
        torch.npu.NPUGraph.get_currently_capturing_graph()
    with pytest.raises(RuntimeError, match="must be called before begin_capture_to_if_node"):
        torch.npu.NPUGraph().begin_capture_to_if_node(torch.ones((), dtype=torch.bool, device="npu"))


def test_runs_before_a_capture_compute_the_branch_that_is_taken():
    from toprope.sim.npu._npugraph_conditional_nodes import ControlFlowOpWarmupDispatchMode

    x, condition = torch.ones(2, device="npu"), torch.zeros((), dtype=torch.bool, device="npu")
    with ControlFlowOpWarmupDispatchMode():
        y = torch.cond(condition, lambda x: x + 1, lambda x: x - 1, (x,))
    assert y.tolist() == [0.0, 0.0]


def test_the_graph_that_is_captured_is_known_but_not_one_of_torch_accelerator():
    graph = torch.npu.NPUGraph()
    with torch.npu.graph(graph):
        assert torch.npu.NPUGraph.get_currently_capturing_graph() is graph
        torch.ones(1, device="npu").add_(1)
    with torch.Stream(), torch.accelerator.Graph():
        torch.ones(1, device="npu").add_(1)
        with pytest.raises(RuntimeError, match=r"during torch\.accelerator\.Graph"):
            torch.npu.NPUGraph.get_currently_capturing_graph()


def test_functions_of_the_host_are_called_at_each_replay_on_a_stream_that_is_served():
    stream, seen, x = torch.npu.Stream(), [], torch.ones(1, device="npu")
    with pytest.raises(RuntimeError, match="107015"):
        torch.npu._launch_host_func(stream, seen.append, 0)
    torch.npu._subscribe_report(stream)
    torch.npu._launch_host_func(stream, seen.append, "at once")
    graph = torch.npu.NPUGraph()
    with torch.npu.graph(graph, stream=stream):
        y = x + 1
        torch.npu._launch_host_func(stream, lambda result: seen.append(result.item()), y)
    assert seen == ["at once"]
    for value in (1.0, 5.0):
        x.fill_(value)
        graph.replay()
    assert seen == ["at once", 2.0, 6.0]
    torch.npu._unsubscribe_report(stream)
    with pytest.raises(RuntimeError, match="107015"):
        torch.npu._launch_host_func(stream, seen.append, 0)


def test_pending_functions_of_the_host_get_their_arguments_and_what_tensors_of_the_host_hold_then():
    """They got one argument, the tuple; and tensors that are named by their address stayed names."""
    from toprope.sim.npu import graphs

    seen, x = [], torch.ones(2, 3, device="npu")
    host = torch.zeros(2, 3).pin_memory()

    def note(name, tensors):
        seen.append((name, [each.tolist() for each in graphs._materialize_npugraph_tensor_arg(tensors)]))

    graph, stream = torch.npu.NPUGraph(), torch.npu.Stream()
    with torch.npu.graph(graph, stream=stream):
        host.copy_(x * 2, non_blocking=True)
        named = [graphs._make_npugraph_tensor_ptr_spec(host), graphs._make_npugraph_tensor_ptr_spec(torch.empty(0))]
        torch.npu._launch_host_func_pending(stream, note, ("host", named))
    for value in (1.0, 3.0):
        x.fill_(value)
        graph.replay()
    assert seen == [("host", [[[2.0] * 3] * 2, []]), ("host", [[[6.0] * 3] * 2, []])]


def test_a_graph_is_refused_where_pinned_memory_has_expandable_segments(monkeypatch):
    monkeypatch.setenv("PYTORCH_NPU_ALLOC_CONF", "max_split_size_mb:64,pin_memory_expandable_segments:True")
    with pytest.raises(RuntimeError, match="pin_memory_expandable_segments"):
        captured(lambda: torch.ones(1, device="npu"))


class Call:
    """A captured call, as a plan sees it."""

    def __init__(self, name: str, **kwargs: object) -> None:
        self.op_cache_entry = type("Entry", (), {"__name__": name})()
        self.kwargs = kwargs


ATTENTION = "npu_fused_infer_attention_score"


def test_a_plan_reads_inputs_constants_and_lists():
    from toprope.sim.npu._aclgraph_update_plan import build_cpu_update_input_for_graph

    sources = {"kind": "list", "items": [{"kind": "input", "index": 1}, {"kind": "constant", "value": 7}]}
    plan = [{"op": f"{ATTENTION}.default", "updates": {"actual_seq_lengths": sources}}]
    found = build_cpu_update_input_for_graph(plan, ["query", 3], [Call(f"{ATTENTION}.out")])
    assert found == [{"actual_seq_lengths": [3, 7]}]


@pytest.mark.parametrize(
    ("plan", "text"),
    [
        ([], "missing ACLGraph update plan"),
        ([{}, {}], "length mismatch"),
        ([7], "invalid plan entry"),
        ([{"updates": {}}], "op must be a string"),
        ([{"op": "another.out", "updates": {}}], "op mismatch"),
        ([{"op": f"{ATTENTION}.out", "updates": {}}], "no updates"),
        ([{"op": f"{ATTENTION}.out", "updates": {"query": {"kind": "none"}}}], "cannot consume"),
        ([{"op": f"{ATTENTION}.out", "updates": {"actual_seq_lengths": {"kind": "sum"}}}], "unsupported source kind"),
        ([{"op": f"{ATTENTION}.out", "updates": {"actual_seq_lengths": {"kind": "input", "index": -1}}}], "index -1"),
        (
            [{"op": f"{ATTENTION}.out", "updates": {"actual_seq_lengths": {"kind": "constant", "value": [{}]}}}],
            "unsupported constant",
        ),
    ],
)
def test_a_plan_that_does_not_fit_the_graph_is_refused(plan, text):
    from toprope.sim.npu._aclgraph_update_plan import validate_aclgraph_update_plan

    with pytest.raises(RuntimeError, match=text):
        validate_aclgraph_update_plan(plan, [Call(f"{ATTENTION}.out")])


def test_a_plan_names_the_inputs_of_a_compiled_function():
    from toprope.compat.torch_npu._inductor._aclgraph_update_plan.codegen import (
        build_aclgraph_update_plan_entry_for_inductor as entry,
    )

    buffer = type("Buffer", (), {"get_name": lambda self: "lengths"})()
    operator = torch.ops.npu.npu_fused_infer_attention_score.default
    given = {"actual_seq_lengths": buffer, "actual_seq_lengths_kv": [4, buffer], "num_heads": 2}
    found = entry(operator, ["q", "k", "v"], given, ["query", "lengths"], {})
    number = {"kind": "input", "index": 1}
    assert found == {
        "op": f"{ATTENTION}.default",
        "updates": {
            "actual_seq_lengths": number,
            "actual_seq_lengths_kv": {"kind": "list", "items": [{"kind": "constant", "value": 4}, number]},
        },
    }
    assert entry(torch.ops.aten.add.Tensor, [1, 2], {}, [], {}) is None
    with pytest.raises(RuntimeError, match="Tensor constant"):
        entry(operator, ["q", "k", "v"], {"actual_seq_lengths": torch.ones(1)}, [], {})
