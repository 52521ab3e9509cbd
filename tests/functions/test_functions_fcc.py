"""Groups of instances and function groups on processes of this machine, with two simulated cards.

Held: `api.function_groups`, `api.instance_groups` and `local.scheduling.instance_groups`.
"""

import os
import signal
import time

import pytest

from functions_session import free, session, within
from toprope import functions as yr
from toprope.functions.api.function_groups import context_of

pytestmark = [pytest.mark.native, pytest.mark.process]

CARD = {"NPU/.+/count": 1}


@yr.instance
class Member:
    def __init__(self, fails=False):
        if fails:
            raise ValueError("no")

    def cards(self):
        return os.getenv("ASCEND_RT_VISIBLE_DEVICES")

    def pid(self):
        return os.getpid()

    def leave(self):
        yr.exit()

    def work(self):
        time.sleep(600)

    def context(self):
        return yr.fcc.get_function_group_context()


@yr.invoke
def rank(factor, extra=0):
    context = yr.fcc.get_function_group_context()
    return context.rank_id * factor + extra, os.getenv("ASCEND_RT_VISIBLE_DEVICES")


@pytest.fixture(scope="module", autouse=True)
def running():
    with session():
        yield


@pytest.fixture(autouse=True)
def nothing_is_held(running):
    yield
    within(60, lambda: free() == 2)


def members(name, count, *arguments, **options):
    options.setdefault("custom_resources", CARD)
    wanted = yr.InvokeOptions(group_name=name, **options)
    return [Member.options(wanted).invoke(*arguments) for _ in range(count)]


def group_options(bundle=1, **options):
    options.setdefault("resources", CARD)
    return yr.FunctionGroupOptions(scheduling_affinity_each_bundle_size=bundle, **options)


# Groups


@pytest.mark.slow
def test_members_start_together_when_their_group_does():
    group = yr.Group("pair", yr.GroupOptions())
    pair = members("pair", 2)
    results = [each.cards.invoke() for each in pair]
    with pytest.raises(yr.YRTimeoutError, match=r"its group pair waits until Group\.invoke starts it"):
        yr.get(results[0], 0.2)
    assert free() == 2
    group.invoke()
    group.wait(20)
    assert yr.get(results) == ["0", "1"]
    with pytest.raises(yr.YRequestError, match="group pair cannot be started: it runs") as error:
        group.invoke()
    assert error.value.code == 1010
    with pytest.raises(yr.YRequestError, match="group pair runs, nobody can join it") as error:
        yr.get(members("pair", 1)[0].cards.invoke())
    assert error.value.code == 1010
    group.terminate()
    assert free() == 2
    for each in pair:
        with pytest.raises(RuntimeError, match="this instance is terminated"):
            yr.get(each.cards.invoke())
    group.terminate()  # there is none any more


def test_a_group_that_does_not_fit_takes_nothing():
    trio = members("trio", 3)
    group = yr.Group("trio", yr.GroupOptions(timeout=0.2))
    group.invoke()
    with pytest.raises(yr.YRequestError, match=r"cannot be scheduled within 0\.2 s.*3 members do not fit") as error:
        group.wait(10)
    assert error.value.code == 1010
    assert free() == 2
    with pytest.raises(yr.YRequestError, match="group trio failed to start"):
        yr.get(trio[0].cards.invoke())


@pytest.mark.slow
def test_a_group_waits_for_all_that_its_members_need():
    (holder,) = members("", 1)
    yr.get(holder.cards.invoke())
    pair = members("waits", 2)
    group = yr.Group("waits", yr.GroupOptions(strategy="STRICT_PACK"))
    group.invoke()
    with pytest.raises(yr.YRTimeoutError):
        group.wait(0.2)
    assert free() == 1
    holder.terminate()
    group.wait(20)
    assert sorted(yr.get([each.cards.invoke() for each in pair])) == ["0", "1"]
    pair[0].terminate()  # ends the whole group
    assert free() == 2


def test_a_member_that_cannot_start_lets_nobody_start():
    good, bad = members("one-fails", 1) + members("one-fails", 1, True)
    group = yr.Group("one-fails")
    group.invoke()
    with pytest.raises(yr.YRequestError, match=r"group one-fails failed to start: instance .*no") as error:
        group.wait(20)
    assert error.value.code == 1010
    with pytest.raises(ValueError, match="no"):
        yr.get(bad.cards.invoke())
    with pytest.raises(yr.YRequestError, match="group one-fails failed to start"):
        yr.get(good.cards.invoke())


def test_a_member_that_makes_no_sense_is_said_where_the_group_starts():
    members("nonsense", 1, custom_resources={"NPU/.+/count": 1.5})
    group = yr.Group("nonsense")
    group.invoke()
    with pytest.raises(yr.YRequestError, match="quantity >1 must be whole numbers") as error:
        group.wait(5)
    assert error.value.code == 1010


def test_the_end_of_a_group_whose_member_made_no_sense_was_waited_for_as_long_as_a_hook_may_take():
    """Nobody was left who could tell that all members were gone."""
    members("nonsense and gone", 1, custom_resources={"NPU/.+/count": 1.5})
    over = yr.context.backend().groups.terminate("nonsense and gone")
    assert yr.get(over, 20) is True
    (again,) = members("nonsense and gone", 1)  # the name is free
    group = yr.Group("nonsense and gone")
    group.invoke()
    group.wait(60)
    assert yr.get(again.cards.invoke(), 60) == "0"
    group.terminate()


@pytest.mark.parametrize("how", ["killed", "left"])
def test_the_end_of_one_ends_all(how):
    first, second = members(how, 2)
    group = yr.Group(how)
    group.invoke()
    group.wait(20)
    pid = yr.get(first.pid.invoke())
    if how == "killed":
        os.kill(pid, signal.SIGKILL)
    else:
        first.leave.invoke()
    within(60, lambda: free() == 2)
    with pytest.raises(yr.YRequestError, match=f"of group {how} has exited") as error:
        yr.get(second.cards.invoke())
    assert error.value.code == 1011


def test_a_running_call_of_a_group_that_ends_has_the_code_of_later_calls():
    first, second = members("at work", 2, custom_extensions={"GRACEFUL_SHUTDOWN_TIME": "1"})
    group = yr.Group("at work")
    group.invoke()
    group.wait(20)
    running = second.work.invoke()
    first.leave.invoke()
    found = [running.exception(60), second.cards.invoke().exception(60)]
    assert [(type(each), each.code) for each in found] == [(yr.YRequestError, 1011)] * 2
    assert all("of group at work has exited, and the members" in str(each) for each in found)


def test_members_may_live_on_alone():
    first, second = members("loose", 2)
    group = yr.Group("loose", yr.GroupOptions(same_lifecycle=False))
    group.invoke()
    os.kill(yr.get(first.pid.invoke(), 60), signal.SIGKILL)
    within(60, lambda: free() == 1)
    assert yr.get(second.cards.invoke()) == "1"
    group.terminate()


def test_a_group_whose_strategy_needs_another_node_takes_nothing():
    members("apart", 2)
    group = yr.Group("apart", yr.GroupOptions(timeout=0.2, strategy="STRICT_SPREAD"))
    group.invoke()
    with pytest.raises(yr.YRequestError, match="its 2 members do not fit together") as error:
        group.wait(10)
    assert error.value.code == 1010
    assert free() == 2


def test_what_no_group_can_be():
    with pytest.raises(yr.YRequestError, match="group nobody cannot be started: it has no members"):
        yr.Group("nobody").invoke()
    with pytest.raises(RuntimeError, match="there is no group nobody"):
        yr.Group("nobody").wait()
    members("odd", 1)
    with pytest.raises(ValueError, match="invalid timeout -3 in GroupOptions"):
        yr.Group("odd", yr.GroupOptions(timeout=-3)).invoke()
    with pytest.raises(ValueError, match="invalid strategy, actual: PILE"):
        yr.Group("odd", yr.GroupOptions(strategy="PILE")).invoke()
    yr.Group("odd").terminate()


def test_a_group_in_a_resource_group():
    reserved = yr.create_resource_group([CARD, CARD], "for-a-group")
    use = yr.ResourceGroupOptions("for-a-group")
    pair = members("inside", 2, resource_group_options=use, cpu=300, memory=128)
    group = yr.Group("inside", yr.GroupOptions(strategy="STRICT_SPREAD"))
    group.invoke()
    group.wait(20)
    assert yr.get([each.cards.invoke() for each in pair]) == ["0", "1"]
    yr.remove_resource_group(reserved)


# Function groups


def test_members_of_a_class_know_their_ranks_and_cards():
    handler = yr.fcc.create_function_group(Member, (), 2, group_options(2))
    first, second = yr.get(handler.context.invoke(), 60)
    (server,) = first.server_list
    assert (first.rank_id, second.rank_id, first.world_size) == (0, 1, 2)
    assert [(each.device_id, each.device_ip, each.rank_id) for each in server.devices] == [(0, "", 0), (1, "", 1)]
    assert server.server_id == yr.get_node_id()
    assert first.device_name == "NPU/910B4"
    assert second.server_list == first.server_list
    assert handler.accelerate() is handler
    assert len(handler.instances) == 2
    with pytest.raises(AttributeError, match="has no method 'unheard'"):
        handler.unheard.invoke()
    handler.terminate()
    assert free() == 2


def test_a_function_runs_in_each_member_and_they_end_by_themselves():
    refs = yr.fcc.create_function_group(rank, (10,), 2, group_options())
    assert yr.get(refs, 60) == [(0, "0"), (10, "1")]
    within(60, lambda: free() == 2)


def test_outside_a_group_there_is_no_context():
    assert yr.fcc.get_function_group_context() == yr.fcc.FunctionGroupContext(-1, 0, [], "")
    (alone,) = members("", 1)
    assert yr.get(alone.context.invoke()).world_size == 0
    alone.terminate()


def test_a_function_group_that_never_fits_fails_in_time():
    start = time.monotonic()
    refs = yr.fcc.create_function_group(rank, (1,), 3, group_options(timeout=1))
    with pytest.raises(yr.YRequestError, match="failed to start") as error:
        yr.get(refs, 60)
    assert error.value.code == 1010
    assert time.monotonic() - start < 5


def test_what_no_function_group_can_be():
    for size, options in ((3, group_options(2)), (300, group_options()), (2, group_options(None))):
        with pytest.raises(ValueError, match=r"invalid (bundle|group) size"):
            yr.fcc.create_function_group(rank, (1,), size, options)
    with pytest.raises(RuntimeError, match=r"function is not wrapped by @yr\.invoke or @yr\.instance"):
        yr.fcc.create_function_group(len, (), 1, group_options())


def test_ranks_of_cards_run_on_over_hosts():
    told = context_of(1, 2, [("a", "NPU/910B4", (2, 3)), ("b", "NPU/910B4", (0, 1))])
    cards = {each.server_id: [(card.device_id, card.rank_id) for card in each.devices] for each in told.server_list}
    assert cards == {"a": [(2, 0), (3, 1)], "b": [(0, 2), (1, 3)]}
    assert context_of(0, 1, [("a", "", ())]) == yr.fcc.FunctionGroupContext(0, 1, [], "")
