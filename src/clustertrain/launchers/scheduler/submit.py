"""Submits a job to a scheduler. What is sent is identical to the output of `render`.

script ─▶ check ─▶ may the run start? ─▶ check of the code ─▶ snapshot ─▶ submit ─▶ record in the storage
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

from clustertrain.errors import (
    EXIT_CLUSTER,
    ClusterError,
    ClusterTrainError,
    JobError,
    StorageError,
    error_of_code,
)
from clustertrain.job.model import Job
from clustertrain.job.references import names_of
from clustertrain.job.site import SiteJob
from clustertrain.launchers.check import check_code, placing
from clustertrain.launchers.one_host import ray_address
from clustertrain.launchers.scheduler.interface import Sent
from clustertrain.launchers.scheduler.needs_of_job import environment_of, needs_of
from clustertrain.launchers.scheduler.status import Registered, ask, blamed, blaming, rows_of, status_of
from clustertrain.launchers.source_state import source_of
from clustertrain.node import variables
from clustertrain.run_files.admission import Options, check_storage, check_world_size, continue_from
from clustertrain.run_files.command_line import CommandLine
from clustertrain.run_files.folder.run_dir import RunDir
from clustertrain.run_files.records.result import Result
from clustertrain.run_files.snapshot import UserCode, take_snapshot
from clustertrain.run_files.states import STATES
from clustertrain.run_files.submission import Submission, record, submission_of, upload
from clustertrain.run_files.working_folder import note_left_files

Echo = Callable[[str], None]


def submit(queue: Registered, job: SiteJob, options: Options, echo: Echo) -> Sent | None:
    """Check a job, store its snapshot, and send it; return None if its run is already finished.

    Raises:
        JobError: the storage contains another job with this name, the job cannot run there, or the code is
            wrong.
        ClusterError: the scheduler's commands are not on PATH, it does not answer or refuses the job, or the
            run is already queued or running.
        StorageError: the storage or the output folder cannot be written.
    """
    if not queue.reads_storage:
        options = replace(options, source=source_of(UserCode.of(job)))
    with placing(options.command):
        script = script_of(queue, job, options)
        notes = [*notes_of(queue, job, script), *idle_workers(queue, job)]
    if queue.reads_storage:
        check_storage(job.storage.location)
        notes = [*_unset_variables(queue, job), *notes]
    for note in notes:
        echo(f"note: {note}")
    run = None
    if queue.reads_storage and (run := choose_generation(queue, job, options, echo)) is None:
        return None
    if not options.no_check:
        check_code(job, echo, command=options.command, elsewhere=is_elsewhere(queue))
    submission = _snapshot(run, job, options) if run is not None else None
    sent = _sent(queue, job, script, submission, options)
    for line in sent.printed:
        echo(line)
    if submission is not None:
        try:
            record(submission.run, queue.name, sent, submission.digest)
        except StorageError as error:  # the job runs without the record; only `status` does not query it
            label = f"{queue.scheduler.label} job {sent.job_id}"
            echo(f"warning: {label} is queued, but its record could not be written: {error}")
    return sent


def is_elsewhere(queue: Registered) -> bool:
    """Return whether its jobs run on other machines: then what is missing on this one is no error."""
    return not queue.scheduler.runs_here or bool(ray_address())


def script_of(queue: Registered, job: SiteJob, options: Options) -> str:
    """Return the script of a job.

    Raises:
        JobError: the job cannot run there.
    """
    needs = needs_of(job, options, queue.name, reads_storage=queue.reads_storage)
    if needs.hosts > (most := queue.scheduler.max_hosts):
        raise JobError(
            f"resources.nodes is {needs.hosts}, and a job of {queue.scheduler.label} has at most {most} here."
            f"\nSet resources.nodes to {most}."
        )
    with blaming(queue, "script"):
        return queue.scheduler.script(job, needs)


def notes_of(queue: Registered, job: SiteJob, script: str) -> Iterator[str]:
    """Yield what a user should know before the submission; raise as `Scheduler.check`."""
    with blaming(queue, "check"):
        yield from queue.scheduler.check(job, script)


def _sent(
    queue: Registered, job: SiteJob, script: str, submission: Submission | None, options: Options
) -> Sent:
    """Send the script, and record the job also if the plug-in then fails.

    Raises:
        ClusterError: the job was refused; or it was accepted, and the text names its ID.
    """
    environment = environment_of(job, submission.to_text() if submission is not None else "")
    if options.after:
        environment[variables.AFTER] = " ".join(options.after)
    sent: object = None
    try:
        sent = queue.scheduler.submit(job, script, environment)
        if not isinstance(sent, Sent):
            raise TypeError(f"it returned {sent!r}, not a Sent")
    except Exception as error:
        job_id = sent if isinstance(sent, str) else str(getattr(error, "job_id", getattr(sent, "job_id", "")))
        is_ours = isinstance(error, ClusterTrainError)
        if is_ours and not job_id:
            raise
        text = str(error) if is_ours else f"submit of {blamed(queue.name, error)}"
        became = _what_became_of_it(queue, job_id, submission, options)
        raise error_of_code(getattr(error, "exit_code", EXIT_CLUSTER), f"{text}\n{became}") from error
    return sent


def _what_became_of_it(
    queue: Registered, job_id: str, submission: Submission | None, options: Options
) -> str:
    """Return where a job is after an error, and how to cancel it; record it if it has an ID."""
    label = queue.scheduler.label
    if not job_id:
        return f"The job may be queued: look there with the commands of {label}, and cancel it."
    if submission is not None:
        record(submission.run, queue.name, Sent(job_id), submission.digest)
    return f"{label} has accepted the job as {job_id}. Cancel it: `{options.command.of('stop')}`"


def idle_workers(queue: Registered, job: Job) -> list[str]:
    """Return a note if the job asks for more workers than `global_batch_size` ever has work for."""
    shape, most = job.resources, job.world_sizes[-1]
    is_asked = is_elsewhere(queue) and shape.nodes is None  # no idle nodes are asked for
    if not is_asked or job.train is None or most == shape.max_workers:
        return []
    why = f"no larger number × accumulate divides train.global_batch_size {job.train.global_batch_size}"
    return [
        f"the job asks for {shape.max_workers} workers, of which at most {most} train: {why}; "
        f"set resources.workers: [{shape.min_workers}, {most}]"
    ]


def _unset_variables(queue: Registered, job: Job) -> list[str]:
    return [
        f"{key}: {name} is not set here; if no node sets it, the job ends at its start"
        for name, key in names_of(job.start_texts).items()
        if is_elsewhere(queue) and name not in os.environ
    ]


def _snapshot(run: RunDir, job: Job, options: Options) -> Submission:
    earlier = (
        each for generation in range(1, run.generation + 1) for each in run.at(generation).submissions()
    )
    snapshot = take_snapshot(job, outputs=[Path(each.output) for each in earlier if each.output])
    upload(run, snapshot)
    run.snapshot_source(snapshot.digest).write(source_of(UserCode.of(job)))
    return submission_of(run, snapshot.digest, options)


def choose_generation(queue: Registered, job: Job, options: Options, echo: Echo) -> RunDir | None:
    """Choose the generation of the run for the job, after the same checks as at a start on one machine.

    Return None if the run is already finished. A requeued job stays in its generation.

    Raises:
        ClusterTrainError: as `submit`.
    """
    run = RunDir.newest(job.storage.location, job.name)
    previous = run.newest_attempt()
    if previous is None and not run.submissions():
        return run
    section = job.launcher_sections.get(queue.name)
    if not options.takeover and not (section is not None and section.starts_after_another):
        _check_not_active(queue, run, options.command)
    if options.fresh:
        note_left_files(run, echo)
        return run.fresh()
    if previous is not None and isinstance(continue_from(run, job, options, echo), Result):
        return None
    check_world_size(run, job.world_sizes[-1], options, is_elastic=len(job.world_sizes) > 1)
    return run


def _check_not_active(queue: Registered, run: RunDir, command: CommandLine) -> None:
    status = status_of(queue, run)
    if status.standing.over or STATES[status.state].final:
        return
    where = status.where or status.runner
    attempt = f"attempt {status.attempt.n}, " if status.attempt and status.state != "queued" else ""
    raise ClusterError(
        f"{run.name} is {status.state} already: {attempt}{where}.\n"
        f"Wait for it, end it with `{command.of('stop')}`, take it over with `{command} --takeover`."
    )


def what_next(queue: Registered, name: str, sent: Sent, command: CommandLine) -> str:
    """Return a message with the state and the next commands; `command` submitted the run of this name."""
    state, label = ask(queue, [sent]).states.get(sent.job_id), queue.scheduler.label
    text = f": {state.text}" if state is not None else ""
    lines = [f"submitted {name} as {label} job {sent.job_id}{text}"]
    if state is not None and state.is_waiting:
        lines += [f"{name}: {row}" for name, row in rows_of(state)]
    lines += [f"status: {command.of('status')}", f"logs:   {command.of('logs', '--follow')}"]
    lines += [f"stop:   {command.of('stop')}"]
    lines += [f"{label}'s own output: {sent.output}"] if sent.output else []
    return "\n".join(lines)
