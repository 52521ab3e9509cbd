"""Cards that a process sees, and its errors for cards that are not there.

Holds sim/npu/devices.py and csrc/core/cards.h against ASCEND_RT_VISIBLE_DEVICES by the vendor's page.
tests/sim/test_simulated.py runs this module in a process with simulated cards.

The rules for the list of cards itself are tried in tests/helpers/core_cards_cases.py (masks); here is what a program
sees of them.
"""

import json

import pytest
import torch

from children import facts, run

INVALID = "Invalid device ID.\n        Check whether the device ID is valid."

LOOK = """
    import json, os, torch
    def look():
        return {
            "count": torch.npu.device_count(), "available": torch.npu.is_available(),
            "accelerator": torch.accelerator.device_count(), "seen": torch.accelerator.is_available(),
            "uuids": [str(torch.npu.get_device_properties(i).uuid) for i in range(torch.npu.device_count())],
        }
"""

EACH_MASK = (
    LOOK
    + """
    found = {}
    for mask in [None, "1,3", "3,1", "", "0,99", "0,1x,2", " 1", "2"]:
        read, write = os.pipe()
        child = os.fork()  # nothing has used a card yet
        if child == 0:
            if mask is not None:
                os.environ["ASCEND_RT_VISIBLE_DEVICES"] = mask
            os.write(write, json.dumps(look()).encode())
            os._exit(0)
        os.close(write)
        with os.fdopen(read) as stream:
            found[str(mask)] = json.loads(stream.read())
        assert os.waitpid(child, 0)[1] == 0
    print(json.dumps(found))
"""
)


def test_masks():
    found = facts(EACH_MASK)
    cards = found["None"]["uuids"]
    assert len(set(cards)) == 4
    wanted = {
        "None": [0, 1, 2, 3], "1,3": [1, 3], "3,1": [], "": [], "0,99": [0], "0,1x,2": [0, 1], " 1": [], "2": [2],
    }  # fmt: skip
    for mask, numbers in wanted.items():
        seen = found[mask]
        assert seen["count"] == seen["accelerator"] == len(numbers), mask
        assert seen["available"] == seen["seen"] == bool(numbers), mask
        assert seen["uuids"] == [cards[number] for number in numbers], mask


def test_a_mask_from_the_environment_renumbers_the_cards():
    code = """
        import json, torch
        from toprope.sim.native import native
        x = torch.ones(3, device="npu:1")
        print(json.dumps([torch.npu.device_count(), str(x.device), native().physical_id(0), native().physical_id(1)]))
    """
    assert facts(code, ASCEND_RT_VISIBLE_DEVICES="1,3") == [2, "npu:1", 1, 3]


def test_the_mask_is_read_when_a_card_is_first_used():
    code = """
        import json, os, torch
        import toprope.sim
        os.environ["ASCEND_RT_VISIBLE_DEVICES"] = "1,3"  # after the card was installed
        assert not torch.npu.is_initialized()
        torch.ones(1, device="npu")
        found = [torch.npu.is_initialized(), torch.npu.device_count()]
        for late in ("0", "", "0,1,2,3"):
            os.environ["ASCEND_RT_VISIBLE_DEVICES"] = late
            found.append(torch.npu.device_count())
        toprope.sim.install("910B3", 4)
        found.append(torch.npu.device_count())
        print(json.dumps(found))
    """
    assert facts(code) == [True, 2, 2, 2, 2, 2]


def test_asking_what_there_is_uses_no_card():
    # As with torch_npu: until a card is used, the list may still change, and a fork is harmless.
    code = """
        import json, os, torch
        found = []
        os.environ["ASCEND_RT_VISIBLE_DEVICES"] = "0,1,2"
        found.append(torch.npu.device_count())
        found.append(torch.npu.is_available())
        torch.manual_seed(1)
        found.append(torch.npu.is_initialized())
        os.environ["ASCEND_RT_VISIBLE_DEVICES"] = "1,3"
        found.append(torch.npu.device_count())
        torch.ones(1, device="npu")
        found.append(torch.npu.is_initialized())
        print(json.dumps(found))
    """
    assert facts(code) == [3, True, False, 2, True]


def test_no_card_at_all():
    code = """
        import json, torch
        found = {"count": torch.npu.device_count(), "available": torch.npu.is_available()}
        torch.manual_seed(3)
        found["sum"] = (torch.ones(3) + torch.rand(3)).sum().item() > 3
        for name, call in {
            "to": lambda: torch.ones(2).to("npu"),
            "npu": lambda: torch.ones(2).npu(),
            "empty": lambda: torch.empty(2, device="npu:0"),
            "randn": lambda: torch.randn(2, device="npu"),
            "randperm": lambda: torch.randperm(5, device="npu"),
            "normal": lambda: torch.normal(0.0, 1.0, (2,), device="npu"),
            "set": lambda: torch.npu.set_device(0),
            "module": lambda: torch.nn.Linear(2, 2).to("npu"),
            "stream": lambda: torch.npu.Stream(),
            "generator": lambda: torch.Generator("npu"),
        }.items():
            try:
                call()
                found[name] = "nothing"
            except RuntimeError as error:
                found[name] = "107001" in str(error)
        for name, call in {
            "name": lambda: torch.npu.get_device_name(), "memory": lambda: torch.npu.mem_get_info(),
            "properties": lambda: torch.npu.get_device_properties(0),
        }.items():
            try:
                call()
                found[name] = "nothing"
            except AssertionError as error:
                found[name] = "Invalid device id" in str(error)
        torch.npu.empty_cache()
        print(json.dumps(found))
    """
    found = facts(code, ASCEND_RT_VISIBLE_DEVICES="")
    assert found.pop("count") == 0
    assert found.pop("available") is False
    assert {name: value for name, value in found.items() if value is not True} == {}


WRONG = {
    "to": lambda: torch.ones(2).to("npu:99"),
    "npu": lambda: torch.ones(2).npu(99),
    "to from a card": lambda: torch.ones(2, device="npu").to("npu:99"),
    "empty": lambda: torch.empty(2, device="npu:99"),
    "empty_strided": lambda: torch.empty_strided((2,), (1,), device="npu:99"),
    "zeros": lambda: torch.zeros(2, device="npu:4"),
    "tensor": lambda: torch.tensor([1.0], device="npu:99"),
    "arange": lambda: torch.arange(3, device="npu:99"),
    "empty_like": lambda: torch.empty_like(torch.ones(2), device="npu:99"),
    "module": lambda: torch.nn.Linear(2, 2).to("npu:99"),
    "storage": lambda: torch.UntypedStorage(8, device="npu:99"),
    "set_device": lambda: torch.npu.set_device(99),
    "set_device by name": lambda: torch.npu.set_device("npu:99"),
    "device context": lambda: torch.npu.device(99).__enter__(),
    "set_device_index": lambda: torch.accelerator.set_device_index(99),
    "device_index context": lambda: torch.accelerator.device_index(99).__enter__(),
    "Stream": lambda: torch.npu.Stream(99),
    "torch.Stream": lambda: torch.Stream("npu:99"),
    "current_stream": lambda: torch.npu.current_stream(99),
    "Generator": lambda: torch.Generator("npu:99"),
    "synchronize": lambda: torch.npu.synchronize(99),
    "accelerator synchronize": lambda: torch.accelerator.synchronize(99),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_card_that_is_not_there(name: str):
    with pytest.raises(RuntimeError, match=r"NPU function error: .*, error code is 107001\n") as caught:
        WRONG[name]()
    text = str(caught.value)
    assert f"[Error]: {INVALID}" in text
    assert "ERR00100 PTA call acl api failed" in text
    assert torch.npu.current_device() == 0
    assert torch.ones(2, device="npu").sum().item() == 2


def test_the_message_names_process_card_and_rank(monkeypatch: pytest.MonkeyPatch):
    import os
    import re

    pattern = r"\[ERROR\] \d{4}-\d\d-\d\d-\d\d:\d\d:\d\d \(PID:%d, Device:%d, RankID:%s\) ERR00100"
    with pytest.raises(RuntimeError) as caught:
        torch.empty(1, device="npu:9")
    assert re.search(pattern % (os.getpid(), 0, -1), str(caught.value))
    monkeypatch.setenv("RANK", "5")
    with torch.npu.device(2), pytest.raises(RuntimeError) as caught:
        torch.empty(1, device="npu:9")
    assert re.search(pattern % (os.getpid(), 2, 5), str(caught.value))


@pytest.mark.parametrize("wrong", [99, -1, 4, "npu:99"])
@pytest.mark.parametrize(
    "query",
    [torch.npu.get_device_name, torch.npu.get_device_properties, torch.npu.mem_get_info],
    ids=lambda f: f.__name__,
)
def test_queries_say_invalid_device_id(query, wrong: object):
    with pytest.raises(AssertionError, match="Invalid device id") as caught:
        query(wrong)
    assert "ERR00003 PTA invalid value" in str(caught.value)


def test_numbers_that_mean_no_change():
    torch.npu.set_device(-1)
    assert torch.npu.current_device() == 0
    with torch.npu.device(-1):
        assert torch.npu.current_device() == 0


def test_the_current_card():
    assert torch.empty(1, device="npu").device.index == 0
    with torch.npu.device(2):
        assert torch.npu.current_device() == torch.accelerator.current_device_index() == 2
        assert torch.empty(1, device="npu").device.index == 2
        with torch.npu.device("npu:3"):
            assert torch.ones(1).npu().device.index == 3
        with pytest.raises(ZeroDivisionError), torch.npu.device(1):
            1 / 0  # noqa: B018
        assert torch.npu.current_device() == 2
    assert torch.npu.current_device() == 0
    with torch.npu.device_of(torch.empty(1, device="npu:3")):
        assert torch.npu.current_device() == 3
    with torch.npu.device_of(torch.empty(1)):
        assert torch.npu.current_device() == 0
    torch.accelerator.set_device_index(1)
    assert torch.npu.current_device() == 1
    torch.npu.set_device("npu:0")
    assert torch.npu.current_device() == 0
    x = torch.ones(3, device="npu:2")
    assert (x + 1).device.index == 2  # not the current card
    assert torch.npu.current_device() == 0


def test_sixteen_cards():
    code = """
        import json, torch
        for card in range(16):
            torch.ones(4, device=f"npu:{card}")
        print(json.dumps([torch.npu.device_count(), torch.npu.memory_reserved(15)]))
    """
    assert facts(code, sim="910B3x16") == [16, 2 * 2**20]


def test_a_crashing_child_is_noticed():
    assert run("import os, torch; torch.ones(1, device='npu'); os.abort()").returncode == -6
    assert json.loads(run("print('[1]')").stdout) == [1]
