"""Ranges of seconds: their arithmetic, and their text.

Holds src/toprope/estimate/cost/span.py.
"""

import pytest

from toprope.estimate.cost.span import NOTHING, Span, seconds_text, total_of


def test_the_likely_value_is_in_the_middle_by_ratio():
    assert Span.of(8.0, 4.0) == (4.0, 8.0, 16.0)
    assert Span.of(8.0, 4.0).ratio == 4.0
    assert Span.of(8.0, 1.0) == (8.0, 8.0, 8.0)
    assert NOTHING.ratio == 1.0


def test_sums_err_in_the_same_direction():
    one, other = Span(1.0, 2.0, 3.0), Span(10.0, 20.0, 40.0)
    assert one.plus(other) == (11.0, 22.0, 43.0)
    assert total_of([one, other, one]) == (12.0, 24.0, 46.0)
    assert total_of([]) == NOTHING == (0.0, 0.0, 0.0)
    assert one.times(3) == total_of([one] * 3) == (3.0, 6.0, 9.0)


def test_the_longer_of_two_is_longer_at_each_end():
    wide, narrow = Span(1.0, 5.0, 9.0), Span(3.0, 4.0, 6.0)
    assert wide.longer(narrow) == narrow.longer(wide) == (3.0, 5.0, 9.0)
    assert wide.longer(NOTHING) == wide


@pytest.mark.parametrize(("seconds", "text"), [
    (0.0, "0 us"), (1e-9, "0.001 us"), (1e-6, "1 us"), (1.5e-6, "1.5 us"), (9.9e-4, "990 us"),
    (1e-3, "1 ms"), (1.44e-3, "1.4 ms"), (0.9, "900 ms"),
    (1.0, "1 s"), (1.5, "1.5 s"), (61.0, "61.0 s"), (119.0, "119 s"),  # a minute is used from two on
    (120.0, "2 min"), (150.0, "2.5 min"), (3600.0, "60.0 min"), (7199.0, "120 min"),
    (7200.0, "2 h"), (9000.0, "2.5 h"), (360000.0, "100 h"),
])  # fmt: skip
def test_a_time_has_the_largest_unit_that_leaves_a_number_before_the_point(seconds, text):
    assert seconds_text(seconds) == text


@pytest.mark.parametrize(("seconds", "text"), [
    (1.04, "1 s"), (9.94, "9.9 s"), (9.96, "10.0 s"), (12.34, "12.3 s"), (99.4, "99.4 s"), (99.6, "100 s"),
])  # fmt: skip
def test_a_time_has_two_digits_or_as_many_as_stand_before_the_point(seconds, text):
    assert seconds_text(seconds) == text


def test_a_range_has_the_unit_of_its_upper_end_and_one_number_where_both_look_the_same():
    assert Span(1.2e-3, 1.4e-3, 1.6e-3).text == "1.2 to 1.6 ms"
    assert Span(0.5e-3, 1e-3, 2e-3).text == "0.5 to 2 ms"
    assert Span(0.9, 1.0, 1.1).text == "0.9 to 1.1 s"
    assert Span(1.201, 1.202, 1.203).text == "1.2 s"
    assert NOTHING.text == "0 us"
