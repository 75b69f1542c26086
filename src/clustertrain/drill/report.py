"""The drill from beginning to end, and its report."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from clustertrain.drill.compare import Difference, differences, unseeded
from clustertrain.drill.left import Left
from clustertrain.drill.plan import FAULTS, DrillPlan
from clustertrain.drill.trial import Trial, remove, run_trial
from clustertrain.errors import ClusterTrainError
from clustertrain.job.file import load_job
from clustertrain.units import aligned

Note = Callable[[str], None]


@dataclass(frozen=True)
class Outcome:
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


@dataclass(frozen=True)
class Report:
    """The result of a drill.

    Attributes:
        name: of the job.
        exact: every fault that was caused left no trace, and there was one.
        seed: draws the moments of the faults.
        steps: of each run; of a script, its printed losses.
        compared: how many values were compared, by kind.
        not_compared: generators and files that cannot be loaded, if they differ without a fault.
        without_fault: how two runs without a fault differ, first; read only if a resume differs.
        outcomes: one for each fault.
        kept: the folders of the runs, if they were not removed.
    """

    name: str
    exact: bool
    seed: int
    steps: int
    compared: dict[str, int]
    not_compared: tuple[str, ...]
    without_fault: tuple[Difference, ...]
    outcomes: tuple[Outcome, ...]
    kept: tuple[str, ...]

    def lines(self) -> Iterator[str]:
        """The table for people."""
        rows: list[tuple[str, ...]] = [("FAULT", "AFTER", "RESUMED", "LOST", "RESULT")]
        yield from aligned([*rows, *map(_row, self.outcomes)])
        for each in self.outcomes:
            if each.failure:
                yield f"{each.fault}: {each.failure}"
            elif each.differences:
                yield f"{each.fault}: differs first at {each.differences[0].text}"
                yield from (f"  then at {other.text}" for other in each.differences[1:])
        if self.without_fault:
            yield f"two runs without a fault differ as well, first at {self.without_fault[0].text}"
        counted = ", ".join(f"{number} {what}" for what, number in self.compared.items() if number)
        yield f"{self.name}: {'every resume is exact' if self.exact else 'not exact'}; compared: {counted}"
        if self.not_compared:
            yield f"not compared, because they differ without a fault: {', '.join(self.not_compared)}"
        yield (
            "the runs are kept: " + ", ".join(self.kept) if self.kept else "the runs of the drill are removed"
        )


def _row(each: Outcome) -> tuple[str, ...]:
    if not each.caused:
        return FAULTS[each.fault], "-", "-", "-", "failed" if each.failure else "not caused"
    lost = f"{each.lost_steps} steps" + (f", {each.lost_s:.1f} s" if each.lost_s is not None else "")
    result = "exact" if each.exact else "failed" if each.failure else "differs"
    who = f" (rank {each.rank})" if each.fault == "rank" else ""
    return f"{FAULTS[each.fault]}{who}", f"step {each.step}", each.resumed, lost, result


def drill(plan: DrillPlan, note: Note, *, keep: bool) -> Report:
    """Run the job without a fault and once with each fault, and compare. Runs that are all exact are removed.

    Raises:
        JobError: the job is refused.
        ClusterTrainError: the run without a fault failed.
    """
    load_job(plan.job_file, plan.sets("reference"))
    trials: list[Trial] = []

    def trial(name: str, fault: str = "{kind: none}") -> Trial:
        note(f"drill: {name} …")
        trials.append(run_trial(plan, name, fault))
        return trials[-1]

    def reference(name: str) -> tuple[Left, float]:
        done = trial(name)
        if done.left is None:
            raise ClusterTrainError(
                f"The drill's run without a fault failed: {done.failure}\nIt is {done.uri}."
            )
        return done.left, done.seconds

    first, seconds = reference("reference")
    struck = [(kind, trial(kind, plan.fault(kind, first))) for kind in plan.faults]
    ignored, without_fault = set[str](), tuple[Difference, ...]()
    if any(each.left and differences(first, each.left) for _, each in struck):
        second, _ = reference("again")
        ignored = unseeded(first, second)
        without_fault = differences(first, second, ignored)
    outcomes = tuple(_outcome(kind, each, first, seconds, ignored) for kind, each in struck)
    caused = [each for each in outcomes if each.caused or each.failure]
    exact = bool(caused) and all(each.exact for each in caused)
    kept = [each.uri for each in trials if keep or not exact or not remove(each)]
    compared = {
        "values of the curve": sum(map(len, first.curve.values())),
        "digests of sample ids": sum(map(len, first.samples.values())),
        "tensors and numbers of checkpoints": sum(map(len, first.states.values())),
    }
    return Report(
        plan.job.name,
        exact,
        plan.seed,
        first.steps,
        compared,
        tuple(sorted(ignored)),
        without_fault,
        outcomes,
        tuple(kept),
    )


def _outcome(kind: str, trial: Trial, first: Left, seconds: float, ignored: set[str]) -> Outcome:
    """The outcome of a fault, compared with the `first` run, which took so many `seconds`."""
    left = trial.left or Left()
    found = differences(first, left, ignored) if trial.left else ()
    caused, (step, rank) = left.strike is not None, left.strike or (None, None)
    lost_s = left.lost_s if left.lost_s is not None else max(0.0, trial.seconds - seconds)
    return Outcome(
        kind,
        caused,
        caused and not found,
        step,
        rank,
        left.resumed,
        left.lost_steps - first.lost_steps,
        lost_s if caused else None,
        found,
        trial.failure,
    )
