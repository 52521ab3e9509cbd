"""The counters that a process keeps in a file of TOPROPE_RUN_DIR: right, and there however the process ends.

Holds csrc/core/counters.h and sim/metrics/counters.py against counts known from the program.
tests/sim/test_simulated.py runs this module in a process with simulated cards.
"""

import ctypes
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import torch

from children import run
from core_library import MIB, block_size
from toprope.sim.metrics import counters
from toprope.sim.native import native


def now() -> counters.Counters:
    """The counters of this process, where the core keeps them."""
    found = counters.parse(ctypes.string_at(native().counters(), counters.SIZE))
    assert found is not None
    return found


def changes(function) -> dict[str, int]:
    """What a function adds to the counters, operators under their names."""
    before = now()
    kept = function()
    after = now()
    del kept
    plain = ("copies_to_card", "bytes_to_card", "copies_from_card", "bytes_from_card", "copies_between",
             "bytes_between", "synchronisations", "operator_calls")  # fmt: skip
    found = {name: getattr(after, name) - getattr(before, name) for name in plain}
    found |= {name: after.operators[name] - before.operators.get(name, 0) for name in after.operators}
    return {name: number for name, number in found.items() if number}


def test_copies_to_the_card():
    host = torch.ones(1000)
    for copy in (
        lambda: host.to("npu"),
        lambda: host.npu(),
        lambda: torch.empty(1000, device="npu").copy_(host),
        lambda: torch.tensor([1.0] * 1000, device="npu"),
        lambda: torch.as_tensor(host, device="npu"),
    ):
        assert changes(copy) == {"copies_to_card": 1, "bytes_to_card": 4000, "synchronisations": 1}
    # Half as many bytes cross the bus when the host converts first; torch converts where the data is.
    assert changes(lambda: host.to("npu", torch.float16))["bytes_to_card"] in (2000, 4000)
    assert changes(lambda: host[:10].to("npu")) == {"copies_to_card": 1, "bytes_to_card": 40, "synchronisations": 1}
    assert changes(lambda: torch.ones(0).to("npu")).get("bytes_to_card", 0) == 0


def test_copies_to_the_card_that_do_not_wait():
    pinned = torch.ones(1000).pin_memory()
    assert changes(lambda: pinned.to("npu", non_blocking=True)) == {"copies_to_card": 1, "bytes_to_card": 4000}
    assert changes(lambda: pinned.to("npu"))["synchronisations"] == 1
    assert changes(lambda: torch.ones(1000).to("npu", non_blocking=True))["synchronisations"] == 1


def test_copies_from_the_card():
    card = torch.ones(1000, device="npu")
    for copy in (lambda: card.cpu(), lambda: card.to("cpu"), lambda: torch.empty(1000).copy_(card)):
        assert changes(copy) == {"copies_from_card": 1, "bytes_from_card": 4000, "synchronisations": 1}
    assert changes(card.tolist) == {"copies_from_card": 1, "bytes_from_card": 4000, "synchronisations": 1}
    pinned = torch.empty(1000, pin_memory=True)
    assert changes(lambda: pinned.copy_(card, non_blocking=True)) == {"copies_from_card": 1, "bytes_from_card": 4000}
    # One number is a copy, too.
    one = torch.ones(1, dtype=torch.float64, device="npu")
    for read in (one.item, lambda: float(one), lambda: bool(one)):
        assert changes(read) == {"copies_from_card": 1, "bytes_from_card": 8, "synchronisations": 1}


def test_copies_on_and_between_cards():
    first, second = torch.ones(1000, device="npu:1"), torch.empty(1000, device="npu:2")
    found = changes(lambda: second.copy_(first))
    assert (found["copies_between"], found["bytes_between"]) == (1, 4000)
    assert "copies_to_card" not in found
    assert changes(lambda: first.to("npu:3"))["bytes_between"] == 4000
    assert changes(lambda: first.clone()) == {"operator_calls": 1, "aten::copy_": 1}
    assert changes(lambda: first.to("npu:1")) == {}


def test_operators_and_their_kinds():
    a = torch.ones(8, 8, device="npu")
    assert changes(lambda: a + a) == {"operator_calls": 1, "aten::add": 1}
    assert changes(lambda: a @ a) == {"operator_calls": 1, "aten::mm": 1}
    assert changes(lambda: [a.exp() for _ in range(5)]) == {"operator_calls": 5, "aten::exp": 5}
    assert changes(lambda: a.view(64)[3:9]) == {}
    assert changes(lambda: torch.empty(5, device="npu")) == {}
    assert changes(lambda: torch.ones(5) + 1) == {}
    assert changes(lambda: a.sort())["operator_calls"] == 1
    image = torch.ones(1, 1, 8, 8, device="npu")
    assert changes(lambda: torch.conv2d(image, image)) == {"operator_calls": 1, "aten::convolution": 1}


def test_synchronisations():
    a = torch.ones(8, device="npu")
    for wait in (
        torch.npu.synchronize,
        torch.accelerator.synchronize,
        torch.npu.current_stream().synchronize,
        torch.npu.current_stream().record_event().synchronize,
    ):
        assert changes(wait) == {"synchronisations": 1}
    assert changes(a.nonzero)["synchronisations"] == 1
    assert changes(lambda: a[a > 0])["synchronisations"] == 1
    assert changes(lambda: torch.npu.current_stream().record_event()) == {}
    assert changes(lambda: torch.npu.current_stream().query()) == {}


def test_failures_count_nothing_but_themselves():
    a = torch.ones(8, device="npu")
    try:
        a + torch.ones(8, device="npu:1")
    except RuntimeError:
        pass
    before = now()
    try:
        torch.empty(2**40, device="npu")
    except torch.OutOfMemoryError:
        pass
    after = now()
    assert after.cards[0].ooms == before.cards[0].ooms + 1
    assert after.operator_calls == before.operator_calls
    assert after.cards[0].allocated == before.cards[0].allocated == torch.npu.memory_allocated()


def test_memory_of_the_cards():
    found = now()
    assert (found.pid, found.chip, found.hbm_by_user) == (os.getpid(), "910B3", False)
    assert found.torch_version == torch.__version__
    assert [(card.index, card.physical, card.capacity) for card in found.cards] == [
        (number, number, 62423 * MIB) for number in range(4)
    ]
    torch.npu.empty_cache()
    kept = torch.empty(30 * MIB - 32, dtype=torch.uint8, device="npu:3")
    peak = torch.empty(20 * MIB - 32, dtype=torch.uint8, device="npu:3")
    del peak
    card = now().cards[3]
    assert card.used
    assert (card.allocated, card.peak_allocated) == (30 * MIB, 50 * MIB)
    assert (card.reserved, card.peak_reserved) == (50 * MIB, 50 * MIB)
    torch.npu.reset_peak_memory_stats(3)  # the program's own measuring does not touch the report
    torch.npu.empty_cache()
    card = now().cards[3]
    assert (card.peak_allocated, card.reserved, card.peak_reserved) == (50 * MIB, 30 * MIB, 50 * MIB)
    del kept


def only(folder: Path) -> counters.Counters:
    (found,) = counters.read_run(folder)
    return found


PROGRAM = """
    import os, signal, torch
    x = torch.ones(1000, 1000).npu()
    y = (x + x).exp()
    y.cpu()
    x.to("npu:1")
    torch.npu.synchronize()
"""


def check(found: counters.Counters) -> None:
    assert (found.chip, found.hbm_by_user, len(found.cards)) == ("910B3", True, 2)
    assert (found.copies_to_card, found.bytes_to_card) == (1, 4_000_000)
    assert (found.copies_from_card, found.bytes_from_card) == (1, 4_000_000)
    assert (found.copies_between, found.bytes_between) == (1, 4_000_000)
    assert found.synchronisations == 3
    assert {"aten::add": 1, "aten::exp": 1}.items() <= found.operators.items()
    assert found.operator_calls == sum(found.operators.values())
    block = 4_000_256
    assert found.cards[0].peak_allocated in range(2 * block, 4 * block)
    assert found.cards[0].reserved == found.cards[0].peak_reserved == 20 * MIB
    assert found.cards[1].peak_allocated in range(block, block + MIB)
    assert [card.capacity for card in found.cards] == [256 * 10**6] * 2


def test_the_file_of_a_process_that_ends(tmp_path: Path):
    done = run(PROGRAM, sim="910B3x2,hbm=256MB", TOPROPE_RUN_DIR=str(tmp_path))
    assert (done.returncode, done.stderr) == (0, "")
    found = only(tmp_path)
    check(found)
    (file,) = tmp_path.glob("*.counters")
    assert file.name.startswith(f"{found.pid}-")
    assert file.stat().st_size == counters.SIZE
    assert file.stat().st_mode & 0o777 == 0o600


def test_the_file_of_a_process_that_ends_at_once(tmp_path: Path):
    done = run(textwrap.dedent(PROGRAM) + "os._exit(3)", sim="910B3x2,hbm=256MB", TOPROPE_RUN_DIR=str(tmp_path))
    assert done.returncode == 3
    check(only(tmp_path))


def test_the_file_is_up_to_date_and_outlives_a_kill(tmp_path: Path):
    code = textwrap.dedent(PROGRAM) + "print('ready', flush=True)\ninput()\n"
    variables = {name: value for name, value in os.environ.items() if not name.startswith("TOPROPE_")}
    variables |= {"TOPROPE_SIM": "910B3x2,hbm=256MB", "TOPROPE_RUN_DIR": str(tmp_path)}
    with subprocess.Popen(
        [sys.executable, "-c", code], env=variables, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        check(only(tmp_path))
        process.kill()
    assert process.returncode == -signal.SIGKILL
    check(only(tmp_path))


def test_each_process_has_a_file_of_its_own(tmp_path: Path):
    code = """
        import subprocess, sys, torch
        torch.ones(1000).npu()
        subprocess.run([sys.executable, "-c", "import torch; torch.ones(10).npu(1)"], check=True)
    """
    done = run(code, TOPROPE_RUN_DIR=str(tmp_path), ASCEND_RT_VISIBLE_DEVICES="1,3")
    assert (done.returncode, done.stderr) == (0, "")
    second, first = sorted(counters.read_run(tmp_path), key=lambda each: each.bytes_to_card)
    assert (first.bytes_to_card, second.bytes_to_card) == (4000, 40)
    assert first.pid != second.pid
    assert [(card.index, card.physical, card.used) for card in first.cards] == [(0, 1, True), (1, 3, False)]
    assert [(card.index, card.physical, card.used) for card in second.cards] == [(0, 1, False), (1, 3, True)]


def test_a_forked_process_does_not_spoil_its_parents_file(tmp_path: Path):
    # A child forked before any use has cards of its own, and so it must have counters of its own.
    code = """
        import os, torch
        child = os.fork()
        if child == 0:
            kept = [torch.ones(1000, device="npu") for _ in range(3)]
            torch.ones(100, 1000).npu()
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        torch.ones(10).npu()
    """
    done = run(code, TOPROPE_RUN_DIR=str(tmp_path))
    assert (done.returncode, done.stderr) == (0, "")
    found = sorted(counters.read_run(tmp_path), key=lambda each: each.bytes_to_card)
    assert [each.bytes_to_card for each in found] == [40, 400_000]
    assert len({each.pid for each in found}) == 2
    assert [each.cards[0].allocated for each in found] == [0, 3 * block_size(4000)]


def test_a_forked_worker_adds_nothing_to_its_parents_file(tmp_path: Path):
    code = """
        import os, torch
        x = torch.ones(10).npu()
        child = os.fork()
        if child == 0:
            try:
                x[0].item()
            except RuntimeError:
                pass
            try:
                torch.npu.synchronize()
            except RuntimeError:
                pass
            del x
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
    """
    done = run(code, TOPROPE_RUN_DIR=str(tmp_path))
    assert (done.returncode, done.stderr) == (0, "")
    found = only(tmp_path)
    assert (found.copies_to_card, found.copies_from_card, found.synchronisations) == (1, 0, 1)
    assert found.cards[0].allocated == 0


def test_a_folder_that_is_gone_is_no_reason_to_fail(tmp_path: Path):
    done = run("import torch; print(torch.ones(1).npu().item())", TOPROPE_RUN_DIR=str(tmp_path / "gone"))
    assert (done.returncode, done.stdout, done.stderr) == (0, "1.0\n", "")
