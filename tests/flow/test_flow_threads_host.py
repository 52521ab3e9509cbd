"""Public troubles of users with pipelines, each named for its thread: failures, streams, branches and waiting.

Those with what lies on a card are in test_flow_threads.py.
"""

import os
import threading
import time
from pathlib import Path

import numpy as np
import pytest

import flow_thread_stages as stages
from functions_session import session
from toprope import flow as df

pytestmark = [pytest.mark.native, pytest.mark.process]

FAILED = 4294967295
EOS = df.FlowFlag.DATA_FLOW_FLAG_EOS


@pytest.fixture(scope="module", autouse=True)
def notes(tmp_path_factory):
    """A session; the file that stages write into."""
    found, before = tmp_path_factory.mktemp("notes") / "notes", Path.cwd()
    os.chdir(tmp_path_factory.mktemp("work"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FLOW_THREADS", str(found))
        try:
            with session("910B4x1"):
                df.init({})
                yield found
                df.finalize()
        finally:
            os.chdir(before)


def shallow(stage):
    node = stage.fnode()
    node.set_attr("_flow_attr_depth", 2)
    return node


def through(*nodes, **options):
    data = out = df.FlowData()
    for each in nodes:
        out = each(out)
    return data, df.FlowGraph([out], **options)


@pytest.fixture(scope="module")
def relay():
    """Two stages; the first fails as it is told to."""
    data, graph = through(stages.picky.fnode(), stages.where_it_lies.fnode(), restarts=8, deadline_ms=2000)
    with graph:
        yield data, graph


def ask(relay, *values):
    data, graph = relay
    for each in values:
        assert graph.feed({data: each}) == 0
    return [graph.fetch_result(timeout=60_000) for _ in values]


@pytest.mark.slow
def test_ray_47790_and_47285_the_drivers_error_is_the_users_own_with_its_lines(relay):
    """https://github.com/ray-project/ray/issues/47790: the root exception never reaches the driver, other stages show
    errors of their channels; https://github.com/ray-project/ray/issues/47285: its traceback is lost."""
    before, failed, after = ask(relay, "a", "raise", "b")
    assert (before.get(), after.get()) == (["a"], ["b"])
    assert failed.code == 564000
    with pytest.raises(ZeroDivisionError, match="the user's own words") as caught:
        failed.get()
    (note,) = caught.value.__notes__
    assert "raised in stage picky_fnode for input" in note
    assert 'raise ZeroDivisionError("the user\'s own words")' in note
    assert "flow_thread_stages.py" in note


@pytest.mark.slow
@pytest.mark.parametrize(
    ("value", "cause"),
    [
        ("kill", "killed by SIGKILL; .*memory is short"),
        ("exit", "ended with exit status 3"),
        ("crash", "SIGSEGV; native"),
    ],
)
def test_joblib_812_and_ray_46284_a_stage_that_dies_says_how_and_the_others_go_on(relay, value, cause):
    """https://github.com/joblib/joblib/issues/812: a worker was killed, and no cause is given;
    https://github.com/ray-project/ray/issues/46284: after an actor's death get() hangs, or returns zeros."""
    before, failed, after = ask(relay, "a", value, "b")
    assert (before.get(), after.get(), failed.values) == (["a"], ["b"], [])
    with pytest.raises(RuntimeError, match=f"stage picky_fnode has ended while it had this input.*{cause}"):
        failed.get()


@pytest.mark.slow
def test_ray_46284_nothing_waits_for_a_graph_that_was_closed():
    """https://github.com/ray-project/ray/issues/46284: get() after teardown hangs."""
    data, graph = through(stages.slow.fnode())
    assert graph.feed({data: 1}) == 0
    found = []
    waiting = threading.Thread(target=lambda: found.extend(graph.fetch()[1] for _ in range(3)))
    waiting.start()
    time.sleep(0.2)
    graph.close()
    waiting.join(60)
    assert not waiting.is_alive()
    assert found[-1] == FAILED
    assert graph.feed({data: 2}) == graph.fetch()[1] == FAILED


def test_dali_1506_and_edgeai_gst_plugins_182_what_hangs_is_ended_and_the_end_comes(relay):
    """https://github.com/NVIDIA/DALI/issues/1506: run() is stuck in a source;
    https://github.com/TexasInstruments/edgeai-gst-plugins/issues/182: after an error the pipeline waits for EOS for
    ever."""
    data, graph = relay
    hung, after = ask(relay, "hang", "b")
    assert (hung.code, after.get()) == (545601, ["b"])
    with pytest.raises(
        TimeoutError, match=r"picky_fnode has worked on input \d+ for more than its deadline of 2000 ms"
    ):
        hung.get()
    assert graph.feed({data: "raise"}) == graph.feed_data({}, df.FlowInfo(flow_flags=EOS)) == 0
    assert graph.fetch_result(timeout=20_000).code == 564000
    tensors, info, code = graph.fetch_data(timeout=20_000)
    assert (tensors, info.flow_flags, code) == ([], EOS, 0)
    began = time.monotonic()
    assert graph.fetch(timeout=100) == ([], 545601)  # nothing is left; who fetches says how long
    assert time.monotonic() - began < 5


def test_ray_47590_a_large_array_is_handed_on_where_it_lies():
    """https://github.com/ray-project/ray/issues/47590: passing a large array on is slower than to put and get it."""
    data, graph = through(stages.picky.fnode(), stages.where_it_lies.fnode(), stages.where_it_lies.fnode())
    with graph:
        large = np.arange(1 << 20)
        ((array, first, first_owns, second, second_owns),) = ask((data, graph), large)[0].get()
        assert np.array_equal(array, large)
        assert "/toprope-" in first
        assert "/toprope-" in second
        assert not first_owns
        assert not second_owns
        assert [each.bytes >= 8 << 20 for each in graph.metrics()] == [True] * 4


@pytest.mark.slow
def test_ray_50381_and_vllm_12747_and_triton_8597_who_is_too_fast_waits():
    """https://github.com/ray-project/ray/issues/50381 and https://github.com/vllm-project/vllm/issues/12747: more than
    N under way raise "capacity exceeded"; https://github.com/triton-inference-server/server/issues/8597: a fast decoder
    floods a slow model."""
    node = shallow(stages.slow)
    data, graph = through(node)
    with graph:
        fed = [graph.feed({data: number}) for number in range(20)]  # waits for room, for ever
        assert [graph.fetch() for _ in range(20)] == [([number], 0) for number in range(20)]
        assert fed == [0] * 20
        assert graph.metrics()[0].waited_ms > 0
        futures = [graph.submit({data: number}) for number in range(10)]
        assert [each.result(60) for each in futures] == [[number] for number in range(10)]


def test_triton_8597_a_generator_waits_too(notes):
    """https://github.com/triton-inference-server/server/issues/8597: one input becomes many, and all of them wait in
    memory."""
    data, graph = through(stages.flood.fnode(), shallow(stages.slow))
    flood = Path(f"{notes}.flood")
    with graph:
        assert graph.feed({data: 100}) == 0
        (first,), code = graph.fetch(timeout=20_000)
        assert (first[0], code) == (0, 0)
        for number in range(1, 10):
            (array,), _ = graph.fetch(timeout=20_000)
            assert array[0] == number
        written = len(flood.read_text())
        assert written <= graph.metrics()[2].messages + 1 + 2 + 3  # at work, on the edge, on its way


def test_holoscan_sdk_43_and_18_a_slow_consumer_may_lose_messages_and_threads_do_not_freeze():
    """https://github.com/nvidia-holoscan/holoscan-sdk/issues/43: drop messages when the consumer is slow;
    https://github.com/nvidia-holoscan/holoscan-sdk/issues/18: with several threads everything freezes."""
    node = shallow(stages.slow)
    node.set_attr("_flow_attr_enqueue_policy", "OVERWRITE")
    data, graph = through(node)
    with graph:

        def feed_some(first):
            assert [graph.feed({data: number}) for number in range(first, first + 20)] == [0] * 20

        feeders = [threading.Thread(target=feed_some, args=(first,)) for first in (0, 100, 200)]
        found = []
        fetchers = [threading.Thread(target=lambda: found.append(graph.fetch(timeout=20_000))) for _ in range(2)]
        for thread in feeders:
            thread.start()
        while not graph.is_running:
            time.sleep(0.001)
        for thread in fetchers:  # while a feeder is starting the graph
            thread.start()
        for thread in feeders + fetchers:
            thread.join(60)
            assert not thread.is_alive()
        assert [code for _, code in found] == [0, 0]
        assert graph.feed({data: 999}) == 0
        assert graph.drain(20)
        while found[-1][0] != [999]:
            found.append(graph.fetch(timeout=5000))
            assert found[-1][1] == 0
        lost = graph.metrics()[0].lost
        assert lost == 61 - len(found) > 30


def test_ray_57098_and_fastertransformer_155_streams_go_through_stages_as_they_come(notes):
    """https://github.com/ray-project/ray/issues/57098: a streaming result cannot be passed to the next streaming stage;
    https://github.com/triton-inference-server/fastertransformer_backend/issues/155: streaming output of an ensemble."""
    data, graph = through(stages.letters.fnode(), stages.pairs.fnode())
    with graph:
        assert graph.feed({data: "abcd"}) == 0
        assert graph.fetch(timeout=20_000) == (["a"], 0)
        assert not notes.exists()  # the first comes while the stream is being made
        assert [graph.fetch(timeout=20_000)[0][0] for _ in range(5)] == ["b", "ab", "c", "d", "cd"]
        assert not notes.exists()
        Path(f"{notes}.go").touch()


def test_triton_3459_and_3483_and_dali_4590_branches_that_the_data_choose():
    """https://github.com/triton-inference-server/server/issues/3459 and
    https://github.com/triton-inference-server/server/issues/3483: early exits and branches in an ensemble;
    https://github.com/NVIDIA/DALI/issues/4590: a branch that depends on the data."""
    data = df.FlowData()
    early, late = stages.choose.fnode()(data)
    node = df.FlowNode(2, 1)
    node.add_process_point(df.FuncProcessPoint(py_func=stages.Either))
    with df.FlowGraph([node(early, stages.deeper.fnode()(late))]) as graph:
        for number in (1, 10, 2, 20, 3):
            assert graph.feed({data: number}) == 0
        found = [graph.fetch_result(timeout=20_000) for _ in range(5)]
        assert sorted((each.info.transaction_id, *each.get()) for each in found) == [
            (1, 1), (2, 1000), (3, 2), (4, 2000), (5, 3),
        ]  # fmt: skip


def test_ray_46336_a_class_with_one_method_has_the_thread_of_its_constructor():
    """https://github.com/ray-project/ray/issues/46336: state of the constructor's thread is not there in the method."""
    data = df.FlowData()
    with df.FlowGraph([stages.Bound.fnode().seeded(data)]) as graph:
        assert graph.feed({data: 1}) == 0
        assert graph.fetch(timeout=30_000) == ([43], 0)


def test_ray_47041_47156_and_triton_7366_an_output_may_be_read_by_anyone_and_twice():
    """https://github.com/ray-project/ray/issues/47041, https://github.com/ray-project/ray/issues/47156 and
    https://github.com/triton-inference-server/server/issues/7366: a node's output is read twice by one node, by the
    driver and a node, or by two models."""
    data = df.FlowData()
    out = stages.plus_one.fnode()(data)
    heads = [stages.plus_one.fnode()(out), stages.join.fnode()(out, out)]
    with df.FlowGraph([out, *heads, out]) as graph:
        for number in range(3):
            assert graph.feed({data: number}) == 0
        for number in range(1, 4):
            assert graph.fetch(timeout=30_000) == ([number, number + 1, (number, number), number], 0)


def test_ray_47408_two_graphs_of_one_node_do_not_share_it():
    """https://github.com/ray-project/ray/issues/47408: a graph that was compiled before breaks the second one."""
    data = df.FlowData()
    out = stages.plus_one.fnode()(data)
    with df.FlowGraph([out]) as first, df.FlowGraph([stages.plus_one.fnode()(out)]) as second:
        assert first.feed({data: 1}) == second.feed({data: 1}) == 0
        assert (first.fetch(timeout=30_000), second.fetch(timeout=30_000)) == (([2], 0), ([3], 0))


def test_ray_47687_and_langflow_9119_slow_branches_overlap_and_an_end_in_the_middle_is_an_error_of_ours():
    """https://github.com/ray-project/ray/issues/47687: a result after the end raises something strange;
    https://github.com/ray-project/ray/issues/47097 and https://github.com/langflow-ai/langflow/issues/9119: branches
    run one after the other, and several inputs at once time out."""
    data = df.FlowData()
    graph = df.FlowGraph([stages.join.fnode()(stages.waits.fnode()(data), stages.waits.fnode()(data))])
    with graph:
        assert [graph.feed({data: number}) for number in range(6)] == [0] * 6
        assert [graph.fetch(timeout=60_000) for _ in range(6)] == [([(number, number)], 0) for number in range(6)]
        left, right = (each for each in graph.metrics() if each.target.startswith("join_fnode"))
        assert left.messages == right.messages == 6
        future = graph.submit({data: 7})
    with pytest.raises(df.DfAbortException, match="the graph has ended"):
        future.result(30)


def test_triton_7275_what_a_generator_makes_is_joined_with_its_own_input():
    """https://github.com/triton-inference-server/server/issues/7275: inputs come from streams of different length."""
    data = df.FlowData()
    graph = df.FlowGraph([stages.join.fnode()(stages.three.fnode()(data), stages.plus_one.fnode()(data))])
    graph.set_contains_n_mapping_node(True)
    graph.set_inputs_align_attrs(16, 2000, True)  # what has no counterpart is dropped
    with graph:
        for number in (10, 20):
            assert graph.feed({data: number}) == 0
        assert [graph.fetch(timeout=30_000) for _ in range(2)] == [([((10, 0), 11)], 0), ([((20, 0), 21)], 0)]


@pytest.mark.parametrize("size", [3, 100_000])
def test_a_tensor_that_one_stage_wrote_to_was_changed_for_another(size):
    """A large one lay in memory that all receivers could write to; a small one was read-only."""
    data = df.FlowData()
    nodes = [stages.adds_in_place.fnode(), stages.adds_in_place_on_the_device.fnode(), stages.reads_late.fnode()]
    with df.FlowGraph([each(data) for each in nodes]) as graph:
        assert graph.feed({data: df.Tensor(np.zeros(size))}) == 0
        (first, second, third), code = graph.fetch(timeout=60_000)
    assert (first, second[0].item(), third, code) == ("read-only", 1.0, 0.0, 0)


@pytest.mark.parametrize("size", [3, 100_000])
def test_ray_47599_an_array_was_read_only_in_a_stage(size):
    """https://github.com/ray-project/ray/issues/47599: arrays are not writable, which torch warns of."""
    data = df.FlowData()
    once = stages.adds_to_an_array.fnode()(data)
    nodes = [once, stages.adds_to_an_array.fnode()(once), stages.reads_an_array_late.fnode()(data)]
    fed = np.zeros(size)
    with df.FlowGraph(nodes) as graph:
        assert graph.feed({data: fed}) == 0
        (first, second, third), code = graph.fetch(timeout=60_000)
        first += 1  # what is fetched is the program's own, too
    assert (first.sum(), second.sum(), third, fed.sum(), code) == (2 * size, 2 * size, 0, 0, 0)
