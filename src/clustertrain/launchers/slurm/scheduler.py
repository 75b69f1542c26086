"""SLURM as a scheduler: jobs are planned, checked against the cluster, sent and asked for."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from clustertrain.errors import ClusterError
from clustertrain.job.model import Job
from clustertrain.job.site import SiteJob
from clustertrain.launchers.scheduler.interface import Scheduler, Sent, State
from clustertrain.launchers.scheduler.needs import Needs
from clustertrain.launchers.shell import CommandFailed
from clustertrain.launchers.shell import run as run_command
from clustertrain.launchers.slurm import queue
from clustertrain.launchers.slurm.preflight import (
    check_controller,
    check_image,
    check_output,
    check_time,
    refusal,
    test_only,
)
from clustertrain.launchers.slurm.script import (
    job_name,
    lead_time_s,
    passed_variables,
    python_on_nodes,
    render,
)
from clustertrain.launchers.slurm.section import Slurm
from clustertrain.node import variables

# With a list of names in --export, a node first runs the user's login shell; if that is slow, SLURM requeues
# the job again and again. The script has such a list for plain sbatch. `submit` overrides it by ALL, and
# gives sbatch an environment that contains only the variables to pass on.
_ARGV = ("sbatch", "--parsable", "--export=ALL")
SUBMIT_S = 120.0  # a busy controller answers late, and may queue the job even after a timeout here
_MAY_BE_QUEUED = "If SLURM did not answer, the job may still be queued: check with `squeue --me`."
# For sbatch these take precedence over the script, so each is passed on only if the job does not set its key.
_SBATCH_DEFAULTS = {
    f"SBATCH_{key.upper()}": key for key in ("account", "partition", "qos", "reservation", "constraint")
}
# The variables that determine the location of SLURM's commands and their cluster, here and on the nodes.
_COMMAND_VARIABLES = ("PATH", "LD_LIBRARY_PATH", "SLURM_CONF", "SLURM_CLUSTERS", "SBATCH_CLUSTERS")


class SlurmScheduler(Scheduler):
    """Jobs that are submitted with sbatch, or started within a SLURM job."""

    label = "SLURM"
    max_hosts = math.inf

    def script(self, job: SiteJob, needs: Needs) -> str:
        check_time(job, lead_time_s(job, needs))
        return render(job, needs)

    def check(self, job: SiteJob, script: str) -> Iterator[str]:
        slurm = job.section(Slurm)
        if slurm.python is None and slurm.container == "none":
            python = python_on_nodes(job)
            yield f"the nodes use the Python of this command, {python}; slurm.python names another"
        environ = own_environment(job)
        check_controller(environ)
        check_output(job)
        check_image(job)
        if waits := test_only(script, environ):
            yield waits

    def submit(self, job: SiteJob, script: str, environment: Mapping[str, str]) -> Sent:
        environ = {**own_environment(job), **environment}
        try:
            done = run_command(_ARGV, input=script.encode(), environ=environ, timeout_s=SUBMIT_S, check=False)
        except CommandFailed as error:
            raise ClusterError(f"{error}\n{_MAY_BE_QUEUED}") from None
        if done.code != 0:
            raise refusal(done, _MAY_BE_QUEUED)
        answers = re.findall(r"^(\d+)(?:;(\S+))?$", done.stdout.strip(), re.MULTILINE)
        if not answers:
            raise ClusterError(
                "sbatch ended with code 0, and printed no job ID: "
                f"{done.stdout.strip()!r} {done.stderr.strip()!r}\n{_MAY_BE_QUEUED}"
            )
        job_id, cluster = answers[-1]  # a plugin of the site may print lines before it
        output = Path(job.section(Slurm).output).absolute() / f"{job_name(job)}-{job_id}.out"
        printed = done.stderr.splitlines()  # messages of a site's plugin
        return Sent(job_id, str(output), printed, queue.place_of(cluster or queue.cluster_name()))

    def query(self, jobs: Sequence[Sent]) -> dict[str, State]:
        return queue.query_queue(jobs)

    def command_on(self, job: Sent, host: str, command: Sequence[str]) -> Sequence[str]:
        """Return the arguments of a step beside the run's own step, which shares its CPUs and GPUs.

        In the shell of an salloc, srun would take that allocation's memory and GPUs for the request of this
        step.
        """
        step = ("--overlap", "--nodes=1", "--ntasks=1", f"--nodelist={host}", f"--jobid={job.job_id}")
        own = [name for name in os.environ if name.startswith(("SLURM_", "SRUN_"))]
        removed = [word for name in own if name not in _COMMAND_VARIABLES for word in ("-u", name)]
        return [*(["env", *removed] if removed else []), "srun", *step, *command]

    def cancel(self, job: Sent) -> None:
        queue.cancel(job.job_id)

    def cancel_waiting(self, job: Sent) -> None:
        queue.cancel(job.job_id, only_waiting=True)


def own_environment(job: Job) -> dict[str, str]:
    """Return the environment of sbatch, which --export=ALL passes on to the job.

    It contains only the variables to pass on: no secret of the login session, and no SBATCH_… variable that
    would override the script.
    """
    passed_on = {name for name, key in _SBATCH_DEFAULTS.items() if getattr(job.section(Slurm), key) is None}
    passed_on |= {*passed_variables(job), *_COMMAND_VARIABLES} - {variables.SUBMISSION}
    return {name: value for name, value in os.environ.items() if name in passed_on}


SCHEDULER = SlurmScheduler()
