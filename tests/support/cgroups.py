"""Memory cgroups of the tests' own, with a limit that the kernel enforces."""

import contextlib
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from clustertrain.node.limits import own_cgroups

WITHIN = ["sh", "-c", 'echo $$ > "$0" && exec "$@"']
"""A command that runs another one in the cgroup whose cgroup.procs follows."""


@contextlib.contextmanager
def memory_cgroup(limit_bytes: int) -> Iterator[Path]:
    """A memory cgroup of our own below the test's; its folder."""
    found = own_cgroups()
    if not found:
        pytest.skip("no memory cgroups are mounted here")
    folder = Path(found[0]) / f"clustertrain-{uuid.uuid4().hex}"
    try:
        folder.mkdir()
    except OSError as error:
        pytest.skip(f"this user may not make cgroups: {error}")
    try:
        if not any(folder.glob("memory.*")):
            pytest.skip(f"{found[0]} gives its children no memory controller")
        is_first = (folder / "memory.limit_in_bytes").exists()
        (folder / ("memory.limit_in_bytes" if is_first else "memory.max")).write_text(str(limit_bytes))
        yield folder
    finally:
        folder.rmdir()
