"""Dynamic batches, streams of results and Prometheus's text, without processes.

Held: `worker.dynamic_batch`, `graph.streams`, `flow.futures` and `service.prometheus`.
"""

import re
from collections import deque

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from toprope import flow as df
from toprope.flow.exceptions import DfException, DfTypeError
from toprope.flow.futures import ResultStream
from toprope.flow.graph.nodes import FlowData, FlowNode, plan
from toprope.flow.graph.streams import stream_ends
from toprope.flow.observability.metrics import EdgeMetrics, StageMetrics, stage_metrics
from toprope.flow.service.prometheus import RequestFigures, exposition
from toprope.flow.stage.plan import StagePlan
from toprope.flow.stage.spec import (
    EMPTY,
    END,
    FAILURE,
    TENSOR,
    Failure,
    Head,
    Message,
    StageContext,
    StageFunction,
    StageSpec,
)
from toprope.flow.stage.status import BUCKETS, CELLS, MORE_INPUTS, Recorder, Status
from toprope.flow.worker.dynamic_batch import Collector, check_batch, chunks, rows_of
from toprope.flow.worker.input_matching import Group

# Options


@pytest.mark.parametrize(
    ("wait", "nanoseconds"), [(None, 0), ("5ms", 5_000_000), ("0.5 s", 500_000_000), ("100us", 100_000), ("0ms", 0)]
)
def test_the_wait_of_a_batch_has_a_unit(wait, nanoseconds):
    assert check_batch(8, wait) == (8, nanoseconds)


@pytest.mark.parametrize(
    ("batch", "wait", "error"),
    [
        (0, None, DfException), (-1, None, DfException), (True, None, DfTypeError), ("8", None, DfTypeError),
        (8, "5", DfTypeError), (8, 5, DfTypeError), (8, "-5ms", DfTypeError), (8, "5min", DfTypeError),
        (8, "61s", DfException), (None, "5ms", DfException),
    ],
)  # fmt: skip
def test_options_of_batches_that_cannot_be(batch, wait, error):
    with pytest.raises(error):
        check_batch(batch, wait)


def test_batches_are_off_by_default_and_refused_where_they_cannot_be_split():
    @df.pyflow
    def plain(value):
        return value

    assert plain.__df_options__.batch == 0
    with pytest.raises(DfException, match="generator"):

        @df.pyflow(batch=2)
        def generates(value):
            yield value

    with pytest.raises(DfException, match="stream_input"):
        df.pyflow(batch=2, stream_input="Queue")
    with pytest.raises(DfException, match="no inputs"):

        @df.pyflow(batch=2)
        def nothing():
            return 1

    with pytest.raises(DfTypeError, match="instances must be an int"):
        df.pyflow(instances="2")
    with pytest.raises(DfException, match="1 to 256"):
        df.pyflow(instances=0)


def test_batches_are_refused_for_fixed_shapes():
    def decorate(*shapes, **options):
        descs = [df.TensorDesc(df.DT_FLOAT, list(shape)) for shape in shapes]

        @df.npu_model(batch=4, input_descs=descs, **options)
        class Model:
            @df.method()
            def forward(self, x):
                return x

        return Model

    for level in (1, 2):
        with pytest.raises(DfException, match="fixed shape"):
            decorate([1, 3], optimize_level=level)
        decorate([-1, 3], optimize_level=level)
    with pytest.raises(DfException, match="input 1"):
        decorate([-1, 3], [2])


# Requests of a call


@given(st.lists(st.none() | st.tuples(st.sampled_from("ab"), st.integers(0, 6)), max_size=20), st.integers(1, 8))
def test_each_request_is_in_one_chunk_that_fits(keys, most):
    found = chunks(keys, most)
    assert sorted(number for chunk in found for number in chunk) == list(range(len(keys)))
    for chunk in found:
        assert chunk == sorted(chunk)
        kinds = {keys[number] and keys[number][0] for number in chunk}
        assert len(kinds) == 1
        if len(chunk) > 1:
            assert None not in kinds
            assert sum(keys[number][1] for number in chunk) <= most


def test_rows():
    assert rows_of([np.zeros((2, 3)), np.zeros(2)]) == 2
    assert rows_of([np.zeros((2, 3)), np.zeros(3)]) is None
    assert rows_of([np.zeros(()), np.zeros(())]) is None
    assert rows_of([1]) is None


class Gathered:
    """A gather that was given its groups."""

    def __init__(self):
        self.groups = deque()

    def is_ready(self):
        return bool(self.groups)

    def take(self):
        return self.groups.popleft()

    def due(self):
        return None

    def put(self, kind=TENSOR, rows=1, flags=0):
        self.groups.append(Group([Message(kind, np.zeros((rows, 2)), Head(1, flags=flags))]))


def test_a_batch_goes_when_it_is_full_or_has_waited():
    gathered = Gathered()
    collector = Collector(gathered, 3, 5_000_000, counts_rows=True)
    assert not collector.is_ready(1.0)
    assert collector.due() is None
    gathered.put()
    assert not collector.is_ready(1.0)
    assert collector.due() == pytest.approx(1.005)
    assert not collector.is_ready(1.004)
    assert collector.is_ready(1.006)
    assert len(collector.take()) == 1
    gathered.put()
    gathered.put(rows=2)
    gathered.put()
    assert collector.is_ready(2.0)
    assert len(collector.take()) == 2
    assert not collector.is_ready(2.0)


def test_a_failure_does_not_wait_for_others_and_keeps_its_place():
    gathered = Gathered()
    collector = Collector(gathered, 3, 5_000_000, counts_rows=False)
    gathered.groups.append(Group([Message(FAILURE, Failure(ValueError()), Head(1))]))
    gathered.put(EMPTY, flags=END)
    assert collector.is_ready(1.0)
    assert len(collector.take()) == 2
    gathered.put()
    gathered.put(EMPTY)
    assert not collector.is_ready(1.0)
    assert collector.is_ready(1.1)
    assert [each.messages[0].kind for each in collector.take()] == [TENSOR, EMPTY]


# Streams


class Point:
    def __init__(self, inputs=1, outputs=1, generates=False):
        self.function = StageFunction("run", tuple(range(inputs)), tuple(range(outputs)), generates=generates)

    def stage_spec(self):
        return StageSpec("", "python", b"", (self.function,))


def node(*inputs, outputs=1, generates=False, name=None):
    made = FlowNode(len(inputs), outputs, name)
    made.add_process_point(Point(len(inputs), outputs, generates))
    return made(*inputs)


def data():
    found = FlowData.__new__(FlowData)
    found.name, found.schema = f"x{id(found)}", None
    return found


def ends(*outputs):
    made = plan(list(outputs))
    return [len(each) for each in stream_ends(made, [each.stage_spec() for each in made.nodes])]


def test_the_first_generator_ends_the_stream():
    first = node(data(), generates=True)
    assert ends(node(node(first), generates=True)) == [1, 0, 0]
    left, right = node(data(), outputs=2, generates=True)
    assert ends(node(node(left), right)) == [1, 0, 0]
    assert ends(node(data())) == [0]


def test_streams_of_different_lengths_are_refused():
    x = data()
    with pytest.raises(DfException, match="no generator"):
        ends(node(node(x, generates=True), node(x)))
    with pytest.raises(DfException, match="different numbers"):
        ends(node(node(x, generates=True), node(x, generates=True)))
    left, right = node(x, outputs=2, generates=True)
    with pytest.raises(DfException, match="->"):
        ends(node(node(left, generates=True), right))
    with pytest.raises(DfException, match="the graph"):
        ends(node(x, generates=True), node(x))


def test_a_stream_that_nobody_reads_is_bounded():
    stream = ResultStream()
    larger_than_the_bound = np.zeros(65 * 2**20, "u1")
    assert stream.put([larger_than_the_bound])  # one result is always taken
    assert stream.take()[0] is larger_than_the_bound
    large = np.zeros(40 * 2**20, "u1")
    assert stream.put([large])
    assert not stream.put([large])
    assert stream.take()[0] is large
    assert stream.put([large])
    assert [stream.put([1]) for _ in range(65535)] == [True] * 65535
    assert not stream.put([1])
    stream.end(KeyError("no"))
    assert stream.take()[0] is large
    assert len([stream.take() for _ in range(65535)]) == 65535
    with pytest.raises(KeyError):
        stream.take()


# Figures


def test_calls_are_counted_by_their_time(tmp_path):
    status = Status(tmp_path / "status", 30)
    cells = status.cells(29)
    recorder = Recorder(cells)
    for nanoseconds in (50_000, 100_000, 100_001, 20 * 10**9):
        recorder.add(2, nanoseconds)
    read = list(Status(tmp_path / "status", 30).cells(29))
    assert len(read) == CELLS
    assert read[MORE_INPUTS] == 4
    assert read[BUCKETS : BUCKETS + 2] == [2, 1]
    assert read[-1] == 1
    function = StageFunction("run", (0,), (0,))
    plan = StagePlan(0, StageContext("s", 1, 1), StageSpec("s", "python", b"", (function,)), 1, False)
    (found,) = stage_metrics([(plan, function, read)])
    assert (found.stage, found.function, found.calls, found.inputs) == ("s", "", 4, 8)
    assert found.buckets[0] == (0.0001, 2)
    assert found.buckets[-1] == (10.0, 3)


SAMPLE = re.compile(r'([a-z_]+)(?:\{((?:[a-z]+="(?:[^"\\\n]|\\.)*",?)+)\})? (-?[0-9.e+-]+)')


def test_prometheus_reads_the_text():
    """Every line is a comment or a sample of a family that was announced; buckets add up."""
    requests = RequestFigures()
    for seconds in (0.0001, 0.3, 100):
        requests.add(200, seconds)
    requests.add(429, 0.0)
    stage = StageMetrics('odd "name"\n', "f", 1, 3, 5, 0.5, ((0.1, 1), (1.0, 2)))
    edge = EdgeMetrics("x", 0, "s", 0, 128, 3, 10, 1000, 1500.0, 1, 2, 3, 0)
    text = exposition(requests, [stage], [edge], 2)
    assert text.endswith("\n")
    kinds, samples = {}, {}
    for line in text.splitlines():
        if line.startswith("#"):
            _, what, name, rest = line.split(" ", 3)
            if what == "TYPE":
                assert name not in kinds
                kinds[name] = rest
        else:
            name, labels, value = SAMPLE.fullmatch(line).groups()
            base = re.sub(r"_(bucket|sum|count)$", "", name)
            assert kinds.get(name) in ("counter", "gauge") or kinds.get(base) == "histogram", line
            assert (name, labels) not in samples
            samples[name, labels] = float(value)
    assert samples["toprope_requests_total", 'code="200"'] == 3
    assert samples["toprope_request_duration_seconds_bucket", 'le="+Inf"'] == 4
    assert samples["toprope_request_duration_seconds_bucket", 'le="60"'] == 3
    assert samples["toprope_queue_length", 'source="x",output="0",target="s",input="0"'] == 3
    assert samples["toprope_edge_wait_seconds_total", 'source="x",output="0",target="s",input="0"'] == 1.5
    assert samples["toprope_stage_restarts_total", None] == 2
    labels = 'stage="odd \\"name\\"\\n.f",instance="1"'
    assert samples["toprope_stage_duration_seconds_count", labels] == 3
    assert samples["toprope_stage_duration_seconds_bucket", labels + ',le="1"'] == 2
