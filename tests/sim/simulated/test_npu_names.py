"""The names of torch.npu: all graded ones are there, and what cannot be there says so.

Holds sim/npu/names.toml and sim/npu/__init__.py against the list of torch_npu's names. tests/sim/test_simulated.py runs
this module in a process with simulated cards.
"""

import importlib
import inspect
import sys
import tomllib
from importlib import resources
from typing import Any

import pytest
import torch

from children import facts

NAMES = tomllib.loads(resources.files("toprope.sim.npu").joinpath("names.toml").read_text(encoding="utf-8"))
CLASSES = [name for name in NAMES["could"] if name[0].isupper() or name == "graph"]
FUNCTIONS = [name for name in NAMES["could"] if name not in (*CLASSES, "is_current_stream_capturing")]


def at(name: str) -> Any:
    place: Any = torch.npu
    for part in name.split("."):
        place = inspect.getattr_static(place, part) if isinstance(place, type) else getattr(place, part)
    return place


@pytest.mark.parametrize("name", NAMES["must"] + NAMES["should"] + NAMES["could"])
def test_the_name_is_there(name: str) -> None:
    assert at(name) is not None
    if "." not in name and name not in ("_is_in_bad_fork", "_lazy_call", "_lazy_init", "default_generators"):
        assert name in torch.npu.__all__
        assert name in dir(torch.npu)


def test_a_star_brings_them_all() -> None:
    space: dict[str, Any] = {}
    exec("from torch.npu import *", space)
    assert {*torch.npu.__all__} <= space.keys()


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function_that_is_not_there_says_so(name: str) -> None:
    with pytest.raises(NotImplementedError, match=rf"^torch\.npu\.{name} is not there on toprope's simulated card: "):
        at(name)("anything", of="any kind")
    assert at(name).__name__ == name
    assert "NotImplementedError" in at(name).__doc__


@pytest.mark.parametrize("name", CLASSES)
def test_a_class_that_is_not_there_says_so_when_it_is_made(name: str) -> None:
    with pytest.raises(NotImplementedError, match=rf"^torch\.npu\.{name} is not there on toprope's simulated card: "):
        at(name)("anything", of="any kind")
    assert not isinstance(torch.ones(1), at(name))
    assert repr(at(name)) == f"<class 'torch.npu.{name}'>"


@pytest.mark.parametrize("name", NAMES["name_only"])
def test_what_is_there_by_name_only_says_so(name: str) -> None:
    function = at(name)
    function = getattr(function, "__func__", function)
    arguments = [0 for each in inspect.signature(function).parameters.values() if each.default is each.empty]
    with pytest.raises(NotImplementedError, match=rf"^torch\.npu\.{name} is not there on toprope's simulated card: "):
        function(*arguments)


def test_nothing_is_being_captured() -> None:
    assert torch.npu.is_current_stream_capturing() is False


@pytest.mark.parametrize("name", ["no_such_name", *NAMES["gone"]])
def test_any_other_name_is_an_attribute_error(name: str) -> None:
    assert not hasattr(torch.npu, name)
    with pytest.raises(AttributeError, match=f"{name} is not there on the simulated card"):
        getattr(torch.npu, name)


def test_a_missing_name_says_whether_torch_npu_has_it_and_which_one_is_near() -> None:
    answers = {
        "set_devcie": r"torch_npu exports no such name \(.*\); did you mean torch\.npu\.set_device\?$",
        "nothing_of_the_kind": r"torch_npu exports no such name \([^)]*\)$",
        "_private": "private names of torch_npu .* are in no list",
    }
    for name, text in answers.items():
        with pytest.raises(AttributeError, match=text):
            getattr(torch.npu, name)


def test_the_fields_of_the_properties() -> None:
    properties = torch.npu.get_device_properties(0)
    for name in NAMES["properties"]:
        assert hasattr(properties, name)
    with pytest.raises(AttributeError):
        properties.name = "another"
    assert (properties.name, properties.cube_core_num, properties.vector_core_num) == ("Ascend910B3", 20, 40)
    assert (properties.total_memory, properties.warp_size, properties.gcnArchName) == (62423 * 2**20, None, None)
    assert repr(properties).startswith("_NPUDeviceProperties(name='Ascend910B3', total_memory=62423MB, cube_core_num=")


@pytest.mark.parametrize(
    "name", ["amp", "amp.grad_scaler", "streams", "memory", "random", "utils", "npu_config", "backends", "_backends"]
)
def test_a_module_is_one_module_under_all_its_names(name: str) -> None:
    module = importlib.import_module(f"torch.npu.{name}")
    assert module is sys.modules[f"toprope.sim.npu.{name}"]
    if name != "amp.grad_scaler":
        assert module is at(name)


def test_the_class_and_not_its_module() -> None:
    from torch.npu.mstx import mstx

    assert torch.npu.mstx is mstx
    assert callable(torch.npu.memory_summary)


def test_where_torch_npu_looks_for_them() -> None:
    assert torch.npu.streams.Stream is torch.npu.Stream
    assert torch.npu.streams.ExternalEvent is torch.npu.ExternalEvent
    assert torch.npu.npu_config.set_stream_limit is torch.npu.set_stream_limit
    assert torch.npu.utils.get_soc_version() == torch.npu.get_soc_version() == 223
    assert torch.npu.utils._get_device_index("npu:2") == 2
    assert torch.npu.backends.sdp_kernel is torch.npu._backends.sdp_kernel


def test_what_torch_and_libraries_ask_for() -> None:
    called = []
    torch.npu._lazy_call(lambda: called.append(True))
    assert called == [True]
    assert torch.npu._initialized is True


def test_import_torch_loads_nothing_heavy() -> None:
    heavy = ["torch._dynamo", "torch._inductor", "torch.distributed.distributed_c10d", "rich", "typer"]
    program = f"import json, sys, torch; print(json.dumps([name for name in {heavy} if name in sys.modules]))"
    assert facts(program) == facts(program, sim="")
    assert facts("import json, torch; print(json.dumps(torch.npu._initialized))") is False


@pytest.mark.parametrize("name", ["_aclgraph_update_plan.resolver", "_memory_viz", "_npugraph_conditional_nodes"])
def test_a_module_is_one_under_both_names(name: str) -> None:
    importlib.import_module("toprope.compat.torch_npu")
    assert importlib.import_module(f"torch.npu.{name}") is importlib.import_module(f"toprope.sim.npu.{name}")


def test_memory_text_is_that_of_torch() -> None:
    from toprope.sim.npu import _memory_viz

    blocks = [{"state": "active", "size": 4, "requested_size": 3, "frames": []}]
    text: list[str] = []
    snapshot = {"segments": [{"stream": 0, "address": 8, "blocks": blocks}]}
    _memory_viz.segments(snapshot, lambda lines: text.append(lines))
    assert text == ["stream_0;seg_8;active;<non-python> 3\nstream_0;seg_8;active;<gaps> 1\n"]


CONFIG = "TORCH_ACL_INIT_CONFIG_PATH"


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (None, "is invalid"),
        ("", "Failed to parse user acl json"),
        ("not json{", "Failed to parse user acl json"),
        ('{"defaultDevice": {}}', "contains 'defaultDevice'"),
    ],
)
def test_a_wrong_configuration_of_the_start_was_not_noticed(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch, content: str | None, text: str
) -> None:
    from toprope.sim.npu._initialisation import check_environment

    path = tmp_path / "acl.json"
    if content is not None:
        path.write_text(content)
    monkeypatch.setenv(CONFIG, str(path))
    with pytest.raises(RuntimeError, match=text):
        check_environment()
    path.write_text('{"dump": {}}')
    check_environment()


def test_an_unknown_mode_of_operators_is_warned_of(monkeypatch: pytest.MonkeyPatch) -> None:
    from toprope.sim.npu._initialisation import check_environment

    monkeypatch.setenv("ACL_OP_INIT_MODE", "999")
    with pytest.warns(UserWarning, match="ACL_OP_INIT_MODE not in"):
        check_environment()


def test_operators_of_torch_npu_had_no_help() -> None:
    package = importlib.import_module("toprope.compat.torch_npu")
    assert [name for name in package.__all__ if getattr(package, name).__doc__ is None] == []
    assert package.npu_swiglu.__doc__.startswith("npu_swiglu(Tensor input")


@pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning", "ignore:.torch.jit:FutureWarning")
def test_traced_modules_get_the_fast_gelu() -> None:
    package = importlib.import_module("toprope.compat.torch_npu.jit")
    x = torch.rand(3, 3, device="npu")
    traced = torch.jit.trace(lambda x: torch.nn.functional.gelu(x * x), x)
    before = traced(x)
    package.optimize(traced)
    assert "npu::fast_gelu" in [node.kind() for node in traced.graph.nodes()]
    torch.testing.assert_close(traced(x), before, atol=0.05, rtol=0)
