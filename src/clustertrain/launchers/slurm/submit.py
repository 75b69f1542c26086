"""Submits a job to SLURM. The script that is sent is identical to the output of `render`.

preflight ─▶ may the run start? ─▶ check of the code ─▶ snapshot ─▶ sbatch ─▶ record in the storage
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from clustertrain import variables
from clustertrain.errors import ClusterError, StorageError
from clustertrain.job.model import Job
from clustertrain.job.references import names_of
from clustertrain.launchers.check import check_code
from clustertrain.launchers.shell import run as run_command
from clustertrain.launchers.slurm.preflight import check_cluster, check_submit_host
from clustertrain.launchers.slurm.queue import cluster_name, query_queue
from clustertrain.launchers.slurm.refusal import refusal
from clustertrain.launchers.slurm.script import (
    Rendered,
    lead_time_s,
    passed_variables,
    python_on_nodes,
    render,
)
from clustertrain.launchers.slurm.section import Slurm
from clustertrain.launchers.slurm.setup_lines import check_setup
from clustertrain.launchers.slurm.site_settings import site_notes, site_settings
from clustertrain.launchers.slurm.status import status_of
from clustertrain.run.admission import Options, check_world_size, continue_from
from clustertrain.run.command_line import CommandLine
from clustertrain.run.folder import Attempt, RunDir
from clustertrain.run.history import events_of_attempt
from clustertrain.run.snapshot import take_snapshot
from clustertrain.run.states import STATES
from clustertrain.run.submission import Submission, record, upload

_SUBMIT_S = 120.0  # a busy controller answers late, and may queue the job even after a timeout here
_ATTEMPTS_MEASURED = 3
# For sbatch these take precedence over the script, so each is passed on only if the job does not set its key.
_SBATCH_DEFAULTS = {
    f"SBATCH_{key.upper()}": key for key in ("account", "partition", "qos", "reservation", "constraint")
}
# The variables that determine the location of SLURM's commands and their cluster, here and on the nodes.
_COMMAND_VARIABLES = ("PATH", "LD_LIBRARY_PATH", "SLURM_CONF", "SLURM_CLUSTERS", "SBATCH_CLUSTERS")


@dataclass(frozen=True)
class Submitted:
    """A job that SLURM has accepted. `state` is its state in the queue, as text; "" without an answer."""

    job_id: str
    cluster: str | None
    run: RunDir
    output: Path
    state: str


def submit(job: Job, job_path: str, options: Options, echo: Callable[[str], None]) -> Submitted | None:
    """Submit a job to SLURM. Returns None if its run is already finished.

    Args:
        job: merged with the site file.
        job_path: the path of the job file as it was given; a relative one starts at the current folder.

    Raises:
        ClusterTrainError: the last attempts all ended without a new committed step.
        JobError: the storage contains another job with this name, the Python on the nodes is not known, or
            the code is wrong.
        ClusterError: SLURM's commands are not on PATH, SLURM does not answer or refuses the job, or the run
            is already queued or running.
        StorageError: the storage or the output folder cannot be written.
    """
    check_submit_host(job, environment(job))
    rendered, lead_s = render_for_submit(job, job_path)
    waits = check_cluster(job, rendered, lead_s, environment(job), options.command)
    for name, key in names_of(job.env).items():
        if name not in environment(job):
            echo(f"note: env.{key}: {name} is not set here; if no node sets it, the job ends at its start")
    for note in filter(None, (waits, *site_notes(job, site_settings(environment(job))))):
        echo(f"note: {note}")
    if job.section(Slurm).python is None and job.section(Slurm).container == "none":
        echo(f"note: the nodes use the Python of this command, {sys.executable}; slurm.python names another")
    run = RunDir.newest(job.storage.location, job.name)
    chosen = choose_generation(run, job, options, echo)
    if chosen is None:
        return None
    if not options.no_check:
        check_code(job, echo, command=options.command, elsewhere=True)
    own_output = re.compile(rf"{re.escape(job_name(job))}-\d+\.out")
    snapshot = take_snapshot(job, left_out=own_output)
    upload(chosen, snapshot)
    return _send(job, rendered, submission_of(chosen, snapshot.digest, options), options.command, echo)


def submission_of(run: RunDir, digest: str, options: Options) -> Submission:
    """The submission of a snapshot, with the options that its start needs. --fresh is in the generation."""
    return Submission(
        run.store.location,
        run.name,
        run.generation,
        digest,
        allow_world_size_change=options.allow_world_size_change,
        takeover=options.takeover,
        accept_changes=options.accept_changes,
        retry=options.retry,
        command=options.command.recorded(),
    )


def render_for_submit(job: Job, job_path: str) -> tuple[Rendered, float]:
    """Render the script for a job that is merged with the site file. Returns it and its lead time in seconds,
    which is computed from the saves of the run's last attempts.

    Raises:
        JobError: the Python on the nodes is not known, or slurm.setup is no valid shell.
    """
    check_setup(job.section(Slurm).setup)
    python, measured_s = python_on_nodes(job), None
    with suppress(StorageError):  # the storage cannot be read: `check_submit_host` reports that
        measured_s = measured_save_s(RunDir.newest(job.storage.location.with_patience(0), job.name))
    lead_s = lead_time_s(job, measured_s)
    return render(job, job_path=job_path, python=python, lead_s=lead_s), lead_s


def choose_generation(run: RunDir, job: Job, options: Options, echo: Callable[[str], None]) -> RunDir | None:
    """Choose the generation of the run for the job, after the same checks as at a start on one machine.
    Returns None if the run is already finished. A requeued job stays in its generation.

    Raises:
        ClusterTrainError: as `submit`.
    """
    previous = run.newest_attempt()
    if previous is None and not run.submissions():
        return run
    waits_for_another_job = job.section(Slurm).dependency is not None
    if not options.takeover and not waits_for_another_job:
        _check_not_active(run, options.command)
    if options.fresh:
        return run.fresh()
    if previous is not None and continue_from(run, job, options, echo).finished is not None:
        return None
    check_world_size(run, job, job.world_sizes[-1], options)
    return run


def _check_not_active(run: RunDir, command: CommandLine) -> None:
    status = status_of(run)
    if status.standing.over or STATES[status.state].final:
        return
    where = status.where or status.runner
    attempt = f"attempt {status.attempt.n}, " if status.attempt and status.state != "queued" else ""
    raise ClusterError(
        f"{run.name} is {status.state} already: {attempt}{where}.\n"
        f"Wait for it, end it with `{command.of('stop')}`, take it over with `{command} --takeover`,\n"
        "or let SLURM start this job after it with slurm.dependency: singleton."
    )


def measured_save_s(run: RunDir) -> float | None:
    """The duration in seconds of the slowest save in the newest of the last 3 attempts that has a save. None
    if none of them has one."""
    for attempt in reversed(run.attempts()[-_ATTEMPTS_MEASURED:]):
        if (slowest := max(_saves_s(attempt), default=None)) is not None:
            return slowest
    return None


def _saves_s(attempt: Attempt) -> list[float]:
    saves = (event for event in events_of_attempt(attempt) if event["kind"] == "checkpoint")
    return [float(event["write_s"]) for event in saves if "write_s" in event]


def environment(job: Job, environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The environment of sbatch, which --export=ALL passes on to the job. It contains only the variables to
    pass on: no secret of the login session, and no SBATCH_… variable that would override the script."""
    passed_on = {name for name, key in _SBATCH_DEFAULTS.items() if getattr(job.section(Slurm), key) is None}
    passed_on |= {*passed_variables(job), *_COMMAND_VARIABLES}
    return {
        name: value for name, value in environ.items() if name in passed_on and name != variables.SUBMISSION
    }


def job_name(job: Job) -> str:
    """The name of the job in the queue; the name of its output file starts with it."""
    return job.section(Slurm).job_name or job.name


def _send(
    job: Job,
    rendered: Rendered,
    submission: Submission,
    command: CommandLine,
    echo: Callable[[str], None],
) -> Submitted:
    environ = {**environment(job), variables.SUBMISSION: submission.to_text()}
    done = run_command(
        rendered.argv, input=rendered.script, environ=environ, timeout_s=_SUBMIT_S, check=False
    )
    if done.code != 0:
        raise refusal(job, done, command, may_be_queued=True)
    answers = re.findall(r"^(\d+)(?:;(\S+))?$", done.stdout.strip(), re.MULTILINE)
    if not answers:
        raise ClusterError(
            "sbatch ended with code 0, and printed no job ID: "
            f"{done.stdout.strip()!r} {done.stderr.strip()!r}\n"
            "The job may still be queued: check with `squeue --me` before you submit it again."
        )
    for line in done.stderr.splitlines():  # messages of a site's plugin
        echo(line)
    job_id, cluster = answers[-1]  # a plugin of the site may print lines before it
    cluster = cluster or cluster_name()
    output = Path(job.section(Slurm).output).absolute() / f"{job_name(job)}-{job_id}.out"
    try:
        record(
            submission.run,
            scheduler="slurm",
            cluster=cluster,
            job_id=job_id,
            digest=submission.digest,
            output=str(output),
        )
    except StorageError as error:  # the job runs without the record; only `status` does not query it
        echo(f"warning: SLURM job {job_id} is queued, but its record could not be written: {error}")
    found = query_queue([job_id]).jobs.get(job_id)
    return Submitted(job_id, cluster, submission.run, output, found.text if found else "")


def what_next(submitted: Submitted, command: CommandLine) -> str:
    """A message with the next commands; `command` submitted the run."""
    state = f": {submitted.state}" if submitted.state else ""
    return (
        f"submitted {submitted.run.name} as SLURM job {submitted.job_id}{state}\n"
        f"status: {command.of('status')}\n"
        f"logs:   {command.of('logs', '--follow')}\n"
        f"stop:   {command.of('stop')}\n"
        f"SLURM's own output: {submitted.output}"
    )
