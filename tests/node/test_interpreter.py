"""The Python of a script's own environment."""

import pytest

from clustertrain.errors import JobError
from clustertrain.node.interpreter import interpreter_file


def test_a_path_that_cannot_be_looked_up_is_refused():
    """As one in a folder of another user; root has none, but names that are too long."""
    with pytest.raises(JobError, match=r"does not exist on .*\nGive the path of a Python"):
        interpreter_file(f"/{'a' * 300}/bin/python")
