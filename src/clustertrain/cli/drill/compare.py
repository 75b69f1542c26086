"""Where two runs differ first."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from clustertrain.cli.drill.left import RunFingerprint


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
    def text(self) -> str:
        return f"{self.where}: {self.what} is {self.found}, not {self.expected}"


def differences(reference: RunFingerprint, other: RunFingerprint) -> tuple[Difference, ...]:
    """Return the first difference in samples, curve and states, ordered by step.

    A checkpoint that only one of the two runs wrote, such as one at a stop, is not compared.
    """
    both = [where for where in reference.states if where in other.states]
    found = [
        *_first("samples", reference.samples, other.samples),
        *_first("curve", reference.curve, other.curve),
        *_first("state", *({where: each.states[where] for where in both} for each in (reference, other))),
    ]
    if reference.states and not both:
        found.append(Difference("state", "at the end", "every checkpoint", "there", "missing"))
    return tuple(sorted(found, key=_step_of))


def _first(
    kind: str, expected: dict[str, dict[str, str]], found: dict[str, dict[str, str]]
) -> Iterator[Difference]:
    """Yield the first difference, if there is one."""
    for where in dict.fromkeys([*expected, *found]):
        before, after = expected.get(where, {}), found.get(where, {})
        for what in dict.fromkeys([*before, *after]):
            values = before.get(what, "missing"), after.get(what, "missing")
            if values[0] != values[1]:
                yield Difference(kind, where, what, *values)
                return


def _step_of(difference: Difference) -> float:
    """Return the step as a key for sorting: a state of a step comes after its metrics.

    Files of a script come last.
    """
    match = re.search(r"step (\d+)", difference.where)
    return int(match[1]) + 0.5 * (difference.kind == "state") if match else float("inf")
