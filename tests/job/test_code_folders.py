"""Several folders of code: their places in a copy of all of them."""

import pytest

from clustertrain.job.code_folders import is_own, places


@pytest.mark.parametrize(
    ("folders", "expected"),
    [
        (["/a"], ["."]),
        (["/a/x", "/b/x"], ["1", "2"]),
        (["/a", "/a/src", "/ab"], ["1", "1/src", "3"]),
        (["/a/src", "/a"], ["2/src", "2"]),
        (["/a", "/a"], ["1", "1"]),
    ],
)
def test_each_folder_has_its_place_in_a_copy(folders, expected):
    assert places(folders) == tuple(expected)
    assert [is_own(place) for place in expected] == ["/" not in place for place in expected]
