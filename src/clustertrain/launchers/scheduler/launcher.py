"""The launcher of a scheduler: the commands of clustertrain over its operations (interface.py)."""

from __future__ import annotations

from collections.abc import Sequence

from clustertrain.job.file import load_job
from clustertrain.job.model import Job
from clustertrain.job.site import with_site
from clustertrain.launchers.from_storage import FromStorage
from clustertrain.launchers.known_runs import KnownRun, by_name
from clustertrain.launchers.launcher import Checked, Echo, Target
from clustertrain.launchers.scheduler.interface import Scheduler
from clustertrain.launchers.scheduler.status import statuses
from clustertrain.launchers.scheduler.stop import stop_run
from clustertrain.launchers.scheduler.submit import submit, what_next
from clustertrain.observe.status import RunFiles, Status
from clustertrain.run.admission import Options
from clustertrain.run.command_line import typed


class SchedulerLauncher(FromStorage):
    """Runs whose jobs a scheduler has, and whose storage this machine reads."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler = scheduler
        self.name = scheduler.name
        self.start = f"submit --to {self.name}"

    def check(self, job_file: str, sets: Sequence[str]) -> Checked:
        job = with_site(load_job(job_file, sets))
        self.scheduler.plan(job, job_file)
        submit_it = typed(self.start, job_file, sets)
        return Checked([f"{job_file} can be rendered; `{submit_it}` checks it against the cluster"])

    def render(self, job_file: str, sets: Sequence[str], note: Echo) -> str:
        plan = self.scheduler.plan(with_site(load_job(job_file, sets)), job_file)
        if sets:
            by_hand = f"submitted with plain {self.scheduler.submit_program}"
            note(f"note: {by_hand}, the job reads {job_file} without the changes of --set")
        return plan.script.decode()

    def submit(
        self, job: Job, job_file: str, options: Options, echo: Echo, *, sets: Sequence[str]
    ) -> KnownRun | None:
        job, label = with_site(job), self.scheduler.label
        submitted = submit(self.scheduler, job, job_file, options, echo)
        if submitted is None:
            return None
        handle = submitted.handle
        cluster = f"{label} cluster {handle.cluster}" if handle.cluster else label
        known = KnownRun.of(job, job_file, self.name, cluster, handle.job_id)
        echo(what_next(self.scheduler, submitted, by_name(options.command, known, is_new=True)))
        return known

    def statuses(self, runs: Sequence[RunFiles]) -> list[Status]:
        return statuses(self.scheduler, runs)

    def stop(self, target: Target, echo: Echo, *, wait: bool) -> None:
        stop_run(self.scheduler, target.visible_run(), echo, wait=wait)
