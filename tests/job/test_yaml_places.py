"""YAML as plain data with places: what is read, where it stood, and what is refused at its line."""

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from clustertrain.errors import JobError
from clustertrain.job.yaml_reader import Document, JobDumper, Reader, TextPosition


def read(text: str, expected: str = "typed") -> Document:
    return Reader(
        text, lambda line, column: TextPosition((line, column), f"f:{line}:{column}"), lambda _: expected
    ).document(())


def refusal(text: str) -> str:
    with pytest.raises(JobError) as caught:
        read(text)
    return str(caught.value)


@pytest.mark.parametrize(
    ("written", "value"),
    [
        ("1e-4", 1e-4),
        ("1_000", 1000),
        ("0x10", 16),
        ("09", "09"),
        ("1:30:00", "1:30:00"),
        ("on", True),
        ("'on'", "on"),
        ("~", None),
        ("2026-01-01", "2026-01-01"),
    ],
)
def test_a_scalar_is_read_with_its_type(written, value):
    result = read(f"a: {written}").data["a"]
    assert result == value
    assert type(result) is type(value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: 1\nx: !!python/object:os.system {}", "f:2:4: the tag !!python/object:os.system"),
        ("a: !mine 3", "f:1:4: the tag !mine"),
        ("a: !<x%0Ay> 3", "f:1:4: the tag x\\ny\n"),
        ("a: 1\nb: 2\na: 3", "f:3:1: the key 'a' is given twice\nthe first one is at f:1:1"),
        ("a: [\n", "f:2:1: expected the node content"),
        ("a: 1\n\tb: 2", "f:2:1: found character '\\t'"),
        ("a: 1\n---\nb: 2", "but found another document"),
        ("a: \x01", "f:1:1: not YAML: unacceptable character"),
        ('a: "\\UFFFFFFFF"', "not YAML: "),
        ("a: *b", "f:1:4: found undefined alias 'b'"),
        ("a: &a {b: 1}\nc:\n  <<: *a", "f:3:3: YAML does not read the key << as text"),
        ("1: a", "f:1:1: YAML does not read the key 1 as text\nwrite it in quotes"),
        ("? [a]\n: b", "f:1:3: YAML does not read the key ["),
        (f"a: {'9' * 5000}", "… is no number"),
        ("a: 0x_", "f:1:4: 0x_ is no number"),
    ],
)
def test_yaml_outside_the_subset_is_refused_with_its_place(text, message):
    assert message in refusal(text)


def test_aliases_repeat_what_they_name():
    assert read("a: &x {k: 1}\nb: *x").data == {"a": {"k": 1}, "b": {"k": 1}}


PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63) + 1, 2**63 - 1) | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@settings(deadline=None)  # the machine may be busy
@given(PLAIN)
def test_what_is_dumped_is_read_back(value):
    text = yaml.dump({"a": value}, Dumper=JobDumper, allow_unicode=True)
    for expected in ("typed", "any"):
        assert read(text, expected).data == {"a": value}
    assert yaml.safe_load(text) == {"a": value}, "and by other readers of YAML 1.1"
