"""The HTTP application of a graph (`flow.service`): bodies, answers, refusals. The graph is a stand-in.

No process is started; test_serve_http.py has real ones.
"""

import asyncio
import json
from concurrent.futures import Future

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load, save

from serve_stand_in import StandIn, ask, make_plan, ongoing, served, talk
from toprope.flow.data_type import DT_BF16, DT_BOOL, DT_FLOAT, DT_INT32, DT_INT64, DT_STRING, DT_UINT64, TensorDesc
from toprope.flow.exceptions import FAILED, DfException
from toprope.flow.futures import DeadlineExceeded
from toprope.flow.service import bodies
from toprope.flow.service.app import _AnswerRate
from toprope.flow.tensor import Tensor

SAFE = {"content-type": bodies.SAFETENSORS}
PNG = b"\x89PNG\r\n\x1a\n and so on"


def doubled(named):
    return [named["x"] * 2]


@pytest.fixture
def graph():
    return StandIn(make_plan(), doubled)


@pytest.fixture
def service(graph):
    return served(graph)


def anything(function, **options):
    """A service whose input takes any value."""
    return served(StandIn(make_plan("python", schema=None, **options), function))


def refused(answer, status, **facts):
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    problem = answer.json()
    assert problem["status"] == status
    assert {name: problem.get(name) for name in facts} == facts
    return problem["detail"]


# Requests


def test_json_in_and_out(service, graph):
    answer = ask(service, json={"x": [[1, 2.5]]})
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "application/json"
    assert answer.json() == {"y": [[2.0, 5.0]]}
    (named, deadline) = graph.fed[0]
    assert named["x"].dtype is torch.float32
    assert deadline <= 60


def test_curl_sends_json_under_the_type_of_forms(service):
    answer = ask(
        service, content=b'{"x": [[1, 2]]}', headers={"content-type": "application/x-www-form-urlencoded"}
    )  # fmt: skip
    assert answer.json() == {"y": [[2.0, 4.0]]}


def test_a_tensor_may_say_its_dtype_and_shape(service):
    answer = ask(service, json={"x": {"dtype": "float32", "shape": [2, 2], "data": [1, 2, 3, 4]}})
    assert answer.json() == {"y": [[2.0, 4.0], [6.0, 8.0]]}


def test_safetensors_in_and_out(service):
    answer = ask(service, content=save({"x": torch.ones(1, 2)}), headers=SAFE)
    assert answer.headers["content-type"] == bodies.SAFETENSORS
    assert torch.equal(load(answer.content)["y"], torch.full((1, 2), 2.0))
    # the client decides
    answer = ask(service, content=save({"x": torch.ones(1, 2)}), headers={**SAFE, "accept": "application/json"})
    assert answer.json() == {"y": [[2.0, 2.0]]}
    answer = ask(service, json={"x": [[1, 2]]}, headers={"accept": bodies.SAFETENSORS})
    assert load(answer.content)["y"].tolist() == [[2.0, 4.0]]


def test_forms_have_fields_and_files():
    made = make_plan(inputs=("x", "text"), kind="python", schema=None)
    service = served(StandIn(made, lambda named: [{"text": named["text"], "bytes": len(named["x"])}]))
    answer = ask(service, files={"x": ("cat.jpg", b"12345", "image/jpeg")}, data={"text": "what is it"})
    assert answer.json() == {"y": {"text": "what is it", "bytes": 5}}


def test_a_form_has_tensors(service):
    for part in (
        ("x", ("x.safetensors", save({"any": torch.ones(1, 2)}), "application/octet-stream")),
        ("x", ("x.json", b"[[1, 1]]", "application/json")),
    ):
        assert ask(service, files=[part]).json() == {"y": [[2.0, 2.0]]}
    assert ask(service, files={"x": (None, "[[1, 1]]")}).json() == {"y": [[2.0, 2.0]]}


def test_a_raw_body_is_bytes_where_the_only_input_takes_any_value():
    service = anything(lambda named: [bytes(reversed(named["x"]))])
    headers = {"content-type": "image/png", "accept": "image/png"}
    answer = ask(service, content=PNG[::-1], headers=headers)
    assert answer.content == PNG
    assert answer.headers["content-type"] == "image/png"
    assert ask(service, content=b"abc", headers={"content-type": "image/png"}).json() == {"y": {"base64": "Y2Jh"}}
    assert ask(service, json={"x": {"base64": "YWJj"}}).json() == {"y": {"base64": "Y2Jh"}}


def test_values_of_json_reach_functions_as_they_are():
    service = anything(lambda named: [named["x"]])
    for value in ({"a": [1, None, "t"]}, [1, [2]], "text", 3, None, True):
        assert ask(service, json={"x": value}).json() == {"y": value}
    assert isinstance(anything_fed({"dtype": "int32", "shape": [1], "data": [5]}), Tensor)


def anything_fed(value):
    graph = StandIn(make_plan("python", schema=None), lambda named: [None])
    assert ask(served(graph), json={"x": value}).status_code == 200
    return graph.fed[0][0]["x"]


@pytest.mark.parametrize(
    ("schema", "value", "dtype"),
    [
        (TensorDesc(DT_BF16, [2]), [1.5, 2], torch.bfloat16),
        (TensorDesc(DT_INT32, [2]), [1, 2], torch.int32),
        (TensorDesc(DT_BOOL, [2]), [True, False], torch.bool),
        (TensorDesc(DT_FLOAT, [2]), [1, 2], torch.float32),
        (None, [1, 2], torch.int64),
        (None, [1.0, 2], torch.float32),
        (None, [True, False], torch.bool),
    ],
)
def test_the_schema_gives_the_dtype_else_the_numbers_do(schema, value, dtype):
    graph = StandIn(make_plan(schema=schema), lambda named: [named["x"].to(torch.float32)])
    assert ask(served(graph), json={"x": value}).json() == {"y": [float(each) for each in value]}
    assert graph.fed[0][0]["x"].dtype is dtype


# Refusals


@pytest.mark.parametrize(
    ("value", "got"),
    [
        ([[1, 2, 3]], "float32 [1, 3]"),
        ([1, 2], "float32 [2]"),
        ([["a", "b"]], "'a' at [0, 0]"),
        ([[1], [2, 3]], "a list at [0]"),
        ([[1, None]], "null at [0, 1]"),
        ([[1, "2"]], "'2' at [0, 1]"),
        ([[1, 10**400]], f"{'1' + '0' * 27}...{'0' * 29} at [0, 1]"),
        ({"dtype": "float32", "shape": [0, 10**30], "data": []}, f"shape [0, {10**30}]"),
        ({"dtype": "float32", "shape": [0, 2**62, 4], "data": []}, f"shape [0, {2**62}, 4]"),
        ({"dtype": "float32", "shape": [1] * 65, "data": [1]}, "a shape of 65 dimensions"),
        ({"dtype": "float32", "shape": [0, 10**4000, 10**4000], "data": []}, None),
        ({"a": 1}, "an object"),
        (None, "null"),
        ([[0, 1e300]], "1e+300 at [0, 1]"),
        ({"dtype": "int64", "shape": [1, 2], "data": [1, 2]}, "int64 [1, 2]"),
        ({"dtype": "float32", "shape": [1, 2], "data": [1]}, "1 elements for the shape [1, 2]"),
        ({"dtype": "float32", "shape": [10**9, 10**9], "data": []}, f"0 elements for the shape [{10**9}, {10**9}]"),
        ({"dtype": "complex", "shape": [1], "data": [1]}, "dtype 'complex'"),
        ({"dtype": [], "shape": [1], "data": [1]}, "dtype []"),
        ({"dtype": "float32", "shape": [-1], "data": [1]}, "shape [-1]"),
    ],
)  # fmt: skip
def test_a_wrong_input_is_named_with_what_was_expected(service, value, got):
    answer = ask(service, json={"x": value})
    facts = {"field": "x", "expected": "float32 [-1, 2]"} | ({} if got is None else {"got": got})
    detail = refused(answer, 422, **facts)
    assert detail.startswith("x must be float32 [-1, 2], got ")


@pytest.mark.parametrize("value", [[1.5], [2**40], [True, 1.0]])
def test_numbers_are_not_cut_off(value):
    graph = StandIn(make_plan(schema=TensorDesc(DT_INT32, [-1])), doubled)
    refused(ask(served(graph), json={"x": value}), 422, field="x", expected="int32 [-1]")
    assert graph.fed == []


@pytest.mark.parametrize(
    ("schema", "value", "held"),
    [
        (TensorDesc(DT_FLOAT, [-1]), [2**63, 2**64 - 1, 2**70, 1], [2.0**63, 2.0**64, 2.0**70, 1.0]),
        (TensorDesc(DT_UINT64, [-1]), [2**63, 2**64 - 1, 0], [2**63, 2**64 - 1, 0]),
        (TensorDesc(DT_BF16, [-1]), [2**70, 3e38], [2.0**70, float(torch.tensor(3e38, dtype=torch.bfloat16))]),
    ],
)
def test_large_integers_are_taken_where_the_dtype_holds_them(schema, value, held):
    graph = StandIn(make_plan("python", schema=schema), lambda named: [named["x"]])
    assert ask(served(graph), json={"x": value}).json() == {"y": held}


@pytest.mark.parametrize(
    ("dtype", "value", "got"),
    [
        (DT_UINT64, [1, 2**64], f"{2**64} at [1]"), (DT_UINT64, [2**63, -1], "-1 at [1]"),
        (DT_INT64, [0, 2**63], f"{2**63} at [1]"), (DT_INT64, [2**63, 0.5], "0.5 at [1]"),
        (DT_BF16, [1, 3.4e38], "3.4e+38 at [1]"), (DT_BOOL, [True, 1], "1 at [1]"), (DT_STRING, ["a", 1], "1 at [1]"),
        (None, [2**63], f"{2**63} at [0]"), (None, [1.0, 1e39], "1e+39 at [1]"),
    ],
)  # fmt: skip
def test_an_element_that_the_dtype_cannot_hold_is_named_with_its_place(dtype, value, got):
    graph = StandIn(make_plan(schema=None if dtype is None else TensorDesc(dtype, [-1])), doubled)
    if dtype == DT_STRING:
        graph = StandIn(make_plan("python", schema=TensorDesc(dtype, [-1])), doubled)
    refused(ask(served(graph), json={"x": value}), 422, field="x", got=got)
    assert graph.fed == []


def test_a_long_text_among_many_takes_no_memory():
    graph = StandIn(make_plan("python", schema=TensorDesc(DT_STRING, [-1])), doubled)
    refused(ask(served(graph), json={"x": ["a" * 2**20, *["b"] * 2**10]}), 422, field="x")


_NUMBERS = st.integers() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False, allow_infinity=False)
_JSON = st.recursive(
    st.none() | st.booleans() | _NUMBERS | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=12,
)
_TENSOR = st.fixed_dictionaries(
    {
        "dtype": st.sampled_from(["float32", "int8", "uint64", "bool", "bfloat16", "string", "float16"]) | _JSON,
        "shape": st.lists(st.sampled_from([0, 1, 2, 4, 2**31, 2**62, 10**30]), max_size=70) | _JSON,
        "data": st.lists(_NUMBERS | st.booleans(), max_size=4) | _JSON,
    }
)


@settings(max_examples=200, deadline=None)
@given(
    st.sampled_from([None, *(TensorDesc(each, [-1]) for each in (DT_FLOAT, DT_INT32, DT_UINT64, DT_BF16, DT_BOOL))]),
    st.sampled_from(["npu", "python"]),
    _TENSOR | st.lists(_NUMBERS, max_size=4) | _JSON,
)
def test_any_json_for_a_tensor_gives_a_result_or_a_refusal(schema, kind, value):
    service = served(StandIn(make_plan(kind, schema=schema), lambda named: [0]))
    answer = ask(service, json={"x": value})
    assert answer.status_code == 200 or 400 <= answer.status_code < 500, answer.text


_PIECES = st.sampled_from(
    [
        b"--b", b"--b--", b"\r\n", b"\n", b"\r", b":", b";", b'"', b"; filename=a",
        b"Content-Disposition: form-data; name=x",
        b'Content-Disposition: form-data; name="x"\r\n\r\n', b"Content-Type: application/json", b"[[1, 2]]", b"{", b"}",
        b'"x":', b"\xff\xfe", b"\0",
    ]
)  # fmt: skip


@settings(max_examples=200, deadline=None)
@given(
    st.sampled_from(
        [
            "application/json", "application/json; charset=none", "multipart/form-data; boundary=b",
            "multipart/form-data; boundary=", "multipart/form-data; boundary=b; charset=none", bodies.SAFETENSORS,
            "image/png", "", "\xff", "multipart/form-data; boundary=" + "b" * 300,
        ]
    ),
    st.lists(_PIECES | st.binary(max_size=8), max_size=12).map(b"".join),
    st.sampled_from(["npu", "python"]),
)  # fmt: skip
def test_any_body_gives_a_result_or_a_refusal(media_type, body, kind):
    service = served(StandIn(make_plan(kind, schema=None), lambda named: [0]))
    answer = ask(service, content=body, headers={"content-type": media_type.encode("latin-1")})
    assert answer.status_code == 200 or 400 <= answer.status_code < 500, answer.text


@pytest.mark.parametrize("shape", [[1] * 65, [0, 2**62, 4], [0, 2**61, 2], [0, 2**63], [0, 10**30]])
def test_shapes_of_safetensors_that_no_array_has_are_refused(service, shape):
    data = b"" if 0 in shape else bytes(4)
    head = json.dumps({"x": {"dtype": "F32", "shape": shape, "data_offsets": [0, len(data)]}}).encode()
    answer = ask(service, content=len(head).to_bytes(8, "little") + head + data, headers=SAFE)
    assert answer.status_code in (400, 422), answer.text


def test_a_value_that_is_nested_too_deeply_for_pickle_is_refused():
    def fails(named):
        raise RecursionError("maximum recursion depth exceeded while pickling an object")

    graph = StandIn(make_plan("python", schema=None), fails)
    assert "nested" in refused(ask(served(graph), json={"x": [[1]]}), 422)


@pytest.mark.parametrize("body", [b'{"x": [[1, 2]], "x": [[3, 4]]}', b'{"x": {"dtype": "a", "dtype": "b"}}'])
def test_a_doubled_key_of_json_is_refused(service, graph, body):
    assert "more than once" in refused(ask(service, content=body), 400)
    assert graph.fed == []


def test_a_doubled_deadline_is_refused(service, graph):
    async def conversation(client):
        return await client.post("/predict?timeout=1&timeout=2", json={"x": [[1, 2]]})

    assert "2 times" in refused(talk(service, conversation), 400, field="timeout")
    assert graph.fed == []


def test_a_part_of_safetensors_has_one_tensor(service, graph):
    part = save({"x": torch.ones(1, 2), "z": torch.ones(1, 2)})
    refused(ask(service, files={"x": ("x.safetensors", part)}), 422, field="x", got="a file with the tensors x, z")
    assert graph.fed == []


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"", 400), (b"{", 400), (b"[1]", 400), (b"\xff", 400), (b'{"x": NaN}', 400), (b"[" * 100_000, 400),
        (b"{}", 422), (b'{"x": [[1, 2]], "z": 1}', 422),
    ],
)  # fmt: skip
def test_bodies_that_are_no_inputs(service, body, status):
    refused(ask(service, content=body), status)


def test_other_bodies_that_are_no_inputs(service):
    assert "no safetensors file" in refused(ask(service, content=b"abc", headers=SAFE), 400)
    refused(ask(service, content=save({"z": torch.ones(1, 2)}), headers=SAFE), 422, field="z")
    refused(ask(service, content=save({"x": torch.ones(2, 1)}), headers=SAFE), 422, got="float32 [2, 1]")
    refused(ask(service, content=b"x", headers={"content-type": "image/png"}), 415)
    refused(ask(service, content=b"x", headers={"content-type": "multipart/form-data"}), 400)
    refused(ask(service, files={"x": ("x.jpg", b"1", "image/jpeg")}), 422, field="x", got="bytes (image/jpeg)")
    refused(ask(service, files=[("x", (None, "[[1, 2]]")), ("x", (None, "[[1, 2]]"))]), 422, field="x")
    refused(ask(service, files=[(f"n{number}", (None, "1")) for number in range(5)]), 422, field="n0")


@pytest.mark.parametrize("kind", ["json", "form", "chunks"])
def test_bodies_are_bounded(graph, kind):
    service = served(graph, body=1000)

    async def chunks():
        for _ in range(100):
            yield b" " * 100

    request = {
        "json": {"content": b" " * 1001},
        "form": {"files": {"x": ("x", b" " * 1001)}},
        "chunks": {"content": chunks()},
    }[kind]
    assert "more than 1000 bytes" in refused(ask(service, **request), 413)
    assert service.is_idle


def test_the_deadline_is_a_parameter(service, graph):
    assert ask(service, json={"x": [[1, 2]]}, params={"timeout": "0.5"}).status_code == 200
    assert graph.fed[0][1] <= 0.5
    for wrong in ("0", "-1", "x", "nan", "61", "inf"):
        refused(ask(service, json={"x": [[1, 2]]}, params={"timeout": wrong}), 400, field="timeout", got=wrong)


def test_too_many_requests_are_told_when_to_come_again(service, graph):
    with ongoing(service, 128):
        answer = ask(service, json={"x": [[1, 2]]})
        refused(answer, 429)
        assert 1 <= int(answer.headers["retry-after"]) <= 60
    graph.room = False
    answer = ask(service, json={"x": [[1, 2]]})
    refused(answer, 429)
    assert int(answer.headers["retry-after"]) >= 1
    graph.room = True
    assert ask(service, json={"x": [[1, 2]]}).status_code == 200
    assert service.is_idle


def test_a_service_that_stops_answers_503(service, graph):
    service.drain()
    answer = ask(service, json={"x": [[1, 2]]})
    refused(answer, 503)
    assert answer.headers["retry-after"]

    async def conversation(client):
        return [(await client.get(path)).status_code for path in ("/healthz", "/readyz")]

    assert talk(service, conversation) == [200, 503]
    graph.error = RuntimeError("stage y has ended")
    assert talk(service, conversation) == [503, 503]


@pytest.mark.parametrize(
    ("error", "status", "text"),
    [
        (ValueError("too small"), 500, "ValueError: too small"),
        (DeadlineExceeded("there was no result within the deadline"), 504, "no result"),
        (DfException("the graph has ended", FAILED), 503, "the graph has ended"),
        (DfException("a stage made no result of the input"), 500, "made no result"),
        (TimeoutError("the user's own"), 500, "TimeoutError: the user's own"),
        (SystemExit(3), 500, "SystemExit: 3"),
        (KeyboardInterrupt(), 500, "KeyboardInterrupt"),
        (asyncio.CancelledError("the user's own"), 500, "CancelledError: the user's own"),
    ],
)
def test_an_input_that_fails_is_answered(error, status, text):
    service = anything(lambda named: error)
    assert text in refused(ask(service, json={"x": 1}), status)
    assert service.is_idle
    assert service.figures.by_status[status] == 1


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt(), asyncio.CancelledError()])
def test_a_stream_that_fails_so_ends_nothing_but_itself(error):
    refused(ask(anything(lambda named: [error], generates=True), json={"x": 1}), 500)


def test_an_exception_with_a_status_is_the_clients_fault():
    error = ValueError("the image is too small")
    error.status_code, error.detail = 422, "at least 16 pixels"
    assert refused(ask(anything(lambda named: error), json={"x": 1}), 422) == "at least 16 pixels"
    error.status_code = 200
    refused(ask(anything(lambda named: error), json={"x": 1}), 500)


@pytest.mark.parametrize("made", [[float("nan")], [torch.tensor([float("inf")])], [object()], [{(1, 2): 3}]])
def test_a_result_that_json_cannot_hold(made):
    refused(ask(anything(lambda named: made), json={"x": 1}), 406)


def test_results_of_all_kinds():
    array = np.arange(2, dtype="int16")
    for made, wanted in (
        (array, [0, 1]), (array[0], 0), (Tensor.over(array), [0, 1]), (Tensor(["ab"]), ["ab"]),
        (torch.ones(1, dtype=torch.bfloat16), [1.0]), ((1, "a"), [1, "a"]), (None, None),
    ):  # fmt: skip
        assert ask(anything(lambda named, made=made: [made]), json={"x": 1}).json() == {"y": wanted}


def test_outputs_have_the_names_of_their_nodes():
    shared = torch.arange(4.0)
    service = anything(lambda named: [shared[:2], shared[2:]], outputs=2)
    assert ask(service, json={"x": 1}).json() == {"y.0": [0.0, 1.0], "y.1": [2.0, 3.0]}
    answer = ask(service, json={"x": 1}, headers={"accept": bodies.SAFETENSORS})
    assert {name: each.tolist() for name, each in load(answer.content).items()} == {
        "y.0": [0.0, 1.0], "y.1": [2.0, 3.0]
    }  # fmt: skip
    service = anything(lambda named: ["text"])
    refused(ask(service, json={"x": 1}, headers={"accept": bodies.SAFETENSORS}), 406, field="y")


# Streams


def events(answer):
    assert answer.headers["content-type"] == "text/event-stream"
    found = []
    for block in answer.text.strip().split("\n\n"):
        name, data = block.split("\n")
        found.append((name.removeprefix("event: "), json.loads(data.removeprefix("data: "))))
    return found


def test_results_of_a_generator_are_events():
    service = anything(lambda named: [[1], [torch.ones(2)]], generates=True)
    wanted = [("result", {"y": 1}), ("result", {"y": [1.0, 1.0]}), ("end", {})]
    assert events(ask(service, json={"x": 1})) == wanted
    assert events(ask(service, json={"x": 1}, headers={"accept": "text/event-stream"})) == wanted
    answer = ask(service, json={"x": 1}, headers={"accept": "application/json"})
    assert answer.json() == {"results": [{"y": 1}, {"y": [1.0, 1.0]}]}
    assert service.is_idle


def test_a_generator_that_fails():
    service = anything(lambda named: [[1], ValueError("no")], generates=True)
    first, (name, problem) = events(ask(service, json={"x": 1}))
    assert first == ("result", {"y": 1})
    assert name == "error"
    assert (problem["status"], problem["detail"]) == (500, "ValueError: no")
    # before the first result it is the status of the answer
    refused(ask(anything(lambda named: [ValueError("no")], generates=True), json={"x": 1}), 500)
    refused(
        ask(anything(lambda named: [[1], ValueError("no")], generates=True), json={"x": 1},
            headers={"accept": "application/json"}), 500
    )  # fmt: skip
    name, problem = events(ask(anything(lambda named: [[1], [object()]], generates=True), json={"x": 1}))[-1]
    assert (name, problem["status"]) == ("error", 406)


def test_a_generator_without_results_ends():
    assert events(ask(anything(lambda named: [], generates=True), json={"x": 1})) == [("end", {})]


def test_one_result_may_be_an_event(service):
    answer = ask(service, json={"x": [[1, 2]]}, headers={"accept": "text/event-stream"})
    assert events(answer) == [("result", {"y": [[2.0, 4.0]]}), ("end", {})]


def test_no_answer_of_this_type(service):
    refused(ask(anything(lambda named: [[1]], generates=True), json={"x": 1}, headers={"accept": "image/png"}), 406)
    refused(ask(service, json={"x": [[1, 2]]}, headers={"accept": "image/png"}), 406)
    texts = anything(lambda named: [Tensor(["a", "bc"])])
    refused(ask(texts, json={"x": 1}, headers={"accept": bodies.SAFETENSORS}), 406, field="y")


@pytest.mark.parametrize(
    ("accept", "kind"),
    [
        ("image/png", "image/png"), ("image/*", "image/png"), ("image/webp, image/png;q=0.5", "image/png"),
        ("application/octet-stream", "application/octet-stream"), ("text/html, image/*;q=0.1", "image/png"),
        ("image/jpeg", None), ("video/*", None),
    ],
)  # fmt: skip
def test_the_content_of_bytes_says_their_type_and_not_the_client(accept, kind):
    """A client had a picture sent as text/html."""
    answer = ask(anything(lambda named: [PNG]), json={"x": 1}, headers={"accept": accept})
    assert answer.headers["x-content-type-options"] == "nosniff"
    if kind is None:
        assert "the result is image/png" in refused(answer, 406)
    else:
        assert (answer.headers["content-type"], answer.content) == (kind, PNG)


def test_bytes_of_no_known_type_are_octets():
    answer = ask(anything(lambda named: [b"<html>"]), json={"x": 1}, headers={"accept": "application/octet-stream"})
    assert answer.headers["content-type"] == "application/octet-stream"
    refused(ask(anything(lambda named: [b"<html>"]), json={"x": 1}, headers={"accept": "image/png"}), 406)


@pytest.mark.parametrize("accept", ["text/html", "text/plain", "image/svg+xml", "application/xml"])
def test_a_wrong_accept_is_refused_before_the_model_runs(accept):
    graph = StandIn(make_plan("python", schema=None), lambda named: [PNG])
    answer = ask(served(graph), json={"x": 1}, headers={"accept": accept})
    refused(answer, 406)
    assert graph.fed == []


def test_bytes_of_a_model_are_refused_before_it_runs(service, graph):
    refused(ask(service, json={"x": [[1, 2]]}, headers={"accept": "image/png"}), 406)
    assert graph.fed == []


@pytest.mark.parametrize("encoding", ["gzip", "br", "deflate, gzip"])
def test_an_encoded_body_is_refused_by_the_name_of_its_encoding(service, graph, encoding):
    answer = ask(service, content=b"\x1f\x8b", headers={"content-encoding": encoding})
    assert encoding in refused(answer, 415)
    assert answer.headers["accept-encoding"] == "identity"
    assert ask(service, json={"x": [[1, 2]]}, headers={"content-encoding": "identity"}).status_code == 200


def test_a_deadline_that_passes_names_its_limit_and_the_work():
    service = anything(lambda named: DeadlineExceeded("there was no result within the deadline: y works on input 3"))

    async def conversation(client):
        return [await client.post("/predict", json={"x": 1}, params=each) for each in ({"timeout": 2}, {})]

    short, longest = talk(service, conversation)
    assert "y works on input 3; the request has a deadline of 2 s" in refused(short, 504)
    assert short.json()["do"] == "send it with a longer ?timeout=, at most 60"
    assert "60 s" in refused(longest, 504)
    assert "--timeout" in longest.json()["do"]


def test_retry_after_leaves_out_the_time_in_which_nothing_was_asked():
    pace = _AnswerRate()
    for begin in (100.0, 1000.0, 5000.0):
        pace.begin(begin)
        pace.add(begin + 0.25)
        pace.add(begin + 0.5)
    assert pace.seconds_for(8) == 2
    assert pace.seconds_for(1000) == 60


# Clients that go


def test_a_client_that_goes_cancels_its_input():
    future = Future()
    service = anything(lambda named: future)
    status = asyncio.run(_left(service))
    assert status == []
    assert future.cancelled()
    assert service.is_idle
    assert service.figures.by_status == {499: 1}


def test_a_client_that_goes_cancels_its_stream():
    graph = StandIn(make_plan("python", schema=None, generates=True), lambda named: [[1], None])
    service = served(graph)
    sent = asyncio.run(_left(service))
    assert sent[0] == "http.response.start"
    assert graph.streams[0]._ended
    assert service.figures.by_status == {499: 1}


async def _left(service):
    """The messages of an answer whose client goes once its body was read."""
    sent, body = [], iter([{"type": "http.request", "body": b'{"x": 1}', "more_body": False}])

    async def receive():
        found = next(body, None)
        if found is None:
            await asyncio.sleep(0.05)
            return {"type": "http.disconnect"}
        return found

    async def send(message):
        sent.append(message["type"])

    scope = {
        "type": "http", "method": "POST", "path": "/predict", "raw_path": b"/predict", "query_string": b"",
        "headers": [(b"content-type", b"application/json")], "http_version": "1.1", "scheme": "http",
        "server": ("service", 80), "client": ("client", 1), "root_path": "",
    }  # fmt: skip
    await service.app(scope, receive, send)
    return sent


# Description and figures


def test_openapi_has_the_inputs_and_outputs(service):
    async def conversation(client):
        return (await client.get("/openapi.json")).json()

    found = talk(service, conversation)
    post = found["paths"]["/predict"]["post"]
    body = post["requestBody"]["content"]["application/json"]["schema"]
    assert body["required"] == ["x"]
    assert body["additionalProperties"] is False  # an unknown input is refused
    assert body["properties"]["x"]["x-dtype"] == "float32"
    assert body["properties"]["x"]["x-shape"] == [-1, 2]
    assert post["responses"]["200"]["content"]["application/json"]["schema"]["required"] == ["y"]
    assert {"400", "413", "422", "429", "503", "504"} <= set(post["responses"])
    assert {"/healthz", "/readyz", "/metrics"} <= set(found["paths"])


def test_metrics_count_answers(service):
    ask(service, json={"x": [[1, 2]]})
    ask(service, json={"x": 1})

    async def conversation(client):
        return await client.get("/metrics")

    answer = talk(service, conversation)
    assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    lines = answer.text.splitlines()
    assert 'toprope_requests_total{code="200"} 1' in lines
    assert 'toprope_requests_total{code="422"} 1' in lines
    assert "toprope_requests_ongoing 0" in lines
    assert 'toprope_request_duration_seconds_bucket{le="+Inf"} 2' in lines
    assert "toprope_request_duration_seconds_count 2" in lines


def test_other_paths_and_methods_are_problems(service):
    async def conversation(client):
        return [await client.get("/none"), await client.get("/predict")]

    missing, wrong = talk(service, conversation)
    refused(missing, 404)
    refused(wrong, 405)
