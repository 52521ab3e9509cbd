"""Places where toprope.flow differed from the vendor's source and samples: one test for each, named for what broke."""

import json
import threading
import time

import numpy as np
import pytest

import flow_stages as stages
from flow_graphs import data as flow_data
from flow_graphs import node as flow_node
from functions_session import session
from toprope import flow as df
from toprope.flow import flow_graph
from toprope.flow.exceptions import FAILED, MODEL_EXECUTE_TIMEOUT, QUEUE_EMPTY, QUEUE_FULL
from toprope.flow.executor.placement import place
from toprope.flow.graph.nodes import plan
from toprope.flow.stage.spec import Deploy, RunOptions
from toprope.flow.udf import flow_func as ff

pytestmark = [pytest.mark.native, pytest.mark.process]

DEPLOY = "ge.experiment.data_flow_deploy_info_path"


@pytest.fixture(scope="module", autouse=True)
def cards():
    with session("910B4x2"):
        yield


@pytest.fixture(autouse=True)
def begun(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    df.init({})
    yield
    df.finalize()


def ports(order=(0, 1, 2)):
    """The graph of a node of two functions, whose outputs leave in this order, and its inputs."""
    inputs = df.FlowData(name="a"), df.FlowData(name="b")
    point = df.FuncProcessPoint(py_func=stages.Ports)
    node = df.FlowNode(2, 3)
    node.add_process_point(point)
    for place_, index in enumerate(order):
        node.map_output(place_, point, index)
    return inputs, df.FlowGraph(list(node(*inputs)))


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1)])
def test_outputs_had_the_numbers_of_the_function_and_not_of_the_process_point(order):
    (a, b), graph = ports(order)
    with graph:
        assert graph.feed_data({a: 1, b: 1}) == 0
        found = {}
        for place_ in range(3):
            (tensor,), _, code = graph.fetch_data([place_], timeout=30_000)
            assert code == 0
            found[order[place_]] = tensor.numpy().tolist()
    refused = ff.FLOW_FUNC_ERR_PARAM_INVALID
    assert found == {0: [refused] * 3, 1: [refused], 2: [2]}


def chain(*functions, depth=128):
    data = out = df.FlowData()
    for each in functions:
        node = df.pyflow(each).fnode()
        node.set_attr("_flow_attr_depth", depth)
        out = node(out)
    return data, df.FlowGraph([out])


def test_fetch_before_the_first_feed_failed_at_once():
    data, graph = chain(stages.plain)
    began = time.monotonic()
    assert graph.fetch(timeout=300) == ([], MODEL_EXECUTE_TIMEOUT)
    assert time.monotonic() - began >= 0.3
    assert graph.fetch_data(timeout=0)[2] == QUEUE_EMPTY
    assert graph.fetch_result(timeout=1).code == MODEL_EXECUTE_TIMEOUT
    found = []
    consumer = threading.Thread(target=lambda: found.extend(graph.fetch() for _ in range(3)))
    consumer.start()
    time.sleep(0.2)
    with graph:
        assert [graph.feed({data: number}) for number in range(3)] == [0, 0, 0]
        consumer.join(60)
    assert found == [([number], 0) for number in range(3)]


@pytest.mark.parametrize("end", ["close", "finalize", "cannot start"])
def test_fetch_before_the_first_feed_ends_with_its_graph(end, tmp_path):
    data = df.FlowData()
    (tmp_path / "deploy.json").write_text("{}")
    options = {DEPLOY: "deploy.json"} if end == "cannot start" else {}
    graph = df.FlowGraph([df.pyflow(stages.plain).fnode()(data)], options)
    found = []
    consumer = threading.Thread(target=lambda: found.append(graph.fetch()))
    consumer.start()
    time.sleep(0.1)
    if end == "close":
        graph.close()
    elif end == "finalize":
        df.finalize()
    else:
        assert graph.feed({data: 1}) == FAILED
    consumer.join(60)
    assert found == [([], FAILED)]


def test_fetch_before_the_first_feed_fails_under_strict_and_is_reported_after_a_while(monkeypatch, caplog):
    data, graph = chain(stages.plain)
    monkeypatch.setattr(flow_graph, "_PATIENCE", 0.05)
    assert graph.fetch(timeout=200) == ([], MODEL_EXECUTE_TIMEOUT)
    (warned,) = [each.getMessage() for each in caplog.records]
    assert "nothing was fed" in warned
    assert "do: " in warned
    strict = df.FlowGraph([df.pyflow(stages.plain).fnode()(data)], {"toprope.strict": "1"})
    assert strict.fetch(timeout=60_000) == ([], FAILED)


def test_a_feeder_that_waits_while_nobody_fetches_was_silent(monkeypatch, caplog):
    monkeypatch.setattr("toprope.flow.executor.runner._UNFETCHED", 0.2)
    data = df.FlowData()
    node = df.pyflow(num_returns=2)(stages.copies).fnode()
    node.set_attr("_flow_attr_depth", 2)
    with df.FlowGraph(list(node(data))) as graph:
        code = 0
        while code == 0:  # 128 results lie at each output then
            code = graph.feed({data: 1}, timeout=1500)
        assert code == QUEUE_FULL
        (warned,) = [each.getMessage() for each in caplog.records if "unfetched results" in each.getMessage()]
        assert "output 0 of copies_fnode" in warned
        assert "output 1 of copies_fnode" in warned
        assert "do: " in warned
        caplog.clear()
        fetched = threading.Event()

        def fetch_one():  # one of the outputs alone does not help
            while not fetched.is_set():
                graph.fetch([0], timeout=50)

        consumer = threading.Thread(target=fetch_one)
        consumer.start()
        while graph.feed({data: 1}, timeout=1500) == 0:
            pass
        fetched.set()
        consumer.join(60)
        warned = [each.getMessage() for each in caplog.records if "unfetched results" in each.getMessage()]
        assert "output 1 of copies_fnode" in warned[-1]
        assert "output 0" not in warned[-1]


def test_cards_that_are_not_there_were_accepted_for_host_stages(tmp_path):
    graph = plan([flow_node(flow_point(), flow_data("x"), name="decode")])
    for devices, count, text in (
        ((7,), 2, "the deploy file puts decode on card 7: there are 2 cards, 0 to 1"),
        ((0, 1), 1, "the deploy file puts decode on card 1: there is one card, 0"),
    ):
        options = RunOptions(deploy={"decode": Deploy(devices)})
        with pytest.raises(df.DfException, match=text):
            place(graph, options, tmp_path, lambda count=count: count)
        assert place(graph, options, tmp_path, lambda: 8).hosts
        assert place(graph, options, tmp_path).hosts  # on the CPU any number will do
    with pytest.raises(df.DfException, match=r"ge\.exec\.deviceId puts decode on card 2"):
        place(graph, RunOptions(device_index=2), tmp_path, lambda: 2)
    assert place(graph, RunOptions(), tmp_path, None).hosts  # card 0 asks for no count


def test_a_deploy_file_with_a_card_that_is_not_there_fails_the_first_feed(tmp_path):
    row = {"flow_node_list": ["plain_fnode"], "logic_device_list": "0:0:2:0"}
    (tmp_path / "deploy.json").write_text(json.dumps({"batch_deploy_info": [row]}))
    data = df.FlowData()
    graph = df.FlowGraph([df.pyflow(stages.plain).fnode()(data)], {DEPLOY: "deploy.json"})
    assert graph.feed({data: 1}) == FAILED
    assert "plain_fnode on card 2: there are 2 cards" in str(graph.error)


def flow_point():
    from flow_graphs import Point

    return Point(lambda x: x)


def test_batches_could_not_be_set_attribute_by_attribute_as_the_samples_do():
    batch = df.TimeBatch()
    batch.time_window, batch.batch_dim = 5, 0
    assert batch == df.TimeBatch(5, 0)
    count = df.CountBatch()
    count.batch_size = 3
    assert count == df.CountBatch(3)
    for make in (lambda: df.TimeBatch("5"), lambda: df.CountBatch(3, padding=1), lambda: df.CountBatch(1.5)):
        with pytest.raises(df.DfException) as error:
            make()
        assert error.value.error_code == 145000


def test_names_of_nodes_were_taken_by_other_objects():
    assert df.FlowData(name="decode").name == "decode"
    assert df.FlowNode(1, 1, "decode").name == "decode"  # the deploy file names it so
    assert df.FlowNode(1, 1, "decode").name == "decode_1"
    data = df.FlowData()
    output = df.pyflow(stages.plain).fnode()(data)
    assert [df.FlowGraph([output]).name for _ in range(2)] == ["FlowGraph", "FlowGraph_1"]
    assert df.FlowGraph([output], name="decode").name == "decode_1"
    points = [df.GraphProcessPoint(df.Framework.ONNX, "x.onnx", {"a": "b"}) for _ in range(2)]
    assert [each.name for each in points] == ["GraphProcessPoint", "GraphProcessPoint_1"]
    assert (points[0].graph_file, points[0].load_params, points[1].framework) == (
        "x.onnx", {"a": "b"}, df.Framework.ONNX,
    )  # fmt: skip
    for wrong in (("1", 1), (1, None), (1, 1, 5)):
        with pytest.raises(TypeError):
            df.FlowNode(*wrong)
    node = df.FlowNode(1, 1)
    with pytest.raises(TypeError):
        node.set_attr(0, 0)
    assert node.set_attr("_flow_attr_depth", 3) is None
    with pytest.raises(df.DfException, match="takes a GraphProcessPoint or FuncProcessPoint, got str"):
        node.add_process_point("x")


def test_the_register_of_functions_was_missing(tmp_path):
    found = ff.FlowFuncRegister.get_flow_func(stages.__name__, "Ports")
    assert found == {"first": "i0,o0", "second": "i1,o1,o2"}
    assert ff.FlowFuncRegister.get_flow_func(stages.__name__, "Nobody") is None
    infos = ff.FlowFuncInfos()
    infos.add_func_params("run", "i0,o0")
    infos.add_running_resources_info("cpu", 2)
    infos.set_visible_device_enable(True)
    infos.set_env_hook_func(len)
    ff.FlowFuncRegister.register_flow_func_infos(stages.__name__, "Bare", infos)
    assert ff.FlowFuncRegister.get_flow_func_infos(stages.__name__, "Bare") is infos
    spec = df.FuncProcessPoint(py_func=stages.Bare).stage_spec()
    assert [(each.name, each.inputs, each.outputs) for each in spec.functions] == [("run", (0,), (0,))]
    assert (spec.resources, spec.visible_device, spec.env_hook is not None) == ({"num_cpus": 2}, True, True)
    described = json.loads((tmp_path / "Bare_ws" / "func_bare.json").read_text())
    assert described["visible_device_enable"] is True
    for params, text in (
        ("i1,o0", "inputs of Bare must be i0 to i0"),
        ("i0,o0,o2", "outputs of Bare must be o0 to o1"),
    ):
        infos.add_func_params("run", params)
        with pytest.raises(ValueError, match=text):
            df.FuncProcessPoint(py_func=stages.Bare)


def test_constants_of_the_udf_interface_were_missing():
    assert (ff.MSG_TYPE_TENSOR_DATA, ff.MSG_TYPE_RAW_MSG, ff.MSG_TYPE_TORCH_TENSOR_MSG) == (0, 1, 1023)
    assert (ff.MSG_TYPE_USER_DEFINE_START, ff.MSG_TYPE_PICKLED_MSG) == (1024, 65535)
    assert (ff.FLOW_FLAG_EOS, ff.FLOW_FLAG_SEG, ff.MAX_USER_DATA_SIZE) == (1, 2, 64)
    config = ff.BalanceConfig(1, 1)
    assert config.get_inner_config() is config
    assert np.dtype(df.Tensor(np.int8(1)).get_data_type()) == np.int8
