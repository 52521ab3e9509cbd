"""ONNX files in a graph (`points.model_files`), run by onnxruntime itself; skipped if it is not installed."""

import importlib.util
from pathlib import Path

import numpy as np
import pytest
import torch

if importlib.util.find_spec("onnx") is None or importlib.util.find_spec("onnxruntime") is None:
    pytest.skip("needs onnx and onnxruntime", allow_module_level=True)

import onnx
from onnx import TensorProto, helper

import flow_closures as closures
from functions_session import session
from toprope import flow as df
from toprope.flow.exceptions import DfException
from toprope.flow.points import model_files

pytestmark = [pytest.mark.native, pytest.mark.process]

WEIGHTS = np.arange(6, dtype=np.float32).reshape(3, 2)


def classifier(path):
    """Rows of 3 numbers in; their scores and the best of them out."""
    nodes = [
        helper.make_node("MatMul", ["rows", "weights"], ["scores"]),
        helper.make_node("ArgMax", ["scores"], ["labels"], axis=1, keepdims=0),
    ]
    graph = helper.make_graph(
        nodes, "classifier", [helper.make_tensor_value_info("rows", TensorProto.FLOAT, ["batch", 3])],
        [helper.make_tensor_value_info("scores", TensorProto.FLOAT, ["batch", 2]),
         helper.make_tensor_value_info("labels", TensorProto.INT64, ["batch"])],
        [helper.make_tensor("weights", TensorProto.FLOAT, WEIGHTS.shape, WEIGHTS.reshape(-1))],
    )  # fmt: skip
    save(graph, path)


def adder(path, *inputs, output="tensor"):
    """The sum of its inputs, or a sequence of them."""
    shape = [None]
    kind, made = ("Add", helper.make_tensor_value_info) if output == "tensor" else (
        "SequenceConstruct", helper.make_tensor_sequence_value_info)  # fmt: skip
    graph = helper.make_graph(
        [helper.make_node(kind, list(inputs), ["out"])], "adder",
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name in inputs],
        [made("out", TensorProto.FLOAT, shape)],
    )  # fmt: skip
    save(graph, path)


def save(graph, path):
    # versions that every onnxruntime of the last two years reads
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9), path)


@pytest.fixture(autouse=True)
def begun(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    df.init({})
    yield
    df.finalize()


@pytest.mark.slow
def test_an_onnx_file_is_a_stage_and_an_input_that_does_not_fit_fails_alone():
    """Alone, behind a model on a simulated card, and as a closure; two batches, each its own size."""
    classifier("classifier.onnx")
    adder("double.onnx", "a", "b")
    point = df.GraphProcessPoint(df.Framework.ONNX, "classifier.onnx")
    data, rows = df.FlowData(), closures.halved.fnode()
    scores, labels = point.fnode(1, 2, "classifier")(rows(data))
    summed = df.GraphProcessPoint(df.Framework.ONNX, "double.onnx").fnode(2, 1)(data, data)
    inside = df.FuncProcessPoint(py_func=closures.Classify)
    inside.add_invoked_closure("model", df.GraphProcessPoint(df.Framework.ONNX, "classifier.onnx"))
    node = df.FlowNode(1, 1)
    node.add_process_point(inside)
    with session("910B4x1"), df.FlowGraph([scores, labels, node(data)]) as graph:
        fed = [np.full((count, 3), count, np.float32) for count in (1, 4)]
        fed.insert(1, np.ones((2, 5), np.float32))
        for each in fed:
            assert graph.feed({data: torch.from_numpy(each)}) == 0
        results = [graph.fetch_result(timeout=60_000) for _ in fed]
        for each, result in zip(fed, results, strict=True):
            if each.shape[1] == 5:
                assert result.code == 564000
                assert "Got: 5 Expected: 3" in str(result.error)
                continue
            assert result.code == 0, result.error
            np.testing.assert_array_equal(result.values[0].numpy(), each / 2 @ WEIGHTS)
            assert result.values[1].numpy().tolist() == [1] * len(each)
            assert result.values[2].numpy().tolist() == [1] * len(each)
        edges = {(each.source, each.target): each for each in graph.metrics()}
        assert edges["halved_fnode", "classifier"].to_host == 3  # ONNX runs on the host
    with session(), df.FlowGraph([summed]) as graph:
        assert graph.feed_data({data: np.ones(3, np.float32)}) == 0
        tensors, _, code = graph.fetch_data(timeout=60_000)
        assert (tensors[0].numpy().tolist(), code) == ([2, 2, 2], 0)


def test_what_onnxruntime_cannot_run_is_said(tmp_path):
    adder("sum.onnx", "a", "b")
    run = model_files.load_onnx("sum.onnx")
    assert run(df.Tensor(np.ones(1, np.float32)), torch.tensor([2.0])).numpy().tolist() == [3]
    with pytest.raises(DfException, match="2 inputs, got 1"):
        run(1)
    adder("sequence.onnx", "a", output="sequence")
    with pytest.raises(DfException, match="outputs that are no tensors: list"):
        model_files.load_onnx("sequence.onnx")(torch.ones(1))
    Path("broken.onnx").write_bytes(b"no model")
    with pytest.raises(DfException, match=r"cannot load broken\.onnx: .*INVALID_PROTOBUF"):
        model_files.load_onnx("broken.onnx")
