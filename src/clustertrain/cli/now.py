"""`clustertrain checkpoint` and `clustertrain profile`: a request to a run that trains, and its answer."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from clustertrain.checkpoints.manifest import names
from clustertrain.errors import ClusterError, JobError
from clustertrain.observe.status import live_state
from clustertrain.run.claims import who_runs
from clustertrain.run.command_line import command_on
from clustertrain.run.folder import Attempt, RunDir
from clustertrain.run.recorded_job import job_of
from clustertrain.run.records import ProfileRequest, SaveRequest
from clustertrain.run.streams.history import AttemptFollower
from clustertrain.run.streams.step_counter import reached_step
from clustertrain.waiting import wait_until

_ANSWERS_WITHIN_S = 1800.0
_POLL_S = 0.3


def checkpoint_now(run: RunDir) -> Iterator[str]:
    """Request a save, and wait until its checkpoint is complete; yields its name.

    Raises:
        JobError: the run does not train, is that of a script, or ended before.
        ClusterError: it did not answer.
    """
    attempt = _training(run, "checkpoint", {"script", "module"}, "saves its own checkpoints")
    restart = attempt.newest_restart()
    before = names(run.checkpoints)  # a start that has finished no step yet has reached 0
    reached = reached_step(restart) if restart is not None else 0
    attempt.save.write(SaveRequest())

    def name() -> str:
        new = (each for each in names(run.checkpoints) if each not in before and each.step > reached)
        return next(map(str, new), "")

    yield _answer(attempt, name)


def profile_now(run: RunDir, steps: int) -> Iterator[str]:
    """Request a profile of the next steps, and wait for it; yields its place. Raises as `checkpoint_now`."""
    attempt = _training(run, "profile", {"script", "module", "function"}, "has a training loop of its own")
    follower = AttemptFollower(attempt)
    follower.new(of_all=True)
    attempt.profile.write(ProfileRequest(steps))

    def place() -> str:
        notes = (each for each in follower.new(of_all=True) if each["kind"] == "note")
        return next((str(note["text"]) for note in notes if "profile" in note), "")

    yield _answer(attempt, place)


def _training(run: RunDir, command: str, refused: set[str], why: str) -> Attempt:
    """The attempt that trains, if its entry point takes the request."""
    attempt = run.newest_attempt()
    job = job_of(attempt) if attempt is not None else None
    if job is not None and job.entry_point in refused:
        raise JobError(f"{run.name} is a {job.entry_point}, which {why}.\n{command} needs the kit's loop.")
    if attempt is None or who_runs(attempt) is None or live_state(attempt) != "running":
        raise JobError(
            f"{run.name} does not train now.\n{command} asks a run between two of its steps: "
            f"`{command_on(run.uri, 'status')}` shows its state."
        )
    return attempt


def _answer(attempt: Attempt, found: Callable[[], str]) -> str:
    """What the run wrote after a request, as soon as it is there."""

    def look() -> tuple[bool, str]:
        has_ended = attempt.result.exists()  # first: what was written before the end is found
        return has_ended, found()

    has_ended, answer = wait_until(look, _ANSWERS_WITHIN_S, _POLL_S, any)
    if answer:
        return answer
    if has_ended:
        raise JobError(f"{attempt.run.name} ended before it came to the request.\nStart it again.")
    raise ClusterError(f"{attempt.run.name} did not answer within {_ANSWERS_WITHIN_S:g} s.\nTry again.")
