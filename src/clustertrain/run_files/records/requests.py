"""What a running attempt, or a start of its workers, is asked to do."""

from __future__ import annotations

import time
from dataclasses import dataclass, field


@dataclass(frozen=True)
class StopRequest:
    """A request that the run finishes its step, saves and ends.

    Attributes:
        cause, state: a row of states.STATES; the run ends with them.
        text: of the result, two or three lines for people.
        by: "takeover" if another start of the run made the request.
    """

    cause: str
    state: str = "stopped"
    text: str = ""
    by: str = ""
    time: float = field(default_factory=time.time)


@dataclass(frozen=True)
class SaveRequest:
    """A request that the run saves at its next step and continues.

    Attributes:
        pod: the pod that made the request, because it is about to end.
    """

    pod: str = ""
    time: float = field(default_factory=time.time)


@dataclass(frozen=True)
class ResizeRequest:
    """A request to one start of the worker group to save and return.

    The reason is that there is room for `world_size` workers.
    """

    world_size: int
    time: float = field(default_factory=time.time)


@dataclass(frozen=True)
class StacksRequest:
    """A request for the stacks of all ranks of one start of the worker group. `id` names the answers."""

    id: str
