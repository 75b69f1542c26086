"""Watching over a driver from the process that started it: draws what happens, and hears requests to end."""

from __future__ import annotations

import select
import time
from collections.abc import Mapping
from pathlib import Path
from types import FrameType

from clustertrain.errors import StorageError
from clustertrain.node.signals import signals_heard
from clustertrain.observe.screen import Screen
from clustertrain.run.events import EventLog
from clustertrain.run.folder import Attempt
from clustertrain.run.history import AttemptFollower
from clustertrain.run.result import Result, ended, write_result
from clustertrain.supervise.driver_process import result_of, start_driver
from clustertrain.supervise.guardian import become_subreaper, kill_descendants
from clustertrain.supervise.private_folder import remove
from clustertrain.supervise.process import Guarded

_POLL_S = 0.1


class Heard:
    """Counts signals that ask for the end; `means` says which state and cause the newest of them leads to."""

    def __init__(self, means: Mapping[int, tuple[str, str]]) -> None:
        self._means = dict(means)
        self.count = 0
        self.state, self.cause = "stopped", "terminated"

    @property
    def numbers(self) -> list[int]:
        return list(self._means)

    def __call__(self, number: int, frame: FrameType | None) -> None:
        self.count += 1
        self.state, self.cause = self._means[number]


def supervise(
    attempt: Attempt,
    folder: Path,
    environment: Mapping[str, str],
    heard: Heard,
    screen: Screen,
    *,
    shielded: bool = False,
) -> Result:
    """Run the attempt's driver to its end; nothing of it is left then, and neither is `folder`, Ray's own.

    `shielded`: as guarded.Guarded.
    """
    become_subreaper()
    with signals_heard(heard, heard.numbers):
        environment = {**environment, "CLUSTERTRAIN_RAY_DIR": str(folder)}
        driver = start_driver(attempt, folder, environment, shielded=shielded)
        try:
            verdict = _watch(attempt, driver, heard, screen)
        finally:
            driver.end()
            kill_descendants()  # nothing is left, unless somebody killed the guardian
            remove(folder)
        return write_result(attempt, verdict) if verdict else result_of(attempt, driver)


def _watch(attempt: Attempt, driver: Guarded, heard: Heard, screen: Screen) -> Result | None:
    """Draw until the driver has ended, or it must. Returns a result where the end was our decision."""
    follower = AttemptFollower(attempt.run.on_this_node.attempt(attempt.n))
    training = asked = False
    while not select.select([driver.fd], [], [], _POLL_S)[0]:
        records = follower.new()
        screen.show(records)
        training = training or any(record["kind"] == "group_started" for record in records)
        if heard.count and not training:
            _ask_to_stop(attempt, heard, screen)
            return ended(attempt, heard.state, heard.cause)
        if heard.count > 1:
            return ended(attempt, "stopped", "interrupted_twice")
        if heard.count and not asked:
            asked = True
            _ask_to_stop(attempt, heard, screen)
            EventLog(attempt.path / "events-cli.jsonl").write("stop_requested", cause=heard.cause)
    screen.show(follower.new())
    return None


def _ask_to_stop(attempt: Attempt, heard: Heard, screen: Screen) -> None:
    request = {"cause": heard.cause, "state": heard.state, "time": time.time()}
    try:
        attempt.ask("stop", request)
    except StorageError as error:  # this node has heard it
        screen.say(f"warning: {error}")
