"""Resource groups on processes of this machine, with two simulated cards (`local.scheduling.resource_groups`)."""

import os
import pickle
import time

import pytest

from functions_session import free, session, within
from toprope import functions as yr

pytestmark = [pytest.mark.native, pytest.mark.process]

CARD = {"NPU/.+/count": 1}


@yr.instance
class Seer:
    def cards(self):
        return os.getenv("ASCEND_RT_VISIBLE_DEVICES")

    def group(self):
        made = yr.create_resource_group([{}], "made-inside")
        made.wait(10)
        return made


@yr.invoke
def cards():
    return os.getenv("ASCEND_RT_VISIBLE_DEVICES")


@yr.invoke
def sleep_long():
    import time

    time.sleep(60)


@pytest.fixture(scope="module", autouse=True)
def running():
    with session():
        yield


@pytest.fixture(autouse=True)
def nothing_is_held(running):
    yield
    within(60, lambda: free() == 2)


def using(name, index=-1, **options):
    options.setdefault("cpu", 300)
    options.setdefault("memory", 128)
    return yr.InvokeOptions(resource_group_options=yr.ResourceGroupOptions(name, index), **options)


@pytest.mark.slow
def test_instances_get_the_cards_of_their_bundle_and_give_them_back():
    group = yr.create_resource_group([CARD, {"CPU": 600, "Memory": 256, **CARD}], "pair")
    group.wait(10)
    assert (group.bundle_count, group.resource_group_name) == (2, "pair")
    assert group.bundle_specs == [CARD, {"CPU": 600, "Memory": 256, **CARD}]
    assert free() == 0
    second = Seer.options(using("pair", 1, custom_resources=CARD)).invoke()
    first = Seer.options(using("pair", custom_resources=CARD)).invoke()
    assert yr.get([second.cards.invoke(), first.cards.invoke()]) == ["1", "0"]
    second.terminate()
    again = Seer.options(using("pair", custom_resources=CARD)).invoke()
    assert yr.get(again.cards.invoke()) == "1"
    yr.remove_resource_group(group)


def test_a_bundle_is_all_that_its_instances_have():
    group = yr.create_resource_group([{"CPU": 300, "Memory": 128}])
    late = using(group.resource_group_name, custom_resources=CARD, schedule_timeout_ms=100)
    with pytest.raises(yr.YRequestError, match="Card Type Not Found") as error:
        yr.get(Seer.options(late).invoke().cards.invoke())
    assert error.value.code == 1002
    large = using(group.resource_group_name, cpu=500, schedule_timeout_ms=100)
    with pytest.raises(yr.YRequestError, match="CPU: Not Enough"):
        yr.get(Seer.options(large).invoke().cards.invoke())
    yr.remove_resource_group(group.resource_group_name)


@pytest.mark.slow
def test_functions_use_bundles_too_and_end_with_them():
    group = yr.create_resource_group([CARD], "calls")
    f = cards.options(using("calls", custom_resources=CARD, retry_times=3))
    assert yr.get(f.invoke()) == "0"
    running = sleep_long.options(using("calls", custom_resources=CARD, retry_times=3)).invoke()
    within(60, lambda: free() == 1)
    with pytest.raises(yr.YRTimeoutError):
        yr.get(running, 0.5)
    yr.remove_resource_group(group)
    with pytest.raises(RuntimeError, match="resource group calls was removed"):
        yr.get(running, 60)
    with pytest.raises(yr.YRequestError, match="there is no resource group calls"):
        yr.get(f.invoke(), 60)
    within(60, lambda: free() == 2)
    # a group of the same name is another group
    yr.create_resource_group([CARD], "calls")
    assert yr.get(f.invoke()) == "0"
    yr.remove_resource_group("calls")


def test_instances_end_with_their_group_and_those_that_wait_for_it_too():
    group = yr.create_resource_group([CARD], "ends")
    holder = Seer.options(using("ends", 0, custom_resources=CARD)).invoke()
    waiting = Seer.options(using("ends", custom_resources=CARD, schedule_timeout_ms=-1)).invoke()
    assert yr.get(holder.cards.invoke()) == "0"
    result = waiting.cards.invoke()
    yr.remove_resource_group(group)
    for ref in (result, holder.cards.invoke()):
        with pytest.raises(RuntimeError, match="resource group ends was removed"):
            yr.get(ref, 60)
    with pytest.raises(RuntimeError, match="there is no resource group ends"):
        yr.remove_resource_group(group)


@pytest.mark.parametrize("was_ready", [True, False])
def test_waiting_for_a_group_that_was_removed_is_an_error(was_ready):
    """It returned at once where the group had been there before."""
    bundles = [{"CPU": 500}] if was_ready else [{"CPU": 10**8}]
    group = yr.create_resource_group(bundles, "removed")
    if was_ready:
        group.wait(10)
    yr.remove_resource_group(group)
    for _ in range(2):
        with pytest.raises(yr.YRRuntimeError, match="resource group removed was removed") as caught:
            group.wait(10)
        assert caught.value.code == 1007
    other = yr.create_resource_group([{"CPU": 10**8}], "removed")
    with pytest.raises(yr.YRRuntimeError, match="resource group removed was removed"):
        group.wait(10)
    yr.remove_resource_group(other)


def test_a_running_call_of_a_removed_group_says_that_the_group_was_removed(tmp_path):
    """It said only that the process had ended, with exit status 0."""

    @yr.instance
    class Busy:
        def run(self):
            (tmp_path / "begun").touch()
            time.sleep(60)

    yr.create_resource_group([{"CPU": 500, "Memory": 500}], "busy")
    options = yr.InvokeOptions(resource_group_options=yr.ResourceGroupOptions("busy"))
    options.custom_extensions = {"GRACEFUL_SHUTDOWN_TIME": "0"}
    busy = Busy.options(options).invoke()
    running, behind = busy.run.invoke(), busy.run.invoke()
    within(30, (tmp_path / "begun").exists)
    yr.remove_resource_group("busy")
    for call in (running, behind):
        with pytest.raises(yr.YRequestError, match=r"exited: .* \(resource group busy was removed\)"):
            yr.get(call, 60)


def test_two_bundles_on_two_nodes_never_are_on_one():
    group = yr.create_resource_group([{}, {}], "apart", "STRICT_SPREAD")
    with pytest.raises(RuntimeError, match="2 bundles do not fit together as STRICT_SPREAD") as error:
        group.wait(0.2)
    assert isinstance(error.value, TimeoutError)
    assert yr.resource_group_table("apart")["apart"]["state"] == "PENDING"
    # what waits for ever holds nobody up
    assert yr.get(cards.options(yr.InvokeOptions(custom_resources=CARD)).invoke(), 60) == "0"
    yr.remove_resource_group(group)
    with pytest.raises(RuntimeError, match="resource group apart was removed"):
        group.wait(5)


def test_a_group_waits_until_others_have_given_back():
    holder = Seer.options(yr.InvokeOptions(custom_resources=CARD)).invoke()
    assert yr.get(holder.cards.invoke()) == "0"
    group = yr.create_resource_group([CARD, CARD], "later", "STRICT_PACK")
    with pytest.raises(yr.YRTimeoutError):
        group.wait(0)
    assert free() == 1
    holder.terminate()
    group.wait(10)
    assert free() == 0
    assert yr.resource_group_table("later")["later"]["bundles"][1]["cards"] == {"NPU": [1]}
    yr.remove_resource_group(group)


def test_a_share_of_a_card_is_handed_on_as_that_share():
    half = {"NPU/.+/count": 0.5}
    group = yr.create_resource_group([half], "half")
    instance = Seer.options(using("half", custom_resources=half)).invoke()
    assert yr.get(instance.cards.invoke()) == "0"
    more = using("half", custom_resources={"NPU/.+/count": 0.1}, schedule_timeout_ms=100)
    with pytest.raises(yr.YRequestError, match="card count: Not Enough"):
        yr.get(Seer.options(more).invoke().cards.invoke())
    other = Seer.options(yr.InvokeOptions(custom_resources=half)).invoke()
    assert yr.get(other.cards.invoke()) == "0"
    other.terminate()
    yr.remove_resource_group(group)


def test_what_cannot_be_is_refused():
    group = yr.create_resource_group([{}], "one")
    with pytest.raises(yr.YRequestError, match="resource group name exists") as error:
        yr.create_resource_group([{}], "one")
    assert error.value.code == 1001
    with pytest.raises(ValueError, match="invalid timeout, actual: -2"):
        group.wait(-2)
    for index in (-2, 1):
        with pytest.raises(yr.YRequestError, match="range between -1 and 0") as error:
            yr.get(Seer.options(using("one", index)).invoke().cards.invoke())
        assert error.value.code == 1001
    with pytest.raises(yr.YRequestError, match="there is no resource group unheard"):
        yr.get(Seer.options(using("unheard")).invoke().cards.invoke())
    with pytest.raises(TypeError, match="invalid resource group type"):
        yr.remove_resource_group(3)
    with pytest.raises(RuntimeError, match="there is no resource group unheard"):
        yr.resource_group_table("unheard")
    yr.remove_resource_group("one")


def test_a_handle_travels_and_instances_make_groups_too():
    maker = Seer.invoke()
    group = yr.get(maker.group.invoke())
    group.wait(5)
    assert yr.resource_group_table()[group.resource_group_name]["state"] == "CREATED"
    assert repr(group) == "<resource group made-inside of 1 bundles>"
    yr.remove_resource_group(group)
    maker.terminate()
    with pytest.raises(Exception, match=r"."):
        pickle.dumps(group)  # a reference is for its session alone


def test_where_this_is():
    (node,) = yr.resources()
    assert yr.get_node_id() == node["id"] == node["labels"]["NODE_ID"]
    assert yr.get_node_ip_address() == node["labels"]["HOST_IP"]
    assert yr.get_namespace() == "yr_defalut_namespace"


def test_pairs_with_options():
    only_new = yr.SetParam(existence=yr.ExistenceOpt.NX)
    yr.kv_write_with_param("a", b"12345", only_new)
    with pytest.raises(RuntimeError, match="the key a exists") as error:
        yr.kv_set("a", b"", only_new)
    assert error.value.code == 4206
    with pytest.raises(RuntimeError, match="the key a exists"):
        yr.kv_m_write_tx(["b", "a"], [b"1", b"2"])
    parts = yr.GetParams([yr.GetParam(1, 2), yr.GetParam(3), yr.GetParam()])
    assert yr.kv_get_with_param(["a", "a", "b"], parts, 0) == [b"23", b"45", None]
    yr.kv_m_write_tx(["b", "c"], [b"1", b"2"])
    assert yr.kv_get(["b", "c"]) == [b"1", b"2"]
    with pytest.raises(ValueError, match="must be new"):
        yr.kv_m_write_tx(["d"], [b""], yr.MSetParam(existence=yr.ExistenceOpt.NONE))
    with pytest.raises(ValueError, match="invalid ttl_second: -1"):
        yr.kv_write_with_param("d", b"", yr.SetParam(ttl_second=-1))
    yr.kv_del(["a", "b", "c"])
