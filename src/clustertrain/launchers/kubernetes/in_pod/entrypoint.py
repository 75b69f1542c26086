"""The entrypoint of a RayJob: it starts and supervises the driver, in the head's pod.

The submitter's pod submits it to Ray (submitter.py), and again if the head is replaced. The run may then be
active already, or an earlier pod may still be saving: the entrypoint waits for the end of that earlier start.
If the RayJob is deleted, it gets SIGTERM: the workers finish their step and save, and the run is cancelled.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from importlib.metadata import version
from typing import Any

from clustertrain.errors import ClusterError, ClusterTrainError, RunStopped
from clustertrain.job.model import Job
from clustertrain.launchers.kubernetes.in_pod.this_pod import job_of_pod, source_of_pod
from clustertrain.launchers.kubernetes.render.manifests import START_OPTIONS, flag_of
from clustertrain.launchers.scheduler.in_job import run_to_its_end
from clustertrain.node import variables
from clustertrain.node.version import RAY_VERSION, __version__
from clustertrain.observe.screen import Lines, Screen
from clustertrain.run_files.admission import Options, is_same_start
from clustertrain.run_files.claims import allocation_of, who_runs
from clustertrain.run_files.command_line import CommandLine
from clustertrain.run_files.folder.run_dir import Attempt, RunDir
from clustertrain.run_files.records.result import Result
from clustertrain.run_files.records.scheduler import SchedulerStart
from clustertrain.run_files.states import STATES
from clustertrain.supervise.stop_on_signal import run_driver

_POLL_S = 2.0
_MEANINGS: dict[int, tuple[str, str]] = {
    signal.SIGTERM: ("cancelled", "cancelled"),
    signal.SIGINT: ("cancelled", "cancelled"),
}


def main(arguments: Sequence[str]) -> int:
    """Run the job of this pod to its end, and return the exit code, which is success or failure for Ray."""
    try:
        _check_versions(os.environ[variables.VERSION])
        job = job_of_pod()
        result = _run(job, _options(job, arguments), Lines(sys.stdout))
    except (ClusterTrainError, RunStopped) as error:
        print(f"error: {error}", file=sys.stderr, flush=True)
        return error.exit_code
    if STATES[result.state].restarts:
        _wait_for_deletion(job)
    return result.exit_code


def _check_versions(rendered_by: str) -> None:
    """Refuse an image of another version of clustertrain, or with another Ray.

    Raises:
        ClusterError: the versions differ. The message has both.
    """
    for what, requested, has in (
        ("clustertrain", rendered_by, __version__),
        ("Ray", RAY_VERSION, version("ray")),
    ):
        if requested != has:
            raise ClusterError(
                f"The image has {what} {has}, and the RayJob was rendered for {requested}.\n"
                "Name an image of that version as `image`, or render the job again with the image's version."
            )


def this_start() -> SchedulerStart:
    """Return the record of this start for the claim: the RayJob and its Ray cluster."""
    return SchedulerStart(
        "kubernetes",
        os.environ[variables.RAYJOB],
        place={"namespace": os.environ[variables.NAMESPACE]},
        series=os.environ.get("RAY_CLUSTER_NAME", ""),
    )


def _options(job: Job, arguments: Sequence[str]) -> Options:
    given: dict[str, Any] = {option: flag_of(option) in arguments for option in START_OPTIONS}
    return Options(**given, command=CommandLine("submit --to kubernetes", run=job.run_uri))


def _run(job: Job, options: Options, screen: Screen) -> Result:
    allocation = this_start()
    followed = _follow_earlier_start(job, allocation, screen)
    if followed is not None:
        return followed
    if options.fresh and _has_started_before(job, allocation):
        options = replace(options, fresh=False)
    return run_to_its_end(
        job,
        options,
        allocation,
        screen,
        world_sizes=lambda: job.world_sizes,
        supervise=lambda attempt: _supervise(attempt, job, options.command, screen),
        source=source_of_pod(),
    )


def _follow_earlier_start(job: Job, allocation: SchedulerStart, screen: Screen) -> Result | None:
    """Wait for an earlier start of this RayJob that is still active; return its result if that is final."""
    run, waited = RunDir.newest(job.storage.location, job.name), False
    while (previous := run.newest_attempt()) is not None and is_same_start(previous, allocation):
        if (runner := who_runs(previous)) is None:
            result = previous.result.read()
            return result if waited and result is not None and not STATES[result.state].restarts else None
        if not waited:
            screen.echo(f"{job.name}: attempt {previous.n} is active ({runner}); waiting for its end")
        waited = True
        time.sleep(_POLL_S)
    return None


def _has_started_before(job: Job, allocation: SchedulerStart) -> bool:
    """Return whether this Ray cluster has started the newest generation.

    If so, its head was replaced, and the new head continues: --fresh is among the arguments of each start,
    but starts over only once.
    """
    previous = RunDir.newest(job.storage.location, job.name).newest_attempt()
    earlier = allocation_of(previous) if previous is not None else None
    return (
        earlier is not None and earlier.is_same_job(allocation) and earlier.series == allocation.series != ""
    )


def _supervise(attempt: Attempt, job: Job, command: CommandLine, screen: Screen) -> Result:
    screen.echo(
        f"{job.name}: attempt {attempt.n} in {attempt.run.uri}, RayJob {os.environ[variables.RAYJOB]} "
        f"in {os.environ[variables.NAMESPACE]}"
    )
    return run_driver(attempt, lambda folder: os.environ, _MEANINGS, screen, command=command, shielded=True)


def _wait_for_deletion(job: Job) -> None:
    """Sleep until this pod is deleted.

    The run continues in another pod. If this entrypoint ended, the RayJob would fail.
    """
    time.sleep(job.failures.grace_s + 600)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
