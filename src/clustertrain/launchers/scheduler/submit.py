"""Submits a job to a scheduler. What is sent is identical to the output of `render`.

plan ─▶ preflight ─▶ may the run start? ─▶ check of the code ─▶ snapshot ─▶ submit ─▶ record in the storage
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import dataclass

from clustertrain.errors import ClusterError, StorageError
from clustertrain.job.model import Job
from clustertrain.job.references import names_of
from clustertrain.launchers.check import check_code
from clustertrain.launchers.scheduler.interface import Handle, Plan, Scheduler
from clustertrain.launchers.scheduler.status import status_of
from clustertrain.run.admission import Options, check_storage, check_world_size, continue_from
from clustertrain.run.command_line import CommandLine
from clustertrain.run.folder import RunDir
from clustertrain.run.snapshot import take_snapshot
from clustertrain.run.states import STATES
from clustertrain.run.submission import Submission, record, submission_of, upload


@dataclass(frozen=True)
class Submitted:
    """A job that a scheduler has accepted. `state`: its state in the queue, as text; "" without an answer."""

    handle: Handle
    run: RunDir
    state: str


def submit(
    scheduler: Scheduler, job: Job, job_file: str, options: Options, echo: Callable[[str], None]
) -> Submitted | None:
    """Submit a job. Returns None if its run is already finished.

    Args:
        job: merged with the site file.
        job_file: the path of the job file as it was given; a relative one starts at the current folder.

    Raises:
        ClusterTrainError: the last attempts all ended without a new committed step.
        JobError: the storage contains another job with this name, the job cannot run there, or the code is
            wrong.
        ClusterError: the scheduler's commands are not on PATH, it does not answer or refuses the job, or the
            run is already queued or running.
        StorageError: the storage or the output folder cannot be written.
    """
    plan = scheduler.plan(job, job_file)
    checked = scheduler.preflight(job, plan, options.command)
    check_storage(job.storage.location)
    for name, key in names_of(job.env).items():
        if name not in os.environ:
            echo(f"note: env.{key}: {name} is not set here; if no node sets it, the job ends at its start")
    for note in (*checked, *plan.notes):
        echo(f"note: {note}")
    run = choose_generation(scheduler, job, plan, options, echo)
    if run is None:
        return None
    if not options.no_check:
        check_code(job, echo, command=options.command, elsewhere=True)
    snapshot = take_snapshot(job, left_out=re.compile(plan.own_output) if plan.own_output else None)
    upload(run, snapshot)
    submission = submission_of(run, snapshot.digest, options)
    handle = scheduler.submit(job, plan, submission.to_text(), options.command)
    for line in handle.printed:
        echo(line)
    _record(scheduler, submission, handle, echo)
    found = scheduler.states([handle.job_id]).jobs.get(handle.job_id)
    return Submitted(handle, run, found.text if found else "")


def choose_generation(
    scheduler: Scheduler, job: Job, plan: Plan, options: Options, echo: Callable[[str], None]
) -> RunDir | None:
    """Choose the generation of the run for the job, after the same checks as at a start on one machine.
    Returns None if the run is already finished. A requeued job stays in its generation.

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
        return run.fresh()
    if previous is not None and continue_from(run, job, options, echo).finished is not None:
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
    """A message with the next commands; `command` submitted the run."""
    state = f": {submitted.state}" if submitted.state else ""
    output = submitted.handle.output
    return (
        f"submitted {submitted.run.name} as {scheduler.label} job {submitted.handle.job_id}{state}\n"
        f"status: {command.of('status')}\n"
        f"logs:   {command.of('logs', '--follow')}\n"
        f"stop:   {command.of('stop')}" + (f"\n{scheduler.label}'s own output: {output}" if output else "")
    )
