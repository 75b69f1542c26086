"""Every way of writing a number that a job file takes, and that nothing else passes."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clustertrain.units import (
    LARGEST_INTEGER,
    LONGEST_DURATION_S,
    duration_s,
    duration_text,
    integer,
    number,
    size_bytes,
    size_value,
)


@pytest.mark.parametrize(
    ("written", "seconds"),
    [
        ("90s", 90),
        ("20m", 1200),
        ("2h", 7200),
        ("1d12h", 129_600),
        ("1d 12h", 129_600),
        ("1h30m15s", 5415),
        ("1.5h", 5400),
        ("0.5s", 0.5),
        ("5e-3s", 0.005),
        ("1:30:00", 5400),
        (5400, 5400),  # what YAML 1.1 makes of 1:30:00 without quotes
        ("20:00", 1200),
        ("0:00:30.5", 30.5),
        ("1-12:00:00", 129_600),
        ("90", 90),
        (90.5, 90.5),
        (" 2h ", 7200),
    ],
)
def test_duration(written, seconds):
    assert duration_s(written) == seconds


@pytest.mark.parametrize(
    "written",
    [
        "",
        "h",
        "2 hours",
        "12h1d",
        "1h1h",
        "-2h",
        -1,
        "1:99",
        "1:2:3:4",
        "101000d",
        1e300,
        "nan",
        None,
        True,
        [],
    ],
)
def test_not_a_duration(written):
    with pytest.raises(ValueError, match=r"must be a duration, such as 90s"):
        duration_s(written)


@pytest.mark.parametrize(
    ("written", "size"),
    [
        ("16Gi", 16 * 2**30),
        ("16GiB", 16 * 2**30),
        ("500MB", 500_000_000),
        ("500M", 500_000_000),
        ("1.5Gi", 1_610_612_736),
        ("1k", 1000),
        ("1Ki", 1024),
        ("2 TB", 2 * 10**12),
        ("1024", 1024),
        (1024, 1024),
        (2e9, 2_000_000_000),
        ("16gb", 16 * 10**9),
    ],
)
def test_size(written, size):
    assert size_bytes(written) == size


@pytest.mark.parametrize(
    "written", ["", "Gi", "16Q", "16 GiBs", "-1Gi", -1, "1e30G", True, None, float("inf")]
)
def test_not_a_size(written):
    with pytest.raises(ValueError, match=r"must be a size, such as 16Gi"):
        size_bytes(written)


@pytest.mark.parametrize(
    ("written", "value"),
    [(3, 3), (1e3, 1000), ("1e3", 1000), ("7", 7), (-2, -2), (LARGEST_INTEGER, 2**63 - 1)],
)
def test_integer(written, value):
    result = integer(written)
    assert result == value
    assert type(result) is int


@pytest.mark.parametrize(
    "written",
    [2.5, "2.5", "three", True, None, 2**63, 10**4000, "1e999", "9" * 40, float("nan"), float("inf"), [1]],
)
def test_not_an_integer(written):
    with pytest.raises(ValueError, match=r"must be a whole number, such as 3 or 1e3"):
        integer(written)


@pytest.mark.parametrize(
    ("written", "value"), [("1e-4", 1e-4), ("1E5", 1e5), (".5", 0.5), ("5.", 5.0), (3, 3.0), (-0.25, -0.25)]
)
def test_number(written, value):
    result = number(written)
    assert result == value
    assert type(result) is float


@pytest.mark.parametrize(
    "written", ["1e-", "0x10", "nan", "inf", "1e999", False, None, {}, 10**400, float("nan"), "١"]
)
def test_not_a_number(written):
    with pytest.raises(ValueError, match=r"must be a number, such as 0.1 or 1e-4"):
        number(written)


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
