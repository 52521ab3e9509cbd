"""Building graphs (`graph.nodes`), and the answers of feed and fetch before anything runs. No process is started."""

import json
import threading
import xml.etree.ElementTree

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from toprope import flow as df
from toprope.flow.graph.nodes import forget_names, plan
from toprope.flow.observability.metrics import EdgeMetrics
from toprope.flow.observability.svg import svg
from toprope.flow.stage.spec import StageFunction, StageSpec


class Point:
    """A process point that is never run."""

    def __init__(self, functions=()):
        self.functions = functions

    def stage_spec(self):
        return StageSpec("", "python", b"", self.functions)


def node(inputs, outputs, *wired, name=None):
    made = df.FlowNode(inputs, outputs, name)
    made.add_process_point(Point())
    if wired:
        made(*wired)
    return made


def code(call, *arguments, **named):
    with pytest.raises(df.DfException) as error:
        call(*arguments, **named)
    return error.value.error_code


@pytest.fixture(autouse=True)
def begun(monkeypatch):
    df.finalize()
    df.init({})
    yield
    df.finalize()


def vector():
    a, b = df.FlowData(name="a"), df.FlowData(name="b")
    first, second = node(2, 3, a, b), node(2, 3, a, b)
    o0, o1, o2 = first.outputs()
    o3, _, o5 = second.outputs()
    return [o2, o1, o0, o0, o5, o3, o0]


def test_a_name_that_is_taken_is_said_with_the_new_one(caplog):
    """The inputs of a service had other names than its program gave them."""
    first, second, third = df.FlowData(name="x"), df.FlowData(name="x"), df.FlowData()
    assert (first.name, second.name) == ("x", "x_1")
    assert "the name x is taken, so this FlowData is called x_1. do: give another name" in caplog.text
    caplog.clear()
    assert third.name != df.FlowData().name
    assert not caplog.text


def test_the_map_of_the_reference():
    graph = df.FlowGraph(vector())
    assert list(graph.plan.order) == [4, 3, 0, 1, 6, 5, 2]
    assert graph._places(None) == [4, 3, 0, 1, 6, 5, 2]
    assert graph._places([1, 1, 6]) == [3, 3, 2]


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2)), min_size=1, max_size=9))
def test_what_is_fetched_is_what_was_listed(picked):
    data = df.FlowData()
    nodes = [node(1, 3, data) for _ in range(3)]
    outputs = [nodes[which].outputs()[index] for which, index in picked]
    found = plan(outputs)
    assert sorted(found.order) == list(range(len(outputs)))
    assert [found.fetched[place] for place in found.order] == outputs
    assert len(found.nodes) == len({which for which, _ in picked})  # others are pruned


@given(st.permutations([0, 1, 2]), st.sets(st.integers(0, 2)))
def test_mapped_ports_are_the_nodes_own(order, mapped):
    made = df.FlowNode(3, 3)
    made.add_process_point(Point((StageFunction("run", (0, 1, 2), (2, 1, 0)),)))
    for place in mapped:
        made.map_input(place, made.point, order[place])
        made.map_output(place, made.point, order[place])
    (function,) = made.stage_spec().functions
    assert sorted(function.inputs) == sorted(function.outputs) == [0, 1, 2]
    for place in mapped:
        assert function.inputs[order[place]] == place
        assert function.outputs[2 - order[place]] == place


def test_a_point_with_other_ports_than_its_node_is_refused():
    made = df.FlowNode(1, 1)
    made.add_process_point(Point((StageFunction("run", (0, 1), (0,)),)))
    assert code(made.stage_spec) == 145000


def test_names_and_aliases():
    assert [df.FlowNode(1, 1).name for _ in range(3)] == ["FlowNode", "FlowNode_1", "FlowNode_2"]
    first, second = df.FlowNode(1, 1, "x"), df.FlowNode(1, 1, "x")
    assert (first.name, second.name) == ("x", "x_1")
    first.set_alias("y")
    with pytest.raises(ValueError, match="y is taken"):
        second.set_alias("y")
    assert df.FlowNode(1, 1, "z").name == "z"  # the reference's names are broken after that
    forget_names()
    assert df.FlowNode(1, 1).name == "FlowNode"


def test_any_thread_may_build():
    made = []
    threads = [threading.Thread(target=lambda: made.append(df.FlowNode(1, 1).name)) for _ in range(8)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert len(set(made)) == 8


def test_what_cannot_be_built_is_refused():
    data = df.FlowData()
    made = node(1, 1, data)
    assert code(made) == code(made, 5) == code(made, made.outputs()) == 145000
    assert code(made.add_process_point, Point()) == 145000
    assert code(made.map_input, 1, made.point, 0) == code(made.map_output, 1, made.point, 0) == 145000
    assert code(made.map_input, 0, made.point, 0, [5]) == code(made.map_input, 0, Point(), 0) == 145000
    assert code(df.FlowData, int) == code(df.FlowData, schema=5) == 145000
    for outputs in (5, [5], [data], []):
        assert code(df.FlowGraph, outputs) == 145000
    assert code(df.FlowGraph, [df.FlowNode(1, 1)(data)]) == 145000  # it runs nothing
    with pytest.raises(TypeError):
        made.set_attr("_flow_attr_depth", 1.5)
    assert code(made.set_attr, "_flow_attr_depth", 0) == code(made.set_attr, "_flow_attr_enqueue_policy", "X") == 145000
    inner = df.FlowGraphProcessPoint(df.FlowGraph([made.outputs()]))
    assert code(df.FlowNode(1, 1).add_process_point, inner) == 145000
    assert code(df.FlowGraphProcessPoint, 5) == 145000


def test_options_are_texts_and_init_comes_first():
    df.finalize()
    data = df.FlowData()
    assert code(df.FlowGraph, [node(1, 1, data).outputs()]) == 145001
    for options in (None, {"a": 1}, {1: "a"}):
        assert code(df.init, options) == 145000
    options = {}
    df.init(options)
    assert options == {"ge.graphRunMode": "0"}
    df.init({"ge.exec.deviceId": "5"})  # is ignored
    assert df.FlowGraph([node(1, 1, data).outputs()]).run_options().device_index == 0
    assert code(df.FlowGraph, [node(1, 1, data).outputs()], {"a": 1}) == 145000


def two_inputs():
    a, b = df.FlowData(name="a"), df.FlowData(name="b", schema=df.TensorDesc(df.DT_FLOAT, [-1]))
    return a, b, df.FlowGraph([node(2, 1, a, b).outputs()], {"ge.runFlag": "0"})


def test_feeding_returns_codes():
    a, b, graph = two_inputs()
    other = df.FlowData()
    tensor = df.Tensor(torch.ones(1).numpy())
    assert graph.feed({a: 1, b: tensor}) == 0
    assert graph.feed_data({a: 1, b: torch.ones(3).numpy()}) == 0
    for feed in (graph.feed, graph.feed_data):
        assert feed({a: 1}) == feed({other: 1}) == feed({}) == feed(5) == 145000
        assert feed({a: 1}, partial_inputs=True) == 0
        assert feed({a: 1, b: tensor, other: 2}) == 0
        assert feed({a: 1, b: tensor}, timeout="x") == feed({a: 1, b: tensor}, partial_inputs=1) == 145000
    assert graph.feed({a: 1, b: df.Tensor([1])}) == 145000  # another dtype
    assert graph.feed_data({a: {}, b: tensor}) == 145022
    assert graph.feed_data({a: 1, b: torch.ones(3, 1).numpy()}) == 145021
    assert graph.feed_data({a: 1, b: tensor}, 5) == 145000
    assert graph.feed_data({}, df.FlowInfo(flow_flags=df.FlowFlag.DATA_FLOW_FLAG_EOS)) == 0
    assert graph.feed_data({}, df.FlowInfo()) == 145000
    with pytest.raises(TypeError, match="please to cpu"):
        graph.feed({a: torch.ones(1, device="meta"), b: tensor})


def test_settings_come_before_feeding_and_within_their_bounds():
    a, _, graph = two_inputs()
    for values in ((-1, -1), (1025, -1), (1, 0), (1, -2), (1, 600_001), (1, -1, 5), ("1", -1)):
        assert code(graph.set_inputs_align_attrs, *values) == 145000
    assert code(graph.set_contains_n_mapping_node, 1) == code(graph.set_exception_catch, 1) == 145000
    for values in ((0, -1), (1024, 600_000, True)):
        graph.set_inputs_align_attrs(*values)
    graph.set_contains_n_mapping_node(True)
    graph.set_exception_catch(True)
    options = graph.run_options()
    assert (options.align, options.align_timeout_ms, options.align_drop) == (1024, 600_000, True)
    assert (options.n_mapping, options.exception_catch) == (True, True)
    assert graph.feed({a: 1}, partial_inputs=True) == 0
    for call, values in (
        (graph.set_contains_n_mapping_node, (True,)), (graph.set_exception_catch, (True,)),
        (graph.set_inputs_align_attrs, (1, -1)),
    ):  # fmt: skip
        with pytest.raises(df.DfException, match=f"can not call {call.__name__} after feed data"):
            call(*values)


@pytest.mark.parametrize("strict", [False, True])
def test_indexes_of_what_is_fetched(strict):
    graph = df.FlowGraph(vector(), {"toprope.strict": "1"} if strict else {})
    for indexes in ([7], [-8], "0", [0.0], 5, [True]):
        assert graph.fetch(indexes) == ([], 145000)
        values, info, code_ = graph.fetch_data(indexes)
        assert (values, info.transaction_id, code_) == ([], 0, 145000)
    assert graph.fetch(timeout=0)[1] == (4294967295 if strict else 207013)  # before any feed
    if strict:  # the reference's quirks
        assert graph._places([-1, -7]) == [2, 4]
        assert graph._places([]) == list(range(7))
    else:
        assert graph.fetch([-1]) == ([], 145000)
        assert graph._places([]) == graph._places(None)


def test_a_graph_that_cannot_run_says_why(tmp_path):
    a, b, _ = two_inputs()
    path = tmp_path / "deploy.json"
    path.write_text('{"deploy_info": []}')
    graph = df.FlowGraph(
        [node(2, 1, a, b, name="n").outputs()], {"ge.experiment.data_flow_deploy_info_path": str(path)}
    )
    assert graph.feed({a: 1}, partial_inputs=True) == 4294967295
    assert "does not have n" in str(graph.error)
    result = graph.fetch_result()
    assert (result.code, result.error) == (4294967295, graph.error)
    with pytest.raises(df.DfException, match="does not have n"):
        result.get()


def test_the_deploy_template_lists_alias_or_name(tmp_path):
    data = df.FlowData()
    first = node(1, 1, data, name="first")
    second = node(1, 1, first.outputs(), name="second").set_alias("other")
    df.utils.generate_deploy_template(df.FlowGraph([second.outputs()]), str(tmp_path / "t.json"))
    rows = json.loads((tmp_path / "t.json").read_text())["batch_deploy_info"]
    assert rows == [{"flow_node_list": [name], "logic_device_list": "0:0:0:0"} for name in ("first", "other")]
    assert code(df.utils.generate_deploy_template, 5, "x") == 145000


@given(st.integers(1, 4), st.booleans())
def test_the_picture_shows_every_node_and_edge_with_figures(width, with_figures):
    data = df.FlowData(name="<in&put>")
    firsts = [node(1, 1, data, name=f"first {number} " + "x" * 30) for number in range(width)]
    last = node(width, 1, *(each.outputs() for each in firsts), name="last")
    found = plan([last.outputs(), last.outputs()])
    figures = [
        EdgeMetrics("", 0, "", 0, 128, 128 * (number % 2), 1234, 5_600_000, 1.5, 1, 2, 3, 4)
        for number in range(len(found.edges))
    ]
    text = svg(found, figures if with_figures else (), "A <graph>")
    root = xml.etree.ElementTree.fromstring(text)
    assert len([each for each in root.iter() if "data-node" in each.attrib]) == width + 1
    assert len([each for each in root.iter() if "data-source" in each.attrib]) == len(found.edges)
    assert ("1234 sent, 5.6 MB" in text) is with_figures
    assert ("128 of 128 waiting" in text) is with_figures
    assert "1 to host, 2 card to card, 4 lost" in text if with_figures else "sent" not in text
    assert "script" not in text
