"""`toprope tiers plan`: its table, JSON and picture, the output that the docs show, errors; the links that it measures.

Holds `cli.tiers` and `tiers.plan.report`.
"""

import json
import re
import xml.etree.ElementTree as ET
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from model_folders import FAMILIES, write
from toprope import device
from toprope.cli import main
from toprope.errors import PlanError
from toprope.terminal import render
from toprope.tiers.plan import Budgets, Group, Link, Links, Member, plan, training_order
from toprope.tiers.plan.budgets import Free, resolve
from toprope.tiers.plan.links import estimate, measure, measure_memory, measure_read, measure_write
from toprope.tiers.plan.report import as_dict, seconds_text, svg, table

pytestmark = pytest.mark.native

ROOT = Path(__file__).resolve().parents[2]
GB = 10**9
Run = tuple[int, str, str]


@pytest.fixture
def toprope(capsys: pytest.CaptureFixture[str]) -> Any:
    def call(*words: str) -> Run:
        status = main(["tiers", "plan", *words])
        seen = capsys.readouterr()
        assert "Traceback" not in seen.err
        return status, seen.out, seen.err

    return call


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    made = tmp_path_factory.mktemp("model")
    shapes, _ = FAMILIES["llama"]
    large = {name: (1024, 1024) if "layers" in name and len(shape) > 1 else shape for name, shape in shapes.items()}
    write(made / "model.safetensors", large)
    return str(made)


def test_a_plan_for_a_chip_that_is_not_here(toprope: Any, folder: str, tmp_path: Path) -> None:
    picture = tmp_path / "plan.svg"
    status, out, err = toprope(
        folder, "--chip", "910B3", "--device", "20MB", "--host", "10MB", "--compute", "0.5", "--svg", str(picture)
    )
    assert (status, err) == (0, "")
    assert out.startswith("46.1 MB of weights in 14 groups\n  tier     holds ")
    assert re.search(r"device +\d+\.\d MB \( ?\d groups, fixed\) \+ \d slots of 4\.2 MB\n", out)
    assert re.search(r"host +\d\.\d MB \( ?\d groups?\).* 25\.0 GB/s \(estimate\) +\d", out)
    assert re.search(r"disk +\d+\.\d MB \( ?\d groups\) +[\d.]+ .B/s \((measured|estimate)\)", out)
    assert "compute 500 ms a pass   limit " in out
    assert out.endswith("order and groups from the names of layers (model.layers.N); nothing was moved\n")
    ET.fromstring(picture.read_text())
    status, out, _ = toprope(folder, "--chip", "910B3", "--device", "20MB", "--host", "10MB", "--json")
    facts = json.loads(out)
    held = facts["device"]["bytes"] + facts["slots"]["count"] * facts["slots"]["bytes"]
    assert held <= facts["budgets"]["device"] == 20_000_000
    assert facts["compute"] == "estimate"
    assert facts["device_memory"]["word"] == "profile"
    assert facts["predicted_seconds"] >= facts["limit_seconds"] > 0
    assert set(facts["device"]["groups"] + facts["host"]["groups"] + facts["disk"]["groups"]) == set(
        FAMILIES["llama"][1]
    )


def test_a_plan_for_this_processor_is_measured(toprope: Any, folder: str) -> None:
    status, out, _ = toprope(folder, "--on", "cpu", "--device", "20MB", "--host", "60MB", "--json")
    links = json.loads(out)["links"]
    assert status == 0
    assert links["unified"]
    assert links["host_to_device"]["word"] == links["memory"]["word"] == "measured"


def test_what_cannot_be_done_is_one_error(toprope: Any, folder: str, tmp_path: Path) -> None:
    for words, status, text in (
        ([folder, "--chip", "910B3", "--device", "1MB"], 2, "one tensor alone is larger than the device's budget"),
        ([folder, "--chip", "910B3", "--device", "10"], 2, "do         give the device at least "),
        ([str(tmp_path)], 2, "has no safetensors files"),
        ([folder, "--device", "much"], 2, "'much' is not a size"),
        ([folder, "--chip", "910B3", "--on", "cpu"], 2, "--chip and --on are two devices"),
        ([folder, "--json", "--svg", "-"], 2, "both write to stdout"),
        ([folder, "--disk", str(tmp_path / "none")], 2, "is no folder"),
    ):
        found = toprope(*words)
        assert (found[0], found[1]) == (status, "")
        assert text in found[2]


def example() -> Any:
    """The plan of docs/tiers.md."""
    links = Links(
        Link(24.8 * GB, "measured"), Link(24.8 * GB, "measured"), Link(8 * GB, "measured"),
        Link(1.1 * GB, "measured"), Link(1.0 * GB, "measured"),
    )  # fmt: skip
    groups = [Group.of(f"model.layers.{number}", 820_000_000, 1.1 / 83) for number in range(83)]
    return plan(groups, [each.name for each in groups], Budgets(24 * GB, 45 * GB, 500 * GB), links)


def test_the_table_in_the_docs_is_what_is_printed() -> None:
    page = (ROOT / "docs" / "tiers.md").read_text()
    shown = render(
        table(example(), "estimate", "order and groups from the names of layers (model.layers.N); nothing was moved")
    )
    assert shown in page


def test_the_code_in_the_docs_runs(capsys: pytest.CaptureFixture[str]) -> None:
    page = (ROOT / "docs" / "tiers.md").read_text()
    blocks = re.findall(r"```python\n(.*?)```", page[page.index("## Planning") :], re.DOTALL)
    code = next(each for each in blocks if "toprope.tiers.plan import" in each)
    exec(compile(code, "docs/tiers.md", "exec"), {})
    printed = capsys.readouterr().out.splitlines()
    assert printed == [line.partition("# ")[2] for line in code.splitlines() if line.startswith("print(")]


def test_the_picture_has_every_group_and_lanes_do_one_thing_at_a_time() -> None:
    groups = [Group(str(n), (Member(f"{n}<w", 4 * 10**6),), 0.001, 10**6, 10**6, 10**6, 0.001) for n in range(6)]
    links = Links(Link(1e9), Link(1e9), Link(1e9), Link(1e8), Link(1e8))
    made = plan(
        groups, training_order(each.name for each in groups), Budgets(14 * 10**6, 9 * 10**6, GB), links, training=True
    )
    root = ET.fromstring(svg(made, "a <model>"))
    elements = list(root.iter())
    cells = {each.get("data-group"): each.get("data-tier") for each in elements if each.get("data-tier")}
    assert cells == {
        name: tier
        for tier in ("device", "host", "disk")
        for name in getattr(made, "resident" if tier == "device" else tier)
    }
    lanes: dict[str, list[tuple[float, float]]] = {}
    for each in elements:
        if each.get("data-lane"):
            span = (float(each.get("data-begin", "")), float(each.get("data-end", "")))
            lanes.setdefault(each.get("data-lane", ""), []).append(span)
            assert 130 <= float(each.get("x", "")) <= float(each.get("x", "")) + float(each.get("width", "")) <= 930.02
    assert set(lanes) == {"compute", "host -> device", "device -> host", "disk"}
    for spans in lanes.values():
        spans.sort()
        assert all(first[1] <= second[0] + 1e-9 for first, second in pairwise(spans))
    busy = sum(end - begin for begin, end in lanes["compute"])
    assert busy == pytest.approx(made.compute_seconds)
    json.dumps(as_dict(made))


def test_links_are_measured_in_under_a_second_each_and_say_so(tmp_path: Path, folder: str) -> None:
    memory = measure_memory(0.05)
    assert memory.word == "measured"
    assert memory.bytes_per_second > 1e8
    read = measure_read(Path(folder) / "model.safetensors", 0.1)
    assert read.bytes_per_second > 0
    assert read.word == "measured" or "NVMe" in read.source
    write = measure_write(tmp_path, 0.1)
    assert write.word == "measured" or "NVMe" in write.source
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "holes").touch()
    with (tmp_path / "holes").open("r+b") as stream:
        stream.truncate(2**24)
    assert measure_read(tmp_path / "holes") == measure_read(tmp_path / "none") == estimate("disk_read")
    assert {measure(None).links.host_to_device.word, measure(None).device_memory.word} == {"estimate"}


def test_the_memory_of_a_device_that_has_the_hosts_is_measured_by_copies_there() -> None:
    """A copy of a byte reads one and writes one: the memory moves twice as many as are copied."""
    speeds = measure(device.get("cpu"))
    assert speeds.links.unified
    assert speeds.links.host_to_device == speeds.links.device_to_host == speeds.links.memory
    assert speeds.device_memory.word == "measured"
    assert speeds.device_memory.bytes_per_second == 2 * speeds.links.memory.bytes_per_second


def test_automatic_budgets_leave_room() -> None:
    giga = 2**30
    assert resolve(Free(100 * giga, 20 * giga, 7)) == Budgets(95 * giga, 8 * giga, 7)
    assert resolve(Free(100 * giga, 20 * giga, 7), activations=30 * giga).device == 70 * giga - 20 * 2**20
    assert resolve(Free(2**26, 0)).device == 48 * 2**20  # torch's allocator takes 20 MiB at a time
    assert resolve(Free(None, 2 * giga), device="1GiB", host="0") == Budgets(giga, 0, None)
    shared = resolve(Free(20 * giga, 20 * giga, unified=True))
    assert shared.device + shared.host == 8 * giga
    assert resolve(Free(20 * giga, 20 * giga, unified=True), device=5 * giga).host == 3 * giga
    assert resolve(Free(None, 3 * giga), device=1).host == 0
    with pytest.raises(PlanError, match="does not report its free memory"):
        resolve(Free(None, 20 * giga))
    with pytest.raises(PlanError, match="less free space than its budget"):
        resolve(Free(1, 1, 10), disk="11B")


def test_times_have_three_digits() -> None:
    assert [seconds_text(each) for each in (1.849, 12.34, 345.6, 0.0123, 4.5e-4, 0)] == [
        "1.85 s", "12.3 s", "346 s", "12.3 ms", "450 us", "0.00 us",
    ]  # fmt: skip
