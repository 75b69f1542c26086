"""Who runs an attempt, and whether they still live.

On the same machine a process is known by its pid and its start (processes.py). Of another machine only the
heartbeat is visible, and clocks of two machines need not agree: a heartbeat is alive when it is seen to
change, judged on our own clock.
"""

from __future__ import annotations

import hashlib
import threading
import time
from contextlib import suppress
from dataclasses import asdict

from clustertrain.checkpoints.manifest import CheckpointName, names
from clustertrain.errors import ClusterError, StorageError
from clustertrain.node.processes import this_process
from clustertrain.run.folder import Attempt, RunDir
from clustertrain.run.records import Beat, Claim, Progress, SchedulerStart
from clustertrain.waiting import wait_until


def heartbeat_period_s(run: RunDir) -> float:
    """Seconds between two beats; on S3 each is a request that somebody pays for."""
    return 10.0 if run.store.location.is_s3 else 2.0


def claim_attempt(
    run: RunDir,
    *,
    world_size: int = 1,
    launcher: str = "local",
    retry: bool = False,
    allocation: SchedulerStart | None = None,
) -> Attempt:
    """The next attempt of a run, claimed for this process.

    Raises:
        ClusterError: another process claimed it at the same moment.
    """
    newest = run.newest_attempt()
    attempt = run.attempt(newest.n + 1 if newest else 1)
    claim = Claim(
        **asdict(this_process()),
        **asdict(progress_of(run)),
        time=time.time(),
        world_size=world_size,
        launcher=launcher,
        retry=retry,
        allocation=allocation,
    )
    if not attempt.claim.create(claim):
        raise ClusterError(
            f"Attempt {attempt.n} of {run.uri} was claimed by another start at the same moment.\n"
            "That one runs now; `clustertrain status` shows it."
        )
    return attempt


def claim_of(attempt: Attempt) -> Claim:
    """The claim of an attempt that somebody runs.

    Raises:
        StorageError: there is none.
    """
    claim = attempt.claim.read()
    if claim is None:
        raise StorageError(
            f"{attempt.claim.uri} is gone: somebody removed it while the run went on.\n"
            "Leave the folder of a run alone while it runs, and start it again."
        )
    return claim


def who_runs(attempt: Attempt, *, watch_s: float | None = None) -> str | None:
    """The process that runs an attempt, in words; None when nobody does.

    Where the process is on another machine, looks at its heartbeat for `watch_s` seconds: three periods.
    """
    if attempt.result.exists():
        return None
    claim, heartbeat = attempt.claim.read(), attempt.heartbeat.read()
    for process in (claim, heartbeat):
        if process is not None and process.is_here and not process.is_gone:
            return f"pid {process.pid} on this machine"
    if claim is None or claim.is_here:
        return None
    watch_s = 3 * heartbeat_period_s(attempt.run) if watch_s is None else watch_s
    return _watched(attempt, heartbeat, claim, watch_s)


def _watched(attempt: Attempt, before: Beat | None, claim: Claim, watch_s: float) -> str | None:
    def beats() -> bool:
        now = attempt.heartbeat.read()
        return now is not None and (before is None or now.counter != before.counter)

    if not wait_until(beats, watch_s, poll_s=min(0.5, watch_s / 4)):
        return None
    return f"pid {claim.pid} on {claim.host.split('/', maxsplit=1)[0]}"


def committed_step(run: RunDir) -> int:
    """The step of the newest checkpoint, verified or not; 0 where there is none, as in every script's run."""
    return _newest_step(names(run.checkpoints))


def _newest_step(found: list[CheckpointName]) -> int:
    return found[-1].step if found else 0


def progress_of(run: RunDir) -> Progress:
    """How far a run is, as the claim of the attempt that begins now records it: by the kit's own checkpoints
    or, where there are none, by what a script keeps."""
    found = names(run.checkpoints)
    return Progress(_newest_step(found), None if found else _scripts_files(run))


def _scripts_files(run: RunDir) -> str | None:
    """What a script has in its checkpoint folder, as a checksum of names, sizes and times. Hidden names are
    unfinished: each start that dies in its first save would leave others."""
    folder = run.store.local_folder(run.checkpoints.key)
    if folder is None:
        return None  # it cannot be seen
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        if any(part.startswith(".") for part in path.relative_to(folder).parts):
            continue
        with suppress(FileNotFoundError):  # removed while we looked
            found = path.stat()
            digest.update(f"{path} {found.st_size} {found.st_mtime_ns}\n".encode())
    return digest.hexdigest()


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
            with suppress(StorageError):  # it is full, or away: the beats go on, and are seen when it is back
                attempt.heartbeat.write(beat)
            if self._ended.wait(heartbeat_period_s(attempt.run)):
                return
