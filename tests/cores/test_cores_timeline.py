"""The picture of a run (`simulation.timeline`, `timeline_svg`): it shows what happened, and is the same every time.

The `data-` attributes are compared with the run; the picture in the docs is drawn again.
"""

import re
from collections import defaultdict
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from toprope.cores import Card, Discipline, Op, Program, Run, State, Stream, hunt, record, simulate
from toprope.cores.simulation.timeline import MOST, PARTIAL, RUNS, WAITS, of_run, of_state
from toprope.cores.simulation.timeline_svg import page, svg

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = sorted((ROOT / "examples" / "cores").glob("*.json"))
FIGURE = ROOT / "examples" / "cores" / "figure.json"
SEED = 92  # the one of docs/figures/core-deadlock.svg
NS = "{http://www.w3.org/2000/svg}"


@pytest.fixture(scope="module")
def figure() -> Program:
    return record.read(FIGURE)


@pytest.fixture(scope="module")
def run(figure: Program) -> Run:
    return simulate(figure, Discipline.D0B, SEED)


def drawn(text: str) -> ET.Element:
    root = ET.fromstring(text)
    assert root.tag == f"{NS}svg"
    return root


def blocks(root: ET.Element) -> list[dict[str, str]]:
    return [dict(each.attrib) for each in root.iter(f"{NS}rect") if "data-op" in each.attrib]


def texts(root: ET.Element) -> list[str]:
    return ["".join(each.itertext()) for each in root.iter(f"{NS}text")]


def check_sums(program: Program, root: ET.Element) -> None:
    """At no time do the blocks of a card and kind hold more cores than it has, or lie on each other."""
    by_band: dict[tuple[str, str], list[dict[str, str]]] = defaultdict(list)
    for block in blocks(root):
        by_band[block["data-card"], block["data-kind"]].append(block)
    for (name, kind), found in by_band.items():
        (card,) = (each for each in program.cards if each.name == name)
        spans = [
            (float(each["data-begin"]), float(each["data-end"] or "inf"), int(each["data-cores"])) for each in found
        ]
        for moment in {begin for begin, _, _ in spans}:
            held = sum(cores for begin, end, cores in spans if begin <= moment < end)
            assert held <= card.cores[("cube", "vector").index(kind)]
        boxes = [[float(each[key]) for key in ("x", "y", "width", "height")] for each in found]
        for place, (x, y, width, height) in enumerate(boxes):
            for other_x, other_y, other_width, other_height in boxes[:place]:
                beside = min(x + width, other_x + other_width) - max(x, other_x) < 0.02
                assert beside or min(y + height, other_y + other_height) - max(y, other_y) < 0.02


def test_the_figure_of_the_docs(figure: Program, run: Run) -> None:
    assert run.deadlocked
    root = drawn(svg(of_run(run)))
    check_sums(figure, root)
    stuck = {(each["data-card"], each["data-op"]): each for each in blocks(root) if not each["data-end"]}
    held = {
        figure.op(tuple(map(int, op.split(":")))).name + card: int(each["data-cores"])
        for (card, op), each in stuck.items()
    }
    assert held == {"ReduceScatter0": 16, "NonZero0": 32, "DispatchCombine1": 24, "NonZero1": 24}
    states = {key: each["data-state"] for key, each in stuck.items()}
    assert states == {("0", "0:0"): WAITS, ("0", "2:0"): PARTIAL, ("1", "4:0"): WAITS, ("1", "5:0"): PARTIAL}
    idle = [each.attrib["data-idle"] for each in root.iter() if "data-idle" in each.attrib]
    assert sorted(idle) == ["1:0", "3:0"]
    bands = [
        (each.attrib["data-band"], each.attrib["data-cores"]) for each in root.iter() if "data-band" in each.attrib
    ]
    assert bands == [("0 vector", "48"), ("1 vector", "48")]
    moments = [each for each in root.iter() if "data-moment" in each.attrib]
    assert len(moments) == 2
    said = texts(root)
    for text in ("ReduceScatter  16 of 16", "NonZero  32 of 48", "waits for 16 cores", "waits for its peer on card 1"):
        assert text in said
    assert any("deadlock, nothing goes on" in text for text in said)
    assert {"reduce", "experts", "compute"} <= set(said)


def test_the_cycle_is_drawn_as_arrows_in_its_order(figure: Program, run: Run) -> None:
    timeline = of_run(run)
    cycle = run.end.cycle()
    assert len(cycle) == 6
    root = drawn(svg(timeline))
    arrows = [
        (each.attrib["data-from"], each.attrib["data-to"])
        for each in root.iter(f"{NS}path")
        if "data-from" in each.attrib
    ]
    named = [f"{stream}:{place}" for stream, place in cycle]
    assert arrows == [(named[step], named[(step + 1) % 6]) for step in range(6)]
    assert [arrow.text for arrow in timeline.arrows] == ["16 cores", "peer", "16 cores", "24 cores", "peer", "24 cores"]
    assert timeline.cycle[0] == "NonZero(0) waits for 16 cores; ReduceScatter(0) holds 16 cores"
    assert set(timeline.cycle) <= set(texts(root))
    # and in the description for those who do not see it
    description = root.find(f"{NS}desc")
    assert description is not None
    assert all(step in (description.text or "") for step in timeline.cycle)
    assert root.attrib["role"] == "img"


def test_a_moment_alone_is_a_picture(figure: Program) -> None:
    timeline = of_state(State(figure, (0,) * 6, (16, 0, 32, 0, 24, 24)))
    root = drawn(svg(timeline, "A witness", subtitle="of <48> cores & more"))
    check_sums(figure, root)
    assert sorted(int(each["data-cores"]) for each in blocks(root)) == [16, 24, 24, 32]
    assert {"A witness", "of <48> cores & more"} <= set(texts(root))
    assert len(timeline.arrows) == 6


def test_the_same_run_is_the_same_picture_and_stands_in_the_docs(run: Run) -> None:
    text = svg(of_run(run), subtitle="examples/cores/figure.json, D0b, seed 92")
    assert text == svg(of_run(run), subtitle="examples/cores/figure.json, D0b, seed 92")
    # made by: toprope cores show examples/cores/figure.json --seed 92 --svg docs/figures/core-deadlock.svg
    assert text == (ROOT / "docs" / "figures" / "core-deadlock.svg").read_text(encoding="utf-8")


def test_nothing_from_elsewhere_and_both_themes(run: Run) -> None:
    for text in (svg(of_run(run)), page("title", "a <report> & more", [("", of_run(run)), ("two", of_run(run))])):
        assert "<script" not in text
        assert not re.search(r"(?:href|src)=|url\((?!#)|@import", text)
        assert "prefers-color-scheme:dark" in text


def test_a_page_has_the_report_and_every_name_once(run: Run) -> None:
    text = page("figure.json", "a <report> & more", [("", of_run(run)), ("two", of_run(run))])
    assert "<pre>a &lt;report&gt; &amp; more</pre>" in text
    ids = re.findall(r' id="([^"]+)"', text)
    assert len(ids) == len(set(ids)) == 6
    used = set(re.findall(r"url\(#([^)]+)\)", text)) | set(" ".join(re.findall(r'labelledby="([^"]+)"', text)).split())
    assert used == set(ids)


def luminance(colour: str) -> float:
    parts = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def test_text_on_blocks_has_contrast(run: Run) -> None:
    light, dark = svg(of_run(run)).partition("</style>")[0].split("@media")
    for theme in (light, dark):
        ink = re.search(r"text\{fill:(#\w{6})", theme)
        fills = re.findall(r"\.s\d\{fill:(#\w{6})", theme)
        page_colour = re.search(r"\.page,\.chip\{fill:(#\w{6})", theme)
        assert ink is not None
        assert page_colour is not None
        for fill in [*fills, page_colour[1]]:
            brighter, darker = sorted((luminance(ink[1]), luminance(fill)), reverse=True)
            assert (brighter + 0.05) / (darker + 0.05) >= 4.5  # WCAG AA


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_every_example_can_be_drawn(path: Path) -> None:
    program = record.read(path)
    run = hunt(program, seeds=range(40)) or simulate(program)
    timeline = of_run(run)
    root = drawn(svg(timeline))
    check_sums(program, root)
    shown = {each["data-op"] for each in blocks(root)} | {
        each.attrib["data-idle"] for each in root.iter() if "data-idle" in each.attrib
    }
    # everything that could begin is there
    assert {f"{each.op[0]}:{each.op[1]}" for each in run.intervals} <= shown
    assert bool(timeline.arrows) == bool(run.deadlocked and run.end.cycle())


@st.composite
def runs(draw: st.DrawFn) -> Run:
    card = Card("0", draw(st.integers(1, 8)), draw(st.integers(1, 8)))
    ops = st.builds(
        Op,
        name=st.sampled_from(["a", "<b>"]),
        cube=st.integers(0, card.cube),
        vector=st.integers(0, card.vector),
        sync_all=st.booleans(),
        microseconds=st.sampled_from([0.0, 1.0, 2.5]),
    )
    queues = draw(st.lists(st.lists(ops, min_size=1, max_size=3), min_size=1, max_size=4))
    streams = tuple(Stream(f"s{number}", "0", tuple(queue)) for number, queue in enumerate(queues))
    return simulate(Program((card,), streams), draw(st.sampled_from(Discipline)), draw(st.integers(0, 50)))


@settings(deadline=None, max_examples=60)
@given(runs())
def test_blocks_are_what_operators_held(run: Run) -> None:
    timeline = of_run(run)
    check_sums(run.program, drawn(svg(timeline)))
    for interval in run.intervals:
        mine = [each for each in timeline.blocks if each.op == interval.op]
        block = run.program.op(interval.op).block
        for time, held in dict(interval.held).items():
            if not held or time == interval.end:
                continue
            for kind in (0, 1):
                seen = sum(
                    each.cores for each in mine
                    if each.kind == kind and each.begin <= time and (each.end is None or time < each.end)
                )  # fmt: skip
                assert seen == held * block[kind]
        if interval.running is not None and interval.end is not None and interval.end > interval.running and mine:
            assert any(each.state == RUNS for each in mine)


def test_of_a_long_run_the_end_is_shown() -> None:
    ops = tuple(Op("add", vector=4, microseconds=1.0) for _ in range(MOST // 2 + 200))
    program = Program((Card("0", 24, 48),), (Stream("a", "0", ops), Stream("b", "0", ops)))
    timeline = of_run(simulate(program))
    assert len({each.op for each in timeline.blocks}) <= MOST
    assert (
        timeline.notes[0]
        == f"the last {len({each.op for each in timeline.blocks})} of {2 * len(ops)} operators are shown"
    )
    assert timeline.begin > 0
    check = {each.op[1] for each in timeline.blocks}
    assert max(check) == len(ops) - 1
