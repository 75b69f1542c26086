"""SLURM clusters as a launcher."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from clustertrain.job.model import Job
from clustertrain.launchers.launcher import Launcher
from clustertrain.launchers.scheduler.interface import Answer, Handle, JobState, Plan, Scheduler
from clustertrain.launchers.slurm import queue, submit
from clustertrain.run.admission import Options
from clustertrain.run.command_line import CommandLine
from clustertrain.run.records import SchedulerStart


class SlurmScheduler(Scheduler):
    """Jobs that are submitted with sbatch, or started within a SLURM job."""

    name = "slurm"
    label = "SLURM"
    submit_program = "sbatch"
    after_another = "SLURM start this job after it with slurm.dependency: singleton"
    state = queue.QueueState

    def plan(self, job: Job, options: Options) -> Plan:
        return submit.plan(job, options.command.job_file)

    def preflight(self, job: Job, plan: Plan, command: CommandLine) -> Sequence[str]:
        return submit.preflight(job, plan, command)

    def submit(self, job: Job, plan: Plan, submission: str, command: CommandLine) -> Handle:
        return submit.send(job, plan, submission, command)

    def states(self, jobs: Sequence[Handle]) -> Answer:
        return queue.query_queue([job.job_id for job in jobs])

    def located(self, job: JobState) -> JobState:
        return replace(job, position=queue.position(job.job_id))

    def argv_on(self, start: SchedulerStart | None, host: str, command: Sequence[str]) -> Sequence[str]:
        """A step beside the run's own, which shares its CPUs and GPUs."""
        if start is None:
            return super().argv_on(start, host, command)
        names = {node.partition(".")[0]: node for node in start.nodes}
        node = names.get(host.partition(".")[0], host)
        step = ("--overlap", "--nodes=1", "--ntasks=1", f"--nodelist={node}", f"--jobid={start.job_id}")
        return ["srun", *step, *command]

    def cancel(self, job: Handle, *, only_waiting: bool = False) -> None:
        queue.cancel(job.job_id, only_waiting=only_waiting)


LAUNCHER = Launcher(SlurmScheduler())
