"""Parts of functions on Ray (`functions.ray`) with stand-ins for Ray: errors, workers, the guard, limits, commands.

What needs a Ray that runs is in test_functions_ray.py, whose tests are slow.
"""

import asyncio
import contextlib
import gc
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from weakref import ref

import pytest

from toprope import functions as yr
from toprope.functions.deployment.start_options import Deployment
from toprope.functions.ray.cluster import startup
from toprope.functions.ray.failures import RaisedError, exited, translated
from toprope.functions.ray.functions import _SURE, _Late
from toprope.functions.ray.manager import Manager
from toprope.functions.ray.nodes.cluster_view import Seen
from toprope.functions.ray.nodes.local_node import Offer
from toprope.functions.ray.objects import RayObjects
from toprope.functions.ray.refs import Entry
from toprope.functions.ray.scheduling.scheduler import Asked
from toprope.functions.ray.worker import guard, process, task
from toprope.functions.ray.worker.process import Setup
from toprope.functions.scheduling.holders import Holder
from toprope.functions.scheduling.requests import CardRequest, Request

exceptions = pytest.importorskip("ray").exceptions
commands = pytest.importorskip("toprope.functions.ray.cluster.commands")

pytestmark = [pytest.mark.native, pytest.mark.process]

MASK = "ASCEND_RT_VISIBLE_DEVICES"
WHY = yr.YRRuntimeError("it was ended", 1007)


# Errors


def of_task(cause):
    return exceptions.RayTaskError("run", "the traceback", cause)


def translate(error, *, reason=None, instance="one", cancelled=False):
    return translated(error, lambda: reason, instance=instance, cancelled=cancelled, timeout=3)


@pytest.mark.parametrize(("error", "kind", "code", "text"), [
    (exceptions.GetTimeoutError(), yr.YRTimeoutError, 4005, "instance one had not answered within 3 s"),
    (exceptions.TaskCancelledError(), yr.CancelError, 3003, "the obj has been cancelled"),
    (exceptions.RayActorError(error_msg="gone"), yr.YRequestError, 1007, "instance one exited: gone"),
    (exceptions.WorkerCrashedError("crashed"), yr.YRequestError, 1007, "instance one exited: "),
    (exceptions.OutOfMemoryError("too much"), yr.YRequestError, 1007, "instance one exited: too much"),
    (exceptions.NodeDiedError("no node"), yr.YRequestError, 1007, "instance one exited: no node"),
    (exceptions.ActorUnschedulableError("no room"), yr.YRequestError, 1002, "cannot be scheduled: The actor"),
    (exceptions.ObjectStoreFullError("full"), yr.YRRuntimeError, 4202, "the object store is full"),
    (exceptions.RuntimeEnvSetupError("bad"), yr.YRRuntimeError, 2001, "the process cannot be set up"),
    (exceptions.RayError("other"), yr.YRRuntimeError, 4005, "failed to get object: other"),
    (of_task(exceptions.RayActorError(error_msg="gone")), yr.YRequestError, 1007, "instance one exited: gone"),
    (of_task(exceptions.TaskCancelledError()), yr.CancelError, 3003, "it was an argument of this call"),
    (of_task(of_task(RaisedError.of(yr.YRValueError("wrong", 1001)))), yr.YRValueError, 1001, "wrong"),
], ids=lambda value: type(value).__name__)  # fmt: skip
def test_each_error_of_ray_has_its_class_code_and_text(error, kind, code, text):
    found = translate(error)
    assert type(found) is kind
    assert found.code == code
    assert text in str(found)


def test_the_known_reason_of_an_end_goes_before_what_ray_says():
    for error in (exceptions.RayActorError(), of_task(exceptions.WorkerCrashedError()), exceptions.RayError()):
        assert translate(error, reason=WHY) is WHY
    assert isinstance(translate(exceptions.RayActorError(), reason=WHY, cancelled=True), yr.CancelError)


def test_what_the_user_raised_is_found_through_all_tasks_that_it_passed():
    found = translate(of_task(of_task(RaisedError.of(KeyError("mine")))))
    assert isinstance(found, KeyError)
    assert isinstance(found, yr.YRInvokeError)
    assert found.origin_error().args == ("mine",)
    unpickled = translate(of_task(ZeroDivisionError("raised where Ray read the arguments")))
    assert isinstance(unpickled, ZeroDivisionError)
    assert "the traceback" in str(unpickled)
    other = ValueError("no error of Ray")
    assert translate(other) is other


@pytest.mark.parametrize(("text", "how"), [
    ("a\nconnection error code 2", "its process was killed (by SIGKILL or another signal, Ray does not tell which)"),
    ("a\n Worker exit type: SYSTEM_ERROR", "Worker exit type: SYSTEM_ERROR"), ("a\nb", "a"),
    ("", "its process is gone"),
])  # fmt: skip
def test_how_a_process_ended_is_said_as_far_as_ray_tells(text, how):
    assert exited("the worker of a function", text).message == f"the worker of a function exited: {how}"


def test_an_error_that_was_caught_keeps_no_frame_and_no_object_alive():
    class Kept:
        pass

    def refuse(*_, timeout):
        raise exceptions.RayError

    def catch():
        kept = Kept()
        with contextlib.suppress(ValueError):
            RayObjects._one(session, Entry("of Ray"), None, -1, False)
        return ref(kept)

    session = SimpleNamespace(ray=SimpleNamespace(exceptions=exceptions, get=refuse), error_of=lambda *_: ValueError())
    gc.disable()
    try:
        assert catch()() is None
    finally:
        gc.enable()


# Workers


@pytest.fixture
def machine(monkeypatch):
    """A worker that Ray has given NPUs 4 and 5; what it sets goes with the test."""
    variables = {"PATH": os.environ["PATH"]}
    monkeypatch.setattr(os, "environ", variables)
    monkeypatch.setattr(sys, "path", [*sys.path])
    world = SimpleNamespace(cards={"NPU": (4, 5), "GPU": ()}, node="", variables=variables)
    monkeypatch.setattr(process, "granted_cards", lambda: world.cards)
    monkeypatch.setattr(process, "_node_mask", lambda name: world.node)
    return world


def test_a_worker_sees_the_cards_that_ray_has_given_it(machine):
    first, times = sys.path[0], sys.path.count(sys.path[0])
    process.prepare(Setup({"A": "b"}, "", ("/of/the/program", first)))
    names = ("A", MASK, "NPU-DEVICE-IDS", "CUDA_VISIBLE_DEVICES", "GPU-DEVICE-IDS")
    assert [machine.variables.get(name) for name in names] == ["b", "4,5", "4,5", None, None]
    assert sys.path[0] == "/of/the/program"
    assert sys.path.count(first) == times


def test_a_worker_without_cards_has_the_mask_of_its_node_but_for_an_older_rays(machine):
    machine.cards = {"NPU": (), "GPU": ()}
    machine.variables |= {MASK: "", "CUDA_VISIBLE_DEVICES": "0,1"}
    process.prepare(Setup())
    assert MASK not in machine.variables
    assert machine.variables["CUDA_VISIBLE_DEVICES"] == "0,1"


@pytest.mark.parametrize(("variable", "mask"), [
    (f"YR_NOSET_{MASK}", None), (f"RAY_EXPERIMENTAL_NOSET_{MASK}", "0,1,2,3,4,5"),
])  # fmt: skip
def test_a_worker_keeps_its_mask_or_has_none_where_that_is_asked_for(machine, variable, mask):
    machine.variables |= {MASK: "0,1,2,3,4,5", variable: "1"}
    process.prepare(Setup())
    assert machine.variables.get(MASK) == mask
    assert machine.variables["NPU-DEVICE-IDS"] == "4,5"


def test_cards_that_the_node_does_not_have_are_refused(machine):
    machine.node = "4, 6"
    with pytest.raises(
        yr.YRRuntimeError, match=r"cards 4,5 cannot be shown to a process of a node with .*=4,6"
    ) as error:
        process.prepare(Setup())
    assert error.value.code == 1006


def test_numbers_of_cards_rise_and_other_names_are_sorted():
    assert process._sorted_ids(["10", "9"]) == (9, 10)
    assert process._sorted_ids(["GPU-b", "GPU-a"]) == ("GPU-a", "GPU-b")


def test_results_are_what_the_caller_expects():
    async def later(value):
        await asyncio.sleep(0)
        return value

    async def items():
        yield 1
        yield 2

    assert process.result_of(later(3), 1) == 3
    assert process.result_of(items(), 2) == (1, 2)
    assert process.result_of([1, 2], 2) == (1, 2)
    assert process.result_of("nothing", 0) is None
    with pytest.raises(ValueError, match=r"not enough values to unpack \(expected 3, got 2\)"):
        process.result_of([1, 2], 3)


def test_at_sigterm_the_hook_comes_first_then_what_ray_does():
    done, before = [], signal.getsignal(signal.SIGTERM)
    try:
        signal.signal(signal.SIGTERM, lambda *_: done.append("Ray"))
        process.on_terminate(lambda: done.append("hook"))
        with pytest.raises(SystemExit) as end:
            signal.raise_signal(signal.SIGTERM)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert done == ["hook", "Ray"]
    assert end.value.code == 128 + signal.SIGTERM


def test_a_function_is_loaded_once_and_its_error_travels(monkeypatch):
    told = []
    manager = SimpleNamespace(active=SimpleNamespace(remote=told.append))
    monkeypatch.setattr(task, "attached", lambda: SimpleNamespace(manager=manager))
    monkeypatch.setattr(task, "_reporter", task._ActivityReporter())
    monkeypatch.setattr(task, "_loaded", {"key": lambda first, second=0: [first, 10 // second]})
    assert task.run(("key", [], "pool", 2, (1,), {"second": 5})) == (1, 2)
    with pytest.raises(RaisedError) as raised:
        task.run(("key", [], "pool", 1, (1,), {}))
    assert isinstance(raised.value.error(), ZeroDivisionError)
    items = task.stream(("key", [], "pool", (1,), {"second": 2}))
    assert next(items) == 1
    assert until(lambda: "pool" in told)  # while a call runs
    assert list(items) == [5]
    assert task._reporter._running == {}


# The guard


def marked(mark):
    found = []
    for each in Path("/proc").iterdir():
        try:
            if each.name.isdecimal() and mark in (each / "environ").read_bytes().split(b"\0"):
                found.append(int(each.name))
        except OSError:
            continue
    return found


def test_what_a_process_leaves_is_killed_in_whatever_session_it_is():
    mark = f"{process.MARK}=test-{os.getpid()}"
    name, _, value = mark.partition("=")
    program = f"env -u {name} sleep 600 & echo $!; sleep 600 & setsid sleep 600 & (setsid sh -c 'sleep 600' &) ; wait"
    parent = subprocess.Popen(
        ["sh", "-c", program], env=os.environ | {name: value}, start_new_session=True, stdout=subprocess.PIPE, text=True
    )
    plain = Path("/proc") / parent.stdout.readline().strip()  # in the parent's group, without its mark
    try:
        assert until(lambda: len(marked(mark.encode())) >= 4 and b"sleep" in (plain / "cmdline").read_bytes())
        subprocess.run([sys.executable, "-I", "-S", guard.__file__, str(parent.pid), mark], check=True, timeout=60)
        time.sleep(0.2)
        assert parent.poll() is None  # it waits for the end
        parent.kill()
        parent.wait(10)
        assert until(lambda: not marked(mark.encode()) and not plain.exists())
    finally:
        parent.stdout.close()
        for pid in marked(mark.encode()):
            os.kill(pid, signal.SIGKILL)


def until(holds):
    end = time.monotonic() + 30
    while time.monotonic() < end:
        if holds():
            return True
        time.sleep(0.02)
    return False


# Time limits


def world(idle=None, shortage=("1 unit with [card count: Not Enough].", 1002), done=False):
    """A session on Ray: what it was asked for later, and what it cancelled."""
    found = SimpleNamespace(later=[], cancelled=[], idle=idle)
    found.clock = SimpleNamespace(after=lambda seconds, action: found.later.append(seconds))
    found.is_done = lambda entry: done
    found.ask = lambda what, pool: found.idle if what is Manager.idle_for else None
    found.ray = SimpleNamespace(cancel=lambda ref, force: found.cancelled.append(ref))
    found.placing = SimpleNamespace(shortage=lambda request, options: shortage)
    return found


@pytest.mark.parametrize(("facts", "may_begin", "later"), [
    ({"idle": 0.5}, False, [1 + _SURE - 0.5]), ({}, True, [0.5]), ({"shortage": ("There is room.", 1002)}, False, [1]),
    ({"done": True}, False, []), ({}, False, None), ({"idle": 60.0}, True, None),
])  # fmt: skip
def test_a_call_is_late_only_where_no_worker_works_comes_or_has_room(facts, may_begin, later):
    backend, entry = world(**facts), Entry("its reference")
    pool = SimpleNamespace(name="pool", request=None, options=None, asked=SimpleNamespace(may_begin=may_begin))
    _Late(backend, backend.placing, pool, ref(entry), 1000)()
    assert backend.later == (later or [])
    if later is None:
        assert entry.error.code == 1002
        assert "cannot be scheduled within 1000 ms" in str(entry.error)
        assert backend.cancelled == ["its reference"]
    else:
        assert entry.error is None
        assert backend.cancelled == []


def node(used):
    total = {"CPU": 8.0, "NPU": 2.0, "memory": 2.0**34}
    return Seen("n1", "1.2.3.4", total, total | {"NPU": 2.0 - used})


@pytest.mark.parametrize(("used", "before", "bundles", "may"), [
    (1, 0, None, True), (2, 0, None, False), (1, 1, None, False), (1, 3, None, True), (0, 0, ["_group_0_ab"], False),
])  # fmt: skip
def test_a_request_that_had_room_may_begin_until_rays_own_limit(used, before, bundles, may):
    """One that can never be met, three cards on a node of two, keeps nothing from others."""
    one = Request(500, 500, (CardRequest("NPU", ".+", count=1),))
    earlier = [Request(500, 500, (CardRequest("NPU", ".+", count=before),))] if before else []
    manager = SimpleNamespace(view=SimpleNamespace(remote=lambda: [node(used)]))
    backend = SimpleNamespace(manager=manager, registration=60.0, ray=SimpleNamespace(get=lambda ref: ref))
    asked = Asked(backend, one, None, bundles, earlier)
    assert asked.may_begin is may
    backend.registration = 0.0
    assert not asked.may_begin


# Commands


def test_a_node_has_the_variables_of_its_cards_and_outlives_the_run(monkeypatch):
    monkeypatch.setattr(commands, "has_token", lambda: True)
    for name, value in {"TOPROPE_TRACE": "t", "TOPROPE_RUN_DIR": "/run", "PYTHONPATH": "/mine"}.items():
        monkeypatch.setenv(name, value)
    found = commands._environment(Offer(8, variables={MASK: "0,1"}), Deployment(sim="910B4x2", cards="/cards"))
    site, *rest = found["PYTHONPATH"].split(os.pathsep)
    assert (Path(site) / "sitecustomize.py").exists()
    assert rest == ["/mine"]
    names = (MASK, "RAY_AUTH_MODE", "TOPROPE_DEVICE", "TOPROPE_RUN_DIR", "TOPROPE_TRACE")
    assert [found.get(name) for name in names] == ["0,1", "token", "npu", "/cards", None]
    real = commands._environment(Offer(8), Deployment())
    assert real["PYTHONPATH"] == "/mine"
    assert real["TOPROPE_RUN_DIR"] == "/run"


def test_the_address_of_a_start_is_the_one_that_ray_prints_and_of_a_join_the_heads(monkeypatch):
    said = []
    monkeypatch.setattr(commands, "keep_token", lambda: None)
    monkeypatch.setattr(commands, "offer", lambda deployment: Offer(8))
    monkeypatch.setattr(commands, "_run", lambda words, *_: said.append(words) or "ray.init(address='1.2.3.4:6379')")
    assert commands.start(Deployment(cpu=1000)) == Deployment(cpu=1000, address="1.2.3.4:6379")
    assert commands.join("http://1.2.3.4:6379/,more", Deployment()).address == "1.2.3.4:6379"
    assert said[0][0] == "--head"
    assert said[1] == ["--address=1.2.3.4:6379"]


def test_an_instance_is_one_line():
    holder = Holder("i-1", "Thing", "runs", "0123456789", 12, 500, 400, {"NPU": (0, 1)}, handles=0)
    assert commands.listing_of("01", holder) == (
        "  instance  i-1: Thing, runs, of session 01, 500 millicores, 400 MB, NPU 0, 1, process 12 on node 01234567, "
        "no handle left"
    )
    assert commands.listing_of("", Holder("i-2", state="waits for resources")) == (
        "  instance  i-2: unknown class, waits for resources, its session has ended"
    )


@pytest.mark.parametrize(("address", "variable", "began", "found"), [
    ("ray", "", "", ("", False)), ("ray", "", "1.2.3.4:1", ("1.2.3.4:1", True)), ("auto", "", "", ("auto", False)),
    ("ray", "5.6.7.8:1", "1.2.3.4:1", ("5.6.7.8:1", False)), ("ray:5.6.7.8:1", "", "", ("5.6.7.8:1", False)),
    ("ray://5.6.7.8:1", "", "", ("ray://5.6.7.8:1", False)), ("1.2.3.4:1", "", "1.2.3.4:1", ("1.2.3.4:1", True)),
])  # fmt: skip
def test_the_ray_of_an_address(monkeypatch, address, variable, began, found):
    from toprope.functions.deployment import state_file

    monkeypatch.setenv("RAY_ADDRESS", variable)
    monkeypatch.setattr(state_file, "read", lambda: Deployment(address=began) if began else None)
    assert startup._ray_to_join(address) == found
    assert startup._is_endpoint(found[0]) is found[0].endswith(":1")


# Tensors


def test_a_tensor_arrives_as_it_was():
    torch = pytest.importorskip("torch")
    from toprope.functions.ray.tensors import _made
    from toprope.functions.transport.serialization import _reduce_tensor

    for tensor in (torch.arange(6.0).reshape(2, 3), torch.nn.Parameter(torch.ones(2)), torch.empty(0, 3)):
        again = _made(_reduce_tensor(tensor))
        assert type(again) is type(tensor)
        assert again.requires_grad is tensor.requires_grad
        assert torch.equal(again, tensor)
