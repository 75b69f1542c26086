"""Plans a submission to SLURM, checks it against the cluster, and sends it."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

from clustertrain import variables
from clustertrain.errors import ClusterError
from clustertrain.job.model import Job
from clustertrain.launchers.scheduler.interface import Handle, Plan
from clustertrain.launchers.scheduler.lead_time import measured_save_s
from clustertrain.launchers.shell import run as run_command
from clustertrain.launchers.slurm.preflight import check_cluster, check_submit_host
from clustertrain.launchers.slurm.queue import cluster_name
from clustertrain.launchers.slurm.sbatch_errors import refusal
from clustertrain.launchers.slurm.script import (
    job_name,
    lead_time_s,
    passed_variables,
    python_on_nodes,
    render,
)
from clustertrain.launchers.slurm.section import Slurm
from clustertrain.launchers.slurm.setup_lines import check_setup
from clustertrain.launchers.slurm.site_settings import site_notes, site_settings
from clustertrain.run.command_line import CommandLine

_SUBMIT_S = 120.0  # a busy controller answers late, and may queue the job even after a timeout here
# For sbatch these take precedence over the script, so each is passed on only if the job does not set its key.
_SBATCH_DEFAULTS = {
    f"SBATCH_{key.upper()}": key for key in ("account", "partition", "qos", "reservation", "constraint")
}
# The variables that determine the location of SLURM's commands and their cluster, here and on the nodes.
_COMMAND_VARIABLES = ("PATH", "LD_LIBRARY_PATH", "SLURM_CONF", "SLURM_CLUSTERS", "SBATCH_CLUSTERS")


def plan(job: Job, job_file: str) -> Plan:
    """Render the script for a job that is merged with the site file. Its lead time is computed from the saves
    of the run's last attempts.

    Raises:
        JobError: the Python on the nodes is not known, or slurm.setup is no valid shell.
    """
    check_setup(job.section(Slurm).setup)
    lead_s = lead_time_s(job, measured_save_s(job))
    return render(job, job_path=job_file, python=python_on_nodes(job), lead_s=lead_s)


def preflight(job: Job, plan: Plan, command: CommandLine) -> list[str]:
    """The checks of preflight.py. Returns why the job can only wait now, and settings of the cluster."""
    environ = environment(job)
    check_submit_host(job, environ)
    waits = check_cluster(job, plan, environ, command)
    return [*filter(None, [waits]), *site_notes(job, site_settings(environ))]


def send(job: Job, plan: Plan, submission: str, command: CommandLine) -> Handle:
    """Call sbatch.

    Raises:
        ClusterError: SLURM does not answer, or refuses the job.
    """
    environ = {**environment(job), variables.SUBMISSION: submission}
    done = run_command(plan.argv, input=plan.script, environ=environ, timeout_s=_SUBMIT_S, check=False)
    if done.code != 0:
        raise refusal(job, done, command, may_be_queued=True)
    answers = re.findall(r"^(\d+)(?:;(\S+))?$", done.stdout.strip(), re.MULTILINE)
    if not answers:
        raise ClusterError(
            "sbatch ended with code 0, and printed no job ID: "
            f"{done.stdout.strip()!r} {done.stderr.strip()!r}\n"
            "The job may still be queued: check with `squeue --me` before you submit it again."
        )
    job_id, cluster = answers[-1]  # a plugin of the site may print lines before it
    output = Path(job.section(Slurm).output).absolute() / f"{job_name(job)}-{job_id}.out"
    printed = tuple(done.stderr.splitlines())  # messages of a site's plugin
    return Handle(job_id, cluster or cluster_name(), str(output), printed)


def environment(job: Job, environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The environment of sbatch, which --export=ALL passes on to the job. It contains only the variables to
    pass on: no secret of the login session, and no SBATCH_… variable that would override the script."""
    passed_on = {name for name, key in _SBATCH_DEFAULTS.items() if getattr(job.section(Slurm), key) is None}
    passed_on |= {*passed_variables(job), *_COMMAND_VARIABLES}
    return {
        name: value for name, value in environ.items() if name in passed_on and name != variables.SUBMISSION
    }
