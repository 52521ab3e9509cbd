"""The figures of an attached model (`engine.stats`, `prefetch.timeline`) against what really moved."""

import itertools
import json
import os
import time
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from toprope.tiers import attach, skeleton
from toprope.tiers.engine import attach as attaching
from toprope.tiers.engine.prefetch.timeline import Timeline
from toprope.tiers.plan.model import Link, Links
from toprope.tiers.store.transfer import Clock

MIB = 2**20
X = torch.randn(2, 512, generator=torch.Generator().manual_seed(0))


pytestmark = pytest.mark.usefixtures("one_thread")


def chain(count=8):
    """Layers of 1 MiB each."""
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Linear(512, 512, bias=False) for _ in range(count)))


def run(model, count=1):
    with torch.no_grad():
        for _ in range(count):
            model(X)


def settled(handle):
    """What was begun for the next pass has ended."""
    for slot in handle._engine.ring.slots:
        if slot.load is not None:
            slot.load.join()
    return handle.stats()


def read_bytes():
    return int(Path("/proc/self/io").read_text().split("read_bytes: ")[1].split()[0])


def test_30_bytes_from_the_disk_are_those_that_the_system_counts(tmp_path):
    whole = chain()
    path = tmp_path / "model.safetensors"
    save_file(whole.state_dict(), path)
    descriptor = os.open(path, os.O_RDONLY)
    os.fsync(descriptor)
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(descriptor)
    with skeleton():
        model = chain()
    with attach(model, "3MB", 0, tmp_path, small="100kB") as handle:
        run(model, 2)
        settled(handle)
        for _ in range(5):  # pages of code that this process has to read again, where memory is short, count as well
            handle.reset_stats()
            before = read_bytes()
            run(model, 6)
            stats, counted = settled(handle), read_bytes() - before
            if abs(counted - stats.moved["disk_read"]) <= 0.02 * counted:
                break
        assert stats.loads >= 6 * 5  # two or three of eight layers are on the device
        assert (stats.moved["disk_write"], stats.moved["host_to_device"]) == (0, 0)
        if stats.moved["page_cache"]:  # a file system without direct reads
            assert stats.moved["page_cache"] + stats.moved["disk_read"] >= stats.loads * MIB
        else:
            assert stats.loads * MIB <= stats.moved["disk_read"] <= stats.loads * (MIB + 2 * 4096)
            assert abs(counted - stats.moved["disk_read"]) <= 0.02 * counted
        assert 0 <= stats.overlap <= 1 <= stats.ratio
        assert stats.peak_bytes["device"] <= 3_000_000
        assert (stats.peak_bytes["host"], stats.peak_bytes["disk"]) == (0, 0)


def test_bytes_from_the_host_and_hits_and_steps():
    model = chain()
    with attach(model, "3MB", "10MB", small="100kB") as handle:
        run(model, 2)
        settled(handle)
        handle.reset_stats()
        assert not any(handle.stats().moved.values())
        run(model, 5)
        stats = settled(handle)
        assert stats.moved == dict.fromkeys(stats.moved, 0) | {"host_to_device": stats.loads * MIB}
        streamed = len(handle.plan.host)
        assert stats.hits + stats.unexpected == 5 * streamed
        assert 4 <= stats.steps <= 5
        assert (stats.changed_orders, stats.training) == (0, {})
        # what stays there counts
        assert stats.peak_bytes["device"] == handle.plan.resident_bytes + handle.plan.slots * handle.plan.slot_bytes
        assert stats.budget_bytes == {"device": 3_000_000, "host": 10_000_000, "disk": 0}


@pytest.mark.parametrize("computes", [0.0, 0.012])
def test_waiting_and_overlap_are_what_a_clock_beside_them_says(computes):
    model = chain(6)
    for each in model:
        each.register_forward_hook(lambda *_: time.sleep(computes))
    with attach(model, "3MB", "10MB", small="100kB", disturb=lambda: time.sleep(0.003)) as handle:
        run(model, 2)
        for _ in range(10):  # other programs make threads late: one try without them is enough
            settled(handle)
            handle.reset_stats()
            begin = time.perf_counter()
            run(model, 3)
            wall = time.perf_counter() - begin
            stats = settled(handle)
            whole = time.perf_counter() - begin  # loads for the next run are waited for as well
            assert stats.loads * 0.006 / 2 <= stats.moving_seconds  # two requests of at least 3 ms each, two at a time
            assert stats.moving_seconds <= whole
            assert stats.waited_seconds <= whole - 18 * computes
            if stats.overlap > 0.5 if computes else stats.overlap < 0.5 < stats.waited_seconds / wall:
                break
        else:
            pytest.fail(f"{stats} in {wall} s")


def test_two_that_move_at_once_count_once():
    clock, begin = Clock(), time.perf_counter()
    clock.start()
    clock.start()
    time.sleep(0.02)
    clock.stop()
    time.sleep(0.01)
    assert clock.moving >= 0.03
    clock.stop()
    took = clock.moving
    assert took <= time.perf_counter() - begin
    clock.copied("host_to_device", 10, 0.5)
    assert (clock.moving, clock.waited, clock.moved) == (took + 0.5, 0.5, {"host_to_device": 10})


def test_training_counts_gradients_states_and_weights_on_their_way(tmp_path):
    model = chain(4)
    weights = sum(each.nbytes for each in model.parameters())
    handle = attach(model, "4.5MB", "40MB", tmp_path, training=True, small="100kB", states="disk", activations="host")
    optimizer = handle.optimizer(torch.optim.Adam(model.parameters()))
    for step in range(2):
        if step:
            for each in handle.training.optimizers.store.stores:
                each.flush()
            settled(handle)
            handle.reset_stats()
        model(X.repeat(100, 1)).square().sum().backward()
        gone = handle.stats().moved["device_to_host"]
        optimizer.step()
        optimizer.zero_grad()
    for each in handle.training.optimizers.store.stores:
        each.flush()
    stats = settled(handle)
    told = stats.training
    away = sum(1 for home in handle.plan.homes if home.what == "weights" and home.tier != "device")
    out = sum(home.bytes for home in handle.plan.homes if home.what == "gradients" and home.tier != "device")
    # gradients that leave the device, and activations; then the weights that do not live on it
    assert gone == out + told["activations_moved_bytes"] // 2 > 0
    assert stats.moved["device_to_host"] == gone + away * MIB
    assert 2 * weights <= stats.moved["disk_write"] <= 2.02 * weights  # tiles end within blocks
    assert stats.peak_bytes["disk"] >= 2 * weights
    assert stats.peak_bytes["host"] <= 40_000_000
    handle.detach()


def test_every_figure_says_where_it_comes_from():
    model, fast = chain(4), Link(5e9, "measured", "a test")
    guess = Link(25e9, "profile", "a chip")
    links = Links(fast, guess, fast)
    with attach(model, "2.2MB", "10MB", small="100kB", links=links) as handle:
        first = handle.stats()
        run(model, 3)
        stats = handle.stats()
        names = set(json.loads(stats.to_json()))
        assert set(stats.sources) == names - {"links", "sources"}
        assert first.sources["limit_seconds"] == "estimate"  # of computing nothing is known yet
        assert stats.sources["limit_seconds"] == stats.sources["ratio"] == "measured"
        assert (stats.sources["moved"], stats.sources["budget_bytes"]) == ("measured", "configured")
        assert stats.links["host_to_device"] == {"bytes_per_second": 5e9, "word": "measured", "source": "a test"}
        assert "disk_read" not in stats.links
    with attach(model, "2.2MB", "10MB", small="100kB") as handle:  # so small that links are not measured
        run(model, 3)
        assert handle.stats().sources["ratio"] == "estimate"


# The timeline


def test_the_timeline_shows_every_load_and_every_use(tmp_path):
    model = chain()
    with attach(model, "3MB", "10MB", small="100kB") as handle:
        run(model, 4)
        stats = settled(handle)
        until = time.monotonic() + 20
        while sum(what == "ready" for _, what, *_ in list(handle.timeline._events)) < stats.loads:
            assert time.monotonic() < until
            time.sleep(0.01)  # threads tell of their last loads
        spans = handle.timeline.spans()
        loads = [each for each in spans if each.what == "load"]
        uses = [each for each in spans if each.what == "use"]
        assert len(loads) == stats.loads
        assert len(uses) == 4 * len(handle.plan.host)
        names = {each.name for each in handle.plan.groups} - set(handle.plan.resident)
        assert {each.unit for each in spans} == names
        for slot in {each.slot for each in spans}:
            row = [each for each in spans if each.slot == slot]
            for one, other in itertools.pairwise(row):
                assert one.end <= other.begin + 1e-9
                if other.what != "load":
                    assert one.unit == other.unit  # nothing is used that was not loaded there before
        handle.save_timeline(tmp_path / "all.svg")
        handle.save_timeline(tmp_path / "end.svg", seconds=0.0001)
    drawn = ElementTree.parse(tmp_path / "all.svg").getroot()
    boxes = [each for each in drawn.iter() if each.tag.endswith("rect")]
    assert [each.get("class") for each in boxes].count("load") == stats.loads
    assert len([each for each in drawn.iter() if each.tag.endswith("rect")]) == len(spans)
    texts = " ".join(each.text or "" for each in drawn.iter() if each.tag.endswith("text"))
    assert "slot 0 slot 1" in texts
    assert f"{len(handle.plan.resident)} of 8 groups always stay on the device" in texts
    assert [each.text for each in drawn if each.tag.endswith("title")] == ["Slots over time"]
    assert "prefers-color-scheme:dark" in (tmp_path / "all.svg").read_text()
    assert (tmp_path / "end.svg").read_text().count("<rect") < len(boxes)


def test_a_thread_that_tells_late_of_its_load_does_not_end_a_use():
    timeline = Timeline()
    events = [(1, "load", 0, "a"), (2, "use", 0, "a"), (2.1, "ready", 0, "a"), (3, "free", 0, "a")]
    events += [(4, "load", 0, "b"), (4.1, "ready", 0, "a"), (5, "ready", 0, "b"), (6, "load", 1, "c <&>")]
    timeline._events.extend(events)
    timeline._since = time.perf_counter() - 10
    spans = [(each.slot, each.unit, each.what, each.begin, round(each.end)) for each in timeline.spans()]
    assert spans == [
        (0, "a", "load", 1, 2), (0, "a", "use", 2, 3), (0, "a", "ready", 3, 4), (0, "b", "load", 4, 5),
        (0, "b", "ready", 5, 6), (1, "c <&>", "load", 6, 10),
    ]  # fmt: skip
    assert "c &lt;&amp;&gt;: load" in timeline.svg()
    few = Timeline(most=3)
    for number in range(5):
        few.note("load", SimpleNamespace(number=0), SimpleNamespace(name=str(number)))
    assert [each.unit for each in few.spans()] == ["2", "3", "4"]


# Progress


def test_what_takes_long_is_told(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(attaching, "_QUIET_SECONDS", 0.0)
    model, told = chain(), []
    weights = 8 * MIB
    with attach(model, "3MB", 0, tmp_path, small="100kB", progress=lambda done, total: told.append((done, total))):
        assert told[-1] == (weights, weights)
    assert capsys.readouterr().err == ""
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    with attach(chain(), "3MB", 0, tmp_path, small="100kB"):
        shown = capsys.readouterr().err
    assert "weights" in shown
    assert "8.4 MB of 8.4 MB" in shown
