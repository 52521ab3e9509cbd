"""Graph mode: scopes in compiled models, the backends, the limits under which operators run.

Holds sim/graph and sim/air against torchair's documents and tests. tests/sim/test_simulated.py runs this module in a
process with simulated cards.
"""

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch._dynamo.utils import counters

import toprope.sim
from toprope.cores import Card, record
from toprope.errors import SimulatorError
from toprope.sim.air import contexts
from toprope.sim.graph import (
    CompilerConfig,
    data_dump,
    get_npu_backend,
    limit_core_num,
    npu_stream_switch,
    npu_wait_tensor,
    op_never_timeout,
    super_kernel,
)

SIM = "910B2x2"
AICORE, VECTORCORE = "_op_aicore_num", "_op_vectorcore_num"
MODES = ["reduce-overhead", "max-autotune"]

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning:torch"),
    pytest.mark.filterwarnings("ignore:torchair's mode reduce-overhead:DeprecationWarning"),
]

SEEN: list[tuple[str, int, int, int]] = []
"""Operator, stream, cube and vector cores in force, of every `look` that ran."""

_library = torch.library.Library("toprope_test", "FRAGMENT")
_library.define("look(Tensor x, str name) -> Tensor")


def _look(x: torch.Tensor, name: str) -> torch.Tensor:
    stream = torch.npu.current_stream()
    SEEN.append((name, stream.stream_id, *torch.npu.get_stream_limit(stream).values()))
    if name == "fail":
        raise RuntimeError("it fails")
    return x + 1


_library.impl("look", _look, "PrivateUse1")
_library.impl("look", lambda x, name: torch.empty_like(x), "Meta")
look = torch.ops.toprope_test.look


@pytest.fixture(autouse=True)
def nothing_compiled(known_state: None) -> Iterator[None]:
    torch._dynamo.reset()
    counters.clear()
    SEEN.clear()
    yield
    torch._dynamo.reset()
    torch.npu.reset_stream_limit(torch.npu.current_stream())


def backend(mode: str = "reduce-overhead", aicore_num: Any = None) -> Any:
    config = CompilerConfig()
    config.mode = mode
    if aicore_num is not None:
        config.ge_config.aicore_num = aicore_num
    return get_npu_backend(compiler_config=config)


def compiled(function: Any, by: Any, **options: Any) -> Any:
    return torch.compile(function, backend=by, fullgraph=True, dynamic=False, **options)


def seen(name: str) -> list[tuple[int, int]]:
    return [(cube, vector) for each, _, cube, vector in SEEN if each == name]


@contextmanager
def limited(cube: int, vector: int) -> Iterator[None]:
    stream = torch.npu.current_stream()
    torch.npu.set_stream_limit(stream, cube, vector)
    yield
    torch.npu.reset_stream_limit(stream)


def now() -> tuple[int, int]:
    cube, vector = torch.npu.get_stream_limit(torch.npu.current_stream()).values()
    return cube, vector


def nested(x: torch.Tensor) -> torch.Tensor:
    x = look(x, "before")
    with limit_core_num(1, "2"):
        x = look(x, "outer")
        with limit_core_num(3, 4):
            x = look(x, "inner")
        x = look(x, "again")
    return look(x, "after")


# --- scopes


def test_attributes_of_operators() -> None:
    by = backend("max-autotune")
    compiled(nested, by)(torch.ones(2).npu())
    assert [dict(each.attributes) for each in by.graphs[-1].nodes] == [
        {}, {AICORE: "1", VECTORCORE: "2"}, {AICORE: "3", VECTORCORE: "4"}, {AICORE: "1", VECTORCORE: "2"}, {},
    ]  # fmt: skip
    marks = [str(node.target) for node in by.graphs[-1].module.graph.nodes if "scope" in node.name]
    assert marks == ["air.scope_enter.default"] * 2 + ["air.scope_exit.default"] * 2


def test_scopes_of_other_kinds_join() -> None:
    def go(x: torch.Tensor) -> torch.Tensor:
        with limit_core_num("1", 2), npu_stream_switch("5", 6), super_kernel("k", "o"), op_never_timeout(True):
            x = x + 1
            with super_kernel(None):
                return x * 2

    by = backend("max-autotune")
    x = torch.ones(2).npu()
    assert compiled(go, by)(x).cpu().tolist() == [4, 4]
    add, mul = by.graphs[-1].nodes
    common = {
        AICORE: "1", VECTORCORE: "2", "_user_stream_label": "5", "_user_stream_priority": "6",
        "_enable_inner_parallel": "True", "_op_exec_never_timeout": "True",
    }  # fmt: skip
    assert add.attributes == {**common, "_super_kernel_scope": "k", "_super_kernel_options": "o"}
    assert mul.attributes == common
    assert (add.target, mul.target) == ("aten.add.Tensor", "aten.mul.Tensor")


def test_outside_of_a_graph_a_scope_does_nothing() -> None:
    with limit_core_num(1, 2), npu_stream_switch("a", 3):
        look(torch.ones(2).npu(), "x")
    assert SEEN == [("x", 0, 24, 48)]
    with limit_core_num("nonsense", 99):
        pass


@pytest.mark.parametrize("name", ["eager", "aot_eager"])
def test_other_backends_pass_scopes_over(name: str) -> None:
    compiled(nested, name)(torch.ones(2).npu())
    assert {(cube, vector) for _, _, cube, vector in SEEN} == {(24, 48)}


def test_the_name_that_documents_have(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contexts, "_warned", False)

    def go(x: torch.Tensor) -> torch.Tensor:
        with limit_core_num(6, op_vector_num=12):
            return look(x, "x")

    with pytest.warns(UserWarning, match="op_vectorcore_num; op_vector_num"):
        compiled(go, backend())(torch.ones(2).npu())
    assert seen("x") == [(6, 12)]
    assert limit_core_num(6, op_vector_num=12).attributes == {AICORE: "6", VECTORCORE: "12"}  # and no second warning


def test_wrong_arguments() -> None:
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'op_vectorcore_num'"):
        limit_core_num(1)
    with pytest.raises(TypeError, match="both"):
        limit_core_num(1, 2, op_vector_num=3)
    with pytest.raises(TypeError, match="'enable' must be bool, but got int"):
        op_never_timeout(1)  # type: ignore[arg-type]


# --- numbers


def model(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    product = torch.mm(x, x)
    with limit_core_num(6, 12):
        return product, torch.add(x, x)


@pytest.mark.parametrize("mode", MODES)
def test_the_contract_and_its_gradients(mode: str) -> None:
    by = backend(mode)
    run = compiled(model, by)
    x = torch.randn(3, 3)
    product, total = run(x.npu())
    assert torch.allclose(product.cpu(), x @ x, atol=1e-5)
    assert torch.equal(total.cpu(), x + x)
    assert [graph.phase for graph in by.graphs] == ["inference"]
    on_card, on_host = x.npu().requires_grad_(), x.clone().requires_grad_()
    sum(run(on_card)).pow(2).sum().backward()
    sum(model(on_host)).pow(2).sum().backward()
    assert torch.allclose(on_card.grad.cpu(), on_host.grad, atol=1e-4)
    assert [graph.phase for graph in by.graphs] == ["inference", "forward", "backward"]
    assert now() == (24, 48)


@pytest.mark.parametrize("mode", MODES)
def test_writes_in_place_and_shapes_that_change(mode: str) -> None:
    def go(x: torch.Tensor) -> torch.Tensor:
        with limit_core_num(6, 12), npu_stream_switch("side", 0):
            x.mul_(2)
        return x.sum(0)

    run = torch.compile(go, backend=backend(mode), fullgraph=True, dynamic=True)
    for rows in (2, 3, 5):
        x = torch.ones(rows, 3).npu()
        assert run(x).cpu().tolist() == [2 * rows] * 3
        assert x.cpu().eq(2).all()


def test_on_the_second_card() -> None:
    with torch.npu.device(1):
        x = torch.ones(2, 2, device="npu:1")
        assert torch.equal(compiled(model, backend())(x)[0].cpu(), torch.full((2, 2), 2.0))


# --- the stream-level mode


@pytest.mark.parametrize("mode", MODES)
def test_operators_run_under_the_limit_of_their_scope(mode: str) -> None:
    by = backend(mode)
    run = compiled(nested, by)
    for _ in range(2):
        SEEN.clear()
        run(torch.ones(2).npu())
        assert [each[0] for each in SEEN] == ["before", "outer", "inner", "again", "after"]
        assert [each[2:] for each in SEEN] == [(24, 48), (1, 2), (3, 4), (1, 2), (24, 48)]
        assert now() == (24, 48)
    # once the trace knows the cores of operators, it says the same
    if any(record.cube_cores for record in _traced(lambda: run(torch.ones(2).npu()))):
        adds = [record for record in _traced(lambda: run(torch.ones(2).npu())) if record.name == "aten::add"]
        assert [record.vector_cores for record in adds] == [48, 2, 4, 2, 48]


def _traced(function: Any) -> list[Any]:
    with toprope.sim.trace() as trace:
        function()
    return [record for record in trace.records if record.act == "operator"]


def calls(by: Any) -> list[str]:
    return [node.target.__name__ for node in by.graphs[-1].lowered.graph.nodes if callable(node.target)]


def test_a_scope_is_one_get_and_two_sets() -> None:
    def go(x: torch.Tensor) -> torch.Tensor:
        with limit_core_num(4, 5):
            x = look(x, "a")
            with npu_stream_switch("side", 3):
                x = look(x, "b")
        with npu_stream_switch("side", 3):
            x = look(x, "c")
        with super_kernel("k"):
            return look(x, "d")

    by = backend()
    compiled(go, by)(torch.ones(2).npu())
    assert (calls(by).count("get_stream_limit"), calls(by).count("set_stream_limit")) == (2, 4)
    main, side = SEEN[0][1], SEEN[1][1]
    assert SEEN[0] == ("a", main, 4, 5)
    assert SEEN[1:] == [("b", side, 4, 5), ("c", side, 24, 48), ("d", main, 24, 48)]
    assert side != main
    assert torch.npu.current_stream().stream_id == main


def test_streams_wait_for_the_graph_and_the_graph_for_them() -> None:
    def go(x: torch.Tensor) -> torch.Tensor:
        with npu_stream_switch("side", 0):
            y = look(x, "a")
        return y + look(x, "b")

    for mode in MODES:
        with toprope.sim.trace() as trace:
            compiled(go, backend(mode))(torch.ones(2).npu())
        side, main = (each[1] for each in SEEN[-2:])
        events = [(each.act, each.stream, each.address) for each in trace.records if each.act.startswith("event")]
        begin, end = events[0], events[-1]
        assert begin[:2] == ("event record", main)
        assert ("event wait", side, begin[2]) in events
        assert end[:2] == ("event wait", main)
        assert ("event record", side, end[2]) in events


def test_the_graph_engine_waits_for_values_of_other_streams() -> None:
    def go(x: torch.Tensor) -> torch.Tensor:
        x = look(x, "a")
        with npu_stream_switch("side", 0):
            return look(x, "b") * x

    by = backend("max-autotune")
    compiled(go, by)(torch.ones(2).npu())
    # the start of the graph, the value of "a", and the end of "side"
    assert (calls(by).count("record"), calls(by).count("wait")) == (3, 3)


def waits(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    first = look(x, "first")
    with npu_stream_switch("side", 3):
        npu_wait_tensor(y, first)
        return first, look(y, "second")


@pytest.mark.parametrize("fullgraph", [True, False])
def test_a_wait_orders_two_streams_that_share_no_value(fullgraph: bool) -> None:
    by = backend("max-autotune")
    with toprope.sim.trace() as trace:
        run = torch.compile(waits, backend=by, fullgraph=fullgraph, dynamic=False)
        first, second = run(torch.ones(2).npu(), torch.full((2,), 5.0).npu())
    assert (first.cpu().tolist(), second.cpu().tolist()) == ([2, 2], [6, 6])
    main, side = (each[1] for each in SEEN)
    assert main != side
    acts = [(each.act, each.stream, each.address) for each in trace.records if each.act.startswith("event")]
    recorded = [address for act, stream, address in acts if (act, stream) == ("event record", main)]
    waited = [address for act, stream, address in acts if (act, stream) == ("event wait", side)]
    assert waited == recorded[:2]  # the start of the graph, and the operator that is waited for
    (graph,) = by.graphs
    assert [each.target for each in graph.nodes] == [
        "toprope_test.look.default", "air.wait_tensor.default", "toprope_test.look.default",
    ]  # fmt: skip
    assert graph.nodes[1].attributes["_user_stream_label"] == "side"


def test_a_check_of_cores_sees_the_wait() -> None:
    by = backend("max-autotune")
    compiled(waits, by)(torch.ones(2).npu(), torch.ones(2).npu())
    program = record.from_graph(by.graphs[-1].module, [Card("0", 24, 48, "910B2")])
    assert [(stream.name, [op.name for op in stream.ops]) for stream in program.streams] == [
        ("default", ["look"]), ("side", ["wait_tensor", "look"]),
    ]  # fmt: skip
    assert list(program.before((1, 0))) == [(0, 0)]
    assert program.op((1, 0)).cores == (0, 0)


def test_a_wait_holds_for_later_uses_on_other_streams_and_costs_no_operator() -> None:
    def go(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        first = look(x, "first")
        with npu_stream_switch("1", 2):
            npu_wait_tensor(y, first)
            second = look(y, "second")
        with npu_stream_switch("2", 3, False):
            waited = npu_wait_tensor(y, second)
            third = look(waited, "third")
        return first, second, look(y, "fourth"), third, waited

    by = backend("max-autotune")
    x, y = torch.ones(2).npu(), torch.full((2,), 5.0).npu()
    with toprope.sim.trace() as trace:
        found = [each.cpu().tolist() for each in compiled(go, by)(x, y)]
    assert found == [[2, 2], [6, 6], [6, 6], [6, 6], [5, 5]]
    acts = [(each.act, each.stream) for each in trace.records if each.act == "event wait"]
    main, one, two = SEEN[0][1], SEEN[1][1], SEEN[2][1]
    # each stream waits for the start of the graph, and main at the end for both: the rest is from the waits
    assert (acts.count(("event wait", one)), acts.count(("event wait", two))) == (2, 3)
    assert acts.count(("event wait", main)) == 3
    assert not any("wait_tensor" in str(node.target) for node in by.graphs[-1].lowered.graph.nodes)


def test_gradients_pass_a_wait() -> None:
    def go(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        first = x * 2
        with npu_stream_switch("side"):
            return (npu_wait_tensor(y, first) * 3 + first).sum()

    x, y = (torch.ones(2).npu().requires_grad_() for _ in range(2))
    compiled(go, backend("max-autotune"))(x, y).backward()
    assert (x.grad.cpu().tolist(), y.grad.cpu().tolist()) == ([2, 2], [3, 3])


def test_a_wait_has_no_meaning_elsewhere() -> None:
    x = torch.ones(2).npu()
    for call in (lambda: npu_wait_tensor(x, x), lambda: compiled(waits, backend())(x, x)):
        with pytest.raises(NotImplementedError, match="wait_tensor kernel_impl is not implemented! "):
            call()


def test_operators_marked_for_a_dump() -> None:
    def go(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        total = x + x
        with data_dump():
            return total, x - x

    by = backend("max-autotune")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        compiled(go, by)(torch.ones(2).npu())
    assert [dict(each.attributes) for each in by.graphs[-1].nodes] == [{}, {"torchair_enable_data_dump": "True"}]
    by.config.dump_config.enable_dump = True
    torch._dynamo.reset()
    with pytest.warns(UserWarning, match="dump_config.enable_dump has no effect on the simulated card"):
        compiled(go, by)(torch.ones(2).npu())


# --- a graph that breaks inside a scope


def test_the_first_error_is_shown_where_a_graph_breaks() -> None:
    def go(x: torch.Tensor) -> torch.Tensor:
        with limit_core_num(1, 2), npu_stream_switch("side"):
            return contexts.no_such_scope(x)  # type: ignore[attr-defined, no-any-return]

    run = torch.compile(go, backend=backend("max-autotune"), dynamic=False)
    for _ in range(2):
        with pytest.raises(AttributeError, match=r"has no attribute 'no_such_scope'") as caught:
            run(torch.ones(2).npu())
        assert not hasattr(caught.value, "__notes__")


@pytest.mark.parametrize("mode", MODES)
def test_a_graph_that_breaks_inside_a_scope_says_why(mode: str) -> None:
    def go(x: torch.Tensor) -> torch.Tensor:
        with limit_core_num(1, 2), npu_stream_switch("side"):
            y = x + 1
            if y.sum() > 0:
                y = y + 1
            return y

    run = torch.compile(go, backend=backend(mode), dynamic=False)
    for _ in range(2):
        with pytest.raises(SimulatorError, match="the graph broke inside a scope") as caught:
            run(torch.ones(2).npu())
        assert "Data-dependent branching: Detected data-dependent branching" in str(caught.value)
    assert now() == (24, 48)


def test_an_error_after_a_break_names_it_too() -> None:
    def go(x: torch.Tensor) -> torch.Tensor:
        with limit_core_num(1, 2):
            if x.sum() > 0:
                raise OSError("the function's own")
            return x

    run = torch.compile(go, backend=backend(), dynamic=False)
    try:
        raise ValueError("handled while the function runs")
    except ValueError:
        with pytest.raises(OSError, match="the function's own") as caught:
            run(torch.ones(2).npu())
    (note,) = caught.value.__notes__
    assert note.startswith("before this, the graph broke inside a scope: Data-dependent branching")


def test_a_graph_may_break_outside_of_scopes() -> None:
    def go(x: torch.Tensor) -> torch.Tensor:
        with limit_core_num(1, 2):
            x = look(x, "a")
        torch._dynamo.graph_break()
        with limit_core_num(3, 4):
            return look(x, "b")

    torch.compile(go, backend=backend(), dynamic=False)(torch.ones(2).npu())
    assert (seen("a"), seen("b")) == ([(1, 2)], [(3, 4)])


def test_a_limit_that_is_no_number_fails_when_it_is_compiled() -> None:
    def go(x: torch.Tensor) -> torch.Tensor:
        with limit_core_num("abc", 2):
            return x + 1

    with pytest.raises(
        torch._dynamo.exc.BackendCompilerFailed, match=r"ValueError: invalid literal for int\(\)"
    ) as caught:
        compiled(go, backend())(torch.ones(2).npu())
    assert isinstance(caught.value.inner_exception, ValueError)


def test_more_cores_than_there_are_fail_at_run_time_and_leave_no_trace() -> None:
    def go(x: torch.Tensor) -> torch.Tensor:
        with npu_stream_switch("side", 0), limit_core_num(3, 49):
            return x + 1

    with limited(5, 6):
        with pytest.raises(RuntimeError, match="107000"):
            compiled(go, backend())(torch.ones(2).npu())
        assert now() == (5, 6)


@pytest.mark.parametrize("mode", MODES)
def test_an_operator_that_fails_leaves_streams_and_limits_as_before(mode: str) -> None:
    def go(x: torch.Tensor) -> torch.Tensor:
        with limit_core_num(3, 4), npu_stream_switch("side", 0):
            return look(x, "fail")

    with limited(5, 6):
        with pytest.raises(RuntimeError, match="it fails"):
            compiled(go, backend(mode))(torch.ones(2).npu())
        assert SEEN[0][2:] == (3, 4)
        assert now() == (5, 6)


def told(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.message for record in caplog.records if record.name == "torchair"]


def test_other_limits_capture_anew(caplog: pytest.LogCaptureFixture) -> None:
    by = backend()
    run = compiled(lambda x: look(x, "x"), by)
    x = torch.ones(2).npu()
    name = "recapture_due_to_global_limit_core_change_{}"
    with limited(2, 3):
        run(x)
        run(x)
    graph = by.graphs[-1]
    name = name.format(graph.name)
    assert (seen("x"), counters["npugraph_ex"][name]) == ([(2, 3), (2, 3)], 0)
    with caplog.at_level(logging.DEBUG, logger="torchair"), limited(4, 5):
        graph.replay(x)
        assert seen("x")[-1] == (2, 3)
        assert now() == (4, 5)
        assert told(caplog) == []
        run(x)
        run(x)
        assert seen("x")[-2:] == [(4, 5), (4, 5)]
    assert counters["npugraph_ex"][name] == 1
    assert counters["npugraph_ex"][f"captured_{graph.name}"] == 1
    assert len(told(caplog)) == 1
    assert told(caplog)[0].startswith(f"The current AclGraph needs to be recaptured for fx_graph {graph.name}")
    assert len(by.graphs) == 1


def test_afterwards_the_stream_has_a_limit_of_its_own() -> None:
    compiled(nested, backend())(torch.ones(2).npu())
    torch.npu.set_device_limit(0, 10, 20)
    try:
        assert now() == (24, 48)
    finally:
        torch.npu.reset_stream_limit(torch.npu.current_stream())
        assert now() == (10, 20)
        from toprope.sim.npu.limits import reset_device_limit

        reset_device_limit(0)


@pytest.mark.parametrize("version", ["8.5.0", "9.0.0"])
def test_static_kernels_beside_limits(version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOPROPE_CANN", version)
    config = CompilerConfig()
    config.mode = "reduce-overhead"
    config.experimental_config.aclgraph._aclnn_static_shape_kernel = True
    by = get_npu_backend(compiler_config=config)
    compiled(lambda x: x + 1, by)(torch.ones(2).npu())
    assert by.graphs[-1].static_kernel is True  # no limit, no conflict
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        compiled(nested, by)(torch.ones(2).npu())
    text = (
        "When both static shape kernel and core limit are enabled, only core limit will take effect, static shape"
        " kernel will be disabled. CANN 9.0.0 or later supports enabling both features."
    )
    assert [str(each.message) for each in told if "static" in str(each.message)] == [text] * (version == "8.5.0")
    assert by.graphs[-1].static_kernel is (version == "9.0.0")


# --- the operator-level mode


def one(cube: Any, vector: Any) -> Any:
    def go(x: torch.Tensor) -> torch.Tensor:
        x = look(x, "free")
        with limit_core_num(cube, vector):
            return look(x, "held")

    return go


@pytest.mark.parametrize(
    ("cube", "vector", "text"),
    [
        ("abc", 1, "Value abc for parameter _op_aicore_num is invalid. Reason: It is not integer."),
        (1, "01", "Value 01 for parameter _op_vectorcore_num is invalid. Reason: Invalid integer format:"),
        (25, 1, "Value 25 for parameter _op_aicore_num is invalid. Reason: It is out of range, value must be in"),
        (1, 49, "Value 49 for parameter _op_vectorcore_num is invalid. Reason: It is out of range, value must be in"),
    ],
)  # fmt: skip
def test_attributes_are_checked_before_anything_runs(cube: Any, vector: Any, text: str) -> None:
    run = compiled(one(cube, vector), backend("max-autotune"))
    for _ in range(2):
        with pytest.raises(RuntimeError) as caught:
            run(torch.ones(2).npu())
        assert str(caught.value).startswith("E10001: ")
        assert text in str(caught.value)
    assert SEEN == []


def test_zero_is_not_set() -> None:
    compiled(one(0, 12), backend("max-autotune"))(torch.ones(2).npu())
    assert (seen("free"), seen("held")) == ([(24, 48)], [(24, 12)])


def test_the_option_of_the_whole_graph_and_the_operators_that_override_it() -> None:
    by = backend("max-autotune", "12|20")
    run = compiled(one(3, 0), by)
    for outside in ((24, 48), (7, 8)):
        SEEN.clear()
        with limited(*outside):
            run(torch.ones(2).npu())
            assert now() == outside
        assert (seen("free"), seen("held")) == ([(12, 20)], [(3, 20)])
    assert by.graphs[-1].options == {"ge.aicoreNum": "12|20"}
    assert {name: (each.cube, each.vector) for name, each in by.graphs[-1].limits.items()} == {
        "look": (12, 20), "look_1": (3, 20),
    }  # fmt: skip


def test_too_many_cores_by_version(monkeypatch: pytest.MonkeyPatch) -> None:
    run = compiled(one(3, 4), backend("max-autotune", "24|100"))
    with pytest.raises(RuntimeError, match=r"E10001: .*Value 100 for parameter ge\.vectorcoreNum is .*\(0, 48\]"):
        run(torch.ones(2).npu())
    monkeypatch.setenv("TOPROPE_CANN", "8.5.0")
    run(torch.ones(2).npu())
    assert (seen("free"), seen("held")) == ([(24, 48)], [(3, 4)])


def test_an_option_that_is_no_number_and_one_without_its_division() -> None:
    with pytest.raises(RuntimeError, match=r"E10001: .*Value abc .*It is not integer\."):
        compiled(one(3, 4), backend("max-autotune", "abc|1"))(torch.ones(2).npu())
    run = compiled(one(3, 4), backend("max-autotune", 12))
    with pytest.warns(UserWarning, match=r"Expected format: aicore_num\|vectorcore_num"):
        run(torch.ones(2).npu())
    assert (seen("free"), seen("held")) == ([(12, 48)], [(3, 4)])
    with pytest.warns(UserWarning, match="no effect in mode reduce-overhead"):
        backend("reduce-overhead", "1|2")


# --- the backends by name, and the scope of torch_npu


def test_backends_by_name() -> None:
    assert {"npu", "npugraph_ex"} <= set(torch._dynamo.list_backends(None))
    for name in ("npu", "npugraph_ex"):
        SEEN.clear()
        compiled(nested, name)(torch.ones(2).npu())
        assert (seen("inner"), seen("after")) == ([(3, 4)], [(24, 48)])
    compiled(nested, "npugraph_ex", options={"static_kernel_compile": True, "clone_input": False})(torch.ones(2).npu())
    with pytest.raises(torch._dynamo.exc.BackendCompilerFailed, match=r"Invalid option 'speed', allowed options: \["):
        compiled(lambda x: x + 2, "npugraph_ex", options={"speed": 1})(torch.ones(2).npu())


ex = torch.npu.npugraph_ex.scope


def test_the_scope_of_torch_npu_acts_at_once() -> None:
    other = torch.npu.Stream()
    get = torch.npu.get_stream_limit
    with ex.limit_core_num(6, 12):
        assert now() == (6, 12)
        with ex.limit_core_num(2, 3):
            assert now() == (2, 3)
        with ex.limit_core_num(4, 5, stream=other), torch.npu.stream(torch.npu.Stream()):
            assert list(get(other).values()) == [4, 5]
            assert now() == (24, 48)
        assert list(get(other).values()) == [24, 48]
        assert now() == (6, 12)
    assert now() == (24, 48)
    with pytest.raises(KeyError), ex.limit_core_num(6, 12):
        raise KeyError
    assert now() == (24, 48)
    with pytest.raises(RuntimeError, match="107000"), ex.limit_core_num(6, 49):
        pass
    assert now() == (24, 48)


def test_the_scope_of_torch_npu_in_a_graph() -> None:
    other = torch.npu.Stream()

    def go(x: torch.Tensor) -> torch.Tensor:
        with ex.limit_core_num(6, 12):
            x = look(x, "here")
            with ex.limit_core_num(4, 5, stream=other):
                x = look(x, "still")
                with npu_stream_switch("side", 0):
                    return look(x, "there")

    compiled(go, "npugraph_ex")(torch.ones(2).npu())
    assert [each[2:] for each in SEEN[:2]] == [(6, 12), (6, 12)]
    assert SEEN[2][2:] == (4, 5)
    assert list(torch.npu.get_stream_limit(other).values()) == [24, 48]
    assert now() == (24, 48)


def test_the_named_stream_is_limited_inside_the_graph() -> None:
    other = torch.npu.Stream()
    found = []

    def note(module: Any, inputs: Any, config: Any) -> None:
        found.extend(node.args for node in module.graph.nodes if node.target is torch.ops.air.scope_enter.default)

    def go(x: torch.Tensor) -> torch.Tensor:
        with ex.limit_core_num(4, 5, stream=other):
            return x + 1

    config = CompilerConfig()
    config.mode = "npugraph_ex"
    config.post_grad_custom_pre_pass = note
    by = get_npu_backend(compiler_config=config)
    compiled(go, by)(torch.ones(2).npu())
    keys, values = found[0]
    assert dict(zip(keys, values, strict=True))["_op_stream_stream_id"] == str(other.stream_id)
    assert by.graphs[-1].nodes[0].attributes[AICORE] == "4"
    torch.npu.set_stream_limit(other, 7, 8)
    compiled(go, by)(torch.ones(2).npu())
    assert list(torch.npu.get_stream_limit(other).values()) == [7, 8]


def test_levels_of_determinism() -> None:
    with pytest.raises(ValueError, match="must be 0, 1, 2, or 3, got 4"):
        ex.deterministic(4)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with ex.deterministic(1):
            assert torch.are_deterministic_algorithms_enabled()
        assert not torch.are_deterministic_algorithms_enabled()

    def go(x: torch.Tensor) -> torch.Tensor:
        with ex.deterministic(2):
            return x + 1

    by = backend("npugraph_ex")
    compiled(go, by)(torch.ones(2).npu())
    assert by.graphs[-1].nodes[0].attributes == {"_op_deterministic_level": "2"}


def test_what_is_not_there_says_so() -> None:
    for name in ("compile_fx", "inference", "register_replacement"):
        assert not hasattr(torch.npu.npugraph_ex, name)
        with pytest.raises(NotImplementedError, match=rf"torch\.npu\.npugraph_ex\.{name} is not there on toprope's"):
            getattr(torch.npu.npugraph_ex, name)
    with pytest.raises(AttributeError, match="has no attribute 'else_'"):
        torch.npu.npugraph_ex.else_  # noqa: B018 - asking is what raises
    config = CompilerConfig()
    config.experimental_config.aot_config_enable_joint_graph = True
    with pytest.raises(torch._dynamo.exc.BackendCompilerFailed, match="aot_config_enable_joint_graph is not there"):
        compiled(lambda x: x + 3, get_npu_backend(compiler_config=config))(torch.ones(2).npu())


def test_scopes_that_do_not_pair() -> None:
    def go(x: torch.Tensor) -> torch.Tensor:
        torch.ops.air.scope_exit()
        return x + 1

    with pytest.raises(torch._dynamo.exc.BackendCompilerFailed, match="a scope is left that was never entered"):
        compiled(go, backend())(torch.ones(2).npu())


def test_a_pass_of_ones_own_and_operators_taken_apart() -> None:
    seen_by_pass = []

    def note(module: Any, inputs: Any, config: Any) -> None:
        seen_by_pass.append([str(node.target) for node in module.graph.nodes if node.op == "call_function"])

    config = CompilerConfig()
    config.post_grad_custom_post_pass = note
    apart = {torch.ops.aten.relu.default: lambda x: torch.ops.aten.clamp_min.default(x, 0)}
    by = get_npu_backend(compiler_config=config, custom_decompositions=apart)
    assert compiled(torch.relu, by)(torch.tensor([-1.0, 2.0]).npu()).cpu().tolist() == [0, 2]
    assert seen_by_pass == [["aten.clamp_min.default"]]


# --- the configuration


def test_options_and_their_values() -> None:
    config = CompilerConfig()
    assert config.mode.value == "max-autotune"
    config.mode = "reduce-overhead"
    config.experimental_config.frozen_parameter = True
    config.debug.aclgraph.static_capture_size_limit = 8
    assert (config.mode.value, config.experimental_config.frozen_parameter.value) == ("reduce-overhead", "1")
    assert bool(config.experimental_config.frozen_parameter)
    assert not config.debug.run_eagerly
    other = CompilerConfig()
    assert config != other
    other.mode = "reduce-overhead"
    other.experimental_config = config.experimental_config
    other.debug.aclgraph.static_capture_size_limit = 8
    assert config == other


@pytest.mark.parametrize(
    ("path", "value", "error", "text"),
    [
        ("modus", "x", ValueError, r"CompilerConfig has no option modus, all options \['mode', "),
        ("ge_config.cores", 1, ValueError, "_GEConfig has no option cores, all options"),
        ("experimental_config.aclgraph.fast", 1, ValueError, "_AclGraphExperimentalConfig has no option fast"),
        ("mode", "fast", ValueError, r"Value 'fast' \(type: <class 'str'>\) not in optional list"),
        ("debug", 1, ValueError, "debug is a group of options"),
        ("debug.aclgraph.static_capture_size_limit", "8", ValueError, "Please set integer type"),
        ("debug.aclgraph.static_capture_size_limit", 0, ValueError, "Please set value in"),
        ("post_grad_custom_pre_pass", 3, TypeError, "value must be Callable or None"),
        ("experimental_config.aclgraph._super_kernel_optimize_options", 3, TypeError, "value must be dict or None"),
        ("fusion_config.fusion_switch_file", "/nowhere", FileNotFoundError, "Please set legal file path, /nowhere"),
        ("dump_config.dump_path", "/nowhere", FileNotFoundError, "Please set legal dir path, /nowhere"),
        ("dump_config.dump_layer", 3, TypeError, "value must be str or None"),
    ],
)
def test_options_that_are_refused(path: str, value: Any, error: type[Exception], text: str) -> None:
    place: Any = CompilerConfig()
    *groups, last = path.split(".")
    for group in groups:
        place = getattr(place, group)
    with pytest.raises(error, match=rf"^{text}"):
        setattr(place, last, value)
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        place.nothing  # noqa: B018 - asking is what raises
