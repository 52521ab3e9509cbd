"""Public troubles of users with pipelines of models, each named for its public thread, on two simulated cards.

Holds flow.points against those threads, and by counters of copies and reserved bytes.

Troubles with what lies on a card; those with failures, streams and waiting are in test_flow_threads_host.py.
"""

import os
from pathlib import Path

import pytest
import torch

import flow_thread_stages as stages
from functions_session import session
from toprope import flow as df
from toprope.sim.metrics import cards, counters

pytestmark = [pytest.mark.native, pytest.mark.process]


@pytest.fixture(scope="module", autouse=True)
def folder(tmp_path_factory):
    """A session on cards that count what is done to them; its folder."""
    found, before = tmp_path_factory.mktemp("run"), Path.cwd()
    os.chdir(tmp_path_factory.mktemp("work"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TOPROPE_RUN_DIR", str(found))
        try:
            with session("910B4x2"):
                df.init({})
                yield found
                df.finalize()
        finally:
            os.chdir(before)


def through(*nodes, **options):
    data = out = df.FlowData()
    for each in nodes:
        out = each(out)
    return data, df.FlowGraph([out], **options)


@pytest.fixture(scope="module")
def on_card(folder):
    """A chain of three models on card 0."""
    data, graph = through(stages.stamp.fnode(), stages.fleeting.fnode(), stages.late.fnode())
    with graph:
        yield data, graph


def ask(on_card, *values):
    data, graph = on_card
    for each in values:
        assert graph.feed({data: each}) == 0
    found = [graph.fetch(timeout=20_000) for _ in values]
    assert [code for _, code in found] == [0] * len(values)
    return [got for (got,), _ in found]


def copies(folder):
    found = counters.read_run(folder)
    return [sum(getattr(each, f"copies_{name}") for each in found) for name in ("to_card", "from_card", "between")]


def reserved(folder):
    return [each.reserved for each in cards.read(folder, 2)]


@pytest.mark.slow
def test_vllm_omni_5211_and_triton_343_and_4809_stages_on_one_card_copy_nothing(folder, on_card):
    """https://github.com/vllm-project/vllm-omni/issues/5211: every edge bounces through the host although stages share
    a card; https://github.com/triton-inference-server/server/issues/343: tensors between steps are copied through the
    host's memory; https://github.com/triton-inference-server/server/issues/4809: no-copy tensors between Python models.
    """
    _, graph = on_card
    ask(on_card, torch.ones(3))
    before, edges = copies(folder), graph.metrics()
    large = [torch.randn(1 << 18) for _ in range(4)]
    for got, fed in zip(ask(on_card, *large), large, strict=True):
        assert torch.equal(got[:-2], fed)
    assert [now - then for now, then in zip(copies(folder), before, strict=True)] == [4, 4, 0]
    after = graph.metrics()
    assert [now.shared - then.shared for now, then in zip(after, edges, strict=True)] == [0, 4, 4, 0]
    assert [now.to_host - then.to_host for now, then in zip(after, edges, strict=True)] == [0, 0, 0, 4]
    assert [now.between for now in after] == [0] * 4


def test_triton_5431_memory_of_the_card_stays_flat_and_copies_are_told(folder, on_card):
    """https://github.com/triton-inference-server/server/issues/5431: out of memory, and nobody knows where the copies
    are."""
    for _ in range(3):
        ask(on_card, torch.ones(1 << 18))
    before = reserved(folder)
    for _ in range(30):
        ask(on_card, torch.ones(1 << 18))
    assert reserved(folder) == before
    assert before[1] == 0
    _, graph = on_card
    picture = graph.picture()
    assert all(each.target in picture for each in graph.metrics())


def test_triton_3373_all_stages_are_on_the_card_that_was_said(on_card):
    """https://github.com/triton-inference-server/server/issues/3373: steps of one ensemble land on any card."""
    assert ask(on_card, torch.tensor([5.0]))[0].tolist() == [5.0, 0.0, 0.0]
    data, graph = through(stages.stamp.fnode(), stages.stamp.fnode(), graph_options={"ge.exec.deviceId": "1"})
    with graph:
        assert ask((data, graph), torch.tensor([5.0]))[0].tolist() == [5.0, 1.0, 1.0]


def test_pytorch_159942_and_ray_45306_shapes_may_differ_from_input_to_input(on_card):
    """https://github.com/pytorch/pytorch/issues/159942: stages with dynamic shapes;
    https://github.com/ray-project/ray/issues/45306: nested tensors of any size between stages."""
    shapes = [ask(on_card, torch.ones(size))[0].shape[0] for size in (1, 7, 1000, 2)]
    assert shapes == [3, 9, 1002, 4]
    data, graph = through(stages.nested.fnode(), stages.sums.fnode())
    with graph:
        for count in (1, 4, 2):
            assert graph.feed({data: count}) == 0
        for count in (1, 4, 2):
            result = graph.fetch_result(timeout=20_000)
            assert result.get() == [([size * (size - 1) / 2 for size in range(1, count + 1)], count)]


def test_pytorch_156618_and_1338_what_the_sender_lets_go_of_arrives_whole(on_card):
    """https://github.com/pytorch/pytorch/issues/156618 and https://github.com/pytorch/pytorch/issues/1338: through a
    queue a tensor on a card arrives zeroed, unless its sender keeps it."""
    fed = [torch.full((50,), float(number)) for number in range(1, 21)]
    for got, value in zip(ask(on_card, *fed), fed, strict=True):
        assert torch.equal(got[:50], value)
        assert got[50:].tolist() == [0.0, 0.0]


def test_triton_4932_and_beam_26687_stages_that_share_a_process_share_its_memory_and_model(folder, on_card):
    """https://github.com/triton-inference-server/server/issues/4932: each stage's process costs 2 GB of the card;
    https://github.com/apache/beam/issues/26687: one copy of the model for each worker.

    What a driver takes for itself cannot be tried without a card: tested here: there is one process.
    """
    node = stages.Shared.fnode()
    x, y = df.FlowData(), df.FlowData()
    with df.FlowGraph([stages.stamp.fnode()(node.forward(x)), node.head(y)], colocate=True) as graph:
        seen = set()
        for number in range(3):
            assert graph.feed({x: torch.full((2,), float(number)), y: torch.ones(1)}) == 0
            (value, told), code = graph.fetch(timeout=20_000)
            assert (value.tolist(), code) == ([number, number, 0.0], 0)
            seen.add(tuple(told.tolist()))
        assert len(seen) == 1  # one model, in one process
        holders = {each.pid: each.reserved[0] for each in cards.read(folder, 2)[0].processes}
        (_, pid), *_ = seen
        assert 12 << 20 <= holders[int(pid)] < 24 << 20  # its weights of 12 MiB once


def test_ray_48272_a_stage_is_debugged_without_processes():
    """https://github.com/ray-project/ray/issues/48272: the way over the card exists only in compiled graphs, and those
    cannot be debugged."""
    assert stages.fleeting(torch.tensor([1.0])).tolist() == [1.0, 1.0]  # a plain call, in this process
    model = df.local(stages.Shared)
    assert model.forward(torch.tensor([2.0, 3.0])).tolist() == [2.0, 3.0]
    with pytest.raises(ZeroDivisionError):
        stages.picky("raise")


def test_ray_51574_and_vllm_ascend_3133_a_process_that_has_used_an_npu_starts_graphs_on_it():
    """https://github.com/ray-project/ray/issues/51574: NPUs in compiled graphs;
    https://github.com/vllm-project/vllm-ascend/issues/3133: "Cannot re-initialize NPU in forked subprocess"."""
    data, graph = through(stages.starts_others.fnode())
    with graph:
        for number in (1.0, 2.0):
            assert graph.feed({data: torch.full((2,), number)}) == 0
            result = graph.fetch_result(timeout=60_000)
            assert result.get() == [([number, number, 0.0], 0, [0, 1, 0], 4.0)]
