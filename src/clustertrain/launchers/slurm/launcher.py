"""The launcher of SLURM clusters."""

from __future__ import annotations

from collections.abc import Sequence

from clustertrain.job.file import load_job
from clustertrain.job.model import Job
from clustertrain.job.site import with_site
from clustertrain.launchers.from_storage import FromStorage
from clustertrain.launchers.known_runs import KnownRun, by_name
from clustertrain.launchers.launcher import Checked, Echo, Target
from clustertrain.launchers.slurm import status
from clustertrain.launchers.slurm.stop import stop_run
from clustertrain.launchers.slurm.submit import render_for_submit, submit, what_next
from clustertrain.observe.status import RunFiles, Status
from clustertrain.observe.wait import follow_to_its_end
from clustertrain.run.admission import Options
from clustertrain.run.command_line import typed


class SlurmLauncher(FromStorage):
    """Runs that were submitted with sbatch, or started within a SLURM job."""

    name = "slurm"

    def check(self, job_file: str, sets: Sequence[str]) -> Checked:
        job = with_site(load_job(job_file, sets))
        render_for_submit(job, job_file)
        submit_it = typed("submit --to slurm", job_file, sets)
        return Checked([f"{job_file} can be rendered; `{submit_it}` checks it against the cluster"])

    def render(self, job_file: str, sets: Sequence[str], note: Echo) -> str:
        rendered, _ = render_for_submit(with_site(load_job(job_file, sets)), job_file)
        if sets:
            note(f"note: submitted with plain sbatch, the job reads {job_file} without the changes of --set")
        return rendered.script.decode()

    def submit(
        self, job: Job, job_file: str, options: Options, echo: Echo, *, sets: Sequence[str]
    ) -> KnownRun | None:
        job = with_site(job)
        submitted = submit(job, job_file, options, echo)
        if submitted is None:
            return None
        cluster = f"SLURM cluster {submitted.cluster}" if submitted.cluster else "SLURM"
        known = KnownRun.of(job, job_file, self.name, cluster, submitted.job_id)
        echo(what_next(submitted, by_name(options.command, known, is_new=True)))
        return known

    def follow(self, target: Target, echo: Echo) -> int:
        command = target.command(f"submit --to {self.name}")
        return follow_to_its_end(target.visible_run(), self.status_of, command, echo)

    def statuses(self, runs: Sequence[RunFiles]) -> list[Status]:
        return status.statuses(runs)

    def stop(self, target: Target, echo: Echo, *, wait: bool) -> None:
        stop_run(target.visible_run(), echo, wait=wait)


LAUNCHER = SlurmLauncher()
