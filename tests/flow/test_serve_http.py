"""`toprope serve` over HTTP, with real processes and a real client: answers, overload, deaths, and the end."""

import json
import os
import signal
import socket
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import httpx
import psutil
import pytest
import torch
from safetensors.torch import save

from functions_session import within
from serve_process import Server, overload, together
from toprope import flow
from toprope.cli import main
from toprope.cli.serve import load_graph
from toprope.flow.service.server import bound

pytestmark = [pytest.mark.native, pytest.mark.process]

LONG = 120


@pytest.fixture(scope="module")
def classifier(tmp_path_factory):
    with Server(tmp_path_factory.mktemp("classifier")) as server:
        yield server


# Answers


def test_requests_are_answered_in_all_forms(classifier):
    answer = classifier.post(json={"image": [[1, 2, 3]]})
    assert (answer.status_code, answer.json()) == (200, {"label": [12.0]})
    tensors = save({"image": torch.ones(2, 3)})
    headers = {"content-type": "application/vnd.safetensors", "accept": "application/json"}
    assert classifier.post(content=tensors, headers=headers).json() == {"label": [6.0, 6.0]}
    assert classifier.post(files={"image": ("x.safetensors", tensors)}).json() == {"label": [6.0, 6.0]}
    assert classifier.post(files={"image": (None, "[[1, 1, 1]]")}).json() == {"label": [6.0]}
    answer = classifier.post(json={"image": [[1, 2]]})
    assert answer.status_code == 422
    problem = answer.json()
    assert (problem["field"], problem["expected"], problem["got"]) == ("image", "float32 [-1, 3]", "float32 [1, 2]")


def test_requests_at_once_share_calls_and_each_gets_its_own_answer(classifier):
    values = [float(number) for number in range(40)]
    before = classifier.metric('toprope_stage_duration_seconds_count{stage="Model_fnode",instance="0"}')
    values[7] = -1.0
    with ThreadPoolExecutor(20) as pool:
        answers = list(pool.map(lambda value: classifier.post(json={"image": [[value] * 3]}), values))
    for value, answer in zip(values, answers, strict=True):
        if value < 0:
            assert answer.status_code == 500
            assert answer.json()["detail"] == "ValueError: negative"
            assert answer.json()["stage"] == "Model_fnode"
        else:
            assert answer.json() == {"label": [6 * value]}
    calls = classifier.metric('toprope_stage_duration_seconds_count{stage="Model_fnode",instance="0"}') - before
    assert 0 < calls < len(values)
    edge = 'source="Model_fnode",output="0",target="best_fnode",input="0"'
    assert classifier.metric(f"toprope_edge_messages_total{{{edge}}}") >= len(values)
    assert classifier.metric("toprope_requests_ongoing") == 0


def test_the_service_describes_itself(classifier):
    found = httpx.get(f"{classifier.url}/openapi.json").json()
    assert found["info"]["title"] == "classifier"
    assert httpx.get(f"{classifier.url}/healthz").json() == {"status": "ok"}
    assert httpx.get(f"{classifier.url}/docs").status_code == 200
    assert "http://127.0.0.1:" in classifier.said()


def test_a_large_body_goes_through_and_one_that_is_too_large_does_not(classifier):
    rows = 200_000
    headers = {"content-type": "application/vnd.safetensors", "accept": "application/json"}
    answer = classifier.post(content=save({"image": torch.ones(rows, 3)}), headers=headers)
    assert answer.json() == {"label": [6.0] * rows}
    answer = classifier.post(content=b" " * (33 * 2**20), headers=headers)
    assert answer.status_code == 413
    assert classifier.post(json={"image": [[1, 1, 1]]}).status_code == 200


# Streams, deadlines, clients that go


@pytest.mark.slow
def test_results_of_a_generator_come_as_they_are_made(tmp_path):
    with Server(tmp_path, "counter") as server:
        times, data = [], []
        with httpx.stream("POST", f"{server.url}/predict", json={"n": 5}, timeout=LONG) as answer:
            assert answer.headers["content-type"] == "text/event-stream"
            for line in answer.iter_lines():
                if line.startswith("data: "):
                    times.append(time.monotonic())
                    data.append(json.loads(line.removeprefix("data: ")))
        assert data == [{"number": number} for number in range(5)] + [{}]
        assert times[4] - times[0] > 0.4  # not all at the end
        # a client that goes stops its generator
        sock = server.left({"n": 1000})
        assert sock.recv(100)
        sock.close()
        within(LONG, lambda: server.metric("toprope_requests_ongoing") == 0)
        assert server.metric('toprope_requests_total{code="499"}') == 1
        assert server.post(json={"n": 1}, params={"timeout": 50}).status_code == 200


@pytest.mark.slow
def test_deadlines_and_clients_that_go_leave_work_out(tmp_path):
    note = str(tmp_path / "note")
    with Server(tmp_path, "work") as server, ThreadPoolExecutor(1) as pool:
        first = pool.submit(server.work, 1, sleep=2, note=note)
        within(LONG, lambda: os.path.exists(note))
        sock = server.left({"task": {"value": 2, "note": note}})
        late = httpx.post(
            f"{server.url}/predict", json={"task": {"value": 3, "note": note}}, params={"timeout": 0.2}, timeout=LONG
        )
        sock.close()
        assert late.status_code == 504
        assert first.result().json()["done"]["value"] == 1
        assert server.work(4, note=note).json()["done"]["value"] == 4
        within(LONG, lambda: server.metric('toprope_requests_total{code="499"}') == 1)
        with open(note) as file:
            assert file.read().splitlines() == ["1", "4"]


# Overload


def overloaded(tmp_path, seconds, *, growth):
    """Twice as many clients as requests are accepted: each is answered, by its own value or by 429; memory stays."""
    with Server(tmp_path, "work", "--max-ongoing-requests", "8") as server:
        overload(server, 16, min(seconds, 3))  # what is allocated once
        before = server.memory()
        found = overload(server, 16, seconds)
        answers = [each for client in found for each in client]
        assert {answer.status_code for _, answer in answers} == {200, 429}
        for value, answer in answers:
            if answer.status_code == 200:
                assert answer.json()["done"]["value"] == value
            else:
                assert 1 <= int(answer.headers["retry-after"]) <= 60
        within(LONG, lambda: server.metric("toprope_requests_ongoing") == 0)
        assert server.memory() - before < growth
        assert server.work("last").status_code == 200
        assert server.metric("toprope_stage_restarts_total") == 0


@pytest.mark.slow
def test_overload_gets_429_and_nothing_else(tmp_path):
    overloaded(tmp_path, 3, growth=32 * 2**20)


@pytest.mark.soak
def test_overload_for_half_a_minute(tmp_path):
    overloaded(tmp_path, 30, growth=32 * 2**20)


# Deaths


@pytest.mark.soak
def test_stages_and_the_server_are_killed_under_overload(tmp_path):
    """Each accepted request is answered, or reported as failed, and after each death the others go on."""
    options = ("--max-ongoing-requests", "8")
    with (
        Server(tmp_path, "work", *options, SERVE_INSTANCES="2", SERVE_RESTARTS="100") as server,
        ThreadPoolExecutor(1) as pool,
    ):
        overload(server, 16, 3)
        before, killed = server.memory(), []
        running = pool.submit(overload, server, 16, 30)
        while not running.done():
            answer = server.work("victim")
            if answer.status_code == 200:
                killed.append(answer.json()["done"]["pid"])
                os.kill(killed[-1], signal.SIGKILL)
                time.sleep(3)
        answers = [each for client in running.result() for each in client]
        assert killed
        assert {answer.status_code for _, answer in answers} <= {200, 429, 500}
        for value, answer in answers:
            if answer.status_code == 200:
                assert answer.json()["done"]["value"] == value
            elif answer.status_code == 500:
                assert "has ended while it had this input" in answer.json()["detail"]
        within(LONG, lambda: server.metric("toprope_requests_ongoing") == 0)
        within(LONG, lambda: server.metric("toprope_stage_restarts_total") == len(killed))
        within(LONG, lambda: server.work("last").status_code == 200)
        assert server.memory() - before < 64 * 2**20
        children = server.children()
        running = pool.submit(overload, server, 16, 30)
        time.sleep(3)
        server.process.kill()
        for client in running.result():
            assert all(getattr(answer, "status_code", 0) in (200, 429) for _, answer in client[:-1])
            assert isinstance(client[-1][1], httpx.TransportError)
        _, left = psutil.wait_procs(children, 60)
        assert not left


def test_a_stage_that_dies_is_reported_and_started_again(tmp_path):
    with Server(tmp_path, "work") as server:
        calls = [
            lambda value=value: server.work(value, sleep=0.01, **({"die": True} if value == 5 else {}))
            for value in range(20)
        ]
        answers = together(calls)
        for value, answer in enumerate(answers):
            if answer.status_code == 200:
                assert answer.json()["done"]["value"] == value
            elif answer.status_code == 500:
                assert "has ended while it had this input" in answer.json()["detail"]
            else:
                assert answer.status_code == 429  # not accepted: the stage was being started again
        assert answers[5].status_code == 500
        within(LONG, lambda: server.work("again").status_code == 200)
        assert server.metric("toprope_stage_restarts_total") == 1


@pytest.mark.slow
def test_a_killed_instance_loses_nothing_of_the_others(tmp_path):
    with Server(tmp_path, "work", SERVE_INSTANCES="2") as server:
        pids = {answer.json()["done"]["pid"] for answer in together([lambda: server.work(0)] * 8)}
        assert len(pids) == 2
        with ThreadPoolExecutor(12) as pool:
            answers = [pool.submit(server.work, value, sleep=0.1) for value in range(24)]
            time.sleep(0.3)
            os.kill(min(pids), signal.SIGKILL)
            found = [each.result() for each in answers]
        assert {answer.status_code for answer in found} <= {200, 500}
        assert sum(answer.status_code == 200 for answer in found) >= 12
        assert all(a.json()["done"]["value"] == value for value, a in enumerate(found) if a.status_code == 200)

        def working():
            return {answer.json()["done"]["pid"] for answer in together([lambda: server.work(0, sleep=0.05)] * 8)}

        within(LONG, lambda: len(working()) == 2)  # and meanwhile the other one answers


@pytest.mark.slow
def test_a_graph_that_cannot_go_on_ends_the_server_with_an_error(tmp_path):
    with Server(tmp_path, "work", SERVE_RESTARTS="0") as server:
        answers = together([lambda value=value: server.work(value, sleep=0.2, die=value == 0) for value in range(6)])
        for answer in answers:  # reported, or refused: 429 while its end was not yet known, and 503 afterwards
            assert isinstance(answer, httpx.TransportError) or answer.status_code in (200, 429, 500, 503)
        assert any(getattr(answer, "status_code", 0) in (500, 503) for answer in answers)
        assert server.process.wait(60) == 1
        assert "the graph cannot go on" in server.said()


@pytest.mark.slow
def test_a_killed_server_leaves_no_process(tmp_path):
    with Server(tmp_path, "work") as server:
        children = server.children()
        assert children
        server.process.kill()
        _, left = psutil.wait_procs(children, 60)
        assert not left


# The end


def test_sigterm_answers_accepted_requests_and_refuses_new_ones(tmp_path):
    with Server(tmp_path, "work") as server, ThreadPoolExecutor(4) as pool:
        accepted = [pool.submit(server.work, value, sleep=1.5) for value in range(2)]
        within(LONG, lambda: server.metric("toprope_requests_ongoing") == 2)
        server.process.send_signal(signal.SIGTERM)
        within(LONG, lambda: httpx.get(f"{server.url}/readyz").status_code == 503)
        refused = server.work("new")
        assert refused.status_code == 503
        assert refused.headers["retry-after"]
        assert [each.result().json()["done"]["value"] for each in accepted] == [0, 1]
        assert server.process.wait(60) == 0
        assert "stopped" in server.said()
        assert "Traceback" not in server.said()


@pytest.mark.slow
def test_a_request_that_outlasts_the_end_is_not_waited_for_for_ever(tmp_path):
    with Server(tmp_path, "work", "--shutdown-timeout", "0.5") as server, ThreadPoolExecutor(1) as pool:
        pool.submit(server.work, 1, sleep=30)
        within(LONG, lambda: server.metric("toprope_requests_ongoing") == 1)
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(60) == 1
        assert "were not answered" in server.said()


@pytest.mark.slow
def test_a_service_on_a_simulated_card(tmp_path):
    before = (sys.executable, "-m", "toprope", "run", "--quiet", "--chip", "910B3")
    with Server(tmp_path, before=before) as server:
        assert server.post(json={"image": [[1, 2, 3]]}).json() == {"label": [12.0]}
        edge = 'source="FlowData",output="0",target="Model_fnode",input="0"'
        assert server.metric(f"toprope_edge_host_copies_total{{{edge}}}") == 0


# The command


def refused(capsys, *words):
    status = main(["serve", *words])
    said = capsys.readouterr()
    assert said.out == ""
    return status, said.err


@pytest.fixture
def own_path(monkeypatch):
    """The folder of a graph's file is on the module path of its process."""
    monkeypatch.setattr(sys, "path", [*sys.path])


@pytest.mark.usefixtures("own_path")
def test_a_function_of_the_file_may_make_the_graph(tmp_path, monkeypatch):
    class Graph:
        """A stand-in: a real graph needs a session."""

    monkeypatch.setattr("toprope.flow.FlowGraph", Graph)
    file = tmp_path / "made_graph.py"
    file.write_text("from toprope import flow\n\n\ndef make():\n    return flow.FlowGraph()\n")
    graph = load_graph(f"{file}:make")
    sys.modules.pop("made_graph")
    assert isinstance(graph, Graph)


@pytest.mark.usefixtures("own_path")
def test_targets_that_cannot_be_served(tmp_path, capsys):
    file = tmp_path / "some_graph.py"
    file.write_text("from toprope import flow\nother = 3\n")
    for words, text in (
        ([str(tmp_path / "none.py")], "there is no file"),
        (["graph"], "is no Python file"),
        ([str(file)], "some_graph.py has no graph"),
        ([f"{file}:other"], "other of some_graph.py is no FlowGraph"),
    ):
        status, said = refused(capsys, "--port", "0", *words)
        assert status in (2, 3), said
        assert text in said
        assert "do  " in said
    assert refused(capsys, str(file), "--max-body", "x")[0] == 2


@pytest.mark.usefixtures("own_path")
def test_the_start_of_a_service_has_a_limit_that_can_be_set(tmp_path, capsys):
    """It was 120 s, which no option changed."""
    file = tmp_path / "slow_start.py"
    file.write_text(
        "import time\nfrom toprope import flow as df\ndf.init({})\n"
        "@df.pyflow\nclass Slow:\n    def __init__(self): time.sleep(600)\n"
        "    @df.method()\n    def run(self, x): return x\n"
        "graph = df.FlowGraph([Slow.fnode().run(df.FlowData())])\n"
    )
    try:
        status, said = refused(capsys, str(file), "--port", "0", "--start-timeout", "1")
    finally:
        flow.finalize()
    assert status == 2
    assert "has not started within 1 s" in said
    assert "--start-timeout SECONDS" in said


@pytest.mark.usefixtures("own_path")
def test_a_port_that_is_taken_is_refused_before_a_model_is_loaded(tmp_path, capsys):
    file = tmp_path / "failing_graph.py"
    file.write_text("raise SystemExit('it was loaded')\n")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        status, said = refused(capsys, str(file), "--port", str(taken.getsockname()[1]))
    assert status == 2
    assert "cannot be listened on" in said


def test_answers_do_not_wait_for_an_acknowledgement():
    """asyncio left Nagle's algorithm on for a socket without a protocol: each answer waited 40 ms."""
    with bound("127.0.0.1", 0) as sock:
        assert sock.proto == socket.IPPROTO_TCP
