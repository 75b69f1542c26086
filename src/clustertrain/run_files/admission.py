"""The checks before a start of a job, the same for every launcher, and the claim of its attempt.

not running? ─▶ what changed in the job? ─▶ not finished? ─▶ did a requeued job make progress? ─▶ claim
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from clustertrain.checkpoints.manifest import newest_manifest
from clustertrain.errors import ClusterError, ClusterTrainError, JobError, StorageError
from clustertrain.job.model import Job
from clustertrain.job.references import check_set
from clustertrain.run_files.claims import allocation_of, claim_attempt, progress_of, who_runs
from clustertrain.run_files.command_line import UNKNOWN, CommandLine
from clustertrain.run_files.folder.run_dir import Attempt, RunDir
from clustertrain.run_files.job_diff import echo_changes, job_changes, standing_attempt
from clustertrain.run_files.provenance import record_provenance
from clustertrain.run_files.recorded_job import last_job, record_job
from clustertrain.run_files.records.provenance import CodeSource, JobChanges
from clustertrain.run_files.records.requests import StopRequest
from clustertrain.run_files.records.result import Result
from clustertrain.run_files.records.scheduler import SchedulerStart
from clustertrain.run_files.working_folder import note_left_files
from clustertrain.storage import Location, open_store, probe

_PROBE_RETRY_S = 30.0


@dataclass(frozen=True)
class Options:
    """The options of a start on the command line.

    Attributes:
        no_check: submit without the check of the code.
        no_ray: the ranks of a start on this machine run without Ray.
        snapshot: the digest of the submission's snapshot, or empty for a start from the job file.
        after: the jobs before it in a sweep; a launcher without a queue starts this one after their end.
        source: the state of the code's repositories, for a scheduler whose plan contains the code.
        command: the command line itself, for messages that advise one of the options.
    """

    fresh: bool = False
    no_check: bool = False
    no_ray: bool = False
    takeover: bool = False
    accept_changes: bool = False
    snapshot: str = ""
    after: tuple[str, ...] = ()
    source: CodeSource | None = None
    command: CommandLine = UNKNOWN


@dataclass(frozen=True)
class Admission:
    """A start that may claim the next attempt of its run, or the result of a run that is already finished.

    Attributes:
        run: the generation that it continues or begins.
        number: of its attempt. Of two starts at the same time, the first to claim it runs.
        allocation: the scheduler's names for this start.
        began: when it was asked for, in seconds since 1970.
        active: the attempt that still runs, and that this one takes over.
        changes: what changed in the job since the run's last attempt.
        finished: the result if nothing is left to train; then there is nothing to claim.
    """

    job: Job
    options: Options
    run: RunDir
    number: int
    allocation: SchedulerStart | None
    began: float
    active: Attempt | None = None
    changes: JobChanges | None = None
    finished: Result | None = None

    def world_size_of(self, world_sizes: Sequence[int]) -> int:
        """Return the number of workers, the largest of those that the resources suffice for.

        Raises:
            JobError: the newest checkpoint has another one, without consent.
        """
        check_world_size(self.run, world_sizes[-1], self.options, is_elastic=len(self.job.world_sizes) > 1)
        return world_sizes[-1]

    def claim(self, world_size: int, source: CodeSource, echo: Callable[[str], None]) -> Attempt:
        """Claim the attempt, after all checks. `source`: the state of the job's code.

        Raises:
            ClusterError: another start has claimed it.
        """
        if self.active is not None:
            self.active.stop.write(StopRequest("user", by="takeover"))
        attempt = claim_attempt(
            self.run,
            number=self.number,
            world_size=world_size,
            launcher=self.allocation.scheduler if self.allocation is not None else "local",
            allocation=self.allocation,
        )
        if self.changes is not None:
            attempt.changes.write(self.changes)
        record_job(attempt, self.job)
        if (change := record_provenance(attempt, source, self.began)) is not None:
            echo(f"note: {change.text}")
        return attempt


def admit(
    job: Job,
    options: Options,
    echo: Callable[[str], None],
    *,
    run: RunDir | None = None,
    allocation: SchedulerStart | None = None,
) -> Admission:
    """Check whether the job may start.

    Args:
        run: the generation to continue, if it was chosen before. Default: the newest.
        allocation: the scheduler's names for this start, for the claim. An earlier start of the same job of
            the scheduler is known to be over.

    Raises:
        ClusterTrainError: the last starts of the scheduler's job all ended without a new committed step.
        JobError: `env` refers to a variable that is not set; the job has changed since its checkpoint,
            without consent.
        ClusterError: another process runs it.
        StorageError: the storage is not writable, or with S3 the spool of this node.
    """
    began = time.time()
    check_set(job.start_texts, os.environ)
    check_storage(job.storage.location)
    run = run or RunDir.newest(job.storage.location, job.name)
    previous, active, changes = run.newest_attempt(), None, None
    number = previous.n + 1 if previous is not None else 1  # no other: it is this attempt that is checked
    if previous is not None:
        if not is_same_start(previous, allocation) and is_running(previous, options):
            active = previous
        if options.fresh:
            note_left_files(run, echo)
            run, number = run.fresh(), 1
        else:
            found = continue_from(run, job, options, echo)
            if isinstance(found, Result):
                return Admission(job, options, run, number, allocation, began, finished=found)
            changes = found
    check_progress(run, job, allocation)
    while _lost_its_claim(run.attempt(number)):
        number += 1
    _check_spool(run)
    return Admission(job, options, run, number, allocation, began, active, changes)


def _lost_its_claim(attempt: Attempt) -> bool:
    """Return whether the folder of an attempt was removed while it ran.

    Such an attempt has written a result or a heartbeat since, and has no claim. If it still runs, the claim
    of the next number ends it.
    """
    return (attempt.result.exists() or attempt.heartbeat.exists()) and not attempt.claim.exists()


def check_storage(location: Location) -> None:
    """Check that the storage can be written. Retries for half a minute only, because a user is waiting."""
    probe(open_store(location.with_patience(_PROBE_RETRY_S)))


def _check_spool(run: RunDir) -> None:
    """Check that this node can keep the streams of a run until they are on S3."""
    folder = run.local_path(run.key)
    try:
        if run.is_spooled:
            folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=folder) as file:
                file.write(b"x")
    except OSError as error:
        raise StorageError(
            f"{folder} cannot be written by uid {os.geteuid()}: {error.strerror}. This node keeps logs and "
            "events there until they are on S3.\nFree space there, or set XDG_CACHE_HOME to a folder of this "
            "machine that this user may write."
        ) from error


def is_same_start(previous: Attempt, allocation: SchedulerStart | None) -> bool:
    """Return whether an attempt was an earlier start of the scheduler's job that now starts again."""
    earlier = allocation_of(previous)
    return earlier is not None and allocation is not None and earlier.is_same_job(allocation)


def was_stopped_by_user(run: RunDir, allocation: SchedulerStart) -> bool:
    """Return whether the user stopped the run in an earlier start of the scheduler's job.

    The job of the scheduler now starts again.
    """
    previous = run.newest_attempt()
    if previous is None or not is_same_start(previous, allocation):
        return False
    stop = previous.stop.read()
    return stop is not None and stop.cause == "user"


def is_running(previous: Attempt, options: Options) -> bool:
    """Return whether another process runs the run, and refuse that without --takeover.

    Raises:
        ClusterError: another process runs it; names that process.
    """
    runner = who_runs(previous)
    if runner is not None and not options.takeover:
        raise ClusterError(
            f"{previous.run.name} is already running: attempt {previous.n}, {runner}.\n"
            f"Wait for it, end it with `{options.command.of('stop')}`, or take it over with "
            f"`{options.command} --takeover`."
        )
    return runner is not None


def continue_from(
    run: RunDir, job: Job, options: Options, echo: Callable[[str], None]
) -> Result | JobChanges | None:
    """Check that the job may continue the run under its name, and print what changed in it.

    Changes count from the last attempt that was not refused. Returns the result of the run if nothing is left
    to train, or the changes in its identity, if there are any.

    Raises:
        JobError: it has changed, and its checkpoint needs consent or cannot be loaded; names the keys.
    """
    changes, old, last = None, last_job(run), standing_attempt(run)
    if old is not None:
        changes = job_changes(run, old, job, accepted=options.accept_changes, command=options.command)
        result = last.result.read() if last is not None else None
        is_done = result is not None and result.state == "done"
        if result is not None and is_done and changes is None and job.train == old.train:
            how, text = "", ""
            if result.cause == "early_stop":
                how, text = " by early stopping", f"\n{result.text}"
            echo(
                f"{job.name} is already finished{how}; nothing was trained. "
                f"To train from the start, use another name or `{options.command} --fresh`.{text}"
            )
            return result
    if changes is not None:
        echo_changes(changes, echo)
    return changes


def check_world_size(run: RunDir, world_size: int, options: Options, *, is_elastic: bool) -> None:
    """Refuse to resume with another number of workers than the newest checkpoint's, unless it is allowed.

    `is_elastic`: the job allows several numbers.

    Raises:
        JobError: with both numbers.
    """
    newest = newest_manifest(run.checkpoints)  # the driver reports those that are damaged
    before = newest.world_size if newest is not None else None
    is_allowed = options.accept_changes or is_elastic
    if before is not None and before != world_size and not is_allowed:
        raise JobError(
            f"resources.workers is {world_size}, but {before} workers wrote the newest checkpoint in "
            f"{run.uri}.\n"
            "With another number no sample is seen twice, but the weights differ from an uninterrupted run.\n"
            f"Set workers to {before}, or workers: [min, max], or allow it once: "
            f"`{options.command} --accept-changes`"
        )


def check_progress(run: RunDir, job: Job, allocation: SchedulerStart | None) -> None:
    """Refuse another start of a scheduler's job whose last starts all ended without a new committed step.

    The last starts are as many as failures.attempts; the next one would probably end in the same way. A start
    by hand is never refused.

    Attempts that a user ended do not count. The steps of a script are not known: a change in its checkpoint
    folder counts as progress.

    Raises:
        ClusterTrainError: names the step, and the error of the last attempt.
    """
    if allocation is None:
        return
    progress = progress_of(run)
    in_a_row: list[Result | None] = []
    for attempt in reversed(run.attempts()):
        claim, result = attempt.claim.read(), attempt.result.read()
        if claim is None or claim.progress != progress or (result is not None and result.state == "done"):
            break
        earlier = claim.allocation
        if earlier is None or not earlier.is_same_job(allocation):
            break
        if earlier.series != allocation.series:  # another job of this ID, which was submitted before
            break
        if result is None or result.state not in ("stopped", "cancelled"):
            in_a_row.append(result)
    if len(in_a_row) < job.failures.attempts:
        return
    message = (in_a_row[0].text if in_a_row[0] is not None else "") or "it ended without a result"
    what = f"without a new committed step (all began at step {progress.resumes})"
    if job.is_script:
        same = "on S3 it is unknown" if progress.files is None else "its checkpoint folder has not changed"
        what = f"without visible progress of the script ({same})"
    raise ClusterTrainError(
        f"{len(in_a_row)} attempts in a row ended {what}. The last one reported:\n{message}\n"
        "Fix the cause, and start the run again."
    )
