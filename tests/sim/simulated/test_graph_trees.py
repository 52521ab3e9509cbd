"""torch.compile(mode="reduce-overhead"): graphs are recorded in one pool and replayed, with torch's checks.

Holds sim/npu/graph_trees and sim/inductor against results without graphs, and torch's own checks.
tests/sim/test_simulated.py runs this module in a process with simulated cards.
"""

import copy
import gc
import importlib
import itertools
import logging
from pathlib import Path

import pytest
import torch
from torch import nn
from torch._inductor.cudagraph_utils import CUDAGraphPolicy

SIM = "910B3,refuse=off"
ENVIRONMENT = {"TORCHINDUCTOR_COMPILE_THREADS": "1"}

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning:torch"),
    pytest.mark.filterwarnings("ignore:.*TypedStorage:UserWarning"),
    pytest.mark.filterwarnings("ignore:The AccumulateGrad node's stream does not match"),
    # torch keeps it to itself, which a filter that makes it an error goes past
    pytest.mark.filterwarnings("ignore:The NPU Graph is empty"),
]


@pytest.fixture(autouse=True)
def fresh_trees(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    from toprope.sim.npu.graph_trees import trees

    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    trees.reset_npugraph_trees()
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    yield
    torch._dynamo.reset()
    trees.reset_npugraph_trees()


def manager():
    from toprope.sim.npu.graph_trees import trees

    return trees.get_manager(0)


def state() -> str:
    return str(manager().path_state.name)


def recordings() -> int:
    return sum(1 + root.num_descendants() for root in manager().get_roots())


def skips() -> int:
    return int(torch._dynamo.utils.counters["inductor"]["cudagraph_skips"])


def reduced(function):
    return torch.compile(function, mode="reduce-overhead")


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 4)).npu()


def test_inference_is_warmed_up_recorded_and_replayed_with_eagers_numbers():
    model = net()
    fast = reduced(model)
    states = []
    with torch.no_grad():
        for _ in range(4):
            x = torch.randn(3, 8, device="npu")
            torch.testing.assert_close(fast(x), model(x))
            states.append(state())
    assert states == ["WARMUP", "RECORDING", "EXECUTION", "EXECUTION"]
    assert (recordings(), skips()) == (1, 0)


def test_training_records_both_passes_with_eagers_gradients():
    model = net()
    plain = copy.deepcopy(model)
    fast = reduced(model)
    for step in range(5):
        x = torch.randn(3, 8, device="npu")
        losses = []
        for each, parameters in ((fast, model), (plain, plain)):
            parameters.zero_grad()
            loss = each(x).square().mean()
            loss.backward()
            losses.append(loss.detach().clone())
        torch.testing.assert_close(*losses)
        for ours, theirs in zip(model.parameters(), plain.parameters(), strict=True):
            torch.testing.assert_close(ours.grad, theirs.grad)
        assert state() == ("WARMUP", "RECORDING")[step] if step < 2 else state() == "EXECUTION"
    assert recordings() == 2  # the backward pass below the forward pass


def test_a_result_that_a_later_run_overwrote_raises_torch_npus_text():
    fast = reduced(lambda x: x * 2)
    x = torch.ones(4, device="npu")
    with torch.no_grad():
        old = fast(x)
        fast(x)
    text = "accessing tensor output of NPUGraphs that has been overwritten by a subsequent run"
    for use in (lambda: old + 1, old.tolist, lambda: old.copy_(x), lambda: old.cpu(), lambda: torch.mm(old, old)):
        with pytest.raises(RuntimeError, match=text):
            use()
    with pytest.raises(RuntimeError, match=r"torch\.compiler\.npugraph_mark_step_begin"):
        old.tolist()


def test_a_view_of_an_overwritten_result_raises_it_too():
    fast = reduced(lambda x: x * 2)
    x = torch.ones(4, device="npu")
    with torch.no_grad():
        view = fast(x)[1:]
        fast(x)
    with pytest.raises(RuntimeError, match="overwritten by a subsequent run"):
        view.tolist()


def test_marked_steps_let_results_of_one_step_live_together():
    fast = reduced(lambda x: x * 2)
    x = torch.ones(4, device="npu")
    with torch.no_grad():
        for step in range(4):
            torch.compiler.npugraph_mark_step_begin()
            first, second = fast(x + step), fast(x - step)
            assert (first.tolist(), second.tolist()) == ([2.0 + 2 * step] * 4, [2.0 - 2 * step] * 4)


def test_random_numbers_of_a_replay_go_on():
    fast = reduced(lambda x: nn.functional.dropout(x, 0.5))
    x = torch.ones(1000, device="npu")
    with torch.no_grad():
        masks = [fast(x).cpu() for _ in range(4)]
    assert state() == "EXECUTION"
    assert all(not a.equal(b) for a, b in itertools.pairwise(masks))


def test_a_buffer_that_the_graph_changes_is_changed_once_a_call():
    """A recording runs the function to see its results: the buffer must not be changed by that, too."""

    class Counter(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("calls", torch.zeros(1))

        def forward(self, x):
            self.calls.add_(1)
            return x + self.calls

    counter = Counter().npu()
    fast = reduced(counter)
    with torch.no_grad():
        seen = [fast(torch.zeros(2, device="npu")).tolist() for _ in range(5)]
    assert seen == [[float(call)] * 2 for call in range(1, 6)]
    assert (counter.calls.item(), state()) == (5.0, "EXECUTION")


def test_another_function_after_a_replay_keeps_the_results_that_are_alive():
    """The allocator goes back to the end of the recording: what is alive must not be handed out again."""
    double, tenfold = reduced(lambda x: (x * 2, x * 3)), reduced(lambda x: x * 10)
    x = torch.ones(300, device="npu")
    with torch.no_grad():
        for _ in range(3):
            torch.compiler.npugraph_mark_step_begin()
            twice, thrice = double(x)
        del thrice  # its memory is free for what follows
        for step in range(4):
            ten = tenfold(twice)
            assert (ten.tolist(), twice.tolist()) == ([20.0] * 300, [2.0] * 300)
            torch.compiler.npugraph_mark_step_begin()
            twice, _ = double(x)
            del ten
            assert step < 2 or state() == "EXECUTION"
    assert manager().debug_checkpointing_counter >= 1


def test_trees_that_are_reset_give_their_memory_back():
    gc.collect()
    torch.npu.empty_cache()
    before = torch.npu.memory_reserved()
    from toprope.sim.npu.graph_trees import trees

    fast = reduced(lambda x: x * 2)
    with torch.no_grad():
        for _ in range(3):
            fast(torch.ones(1 << 20, device="npu"))
    assert torch.npu.memory_reserved() > before
    del fast
    torch._dynamo.reset()
    trees.reset_npugraph_trees()
    gc.collect()
    torch.npu.empty_cache()
    assert torch.npu.memory_reserved() == before


@pytest.mark.parametrize(
    ("function", "inputs", "reason"),
    [
        (lambda x, y: (x * 2, y * 2), lambda: (torch.ones(2, device="npu"), torch.ones(2)), "cpu device"),
        (lambda x: x.add_(1) * 2, lambda: (torch.ones(2, device="npu"),), "mutated inputs"),
    ],
)
def test_what_cannot_be_recorded_runs_without_graphs_and_says_why(function, inputs, reason, caplog):
    fast = reduced(function)
    caplog.set_level(logging.WARNING, "torch._inductor.cudagraph_utils")
    torch._logging.set_logs(cudagraphs=True)
    try:
        with torch.no_grad():
            found, wanted = fast(*inputs()), function(*inputs())
    finally:
        torch._logging.set_logs()
    torch.testing.assert_close(found, wanted)
    assert skips() == 1
    assert f"skipping cudagraphs due to {reason}" in caplog.text


def test_a_compiled_function_in_a_graph_that_the_program_captures():
    """It was computed at once, and not part of the graph."""
    fast = torch.compile(lambda x: torch.nn.functional.gelu(x) * 2)
    x = torch.ones(4, device="npu")
    fast(x)
    graph = torch.npu.NPUGraph()
    with torch.npu.graph(graph):
        y = fast(x + 1)
    for value in (0.0, 3.0):
        x.fill_(value)
        graph.replay()
        torch.testing.assert_close(y, torch.nn.functional.gelu(x + 1) * 2)


def test_the_module_of_torch_npus_name_is_the_one_that_inductor_uses():
    from toprope.sim.npu.graph_trees import trees

    assert importlib.import_module("toprope.sim.npu._graph_tree") is trees


def test_no_name_of_cuda_is_left_in_torchs_module():
    """Another torch may have other names, which the renaming must know or leave on purpose."""
    from toprope.sim.npu.graph_trees import trees

    names = {name for name in vars(trees) if "cuda" in name.lower()}
    assert names == set()


def graphed(function):
    return torch.compile(function, backend="npugraphs")


def test_the_backend_npugraphs_records_operators_as_they_are():
    model = net()
    fast = graphed(model)
    states = []
    with torch.no_grad():
        for _ in range(4):
            x = torch.randn(3, 8, device="npu")
            torch.testing.assert_close(fast(x), model(x))
            states.append(state())
    assert states == ["WARMUP", "RECORDING", "EXECUTION", "EXECUTION"]
    assert (recordings(), skips()) == (1, 0)


def test_the_backend_npugraphs_records_both_passes_of_training():
    model = net()
    plain = copy.deepcopy(model)
    fast = graphed(model)
    for _ in range(4):
        x = torch.randn(3, 8, device="npu")
        for each, parameters in ((fast, model), (plain, plain)):
            parameters.zero_grad()
            each(x).square().mean().backward()
        for ours, theirs in zip(model.parameters(), plain.parameters(), strict=True):
            torch.testing.assert_close(ours.grad, theirs.grad)
    assert state() == "EXECUTION"
    assert recordings() == 2


def test_the_backend_npugraphs_runs_what_cannot_be_recorded():
    fast = graphed(lambda x, y: (x * 2, y * 2))
    with torch.no_grad():
        found = fast(torch.ones(2, device="npu"), torch.ones(2))
    assert [each.tolist() for each in found] == [[2.0, 2.0], [2.0, 2.0]]
    assert skips() == 1
    assert graph_count() == 0


def test_a_reset_of_the_compiler_drops_the_graphs_of_npugraphs():
    fast = graphed(lambda x: x * 2)
    with torch.no_grad():
        for _ in range(3):
            fast(torch.ones(2, device="npu"))
    assert graph_count() == 1
    torch.compiler.reset()
    assert graph_count() == 0


def graph_count() -> int:
    from toprope.sim.npu.graph_trees import trees

    found = trees.get_manager(0, create_if_none_exists=False)
    return 0 if found is None else recordings()


class Policy(CUDAGraphPolicy):
    """Notes its calls, and lets torch do what it does without a policy."""

    def __init__(self, wraps: bool = True) -> None:
        self.wraps = wraps
        self.calls: list[str] = []

    def cudagraphify(self, model, example_inputs, static_input_idxs, **facts):
        self.calls.append(f"cudagraphify {example_inputs[0].device.type} {facts['device_index']}")
        return super().cudagraphify(model, example_inputs, static_input_idxs, **facts)

    def should_wrap(self, compiled_graph):
        self.calls.append("should_wrap")
        return self.wraps

    def wrap_output(self, output_code):
        self.calls.append(f"wrap_output {[*output_code.device_types]}")
        return output_code


def test_a_policy_of_the_program_decides_over_graphs():
    policy = Policy()
    x = torch.ones(4, device="npu")
    with torch._inductor.config.patch("cudagraph_policy", policy), torch.no_grad():
        fast = reduced(lambda x: x * 2 + 1)
        states = []
        for _ in range(3):
            assert fast(x).tolist() == [3.0] * 4
            states.append(state())
    assert policy.calls == ["should_wrap", "cudagraphify npu 0", "wrap_output ['npu']"]
    assert states == ["WARMUP", "RECORDING", "EXECUTION"]


def test_a_policy_that_wraps_no_function_leaves_it_without_graphs():
    policy = Policy(wraps=False)
    with torch._inductor.config.patch("cudagraph_policy", policy), torch.no_grad():
        fast = reduced(lambda x: x * 2 + 1)
        assert [fast(torch.ones(4, device="npu")).tolist() for _ in range(3)] == [[3.0] * 4] * 3
    assert policy.calls == ["should_wrap", "wrap_output ['npu']"]
    assert (graph_count(), skips()) == (0, 1)


def test_a_policy_that_wraps_the_output_gets_tensors_of_the_card():
    seen = []

    class Outer(Policy):
        def wrap_output(self, output_code):
            inner = output_code.current_callable

            def called(inputs):
                seen.append(inputs[0].device.type)
                return inner(inputs)

            called._boxed_call = True
            output_code.current_callable = called
            return output_code

    with torch._inductor.config.patch("cudagraph_policy", Outer(wraps=False)), torch.no_grad():
        fast = reduced(lambda x: x * 2 + 1)
        assert fast(torch.ones(4, device="npu")).tolist() == [3.0] * 4
    assert seen == ["npu"]
