"""Timelines computed by hand: which of host and streams waits for which.

Holds timeline.py and changes.py in src/toprope/estimate/cost.
"""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toprope import chips
from toprope.estimate.cost.changes import changes
from toprope.estimate.cost.rates import rates_of
from toprope.estimate.cost.span import Span, seconds_text
from toprope.estimate.cost.timeline import Act, Timeline

SPANS = st.floats(1e-7, 1e-2).map(lambda likely: Span.of(likely, 1.5))


def launch(host, card, stream=0, kind="elementwise"):
    return Act("launch", stream=stream, host=Span(host, host, host), card=Span(card, card, card), kind=kind)


def test_the_card_waits_for_slow_launches():
    made = Timeline.of([launch(10, 1), launch(10, 1), launch(10, 1)])
    assert made.total.likely == 31
    assert made.bound == "launches"


def test_launches_hide_behind_a_busy_card():
    made = Timeline.of([launch(1, 10), launch(1, 10), launch(1, 10)])
    assert made.total.likely == 31
    assert made.bound == "card"


def test_a_wait_lets_the_host_fall_behind():
    wait = Act("synchronise", host=Span(5, 5, 5))
    made = Timeline.of([launch(1, 10), wait, launch(1, 10)])
    assert made.total.likely == 1 + 10 + 5 + 1 + 10
    assert made.waited == 10


def test_streams_run_side_by_side_until_an_event_ties_them():
    free = [launch(0, 10), launch(0, 10, stream=1)]
    assert Timeline.of(free).total.likely == 10
    tied = [launch(0, 10), Act("record", event=7), Act("wait", stream=1, event=7), launch(0, 10, stream=1)]
    assert Timeline.of(tied).total.likely == 20


def test_a_wait_for_one_stream_does_not_wait_for_the_other():
    made = Timeline.of([launch(0, 3), launch(0, 100, stream=1), Act("synchronise", stream=0)])
    assert made.waited == 3


def test_a_step_ends_when_the_card_has_ended_it():
    step = [launch(1, 10), Act("mark", kind="training")]
    assert [span.likely for span in Timeline.of(step * 4).steps("training")] == [10, 10, 10]


def test_steps_are_between_marks():
    step = [launch(2, 1), Act("mark", kind="training")]
    assert [span.likely for span in Timeline.of(step * 4).steps("training")] == [2, 2, 2]


@given(st.lists(st.tuples(SPANS, SPANS, st.integers(0, 2)), max_size=20))
def test_the_whole_takes_at_least_each_part_and_at_most_all_of_them(parts):
    acts = [Act("launch", stream=stream, host=host, card=card, kind="matmul") for host, card, stream in parts]
    made = Timeline.of(acts)
    for end in range(3):
        host = sum(act.host[end] for act in acts)
        assert made.total[end] >= host * (1 - 1e-9)
        assert made.total[end] <= (host + sum(act.card[end] for act in acts)) * (1 + 1e-9)
        for stream in range(3):
            busy = sum(act.card[end] for act in acts if act.stream == stream)
            assert made.total[end] >= busy * (1 - 1e-9)
    assert made.total.low <= made.total.likely <= made.total.high


def test_what_would_save_most_comes_first():
    rates = rates_of(chips.get("910B3"))
    small = [launch(20e-6, 2e-6) for _ in range(100)]
    waits = [each for act in small for each in (act, Act("synchronise", host=rates.synchronise()))]
    made = Timeline.of(waits)
    found = changes(waits, rates, made.total)
    assert 0 < len(found) <= 3
    assert [one.saves.likely for one in found] == sorted((one.saves.likely for one in found), reverse=True)
    assert any("wait for the card less often" in one.what for one in found)
    assert all(one.saves.low <= one.saves.likely <= one.saves.high for one in found)


def saved(acts, word):
    """Microseconds that the change with this word in its text saves."""
    (found,) = [one for one in changes(acts, RATES, Timeline.of(acts).total) if word in one.what]
    return found.saves.likely * 1e6


RATES = rates_of(chips.get("910B3"))
US = 1e-6


def test_a_graph_saves_what_its_launches_are_shorter():
    acts = [launch(20 * US, 0.5 * US) for _ in range(100)]
    graph = RATES.launch(graph=True).likely * 1e6
    assert 0.5 < graph < 20
    assert saved(acts, "by a graph") == pytest.approx(100 * (20 - graph))


def test_a_batch_of_twice_the_size_halves_the_launches_and_doubles_the_work_of_each():
    mark = Act("mark", kind="training")
    acts = [mark, *[launch(20 * US, 2 * US) for _ in range(50)], mark]
    assert saved(acts, "a batch of twice the size") == pytest.approx((50 * 20 + 2) - (25 * 20 + 2 * 2))


def test_fused_operators_leave_out_half_of_the_small_ones_and_none_of_the_others():
    acts = [launch(20 * US, 30 * US) for _ in range(40)] + [launch(20 * US, 30 * US, kind="softmax")]
    assert saved(acts, "fused operators") == pytest.approx(20 * 30)
    assert not any("fused operators" in one.what for one in changes(acts[:-1], RATES, Timeline.of(acts).total))


def test_a_program_that_keeps_the_card_busy_has_nothing_to_save():
    acts = [launch(1e-6, 1e-2, kind="matmul") for _ in range(10)]
    made = Timeline.of(acts)
    assert changes(acts, rates_of(chips.get("910B3")), made.total) == []


@pytest.mark.parametrize(
    ("seconds", "text"), [(2.3e-6, "2.3 us"), (0.0014, "1.4 ms"), (0.25, "250 ms"), (90, "90.0 s"), (7300, "2 h")]
)
def test_times_for_a_reader(seconds, text):
    assert seconds_text(seconds) == text
    assert Span(seconds, seconds, seconds).text == text
