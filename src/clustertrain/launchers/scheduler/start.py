"""The program of a job on one host: it claims the attempt, and runs the driver under a guardian.

    exec python -m clustertrain.launchers.scheduler.start NAME JOB_ID "${CLUSTERTRAIN_SUBMISSION:-job.yaml}"

The script of a scheduler ends with this line, so that the scheduler's signals arrive here. The exit code is
that of `clustertrain run`.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from clustertrain import variables
from clustertrain.errors import EXIT_DONE, ClusterTrainError, RunStopped
from clustertrain.job.code_folders import places
from clustertrain.job.file import load_job
from clustertrain.job.model import Job
from clustertrain.launchers.one_host import (
    check_installed,
    driver_environment,
    ray_address,
    world_sizes_here,
)
from clustertrain.launchers.source_state import read_source
from clustertrain.node.processes import this_process
from clustertrain.node.signals import REQUESTS_TO_END
from clustertrain.observe.screen import Lines
from clustertrain.observe.tables import print_ending
from clustertrain.run.admission import Options, claim_next_attempt, is_same_start, was_stopped_by_user
from clustertrain.run.command_line import CommandLine
from clustertrain.run.folder import RunDir
from clustertrain.run.records import Result, SchedulerStart
from clustertrain.run.states import STATES
from clustertrain.run.streams.stream_upload import StreamUpload, send_leftovers
from clustertrain.run.submission import Submission
from clustertrain.supervise.private_folder import private_folder, remove
from clustertrain.supervise.stop_on_signal import run_driver

_EARLY_S = 5.0  # a scheduler looks at its jobs every few seconds, and began to count before this process


def main(argv: Sequence[str]) -> int:
    """Run the attempt to its end. Returns the exit code."""
    arguments = _parsed(argv)
    screen, folder = Lines(sys.stdout), None
    try:
        folder = private_folder()
        result = _run(arguments, screen, folder)
    except (ClusterTrainError, RunStopped) as error:
        Lines(sys.stderr).echo(f"error: {error}")
        return error.exit_code
    finally:
        if folder is not None:
            remove(folder)
    if result is None:
        return EXIT_DONE
    again = STATES[result.state].restarts and arguments.restart_code is not None
    code: int = arguments.restart_code if again else result.exit_code
    return code


def _parsed(argv: Sequence[str]) -> Namespace:
    parser = ArgumentParser(prog="clustertrain.launchers.scheduler.start")
    parser.add_argument("launcher", help="the name of the launcher")
    parser.add_argument("job_id", help="the scheduler's ID of this job")
    parser.add_argument("start", help="what the submission sent as text, or the path of the job file")
    parser.add_argument("--cluster", help="the name of the scheduler's cluster")
    parser.add_argument("--at-time-limit", help="the signal that comes before the end of the job's time")
    parser.add_argument("--time-limit", type=float, help="seconds after which it comes, or another signal")
    parser.add_argument("--restart-code", type=int, help="with this exit code the scheduler restarts the job")
    parser.add_argument("--given-ray", action="store_true", help="use the Ray cluster of RAY_ADDRESS, if set")
    return parser.parse_args(argv)


def _run(arguments: Namespace, screen: Lines, folder: Path) -> Result | None:
    host, label = socket.gethostname(), f"{arguments.launcher} job {arguments.job_id}"
    check_installed(host, f"{arguments.launcher}.python")
    if not arguments.given_ray:
        os.environ.pop("RAY_ADDRESS", None)
    job, run, options, code = _read(arguments.start, folder)
    start = SchedulerStart(arguments.launcher, arguments.cluster, arguments.job_id, nodes=(host,))
    start = replace(start, restart=sum(is_same_start(each, start) for each in run.attempts()))
    if start.restart:
        options = replace(options, retry=False)
    if was_stopped_by_user(run, start):
        screen.echo(f"{run.name} was stopped by its user, and its job was restarted: nothing is started.")
        return None
    run, begun = claim_next_attempt(
        job,
        options,
        lambda: world_sizes_here(job),
        screen.echo,
        launcher=arguments.launcher,
        run=run,
        allocation=start,
        read_source=read_source,
    )
    if isinstance(begun, Result):
        return begun
    send_leftovers(run, screen.echo)
    screen.echo(f"{run.name}: attempt {begun.n} in {begun.uri}, {label} on {host}")
    with StreamUpload(begun, screen.echo):
        result = run_driver(
            begun,
            partial(_environment, job, code),
            _meanings(arguments),
            screen,
            command=options.command,
            shielded=True,
            once=True,
        )
    print_ending(run, result)
    return result


def _read(start: str, folder: Path) -> tuple[Job, RunDir, Options, list[Path]]:
    """The job, its run, the options, and the folders of its code on this host."""
    if not start.startswith("{"):
        job = load_job(start)
        run = RunDir.newest(job.storage.location, job.name)
        return job, run, Options(command=CommandLine("submit", start, run=run.uri)), [*map(Path, job.code)]
    submission = Submission.from_text(start)
    job, run = submission.job(), submission.run
    if ray_address():  # its nodes read the folders of the job file
        return job, run, submission.options(0), [*map(Path, job.code)]
    submission.unpack_code(folder / "code")
    return job, run, submission.options(0), [folder / "code" / place for place in places(job.code)]


def _meanings(arguments: Namespace) -> dict[int, tuple[str, str]]:
    """The state and the cause of a run that each signal ends."""
    meanings: dict[int, tuple[str, str]] = dict.fromkeys(REQUESTS_TO_END, ("stopped", "terminated"))
    if arguments.at_time_limit:
        state = "stopped" if arguments.restart_code is None else "preempted"
        number = int(signal.Signals[f"SIG{arguments.at_time_limit}"])
        own = {number: (state, "time_limit")}
        meanings |= own
        if arguments.time_limit is not None:  # after another signal than that one, no other start follows
            later = dict.fromkeys(REQUESTS_TO_END, ("stopped", "time_limit")) | own
            began_s = this_process().pid_started_ticks / os.sysconf("SC_CLK_TCK")
            ran_s = time.clock_gettime(time.CLOCK_BOOTTIME) - began_s
            timer = threading.Timer(
                max(0.0, arguments.time_limit - _EARLY_S - ran_s), meanings.update, [later]
            )
            timer.daemon = True
            timer.start()
    return meanings


def _environment(job: Job, code: Sequence[Path], folder: Path) -> dict[str, str]:
    environment = driver_environment(job, folder) | {variables.CODE: os.pathsep.join(map(str, code))}
    environment.pop(variables.SUBMISSION, None)
    return environment


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
