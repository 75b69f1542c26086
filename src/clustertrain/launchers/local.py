"""A run on this machine: claim an attempt, start the guardian, draw what happens, say how it ended."""

from __future__ import annotations

import os
import secrets
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from clustertrain.checkpoint import CheckpointDamaged, names, read_manifest
from clustertrain.claims import check_progress, claim_attempt, who_runs
from clustertrain.errors import ClusterError, JobError, StorageError
from clustertrain.guardian import become_subreaper, kill_descendants
from clustertrain.job import Job
from clustertrain.jobfile import dump_job, identity_difference, parse_job
from clustertrain.observe.events import EventLog
from clustertrain.observe.joined import AttemptFollower
from clustertrain.observe.progress import Screen
from clustertrain.observe.shipping import Shipping, send_leftovers
from clustertrain.result import Result, ended, read_result, write_result
from clustertrain.run_dir import Attempt, AttemptRef, RunDir
from clustertrain.storage import Location, open_store, probe

_POLL_S = 0.1
_LOG_LINES = 6
_PROBE_RETRY_S = 30.0


@dataclass(frozen=True)
class Options:
    """What the command line adds to a job."""

    fresh: bool = False
    takeover: bool = False
    allow_world_size_change: bool = False
    retry: bool = False


def run_local(job: Job, options: Options, screen: Screen) -> tuple[RunDir, Result]:
    """Run the job to its end, or leave it as it is where it is finished already.

    Raises:
        ClusterTrainError: the last attempts all ended without a new committed step.
        JobError: the storage holds another job under this name, or another world size without consent.
        ClusterError: somebody else runs it, or this machine is too small.
        StorageError: the storage is not writable.
    """
    _probe(job.storage.location)
    run = RunDir.newest(job.storage.location, job.name)
    previous = run.newest_attempt()
    if previous is not None:
        _check_nobody_runs(previous, options)
        if options.fresh:
            run = run.fresh()
        else:
            finished = _continue_from(run, previous, job, screen)
            if finished is not None:
                return run, finished
            if not options.retry:
                check_progress(run, job.failures.attempts)
    world_size = _world_size(run, job, options)
    attempt = claim_attempt(run, world_size=world_size, launcher="local", retry=options.retry)
    _record(run, attempt, job)
    send_leftovers(run, screen.say)
    with Shipping(attempt, screen.say):
        return run, _supervise(attempt, job, screen)


# ------------------------------------------------------------------------------------------ may it run


def _probe(location: Location) -> None:
    """Somebody waits: a server that is down is told of after half a minute, not after ten."""
    probe(open_store(location.with_patience(_PROBE_RETRY_S)))


def _check_nobody_runs(previous: Attempt, options: Options) -> None:
    runner = who_runs(previous)
    if runner is None:
        return
    if not options.takeover:
        raise ClusterError(
            f"{previous.run.name} runs already: attempt {previous.n}, {runner}.\n"
            "Wait for it, end it with `clustertrain stop`, or take it over with --takeover."
        )
    previous.ask("stop", {"cause": "user", "by": "takeover", "time": time.time()})


def _continue_from(run: RunDir, previous: Attempt, job: Job, screen: Screen) -> Result | None:
    """Check that the run under this name is this job. Returns its result where nothing is left to train."""
    old = _recorded(run, previous)
    if old is None:
        return None
    if difference := identity_difference(old, job):
        shown = "\n".join(f"  {line}" for line in difference[:6])
        raise JobError(
            f"{run.uri} holds another job of the name {job.name!r}:\n{shown}\n"
            "Choose another name, or add --fresh to begin anew and keep the old one aside."
        )
    result = read_result(previous)
    if result is None or result.state != "done" or _asks_for_more(old, job):
        return None
    screen.say(
        f"{job.name} is finished already; nothing was trained. To train anew: another name, or --fresh."
    )
    return result


def _recorded(run: RunDir, previous: Attempt) -> Job | None:
    """The job as the newest attempt ran it; None where a start was killed before it could write it."""
    for key in (f"{previous.key}/job.yaml", run.job_key):
        data = run.store.read_or_none(key)
        if data is not None:
            return parse_job(data.decode(), run.store.uri(key))
    return None


def _asks_for_more(old: Job, new: Job) -> bool:
    if old.train is None or new.train is None:
        return False
    more_epochs = (new.train.epochs or 0) > (old.train.epochs or 0)
    more_steps = (new.train.steps or 0) > (old.train.steps or 0)
    return more_epochs or more_steps


def _world_size(run: RunDir, job: Job, options: Options) -> int:
    """The number of workers: as many of [min, max] as this machine has CPUs for."""
    sizes = list(job.world_sizes)
    if not os.environ.get("RAY_ADDRESS"):
        sizes = _that_fit(job, sizes)
    world_size = sizes[-1]
    before = _checkpointed_world_size(run)
    consents = options.allow_world_size_change or len(job.world_sizes) > 1
    if before is not None and before != world_size and not consents:
        raise JobError(
            f"resources.workers is {world_size}, and the newest checkpoint in {run.uri} is of {before}.\n"
            "At another number no sample is seen twice, but the weights differ from an uninterrupted run.\n"
            f"Set workers to {before}, or consent with --allow-world-size-change or workers: [min, max]."
        )
    return world_size


def _that_fit(job: Job, sizes: list[int]) -> list[int]:
    cpus, each = len(os.sched_getaffinity(0)), job.resources.cpus_per_worker
    fitting = [size for size in sizes if size * each <= cpus]
    if not fitting:
        least = sizes[0]
        raise ClusterError(
            f"{least} workers × {each:g} CPUs = {least * each:g} CPUs, and this machine has {cpus}.\n"
            f"Set resources.workers to {max(1, int(cpus / each))}, "
            f"or resources.cpus_per_worker to {cpus / least:.3g} to share the cores."
        )
    return fitting


def _checkpointed_world_size(run: RunDir) -> int | None:
    for name in reversed(names(run.checkpoints)):
        try:
            return read_manifest(run.checkpoints, name).world_size
        except CheckpointDamaged:
            continue  # the driver says so when it chooses what to resume from
    return None


def _record(run: RunDir, attempt: Attempt, job: Job) -> None:
    text = dump_job(job).encode()
    run.store.write_atomic(run.job_key, text)
    run.store.write_atomic(f"{attempt.key}/job.yaml", text)


# ------------------------------------------------------------------------------------------ while it runs


class _Signals:
    """Counts requests to end: SIGINT, SIGTERM and SIGHUP."""

    def __init__(self) -> None:
        self.count = 0
        self.cause = "interrupt"

    def __call__(self, number: int, frame: object) -> None:
        self.count += 1
        self.cause = "interrupt" if number == signal.SIGINT else "terminated"


@contextmanager
def _signals_heard() -> Iterator[_Signals]:
    heard = _Signals()
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.signal(number, heard) for number in numbers}
    try:
        yield heard
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _supervise(attempt: Attempt, job: Job, screen: Screen) -> Result:
    temp_dir = _private_folder()
    become_subreaper()
    attempt.driver_log.parent.mkdir(parents=True, exist_ok=True)
    screen.say(
        f"{job.name}: attempt {attempt.n} in {attempt.run.uri}; Ray's own words go to {attempt.driver_log}"
    )
    with _signals_heard() as heard:
        guardian = _start_guardian(attempt, job, temp_dir)
        try:
            verdict = _watch(attempt, guardian, heard, screen)
        finally:
            if guardian.stdin is not None:
                guardian.stdin.close()  # an order to end, if it has not ended
            guardian.wait()
            kill_descendants()  # nothing is left, unless somebody killed the guardian
            shutil.rmtree(temp_dir, ignore_errors=True)
        return write_result(attempt, verdict) if verdict else _result_of(attempt, guardian.returncode)


def _private_folder() -> Path:
    """A new folder, 0700, for Ray; short, since a socket's path has 107 bytes and Ray adds 70 to this one."""
    base = tempfile.gettempdir()
    return Path(tempfile.mkdtemp(prefix="ct-", dir=base if len(base) <= 24 else "/tmp"))


def _start_guardian(attempt: Attempt, job: Job, temp_dir: Path) -> subprocess.Popen[bytes]:
    driver = [sys.executable, "-m", "clustertrain.driver", AttemptRef.of(attempt).to_text()]
    environment = {**os.environ, "CLUSTERTRAIN_RAY_DIR": str(temp_dir)}
    if not os.environ.get("RAY_ADDRESS"):
        environment |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(_write_token(temp_dir))}
        environment.pop("RAY_AUTH_TOKEN", None)
    return subprocess.Popen(
        [sys.executable, "-m", "clustertrain.guardian", str(temp_dir), str(attempt.driver_log), *driver],
        stdin=subprocess.PIPE,
        env=environment,
    )


def _write_token(temp_dir: Path) -> Path:
    """A random token for this run alone, readable by its user alone, passed on by its path."""
    path = temp_dir / "token"
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(fd, "w") as file:
        file.write(secrets.token_hex(32))
    return path


def _watch(
    attempt: Attempt, guardian: subprocess.Popen[bytes], heard: _Signals, screen: Screen
) -> Result | None:
    """Draw until the guardian has ended, or it must. Returns a result where the end was our decision."""
    follower = AttemptFollower(attempt.run.on_this_node.attempt(attempt.n))
    training = asked = False
    fd = os.pidfd_open(guardian.pid)
    try:
        while not select.select([fd], [], [], _POLL_S)[0]:
            records = follower.new()
            screen.show(records)
            training = training or any(record["kind"] == "group_started" for record in records)
            if heard.count and not training:
                _ask_to_stop(attempt, heard, screen)
                return ended(attempt, "stopped", heard.cause)
            if heard.count > 1:
                return ended(attempt, "stopped", "interrupted_twice")
            if heard.count and not asked:
                asked = True
                _ask_to_stop(attempt, heard, screen)
                EventLog(attempt.path / "events-cli.jsonl").write("stop_requested", cause=heard.cause)
        screen.show(follower.new())
    finally:
        os.close(fd)
    return None


def _ask_to_stop(attempt: Attempt, heard: _Signals, screen: Screen) -> None:
    try:
        attempt.ask("stop", {"cause": heard.cause, "time": time.time()})
    except StorageError as error:  # this machine has heard it, and the whole run is on this machine
        screen.say(f"warning: {error}")


def _result_of(attempt: Attempt, guardian_code: int) -> Result:
    """What the driver wrote; where it died without a word, that."""
    result = read_result(attempt)
    if result is not None:
        return result
    how = _how_it_ended(guardian_code)
    tail = "\n".join(f"  | {line}" for line in _last_lines(attempt.driver_log))
    text = f"The driver {how} before it could say why. The end of {attempt.driver_log}:\n{tail}"
    return write_result(attempt, ended(attempt, "failed", "driver_died", text=text))


def _how_it_ended(guardian_code: int) -> str:
    if guardian_code < 0:
        return f"went with its guardian, which was killed by signal {-guardian_code}"
    if guardian_code > 128:
        return f"was killed by signal {guardian_code - 128}"
    return f"ended with code {guardian_code}"


def _last_lines(log: Path) -> list[str]:
    try:
        return log.read_text(errors="replace").splitlines()[-_LOG_LINES:]
    except FileNotFoundError:
        return []
