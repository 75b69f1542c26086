"""The runs of a drill: what each changes in the job, when its fault strikes, and how long all take."""

from __future__ import annotations

import random
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property

from clustertrain.drill.left import Left
from clustertrain.errors import JobError, StorageError
from clustertrain.job.file import load_job
from clustertrain.job.model import Job
from clustertrain.run.folder import RunDir
from clustertrain.units import duration_s, time_text

FAULTS = {
    "rank": "SIGKILL of a rank",
    "driver": "SIGKILL of the driver",
    "stop": "stop and start",
    "save": "SIGKILL in a save",
    "node": "SIGKILL of a node's raylet",
}
DEFAULT_STEPS = 12
_SAVES = 3  # of a run; the last one at its end
_START_S, _STEP_S = 30.0, 1.0  # assumed if nothing was measured


def faults_of(text: str, *, nodes: bool) -> tuple[str, ...]:
    """The faults of --faults, and `node` with --nodes.

    Raises:
        JobError: there is no such fault.
    """
    found = tuple(dict.fromkeys([*filter(None, text.split(",")), *["node"] * nodes]))
    if unknown := [each for each in found if each not in FAULTS] or ([text] if not found else []):
        raise JobError(f"--faults {unknown[0]!r} is no fault.\nThere are {', '.join(FAULTS)}.")
    return found


@dataclass(frozen=True)
class DrillPlan:
    """A drill of a job, named by its job file and its `--set` options, on the launcher `to`.

    Attributes:
        faults: those to cause, one in each run.
        wanted_steps: of each run of a task; None for the default.
        seed: draws the moments of the faults.
    """

    job_file: str
    given: tuple[str, ...]
    to: str
    faults: tuple[str, ...]
    wanted_steps: int | None
    seed: int

    @cached_property
    def job(self) -> Job:
        return load_job(self.job_file, self.given)

    @cached_property
    def steps(self) -> int | None:
        """Of a task; None if only the code itself knows them.

        Raises:
            JobError: they are too few, or given for a loop that is not the kit's.
        """
        wanted = self.wanted_steps
        if self.job.train is None and wanted is not None:
            raise JobError(
                f"--steps {wanted}: only the {self.job.entry_point} itself knows its steps.\n"
                "Shorten it by its arguments: --set args=…"
            )
        if wanted is not None and wanted < 2 * _SAVES:
            raise JobError(
                f"--steps {wanted} are too few for {_SAVES} checkpoints with steps between them.\n"
                f"Give at least 2 × {_SAVES} = {2 * _SAVES}."
            )
        return (wanted or DEFAULT_STEPS) if self.job.train is not None else None

    @property
    def save_every(self) -> int:
        if self.steps is not None:
            return self.steps // _SAVES
        every = self.job.checkpoint.every
        return (every.steps if every != "auto" else None) or 10

    def sets(self, trial: str, fault: str = "{kind: none}") -> tuple[str, ...]:
        """The `--set` options of a run. Epochs are cut, so that one ends between two saves."""
        given = [f"name={self.job.name[:31]}-drill-{trial}", f"drill.fault={fault}", "failures.retries=3"]
        if not self.job.is_script:
            given += [f"checkpoint.every={{steps: {self.save_every}}}", "checkpoint.keep_last=1000"]
        if self.job.train is not None:
            given += ["train.epochs=", f"train.steps={self.steps}", "train.log_every=1", "train.profile="]
            given += ["train.eval_every={epochs: 1}", "train.log=[]"]
            given.append("train.cudnn=deterministic")  # measured algorithms differ between two starts
            if self.job.train.limit_batches is None:
                given.append(f"train.limit_batches={self.save_every + 1}")
        return (*self.given, *given)

    def fault(self, kind: str, reference: Left) -> str:
        """The value of drill.fault, drawn by the seed: a step after the first save and before the end."""
        draw = random.Random(f"{self.seed} {kind}")
        rank = 0 if self.job.is_script or kind == "save" else draw.randrange(self.job.resources.min_workers)
        last, every = reference.steps, self.save_every
        if self.job.is_script:
            steps: Sequence[int] = range(max(1, last // 3), max(2, last * 2 // 3 + 1))
        elif kind == "save":
            steps = range(2 * every, last, every)
        else:
            steps = range(every + 1, last - 1)
        if not steps or not last:
            what = f"{last} losses" if self.job.is_script else f"{last} steps, a checkpoint every {every}"
            raise JobError(
                f"The run without a fault has {what}: there is no moment for {kind!r}.\n"
                "Train longer; for a script, let drill.loss match the lines with its losses."
            )
        return f"{{kind: {kind}, rank: {rank}, step: {draw.choice(steps)}}}"

    def check_budget(self, budget: str) -> float:
        """The budget in seconds.

        Raises:
            JobError: the drill is estimated to take longer.
        """
        try:
            budget_s = duration_s(budget)
        except ValueError as error:
            raise JobError(f"--budget {budget!r} {error}.") from None
        runs, starts = 1 + len(self.faults), 1 + 2 * len(self.faults)
        start_s, step_s, said = _measured(self.job)
        if self.steps is None:
            refuse_beyond(starts * start_s, budget_s, f"{starts} starts × {start_s:.0f} s, {said}")
        else:
            text = f"{starts} starts × {start_s:.0f} s + {runs} runs × {self.steps} steps × {step_s:.2g} s"
            refuse_beyond(starts * start_s + runs * self.steps * step_s, budget_s, f"{text}, {said}")
        return budget_s


def refuse_beyond(total_s: float, budget_s: float, arithmetic: str) -> None:
    """
    Raises:
        JobError: it takes longer than the budget.
    """
    if total_s > budget_s:
        raise JobError(
            f"The drill takes about {time_text(total_s)}, and its budget is {time_text(budget_s)}: it is not "
            f"done.\n{arithmetic} = {total_s:.0f} s.\n"
            "Allow more with --budget, or do less with --steps or --faults."
        )


def _measured(job: Job) -> tuple[float, float, str]:
    """Seconds of a start, and of a step of a task, in the job's own newest attempt. What a script or a
    function does counts as its start."""
    with suppress(StorageError):  # of a cluster that this machine does not see
        attempt = RunDir.newest(job.storage.location, job.name).newest_attempt()
        claim, result = (attempt.claim.read(), attempt.result.read()) if attempt else (None, None)
        if attempt is not None and claim is not None and result is not None:
            trained_s = (result.train_s or 0.0) if job.train else 0.0
            start_s = result.ended_at - claim.time - trained_s
            plans = [restart.plan.read() for restart in attempt.restarts()]  # trained_s is of the last one
            resumed = next((plan.step for plan in reversed(plans) if plan is not None), 0)
            steps = max(1, (result.step or 0) - resumed)
            return start_s, trained_s / steps, "measured in its last run"
    return _START_S, _STEP_S, "assumed"
