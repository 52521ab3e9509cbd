"""The manager of a session on Ray, and handles to its instances; without Ray."""

from types import SimpleNamespace

import pytest

from toprope import functions as yr
from toprope.functions.handles import handles
from toprope.functions.ray import manager as module
from toprope.functions.ray.instance_record import Record
from toprope.functions.ray.instances import Instances
from toprope.functions.ray.manager import Manager, Placed
from toprope.functions.ray.nodes.cluster_view import Seen

NODE = Seen("n1", "1.2.3.4", {"CPU": 8.0, "NPU": 2.0, "memory": 2.0**34}, {"CPU": 8.0, "NPU": 2.0, "memory": 2.0**34})


@pytest.fixture
def living(monkeypatch):
    """The names of the actors that Ray has."""
    found = {"session-01000000"}
    monkeypatch.setattr(module, "living_names", lambda: found)
    monkeypatch.setattr(module, "seen_nodes", lambda: [NODE])
    return found


def placed(pid, cards=()):
    return Placed("n1", "1.2.3.4", pid, "NPU" if cards else "", cards, ("red",), of="Thing", cpu=500, memory=500,
                  amounts={"CPU": 0.5, "NPU": float(len(cards))})  # fmt: skip


def test_an_instance_that_was_killed_stayed_on_the_list_and_one_that_waits_was_on_none(living):
    manager = Manager()
    for id in ("runs", "starts", "waits", "killed", "ended"):
        manager.ask_for(id, "Thing")
        living.add(id)
    for pid, id in enumerate(("runs", "starts", "killed", "ended"), 11):
        manager.place(id, placed(pid))
    for id in ("runs", "killed", "ended"):
        manager.made(id)
    manager.name("runs", "here", "kept", b"")
    manager.fail("ended", b"why")
    living.remove("killed")
    manager.handles("runs", 0)
    told = {each.id: (each.state, each.of, each.pid, each.cpu, each.name, each.handles) for each in manager.holders()}
    assert told == {
        "runs": ("runs", "Thing", 11, 500, "kept", 0),
        "starts": ("its constructor runs", "Thing", 12, 500, "", None),
        "waits": ("waits for resources", "Thing", 0, 0, "", None),
    }
    manager.handles("runs", None)
    assert [each.handles for each in manager.holders()] == [None] * 3
    assert manager.neighbours() == {"n1": [("red",), ("red",)]}


def test_a_node_that_has_not_said_yet_what_it_gave_out_seemed_free(living):
    manager = Manager()
    assert manager.view()[0].free["NPU"] == 2
    living.add("one")
    manager.place("one", placed(11, (0, 1)))
    assert (manager.view()[0].free["NPU"], manager.view()[0].free["CPU"]) == (0, 7.5)
    living.remove("one")
    assert manager.view()[0].free["NPU"] == 2


@pytest.fixture
def driver():
    """The instances of a program, what it has told the manager, and a way to make an instance with a handle."""
    told = []
    backend = SimpleNamespace(
        config=yr.Config(free_unreferenced=True),
        tell=lambda what, *arguments: told.append((what.__name__, *arguments)),
    )
    instances = Instances(backend)

    def make(id, **options):
        handle = SimpleNamespace(run=None, stream=SimpleNamespace(options=lambda **keywords: None))
        record = Record(id=id, options=yr.InvokeOptions(**options), is_ours=True)
        record.granted()
        record.hold(handle)
        instances._records[id] = record
        handles.add(id, 1)
        return record

    yield instances, told, make
    for id in ("one", "kept", "sent"):
        handles.forget(id)


def test_an_instance_without_a_handle_is_left_to_ray_which_ends_it_after_its_calls(driver):
    instances, told, make = driver
    record = make("one")
    handles.add("one", 1)
    handles.add("one", -1)
    instances.unreferenced("one")
    assert record.handle is not None  # there is another
    handles.add("one", -1)
    instances.unreferenced("one")
    assert (record.handle, record.run, record.is_over, told) == (None, None, True, [])
    instances.unreferenced("one")  # a second time: nothing


@pytest.mark.parametrize("options", [
    {"name": "kept"}, {"group_name": "two"}, {"custom_extensions": {"lifecycle": "detached"}},
])  # fmt: skip
def test_an_instance_that_others_can_find_is_kept_and_said_to_have_no_handle(driver, options):
    instances, told, make = driver
    record = make("kept", **options)
    handles.add("kept", -1)
    instances.unreferenced("kept")
    assert record.handle is not None
    assert told == [("handles", "kept", 0)]


def test_an_instance_whose_handle_was_sent_is_kept(driver):
    instances, told, make = driver
    record = make("sent")
    handles.sent("sent")
    handles.add("sent", -1)
    instances.unreferenced("sent")
    assert record.handle is not None
    assert told == []
