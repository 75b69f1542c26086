"""From what an attempt was started: code, packages, machine; for somebody who wants to repeat it."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from dataclasses import replace

from clustertrain.node.installed import installed_packages
from clustertrain.node.limits import read_limits
from clustertrain.run_files.claims import attempts_that_trained
from clustertrain.run_files.folder.run_dir import Attempt, RunDir
from clustertrain.run_files.recorded_job import job_of
from clustertrain.run_files.records.provenance import CodeChange, CodeFile, CodeSource, Provenance
from clustertrain.run_files.streams.step_counter import has_finished_a_step


def record_provenance(attempt: Attempt, source: CodeSource, began: float) -> CodeChange | None:
    """Write provenance.json, and the changes since the commits as diff.patch.

    Args:
        began: when the start of the attempt began, in seconds since 1970.

    Returns:
        how the code differs from that of the last attempt that trained.

    Raises:
        StorageError: the storage refuses.
    """
    diff = "".join(repository.diff for repository in source.repositories)
    if diff:
        attempt.run.store.write_atomic(attempt.diff_key, diff.encode())
    kept = CodeSource(
        tuple(replace(each, diff="") for each in source.repositories),
        source.files,
    )
    change = _code_change(attempt, source.files, began)
    machine = Provenance(
        kept,
        installed_packages(),
        python=platform.python_version(),
        platform=platform.platform(),
        host=platform.node(),
        cpus=os.cpu_count(),
        memory_bytes=read_limits().memory_bytes,
        code_change=change,
    )
    attempt.provenance.write(machine)
    return change


def is_tried(attempt: Attempt) -> bool:
    """Return whether the run has finished a step with the job and the code of this attempt."""
    if has_finished_a_step(attempt):
        return True
    earlier = (each for each in reversed(attempt.run.attempts()) if each.n < attempt.n)
    before = next(filter(has_finished_a_step, earlier), None)
    return before is not None and _job_and_code(before) == _job_and_code(attempt)


def _job_and_code(attempt: Attempt) -> tuple[object, ...]:
    found = attempt.provenance.read()
    digests = {name: file.digest for name, file in found.source.files.items()} if found is not None else {}
    return job_of(attempt), digests


def code_changes(run: RunDir) -> list[CodeChange]:
    """Return the changes of the code with which the run was trained, oldest first."""
    found = [attempt.provenance.read() for attempt, _ in attempts_that_trained(run)]
    return [each.code_change for each in found if each is not None and each.code_change is not None]


def _code_change(attempt: Attempt, files: Mapping[str, CodeFile], began: float) -> CodeChange | None:
    trained = attempts_that_trained(attempt.run)
    if len(trained) < 2 or (known := trained[-2][0].provenance.read()) is None:
        return None
    before, (base, _), (_, claim) = known.source.files, *trained[-2:]
    written_until = max(map(_written_until, (attempt.run.attempt(n) for n in range(base.n, attempt.n))))
    changed = [
        name
        for name, file in files.items()
        if name in before
        and file.digest != before[name].digest
        # Some files may be what a run has written into the folder, or what is written of this start.
        and (file.changed_at is None or written_until < file.changed_at < began)
    ]
    since = f"step {claim.resumes}" if claim.files is None else f"attempt {base.n}"
    return CodeChange(tuple(changed), since) if changed else None


def _written_until(attempt: Attempt) -> float:
    """Return when a run in the folder of its code ended, in seconds since 1970; 0 if it ran in a copy."""
    claim, result, beat = attempt.claim.read(), attempt.result.read(), attempt.heartbeat.read()
    if claim is None or claim.launcher != "local":
        return 0.0
    return result.ended_at if result is not None else beat.time if beat is not None else claim.time
