"""Public troubles of users with NPUs under Ray, verl, vLLM and others, each named for its thread.

One session serves them all: a machine of eight simulated cards whose program was given the cards 4 to 7.
"""

import os
import re
import signal
import sys
import time
from pathlib import Path

import pytest

from functions_world import alive, ended, free_cards, opt, session, until
from toprope import functions as yr
from toprope.functions.local.masks import mask
from toprope.functions.scheduling.ledger import Card, Grant, Node
from toprope.functions.scheduling.requests import parse
from toprope.sim.metrics import cards

pytestmark = [pytest.mark.native, pytest.mark.process]

MASK = "ASCEND_RT_VISIBLE_DEVICES"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The folder of the run, in which the simulated cards keep what is used of them."""
    return tmp_path_factory.mktemp("run")


@pytest.fixture(scope="module", autouse=True)
def _machine(folder):
    with session("local", TOPROPE_SIM="910B4x8", ASCEND_RT_VISIBLE_DEVICES="4,5,6,7", TOPROPE_RUN_DIR=str(folder)):
        yield


@pytest.fixture(autouse=True)
def _all_cards_come_back():
    yield
    assert until(lambda: free_cards() == 4)


@yr.instance
class User:
    """Takes memory of its card and keeps it."""

    def use(self, card=0, mebibytes=8):
        import torch

        self.kept = torch.ones(mebibytes * 2**18, device=f"npu:{card}")
        return str(self.kept.device), torch.npu.device_count()

    def set_device(self, card):
        import torch

        torch.npu.set_device(card)
        return torch.npu.current_device()

    def is_available(self):
        import torch

        return torch.npu.is_available(), torch.npu.device_count()

    def change_mask(self, value):
        os.environ["ASCEND_RT_VISIBLE_DEVICES"] = value

    def env(self, *names):
        return [os.environ.get(name) for name in names]

    def pid(self):
        return os.getpid()

    def in_child(self):
        import subprocess

        code = "import torch, time; kept = torch.ones(2**21, device='npu'); print('up', flush=True); time.sleep(600)"
        child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, start_new_session=True)
        assert child.stdout.readline() == b"up\n"
        return child.pid

    def engine(self, creator, options):
        """Starts another instance after this process has used its own card."""
        worker = creator.options(options).invoke()
        result = yr.get(worker.use.invoke()), yr.get(worker.env.invoke("ASCEND_RT_VISIBLE_DEVICES"))
        worker.terminate()
        return result


def reserved(folder, number):
    """Bytes held of one of the machine's cards."""
    return cards.read(folder, 8)[number].reserved


def test_ray_55137_and_vllm_ascend_3114_a_gpu_that_is_not_there_is_refused_with_what_there_is():
    """https://github.com/ray-project/ray/issues/55137 and https://github.com/vllm-project/vllm-ascend/issues/3114:
    eight NPUs, the program asks for GPUs and waits for ever."""
    begin = time.monotonic()
    one = User.options(opt(custom_resources={"GPU/.+/count": 1}, schedule_timeout_ms=300)).invoke()
    with pytest.raises(yr.YRequestError, match=r"Card Type Not Found \(there are NPU/910B4\)") as caught:
        yr.get(one.pid.invoke())
    assert caught.value.code == 1002
    assert time.monotonic() - begin < 10


def test_ray_62528_and_verl_849_who_cannot_get_a_card_is_told_why_and_does_not_hang():
    """https://github.com/ray-project/ray/issues/62528: the job hangs; https://github.com/verl-project/verl/issues/849:
    after half an hour a timeout that names nothing."""
    one, two = (User.options(opt(5, schedule_timeout_ms=limit)).invoke() for limit in (60_000, 300))
    with ended(one), pytest.raises(yr.YRTimeoutError, match=r"(?s)waits for resources.*card count: Not Enough"):
        yr.get(one.pid.invoke(), 0.1)
    with pytest.raises(yr.YRequestError, match="cannot be scheduled within 300 ms"):
        yr.get(two.pid.invoke())


@pytest.mark.slow
def test_vllm_ascend_870_and_ray_53044_an_instance_in_a_group_sees_its_part_of_it():
    """https://github.com/vllm-project/vllm-ascend/issues/870 and https://github.com/ray-project/ray/issues/53044: the
    cards of a placement group did not reach the actor in it."""
    bundle = {"CPU": 1000, "Memory": 1000}
    group = yr.create_resource_group([{**bundle, "NPU/.+/count": 1}, {**bundle, "NPU/.+/count": 2}], "part")
    try:
        group.wait(10)
        assert free_cards() == 1
        placed = yr.ResourceGroupOptions("part", 1)
        one = User.options(opt(1, resource_group_options=placed)).invoke()
        two = User.options(opt(1, resource_group_options=placed)).invoke()
        with ended(one, two):
            seen = yr.get([one.env.invoke(MASK), two.env.invoke(MASK)])
            assert sorted(seen) == [["5"], ["6"]]
            assert yr.get(one.use.invoke()) == ("npu:0", 1)
    finally:
        yr.remove_resource_group("part")


@pytest.mark.slow
def test_verl_6741_who_asked_for_a_card_never_runs_without_one():
    """https://github.com/verl-project/verl/issues/6741: the actor is CPU-only, and only a warning says so."""
    plain = User.options(opt(custom_resources={"NPU": 1}, schedule_timeout_ms=0)).invoke()
    with pytest.raises(yr.YRequestError, match="NPU: Not Found"):
        yr.get(plain.is_available.invoke())
    holder = User.options(opt(4)).invoke()
    with ended(holder):
        late = User.options(opt(1, schedule_timeout_ms=100)).invoke()
        with pytest.raises(yr.YRequestError, match="card count: Not Enough"):
            yr.get(late.is_available.invoke())
        share = User.options(opt(0.5, schedule_timeout_ms=100)).invoke()
        with pytest.raises(yr.YRequestError, match="card count: Not Enough"):
            yr.get(share.is_available.invoke())


def test_verl_7507_a_machines_number_is_no_number_of_the_process():
    """https://github.com/verl-project/verl/pull/7507: the actor is given card 5 and sees 0 to 3, hence 107001."""
    first, second = (User.options(opt(1)).invoke() for _ in range(2))
    with ended(first, second):
        assert yr.get(second.env.invoke(MASK, "NPU-DEVICE-IDS")) == ["5", "5"]
        with pytest.raises(RuntimeError, match="107001"):
            yr.get(second.set_device.invoke(5))
        assert yr.get(second.set_device.invoke(0)) == 0
    noset = User.options(opt(1, env_vars={f"YR_NOSET_{MASK}": "1"})).invoke()
    with ended(noset):
        assert yr.get(noset.env.invoke(MASK, "NPU-DEVICE-IDS")) == [None, "4"]
        assert yr.get(noset.set_device.invoke(4)) == 4


def test_ascend_pytorch_67_the_mask_is_there_before_the_runtime_and_a_later_one_changes_nothing(monkeypatch):
    """https://github.com/Ascend/pytorch/issues/67: a mask changed after the first use gives 507033."""
    one = User.options(opt(1)).invoke()  # its process had loaded torch before it knew its card
    with ended(one):
        assert yr.get(one.use.invoke()) == ("npu:0", 1)
        yr.get(one.change_mask.invoke("0,1,2"))
        assert yr.get(one.use.invoke()) == ("npu:0", 1)
    monkeypatch.setenv(MASK, "0")  # nor does one of this program, once the session has begun
    two = User.options(opt(1)).invoke()
    with ended(two):
        assert yr.get(two.env.invoke(MASK)) == ["4"]


def test_vllm_ascend_4502_who_has_used_a_card_can_start_others_who_do():
    """https://github.com/vllm-project/vllm-ascend/issues/4502: "Cannot re-initialize NPU in forked subprocess" after
    any call before the engine started its workers."""
    one = User.options(opt(1)).invoke()
    with ended(one):
        assert yr.get(one.use.invoke()) == ("npu:0", 1)
        assert yr.get(one.engine.invoke(User, opt(2))) == (("npu:0", 2), ["5,6"])


def test_ray_59063_who_asks_for_no_card_is_not_robbed_of_them():
    """https://github.com/ray-project/ray/issues/59063: is_available() is False where no card was asked for."""
    one = User.invoke()
    with ended(one):
        assert yr.get(one.is_available.invoke()) == (True, 4)
        assert yr.get(one.env.invoke(MASK)) == ["4,5,6,7"]


def test_ray_34816_and_20933_and_52133_shares_neither_hang_nor_break_up_all_cards():
    """https://github.com/ray-project/ray/issues/34816, https://github.com/ray-project/ray/issues/20933 and
    https://github.com/ray-project/ray/issues/52133: shares lie on all cards, and nobody gets a whole one."""
    shares = [User.options(opt(share)).invoke() for share in (0.3, 0.3, 0.3, 0.5)]
    with ended(*shares):
        seen = [mask for (mask,) in yr.get([each.env.invoke(MASK) for each in shares])]
        assert seen == ["4", "4", "4", "5"]
        whole = User.options(opt(2)).invoke()
        with ended(whole):
            assert yr.get(whole.env.invoke(MASK)) == ["6,7"]


def test_ray_59035_a_share_of_more_than_one_card_is_refused_in_words():
    """https://github.com/ray-project/ray/issues/59035: 5.33 is a ValueError that confuses."""
    with pytest.raises(yr.YRequestError, match=r"quantity 5\.33 is invalid because quantity >1 must be whole numbers"):
        yr.get(User.options(opt(5.33)).invoke().pid.invoke())


@pytest.mark.slow
def test_ray_31451_and_11608_and_vllm_20860_what_dies_gives_its_memory_back(folder):
    """https://github.com/ray-project/ray/issues/31451, https://github.com/ray-project/ray/issues/11608 and
    https://github.com/vllm-project/vllm/issues/20860: children, or dead actors, keep the memory of a card."""
    one = User.options(opt(1)).invoke()
    with ended(one):
        yr.get(one.use.invoke())
        pid, child = yr.get([one.pid.invoke(), one.in_child.invoke()])
        assert reserved(folder, 4) >= 16 * 2**20
        os.kill(pid, signal.SIGKILL)
        assert until(lambda: not alive(child))
        assert until(lambda: reserved(folder, 4) == 0)


def test_ray_66167_and_gpustack_3564_what_is_scheduled_on_a_card_runs_on_it(folder):
    """https://github.com/ray-project/ray/issues/66167: numbers of process and machine mixed up under a parent's mask;
    https://github.com/gpustack/gpustack/issues/3564: scheduled on cards 4 to 7, and really ran on 0 to 3."""
    both = User.options(opt(2)).invoke()
    with ended(both):
        assert yr.get(both.use.invoke(1)) == ("npu:1", 2)
        used = [number for number in range(8) if reserved(folder, number)]
        assert used == [5]


def test_verl_2341_two_actors_never_share_a_card(folder):
    """https://github.com/verl-project/verl/pull/2341: two actors were given the same NPU."""
    users = [User.options(opt(1)).invoke() for _ in range(4)]
    with ended(*users):
        assert yr.get([each.use.invoke() for each in users]) == [("npu:0", 1)] * 4
        assert [number for number in range(8) if reserved(folder, number)] == [4, 5, 6, 7]
        assert len({reserved(folder, number) for number in range(4, 8)}) == 1


def test_trinity_rft_618_a_mask_always_rises():
    """https://github.com/agentscope-ai/Trinity-RFT/pull/618: with 1,0 is_available() is silently False."""
    holder = User.options(opt(1)).invoke()
    three = User.options(opt(3)).invoke()
    with ended(holder, three):
        assert yr.get(three.env.invoke(MASK)) == ["5,6,7"]
        holder.terminate()
        three.terminate()
    four = User.options(opt(4)).invoke()
    with ended(four):
        assert yr.get(four.env.invoke(MASK)) == ["4,5,6,7"]
        assert yr.get(four.is_available.invoke()) == (True, 4)


@pytest.mark.parametrize("given", [(9,), (1, 0), (0, 0), (0, 116)])
def test_vllm_ascend_10227_and_hami_2842_a_mask_is_looked_at_before_it_is_given(given):
    """https://github.com/vllm-project/vllm-ascend/pull/10227: CANN drops numbers that are not there without a word, and
    107001 comes later; https://github.com/Project-HAMi/HAMi/issues/2842: number 116 of a vNPU in the mask."""
    node = Node("n", 1000, 1000, tuple(Card(number, "NPU", "910B4") for number in range(2)))
    grant = Grant(1, parse({"NPU/.+/count": 1}), "n", {"NPU": given}, {})
    with pytest.raises(yr.YRRuntimeError, match="cannot be shown to a process of n") as caught:
        mask(grant, [node], {})
    assert caught.value.code == 1006


THREADS = [
    "https://github.com/ray-project/ray/issues/55137",
    "https://github.com/vllm-project/vllm-ascend/issues/3114",
    "https://github.com/vllm-project/vllm-ascend/issues/870",
    "https://github.com/ray-project/ray/issues/53044",
    "https://github.com/verl-project/verl/issues/6741",
    "https://github.com/verl-project/verl/pull/7507",
    "https://github.com/Ascend/pytorch/issues/67",
    "https://github.com/vllm-project/vllm-ascend/issues/4502",
]


@pytest.mark.parametrize("url", THREADS)
def test_every_thread_has_a_test_that_names_it(url):
    """By its address in a test, and by its number in the test's name."""
    tests = re.split(r"^(?=def test_)", Path(__file__).read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]
    number = url.rpartition("/")[2]
    named = [test for test in tests if re.search(rf"{re.escape(url)}\b", test.partition("THREADS = ")[0])]
    assert any(re.match(rf"def test_\w*_{number}_", test) for test in named)
