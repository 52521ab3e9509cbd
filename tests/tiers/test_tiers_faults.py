"""Faults in training: each is an error of its type at the next call, and the last checkpoint leads to the same bits.

Errors of the disk, changed files, a full disk, Ctrl-C at any moment. For inference the same is in test_tiers_ring.py;
acceptance 6 of the tiers.
"""

import errno
import functools
import os
import random
import signal
import subprocess
import sys
import threading
from dataclasses import replace

import pytest
import torch
from safetensors.torch import save_file
from test_tiers_ring import Disturbed

from tiers_training_run import KB, Net, Run
from toprope.errors import PlanError, TierCapacityError, TierChangedError, TierError, TierReadError, TierWriteError
from toprope.tiers import attach, skeleton
from toprope.tiers.engine import offloaded_params as away

SOAK = os.environ.get("TOPROPE_SOAK") == "1"
MIB = 2**20


pytestmark = [pytest.mark.process, pytest.mark.usefixtures("one_thread")]


@functools.cache
def resident(steps, optimizer=torch.optim.AdamW):
    """What the model and the losses are after so many steps in memory."""
    torch.set_num_threads(1)
    return Run(optimizer).steps(0, steps).end()


def all_on_disk(folder):
    return {"disk": folder, "states": "disk", "activations": "disk", "host": 300 * KB}


# Errors of the disk, one at a time, wherever they come


class Faults:
    """Lets one call of the system fail: the nth from now on."""

    def __init__(self, monkeypatch):
        self.left, self.came, self._lock = {}, [], threading.Lock()
        for name in ("preadv", "pwritev", "posix_fallocate"):
            monkeypatch.setattr(os, name, self._failing(name, getattr(os, name)))

    def _failing(self, name, real):
        def call(*arguments):
            with self._lock:
                kind, left = self.left.get(name, (0, 0))
                if left:
                    self.left[name] = kind, left - 1
                    if left == 1:
                        self.came.append(name)
                        raise OSError(kind, os.strerror(kind))
            return real(*arguments)

        return call


@pytest.fixture
def faults(monkeypatch):
    return Faults(monkeypatch)


KINDS = {
    "a read error": ("preadv", errno.EIO, TierReadError),
    "a write error": ("pwritev", errno.EIO, TierWriteError),
    "a full disk": ("pwritev", errno.ENOSPC, TierCapacityError),
    "a quota": ("pwritev", errno.EDQUOT, TierCapacityError),
}


def again(ours, path, error):
    """Back to the checkpoint, whatever is still told of requests that were under way."""
    for _ in range(9):
        try:
            ours.optimizer.zero_grad()
            ours.handle.training.optimizers.store.flush()
            return ours.restore(path)
        except error:
            continue
    raise AssertionError("there is no way back")


@pytest.fixture
def running(tmp_path):
    """A run with all that can be on the disk there, after three steps, and its checkpoint."""
    spill, path = tmp_path / "spill", tmp_path / "run.safetensors"
    spill.mkdir()
    ours = Run(**all_on_disk(spill)).steps(0, 3)
    ours.save(path, 3)
    yield ours, path
    assert ours.restore(path) == 3
    assert ours.steps(3, 4).end() == resident(4)
    assert not os.listdir(spill)
    assert [each.name for each in tmp_path.iterdir() if each.name.startswith(".")] == []


def test_an_error_of_the_disk_in_a_step_of_training(running, faults):
    ours, path = running
    chosen, told = random.Random(0), set()
    for _ in range(40 if SOAK else 1):
        for fault, (name, kind, error) in KINDS.items():
            faults.left[name] = kind, chosen.randrange(1, 60)
            try:
                ours.steps(3, 5)
                ours.handle.training.optimizers.store.flush()
            except error:
                told.add(fault)
            faults.left.clear()
            assert again(ours, path, error) == 3
    assert told == set(KINDS)


def test_an_error_of_the_disk_in_a_checkpoint(running, monkeypatch):
    ours, path = running
    whole = path.read_bytes()
    for kind, error in ((errno.EIO, TierWriteError), (errno.ENOSPC, TierCapacityError)):
        with monkeypatch.context() as patched:

            def fail(descriptor, kind=kind):
                raise OSError(kind, os.strerror(kind))

            patched.setattr(os, "fsync", fail)
            with pytest.raises(error, match="checkpoint"):
                ours.save(path, 4)
        assert path.read_bytes() == whole
        assert sorted(os.listdir(path.parent)) == [path.name, "spill"]
    with monkeypatch.context() as patched:

        def preadv(*_):
            raise OSError(errno.EIO, os.strerror(errno.EIO))

        patched.setattr(os, "preadv", preadv)
        with pytest.raises(TierReadError):
            ours.restore(path)
    with pytest.raises(TierWriteError, match="No such file"):
        ours.save(path.parent / "nowhere" / "run.safetensors", 4)


@pytest.mark.parametrize("what", ["cut short", "written to", "gone"])
def test_a_file_of_weights_that_changes_in_training(what, tmp_path):
    torch.manual_seed(0)
    model = Net(2)
    tensors = {name: each.contiguous() for name, each in model.state_dict().items() if name != "head.weight"}
    save_file(tensors, tmp_path / "w.safetensors")
    with skeleton():
        empty = Net(2)
    handle = attach(empty, 240 * KB, 0, tmp_path, small=10 * KB, training=True, states="disk", limit=20)
    optimizer = handle.optimizer(torch.optim.SGD(empty.parameters(), 0.1, momentum=0.9))
    tokens = torch.arange(32).view(2, 16)
    empty(tokens).square().mean().backward()
    file = tmp_path / "w.safetensors"
    if what == "cut short":
        os.truncate(file, 2000)
    elif what == "written to":
        with file.open("r+b") as stream:
            stream.seek(-1, 2)
            stream.write(b"x")
        os.utime(file)
    else:
        file.unlink()
    for _ in range(2):
        with pytest.raises(TierChangedError, match=r"w\.safetensors"):
            optimizer.step()
    with pytest.raises(TierChangedError):
        empty(tokens).square().mean().backward()
    handle.close()
    assert [each.name for each in tmp_path.iterdir()] == ([] if what == "gone" else ["w.safetensors"])


# A disk that is really full


@pytest.fixture
def little_disk(tmp_path):
    """A disk of 12 MiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=12m", "toprope-test", folder], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip("only root can mount a disk; that what is told of one holds is tested with calls that fail")
    yield folder
    subprocess.run(["umount", "--lazy", folder], check=True)


def filled(folder, left):
    """A file that leaves so many bytes free there."""
    free = os.statvfs(folder).f_bavail * os.statvfs(folder).f_frsize
    (folder / "filler").write_bytes(bytes(free - left))
    return folder / "filler"


def test_a_disk_that_is_really_full(little_disk, tmp_path):
    """States and activations, the checkpoint, and weights while they are attached."""
    path = tmp_path / "run.safetensors"
    ours = Run(disk=little_disk, states="disk", activations="disk", host=300 * KB).steps(0, 1)
    ours.save(path, 1)
    filler = filled(little_disk, 0)
    with pytest.raises(TierCapacityError, match=r"the disk is full|no room"):
        ours.steps(1, 4)
    with pytest.raises(TierCapacityError, match="no room for the checkpoint"):
        ours.save(little_disk / "run.safetensors", 2)
    assert os.listdir(little_disk) == ["filler"]
    filler.unlink()
    assert again(ours, path, TierError) == 1
    ours.save(little_disk / "run.safetensors", 1)
    filler = filled(little_disk, 0)
    whole = (little_disk / "run.safetensors").read_bytes()
    with pytest.raises(TierCapacityError, match="no room for the checkpoint"):
        ours.save(little_disk / "run.safetensors", 2)
    assert (little_disk / "run.safetensors").read_bytes() == whole
    filler.unlink()
    assert ours.restore(little_disk / "run.safetensors") == 1
    assert ours.steps(1, 3).end() == resident(3)
    assert os.listdir(little_disk) == ["run.safetensors"]

    model = torch.nn.Sequential(*(torch.nn.Linear(256, 256) for _ in range(12)))
    want = [each.detach().clone() for each in model.parameters()]
    filler = filled(little_disk, MIB)
    with pytest.raises(PlanError, match="disk"):
        attach(model, "700kB", 0, little_disk, small=KB)
    assert all(map(torch.equal, want, model.parameters()))
    assert sorted(os.listdir(little_disk)) == ["filler", "run.safetensors"]


# Ctrl-C


class Interrupted:
    """Raises KeyboardInterrupt in the main thread after some time, as Ctrl-C does; but only in what is watched."""

    def __init__(self):
        self.armed = False

    def _raise(self, *_):
        if self.armed:
            self.armed = False
            raise KeyboardInterrupt

    def __call__(self, call, seconds):
        """Whether it came before the call ended."""
        before = signal.signal(signal.SIGUSR1, self._raise)
        told, sys.unraisablehook = sys.unraisablehook, lambda _: None  # in a finalizer nobody gets it
        self.armed = True
        timer = threading.Timer(seconds, os.kill, (os.getpid(), signal.SIGUSR1))
        timer.start()
        try:
            try:
                call()
                return False
            finally:
                self.armed = False
        except KeyboardInterrupt:
            torch.set_grad_enabled(True)  # torch's own no_grad may have been interrupted on its way out
            return True
        finally:
            timer.join()
            signal.signal(signal.SIGUSR1, before)
            sys.unraisablehook = told


def test_control_c_at_any_moment_of_passes(tmp_path):
    """Afterwards the model gives its own numbers, nothing is held, and no hook of autograd is left."""
    import test_tiers_ring as ring

    def trained(model):
        model.zero_grad()
        model(ring.X).square().sum().backward()
        return [each.grad.clone() for each in model.parameters()]

    model, chosen, came = ring.chain(), random.Random(1), 0
    want, gradients = ring.run(model), trained(model)
    for _ in range(400 if SOAK else 5):
        empty, handle = ring.attached(model, tmp_path, limit=20)

        def work(empty=empty):
            for _ in range(60):  # what comes in a finalizer is lost
                ring.run(empty)
                trained(empty)

        came += Interrupted()(work, 0.01 + chosen.random() * 0.03)
        if chosen.random() < 0.7:  # else it is closed as it is
            for _ in range(2):
                assert torch.equal(ring.run(empty), want)
                assert all(map(torch.equal, trained(empty), gradients))
            assert not any(each.held for each in handle._engine.ring.units.values())
        empty.zero_grad()
        handle.close()
        assert torch._C._autograd._top_saved_tensors_default_hooks(True) is None
    assert came


@pytest.mark.slow
def test_control_c_at_any_moment_of_training(running):
    """In forward, backward, the optimizer's step or a checkpoint."""
    ours, path = running
    chosen, came = random.Random(2), 0

    def work():
        for step in range(3, 9):
            ours.steps(step, step + 1)
            ours.save(path.with_name("other"), step)

    for _ in range(300 if SOAK else 3):
        came += Interrupted()(work, chosen.random() * 0.4)
        assert again(ours, path, TierError) == 3
        assert [each for each in os.listdir(path.parent) if each.startswith(".")] == []
    path.with_name("other").unlink(missing_ok=True)
    assert came


def test_control_c_while_the_slots_memory_is_lent(running, monkeypatch):
    """Found by many moments: the ring had no slots from then on."""
    ours, path = running

    def interrupted(*_):
        monkeypatch.undo()
        raise KeyboardInterrupt

    monkeypatch.setattr(away.Memory, "on", interrupted)
    with pytest.raises(KeyboardInterrupt):
        ours.steps(3, 4)
    assert not ours.handle._engine.ring.slots
    assert again(ours, path, TierError) == 3
    ours.steps(3, 4)
    assert ours.handle._engine.ring.slots


@pytest.mark.parametrize("moment", [0, 1, 5, 9])
def test_control_c_while_weights_change_their_places(moment, tmp_path, monkeypatch):
    import test_tiers_attach as attaching

    model = attaching.net()
    want, trained = attaching.outputs(model), attaching.losses(model)
    handle = attaching.attached(model, "mixed", tmp_path)
    attaching.outputs(model)
    smaller = replace(handle._budgets, device=handle._budgets.device - 60 * KB, host=0)
    plan = handle._again(handle._groups, list(handle.plan.traced), False, smaller)
    place, calls = handle._engine.migration.place, iter(range(100))

    def interrupted(weight, tier):
        if next(calls) == moment:
            raise KeyboardInterrupt
        return place(weight, tier)

    monkeypatch.setattr(handle._engine.migration, "place", interrupted)
    with pytest.raises(KeyboardInterrupt):
        handle._apply(plan)
    assert attaching.equal(attaching.outputs(model), want)
    assert not handle.plan.host
    for _ in range(2):
        assert attaching.equal(attaching.losses(model), trained)
        assert attaching.equal(attaching.outputs(model), want)
    handle.close()


# Random schedules of training


def schedule(seed, folder):
    """A run in which all lies wherever it may, its transfers late by times that only the seed knows."""
    chosen = random.Random(seed)
    optimizer = chosen.choice([torch.optim.AdamW, torch.optim.SGD, torch.optim.RMSprop])
    places = {
        "device": chosen.randrange(240 * KB, 420 * KB),
        "host": chosen.choice([0, 300 * KB, "10MB"]),
        "states": chosen.choice(["auto", "host", "disk"]),
        "activations": chosen.choice(["device", "host", "disk"]),
        "threads": chosen.randrange(1, 4),
    }
    ours = Run(optimizer, disk=folder, disturb=Disturbed(seed), **places)
    steps = chosen.randrange(1, 4)
    assert ours.steps(0, steps).end() == resident(steps, optimizer), (seed, places)
    assert not os.listdir(folder), seed


def test_a_better_plan_that_finds_the_host_full_is_applied_once_others_have_left_it(tmp_path):
    """Found by the schedules: weights had to change places, and the run ended with TierCapacityError."""
    schedule(6, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(2))
def test_random_schedules_of_training_end_in_the_same_bits(part, tmp_path):
    for seed in range(part * 2, part * 2 + 2):
        schedule(seed, tmp_path)


@pytest.mark.soak
@pytest.mark.timeout(3000)
@pytest.mark.skipif(not SOAK, reason="make soak")
def test_a_thousand_random_schedules_of_training_end_in_the_same_bits(tmp_path):
    for seed in range(1000):
        schedule(seed, tmp_path)


IN_TORCH_AT_EXIT = """
import threading
import torch
from toprope.tiers.store.transfer import Load, Transfers

begun = threading.Event()

class Multiply:
    def run(self, worker, load):
        begun.set()
        product = torch.ones(1500, 1500)
        for _ in range(4):
            product = (product @ product).clamp(max=1)

transfers = Transfers(threads=2)
transfers.begin(Load("multiply", [Multiply() for _ in range(50)]))
assert begun.wait(60)
print("ended")
"""


def test_a_program_may_end_while_transfers_are_under_way():
    """Python ended the threads inside torch's code, which aborted the process ("terminate called")."""
    done = subprocess.run([sys.executable, "-c", IN_TORCH_AT_EXIT], capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stdout, done.stderr) == (0, "ended\n", "")
