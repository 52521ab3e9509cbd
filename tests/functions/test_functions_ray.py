"""Functions on a Ray of two nodes on this machine, with two simulated cards each: masks 0,1 and 2,3.

Held: `functions.ray` as a whole.
"""

import contextlib
import importlib.util
import os
import re
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

if importlib.util.find_spec("ray") is None:
    pytest.skip("Ray is not installed", allow_module_level=True)

from ray.exceptions import RayActorError, RayError

from functions_world import ANY, FOREIGN, Thing, add, alive, ended, fail, opt, sleep, until
from toprope import functions as yr
from toprope.errors import EnvironmentProblem
from toprope.extras import advice
from toprope.functions.lifecycle import Stage
from toprope.functions.options import GroupOptions
from toprope.functions.ray.failures import exited
from toprope.functions.ray.scheduling import instance_groups

pytestmark = [pytest.mark.native, pytest.mark.process, pytest.mark.ray]

MASK = "ASCEND_RT_VISIBLE_DEVICES"
NODES = ("0,1", "2,3")
LATEST = 120
"""Seconds in which what Ray has to do is done. How soon is a matter of the machine, on which a process of Ray's has
taken 43 s to begin, and not of these tests."""
SITE = Path(yr.__file__).parents[1] / "compat" / "site"

PROGRAM = """
    import yr
    import torch
    import torch_npu
    import os

    @yr.instance
    class NPUInstance:
        def __init__(self):
            self.device = None

        def getEnv(self):
            ascend_device_id = os.getenv('ASCEND_RT_VISIBLE_DEVICES')
            return (f"ASCEND_RT_VISIBLE_DEVICES: {ascend_device_id}")

        def run(self):
            if torch.npu.is_available():
                device0 = torch.device("npu:0")
                print(f"user can see device: {device0}")

                tensor0 = torch.randn(3, 3).to(device0)

                # if request 1 NPU, the following code will raise error
                # device1 = torch.device("npu:1")
                # tensor1 = torch.randn(3, 3).to(device1)
                return f"Tensor device: {tensor0.device}, result: \\n {tensor0}"
            else:
                return "NPU is not available"


    def main():
        yr.init()

        npu_resource = {"NPU/.+/count": 1} # request 1 NPU of any type
        opt = yr.InvokeOptions()
        opt.custom_resources = npu_resource
        npu_instance = NPUInstance.options(opt).invoke()

        res = npu_instance.run.invoke()
        print(yr.get(res))

        yr.finalize()

    if __name__ == "__main__":
        main()
"""


def comes(holds):
    """Whether something comes to hold."""
    return until(holds, LATEST)


def ray_processes():
    """Ray's own processes that this one has started."""
    import psutil

    found = []
    for process in psutil.Process().children(recursive=True):
        try:
            if any(name in " ".join(process.cmdline()) for name in ("gcs_server", "raylet", "ray::")):
                found.append(process)
        except psutil.Error:
            pass
    return found


@pytest.fixture(scope="module")
def cluster():
    """The address of a Ray of two nodes."""
    from ray.cluster_utils import Cluster

    from toprope.functions.ray.cluster.startup import import_ray
    from toprope.functions.ray.nodes.local_node import begun_with, offer, read_auth

    import_ray()
    before = dict(os.environ)
    for name in [name for name in os.environ if name.startswith(FOREIGN)]:
        del os.environ[name]
    os.environ.update(TOPROPE_SIM="910B4x4", PYTHONPATH=str(SITE), RAY_AUTH_MODE="disabled", XDG_RUNTIME_DIR="/none")
    read_auth()  # a module before this one may have had a Ray that asks for a token

    def with_nodes(cluster):
        for rack, mask in enumerate(NODES):
            os.environ[MASK] = mask
            offered = offer(yr.Config(num_cpus=8, labels={"rack": str(rack)}, custom_resources={"ssd": 1}))
            with begun_with(offered):
                cluster.add_node(
                    num_cpus=offered.cpus, num_gpus=0, resources=dict(offered.resources), labels=dict(offered.labels),
                    object_store_memory=100 * 2**20, include_dashboard=False,
                )  # fmt: skip
        del os.environ[MASK]

    two = Cluster()
    try:
        for more in (2, 1, 0):
            try:
                with_nodes(two)
                break
            except Exception as error:  # Ray's own class for it
                if "timed out during startup" not in str(error) or not more:
                    raise
                two.shutdown()  # Ray gives a node 30 s to begin, which cannot be changed
                two = Cluster()
        yield two.address
    finally:
        two.shutdown()
        os.environ.clear()
        os.environ.update(before)
        read_auth()
    assert comes(lambda: not ray_processes()), ray_processes()


@pytest.fixture(scope="module")
def session(cluster):
    yr.init(yr.Config(server_address=cluster))
    try:
        yield cluster
    finally:
        yr.finalize()


@pytest.fixture
def backend(session):
    """A session; a test gives back what it takes. What one has left is no reason for the next to fail."""
    if not yr.is_initialized():
        yr.init(yr.Config(server_address=session))
    yield
    all_back, told = comes(lambda: free_cards() == 4), yr.resources()
    left = yr.list_instances()
    for each in left:
        yr.kill_instance(each["id"])
    assert all_back, (told, left)
    assert comes(lambda: not yr.list_instances()), yr.list_instances()


def free_cards():
    return sum(node["allocatable"]["NPU/910B4"] for node in yr.resources())


def test_without_ray_the_error_says_what_to_install(monkeypatch):
    from toprope.functions.ray.cluster.startup import import_ray

    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(EnvironmentProblem, match=re.escape(advice("cluster"))):
        import_ray()


def test_an_address_that_is_none_is_refused():
    for address in ("rays", "here", "http://a:1", "a:b"):
        with pytest.raises(ValueError, match="invalid server_address"):
            yr.init(yr.Config(server_address=address, deployment_config=SimpleNamespace(datamem=100)))


@pytest.mark.slow
def test_the_program_of_the_mission_runs_unchanged(cluster, tmp_path):
    (tmp_path / "program.py").write_text(textwrap.dedent(PROGRAM))
    command = [sys.executable, "-m", "toprope", "run", "--chip", "910B4", "--count", "4", "--quiet", "program.py"]
    done = subprocess.run(
        command, cwd=tmp_path, env={**os.environ, "TOPROPE_CLUSTER": cluster, "TOPROPE_SIM": ""}, timeout=2 * LATEST,
        capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("Tensor device: npu:0, result: \n tensor([["), done.stdout
    assert done.stdout.rstrip().endswith("device='npu:0')")
    assert "acl" not in done.stderr


@pytest.mark.soak
def test_four_instances_have_the_four_cards_of_both_nodes_and_the_fifth_is_told(backend):
    four = [Thing.options(opt(1)).invoke() for _ in range(4)]
    with ended(*four):
        masks = yr.get([each.env.invoke(MASK, "NPU-DEVICE-IDS") for each in four])
        assert sorted(masks) == [[number, number] for number in "0123"]
        assert yr.get([each.run.invoke() for each in four]) == [("npu:0", 1)] * 4
        assert comes(lambda: free_cards() == 0)
        begin = time.monotonic()
        fifth = Thing.options(opt(1, schedule_timeout_ms=1000)).invoke()
        late = Thing.options(opt(1, schedule_timeout_ms=1000 * LATEST)).invoke()
        with ended(late):
            with pytest.raises(yr.YRequestError, match="cannot be scheduled within 1000 ms") as caught:
                yr.get(fifth.pid.invoke())
            assert 0.9 < time.monotonic() - begin < 50  # before the limit of the other
            assert caught.value.code == 1002
            assert "\t2 unit with [card count: Not Enough]." in str(caught.value)
            (freed,) = yr.get(four[0].env.invoke(MASK))
            four[0].terminate()
            assert yr.get(late.env.invoke(MASK), LATEST) == [freed]


@pytest.mark.slow
def test_cards_of_a_request_are_on_one_node_and_memory_is_not_given_twice(backend, caplog):
    three = Thing.options(opt(3, schedule_timeout_ms=1500)).invoke()
    pair = Thing.options(opt(2)).invoke()
    asked = {"NPU/910B4/HBM": 20000, "NPU/910B4/latency": 1, "NPU/910B4/stream": 1}
    parts = [Thing.options(opt(custom_resources=asked)).invoke() for _ in range(2)]
    with ended(pair, *parts):
        (both,) = yr.get(pair.env.invoke(MASK))
        assert both in NODES
        assert yr.get(pair.run.invoke(1)) == ("npu:1", 2)
        masks = yr.get([each.env.invoke(MASK) for each in parts])
        assert len({mask for (mask,) in masks}) == 2  # 20000 MB twice are more than a card has
        with pytest.raises(yr.YRequestError, match="card count: Not Enough"):
            yr.get(three.pid.invoke())
    assert any("can never be met by the existing nodes" in record.getMessage() for record in caplog.records)


@pytest.mark.slow
def test_instances_are_listed_with_and_without_a_handle_and_end_by_their_ids(backend, cluster):
    """One that had been killed stayed on the list; one that waits for its card was on none."""
    from toprope.functions.ray.cluster.commands import listing_of
    from toprope.functions.ray.cluster.listing import listed

    named = Thing.options(opt(1, name="kept", namespace="here")).invoke()
    four = [Thing.options(opt(1)).invoke() for _ in range(3)]
    yr.get([each.pid.invoke() for each in (named, *four)])
    four.append(Thing.options(opt(1, schedule_timeout_ms=-1)).invoke())

    def told():
        return {each["id"]: each for each in yr.list_instances()}

    assert comes(lambda: sorted(each["state"] for each in told().values())
                 == ["runs"] * 4 + ["waits for resources"])  # fmt: skip
    assert {each["class"] for each in told().values()} == {"Thing"}
    assert told()[named.instance_id]["name"] == "kept"
    assert told()[four[0].instance_id]["handles"] == 1
    assert len(told()[four[0].instance_id]["cards"]["NPU"]) == 1
    lost = four[0].instance_id
    del four[0]
    assert comes(lambda: told()[lost]["handles"] == 0)
    import ray

    assert comes(lambda: {each.id: each.handles for _, each in listed(ray)}[lost] == 0)
    text = "\n".join(listing_of(*each) for each in listed(ray))
    assert re.search(
        rf"instance  {lost}: Thing, runs, of session \w+, 500 millicores, 500 MB, NPU \d.*no handle left", text
    )
    assert "instance  kept: Thing, runs" in text
    yr.kill_instance(lost)
    assert comes(lambda: lost not in told())
    os.kill(yr.get(four[0].pid.invoke()), signal.SIGKILL)
    assert comes(lambda: four[0].instance_id not in told())
    for each in (named, *four[1:]):
        each.terminate()
    assert comes(lambda: not told())


@pytest.mark.slow
def test_workers_search_for_modules_in_the_order_of_the_program(backend):
    """Ray puts each folder in front of those before it: site-packages came before the program's own modules."""

    @yr.invoke
    def folders():
        return sys.path

    places = {str(Path(yr.__file__).parents[2]), os.path.dirname(os.__file__)}  # others are put in front by Ray
    ours, theirs = (
        [each for each in dict.fromkeys(path) if each in places] for path in (sys.path, yr.get(folders.invoke()))
    )
    assert len(ours) == 2
    assert theirs == ours


@pytest.mark.slow
def test_the_port_of_a_node_is_no_ray(backend, cluster):
    """A real server of gRPC that does not know Ray's calls: Ray itself went on trying for minutes."""
    import ray

    from toprope.functions.ray.cluster.address_check import check_ray

    check_ray(cluster)
    node = ray.nodes()[0]
    begin = time.monotonic()
    with pytest.raises(EnvironmentProblem, match="is no Ray: it speaks gRPC, and does not know Ray's calls"):
        check_ray(f"{node['NodeManagerAddress']}:{node['NodeManagerPort']}")
    assert time.monotonic() - begin < 10  # 3 s on an idle machine


@pytest.mark.slow
@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
def test_another_user_cannot_connect_to_the_sockets_of_a_node(session):
    import ray

    node = ray._private.worker.global_worker.node
    code = f"""
import os, socket
os.setgroups([]); os.setgid(65534); os.setuid(65534)
for path in {[node.raylet_socket_name, node.plasma_store_socket_name]!r}:
    try:
        socket.socket(socket.AF_UNIX).connect(path.removeprefix("unix://"))
    except PermissionError:
        print("refused")
"""
    told = subprocess.run(
        [sys.executable, "-S", "-c", code], capture_output=True, text=True, check=True, cwd="/"
    ).stdout
    assert told == "refused\n" * 2


@pytest.mark.slow
def test_resource_groups_lie_on_nodes_as_their_strategy_says(backend):
    apart = yr.create_resource_group([{ANY: 1}, {ANY: 1}], "apart", "STRICT_SPREAD")
    apart.wait(LATEST)
    members = []
    for index in range(2):
        inside = yr.ResourceGroupOptions("apart", index)
        members.append(Thing.options(opt(1, cpu=300, memory=128, resource_group_options=inside)).invoke())
    with ended(*members):
        masks = yr.get([each.env.invoke(MASK) for each in members])
        assert len({mask in ("0", "1") for (mask,) in masks}) == 2
        table = yr.resource_group_table("apart")["apart"]
        assert table["state"] == "CREATED"
        assert len({bundle["node"] for bundle in table["bundles"]}) == 2
        with pytest.raises(yr.YRequestError, match="resource group name exists"):
            yr.create_resource_group([{"CPU": 300}], "apart")
        none = Thing.options(opt(resource_group_options=yr.ResourceGroupOptions("apart", 2))).invoke()
        with pytest.raises(yr.YRequestError, match="bundle index: 2") as caught:
            yr.get(none.pid.invoke())
        assert caught.value.code == 1001
    yr.remove_resource_group(apart)
    packed = yr.create_resource_group([{ANY: 2}, {ANY: 2}], "packed", "STRICT_PACK")
    with pytest.raises(yr.YRTimeoutError, match="do not fit together as STRICT_PACK"):
        packed.wait(1)
    yr.remove_resource_group("packed")


@pytest.mark.slow
def test_a_function_group_knows_its_ranks_and_cards_and_ends_together(backend):
    @yr.instance
    class Member:
        def context(self):
            told = yr.fcc.get_function_group_context()
            cards = [device.device_id for server in told.server_list for device in server.devices]
            return told.rank_id, told.world_size, told.device_name, cards, os.environ[MASK]

        def pid(self):
            return os.getpid()

    options = yr.FunctionGroupOptions(cpu=300, memory=128, resources={ANY: 1})
    options.scheduling_affinity_each_bundle_size = 2
    group = yr.fcc.create_function_group(Member, (), 4, options)
    told = yr.get(group.context.invoke())
    assert [each[:3] for each in told] == [(rank, 4, "NPU/910B4") for rank in range(4)]
    assert all(each[3] == told[0][3] and sorted(each[3]) == [0, 1, 2, 3] for each in told)
    assert [int(each[4]) for each in told] == told[0][3]
    pids = yr.get(group.pid.invoke())
    os.kill(pids[0], signal.SIGKILL)
    assert comes(lambda: not any(map(alive, pids)))
    with pytest.raises(yr.YRequestError, match="end together") as caught:
        yr.get(group.instances[1].pid.invoke())
    assert caught.value.code == 1011
    group.terminate()


@pytest.mark.parametrize(("answers", "code"), [([1, 2], 1011), ([1, RayActorError()], 1010)])
def test_a_group_whose_member_ends_before_it_was_looked_at_had_started(answers, code):
    def get(asked):
        for answer in asked:
            if isinstance(answer, RayActorError):
                raise answer

    ended = []
    members = [SimpleNamespace(id=name, is_over=False, options=SimpleNamespace(group_name="g")) for name in "ab"]
    instances = SimpleNamespace(
        has_ended=lambda member: member is members[0],
        why_ended=lambda id: exited(f"instance {id}", ""),
        fail=lambda member, error: ended.append(error.code),
    )
    ray = SimpleNamespace(wait=lambda asked, **_: (asked, []), get=get, exceptions=SimpleNamespace(RayError=RayError))
    world = SimpleNamespace(ray=ray, ask=lambda *_: None)
    of_session = instance_groups.Groups(world, None, instances)
    of_session._give_back = lambda group: None
    group = instance_groups._Group("g", members, GroupOptions(same_lifecycle=True), Stage.WAITING, answers=answers)
    group.placement = SimpleNamespace(wait=lambda timeout: True)
    of_session._groups["g"] = group
    assert not of_session._check(group)
    assert ended == [code, code]


@pytest.mark.slow
def test_a_group_that_does_not_fit_starts_none_of_its_members(backend):
    members = [Thing.options(opt(2, group_name="large")).invoke() for _ in range(3)]
    group = yr.Group("large", yr.GroupOptions(timeout=1))
    group.invoke()
    with pytest.raises(yr.YRequestError, match="group large failed to start") as caught:
        group.wait(LATEST)
    assert caught.value.code == 1010
    with pytest.raises(yr.YRequestError, match="group large failed to start"):
        yr.get(members[0].pid.invoke())
    assert free_cards() == 4


@pytest.mark.slow
def test_a_group_started_without_a_member_that_made_no_sense(backend):
    """It was never among the members, so that the others ran without it; its name could not be used again either."""
    for _ in range(2):
        good = Thing.options(opt(0, group_name="nonsense")).invoke()
        Thing.options(yr.InvokeOptions(group_name="nonsense", custom_resources={ANY: 1.5})).invoke()
        group = yr.Group("nonsense")
        group.invoke()
        with pytest.raises(yr.YRequestError, match="quantity >1 must be whole numbers") as caught:
            group.wait(LATEST)
        assert caught.value.code == 1010
        with pytest.raises(yr.YRequestError, match="group nonsense failed to start"):
            yr.get(good.pid.invoke(), LATEST)


@pytest.mark.slow
def test_a_call_of_a_member_before_its_group_started_was_an_attribute_error(backend):
    member = Thing.options(opt(0, group_name="early")).invoke()
    with pytest.raises(yr.YRRuntimeError, match=r"its group early waits until Group\.invoke starts it"):
        member.pid.invoke()
    group = yr.Group("early")
    group.invoke()
    group.wait(LATEST)
    assert yr.get(member.pid.invoke(), LATEST) > 0
    group.terminate()


@yr.instance
class Unmade:
    def __init__(self):
        raise ValueError("no")


@pytest.mark.slow
def test_who_waited_for_a_group_whose_member_raised_was_told_of_a_dead_actor(backend):
    """The reason is found within a quarter of a second, and who waited was told before."""
    good = Thing.options(opt(0, group_name="unmade")).invoke()
    Unmade.options(opt(0, group_name="unmade")).invoke()
    group = yr.Group("unmade")
    group.invoke()
    with pytest.raises(yr.YRequestError, match=r"group unmade failed to start: instance .*no") as caught:
        group.wait(LATEST)
    assert caught.value.code == 1010
    with pytest.raises(yr.YRequestError, match="group unmade failed to start"):
        yr.get(good.pid.invoke(), LATEST)


@yr.instance
class Parent:
    def __init__(self, other=None):
        self.other = other

    def add(self, value):
        return yr.get(self.other.add.invoke(value))

    def child(self):
        return Thing.invoke(7)

    def reference(self):
        return [yr.put("kept")]

    def total(self, values, named):
        return sum(values["deep"]) + named

    def function(self):
        return yr.get(add.invoke(1, add.invoke(2, 3)))


class Wrapped:
    """Holds a reference where nobody looks for one."""

    def __init__(self, ref):
        self.ref = ref


@pytest.mark.slow
def test_references_and_instances_travel_between_processes(backend):
    thing = Thing.invoke()
    parent = Parent.invoke(thing)
    with ended(thing, parent):
        assert yr.get(parent.add.invoke(add.invoke(2, 3))) == 5
        assert yr.get(parent.total.invoke({"deep": [2, 3, 4]}, named=thing.echo.invoke(5))) == 14
        assert yr.get(yr.get(thing.echo.invoke(Wrapped(yr.put(9)))).ref) == 9
        (ref,) = yr.get(parent.reference.invoke())
        assert isinstance(ref, yr.ObjectRef)
        assert yr.get(ref) == "kept"
        assert yr.get(yr.get(thing.echo.invoke([ref]))[0]) == "kept"
        assert yr.get(parent.function.invoke()) == 6
        for broken in (fail.invoke("first"), thing.fail.invoke("first")):
            with pytest.raises(ValueError, match="first"):
                yr.get(thing.echo.invoke(broken))
            with pytest.raises(ValueError, match="first"):
                yr.get(add.invoke(broken))
        child = yr.get(parent.child.invoke())
        parent.terminate()
        with ended(child):
            assert yr.get(child.add.invoke()) == 8  # it outlives who made it
        with pytest.raises(RuntimeError, match="this instance is terminated"):
            child.add.invoke()


@pytest.mark.slow
def test_arrays_are_read_where_they_lie_and_tensors_are_the_receivers_own(backend):
    import numpy
    import torch

    array, tensor = numpy.arange(100_000.0), torch.arange(100_000.0)
    thing = Thing.invoke()
    with ended(thing):
        kept = yr.put(array)
        first, second = yr.get(kept), yr.get(kept)
        assert not first.flags.writeable
        assert first.__array_interface__["data"][0] == second.__array_interface__["data"][0]
        assert (yr.get(thing.echo.invoke(kept)) == array).all()
        back = yr.get(thing.echo.invoke(yr.put(tensor)))
        assert torch.equal(back, tensor)
        back += 1
        assert isinstance(yr.get(thing.echo.invoke(torch.nn.Parameter(tensor))), torch.nn.Parameter)


@pytest.mark.slow
def test_cancelled_calls_say_so_and_functions_without_room_end_in_time(backend):
    running, waiting = sleep.invoke(60), add.invoke(sleep.invoke(60))
    assert yr.wait(running, timeout=1)[0] == []
    yr.cancel([running, waiting])
    for ref in (running, waiting):
        with pytest.raises(yr.CancelError, match="has been cancelled") as caught:
            yr.get(ref, LATEST)
        assert caught.value.code == 3003
    try:
        begin = time.monotonic()
        add.options(opt(custom_resources={"tape": 1}, schedule_timeout_ms=500))
        with pytest.raises(yr.YRequestError, match="tape: Not Found") as caught:
            yr.get(add.invoke(1))
        assert caught.value.code == 1002
        assert time.monotonic() - begin < LATEST  # and not the 300 s of get
        add.options(opt(1))
        assert yr.get(add.invoke(1, add.invoke(1, 1))) == 3
    finally:
        add.options(opt())


@pytest.mark.slow
def test_pairs_labels_and_the_end_of_ones_own(backend):
    yr.kv_set("key", b"value")
    with pytest.raises(yr.YRRuntimeError, match="the key key exists"):
        yr.kv_write("key", b"other", yr.ExistenceOpt.NX)
    assert yr.kv_get(["key", "none"], 0) == [b"value", None]
    assert yr.kv_del(["key", "none"]) == ["none"]
    nodes = {node["labels"]["rack"]: node["id"] for node in yr.resources()}
    there = yr.Affinity(
        yr.AffinityKind.RESOURCE, yr.AffinityType.REQUIRED,
        [yr.LabelOperator(yr.OperatorType.LABEL_IN, "rack", ["1"])],
    )  # fmt: skip
    one = Thing.options(opt(1, schedule_affinities=[there])).invoke()
    with ended(one):
        assert yr.get(one.env.invoke(MASK))[0] in ("2", "3")
        pid = yr.get(one.pid.invoke())
        with pytest.raises(yr.YRequestError) as caught:
            yr.get(one.leave.invoke())
        assert caught.value.code == 1007
        assert comes(lambda: not alive(pid))
    assert len(nodes) == 2


def in_memory():
    """Folders of this program in shared memory, and of graphs on other nodes; none of tests beside this one."""
    name = re.compile(rf"toprope-{os.getuid()}-({os.getpid()}-.*|[0-9a-f]{{16}})")
    return {each for each in os.listdir("/dev/shm") if name.fullmatch(each)}


@contextlib.contextmanager
def pipeline(folder, **options):
    """Three stages, two of them on two nodes: the graph and its input."""
    import flow_far
    from toprope import flow as df

    left = in_memory()
    with contextlib.chdir(folder):
        df.init({})
        data = df.FlowData()
        last = flow_far.described.fnode()(flow_far.Shifted.fnode(1).forward(flow_far.doubled.fnode()(data)))
        with df.FlowGraph([last], **options) as graph:
            yield graph, data
        df.finalize()
    assert comes(lambda: in_memory() <= left)


@pytest.mark.soak
def test_a_pipeline_runs_over_both_nodes(backend, tmp_path):
    import torch

    with pipeline(tmp_path) as (graph, data):
        sizes = [(13 if number == 7 else 30_000) if number % 2 else 5 for number in range(30)]
        for number, size in enumerate(sizes):
            assert graph.feed({data: torch.full((size,), float(number))}) == 0, graph.error
        assert graph.drain(LATEST)
        for number, size in enumerate(sizes):
            result = graph.fetch_result(timeout=1000 * LATEST)
            if size == 13:
                assert repr(result.error) == "ValueError('thirteen')"
                continue
            found = result.get()[0]
            assert torch.equal(torch.as_tensor(found["values"]), torch.full((size,), number * 2 + 1.0))
            assert found["big"] == bytes(100_000)
        edges = {(each.source, each.target): each for each in graph.metrics()}
        crossing = edges["doubled_fnode", "Shifted_fnode"]
        assert (crossing.messages, crossing.to_host, crossing.shared) == (30, 29, 0)
        book = graph._runner._hosts.book
        assert book["stage-0-0"].node != book["stage-1-0"].node


@pytest.mark.soak
def test_stages_on_other_nodes_hang_and_die(backend, tmp_path):
    """Their input fails alone, and another process stands in."""
    import torch

    with pipeline(tmp_path, deadline_ms=4000) as (graph, data):
        for number in (-1, 2, 3):
            assert graph.feed({data: torch.full((11,), float(number))}) == 0, graph.error
        results = [graph.fetch_result(timeout=1000 * LATEST) for _ in range(3)]
        assert (results[0].code, str(results[0].error)) == (
            545601, "stage Shifted_fnode has worked on input 1 for more than its deadline of 4000 ms",
        )  # fmt: skip
        assert [each.get()[0]["sum"] for each in results[1:]] == [55, 77]
        pids = graph._runner.pids()
        for name in ("doubled_fnode", "Shifted_fnode"):
            os.kill(pids[name], signal.SIGKILL)
            assert comes(lambda name=name: graph._runner.pids()[name] not in (0, pids[name]))
            assert graph.feed({data: torch.ones(11)}) == 0
            assert graph.fetch_result(timeout=1000 * LATEST).get()[0]["sum"] == 33


@pytest.mark.slow
def test_an_instance_without_a_handle_ends_where_the_session_says_so(session, tmp_path):
    """Its calls end first, and its hook runs."""

    @yr.instance
    class Hooked:
        def wait(self, folder):
            (Path(folder) / "begun").touch()
            while not (Path(folder) / "go").exists():
                time.sleep(0.05)
            self.folder = folder
            return "done"

        def __yr_shutdown__(self, seconds):
            (Path(self.folder) / "hook").touch()

    yr.finalize()  # the session of the tests before
    yr.init(yr.Config(server_address=session, free_unreferenced=True))
    try:
        kept, one = Thing.options(opt(name="kept", namespace="here")).invoke(), Hooked.options(opt(1)).invoke()
        id, call = one.instance_id, one.wait.invoke(str(tmp_path))
        assert comes((tmp_path / "begun").exists)
        assert yr.get(kept.pid.invoke())
        del kept, one
        time.sleep(1)
        assert id in [each["id"] for each in yr.list_instances()]  # it has a call
        (tmp_path / "go").touch()
        assert yr.get(call) == "done"
        assert comes(lambda: [each["name"] for each in yr.list_instances()] == ["kept"])
        assert comes((tmp_path / "hook").exists)
        assert comes(lambda: free_cards() == 4)
    finally:
        yr.finalize()


@pytest.mark.slow
def test_a_detached_instance_outlives_its_session_and_others_do_not(backend, session):
    options = opt(1, name="stays", namespace="here", custom_extensions={"lifecycle": "detached"})
    kept, other = Thing.options(options).invoke(5), Thing.invoke()
    pids = yr.get([kept.pid.invoke(), other.pid.invoke()])
    yr.finalize()
    assert comes(lambda: not alive(pids[1]))
    with pytest.raises(yr.YRRuntimeError, match="already finalized"):
        yr.put(1)
    yr.init(yr.Config(server_address=session))
    assert yr.list_named_instances(True) == [{"namespace": "here", "name": "stays"}]
    found = yr.get_instance("stays", "here")
    assert yr.get(found.pid.invoke()) == pids[0]
    assert yr.get(found.add.invoke()) == 6
    found.terminate()
    assert comes(lambda: not alive(pids[0]))
    with pytest.raises(RuntimeError, match="failed to get instance"):
        yr.get_instance("stays", "here", 0)
