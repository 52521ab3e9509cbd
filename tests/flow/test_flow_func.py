"""The UDF interface (`flow.udf`): what its functions are given and can send, and the closures that they run."""

import importlib
import json
import sys
import threading
import types

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import flow_closures as closures
from functions_session import session
from toprope import flow as df
from toprope.flow import running
from toprope.flow.exceptions import MODEL_EXECUTE_TIMEOUT, DfException
from toprope.flow.executor.fetcher import Fetched
from toprope.flow.points import model_files
from toprope.flow.points.closures import GraphClosure
from toprope.flow.points.template import command, main, source
from toprope.flow.session import given as given_options
from toprope.flow.stage.spec import EMPTY, PICKLED, RAW, TENSOR, Head, Message, RunOptions, StageContext
from toprope.flow.udf import flow_func as ff
from toprope.flow.udf.run_context import MetaRunContext, PyMetaParams

pytestmark = [pytest.mark.native, pytest.mark.process]


@pytest.fixture(autouse=True)
def begun(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    df.init({})
    yield
    df.finalize()


class Call:
    """Stands for `worker.calls.Activation`."""

    def __init__(self):
        self.head, self.sent, self.raised = Head(4, 5, 6, 0, b"hello", 5), [], []

    def set_output(self, index, message):
        self.sent.append((index, message))

    def raise_exception(self, code, context):
        self.raised.append((code, context))

    def take_exception(self):
        return (True, 1, 2) if not self.raised else (False, 0, 0)


def test_outputs_of_all_kinds():
    call = Call()
    context = MetaRunContext(call, (4, 3), {})
    message = context.alloc_tensor_msg([2], df.DT_FLOAT)
    message.get_tensor().numpy()[:] = 3
    message.set_start_time(9)
    for data in (message, np.ones((2, 2)).T, context.to_flow_msg(df.Tensor(1)), context.alloc_empty_data_msg()):
        assert context.set_output(3, data) == 0
    assert context.set_multi_outputs(4, [np.ones(1), np.ones(2)]) == 0
    assert context.set_output(3, None) == 0  # nothing is sent
    assert [(index, each.kind) for index, each in call.sent] == [
        (1, TENSOR), (1, TENSOR), (1, TENSOR), (1, EMPTY), (0, TENSOR), (0, TENSOR),
    ]  # fmt: skip
    assert call.sent[0][1].payload.tolist() == [3, 3]
    assert call.sent[0][1].head.start_time == 9
    assert [context.set_output(number, message) for number in (0, 1, 2, 5, -1)] == [164000] * 5
    assert context.get_user_data(5) == b"hello"
    with pytest.raises(DfException):
        context.get_user_data(65)
    assert context.get_exception() == (True, 1, 2)
    assert context.raise_exception(9900001, 7) == 0
    assert call.raised == [(9900001, 7)]
    assert context.run_flow_model("no", [], 1) == (164000, [])
    raw = context.alloc_raw_data_msg(3)
    assert (raw.msg_type, bytes(raw.get_raw_data())) == (RAW, bytes(3))
    with pytest.raises(DfException):
        context.alloc_raw_data_msg(-1)


def test_a_message_tells_of_itself():
    message = ff.FlowMsg(Message(TENSOR, np.arange(3), Head(1, 2, 3, 1)))
    told = [message.transaction_id, message.start_time, message.end_time, message.flow_flags, message.ret_code]
    assert told == [1, 2, 3, 1, 0]
    names = ("transaction_id", "start_time", "end_time", "flow_flags", "ret_code", "msg_type")
    for value, name in enumerate(names, 5):
        getattr(message, f"set_{name}")(value)
        assert getattr(message, f"get_{name}")() == getattr(message, name) == value
    assert message.message.head.transaction_id == 1  # the one that came may be read elsewhere
    assert ff.FlowMsg(Message(EMPTY)).get_tensor() is None
    for other in (Message(PICKLED, "x"), Message(RAW, b"x")):
        with pytest.raises(DfException):
            ff.FlowMsg(other).get_tensor()
    with pytest.raises(DfException):
        ff.FlowMsg(Message(PICKLED, "x")).get_raw_data()


@pytest.mark.parametrize(
    ("name", "value"),
    [("int", 1), ("bool", True), ("float", 1.5), ("str", "x"), ("tensor_dtype", df.DT_FLOAT), ("int_list", [1, 2]),
     ("int_list_list", [[1], [2, 3]]), ("bool_list", [True]), ("float_list", [1.5]), ("str_list", ["x"]),
     ("tensor_dtype_list", [df.DT_FLOAT])],
)  # fmt: skip
def test_parameters_of_all_types(name, value):
    params = PyMetaParams(StageContext("n", 1, 2, 3, 1, 2, "/w"), {"p": value, "other": object()})
    get = getattr(params, f"get_attr_{name}")
    numpys = {"tensor_dtype": np.float32, "tensor_dtype_list": [np.float32]}
    assert get("p") == (0, numpys.get(name, value))
    assert get("no such")[0] == 164001
    assert get("other")[0] == 164002
    assert (params.get_name(), params.get_work_path()) == ("n", "/w")
    assert (params.get_input_num(), params.get_output_num()) == (1, 2)
    assert params.get_running_device_id() == 3
    assert (params.get_running_instance_id(), params.get_running_instance_num()) == (1, 2)


@given(st.integers(1, 5), st.integers(1, 5), st.sampled_from(ff.AffinityPolicy), st.data())
def test_labels_of_a_matrix(rows, cols, policy, data):
    row, col = data.draw(st.integers(0, rows - 1)), data.draw(st.integers(0, cols - 1))
    config = ff.BalanceConfig(rows, cols, policy)
    config.set_data_pos([(row, col)])
    ((label, route),) = config.labels()
    position = row * cols + col
    assert (label, route) == (position + 1, 1 + (position, row, col)[policy])
    with pytest.raises(DfException):
        config.set_data_pos([(rows, 0)])


def test_what_cannot_be_a_function_is_refused():
    for text in ("", "i0,x1", "i0,i0,o0", "i0;o0"):
        with pytest.raises(DfException):
            ff.proc_wrapper(text)
    for sizes in ((0, 1), (65536, 2)):
        with pytest.raises(DfException):
            ff.BalanceConfig(*sizes)
    with pytest.raises(DfException) as error:
        df.FuncProcessPoint(py_func=object())
    assert error.value.error_code == 564000
    native = df.FlowNode(1, 1)
    native.add_process_point(df.FuncProcessPoint("x.json"))
    with pytest.raises(DfException, match=r"CANN builds in C\+\+ \(x\.json\)"):
        df.FlowGraph([native(df.FlowData())])
    with pytest.raises(DfException, match="needs py_func"):
        df.FuncProcessPoint()
    for wrong in ((0,), ("x.json", 0)):
        with pytest.raises(TypeError):
            df.FuncProcessPoint(*wrong)
    point = df.FuncProcessPoint(py_func=closures.Scale)
    for value in (object(), [1, "a"], [[1], ["a"]]):
        with pytest.raises(df.DfTypeError):
            point.set_init_param("k", value)
    with pytest.raises(DfException):
        point.add_invoked_closure("k", object())


def test_model_files_that_cannot_be_run_say_so(tmp_path, monkeypatch):
    with pytest.raises(DfException):
        df.GraphProcessPoint("ONNX", "x")
    (tmp_path / "x.onnx").write_bytes(b"")
    (tmp_path / "x.air").write_bytes(b"")
    for framework, name, text in (
        (df.Framework.ONNX, "no.onnx", "is not there"), (df.Framework.MINDSPORE, "x.air", "need CANN"),
        (df.Framework.ONNX, "x.onnx", r"\[onnx\]"),
    ):  # fmt: skip
        monkeypatch.setattr(model_files.importlib.util, "find_spec", lambda name: None)
        data = df.FlowData()
        graph = df.FlowGraph([df.GraphProcessPoint(framework, name).fnode(1, 1)(data)])
        assert graph.feed({data: 1}) == 4294967295
        with pytest.raises(DfException, match=text):
            raise graph.error


class LateRunner:
    """Stands for a running graph whose first result comes after the time limit of its call."""

    def __init__(self):
        self.fed = 0
        self.results = [
            Fetched([], Head(), MODEL_EXECUTE_TIMEOUT, []),
            *(Fetched([Message(TENSOR, np.full(1, id), Head(id))], Head(id), 0, []) for id in (1, 2)),
        ]

    def feed(self, values, timeout):
        self.fed += 1
        values[0].head.transaction_id = self.fed
        return 0

    def fetch(self, places, timeout):
        return self.results.pop(0)


def test_a_graph_that_was_late_gives_the_next_call_the_result_of_its_own_input():
    plan = df.FlowGraph([closures.plus_one.fnode()(df.FlowData())]).plan
    graph = GraphClosure(plan, RunOptions()).open(StageContext("outer", 1, 1))
    graph._runner = LateRunner()
    assert graph.run([Message(TENSOR, np.zeros(1), Head(7))], 1) == (564001, [])
    code, (found,) = graph.run([Message(TENSOR, np.zeros(1), Head(8))], 1)
    assert (code, found.payload.tolist(), found.head.transaction_id) == (0, [2], 8)


@pytest.mark.slow
def test_closures_are_run(tmp_path):
    """A function runs an exported program, and a graph of stages of its own."""
    program = torch.export.export(closures.Double(), (torch.ones(3),))
    torch.export.save(program, tmp_path / "double.pt2")
    inner_data = df.FlowData()
    inner = df.FlowGraph([closures.plus_one.fnode()(inner_data)])
    point = df.FuncProcessPoint(py_func=closures.Scale())
    point.set_init_param("factor", 10)
    point.add_invoked_closure("graph", df.FlowGraphProcessPoint(inner))
    point.add_invoked_closure("model", df.GraphProcessPoint(df.Framework.TORCH, "double.pt2"))
    with pytest.raises(DfException, match="is taken"):
        point.add_invoked_closure("model", df.GraphProcessPoint(df.Framework.TORCH, "double.pt2"))
    node = df.FlowNode(1, 1)
    node.add_process_point(point)
    data = df.FlowData()
    alone = df.GraphProcessPoint(df.Framework.TORCH, "double.pt2").fnode(1, 1)
    with session("910B4x1"):
        with df.FlowGraph([node(data), alone(data)]) as graph:
            for number in range(2):
                assert graph.feed_data({data: np.full(3, number, "float32")}) == 0
                tensors, _, code = graph.fetch_data(timeout=30_000)
                assert code == 0
                assert tensors[0].numpy().tolist() == [(number * 2 + 1) * 10] * 3
                assert tensors[1].numpy().tolist() == [number * 2] * 3
        # a code of init_flow_func ends the start, and is told
        point = df.FuncProcessPoint(py_func=closures.Scale())
        node = df.FlowNode(1, 1)
        node.add_process_point(point)
        graph = df.FlowGraph([node(data)])
        assert graph.feed_data({data: 1}) == 4294967295
        assert "init_flow_func returned 164001" in str(graph.error)
        df.finalize()


def test_the_template_is_a_class_of_functions(tmp_path, monkeypatch, capsys):
    text = source([("sub", ["i0", "i1", "o0"])], "Mine")
    space = {}
    monkeypatch.setitem(sys.modules, "dataflow", types.ModuleType("dataflow"))
    monkeypatch.setitem(sys.modules, "dataflow.flow_func", ff)
    monkeypatch.setattr(sys.modules["dataflow"], "flow_func", ff, raising=False)
    exec(text, space)
    (function,) = ff.functions_of(space["Mine"])
    assert (function.name, function.inputs, function.outputs) == ("sub", (0, 1), (0,))
    for answer, status in (("n", 1), ("yes", 0)):
        monkeypatch.setattr("builtins.input", lambda _, answer=answer: answer)
        assert main(["-f", "sub:i0:i1:o0,Add:i2:o1:o0", "-w", str(tmp_path / "p"), "-c", "MyFunc"]) == status
        assert (tmp_path / "p" / "src_python" / "func_my_func.py").exists() is (status == 0)
    described = json.loads((tmp_path / "p" / "func_my_func.json").read_text())
    assert (described["input_num"], described["output_num"]) == (3, 2)
    assert main(["-f", "sub:i0:o0,Add:i1:o0"]) == 0
    assert (tmp_path / "src_python" / "func_sub_add.py").exists()
    for arguments in (
        ["-f", "sub"], ["-f", "sub:x0:o0"], ["-f", "a:i0:o0", "-c", "1x"], ["-f", "a:i0:i1:o0,b:i1:i3:o1"],
        ["-f", "a:i0:i4:o0"], ["-f", "a:i0:o3"],
    ):  # fmt: skip
        with pytest.raises(ValueError, match=r"must be|NAME|no name|takes"):
            main(arguments)
        monkeypatch.setattr(sys, "argv", ["create_func_ws", *arguments])
        assert command() == 2
        assert capsys.readouterr().err.startswith("create_func_ws: error: ")


PRIVATE = {
    "data_wrapper": "DataType", "dflow_wrapper": "PARAM_INVALID", "flow_func.flowfunc_wrapper": "FLOW_FUNC_SUCCESS",
    "flow_func.func_register": "FlowFuncRegister", "flow_func.func_wrapper": "proc_wrapper",
    "plugin.torch.torch_plugin": "npu_model", "pyflow": "PyActorProcessPoint", "tools.create_func_ws": "main",
    "tools.func_ws_creator": "FuncWsCreator", "utils.deploy_template": "generate_deploy_template",
    "utils.log": "set_log_level", "utils.msg_type_register": "msg_type_register", "utils.utils": "DfException",
}  # fmt: skip
"""Modules of DataFlow that its own tests import, each with a name of it."""


@pytest.fixture
def facade(monkeypatch):
    """`dataflow` can be imported; nothing of it is left."""
    from toprope.compat import finder

    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path, finder.FacadeFinder()])
    yield
    for name in [each for each in sys.modules if each.partition(".")[0] == "dataflow"]:
        del sys.modules[name]


def test_the_facade_has_the_names(facade, monkeypatch):
    import dataflow
    import dataflow.data_type
    import dataflow.flow_func
    import dataflow.utils

    assert [name for name in df.__all__ if not hasattr(dataflow, name)] == []
    assert dataflow.FlowGraph is df.FlowGraph
    assert dataflow.dataflow.FlowOutput is df.FlowOutput
    assert dataflow.flow_func.proc_wrapper is ff.proc_wrapper
    assert dataflow.data_type.DT_BF16 is df.DT_BF16
    assert callable(dataflow.utils.generate_deploy_template)
    assert callable(dataflow.pyflow)
    for module, name in PRIVATE.items():
        found = importlib.import_module(f"dataflow.{module}")
        assert [each for each in found.__all__ if not hasattr(found, each)] == []
        assert hasattr(found, name)
    wrapper = sys.modules["dataflow.flow_func.flowfunc_wrapper"]
    assert wrapper.MsgType.MSG_TYPE_RAW_MSG == ff.MSG_TYPE_RAW_MSG
    assert wrapper.FlowFlag.FLOW_FLAG_SEG == ff.FLOW_FLAG_SEG
    with pytest.raises(AttributeError, match="compiled part of the real dataflow"):
        wrapper.MetaRunContext  # noqa: B018 - only a stage makes such objects
    with pytest.raises(TypeError, match=r"Please use the @df\.pyflow decorator instead"):
        sys.modules["dataflow.pyflow"].PyActorProcessPoint()
    utils, log = sys.modules["dataflow.utils.utils"], sys.modules["dataflow.utils.log"]
    monkeypatch.setattr(running, "_process", None)
    monkeypatch.setattr(running, "_thread", threading.local())
    assert not utils.get_running_in_udf()
    utils.set_running_instance_num(3)
    assert utils.get_running_in_udf()
    assert utils.get_running_instance_num() == df.get_running_instance_num() == 3
    level = log.get_log_level()
    log.set_log_level(log.DEBUG)
    assert (log.get_logger().name, log.get_log_level()) == ("DATAFLOW", log.DEBUG)
    log.set_log_level(level)


def test_modules_of_the_facade_that_have_code_of_their_own(facade, monkeypatch):
    plugin = importlib.import_module("dataflow.plugin.torch.torch_plugin")
    for dtype, of_torch in ((df.DT_FLOAT, torch.float32), (df.DT_BF16, torch.bfloat16), (df.DT_INT8, torch.int8)):
        assert plugin._convert_df_to_torch_tensor_dtype(dtype) is of_torch
        assert plugin._convert_torch_to_df_tensor_dtype(of_torch) is dtype
    with pytest.raises(ValueError, match=r"torch_dtype torch\.complex64 is not supported"):
        plugin._convert_torch_to_df_tensor_dtype(torch.complex64)
    with pytest.raises(ValueError, match="is not supported"):
        plugin._convert_df_to_torch_tensor_dtype(df.DT_STRING)

    wrapper = importlib.import_module("dataflow.data_wrapper")
    assert wrapper.DataType.DT_FLOAT is wrapper.FuncDataType.DT_FLOAT is df.DT_FLOAT

    utils = importlib.import_module("dataflow.utils.utils")
    monkeypatch.setattr(running, "_process", None)
    monkeypatch.setattr(running, "_thread", threading.local())
    utils.set_running_device_id(2)
    utils.set_running_instance_id(1)
    assert (df.get_running_device_id(), df.get_running_instance_id()) == (2, 1)
    assert utils.get_msg_type_register() is df.msg_type_register
    assert utils.convert_flow_msg_to_object(ff.FlowMsg(Message(PICKLED, {"a": 1}))) == {"a": 1}

    def made_by_hand(value):
        return value

    made = importlib.import_module("dataflow.pyflow").PyFunctionProcessPoint(made_by_hand, {"num_returns": 1})
    assert made.fnode
    module = importlib.import_module("dataflow.dataflow")
    assert module._global_options is given_options()
    with pytest.raises(AttributeError, match="_other_options"):
        module._other_options  # noqa: B018 - only a name that the vendor's tests use is there


def test_outside_a_stage_nobody_runs_anywhere():
    assert df.get_running_device_id() is df.get_running_instance_id() is df.get_running_instance_num() is None


def test_the_log_writes_from_its_level_on(caplog, monkeypatch):
    log = ff.FlowFuncLogger()
    log._logger.addHandler(caplog.handler)
    monkeypatch.setenv("ASCEND_GLOBAL_LOG_LEVEL", "2")
    for name in ("debug", "info", "warn", "error", "run_info", "run_error", "event"):
        getattr(log, name)("%s said", name)
        getattr(log, name)("%s %d said", name)  # a line that cannot be formatted failed the input
    log._logger.removeHandler(caplog.handler)
    written = [each.getMessage().split()[1] for each in caplog.records]
    assert [each for each in dict.fromkeys(written) if each != "%s"] == [
        "warn", "error", "run_info", "run_error", "event",
    ]  # fmt: skip
    assert 2 * written.count("%s") == len(written)
    assert log.is_log_enable(ff.DEBUG_LOG, ff.WARN)
    assert not log.is_log_enable(ff.DEBUG_LOG, ff.INFO)
    assert log.is_log_enable(ff.RUN_LOG, ff.DEBUG)
    assert not log.is_log_enable(0, 0)
