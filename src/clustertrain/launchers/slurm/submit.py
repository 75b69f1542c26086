"""A job handed to SLURM: checked, snapshotted, sent as the very bytes that `render` prints, written down.

with_site ─▶ preflight ─▶ may it start? ─▶ snapshot into the storage ─▶ sbatch ─▶ record in the storage
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from clustertrain import variables
from clustertrain.errors import ClusterError, StorageError
from clustertrain.job.model import Job
from clustertrain.job.site import with_site
from clustertrain.launchers.shell import run as run_command
from clustertrain.launchers.slurm.preflight import check_here, check_there, refusal
from clustertrain.launchers.slurm.queue import cluster_name, query_queue
from clustertrain.launchers.slurm.script import Rendered, lead_time_s, python_on_nodes, render, traveling
from clustertrain.launchers.slurm.status import statuses
from clustertrain.observe.tables import to_type
from clustertrain.run.begin import Options, check_progress, check_world_size, continue_from
from clustertrain.run.folder import Attempt, RunDir
from clustertrain.run.history import events_of_attempt
from clustertrain.run.snapshot import take_snapshot
from clustertrain.run.states import STATES
from clustertrain.run.submission import Submission, record, upload

_SUBMIT_S = 120.0  # a busy controller answers late, and an order that was given up may still be carried out
_ATTEMPTS_MEASURED = 3
# sbatch takes these before what the script says, so each is passed on only where the job leaves its key out.
_DEFAULTS_OF_THE_SHELL = {
    f"SBATCH_{key.upper()}": key for key in ("account", "partition", "qos", "reservation", "constraint")
}
# Where SLURM's commands are and which cluster they talk to, here and on the nodes.
_FOR_COMMANDS = ("PATH", "LD_LIBRARY_PATH", "SLURM_CONF", "SLURM_CLUSTERS", "SBATCH_CLUSTERS")


@dataclass(frozen=True)
class Submitted:
    """A job that SLURM has taken. `state` is SLURM's own word for where it stands, "" where it is silent."""

    job_id: str
    cluster: str | None
    run: RunDir
    output: Path
    state: str


def submit(job: Job, job_path: str, options: Options, echo: Callable[[str], None]) -> Submitted | None:
    """Hand a job to SLURM; None where its run is finished already.

    Args:
        job_path: of the job file, as it was given; a relative one begins where the job is submitted.

    Raises:
        ClusterTrainError: the last attempts all ended without a new committed step.
        JobError: the storage holds another job under this name, or the Python on the nodes is not known.
        ClusterError: SLURM is not here, does not answer or says no, or somebody runs the run already.
        StorageError: storage or output cannot be written.
    """
    job = with_site(job)
    check_here(job, environment(job))
    rendered, lead_s = render_for_submit(job, job_path)
    check_there(job, rendered, lead_s, environment(job))
    run = RunDir.newest(job.storage.location, job.name)
    chosen = choose_generation(run, job, options, echo)
    if chosen is None:
        return None
    own_output = re.compile(rf"{re.escape(job_name(job))}-\d+\.out")
    snapshot = take_snapshot(job, left_out=own_output)
    upload(chosen, snapshot)
    submission = Submission(
        chosen.store.location,
        chosen.name,
        chosen.generation,
        snapshot.digest,
        allow_world_size_change=options.allow_world_size_change,
        takeover=options.takeover,
        retry=options.retry,
    )
    return _send(job, rendered, submission, echo)


def render_for_submit(job: Job, job_path: str) -> tuple[Rendered, float]:
    """What is sent for a job that is merged with the site file, and the lead time in it (seconds), which
    follows the saves of the run's last attempts.

    Raises:
        JobError: the Python on the nodes is not known.
    """
    python, measured_s = python_on_nodes(job), None
    with suppress(StorageError):  # it is away, or somebody else's: `check_here` tells
        measured_s = measured_save_s(RunDir.newest(job.storage.location.with_patience(0), job.name))
    lead_s = lead_time_s(job, measured_s)
    return render(job, job_path=job_path, python=python, lead_s=lead_s), lead_s


def choose_generation(run: RunDir, job: Job, options: Options, echo: Callable[[str], None]) -> RunDir | None:
    """The generation that the job goes on with, after the questions that a start on one machine asks, too;
    None where its run is finished already. A requeue stays in it.

    Raises:
        ClusterTrainError: as `submit`.
    """
    previous = run.newest_attempt()
    if previous is None and not run.submissions():
        return run
    if not options.takeover and job.slurm.dependency is None:  # with one it is meant to come after another
        _check_nobody_has_it(run)
    if options.fresh:
        return run.fresh()
    if previous is not None:
        if continue_from(run, previous, job, echo) is not None:
            return None
        if not options.retry:
            check_progress(run, job.failures.attempts)
    check_world_size(run, job, job.world_sizes[-1], options)
    return run


def _check_nobody_has_it(run: RunDir) -> None:
    status = statuses([run])[0]
    if status.standing.over or STATES[status.state].final:
        return
    where = status.where or status.runner
    attempt = f"attempt {status.attempt.n}, " if status.attempt and status.state != "queued" else ""
    raise ClusterError(
        f"{run.name} is {status.state} already: {attempt}{where}.\n"
        "Wait for it, end it with `clustertrain stop`, take it over with --takeover, "
        "or queue up behind it with slurm.dependency: singleton."
    )


def measured_save_s(run: RunDir) -> float | None:
    """Seconds that the slowest save of the newest attempt took that saved at all; None before the first."""
    for attempt in reversed(run.attempts()[-_ATTEMPTS_MEASURED:]):
        if (slowest := max(_saves_s(attempt), default=None)) is not None:
            return slowest
    return None


def _saves_s(attempt: Attempt) -> list[float]:
    saves = (event for event in events_of_attempt(attempt) if event["kind"] == "checkpoint")
    return [float(event["write_s"]) for event in saves if "write_s" in event]


def environment(job: Job, environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """What sbatch is given, and with --export=ALL hands on: what may travel, no secret of a login, none of
    the SBATCH_… that would change what the script says."""
    passed_on = {name for name, key in _DEFAULTS_OF_THE_SHELL.items() if getattr(job.slurm, key) is None}
    passed_on |= {*traveling(job), *_FOR_COMMANDS}
    return {
        name: value for name, value in environ.items() if name in passed_on and name != variables.SUBMISSION
    }


def job_name(job: Job) -> str:
    """What the queue calls it, and its output begins with."""
    return job.slurm.job_name or job.name


def _send(job: Job, rendered: Rendered, submission: Submission, echo: Callable[[str], None]) -> Submitted:
    environ = {**environment(job), variables.SUBMISSION: submission.to_text()}
    done = run_command(
        rendered.argv, input=rendered.script, environ=environ, timeout_s=_SUBMIT_S, check=False
    )
    if done.code != 0:
        raise refusal(job, done, may_be_queued=True)
    answer = re.search(r"^(\d+)(?:;(\S+))?$", done.stdout.strip(), re.MULTILINE)
    if answer is None:
        raise ClusterError(
            f"sbatch ended well and named no job. It said: {done.stdout.strip()!r} {done.stderr.strip()!r}\n"
            "The job may be queued all the same: look with `squeue --me` before you submit it again."
        )
    for line in done.stderr.splitlines():  # what a site's plugin has to say of a job that it takes
        echo(line)
    job_id = answer[1]
    cluster = answer[2] or cluster_name()
    output = Path(job.slurm.output).absolute() / f"{job_name(job)}-{job_id}.out"
    try:
        record(
            submission.run,
            scheduler="slurm",
            cluster=cluster,
            job_id=job_id,
            digest=submission.digest,
            output=str(output),
        )
    except StorageError as error:  # the job is queued, and finds its own way; only the queue is not asked
        echo(f"warning: SLURM job {job_id} is queued, and that could not be written down: {error}")
    found = query_queue([job_id]).jobs.get(job_id)
    return Submitted(job_id, cluster, submission.run, output, found.text if found else "")


def what_next(submitted: Submitted, target: str) -> str:
    """What to type next; `target` names the run to the commands that take one."""
    clustertrain, state = to_type("clustertrain"), f": {submitted.state}" if submitted.state else ""
    return (
        f"submitted {submitted.run.name} as SLURM job {submitted.job_id}{state}\n"
        f"status: {clustertrain} status {target}\n"
        f"logs:   {clustertrain} logs --follow {target}\n"
        f"stop:   {clustertrain} stop {target}\n"
        f"SLURM's own output: {submitted.output}"
    )
