"""Graphs of torch.fx with core-limit scopes (`formats.fx_graph`): built by node names, and one that torch made."""

from types import SimpleNamespace
from typing import Any

import pytest

from device_stand_ins import run_anew, told
from toprope.cores import Card, Collective, Communicator, Program, record
from toprope.errors import ScheduleError

pytestmark = pytest.mark.process

CARD = Card("0", 24, 48, "910B1")
KINDS = {"mm": "AI_CORE", "relu": "AI_VECTOR_CORE", "attention": "MIX_AIC"}


class Graph:
    """What is read of a graph module."""

    def __init__(self) -> None:
        self.graph = SimpleNamespace(nodes=[])

    def call(self, target: str, *args: Any, op: str = "call_function", **kwargs: Any) -> Any:
        node = SimpleNamespace(
            op=op, target=Target(target), name=f"{target.split('.')[1]}_{len(self.graph.nodes)}", args=args,
            kwargs=kwargs, all_input_nodes=[each for each in args if isinstance(each, SimpleNamespace)],
        )  # fmt: skip
        self.graph.nodes.append(node)
        return node

    def enter(self, **attributes: str) -> None:
        self.call("air.scope_enter.default", list(attributes), list(attributes.values()))

    def leave(self) -> None:
        self.call("air.scope_exit.default")


class Target:
    """An operator whose text is its name, as torch's are."""

    overloadpacket = None

    def __init__(self, text: str) -> None:
        self._text = text

    def __str__(self) -> str:
        return self._text


def limit(cube: str, vector: str) -> dict[str, str]:
    return {"_op_aicore_num": cube, "_op_vectorcore_num": vector}


def read(graph: Graph, *cards: Card, **more: Any) -> Program:
    return record.from_graph(graph, cards or (CARD,), kinds=KINDS, source="g", **more)


def test_the_innermost_limit_bounds_the_cores_of_an_operator() -> None:
    graph = Graph()
    x = graph.call("aten.mm.default", op="placeholder")
    graph.call("aten.mm.default", x)
    graph.enter(**limit("6", "12"))
    graph.call("aten.mm.default", x)
    graph.enter(**limit("4", "10"))
    for each in ("aten.relu.default", "npu.attention.default", "npu.unheard_of.default"):
        graph.call(each, x)
    graph.leave()
    graph.call("aten.relu.default", x)
    graph.leave()
    graph.call("aten.relu.default", x)
    ops = [op for _, op in read(graph).ops()]
    assert [(op.name, op.cores, op.limit) for op in ops] == [
        ("mm", (24, 0), None), ("mm", (6, 0), (6, 12)), ("relu", (0, 10), (4, 10)), ("attention", (4, 8), (4, 10)),
        ("unheard_of", (0, 0), (4, 10)), ("relu", (0, 12), (6, 12)), ("relu", (0, 48), None),
    ]  # fmt: skip
    assert [op.kind for op in ops[:5]] == ["AI_CORE", "AI_CORE", "AI_VECTOR_CORE", "MIX_AIC", ""]
    assert ops[0].source == "g: node 1 (mm_1)"


def test_streams_are_those_of_the_scopes_and_results_order_them() -> None:
    graph = Graph()
    x = graph.call("aten.mm.default")
    graph.enter(_user_stream_label="5", _user_stream_priority="6", **limit("8", "16"))
    y = graph.call("aten.relu.default", x)
    graph.call("aten.relu.default", y)
    graph.leave()
    graph.call("aten.mm.default", x)
    graph.call("aten.mm.default", y)
    program = read(graph)
    assert [(stream.name, [op.name for op in stream.ops]) for stream in program.streams] == [
        ("default", ["mm", "mm", "mm"]), ("5", ["relu", "relu"]),
    ]  # fmt: skip
    assert list(program.before((1, 0))) == [(0, 0)]
    assert list(program.before((0, 1))) == [(0, 0)]
    assert list(program.before((0, 2))) == [(0, 1), (1, 0)]
    assert program.op((1, 0)).limit == (8, 16)


def test_a_limit_of_another_stream_bounds_nothing_here_and_0_is_no_limit() -> None:
    graph = Graph()
    graph.enter(_op_stream_stream_id="3", **limit("1", "2"))
    graph.call("aten.mm.default")
    graph.leave()
    graph.enter(**limit("0", "2"))
    graph.call("aten.mm.default")
    graph.leave()
    assert [op.limit for _, op in read(graph).ops()] == [None, (24, 2)]


def test_every_card_runs_the_graph_and_its_collectives_meet() -> None:
    graph = Graph()
    x = graph.call("_c10d_functional.all_reduce.default", 1, "sum", "tp")
    graph.call("_c10d_functional.wait_tensor.default", x)
    graph.call("_c10d_functional.all_gather_into_tensor.default", 1, 2, group_name="ep")
    graph.call("_c10d_functional.all_reduce.default", 1, "sum", "tp")
    cards = (CARD, Card("1", 24, 48))
    ep = Communicator("ep", ("1", "0"), "aiv")
    program = read(graph, *cards, communicators=(ep,))
    assert program.communicators == (ep, Communicator("tp", ("0", "1")))
    assert {str(each): len(ids) for each, ids in program.members.items()} == {"tp#0": 2, "ep#0": 2, "tp#1": 2}
    assert program.op((0, 0)).collective == Collective("tp", 0)
    assert program.op((0, 1)).kind == "EVENT"


def test_operators_known_to_need_all_of_their_blocks() -> None:
    graph = Graph()
    graph.call("aten.nonzero.default")
    graph.call("npu.npu_moe_distribute_combine_v2.default")
    kinds = {"nonzero": "AI_VECTOR_CORE", "npu_moe_distribute_combine_v2": "AI_VECTOR_CORE"}
    assert [op.sync_all for _, op in record.from_graph(graph, (CARD,), kinds=kinds).ops()] == [True, True]
    assert [op.sync_all for _, op in record.from_graph(graph, (CARD,)).ops()] == [False, False]


def broken(*steps: str) -> Graph:
    graph = Graph()
    for step in steps:
        if step == "leave":
            graph.leave()
        elif step == "call":
            graph.call("aten.mm.default")
        else:
            graph.enter(**limit(step, "2"))
    return graph


@pytest.mark.parametrize(
    ("graph", "what", "where"),
    [
        (broken("leave"), "a scope is left that was not entered.", "g: node 0"),
        (broken("1", "call"), "a scope is entered and never left.", "g: node 0"),
        (broken("six", "call", "leave"), "the limit 'six' is no number.", "g: node 1 (mm_1)"),
        (broken("-1", "call", "leave"), "the limit '-1' is no number.", "g: node 1 (mm_1)"),
        (broken("25", "call", "leave"), "the limit 25 cube, 2 vector is beyond card 0.", "g: node 1 (mm_1)"),
    ],
)
def test_scopes_that_make_no_sense(graph: Graph, what: str, where: str) -> None:
    with pytest.raises(ScheduleError) as caught:
        read(graph)
    assert what in caught.value.what
    assert where in caught.value.looked_at
    assert caught.value.do


TORCH = """
    import torch, torch.fx
    library = torch.library.Library("air", "FRAGMENT")
    library.define("scope_enter(str[] keys, str[] values) -> ()")
    library.define("scope_exit() -> ()")
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    y = graph.call_function(torch.ops.aten.mm.default, (x, x))
    attributes = ["_op_aicore_num", "_op_vectorcore_num"], ["6", "12"]
    graph.call_function(torch.ops.air.scope_enter.default, attributes)
    z = graph.call_function(torch.ops.aten.relu.default, (y,))
    graph.call_function(torch.ops.air.scope_exit.default, ())
    graph.output(z)
    from toprope.cores import Card, record
    kinds = {"mm": "AI_CORE", "relu": "AI_VECTOR_CORE"}
    program = record.from_graph(torch.fx.GraphModule({}, graph), (Card("0", 24, 48),), kinds=kinds)
    tell(*([op.name, op.cores, op.limit] for _, op in program.ops()))
"""


@pytest.mark.slow
def test_a_graph_of_torch() -> None:
    assert told(TORCH, by=run_anew) == [["mm", [24, 0], None], ["relu", [0, 12], [6, 12]]]
