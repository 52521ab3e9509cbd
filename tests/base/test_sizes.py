"""Sizes as text ("1.5GiB"): reading, refusing and printing.

Holds src/toprope/sizes.py.
"""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toprope.errors import SizeError
from toprope.sizes import decimal, gibibytes, parse_size

UNITS = {
    "": 1,
    "B": 1,
    "kB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "TB": 10**12,
    "KiB": 2**10,
    "MiB": 2**20,
    "GiB": 2**30,
    "TiB": 2**40,
}
BYTES = st.integers(1, 2**60)


@given(number=st.integers(1, 10**6), unit=st.sampled_from(sorted(UNITS)), gap=st.sampled_from(["", " ", "  "]))
def test_whole_numbers_of_any_unit(number, unit, gap):
    assert parse_size(f"{number}{gap}{unit}") == number * UNITS[unit]


@given(number=st.decimals(1, 10**4, places=3), unit=st.sampled_from(sorted(UNITS)))
def test_fractions_are_exact_down_to_the_byte(number, unit):
    assert parse_size(f"{number}{unit}") == int(Fraction(number) * UNITS[unit])


@given(number=st.integers(1, 10**6), unit=st.sampled_from(sorted(UNITS)))
def test_the_case_of_a_unit_does_not_matter(number, unit):
    assert parse_size(f"{number}{unit.upper()}") == parse_size(f"{number}{unit.lower()}") == number * UNITS[unit]


@given(BYTES)
def test_bytes_pass_unchanged(size):
    assert parse_size(size) == size
    assert parse_size(str(size)) == size


@pytest.mark.parametrize(
    "text",
    [
        "",
        "MB",
        "-1",
        "-1MB",
        "1 M",
        "1m",
        "1e9",
        "1,5GB",
        "1.GB",
        ".5GB",
        "64 GB 1",
        "nan",
        "0x10",
        True,
        None,
        b"1",
    ],
)
def test_what_is_no_size_is_refused_by_name(text):
    with pytest.raises(SizeError) as caught:
        parse_size(text)
    assert repr(text) in caught.value.what
    assert caught.value.do


@pytest.mark.parametrize("text", [0, -5, "0", "0GB", "0.4", "0.0001kB"])
def test_less_than_a_byte_is_refused(text):
    with pytest.raises(SizeError, match="less than one byte"):
        parse_size(text)


@given(st.text(max_size=12))
def test_any_text_gives_a_size_or_a_size_error(text):
    try:
        size, said = parse_size(text), ""
    except SizeError as error:
        size, said = 0, error.what
    assert size >= 1 or repr(text) in said


@given(BYTES)
def test_printed_sizes_read_back_as_nearly_the_same(size):
    for text in (decimal(size), gibibytes(size)):
        unit = parse_size(f"1 {text.split()[1]}")
        assert abs(parse_size(text) - size) <= (0 if unit == 1 else 0.05001 * unit + 1)


@pytest.mark.parametrize(
    ("size", "as_decimal", "as_binary"),
    [
        (0, "0 B", "0 B"),
        (999, "999 B", "999 B"),
        (1000, "1.0 kB", "1000 B"),
        (1024, "1.0 kB", "1.0 KiB"),
        (11_300_000, "11.3 MB", "10.8 MiB"),
        (65536 * 2**20, "68.7 GB", "64.0 GiB"),
        (2**41, "2.2 TB", "2048.0 GiB"),
    ],
)
def test_printed_sizes(size, as_decimal, as_binary):
    assert (decimal(size), gibibytes(size)) == (as_decimal, as_binary)
