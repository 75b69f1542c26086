"""The drill from beginning to end, and its report."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from clustertrain.cli.drill.compare import Difference, differences
from clustertrain.cli.drill.left import RunFingerprint
from clustertrain.cli.drill.plan import FAULTS, NO_FAULT, DrillPlan
from clustertrain.cli.drill.trial import Trial, remove, run_trial
from clustertrain.errors import ClusterTrainError
from clustertrain.job.file import load_job
from clustertrain.node.units import aligned

Note = Callable[[str], None]


@dataclass(frozen=True)
class FaultOutcome:
    """What one fault did.

    Attributes:
        fault: rank, driver, stop or save.
        caused: false if the run ended without the fault.
        exact: the run is that without a fault, bit by bit; false if the fault was not caused.
        step, rank: when and whom it struck; for a script, the number of the printed loss.
        resumed: where the run continued.
        lost_steps: steps that were done twice; of a script, losses that were printed twice.
        lost_s: seconds from the fault to the first new step; of a script, how much longer the run took.
        differences: the first in samples, in the curve and in the checkpoints, earliest first.
        failure: why the run did not come to its end; else empty.
    """

    fault: str
    caused: bool
    exact: bool
    step: int | None
    rank: int | None
    resumed: str
    lost_steps: int
    lost_s: float | None
    differences: tuple[Difference, ...]
    failure: str

    @property
    def row(self) -> tuple[str, ...]:
        who = FAULTS[self.fault] + (f" (rank {self.rank})" if self.fault == "rank" and self.caused else "")
        if not self.caused:
            return who, "-", "-", "-", "failed" if self.failure else "not caused"
        lost = f"{self.lost_steps} steps" + (f", {self.lost_s:.1f} s" if self.lost_s is not None else "")
        result = "exact" if self.exact else "failed" if self.failure else "differs"
        return who, f"step {self.step}", self.resumed, lost, result


@dataclass(frozen=True)
class Report:
    """The result of a drill.

    Attributes:
        name: the name of the job.
        exact: every fault that was caused left no trace, and there was one.
        seed: the seed that draws the moments of the faults.
        steps: the steps of each run; of a script, its printed losses.
        compared: how many values were compared, by kind.
        outcomes: one for each fault.
        kept: the folders of the runs, if they were not removed.
    """

    name: str
    exact: bool
    seed: int
    steps: int
    compared: dict[str, int]
    outcomes: tuple[FaultOutcome, ...]
    kept: tuple[str, ...]

    def lines(self) -> Iterator[str]:
        """Yield the lines of the table for people."""
        header = ("FAULT", "AFTER", "RESUMED", "LOST", "RESULT")
        yield from aligned([header, *(each.row for each in self.outcomes)])
        for each in self.outcomes:
            if each.failure:
                yield f"{each.fault}: {each.failure}"
            for n, difference in enumerate(each.differences):
                yield (
                    f"  then at {difference.text}"
                    if n
                    else f"{each.fault}: differs first at {difference.text}"
                )
        counted = ", ".join(f"{number} {what}" for what, number in self.compared.items() if number)
        yield f"{self.name}: {'every resume is exact' if self.exact else 'not exact'}; compared: {counted}"
        kept = f"the runs are kept: {', '.join(self.kept)}"
        yield kept if self.kept else "the runs of the drill are removed"


def drill(plan: DrillPlan, note: Note, *, keep: bool) -> Report:
    """Run the job without a fault and once with each fault, and compare. Runs that are all exact are removed.

    Raises:
        JobError: the job is refused.
        ClusterTrainError: the run without a fault failed.
    """
    load_job(plan.job_file, plan.sets("reference"))
    trials: list[Trial] = []

    def trial(name: str, fault: str) -> Trial:
        note(f"drill: {name} …")
        trials.append(run_trial(plan, name, fault))
        return trials[-1]

    first = trial("reference", NO_FAULT)
    if (reference := first.left) is None:
        raise ClusterTrainError(
            f"The drill's run without a fault failed: {first.failure}\nIt is {first.uri}."
        )
    outcomes = tuple(
        _outcome(kind, trial(kind, plan.fault(kind, reference)), reference, first.seconds)
        for kind in plan.faults
    )
    caused = [each for each in outcomes if each.caused or each.failure]
    exact = bool(caused) and all(each.exact for each in caused)
    compared = {
        "values of the curve": sum(map(len, reference.curve.values())),
        "digests of sample ids": sum(map(len, reference.samples.values())),
        "tensors and numbers of checkpoints": sum(map(len, reference.states.values())),
    }
    kept = tuple(each.uri for each in trials if keep or not exact or not remove(each))
    return Report(plan.job.name, exact, plan.seed, reference.steps, compared, outcomes, kept)


def _outcome(kind: str, trial: Trial, reference: RunFingerprint, seconds: float) -> FaultOutcome:
    """Return the outcome of a fault, compared with the `reference` run, which took so many `seconds`."""
    left = trial.left or RunFingerprint()
    found = differences(reference, left) if trial.left else ()
    caused, (step, rank) = left.strike is not None, left.strike or (None, None)
    lost_s = left.lost_s if left.lost_s is not None else max(0.0, trial.seconds - seconds)
    lost_steps = left.lost_steps - reference.lost_steps
    exact = caused and not found
    told = left.resumed, lost_steps, lost_s if caused else None
    return FaultOutcome(kind, caused, exact, step, rank, *told, found, trial.failure)
