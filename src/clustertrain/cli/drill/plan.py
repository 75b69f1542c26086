"""The runs of a drill: what each changes in the job, and when its fault strikes."""

from __future__ import annotations

import random
from dataclasses import dataclass
from functools import cached_property

from clustertrain.cli.drill.left import RunFingerprint
from clustertrain.errors import JobError
from clustertrain.job.file import load_job
from clustertrain.job.model import Job

FAULTS = {
    "rank": "SIGKILL of a rank",
    "driver": "SIGKILL of the driver",
    "stop": "stop and start",
    "save": "SIGKILL in a save",
}
NO_FAULT = "{kind: none}"
_SAVES = 3  # of a run; the last one at its end


def faults_of(text: str) -> tuple[str, ...]:
    """Return the faults that --faults names.

    Raises:
        JobError: there is no such fault.
    """
    found = tuple(dict.fromkeys(filter(None, text.split(","))))
    if unknown := [each for each in found if each not in FAULTS] or ([text] if not found else []):
        raise JobError(f"--faults {unknown[0]!r} is no fault.\nThere are {', '.join(FAULTS)}.")
    return found


@dataclass(frozen=True)
class DrillPlan:
    """A drill of a job, named by its job file and its `--set` options, on the launcher `to`.

    Attributes:
        faults: those to cause, one in each run.
        steps: of each run of a task.
        seed: draws the moments of the faults.
    """

    job_file: str
    given: tuple[str, ...]
    to: str
    faults: tuple[str, ...]
    steps: int
    seed: int

    @cached_property
    def job(self) -> Job:
        return load_job(self.job_file, self.given)

    @property
    def save_every(self) -> int:
        if self.job.train is not None:
            return self.steps // _SAVES
        every = self.job.checkpoint.every
        return (every.steps if every != "auto" else None) or 10

    def sets(self, trial: str, fault: str = NO_FAULT) -> tuple[str, ...]:
        """Return the `--set` options of a run; its epochs are cut, so that one ends between two saves."""
        given = [f"name={self.job.name[:31]}-drill-{trial}", f"drill.fault={fault}", "failures.retries=3"]
        if not self.job.is_script:
            given += [f"checkpoint.every={{steps: {self.save_every}}}", "checkpoint.keep_last=1000"]
        if self.job.train is not None:
            given += ["train.epochs=", f"train.steps={self.steps}", "train.log_every=1", "train.profile="]
            given += ["train.eval_every={epochs: 1}", "train.log=[]", "checkpoint.memory_every=1"]
            given.append("train.cudnn=deterministic")  # measured algorithms differ between two starts
            if self.job.train.limit_batches is None:
                given.append(f"train.limit_batches={self.save_every + 1}")
        return (*self.given, *given)

    def fault(self, kind: str, reference: RunFingerprint) -> str:
        """Draw the value of drill.fault by the seed: a step after the first save and before the end."""
        draw = random.Random(f"{self.seed} {kind}")
        rank = 0 if self.job.is_script or kind == "save" else draw.randrange(self.job.resources.min_workers)
        last, every = reference.steps, self.save_every
        steps = range(2 * every, last, every) if kind == "save" else range(every + 1, last - 1)
        if self.job.is_script:
            steps = range(max(1, last // 3), last * 2 // 3 + 1)
        if not steps:
            raise JobError(
                f"The run without a fault has {last} {'losses' if self.job.is_script else 'steps'}: there is "
                f"no moment for {kind!r}.\nTrain longer; for a script, let drill.loss match its losses."
            )
        return f"{{kind: {kind}, rank: {rank}, step: {draw.choice(steps)}}}"
