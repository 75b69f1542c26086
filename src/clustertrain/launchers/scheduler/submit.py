"""Submits a job to a scheduler. What is sent is identical to the output of `render`.

plan ─▶ preflight ─▶ may the run start? ─▶ check of the code ─▶ snapshot ─▶ submit ─▶ record in the storage
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import dataclass, replace

from clustertrain.errors import ClusterError, StorageError
from clustertrain.job.model import Job
from clustertrain.job.references import names_of
from clustertrain.job.site import SiteJob
from clustertrain.launchers.check import check_code
from clustertrain.launchers.scheduler.interface import Handle, JobState, Plan, Scheduler
from clustertrain.launchers.scheduler.status import status_of
from clustertrain.launchers.source_state import source_of
from clustertrain.run.admission import Options, check_storage, check_world_size, continue_from
from clustertrain.run.command_line import CommandLine
from clustertrain.run.folder import RunDir
from clustertrain.run.records import Result
from clustertrain.run.snapshot import take_snapshot
from clustertrain.run.states import STATES
from clustertrain.run.submission import Submission, record, submission_of, upload
from clustertrain.run.working_folder import note_left_files


@dataclass(frozen=True)
class Submitted:
    """A job that a scheduler has accepted.

    `state`: its state in the queue; None without an answer.
    """

    job: SiteJob
    handle: Handle
    state: JobState | None


def submit(
    scheduler: Scheduler, job: SiteJob, options: Options, echo: Callable[[str], None]
) -> Submitted | None:
    """Check a job, store its snapshot, and send it; return None if its run is already finished.

    Raises:
        JobError: the storage contains another job with this name, the job cannot run there, or the code is
            wrong.
        ClusterError: the scheduler's commands are not on PATH, it does not answer or refuses the job, or the
            run is already queued or running.
        StorageError: the storage or the output folder cannot be written.
    """
    if not scheduler.reads_storage:
        options = replace(options, source=source_of(job))
    plan = scheduler.plan(job, options)
    notes = [*scheduler.preflight(job, plan, options.command), *plan.notes, *idle_workers(scheduler, job)]
    if scheduler.reads_storage:
        check_storage(job.storage.location)
        notes = [*_unset_variables(scheduler, job), *notes]
    for note in notes:
        echo(f"note: {note}")
    run = None
    if scheduler.reads_storage and (run := choose_generation(scheduler, job, plan, options, echo)) is None:
        return None
    if not options.no_check:
        check_code(job, echo, command=options.command, elsewhere=scheduler.is_elsewhere)
    submission = _snapshot(run, job, plan, options) if run is not None else None
    text = submission.to_text() if submission is not None else ""
    handle = scheduler.submit(job, plan, text, options.command)
    for line in handle.printed:
        echo(line)
    if submission is not None:
        _record(scheduler, submission, handle, echo)
    state = scheduler.states([handle]).jobs.get(handle.job_id)
    if state is not None and state.is_waiting:
        state = scheduler.located(state)
    return Submitted(job, handle, state)


def idle_workers(scheduler: Scheduler, job: Job) -> list[str]:
    """Return a note if the job asks for more workers than `global_batch_size` ever has work for."""
    shape, most = job.resources, job.world_sizes[-1]
    is_asked = scheduler.is_elsewhere and shape.nodes is None  # SLURM gets no idle nodes
    if not is_asked or job.train is None or most == shape.max_workers:
        return []
    why = f"no larger number × accumulate divides train.global_batch_size {job.train.global_batch_size}"
    return [
        f"the job asks for {shape.max_workers} workers, of which at most {most} train: {why}; "
        f"set resources.workers: [{shape.min_workers}, {most}]"
    ]


def _unset_variables(scheduler: Scheduler, job: Job) -> list[str]:
    return [
        f"{key}: {name} is not set here; if no node sets it, the job ends at its start"
        for name, key in names_of(job.start_texts).items()
        if scheduler.is_elsewhere and name not in os.environ
    ]


def _snapshot(run: RunDir, job: Job, plan: Plan, options: Options) -> Submission:
    snapshot = take_snapshot(job, left_out=re.compile(plan.own_output) if plan.own_output else None)
    upload(run, snapshot)
    run.snapshot_source(snapshot.digest).write(source_of(job))
    return submission_of(run, snapshot.digest, options)


def choose_generation(
    scheduler: Scheduler, job: Job, plan: Plan, options: Options, echo: Callable[[str], None]
) -> RunDir | None:
    """Choose the generation of the run for the job, after the same checks as at a start on one machine.

    Return None if the run is already finished. A requeued job stays in its generation.

    Raises:
        ClusterTrainError: as `submit`.
    """
    run = RunDir.newest(job.storage.location, job.name)
    previous = run.newest_attempt()
    if previous is None and not run.submissions():
        return run
    if not options.takeover and not plan.waits_for_another:
        _check_not_active(scheduler, run, options.command)
    if options.fresh:
        note_left_files(run, echo)
        return run.fresh()
    if previous is not None and isinstance(continue_from(run, job, options, echo), Result):
        return None
    check_world_size(run, job, job.world_sizes[-1], options)
    return run


def _check_not_active(scheduler: Scheduler, run: RunDir, command: CommandLine) -> None:
    status = status_of(scheduler, run)
    if status.standing.over or STATES[status.state].final:
        return
    where = status.where or status.runner
    attempt = f"attempt {status.attempt.n}, " if status.attempt and status.state != "queued" else ""
    after = f",\nor let {scheduler.after_another}" if scheduler.after_another else ""
    raise ClusterError(
        f"{run.name} is {status.state} already: {attempt}{where}.\n"
        f"Wait for it, end it with `{command.of('stop')}`, take it over with `{command} --takeover`{after}."
    )


def _record(
    scheduler: Scheduler, submission: Submission, handle: Handle, echo: Callable[[str], None]
) -> None:
    try:
        record(
            submission.run,
            scheduler=scheduler.name,
            cluster=handle.cluster,
            job_id=handle.job_id,
            digest=submission.digest,
            output=handle.output,
        )
    except StorageError as error:  # the job runs without the record; only `status` does not query it
        job = f"{scheduler.label} job {handle.job_id}"
        echo(f"warning: {job} is queued, but its record could not be written: {error}")


def what_next(scheduler: Scheduler, submitted: Submitted, command: CommandLine) -> str:
    """Return a message with the next commands; `command` submitted the run."""
    state, output = submitted.state, submitted.handle.output
    text = f": {state.text}" if state is not None and state.text else ""
    starts = f"\nstarts: {state.starts}" if state is not None and state.starts else ""
    return (
        f"submitted {submitted.job.name} as {scheduler.label} job {submitted.handle.job_id}{text}{starts}\n"
        f"status: {command.of('status')}\n"
        f"logs:   {command.of('logs', '--follow')}\n"
        f"stop:   {command.of('stop')}" + (f"\n{scheduler.label}'s own output: {output}" if output else "")
    )
