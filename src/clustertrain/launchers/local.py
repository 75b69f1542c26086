"""A run on this machine: claim an attempt, start the guardian, draw what happens, say how it ended."""

from __future__ import annotations

import os
import select
import signal
import time

from clustertrain.errors import ClusterError, StorageError
from clustertrain.guarded import (
    Guarded,
    private_folder,
    remove,
    result_of,
    signals_heard,
    start_driver,
    write_token,
)
from clustertrain.guardian import become_subreaper, kill_descendants
from clustertrain.job import Job
from clustertrain.observe.events import EventLog
from clustertrain.observe.joined import AttemptFollower
from clustertrain.observe.progress import Screen
from clustertrain.observe.shipping import Shipping, send_leftovers
from clustertrain.result import Result, ended, write_result
from clustertrain.run_dir import Attempt, RunDir
from clustertrain.starting import Options, begin

_POLL_S = 0.1


def run_local(job: Job, options: Options, screen: Screen) -> tuple[RunDir, Result]:
    """Run the job to its end, or leave it as it is where it is finished already.

    Raises:
        ClusterTrainError: as `starting.begin`.
    """
    run, begun = begin(job, options, lambda: _that_fit(job), screen.say, launcher="local")
    if isinstance(begun, Result):
        return run, begun
    send_leftovers(run, screen.say)
    with Shipping(begun, screen.say):
        return run, _supervise(begun, job, screen)


def _that_fit(job: Job) -> list[int]:
    """The numbers of workers, of [min, max], that this machine has CPUs for."""
    sizes = list(job.world_sizes)
    if os.environ.get("RAY_ADDRESS"):
        return sizes
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


# ------------------------------------------------------------------------------------------ while it runs


class _Signals:
    """Counts requests to end: SIGINT, SIGTERM and SIGHUP."""

    def __init__(self) -> None:
        self.count = 0
        self.cause = "interrupt"

    def __call__(self, number: int, frame: object) -> None:
        self.count += 1
        self.cause = "interrupt" if number == signal.SIGINT else "terminated"


def _supervise(attempt: Attempt, job: Job, screen: Screen) -> Result:
    folder = private_folder()
    become_subreaper()
    screen.say(
        f"{job.name}: attempt {attempt.n} in {attempt.run.uri}; Ray's own words go to {attempt.driver_log}"
    )
    environment = {**os.environ, "CLUSTERTRAIN_RAY_DIR": str(folder)}
    if not os.environ.get("RAY_ADDRESS"):
        environment |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(write_token(folder))}
        environment.pop("RAY_AUTH_TOKEN", None)
    heard = _Signals()
    with signals_heard(heard, (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)):
        driver = start_driver(attempt, folder, environment)
        try:
            verdict = _watch(attempt, driver, heard, screen)
        finally:
            driver.end()
            kill_descendants()  # nothing is left, unless somebody killed the guardian
            remove(folder)
        return write_result(attempt, verdict) if verdict else result_of(attempt, driver)


def _watch(attempt: Attempt, driver: Guarded, heard: _Signals, screen: Screen) -> Result | None:
    """Draw until the driver has ended, or it must. Returns a result where the end was our decision."""
    follower = AttemptFollower(attempt.run.on_this_node.attempt(attempt.n))
    training = asked = False
    while not select.select([driver.fd], [], [], _POLL_S)[0]:
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
    return None


def _ask_to_stop(attempt: Attempt, heard: _Signals, screen: Screen) -> None:
    try:
        attempt.ask("stop", {"cause": heard.cause, "time": time.time()})
    except StorageError as error:  # this machine has heard it, and the whole run is on this machine
        screen.say(f"warning: {error}")
