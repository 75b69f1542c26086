"""Where two runs differ first, and the likely cause: rules over what differs, and what does not."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass

from clustertrain.drill.left import Left

_TINY = 1e-4  # relative: another order of additions in a kernel differs by less, another seed by more
_FRACTIONAL = re.compile(r"b?float")  # the type of a tensor


@dataclass(frozen=True)
class Difference:
    """The first difference of a kind.

    Attributes:
        kind: "samples", "curve" or "state".
        where: such as "step 7".
        what: the metric, or the path of the tensor.
        expected, found: the values; "missing" if there is none.
    """

    kind: str
    where: str
    what: str
    expected: str
    found: str

    @property
    def values(self) -> tuple[str, str]:
        return self.expected, self.found

    @property
    def text(self) -> str:
        return f"{self.where}: {self.what} is {self.found}, not {self.expected}"


def unseeded(one: Left, other: Left) -> set[str]:
    """The random generators that differ between two runs without a fault, and the files that cannot be
    loaded: they may contain paths and times."""
    return {
        path
        for where, state in one.states.items()
        for path, value in state.items()
        if path.startswith(("rng", "the whole file"))
        and other.states.get(where, {}).get(path, value) != value
    }


def differences(reference: Left, other: Left, ignored: Collection[str] = ()) -> list[Difference]:
    """The first difference in samples, curve and states, that of the earliest step first. A checkpoint that
    only one of the two wrote, such as that of a stop, is not compared."""
    found = []
    shared, states = (
        {k: {p: v for p, v in one[k].items() if p not in ignored} for k in one if k in two}
        for one, two in ((other.states, reference.states), (reference.states, other.states))
    )
    pairs = {
        "samples": (reference.samples, other.samples),
        "curve": (reference.curve, other.curve),
        "state": (states, shared),
    }
    for kind, (expected, given) in pairs.items():
        found += list(_first(kind, expected, given))[:1]
    if not shared and reference.states:
        found.append(Difference("state", "at the end", "every checkpoint", "there", "missing"))
    return sorted(found, key=_step_of)


def _first(
    kind: str, expected: dict[str, dict[str, str]], found: dict[str, dict[str, str]]
) -> Iterator[Difference]:
    for where in dict.fromkeys([*expected, *found]):
        before, after = expected.get(where, {}), found.get(where, {})
        for what in dict.fromkeys([*before, *after]):
            values = before.get(what, "missing"), after.get(what, "missing")
            if values[0] != values[1]:
                yield Difference(kind, where, what, *values)


def _step_of(difference: Difference) -> float:
    """The step, for the order; a state of a step comes after its metrics. Files of a script come last."""
    match = re.search(r"step (\d+)", difference.where)
    return int(match[1]) + 0.5 * (difference.kind == "state") if match else float("inf")


_NOT_RESTORED = {
    r"scheduler|_last_lr|last_epoch|^lr$": "the state of the learning rate's scheduler",
    r"scaler|loss_scale|growth_tracker": "the state of the loss scaler",
    r"rng|random": "the state of a random generator",
}


def likely_cause(found: list[Difference], of_references: list[Difference], resumed: str) -> str:
    """The rule that fits.

    Args:
        of_references: how two runs without a fault differ.
        resumed: where the run continued.
    """
    kinds = {each.kind: each for each in reversed(found)}
    curve, state = kinds.get("curve"), kinds.get("state")
    step = re.search(r"step (\d+)", resumed)
    named = [each.what for each in (curve, state) if each is not None]
    parts = [part for pattern, part in _NOT_RESTORED.items() if any(re.search(pattern, n) for n in named)]
    is_at_once = step and curve is not None and curve.where == f"step {int(step[1]) + 1}"
    rules = {
        "two runs without a fault differ in their last bits: a kernel is not deterministic; "
        "torch.use_deterministic_algorithms(True) names it": _is_tiny(of_references),
        "two runs without a fault differ: a generator has no seed, or the code reads the time or the order "
        "of a set": of_references,
        "the order of the samples, or the position in the epoch, is not restored": "samples" in kinds,
        f"{' or '.join(parts)} is not saved or not restored": parts,
        "the run ended at another step: it counted its steps anew": curve and "missing" in curve.values,
        "the first loss after the resume differs, of the same samples and learning rate: a generator or a "
        "value that the loss depends on (a counter, a cache) is in no checkpoint": is_at_once,
        "the first losses after the resume are equal: what changes the weights (the optimizer's state, a "
        "schedule of your own) is not restored": step and curve,
    }
    otherwise = "weights, shuffling or a generator are not restored from the script's checkpoint"
    return next((cause for cause, fits in rules.items() if fits), otherwise)


def _is_tiny(found: list[Difference]) -> bool:
    """Whether the curves differ by rounding at most, and something differs that is rounded."""
    kinds = {each.kind: each for each in reversed(found)}
    if "curve" in kinds:
        return found[0].kind != "samples" and _relative(kinds["curve"]) < _TINY
    state = kinds.get("state")
    return "samples" not in kinds and state is not None and all(map(_FRACTIONAL.match, state.values))


def _relative(difference: Difference) -> float:
    """The relative difference of two numbers; infinite for anything else."""
    try:
        a, b = (float(text.rpartition(" ")[2]) for text in difference.values)
    except ValueError:
        return float("inf")
    return abs(a - b) / max(abs(a), abs(b), 1e-30)
