"""Batches, instances, streams and cancelled inputs on stages that are processes: one session for all of them.

Held: `worker.dynamic_batch`, `worker.loop` and `flow.futures`, without HTTP.
"""

import os
import threading
import time
from pathlib import Path

import pytest
import torch

import serve_stages as stages
from functions_session import session, within
from toprope import flow as df
from toprope.flow.futures import DeadlineExceeded, QueueFull

pytestmark = [pytest.mark.native, pytest.mark.process]

LONG = 120


@pytest.fixture(scope="module", autouse=True)
def cards(tmp_path_factory):
    folder, before = tmp_path_factory.mktemp("serve"), Path.cwd()
    os.chdir(folder)
    try:
        with session("910B4x1"):
            yield folder
    finally:
        df.finalize()
        os.chdir(before)


@pytest.fixture(autouse=True)
def begun(cards):
    df.init({})
    yield
    df.finalize()


def chain(*nodes, **options):
    data = out = df.FlowData()
    for each in nodes:
        out = each(out)
    return data, df.FlowGraph([out], **options)


def outcome(future):
    try:
        return future.result(LONG)
    except Exception as error:
        return error


# Batches


def counted(graph, inputs):
    """The figures of the stages once all inputs are counted: a stage counts a call after it has sent the results."""
    until = time.monotonic() + 30
    while sum(each.inputs for each in graph.stage_metrics()) < inputs and time.monotonic() < until:
        time.sleep(0.01)
    return graph.stage_metrics()


def test_requests_share_calls_and_one_that_fails_fails_alone():
    data, graph = chain(stages.rows.fnode())
    with graph:
        graph.start()
        values = [torch.full((1, 2), float(each)) for each in (1, -1, 3, 100)] + [torch.full((3, 2), 5.0)]
        found = [outcome(each) for each in [graph.submit({data: value}) for value in values]]
        assert found[0][0].tolist() == [[2.0, 2.0]]
        assert isinstance(found[1], ValueError)
        assert found[2][0].tolist() == [[6.0, 6.0]]
        assert found[4][0].tolist() == [[10.0, 10.0]] * 3
        # without one that fails the rows are in one call
        futures = [graph.submit({data: torch.full((1, 2), 100.0)}) for _ in range(8)]
        assert sum(outcome(each)[0][0, 0].item() for each in futures) > 8
        # other shapes go in calls of their own
        odd = [graph.submit({data: torch.ones(shape)}) for shape in ((1, 2), (1, 3), (2,), (), (1, 2))]
        assert [tuple(outcome(each)[0].shape) for each in odd] == [(1, 2), (1, 3), (2,), (), (1, 2)]
        (figures,) = counted(graph, 18)
        assert figures.inputs == 18
        assert figures.calls < figures.inputs
        assert figures.buckets[-1][1] <= figures.calls


def test_a_result_that_cannot_be_split_is_made_for_each_request():
    data, graph = chain(stages.total.fnode())
    with graph:
        futures = [graph.submit({data: torch.full((2, 2), float(each))}) for each in range(4)]
        assert [outcome(each)[0].item() for each in futures] == [0.0, 4.0, 8.0, 12.0]


def test_batches_of_several_inputs_and_outputs():
    x, y = df.FlowData(), df.FlowData()
    with df.FlowGraph(list(stages.both.fnode()(x, y))) as graph:
        futures = [
            graph.submit({x: torch.full((rows, 1), 5.0), y: torch.full((rows, 1), float(rows))}) for rows in (1, 2, 3)
        ]
        found = [outcome(each) for each in futures]
    assert [[each.flatten().tolist() for each in row] for row in found] == [
        [[6.0], [4.0]], [[7.0] * 2, [3.0] * 2], [[8.0] * 3, [2.0] * 3]
    ]  # fmt: skip


def test_batches_of_lists():
    data, graph = chain(stages.lists.fnode())
    with graph:
        futures = [graph.submit({data: each}) for each in (1, 5, 2, 3)]
        found = [outcome(each) for each in futures]
        assert [each[0][0] for each in found if isinstance(each, list)] == [1, 2, 3]
        assert isinstance(found[1], ValueError)
        assert max(each[0][1] for each in found if isinstance(each, list)) > 1
        # a call that raises is made again for each
        found = [outcome(each) for each in [graph.submit({data: each}) for each in (7, 6, 8)]]
        assert [each[0][0] for each in found if isinstance(each, list)] == [7, 8]
        assert isinstance(found[1], KeyError)
    data, graph = chain(stages.wrong.fnode())
    with graph:
        error = outcome(graph.submit({data: 1}))
        assert "must return a list of as many" in str(error)


def test_a_batch_in_which_one_input_ends_the_function_fails_that_input_alone():
    """SystemExit, KeyboardInterrupt and CancelledError of one failed all, and ended the driver."""
    kinds = ("SystemExit", "KeyboardInterrupt", "CancelledError", "GeneratorExit")
    data, graph = chain(stages.leaves.fnode())
    with graph:
        for kind in kinds:
            found = [outcome(each) for each in [graph.submit({data: each}) for each in ("a", kind, "b")]]
            assert (found[0], found[2]) == (["a"], ["b"])
            assert isinstance(found[1], df.DfException)
            assert f"the function raised {kind}: 3" in str(found[1])


def test_sys_exit_in_a_stage_is_an_exception_of_its_input():
    """It ended the driver, in `fetch_result().get()`."""
    data, graph = chain(stages.quits.fnode())
    with graph:
        graph.feed({data: 3})
        result = graph.fetch_result(timeout=LONG * 1000)
        assert result.code == 564000
        with pytest.raises(df.DfException, match="the function raised SystemExit: 3"):
            result.get()


def test_a_request_without_rows_that_comes_first_does_not_fail_its_batch():
    data, graph = chain(stages.rows.fnode())
    with graph:
        futures = [graph.submit({data: torch.ones(count, 2)}) for count in (0, 1, 0)]
        assert [tuple(outcome(each)[0].shape) for each in futures] == [(0, 2), (1, 2), (0, 2)]


def test_feed_and_fetch_keep_their_order_through_batches():
    data, graph = chain(stages.rows.fnode(), stages.scale.fnode())
    with graph:
        shapes = [(1, 2), (1, 3), (2, 2), (1,)] * 6
        for number, shape in enumerate(shapes):
            assert graph.feed({data: torch.full(shape, float(number))}) == 0
        for number, shape in enumerate(shapes):
            (value,), code = graph.fetch(timeout=LONG * 1000)
            assert (code, tuple(value.shape)) == (0, shape)
            assert (value == number).all()


# Instances


def test_instances_share_the_inputs_and_one_that_dies_is_reported():
    data, graph = chain(stages.Slow.fnode())
    with graph:
        found = [outcome(each)[0] for each in [graph.submit({data: each}) for each in range(10)]]
        assert [each["value"] for each in found] == list(range(10))
        assert {each["instance"] for each in found} == {0, 1}
        futures = [graph.submit({data: "die" if each == 4 else each}) for each in range(10)]
        found = [outcome(each) for each in futures]
        lost = [each for each in found if isinstance(each, BaseException)]
        assert lost
        assert all("has ended while it had this input" in str(each) for each in lost)
        assert all(each[0]["value"] == place for place, each in enumerate(found) if isinstance(each, list))
        assert len([each for each in found if isinstance(each, list)]) >= 5  # the other instance's
        assert graph.restarts == 1
        assert outcome(graph.submit({data: 1}))[0]["value"] == 1


def test_a_graph_that_cannot_go_on_fails_its_futures():
    """They hung for ever."""
    data, graph = chain(stages.Slow.fnode(0.1).set_instances(1), restarts=0)
    with graph:
        futures = [graph.submit({data: "die" if each == 0 else each}) for each in range(4)]
        found = [outcome(each) for each in futures]
        assert all("has ended" in str(each) for each in found), found
        assert "has ended" in str(graph.error)
        assert "restarts=0). do: make the graph again" in str(graph.error)
        with pytest.raises(df.DfException, match=r"cannot be fed: .*has ended.* do: "):
            graph.submit({data: 1})


def test_the_number_of_instances_of_a_node_and_of_the_deploy_file(tmp_path):
    node = stages.plus.fnode().set_instances(3)
    data = df.FlowData()
    file = tmp_path / "deploy.json"
    option = {"ge.experiment.data_flow_deploy_info_path": str(file)}
    text = '{"batch_deploy_info": [{"flow_node_list": ["%s"], "logic_device_list": "%s"}]}'
    file.write_text(text % (node.name, "0:0:0:0"))
    with df.FlowGraph([node(data)], option) as graph:
        assert [outcome(each) for each in [graph.submit({data: each}) for each in range(6)]] == [
            [100 + each] for each in range(6)
        ]
        figures = counted(graph, 6)
        assert len(figures) == 3
        assert sum(each.calls for each in figures) == 6
    file.write_text(text % (node.name, "0:0:0~1:0"))
    with df.FlowGraph([node(data)], option) as graph, pytest.raises(df.DfException, match="instances=3"):
        graph.start()


# Streams


@pytest.mark.parametrize("colocate", [False, True])
def test_the_results_of_generators_belong_to_their_inputs(colocate):
    data, graph = chain(stages.words.fnode(), stages.plus.fnode(), colocate=colocate)
    with graph:
        streams = [graph.stream({data: count}) for count in (3, 0, 5, 1)]
        assert [[value for (value,) in each] for each in streams] == [
            [100, 101, 102], [], [100, 101, 102, 103, 104], [100]
        ]  # fmt: skip
        with pytest.raises(df.DfException, match="use stream"):
            graph.submit({data: 1})


def test_a_generator_after_a_generator_and_one_whose_outputs_meet():
    data, graph = chain(stages.words.fnode(), stages.twice.fnode())
    with graph:
        assert [value for (value,) in graph.stream({data: 3})] == [0, 0, 1, 1, 2, 2]
    data = df.FlowData()
    left, right = stages.pairs.fnode()(data)
    with df.FlowGraph([stages.add.fnode()(stages.plus.fnode()(left), right)]) as graph:
        streams = [graph.stream({data: each}) for each in (2, 3)]
        assert [[value for (value,) in each] for each in streams] == [[100] * 2, [100] * 3]


def test_streams_through_instances_keep_their_order():
    data, graph = chain(stages.words.fnode().set_instances(2), stages.plus.fnode().set_instances(2))
    with graph:
        streams = [graph.stream({data: each}) for each in (4, 5, 6, 3)]
        assert [[value - 100 for (value,) in each] for each in streams] == [list(range(each)) for each in (4, 5, 6, 3)]


@pytest.mark.parametrize(("count", "kind"), [(7, KeyError), (9, RuntimeError)])
def test_a_stream_that_fails_ends_with_its_error(count, kind):
    """Also where the process dies after its first results went out: it hung until the deadline."""
    data, graph = chain(stages.words.fnode(), stages.plus.fnode())
    with graph:
        graph.start()
        streams = [graph.stream({data: each}, deadline=LONG) for each in (2, count, 3)]
        assert [value for (value,) in streams[0]] == [100, 101]
        found = []
        with pytest.raises(kind):
            found.extend(value for (value,) in streams[1])
        assert found == [100, 101]
        assert [value for (value,) in streams[2]] == [100, 101, 102]


def test_a_stream_whose_middle_stage_dies_ends_with_an_error_and_the_next_is_whole():
    data, graph = chain(stages.words.fnode(), stages.frail.fnode(), stages.plus.fnode())
    with graph:
        graph.start()
        streams = [graph.stream({data: each}, deadline=LONG) for each in (2, 4, 1)]
        assert [value for (value,) in streams[0]] == [100, 101]
        found = []
        with pytest.raises(RuntimeError, match="has ended while it had this input"):
            found.extend(value for (value,) in streams[1])
        assert found == [100, 101]
        assert [value for (value,) in streams[2]] == [100]


def test_a_stage_that_raises_stop_iteration_is_no_end_and_no_hang():
    """A future of asyncio cannot be given StopIteration: it hung. A stream ended as if all were well."""
    data, graph = chain(stages.stop.fnode())
    with graph:
        with pytest.raises(RuntimeError, match="StopIteration"):
            graph.submit({data: 1}).result(LONG)
        with pytest.raises(RuntimeError, match="StopIteration"):
            list(graph.stream({data: 1}))


def test_streams_that_belong_to_no_request_are_refused():
    data = df.FlowData()
    out = stages.add.fnode()(stages.words.fnode()(data), stages.plus.fnode()(data))
    with df.FlowGraph([out]) as graph, pytest.raises(df.DfException, match="different numbers"):
        graph.start()
    data, graph = chain(stages.words.fnode())
    with graph:
        assert graph.feed({data: 2}) == 0
        with pytest.raises(df.DfException, match="not fed by feed"):
            graph.stream({data: 2})


def test_an_input_of_which_nothing_is_made_is_reported():
    """It had no answer where a stage had several instances."""
    data, graph = chain(stages.even.fnode().set_instances(2))
    with graph:
        found = [outcome(each) for each in [graph.submit({data: each}) for each in range(6)]]
    assert [each for each in found if isinstance(each, list)] == [[0], [2], [4]]
    assert all("made no result of the input" in str(each) for each in found[1::2])


def test_a_callback_or_a_deserializer_that_leaves_ends_no_other_result(monkeypatch):
    """SystemExit ended the thread that gives results, so all others waited for ever."""

    def leaves(*_):
        raise SystemExit(3)

    data, graph = chain(stages.plus.fnode())
    with graph:
        first = graph.submit({data: 1})
        first.add_done_callback(leaves)
        assert outcome(graph.submit({data: 2})) == [102]
        with monkeypatch.context() as patched:
            patched.setattr(graph._futures, "_decode", leaves)
            assert "SystemExit: 3" in str(outcome(graph.submit({data: 3})))
        assert outcome(graph.submit({data: 4})) == [104]


# The start


def test_a_stage_that_does_not_start_in_time_names_the_setting(caplog, monkeypatch):
    """The limit was 120 s and could not be set, so that no large model could be served."""
    monkeypatch.setattr("toprope.flow.executor.processes._NEWS", 0.5)
    data, graph = chain(stages.Starts.fnode(600), start_timeout_ms=1500)
    with graph, pytest.raises(df.DfException) as caught:
        graph.submit({data: torch.ones(1)})
    assert "has not started within 1.5 s. do: give all stages longer" in str(caught.value)
    assert "start_timeout_ms" in str(caught.value)
    assert "--start-timeout" in str(caught.value)
    assert "waiting for stage Starts_fnode to start: " in caplog.text


@pytest.mark.parametrize("kind", [ValueError, TimeoutError, SystemExit, df.DfException])
def test_a_constructor_that_raises_prints_its_traceback_once(caplog, kind):
    data, graph = chain(stages.Starts.fnode(0, kind("no weights")))
    with graph, pytest.raises(df.DfException) as caught:
        graph.submit({data: torch.ones(1)})
    assert f"cannot start: {kind.__name__}: " in caught.value.message
    assert "no weights" in caught.value.message
    assert caplog.text.count("Traceback") == 1
    assert "serve_stages.py" in caplog.text
    assert any("Traceback" in each for each in graph.error.__notes__)


def test_a_stage_that_cannot_be_started_again_logs_why_and_fails_what_is_open(caplog, tmp_path):
    data, graph = chain(stages.StartsOnce.fnode(str(tmp_path / "once")))
    with graph:
        found = [outcome(each) for each in [graph.submit({data: each}) for each in range(2)]]
        assert all(isinstance(each, Exception) for each in found)
        within(LONG, lambda: graph.error is not None)
        assert "cannot start: FileExistsError" in str(graph.error)
        assert caplog.text.count("Traceback") == 1


@pytest.mark.parametrize("wrong", [0, -1, 1.5, True, None])
def test_a_start_timeout_is_a_number_of_milliseconds(wrong):
    data = df.FlowData()
    with pytest.raises(df.DfException, match="start_timeout_ms must be an int of at least 1"):
        df.FlowGraph([stages.plus.fnode()(data)], start_timeout_ms=wrong)


# Inputs that nobody waits for


def test_inputs_that_were_cancelled_or_are_late_are_left_out(tmp_path):
    path = str(tmp_path / "calls")
    data, graph = chain(stages.slow.fnode())
    with graph:
        graph.start()
        first, second = graph.submit({data: (path, 1.5)}), graph.submit({data: (path, 0.5)})
        within(LONG, lambda: Path(path).exists())
        cancelled = graph.submit({data: (path, 0.01)})
        late = graph.submit({data: (path, 0.02)}, deadline=0.1)
        last = graph.submit({data: (path, 0.03)})
        assert cancelled.cancel()
        with pytest.raises(DeadlineExceeded, match="slow_fnode works on input"):
            late.result(LONG)
        assert (first.result(LONG), second.result(LONG)) == ([1.5], [0.5])
        assert last.result(LONG) == [0.03]
    assert Path(path).read_text().splitlines() == ["1.5", "0.5", "0.03"]


def test_a_cancelled_stream_stops_its_generator(tmp_path):
    path = tmp_path / "stopped"
    data, graph = chain(stages.forever.fnode(), stages.plus.fnode())
    with graph:
        stream = graph.stream({data: str(path)})
        assert next(stream) == [100]
        stream.cancel()
        within(LONG, path.exists)
        with pytest.raises(df.DfAbortException):
            list(stream)
        other = graph.stream({data: str(tmp_path / "other")}, deadline=0.3)
        with pytest.raises(DeadlineExceeded):
            list(other)
        within(LONG, (tmp_path / "other").exists)


@pytest.mark.parametrize("way", ["close", "with", "break", "del"])
def test_a_stream_that_is_left_stops_its_generator(tmp_path, way):
    """The generator went on for ever, and its stage was free for no other input."""
    path = tmp_path / "stopped"
    data, graph = chain(stages.forever.fnode())
    with graph:
        if way == "break":
            for _ in graph.stream({data: str(path)}):
                break
        elif way == "with":
            with graph.stream({data: str(path)}) as stream:
                assert next(stream) == [0]
        else:
            stream = graph.stream({data: str(path)})
            assert next(stream) == [0]
            if way == "close":
                stream.close()
            else:
                del stream
        within(LONG, path.exists)
        with graph.stream({data: str(tmp_path / "other")}) as other:
            assert next(other) == [0]
        assert graph.drain(LONG)


def test_a_graph_without_room_says_so_at_once(tmp_path):
    node = stages.slow.fnode()
    node.set_attr("_flow_attr_depth", 2)
    data, graph = chain(node)
    path = str(tmp_path / "calls")
    with graph:
        graph.start()
        futures, began = [], time.monotonic()
        with pytest.raises(QueueFull):  # noqa: PT012 - the call that has no room is not known beforehand
            for _ in range(100):
                futures.append(graph.submit({data: (path, 0.2)}, wait=False))
        assert time.monotonic() - began < LONG
        assert 2 <= len(futures) <= 4
        assert [outcome(each) for each in futures] == [[0.2]] * len(futures)


def test_submit_from_a_callback_of_a_future_does_not_hang():
    data, graph = chain(stages.plus.fnode())
    with graph:
        ended, found = threading.Event(), []

        def again(done):
            found.append(done.result()[0])
            if len(found) < 20:
                graph.submit({data: found[-1]}).add_done_callback(again)
            else:
                ended.set()

        graph.submit({data: 0}).add_done_callback(again)
        others = [graph.submit({data: each}) for each in range(50)]
        assert ended.wait(LONG)
        assert found == [100 * (each + 1) for each in range(20)]
        assert [outcome(each) for each in others] == [[100 + each] for each in range(50)]


# Copies


def test_tensors_stay_on_the_card_and_each_edge_counts_its_copies():
    """Between processes and inside one: none to the host but for what is fetched, or a host stage takes."""
    for colocate in (False, True):
        data, graph = chain(stages.scale.fnode(), stages.scale.fnode(), stages.plus.fnode(), colocate=colocate)
        with graph:
            for _ in range(3):
                assert outcome(graph.submit({data: torch.ones(2, 2)}))[0].tolist() == [[100.25] * 2] * 2
            within(LONG, lambda graph=graph: [each.messages for each in graph.metrics()] == [3] * 4)
            figures = graph.metrics()
        assert [each.to_host for each in figures] == [0, 0, 3, 0], colocate
        assert [each.shared for each in figures] == [0, 3, 0, 0], colocate
