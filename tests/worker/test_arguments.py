"""Which values of a job file fit which annotations, and what is said of those that do not."""

from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any, Literal, Optional, Union

import pytest

from clustertrain.errors import JobError
from clustertrain.worker.code.arguments import EMPTY, check_args, fits

FIT = [
    (3, int),
    (3, float),
    (0.1, float),
    ("a", str),
    (True, bool),
    (None, Optional[int]),  # noqa: UP045  as people write it
    (3, Union[int, str]),  # noqa: UP007
    ("a", int | str),
    ("adam", Literal["adam", "sgd"]),
    ([1, 2], list[int]),
    ([1, 2], tuple[int, ...]),
    ([1, "a"], tuple[int, str]),
    ([1], Sequence[float]),
    ("abc", Sequence[str]),
    ({"a": 1}, dict[str, int]),
    ("a/b", Path),
    ("anything", Any),
    ([3], Decimal),  # not simple
    ([1, 2], Annotated[list[int], "sizes"]),
    ("x", EMPTY),
]
UNFIT = [
    ("0.1", float),
    (0.1, int),
    (True, int),
    (True, float),
    (1, bool),
    (1, str),
    (None, int),
    (None, str),
    ("rmsprop", Literal["adam", "sgd"]),
    (True, Literal[1, 2]),
    (3, list[int]),
    ("abc", list[str]),
    (["a"], list[int]),
    ([1, 2], tuple[int, str]),
    ([1], tuple[int, int]),
    ([1], dict),
    ({"a": "b"}, dict[str, int]),
    (5, Path),
    (0.5, int | None),
]


@pytest.mark.parametrize(("value", "annotation"), FIT)
def test_a_value_that_fits(value, annotation):
    assert fits(value, annotation)


@pytest.mark.parametrize(("value", "annotation"), UNFIT)
def test_a_value_that_does_not_fit(value, annotation):
    assert not fits(value, annotation)


class Digits:
    def __init__(self, lr: float, width: int = 64, depth: "int" = None): ...  # noqa: RUF013  as people write it


class Plain: ...


class Open:
    def __init__(self, **rest): ...


def refused(args, cls=Digits):
    with pytest.raises(JobError) as caught:
        check_args(cls, args, "digits.py:7")
    return str(caught.value).splitlines()


def test_args_that_fit():
    check_args(Digits, {"lr": 1, "width": 3, "depth": None}, "digits.py:7")


def test_an_unknown_name_has_the_nearest_one_and_all_others():
    assert refused({"lr": 0.1, "widht": 3}) == [
        "args: Digits does not take 'widht'; did you mean 'width'?",
        "It takes: lr (float), width (int), depth (int).",
        "At digits.py:7.",
    ]
    assert refused({"lr": 0.1, "momentum": 0.9})[0] == "args: Digits does not take 'momentum'."
    assert refused({"a": 1}, Plain)[1] == "It takes no arguments."
    check_args(Open, {"a": 1}, "p.py:1")


def test_a_value_of_another_type_is_shown_with_its_annotation():
    assert refused({"lr": "0.1"}) == [
        'args: lr is "0.1" (text), but Digits declares lr: float.',
        "Change the value, or the annotation.",
        "At digits.py:7.",
    ]
    assert "(the first of 2 problems)" in refused({"widht": 3, "lr": True})[0]
