"""Every way of writing a number that a job file takes, and that nothing else passes."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clustertrain.node.units import (
    LARGEST_INTEGER,
    LONGEST_DURATION_S,
    duration_s,
    duration_text,
    integer,
    number,
    size_bytes,
    size_value,
)

DURATIONS_S = {
    "90s": 90,
    "20m": 1200,
    "1d 12h": 129_600,
    "1h30m15s": 5415,
    "1.5h": 5400,
    "0.5s": 0.5,
    "5e-3s": 0.005,
    "1:30:00": 5400,
    5400: 5400,  # what YAML 1.1 makes of 1:30:00 without quotes
    "20:00": 1200,
    "0:00:30.5": 30.5,
    "1-12:00:00": 129_600,
    90.5: 90.5,
    " 2h ": 7200,
}
SIZES = {
    "16Gi": 16 * 2**30,
    "16GiB": 16 * 2**30,
    "500M": 500_000_000,
    "1.5Gi": 1_610_612_736,
    "1Ki": 1024,
    "2 TB": 2 * 10**12,
    "1024": 1024,
    1024: 1024,
    2e9: 2_000_000_000,
    "16gb": 16 * 10**9,
}
INTEGERS = {3: 3, 1e3: 1000, "1e3": 1000, "7": 7, -2: -2, LARGEST_INTEGER: 2**63 - 1}
NUMBERS = {"1e-4": 1e-4, "1E5": 1e5, ".5": 0.5, "5.": 5.0, 3: 3.0, -0.25: -0.25}
READ = {duration_s: DURATIONS_S, size_bytes: SIZES, integer: INTEGERS, number: NUMBERS}


@pytest.mark.parametrize(
    ("parse", "written", "value"), [(parse, *pair) for parse in READ for pair in READ[parse].items()]
)
def test_what_is_read(parse, written, value):
    read = parse(written)
    assert read == value
    assert type(read) is {integer: int, number: float}.get(parse, type(read))


NOT_DURATIONS = ("", "h", "2 hours", "12h1d", "1h1h", "-2h", -1, "1:99", "1:2:3:4", "101000d")
NOT_SIZES = ("", "Gi", "16Q", "16 GiBs", "-1Gi", -1, "1e30G", True, None, float("inf"))
NOT_INTEGERS = (2.5, "2.5", "three", True, None, 2**63, 10**4000, "1e999", "9" * 40, float("nan"))
NOT_NUMBERS = ("1e-", "0x10", "nan", "inf", "1e999", False, None, {}, 10**400, float("nan"), "١")
REFUSED = {
    duration_s: ("a duration, such as 90s", (*NOT_DURATIONS, 1e300, "nan", None, True, [])),
    size_bytes: ("a size, such as 16Gi", NOT_SIZES),
    integer: ("a whole number, such as 3 or 1e3", (*NOT_INTEGERS, float("inf"), [1])),
    number: ("a number, such as 0.1 or 1e-4", NOT_NUMBERS),
}


@pytest.mark.parametrize(
    ("parse", "said", "written"),
    [(parse, said, written) for parse, (said, wrong) in REFUSED.items() for written in wrong],
    ids=lambda value: getattr(value, "__name__", str(value)),
)
def test_what_is_refused(parse, said, written):
    with pytest.raises(ValueError, match=f"must be {said}"):
        parse(written)


@settings(deadline=None)  # the machine may be busy
@given(st.floats(0, LONGEST_DURATION_S))
def test_duration_text_reads_back_exactly(seconds):
    assert duration_s(duration_text(seconds)) == seconds


@settings(deadline=None)  # the machine may be busy
@given(st.integers(0, LARGEST_INTEGER))
def test_size_value_reads_back_exactly(size):
    assert size_bytes(size_value(size)) == size


@settings(deadline=None)  # the machine may be busy
@given(st.text())
def test_any_text_is_a_quantity_or_a_value_error(text):
    for parse in (integer, number, duration_s, size_bytes):
        try:
            assert parse(text) is not None
        except ValueError as error:
            assert "must be" in str(error)


def test_texts_are_the_ones_people_write():
    assert [duration_text(s) for s in (7200.0, 5400.0, 90.0, 129_600.0, 0.5)] == [
        "2h",
        "1h30m",
        "1m30s",
        "1d12h",
        "0.5s",
    ]
    assert [size_value(n) for n in (16 * 2**30, 2**20, 1536 * 2**20, 1000)] == ["16Gi", "1Mi", "1536Mi", 1000]
