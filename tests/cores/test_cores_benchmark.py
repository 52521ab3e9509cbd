"""benchmarks/cores.py makes the programs that it describes and draws its measurements; speed is not tested here."""

import importlib.util
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from toprope.cores.order import Graph
from toprope.cores.proof.bounds import heaviest_sets, largest_of_streams

SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "cores.py"


@pytest.fixture
def bench(monkeypatch):
    monkeypatch.syspath_prepend(SCRIPT.parent)
    spec = importlib.util.spec_from_file_location("benchmarks_cores", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, module)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "ROUNDS", 1)
    monkeypatch.setattr(module, "SIZES", (200, 400))
    return module


def test_cores_handed_on_fit_by_the_order_only(bench):
    program = bench.handed_on(4, 100)
    assert sum(1 for _ in program.ops()) == 400
    assert not all(bound.fits for bound in largest_of_streams(program))
    assert all(bound.fits for bound in heaviest_sets(Graph.of(program)))


def test_ranks_are_as_many_operators_as_they_say(bench):
    program = bench.ranks(4, 100, (12, 12, 12, 13))
    assert sum(1 for _ in program.ops()) == 1600
    assert program.members


def test_the_growth_is_measured_and_drawn(bench, monkeypatch):
    checked, check = [], bench.check
    monkeypatch.setattr(
        bench, "check", lambda program, **options: (checked.append(program), check(program, **options))[1]
    )
    lines = bench.growth()
    counts = {sum(1 for _ in program.ops()) for program in checked}
    assert counts == {200, 400}  # operators, as the axis says
    assert list(lines) == ["safe by S1", "safe by S2", "deadlock"]
    assert all([size for size, _ in line] == [200, 400] and min(line)[1] > 0 for line in lines.values())
    picture = ElementTree.fromstring(bench.draw([bench.Panel("A check", "operators", lines)]))
    circles = picture.findall(".//{http://www.w3.org/2000/svg}circle")
    assert len(circles) == 6
    assert all(0 < float(circle.get("cy")) < 280 for circle in circles)


def test_a_plan_of_eight_streams_is_measured(bench):
    row = bench.planned()
    assert row.seconds > 0
    assert row.target == 0.1
