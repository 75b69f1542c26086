"""From what an attempt was started: code, packages, machine; for somebody who wants to repeat it."""

from __future__ import annotations

import os
import platform
from dataclasses import replace

from clustertrain.node.installed import installed_packages
from clustertrain.node.limits import read_limits
from clustertrain.run.folder import Attempt
from clustertrain.run.records import Provenance, Source


def record_provenance(attempt: Attempt, source: Source) -> None:
    """Write provenance.json, and the changes since the commits as diff.patch.

    Raises:
        StorageError: the storage refuses.
    """
    diff = "".join(repository.diff for repository in source.repositories)
    if diff:
        attempt.run.store.write_atomic(attempt.diff_key, diff.encode())
    kept = Source(
        tuple(replace(each, diff="", note=each.note or _left_out(each.diff)) for each in source.repositories)
    )
    machine = Provenance(
        kept,
        installed_packages(),
        python=platform.python_version(),
        platform=platform.platform(),
        host=platform.node(),
        cpus=os.cpu_count(),
        memory_bytes=read_limits().memory_bytes,
    )
    attempt.provenance.write(machine)


def _left_out(diff: str) -> str:
    """What git does not write into a diff, and without which it does not apply."""
    count = sum(line.startswith("Binary files ") for line in diff.split("\n"))
    return f"binary files that the diff only names: {count}" if count else ""
