"""Which process runs an attempt, and whether it is still alive.

On the same machine a process is identified by its pid and its start time (processes.py). Of a process on
another machine only the heartbeat is visible. Clocks of two machines may differ, so its time is not compared:
the process is alive if the counter changes while this process watches it.
"""

from __future__ import annotations

import hashlib
import os
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

from clustertrain.checkpoints.manifest import CheckpointName, names
from clustertrain.errors import ClusterError, StorageError
from clustertrain.node.processes import this_process
from clustertrain.node.waiting import wait_until
from clustertrain.run_files.command_line import command_on
from clustertrain.run_files.folder.run_dir import Attempt, Restart, RunDir
from clustertrain.run_files.records.claim import Beat, Claim, Progress
from clustertrain.run_files.records.result import Failure
from clustertrain.run_files.records.scheduler import SchedulerStart


def overtaken_by(name: CheckpointName, restart: Restart) -> Restart | None:
    """Return a start of the worker group that overtook the writer of a checkpoint, or None.

    It is newer than the writer and resumed from an older checkpoint, so the checkpoint was committed when its
    writer had been overtaken. None if `restart` may resume from the checkpoint.
    """
    for attempt in reversed(restart.attempt.run.attempts()):
        for start in reversed(attempt.restarts()):
            if (attempt.n, start.number) <= (name.attempt, name.restart):
                return None
            plan = start.plan.read()  # None of `restart` itself, and of a start that was killed before it
            resumed = CheckpointName.parse(plan.checkpoint or "") if plan is not None else name
            if resumed is None or resumed < name:
                return start
    return None


def heartbeat_period_s(run: RunDir) -> float:
    """Return the seconds between two beats; longer on S3, where each beat is a request that costs money."""
    return 10.0 if run.store.location.is_s3 else 2.0


def claim_attempt(
    run: RunDir,
    *,
    number: int | None = None,
    world_size: int = 1,
    launcher: str = "local",
    allocation: SchedulerStart | None = None,
) -> Attempt:
    """Claim the next attempt of a run for this process.

    Args:
        number: of the attempt, if it was chosen before; by default one more than the newest.

    Raises:
        ClusterError: another process claimed it at the same moment.
    """
    if number is None:
        newest = run.newest_attempt()
        number = newest.n + 1 if newest else 1
    attempt = run.attempt(number)
    claim = Claim(
        **asdict(this_process()),
        **asdict(progress_of(run)),
        time=time.time(),
        world_size=world_size,
        launcher=launcher,
        allocation=allocation,
    )
    if not attempt.claim.create(claim):
        raise ClusterError(
            f"Attempt {attempt.n} of {run.uri} was claimed by another start at the same moment.\n"
            f"The other start runs now; `{command_on(run.uri, 'status')}` shows it."
        )
    return attempt


def claim_of(attempt: Attempt) -> Claim:
    """Return the claim of an attempt that is running.

    Raises:
        StorageError: there is none.
    """
    claim = attempt.claim.read()
    if claim is None:
        raise StorageError(
            f"{attempt.claim.uri} is missing: it was removed while the run was active.\n"
            "Change nothing in the folder of a run while it runs. Start the run again."
        )
    return claim


def allocation_of(attempt: Attempt) -> SchedulerStart | None:
    """Return the start of a scheduler's job that claimed an attempt; None if no job did."""
    claim = attempt.claim.read()
    return claim.allocation if claim is not None else None


def who_runs(attempt: Attempt) -> str | None:
    """Return the process that runs an attempt, as text for people, or None.

    If the process is on another machine, watches its heartbeat for three periods.
    """
    if attempt.result.exists():
        return None
    claim, heartbeat = attempt.claim.read(), attempt.heartbeat.read()
    for process in (claim, heartbeat):
        if process is not None and process.is_here and not process.is_gone:
            return f"pid {process.pid} on this machine"
    if claim is None or claim.is_here:
        return None
    return _watched(attempt, heartbeat, claim)


def _watched(attempt: Attempt, before: Beat | None, claim: Claim) -> str | None:
    def beats() -> bool:
        now = attempt.heartbeat.read()
        return now is not None and (before is None or now.counter != before.counter)

    if not wait_until(beats, 3 * heartbeat_period_s(attempt.run), poll_s=0.5):
        return None
    return f"pid {claim.pid} on {claim.host.split('/', maxsplit=1)[0]}"


def committed_step(run: RunDir) -> int:
    """Return the step of the newest checkpoint, verified or not; 0 without one, and always for a script."""
    return _newest_step(names(run.checkpoints))


def _newest_step(found: list[CheckpointName]) -> int:
    return found[-1].step if found else 0


def progress_of(run: RunDir) -> Progress:
    """Return the progress of a run, for the claim of the next attempt.

    Measured by clustertrain's checkpoints or, if there are none, by the files that a script saves.
    """
    found = names(run.checkpoints)
    return Progress(_newest_step(found), None if found else _scripts_files(run))


def attempts_that_trained(run: RunDir) -> list[tuple[Attempt, Claim]]:
    """Return the attempts after which there was more to resume from than before, oldest first.

    The newest attempt is among them until it has a result.
    """
    found: list[tuple[Attempt, Claim]] = []
    later: Progress | None = None
    for attempt in reversed(run.attempts()):
        if (claim := attempt.claim.read()) is None:
            continue
        if later is None and attempt.result.exists():
            later = progress_of(run)
        if claim.progress != later:
            found.insert(0, (attempt, claim))
        later = claim.progress
    return found


def _scripts_files(run: RunDir) -> str | None:
    """Return a checksum of names, sizes and times of the files in a script's checkpoint folder.

    Hidden files are omitted: they are unfinished saves, and an attempt that ends in its first save makes no
    progress.
    """
    folder = run.store.local_folder(run.checkpoints.key)
    if folder is None:
        return None  # on S3 a script chooses the keys of its files itself
    digest = hashlib.sha256()
    for path in sorted(files_below(folder)):
        with suppress(OSError):  # it was removed meanwhile, or is a link to itself
            found = path.stat()
            digest.update(os.fsencode(f"{path} {found.st_size} {found.st_mtime_ns}\n"))
    return digest.hexdigest()


def has_script_checkpoint(run: RunDir) -> bool:
    """Return whether a script left a file in its checkpoint folder; on a file system, not a hidden one."""
    folder = run.store.local_folder(run.checkpoints.key)
    if folder is None:
        return bool(run.store.list(run.checkpoints.key))
    return any(path.is_file() for path in files_below(folder))


def shows_progress(run: RunDir, failure: Failure) -> bool:
    """Return whether two equal failures would show that the run made no progress between them.

    Failures of a script show it if the script has logged a step, or if it leaves files in its checkpoint
    folder and that is not on S3.
    """
    on_s3 = run.store.local_folder(run.checkpoints.key) is None
    return not failure.of_script or failure.step > 0 or (not on_s3 and has_script_checkpoint(run))


def files_below(folder: Path) -> Iterator[Path]:
    """Yield the files below a folder that are not hidden.

    Unlike rglob, os.walk passes over a folder that is removed meanwhile.
    """
    for parent, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".")]
        yield from (Path(parent, name) for name in files if not name.startswith("."))


class Heartbeat:
    """Writes heartbeat.json every few seconds, for as long as this process lives."""

    def __init__(self, attempt: Attempt) -> None:
        self._attempt = attempt
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="heartbeat", daemon=True)

    def __enter__(self) -> Heartbeat:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._ended.set()
        self._thread.join()

    def _beat(self) -> None:
        attempt = self._attempt.run.with_patience(0).attempt(self._attempt.n)
        counter = 0
        while True:
            counter += 1
            beat = Beat(**asdict(this_process()), time=time.time(), counter=counter)
            with suppress(StorageError):  # full or unreachable: readers see later beats when it works again
                attempt.heartbeat.write(beat)
            if self._ended.wait(heartbeat_period_s(attempt.run)):
                return
