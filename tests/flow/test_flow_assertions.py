"""The 28 assertions of the dataflow API, by their numbers, on two simulated cards: one session for all of them.

They restate the vendor's manual. Those that need nothing to run are in test_flow_graph.py and test_flow_decorators.py,
under the same words.
"""

import json
import os
import time
from pathlib import Path

import numpy as np
import pytest
import torch

import flow_stages as stages
from functions_session import session, within
from toprope import flow as df

pytestmark = [pytest.mark.native, pytest.mark.process]

FAILED = 4294967295
DEPLOY = "ge.experiment.data_flow_deploy_info_path"
EOS, SEG = df.FlowFlag.DATA_FLOW_FLAG_EOS, df.FlowFlag.DATA_FLOW_FLAG_SEG


@pytest.fixture(scope="module", autouse=True)
def cards(tmp_path_factory):
    folder, before = tmp_path_factory.mktemp("flow"), Path.cwd()
    os.chdir(folder)
    os.environ["FLOW_CAUGHT"] = str(folder / "caught")
    try:
        with session("910B4x2"):
            yield folder
    finally:
        df.finalize()
        os.environ.pop("FLOW_CAUGHT")
        os.chdir(before)


@pytest.fixture(autouse=True)
def begun(cards):
    df.init({})
    yield
    df.finalize()


def through(*nodes, **options):
    """A chain, and its input."""
    data = out = df.FlowData()
    for each in nodes:
        out = each.forward(out) if hasattr(type(each), "_wire") and "forward" in each._methods else each(out)
    return data, df.FlowGraph([out], **options)


def once(node, value):
    data, graph = through(node)
    with graph:
        assert graph.feed({data: value}) == 0
        return graph.fetch(timeout=20_000)


def func(cls):
    node = df.FlowNode(1, 1)
    node.add_process_point(df.FuncProcessPoint(py_func=cls))
    return node


def code_of(call, *arguments):
    with pytest.raises(df.DfException) as error:
        call(*arguments)
    return error.value.error_code


def test_01_a_class_is_a_node_with_its_methods():
    node = stages.FakeModel1.fnode()
    assert (node.name, node.input_num, node.output_num) == ("FakeModel1_fnode", 1, 1)
    assert node.attrs["_npu_sched_model"] == 1
    assert node.forward(df.FlowData()).node is node
    with pytest.raises(TypeError):
        stages.FakeModel1()


@pytest.mark.slow
def test_02_03_04_single_models_equal_eager():
    image = torch.randn(1, 3, 256, 256)
    (got,), code = once(stages.FakeModel2.fnode(), image)  # level 1 does not look at input_descs
    assert code == 0
    torch.testing.assert_close(got, stages.normal(image), atol=1e-6, rtol=0)
    node = stages.preprocess.fnode()
    assert node.name == "preprocess_fnode"
    whole = torch.randn(1, 3, 768, 768)
    (got,), code = once(node, whole)
    assert code == 0
    assert torch.equal(got, whole[..., 128:640, 128:640])  # the reference loses the strides of a view
    (got,), code = once(stages.postprocess.fnode(), image)
    assert (code, got.shape) == (0, (1, 3, 512, 512))
    torch.testing.assert_close(got, stages.grow(image), atol=1e-5, rtol=0)


def chain(second):
    return through(stages.preprocess.fnode(), stages.FakeModel1.fnode(), second, stages.postprocess.fnode())


@pytest.mark.slow
def test_05_06_the_chain_at_both_levels(cards):
    image = torch.randn(1, 3, 768, 768)
    wanted = stages.eager(image)
    sunk = stages.FakeModel2Sunk.fnode(0.5)
    assert (cards / "FakeModel2Sunk_fnode_ws" / "export.pt2").is_file()
    for second in (stages.FakeModel2.fnode(), sunk):
        data, graph = chain(second)
        with graph:
            count = 20 if second is not sunk else 2
            for number in range(count):
                assert graph.feed({data: image + number / 8}) == 0
            for number in range(count):
                (got,), code = graph.fetch()
                assert (code, got.device.type, got.dtype, got.shape) == (0, "cpu", torch.float32, (1, 3, 512, 512))
                torch.testing.assert_close(got, wanted + number / 8, atol=1e-5, rtol=0)


@pytest.mark.slow
def test_07_a_negative_size_stands_for_any():
    data, graph = through(stages.AnyBatch.fnode())
    with graph:
        for batch in (1, 2, 7):
            assert graph.feed({data: torch.ones(batch, 3)}) == 0
            (got,), code = graph.fetch()
            assert code == 0
            assert torch.equal(got, torch.full((batch, 2), 3.0))


def test_08_09_10_what_decorators_refuse():
    """Every case is in test_flow_decorators.py."""
    for level in (3, "1", 2):
        cls = df.npu_model(optimize_level=level)(type("M", (), {"f": df.method()(lambda self, x: x)}))
        with pytest.raises(TypeError):
            cls.fnode()
    with pytest.raises(TypeError, match="param:optimize_level is not support in @npu_model"):
        df.npu_model(optimize_level=1)(lambda x: x)
    with pytest.raises(AssertionError):
        df.npu_model(num_returns=0)(lambda x: x)


@pytest.mark.slow
def test_11_a_wrong_return_fails_its_input_alone(request):
    data = df.FlowData()
    node = stages.wrong.fnode()
    with df.FlowGraph(list(node(data))) as graph:
        for kind in range(5):
            assert graph.feed({data: torch.tensor([float(kind)])}) == 0
        began = time.monotonic()
        for kind in range(4):
            assert graph.fetch(timeout=-1) == ([], 564000), kind
        values, code = graph.fetch()
        assert (len(values), code) == (2, 0)
        assert time.monotonic() - began < 10
    capture = request.config.pluginmanager.getplugin("capturemanager")  # the stages write where the session did
    told, until = "", time.monotonic() + 10
    while "got Tensor" not in told and time.monotonic() < until:  # it is brought here in its own time
        told += capture.read_global_capture().err
        time.sleep(0.01)
    assert "must return a tuple of as many, got list" in told
    assert "it is on cpu" in told


def test_12_tensors_at_the_edges():
    data, graph = through(stages.preprocess.fnode())
    with graph:
        with pytest.raises(TypeError, match="please to cpu"):
            graph.feed({data: torch.ones(1, device="meta")})
        strided = torch.arange(2.0 * 768 * 768).reshape(1, 768, 768, 2).permute(0, 3, 1, 2)
        assert not strided.is_contiguous()
        assert graph.feed({data: strided.requires_grad_()}) == 0
        (first,), code = graph.fetch()
        wanted = stages.crop(strided.detach()).clone()
        assert code == 0
        assert torch.equal(first, wanted)
        small = torch.zeros(1, 1, 4, 4)
        for _ in range(10):
            for _ in range(100):
                assert graph.feed({data: small}) == 0
            for _ in range(100):
                assert graph.fetch()[1] == 0
        assert torch.equal(first, wanted)


def test_13_14_15_16_17_building_and_codes(cards):
    """More of them is in test_flow_graph.py; here a graph runs."""
    df.finalize()
    data = df.FlowData()
    assert code_of(df.FlowGraph, [stages.echo.fnode()(data)]) == 145001
    df.init({})
    assert [df.FlowNode(1, 1).name for _ in range(2)] == ["FlowNode", "FlowNode_1"]
    a, b = df.FlowData(), df.FlowData()
    node = stages.Actor.fnode(10)
    z, (x, y) = node.zeta(a), node.alpha(a, b)
    with df.FlowGraph([y, x, x, z, y]) as graph:
        assert graph.feed({a: 1}) == 145000
        assert graph.feed({a: 1, b: 2}) == 0
        values, code = graph.fetch()
        assert (values[0], values[1], values[2], values[4], code) == (2, 11, 11, 2, 0)
        assert graph.feed({a: 3, b: 4}) == 0
        assert graph.fetch([1, 1, 4]) == ([13, 13, 4], 0)
        assert code_of(graph.set_exception_catch, True) == 145000


def test_18_values_of_all_kinds_come_back():
    df.msg_type_register.register(1026, stages.Registered, stages.to_bytes, stages.from_bytes)
    array = np.arange(6).reshape(2, 3)
    data, graph = through(stages.echo.fnode())
    with graph:
        for value in (df.Tensor(array), array, None, {"a": [1]}, stages.Registered(5), "text", torch.ones(2)):
            assert graph.feed({data: value}) == 0
            (got,), code = graph.fetch()
            assert (type(got), code) == (type(value), 0)
            if isinstance(value, df.Tensor):
                got, value = got.numpy(), value.numpy()
            assert np.array_equal(got, value) if isinstance(value, np.ndarray | torch.Tensor) else got == value
        assert graph.feed_data({data: ["ab", "c"]}) == 0
        (tensor,), _, code = graph.fetch_data()
        assert tensor.numpy(copy=True).tolist() == [b"ab", b"c"]


def test_19_a_class_is_made_once_in_its_process():
    node = stages.Actor.fnode(10)
    assert (node.input_num, node.output_num) == (3, 3)
    a, b = df.FlowData(), df.FlowData()
    assert code_of(node.alpha, a) == 145000
    z, (x, y) = node.zeta(b), node.alpha(a, b)
    with df.FlowGraph([z, x, y]) as graph:
        pids = set()
        for number in range(3):
            assert graph.feed({a: number, b: "b"}) == 0
            (value, x_, y_), code = graph.fetch()
            assert (value[0], x_, y_, code) == ("b", number + 10, "b", 0)
            pids.add(value[1:])
        ((made, run),) = pids
        assert made == run != os.getpid()


def test_20_streams_generators_and_choices():
    a, b = df.FlowData(), df.FlowData()
    with df.FlowGraph([stages.two_and_one.fnode()(a, b)]) as graph:
        for number in range(4):
            assert graph.feed({a: number}, partial_inputs=True) == 0
        for text in "xy":
            assert graph.feed({b: text}, partial_inputs=True) == 0
        assert [graph.fetch() for _ in range(2)] == [([(0, 1, "x")], 0), ([(2, 3, "y")], 0)]
    assert once(stages.drained.fnode(), 1) == ([([1], True, 0)], 0)
    data, graph = through(stages.five.fnode())
    with graph:
        assert graph.feed({data: 1}) == graph.feed({data: 2}) == 0
        assert [graph.fetch()[0][0] for _ in range(10)] == [*range(10, 15), *range(20, 25)]
    data = df.FlowData()
    with df.FlowGraph(list(stages.even_or_odd.fnode()(data))) as graph:
        for number in range(4):
            assert graph.feed({data: number}) == 0
        assert [graph.fetch([0])[0][0] for _ in range(2)] == [0, 2]
        assert [graph.fetch([1])[0][0] for _ in range(2)] == [1, 3]
        assert graph.fetch(timeout=50) == ([], 545601)


def test_21_22_ids_and_user_data():
    for n_mapping, wanted in ((False, [1, 2, 3, 4, 5, 6]), (True, [1, 2, 3, 10, 10])):
        data, graph = through(func(stages.Relay), func(stages.Relay))
        graph.set_contains_n_mapping_node(n_mapping)
        with graph:
            for _ in range(3):
                info = df.FlowInfo()
                info.set_user_data(bytearray(b"hello world"))
                assert graph.feed_data({data: 1}, info) == 0
            for id_ in (10, 10):
                assert graph.feed_data({data: 1}, df.FlowInfo(transaction_id=id_)) == 0
            assert (graph.feed_data({data: 1}, df.FlowInfo(transaction_id=9)) != 0) is n_mapping
            found = [graph.fetch_data(timeout=10_000) for _ in wanted]
            assert [info.transaction_id for _, info, _ in found] == wanted
            assert found[0][1].get_user_data(11) == b"hello world"
            assert found[0][1].data_size == 11
    info = df.FlowInfo()
    assert code_of(info.set_user_data, bytearray(65)) == code_of(info.get_user_data, 0) == 145000


def batched(attr):
    data = df.FlowData()
    node = stages.echo.fnode()
    node.map_input(0, node.point, 0, [attr] if not isinstance(attr, list) else attr)
    return data, df.FlowGraph([node(data)])


def test_23_batches():
    data, graph = batched(df.CountBatch(3, slide_stride=1))
    with graph:
        for number in range(1, 5):
            assert graph.feed_data({data: number}) == 0
        assert [graph.fetch_data()[0][0].numpy().tolist() for _ in range(2)] == [[1, 2, 3], [2, 3, 4]]
    data, graph = batched(df.CountBatch(3, timeout=50, padding=True))
    with graph:
        began = time.monotonic()
        assert graph.feed_data({data: 7}) == 0
        assert graph.fetch_data()[0][0].numpy().tolist() == [7, 0, 0]
        assert time.monotonic() - began > 0.03
    data, graph = batched(df.TimeBatch(5))
    with graph:
        for start, end in ((0, 2), (2, 5)):
            assert graph.feed_data({data: start}, df.FlowInfo(start, end)) == 0
        (tensor,), info, code = graph.fetch_data()
        assert (tensor.numpy().tolist(), info.start_time, info.end_time, code) == ([0, 2], 0, 5, 0)
    data, graph = batched([df.TimeBatch(5), df.CountBatch(3)])
    assert graph.feed_data({data: 1}) == FAILED
    assert "not both" in str(graph.error)


def test_24_27_instances_joins_and_the_deploy_file(cards):
    path = cards / "deploy.json"

    def written(nodes, addresses):
        entry = {"flow_node_list": nodes, "logic_device_list": addresses}
        path.write_text(json.dumps({"batch_deploy_info": [entry]}))
        return {DEPLOY: str(path)}

    data = df.FlowData()
    node = stages.where.fnode().set_alias("two")
    joined = stages.pair.fnode()
    node(data)
    entry = {"flow_node_list": ["two"], "logic_device_list": "0:0:0~1:0"}
    one = {"flow_node_list": ["pair_fnode"], "logic_device_list": "0:0:0:0"}
    path.write_text(json.dumps({"batch_deploy_info": [entry, one]}))
    graph = df.FlowGraph([joined(node.outputs(), data)], {DEPLOY: str(path)})
    graph.set_inputs_align_attrs(256, -1)
    with graph:
        for number in range(30):
            assert graph.feed({data: number}) == 0
        seen = set()
        for _ in range(30):
            (((value, instance, count, device), other),), code = graph.fetch()
            assert (value, code) == (other, 0)
            seen.add((instance, count, device))
        assert seen == {(0, 2, 0), (1, 2, 1)}
    for options in (written(["other"], "0:0:0:0"), written(["echo_fnode"], "0:0:3~1:0"), {"toprope.strict": "1"}):
        data = df.FlowData()
        graph = df.FlowGraph([stages.echo.fnode()(data)], options)
        assert graph.feed({data: 1}) == FAILED
        assert isinstance(graph.error, df.DfException)


def test_25_exceptions_that_functions_report(cards):
    data, graph = through(func(stages.Relay), func(stages.Raises))
    graph.set_exception_catch(True)
    assert graph.feed_data({data: 1}) == FAILED  # nothing is aligned
    data, graph = through(func(stages.Relay), func(stages.Raises))
    graph.set_exception_catch(True)
    graph.set_inputs_align_attrs(256, -1)
    with graph:
        for number in range(1, 6):
            assert graph.feed_data({data: number}, df.FlowInfo(start_time=number)) == 0
        found = [graph.fetch_data(timeout=10_000) for _ in range(5)]
        results = sorted(int(tensors[0].numpy()) for tensors, _, code in found if code == 0)
        assert results == [1, 2, 4, 5]
        assert [(info.transaction_id, info.start_time) for _, info, code in found if code == 345103] == [(3, 3)]
        within(60, lambda: (cards / "caught").exists() and (cards / "caught").read_text())
    assert (cards / "caught").read_text() == "9900001 7 False\n"


def test_26_back_pressure_and_timeouts():
    node = stages.very_slow.fnode()
    node.set_attr("_flow_attr_depth", 2)
    data, graph = through(node)
    with graph:
        codes, took = [], 0.0
        for number in range(8):
            began = time.monotonic()
            codes.append(graph.feed({data: number}, timeout=100))
            if codes[-1]:
                took = time.monotonic() - began
                break
        assert codes[-1] == 207014
        assert 0.09 < took < 5
        assert graph.fetch(timeout=-2) == ([], FAILED)
        for _ in codes[:-1]:
            assert graph.fetch(timeout=5000)[1] == 0
        assert graph.fetch(timeout=100) == ([], 545601)
        assert graph.fetch(timeout=0) == ([], 207013)
    node = stages.slow.fnode()
    node.set_attr("_flow_attr_depth", 2)
    node.set_attr("_flow_attr_enqueue_policy", "OVERWRITE")
    data, graph = through(node)
    with graph:
        began = time.monotonic()
        for number in range(50):
            assert graph.feed({data: number}) == 0
        assert time.monotonic() - began < 20
        assert graph.drain(10)
        found = []
        while (got := graph.fetch(timeout=200))[1] == 0:
            found.append(got[0][0])
        assert found[-1] == 49
        assert found == sorted(set(found))


def test_28_hooks_masks_and_resources(cards):
    node = stages.Hooked.fnode(stages.NeedsHook())
    deploy = cards / "one.json"
    deploy.write_text(json.dumps({"deploy_info": [{"flow_node_name": node.name, "logic_device_id": "0:0:1"}]}))
    data = df.FlowData()
    with df.FlowGraph([node.forward(data)], {DEPLOY: str(deploy)}) as graph:
        assert graph.feed({data: torch.ones(1)}) == 0
        (got,), code = graph.fetch()
        assert (got.tolist(), code) == ([1.0, 0.0], 0)
    found = json.loads((cards / f"{node.name}_ws" / "func_hooked.json").read_text())
    needed = {each["type"]: each["num"] for each in found["running_resources_info"]}
    assert needed == {"cpu": 2, "memory": 100, "num_npus": 1}
    assert found["heavy_load"] is True


# What the reference does not have


def test_weights_and_several_methods_of_a_model():
    node = stages.Weighted.fnode(3)
    a, b = df.FlowData(), df.FlowData()
    with df.FlowGraph([node.forward(a), *node.both(a, b)]) as graph:
        assert graph.feed({a: torch.ones(2), b: torch.full((2,), 4.0)}) == 0
        values, code = graph.fetch()
        assert (code, [each.tolist() for each in values]) == (0, [[3.0, 3.0], [5.0, 5.0], [-3.0, -3.0]])
        assert graph.feed({a: torch.ones(0), b: torch.ones(0)}) == 0  # the reference cannot fetch an empty tensor
        assert [each.shape for each in graph.fetch()[0]] == [(0,)] * 3


def test_bfloat16_and_unsigned_numbers_travel():
    data, graph = through(stages.echo.fnode())
    with graph:
        for dtype in (torch.bfloat16, torch.uint16, torch.uint32, torch.uint64):
            value = torch.tensor([1, 2]).to(dtype)
            assert graph.feed({data: value}) == 0
            (got,), code = graph.fetch()
            assert code == 0
            assert torch.equal(got.to(torch.int64), value.to(torch.int64))
            assert got.dtype == dtype


@pytest.mark.slow
def test_the_users_own_exception_futures_and_results():
    import asyncio

    data, graph = through(stages.picky.fnode(), stages.echo.fnode())
    with graph:
        for number in range(1, 5):
            assert graph.feed({data: number}) == 0
        assert graph.feed_data({}, df.FlowInfo(flow_flags=EOS)) == 0
        assert graph.drain(20)

        async def gather():
            return [each async for each in graph.results(4)]

        results = asyncio.run(gather())
        assert [each.code for each in results] == [0, 0, 564000, 0]
        assert [each.values for each in results if not each.code] == [[2], [4], [8]]
        with pytest.raises(KeyError, match="no three") as error:
            results[2].get()
        assert "raised in stage picky_fnode for input 3" in error.value.__notes__[0]
        assert 'raise KeyError("no three")' in error.value.__notes__[0]
    data, graph = through(stages.picky.fnode(), stages.very_slow.fnode())
    with graph:
        futures = [graph.submit({data: number}) for number in (1, 3)]
        late = graph.submit({data: 5}, deadline=0.05)
        cancelled = graph.submit({data: 6})
        assert cancelled.cancel()
        assert futures[0].result(60) == [2]
        with pytest.raises(KeyError, match="no three"):
            futures[1].result(60)
        with pytest.raises(TimeoutError):
            late.result(20)
        assert graph.submit({data: 7}).result(60) == [14]
        assert graph.fetch() == ([], 145000)
        assert graph.drain(20)
        left = [graph.submit({data: 8}) for _ in range(10)][-1]
        figures = graph.metrics()
        assert figures[0].messages >= 6
        assert "sent" in graph.picture()
    with pytest.raises(df.DfAbortException):
        left.result(60)
    assert graph.feed({data: 1}) == FAILED
