"""pyflow, method and npu_model (`flow.points`): what they refuse, and what nodes they make. No process is started.

Refusals have the reference's words and types.
"""

import json
from collections.abc import Iterator
from typing import Optional

import pytest
import torch

from toprope import flow as df
from toprope.flow.points.model_export import FILE, export_model
from toprope.flow.points.signature import input_count, output_count
from toprope.flow.points.workspace import check_ports, snake
from toprope.flow.stage.spec import StageFunction

FLOAT = df.DT_FLOAT


@pytest.fixture(autouse=True)
def begun(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    df.finalize()
    df.init({})
    yield
    df.finalize()


def plain(a, b=1, *more):
    return a


def returning(annotation):
    def function(x):
        return x

    function.__annotations__["return"] = annotation
    return function


@pytest.mark.parametrize(
    ("annotation", "fixed", "strict"),
    [
        (tuple[int, int], 2, 2), (tuple[int, int, int], 3, 3), (list[int], 1, 1), (int, 1, 1), (None, 1, 1),
        # the reference counts the arguments of any annotation
        (Optional[int], 1, 2),  # noqa: UP045 - users write it so
        (dict[str, int], 1, 2), (tuple[int, ...], 1, 2), ("tuple[int, int]", 2, 1),
        ("NoSuch[int]", 1, 1),
    ],
)  # fmt: skip
def test_outputs_are_counted_by_the_annotation(annotation, fixed, strict):
    function = returning(annotation)
    assert output_count(function, None) == fixed
    assert output_count(function, None, strict=True) == strict


def test_a_generators_annotation_tells_of_one_set():
    def generator(x) -> Iterator[tuple[int, int]]:
        yield x, x

    assert output_count(generator, None) == 2


def test_num_returns_must_agree():
    assert output_count(plain, 3) == 3
    assert output_count(returning(tuple[int, int]), 2) == 2
    for function, count in ((returning(tuple[int, int]), 3), (plain, 0), (plain, -1), (plain, "1"), (plain, True)):
        for decorator in (df.pyflow(num_returns=count), df.npu_model(num_returns=count)):
            with pytest.raises(AssertionError) as error:
                decorator(function)
            assert isinstance(error.value, df.DfException)
            assert error.value.error_code == 145000


def test_inputs_are_all_parameters_but_self():
    assert input_count(plain) == 3
    assert input_count(lambda self, x: x) == 1


@pytest.mark.parametrize(
    "call",
    [
        lambda: df.pyflow(no_such=1),
        lambda: df.pyflow(stream_input="It"),
        lambda: df.pyflow(env_hook_func=5),
        lambda: df.pyflow(visible_device_enable=1),
        lambda: df.pyflow(resources=5),
        lambda: df.pyflow(5),
        lambda: df.pyflow(plain, num_returns=1),
        lambda: df.pyflow(choice_output=5)(plain).fnode(),
        lambda: df.pyflow(type("Has", (), {"fnode": 1, "run": df.method()(lambda self, x: x)})),
        lambda: df.npu_model(5),
        lambda: df.npu_model(stream_input="Queue")(plain),
        lambda: df.npu_model(choice_output=bool)(plain),
        lambda: df.npu_model(optimize_level=1)(plain),
        lambda: df.npu_model(input_descs=[])(plain),
        lambda: df.npu_model(stream_input="Queue")(type("C", (), {})),
        lambda: df.npu_model(foo=1)(type("C", (), {})),
        lambda: df.npu_model(type("C", (), {"f": df.method(stream_input="Queue")(lambda self, x: x)})),
        lambda: df.npu_model(type("C", (), {"f": df.method(choice_output=bool)(lambda self, x: x)})),
        lambda: df.method(stream_input="It"),
    ],
)  # fmt: skip
def test_what_does_not_belong_is_a_type_error_and_a_df_exception(call):
    with pytest.raises(TypeError) as error:
        call()
    assert isinstance(error.value, df.DfException)


def test_the_reference_s_words():
    with pytest.raises(TypeError, match="param:foo is not support in @npu_model"):
        df.npu_model(foo=1)(plain)
    with pytest.raises(AssertionError):
        df.method(plain)
    with pytest.raises(AssertionError):
        df.method(no_such=1)
    for value in ({"num_gpus": 1}, {"num_cpus": -1}, {"memory": 1.5}, {"num_npus": 2}, {"num_npus": 0}):
        with pytest.raises(df.DfException, match="resources"):
            df.npu_model(resources=value)(plain)


def model(level=None, descs=None, **options):
    given = {name: each for name, each in (("optimize_level", level), ("input_descs", descs)) if each is not None}

    @df.npu_model(**given, **options)
    class Model(torch.nn.Module):
        def __init__(self, size=3):
            super().__init__()
            self.linear = torch.nn.Linear(size, 2)

        @df.method()
        def forward(self, x):
            return self.linear(x)

    return Model


def test_levels_are_looked_at_by_fnode():
    for level, text in (
        (3, r"optimize_level:3 is not support in @npu_model\."), ("1", "must be a number"), (2, "input_descs")
    ):  # fmt: skip
        with pytest.raises(TypeError, match=text) as error:
            model(level).fnode()
        assert isinstance(error.value, df.DfException)
    assert model(True).fnode().attrs["_npu_sched_model"] == 1


def test_a_class_is_not_called_but_wired():
    Model = model()
    with pytest.raises(TypeError, match="fnode"):
        Model()
    assert df.local(Model, 4)(torch.ones(1, 4)).shape == (1, 2)
    node = Model.fnode(3)
    assert (node.name, node.input_num, node.output_num) == ("Model_fnode", 1, 1)
    assert node.forward(df.FlowData()) == node.outputs()
    with pytest.raises(df.DfException):
        node.forward()
    with pytest.raises(AttributeError, match="no such method"):
        node.backward(1)

    class Sub(Model):
        pass

    assert Sub(3).linear.in_features == 3  # a subclass is a class of its own


def test_methods_lie_in_the_order_of_their_names():
    @df.pyflow(num_returns=2)
    class Actor:
        @df.method(num_returns=1)
        def zeta(self, a):
            return a

        @df.method()
        def alpha(self, a, b):
            return a, b

    node = Actor.fnode()
    assert (node.input_num, node.output_num) == (3, 3)
    assert [(each.name, each.inputs, each.outputs) for each in node.stage_spec().functions] == [
        ("alpha", (0, 1), (0, 1)), ("zeta", (2,), (2,)),
    ]  # fmt: skip
    a, b, c = (df.FlowData() for _ in range(3))
    assert node.zeta(c).index == 2
    assert node.inputs == ()  # alpha is not wired yet
    assert [each.index for each in node.alpha(a, b)] == [0, 1]
    assert node.inputs == (a, b, c)
    with pytest.raises(df.DfException):
        df.pyflow(type("Nothing", (), {}))


def test_a_function_stays_what_it_is_and_its_workspace_describes_it(tmp_path):
    @df.npu_model(resources={"num_cpus": 2, "memory": 100, "num_npus": 1}, visible_device_enable=True)
    def preProcess(image):
        return image + 1

    assert preProcess(1) == 2  # a local call, for a look at it
    node = preProcess.fnode()
    assert (node.name, node.attrs["_npu_sched_model"]) == ("preProcess_fnode", 1)
    assert preProcess.fnode().name == "preProcess_fnode_1"
    found = json.loads((tmp_path / "preProcess_fnode_ws" / "func_pre_process.json").read_text())
    assert found["heavy_load"] is found["visible_device_enable"] is True
    assert {each["type"]: each["num"] for each in found["running_resources_info"]} == {
        "cpu": 2, "memory": 100, "num_npus": 1,
    }  # fmt: skip
    spec = node.stage_spec()
    assert (spec.kind, spec.visible_device, spec.resources["num_cpus"]) == ("npu", True, 2)


def test_snake():
    assert [snake(each) for each in ("MyModel", "HTTPServer2Go", "f", "FakeModel1")] == [
        "my_model", "http_server2_go", "f", "fake_model1",
    ]  # fmt: skip


# Level 2


def exported(module, shape, folder, outputs=1):
    module.eval()
    path = export_model(module, [df.TensorDesc(FLOAT, shape)], folder, outputs)
    return torch.export.load(path).module()


def test_negative_sizes_stand_for_any_and_1_is_one_of_them(tmp_path):
    program = exported(torch.nn.Linear(3, 2), [-1, 3], tmp_path)
    for batch in (1, 2, 7):
        assert program(torch.ones(batch, 3)).shape == (batch, 2)
    with pytest.raises(AssertionError):
        program(torch.ones(1, 4))


def test_a_model_that_is_too_deep_for_a_small_sample_is_given_a_larger_one(tmp_path):
    program = exported(torch.nn.Sequential(torch.nn.Conv2d(1, 1, 7), torch.nn.MaxPool2d(2)), [1, 1, -1, -1], tmp_path)
    assert program(torch.ones(1, 1, 32, 20)).shape == (1, 1, 13, 7)


def test_a_size_that_the_model_fixes_is_told(tmp_path):
    class Fixed(torch.nn.Module):
        def forward(self, x):
            return x.reshape(2, 3) + 1

    with pytest.raises(df.DfException, match="axis 0 of input 0 cannot be any: the model is fixed to 2"):
        export_model(Fixed(), [df.TensorDesc(FLOAT, [-1, 3])], tmp_path, 1)
    with pytest.raises(df.DfException, match="1 outputs where its method says 2"):
        export_model(torch.nn.Linear(3, 2), [df.TensorDesc(FLOAT, [1, 3])], tmp_path, 2)
    with pytest.raises(df.DfException, match="exports an nn"):
        export_model(object(), [], tmp_path, 1)
    with pytest.raises(df.DfException) as error:
        export_model(torch.nn.Linear(3, 2), [df.TensorDesc(df.DT_STRING, [1, 3])], tmp_path, 1)
    assert error.value.error_code == 145022


def test_level_2_exports_forward_into_the_workspace(tmp_path):
    node = model(2, [df.TensorDesc(FLOAT, [-1, 3])]).fnode(3)
    assert (tmp_path / "Model_fnode_ws" / FILE).is_file()
    assert node.attrs["_npu_sched_model"] == 1
    assert b"linear" not in node.stage_spec().code  # nothing of the user's Python
    with pytest.raises(df.DfException, match="input_descs has 2"):
        model(2, [df.TensorDesc(FLOAT, [1, 3])] * 2).fnode(3)


def test_on_a_real_card_torchair_exports_too(tmp_path, monkeypatch):
    """By construction: its arguments are those of the reference, whose sample has 1 where a shape is negative."""
    import sys
    import types

    from toprope import device

    calls = []
    card = types.SimpleNamespace(kind="npu", capabilities=types.SimpleNamespace(simulated=False))
    monkeypatch.setattr(device, "choose", lambda **_: types.SimpleNamespace(device=card))
    torchair = types.ModuleType("torchair")
    torchair.dynamo_export = lambda *inputs, **named: calls.append((inputs, named))
    monkeypatch.setitem(sys.modules, "torchair", torchair)
    module = torch.nn.Linear(3, 2)
    for shape, dynamic in (([-1, 3], True), ([4, 3], False)):
        export_model(module, [df.TensorDesc(FLOAT, shape)], tmp_path, 1)
        (sample,), named = calls.pop()
        assert torch.equal(sample, torch.ones([1 if side < 0 else side for side in shape]))
        assert named == {"model": module, "export_path": str(tmp_path), "dynamic": dynamic}


@pytest.mark.parametrize(
    ("count", "text"),
    [("2", "num_returns must be an int, got '2'"), (0, "num_returns must be greater than 0, got 0")],
)
def test_a_number_of_results_that_is_none_is_an_assertion_error_of_the_api(count, text):
    with pytest.raises(df.DfAssertionError, match=text):
        output_count(plain, count)


def test_ports_that_do_not_count_from_0_are_a_value_error_of_the_api():
    with pytest.raises(df.DfValueError, match="the inputs of Model must be i0 to i1, each of one function: got i0, i2"):
        check_ports("Model", [StageFunction("forward", (0, 2), (0,))])
