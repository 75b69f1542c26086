"""The answers to calls of functions in the ranks. A call is Ray's, or the Future of a group without Ray."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, wait
from contextlib import contextmanager
from typing import Any, TypeAlias

Worker: TypeAlias = Any
"""A rank as its group gives it: a worker of Ray Train, or a ForkedRank."""
Call: TypeAlias = Any
"""The call of a function in a rank: an ObjectRef of Ray, or a Future."""


class NoAnswer(Exception):
    """A rank has not answered in time."""


class RankDied(NoAnswer):
    """The process of a rank has ended. `process`: its pid, or the id of Ray's actor in it."""

    def __init__(self, text: str, process: object = None) -> None:
        super().__init__(text)
        self._process = process

    def is_of(self, worker: Worker) -> bool:
        actor = getattr(worker, "actor", None)
        return bool(self._process == (worker.metadata.pid if actor is None else actor._actor_id.hex()))


def answers(calls: Sequence[Call], timeout_s: float | None = None) -> list[Any]:
    """Return what the calls return, as soon as all have returned or one has raised an error.

    Raises:
        RankDied: the process of a rank has ended.
        NoAnswer: a call has not returned within `timeout_s`.
        Exception: the function's own.
    """
    if not all(isinstance(call, Future) for call in calls):
        import ray

        with errors_of_ray():
            return list(ray.get(list(calls), timeout=timeout_s))
    done, running = wait(calls, timeout_s, FIRST_EXCEPTION)
    for call in done:
        call.result()
    if running:
        raise NoAnswer(f"{len(running)} of {len(calls)} ranks have not answered within {timeout_s:g} s")
    return [call.result() for call in calls]


def answer(call: Call, timeout_s: float | None = None) -> Any:
    """Return what one call returns. Raises as `answers`."""
    return answers([call], timeout_s)[0]


def first_of_each_node(workers: Sequence[Worker]) -> list[Worker]:
    """Return the workers of a group that are the first on their nodes."""
    return [w for w in workers if w.distributed_context.local_rank == 0]


def answers_by_rank(calls: Mapping[int, Call], within_s: float) -> dict[int, Any]:
    """Return what the calls have returned within this time, or the errors that they have raised, by rank."""
    pending = list(calls.values())
    if all(isinstance(call, Future) for call in pending):
        done: Any = wait(pending, within_s).done
    else:
        import ray

        done, _ = ray.wait(pending, num_returns=len(pending), timeout=within_s)
    found: dict[int, Any] = {}
    for rank, call in calls.items():
        if call in done:
            try:
                found[rank] = answer(call)
            except Exception as error:  # noqa: BLE001  the caller asks for it
                found[rank] = error
    return found


@contextmanager
def errors_of_ray() -> Iterator[None]:
    """Raise Ray's errors within the block as errors of this file, and an error of a function as itself."""
    from ray.exceptions import GetTimeoutError, OutOfMemoryError, RayActorError, RayTaskError

    try:
        yield
    except RayTaskError as error:
        raise error.cause from error
    except (RayActorError, OutOfMemoryError) as error:
        raise RankDied(str(error), getattr(error, "actor_id", None)) from error
    except GetTimeoutError as error:
        raise NoAnswer(str(error)) from error
