"""SLURM as a scheduler: jobs are planned, checked against the cluster, sent and asked for."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from clustertrain import variables
from clustertrain.errors import ClusterError
from clustertrain.job.model import Job
from clustertrain.launchers.launcher import Launcher
from clustertrain.launchers.scheduler.interface import Answer, Handle, JobState, Plan, Scheduler
from clustertrain.launchers.scheduler.lead_time import measured_save_s
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
from clustertrain.run.admission import Options
from clustertrain.run.command_line import CommandLine
from clustertrain.run.records import SchedulerStart

_SUBMIT_S = 120.0  # a busy controller answers late, and may queue the job even after a timeout here
_MAY_BE_QUEUED = "If SLURM did not answer, the job may still be queued: check with `squeue --me`."
# For sbatch these take precedence over the script, so each is passed on only if the job does not set its key.
_SBATCH_DEFAULTS = {
    f"SBATCH_{key.upper()}": key for key in ("account", "partition", "qos", "reservation", "constraint")
}
# The variables that determine the location of SLURM's commands and their cluster, here and on the nodes.
_COMMAND_VARIABLES = ("PATH", "LD_LIBRARY_PATH", "SLURM_CONF", "SLURM_CLUSTERS", "SBATCH_CLUSTERS")


class SlurmScheduler(Scheduler):
    """Jobs that are submitted with sbatch, or started within a SLURM job."""

    name = "slurm"
    label = "SLURM"
    submit_program = "sbatch"
    after_another = "SLURM start this job after it with slurm.dependency: singleton"

    def plan(self, job: Job, options: Options) -> Plan:
        """Render the script, with a lead time computed from the saves of the run's last attempts."""
        lead_s = lead_time_s(job, measured_save_s(job))
        path = options.command.job_file
        return render(job, job_path=path, python=python_on_nodes(job), lead_s=lead_s)

    def preflight(self, job: Job, plan: Plan, command: CommandLine) -> Sequence[str]:
        """Check the job with SLURM, and return why it can only wait now."""
        environ = environment(job)
        check_controller(environ)
        check_output(job)
        check_image(job)
        check_time(job, plan.lead_s)
        waits = test_only(plan, environ, command)
        return [waits] if waits else []

    def submit(self, job: Job, plan: Plan, submission: str, command: CommandLine) -> Handle:
        environ = {**environment(job), variables.SUBMISSION: submission}
        try:
            done = run_command(
                plan.argv, input=plan.script, environ=environ, timeout_s=_SUBMIT_S, check=False
            )
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
        printed = tuple(done.stderr.splitlines())  # messages of a site's plugin
        return Handle(job_id, cluster or queue.cluster_name(), str(output), printed)

    def states(self, jobs: Sequence[Handle]) -> Answer:
        return queue.query_queue([job.job_id for job in jobs])

    def located(self, job: JobState) -> JobState:
        return replace(job, position=queue.position(job.job_id))

    def argv_on(self, start: SchedulerStart | None, host: str, command: Sequence[str]) -> Sequence[str]:
        """Return the arguments of a step beside the run's own step, which shares its CPUs and GPUs.

        In the shell of an salloc, srun would take that allocation's memory and GPUs for the request of this
        step.
        """
        if start is None:
            return super().argv_on(start, host, command)
        names = {node.partition(".")[0]: node for node in start.nodes}
        node = names.get(host.partition(".")[0], host)
        job = f"--jobid={start.job_id}"
        step = ("--overlap", "--nodes=1", "--ntasks=1", f"--nodelist={node}", job)
        own = [name for name in os.environ if name.startswith(("SLURM_", "SRUN_"))]
        removed = [word for name in own if name not in _COMMAND_VARIABLES for word in ("-u", name)]
        return [*(["env", *removed] if removed else []), "srun", *step, *command]

    def cancel(self, job: Handle, *, only_waiting: bool = False) -> None:
        queue.cancel(job.job_id, only_waiting=only_waiting)


def environment(job: Job) -> dict[str, str]:
    """Return the environment of sbatch, which --export=ALL passes on to the job.

    It contains only the variables to pass on: no secret of the login session, and no SBATCH_… variable that
    would override the script.
    """
    passed_on = {name for name, key in _SBATCH_DEFAULTS.items() if getattr(job.section(Slurm), key) is None}
    passed_on |= {*passed_variables(job), *_COMMAND_VARIABLES} - {variables.SUBMISSION}
    return {name: value for name, value in os.environ.items() if name in passed_on}


LAUNCHER = Launcher(SlurmScheduler())
