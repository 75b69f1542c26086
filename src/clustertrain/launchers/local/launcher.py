"""The launcher of this machine. It has no scheduler, so there is nothing to render or submit."""

from __future__ import annotations

from collections.abc import Sequence

from clustertrain.errors import JobError
from clustertrain.job.file import load_job
from clustertrain.job.model import Job
from clustertrain.launchers.from_storage import FromStorage
from clustertrain.launchers.known_runs import KnownRun
from clustertrain.launchers.launcher import Checked, Echo, Target
from clustertrain.launchers.stop import not_running, request_user_stop, wait_for_result
from clustertrain.observe.status import RunFiles, Status, status_by_files
from clustertrain.run.admission import Options
from clustertrain.run.command_line import typed


class LocalLauncher(FromStorage):
    """Runs of `clustertrain run`, and runs of any launcher as their files show them."""

    name = "local"
    start = "run"

    def check(self, job_file: str, sets: Sequence[str]) -> Checked:
        load_job(job_file, sets)
        return Checked([f"{job_file} is a valid job file for this machine"])

    def render(self, job_file: str, sets: Sequence[str], note: Echo) -> str:
        defaults = typed("run", job_file, sets).on_job("check --no-code --defaults")
        raise JobError(
            f"A run on this machine has nothing to render.\n`{defaults}` prints the job with every default "
            "filled in."
        )

    def submit(
        self, job: Job, job_file: str, options: Options, echo: Echo, *, sets: Sequence[str]
    ) -> KnownRun | None:
        raise JobError(
            f"This machine has no scheduler to submit to.\nStart the job: {typed('run', job_file, sets)}"
        )

    def statuses(self, runs: Sequence[RunFiles]) -> list[Status]:
        return [status_by_files(files) for files in runs]

    def stop(self, target: Target, echo: Echo, *, wait: bool) -> None:
        status = self.status_of(target.visible_run())
        if status.runner is None or status.attempt is None:
            raise not_running(status)
        request_user_stop(status.attempt, status, echo)
        if wait:
            wait_for_result(status.attempt, echo)


LAUNCHER = LocalLauncher()
