"""Options (`functions.options`): names and defaults of the yr API, and refusals in its words."""

import pickle
from dataclasses import fields

import pytest

from toprope import functions as yr
from toprope.functions import Config, InvokeOptions

pytestmark = pytest.mark.process


def options(**values: object) -> InvokeOptions:
    return InvokeOptions(**values)  # type: ignore[arg-type]


def test_defaults_are_the_vendors():
    given = {each.name: getattr(InvokeOptions(), each.name) for each in fields(InvokeOptions)}
    assert {name: given[name] for name in (
        "cpu", "memory", "cpu_limit", "mem_limit", "concurrency", "max_invoke_latency", "min_instances",
        "max_instances", "retry_times", "recover_retry_times", "need_order", "schedule_timeout_ms", "idle_timeout",
        "instance_priority", "preferred_priority", "required_priority", "preferred_anti_other_labels",
    )} == {
        "cpu": 500, "memory": 500, "cpu_limit": 0, "mem_limit": 0, "concurrency": None, "max_invoke_latency": 5000,
        "min_instances": 0, "max_instances": 0, "retry_times": 0, "recover_retry_times": 0, "need_order": None,
        "schedule_timeout_ms": 30000, "idle_timeout": 300, "instance_priority": 0, "preferred_priority": True,
        "required_priority": False, "preferred_anti_other_labels": False,
    }  # fmt: skip
    config = Config()
    assert (config.invoke_timeout, config.rpc_timeout, config.connection_nums) == (900, 1800, 100)
    assert config.recycle_time == 2
    assert (config.max_task_instance_num, config.is_driver, config.http_ioc_threads_num) == (-1, True, 400)


@pytest.mark.parametrize(("name", "value"), [
    ("custom_resources", [("NPU/.+/count", 1)]), ("cpu", "500"), ("cpu", True), ("memory", 1.5), ("name", 3),
    ("env_vars", None), ("labels", "a"), ("need_order", 1), ("concurrency", 2.0), ("schedule_timeout_ms", None),
    ("retry_times", "1"), ("runtime_env", None), ("resource_group_options", {}),
])  # fmt: skip
def test_a_value_of_another_type_is_refused(name, value):
    with pytest.raises(TypeError, match=f"invalid type for '{name}', actual: .*, expect: "):
        options(**{name: value}).check()


@pytest.mark.parametrize("concurrency", [0, 1001, -1])
def test_concurrency_has_a_range(concurrency):
    message = (
        f"invalid opts concurrency, concurrency: {concurrency}, please set the concurrency range between 1 and 1000"
    )
    with pytest.raises(yr.YRequestError, match=message) as caught:
        options(concurrency=concurrency).check()
    assert caught.value.code == 1001


@pytest.mark.parametrize(("values", "code"), [
    ({"recover_retry_times": -1}, 1001), ({"retry_times": -1}, 1001), ({"schedule_timeout_ms": -2}, 1001),
    ({"cpu": 500, "cpu_limit": 400}, 1001), ({"memory": 500, "mem_limit": 400}, 1001),
])  # fmt: skip
def test_what_no_instance_can_have_is_refused_with_its_code(values, code):
    with pytest.raises(yr.YRequestError) as caught:
        options(**values).check()
    assert caught.value.code == code


def test_order_and_several_calls_at_once_exclude_each_other():
    with pytest.raises(ValueError, match="need_order=True is mutually exclusive with concurrency > 1"):
        options(need_order=True, concurrency=2).check()
    with pytest.raises(ValueError, match="mutually exclusive"):
        options(need_order=True).check(is_async=True)
    options(need_order=True, concurrency=1).check(is_async=True)
    assert options().calls_at_once(is_async=False) == 1
    assert options().calls_at_once(is_async=True) == 1000


@pytest.mark.parametrize(("runtime_env", "kind", "message"), [
    ({"py_modules": []}, ValueError, r"runtime_env.get\('py_modules'\) is not supported."),
    ({"pip": [], "conda": "x"}, ValueError, "cannot have both 'pip' and 'conda'"),
    ({"pip": ["x"]}, NotImplementedError, "pip.* is not part of toprope"),
    ({"conda": "x"}, NotImplementedError, "conda.* is not part of toprope"),
    ({"shared_dir": {"name": "x"}}, NotImplementedError, "shared_dir.* is not part of toprope"),
])  # fmt: skip
def test_environments_that_cannot_be_made_are_refused(runtime_env, kind, message):
    with pytest.raises(kind, match=message):
        options(runtime_env=runtime_env).check()


def test_an_instance_that_is_to_be_found_needs_a_name():
    with pytest.raises(ValueError, match=r"The actor name must be specified to use `get_if_exists`\."):
        options(get_if_exists=True).check()


@pytest.mark.parametrize(("name", "value"), [
    ("retry_times", -1), ("retry_times", 2**31), ("recover_retry_times", -1), ("min_instances", -1),
    ("max_instances", -2), ("max_invoke_latency", -2),
])  # fmt: skip
def test_options_of_functions_are_held_to_their_ranges_when_given(name, value):
    @yr.invoke
    def function():
        pass

    with pytest.raises(ValueError, match=f"invalid {name}: {value}, should be in "):
        function.options(options(**{name: value}))
    function.options(options(max_instances=-1, max_invoke_latency=-1))


def test_env_vars_go_before_those_of_the_runtime_env():
    both = options(runtime_env={"env_vars": {"A": "1", "B": "1"}}, env_vars={"B": "2"})
    assert both.environment() == {"A": "1", "B": "2"}


def test_a_copy_shares_nothing_and_options_can_be_pickled():
    first = options(custom_resources={"NPU/.+/count": 1}, env_vars={"A": "1"})
    second = first.copy()
    second.custom_resources["ssd"] = 1
    second.env_vars["B"] = "2"
    assert (first.custom_resources, first.env_vars) == ({"NPU/.+/count": 1}, {"A": "1"})
    assert pickle.loads(pickle.dumps(first)) == first


@pytest.mark.parametrize("values", [
    {"recycle_time": 0}, {"recycle_time": 301}, {"connection_nums": 0}, {"num_cpus": 0},
])  # fmt: skip
def test_a_configuration_that_cannot_be_is_refused(values):
    (name,) = values
    with pytest.raises(ValueError, match=f"invalid {name}, actual: {values[name]}"):
        yr.init(Config(**values))
    assert not yr.is_initialized()


def test_a_configuration_is_a_configuration_and_an_address_one_that_is_known():
    with pytest.raises(TypeError, match="invalid type for 'conf'"):
        yr.init({"num_cpus": 1})  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"invalid server_address, actual: tcp://10\.0\.0\.1"):
        yr.init(Config(server_address="tcp://10.0.0.1"))


def test_labels_are_compared_as_the_operator_says():
    kinds = yr.OperatorType
    labels = {"zone": "a", "gpu": ""}
    assert [yr.LabelOperator(kind, "zone", ["a", "b"]).holds(labels) for kind in (1, 2, 3, 4)] == [
        True, False, True, False,
    ]  # fmt: skip
    assert yr.LabelOperator(kinds.LABEL_NOT_IN, "none", ["a"]).holds(labels)
    both = yr.Affinity(yr.AffinityKind.RESOURCE, yr.AffinityType.REQUIRED, [
        yr.LabelOperator(kinds.LABEL_IN, "zone", ["a"]), yr.LabelOperator(kinds.LABEL_EXISTS, "none"),
    ])  # fmt: skip
    assert not both.holds(labels)


def test_decorators_say_what_they_are_for():
    with pytest.raises(RuntimeError, match=r"@yr\.invoke decorator must be applied to a function"):
        yr.invoke(int)
    with pytest.raises(RuntimeError, match=r"@yr\.instance decorator must be applied to a class"):
        yr.instance(len)
    for returns in (-1, 101, 1.0, True, "2"):
        with pytest.raises(ValueError, match=f"invalid return_nums: {returns}, should be an integer between 0 and 100"):
            yr.invoke(return_nums=returns)(test_decorators_say_what_they_are_for)
        with pytest.raises(ValueError, match="invalid return_nums"):
            yr.method(return_nums=returns)
    with pytest.raises(NotImplementedError, match="initializer"):
        yr.invoke(initializer=print)


def test_proxies_refuse_to_be_called_and_name_what_they_stand_for():
    @yr.invoke
    def function(a, b=2):
        "Adds."

    @yr.instance
    class Thing:
        "A thing."

        def method(self):
            pass

    with pytest.raises(RuntimeError, match=r"invoke function cannot be called directly"):
        function(1)
    with pytest.raises(RuntimeError, match=r"cannot be called directly, use .*Thing.invoke"):
        Thing()
    assert (function.__name__, function.__doc__, Thing.__doc__) == ("function", "Adds.", "A thing.")
    assert function.get_original_func()(1) is None
    assert Thing.get_original_cls()().method() is None


def test_nothing_is_called_outside_of_a_session():
    @yr.invoke
    def function():
        pass

    assert not yr.is_initialized()
    yr.finalize()  # silent
    for call in (
        function.invoke, yr.resources, lambda: yr.put(1), lambda: yr.kv_set("a", b""), lambda: yr.get_instance("x"),
    ):  # fmt: skip
        with pytest.raises(yr.YRRuntimeError, match=r"system not initialized|already finalized"):
            call()
    for call in (yr.save_state, yr.load_state):
        with pytest.raises(RuntimeError, match="is only supported on cloud with posix api"):
            call()


def test_rays_spelling_of_options():
    @yr.instance
    class Thing:
        pass

    creator = Thing.options(
        name="n", namespace="s", lifetime="detached", get_if_exists=True, resources={"NPU/.+/count": 1},
        runtime_env={"env_vars": {"A": "1"}},
    )  # fmt: skip
    given = creator._options
    assert (given.name, given.namespace, given.get_if_exists, given.custom_resources) == (
        "n", "s", True, {"NPU/.+/count": 1},
    )  # fmt: skip
    assert (given.custom_extensions, given.environment()) == ({"lifecycle": "detached"}, {"A": "1"})
    assert Thing._options == InvokeOptions()
    with pytest.raises(ValueError, match="lifetime is only support detached"):
        Thing.options(lifetime="short")
    with pytest.raises(TypeError, match="unexpected keywords: num_cpus"):
        Thing.options(num_cpus=1)
    with pytest.raises(TypeError, match="invalid type for 'invoke_options'"):
        Thing.options({"cpu": 1})


@pytest.mark.parametrize(("options", "name", "near"), [
    (yr.InvokeOptions(), "custom_resource", "do: custom_resources"), (yr.Config(), "num_cpu", "do: num_cpus"),
    (yr.GroupOptions(), "time_out", "do: timeout"), (yr.ResourceGroupOptions(), "bundle", "do: bundle_index"),
    (yr.FunctionGroupOptions(), "resource", "do: resources"),
    (yr.InvokeOptions(), "xyz", "do: one of cpu, memory, "),
])  # fmt: skip
def test_an_attribute_that_is_no_option_is_refused_with_the_one_that_was_meant(options, name, near):
    """It was taken silently, and the card was not asked for."""
    with pytest.raises(AttributeError, match=f"{type(options).__name__} has no option '{name}'. {near}"):
        setattr(options, name, 1)
    assert not hasattr(options, name)


def test_all_options_can_be_set_copied_and_pickled():
    import copy
    import pickle

    for options in (yr.InvokeOptions(), yr.Config(), yr.GroupOptions(), yr.FunctionGroupOptions()):
        for name, value in vars(options).items():
            setattr(options, name, value)
        assert copy.deepcopy(options) == pickle.loads(pickle.dumps(options)) == options
