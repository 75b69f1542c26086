"""The program of a job, on its first host: it claims the attempt, and runs the driver under a guardian.

    exec python -m clustertrain.launchers.scheduler.start NAME JOB_ID "${CLUSTERTRAIN_SUBMISSION:-job.yaml}"

In: the submission, from the scheduler's script. Out: a driver (driver/__main__.py), and the exit code.

The script of a scheduler ends with this line, so that the scheduler's signals arrive here. The exit code is
that of `clustertrain run`.
"""

from __future__ import annotations

import json
import os
import secrets
import signal
import socket
import sys
import threading
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from clustertrain.errors import EXIT_DONE, ClusterTrainError, RunStopped
from clustertrain.launchers.agent.head import world_sizes_on
from clustertrain.launchers.agent.node import NodeStart, settings_of
from clustertrain.launchers.one_host import (
    check_installed,
    driver_environment,
    ray_address,
    world_sizes_here,
)
from clustertrain.launchers.scheduler.in_job import check_plugin, read_start, run_start
from clustertrain.launchers.scheduler.several_hosts import run_on_hosts
from clustertrain.node import variables
from clustertrain.node.processes import this_process
from clustertrain.node.signals import REQUESTS_TO_END
from clustertrain.observe.screen import Lines
from clustertrain.run_files.folder.run_dir import Attempt
from clustertrain.run_files.records.result import Result
from clustertrain.run_files.records.scheduler import SchedulerStart
from clustertrain.run_files.states import STATES
from clustertrain.supervise.private_folder import private_folder, remove
from clustertrain.supervise.stop_on_signal import run_driver

_EARLY_S = 5.0  # a scheduler looks at its jobs every few seconds, and began to count before this process


def main(argv: Sequence[str]) -> int:
    """Run the attempt to its end, and return the exit code."""
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
    parser.add_argument("submission", help="what the submission sent as text, or the path of the job file")
    parser.add_argument("--place", type=json.loads, default={}, help="where the job is, as JSON")
    parser.add_argument("--start", default="", help="the scheduler's mark of this start")
    parser.add_argument("--at-time-limit", help="the signal that comes before the end of the job's time")
    parser.add_argument("--warned-after", type=float, help="seconds until then; without a signal it is USR1")
    parser.add_argument("--restart-code", type=int, help="with this exit code the scheduler restarts the job")
    parser.add_argument("--restarts-on-term", action="store_true", help="it restarts a job that it ended")
    parser.add_argument("--hosts", default="", help="the hosts of the job, separated by commas")
    parser.add_argument("--on", default="", help="the words that run a command on a {host}")
    parser.add_argument("--given-ray", action="store_true", help="use the Ray cluster of RAY_ADDRESS, if set")
    return parser.parse_args(argv)


def _run(arguments: Namespace, screen: Lines, folder: Path) -> Result | None:
    host, label = socket.gethostname(), f"{arguments.launcher} job {arguments.job_id}"
    check_installed(host, f"{arguments.launcher}.python")
    check_plugin(arguments.launcher)
    if not arguments.given_ray:
        os.environ.pop("RAY_ADDRESS", None)
    unpack = not ray_address()  # its nodes read the folders of the job file
    job, run, options, code = read_start(arguments.submission, folder, "submit", unpack=unpack)
    hosts, settings = _hosts(arguments.hosts, host), settings_of(job)
    record = SchedulerStart(arguments.launcher, arguments.job_id, arguments.place, arguments.start, hosts)
    start = NodeStart(job, run, options, record, 0, folder, code, settings, secrets.token_hex(32))

    def supervise(attempt: Attempt) -> Result:
        meanings = _meanings(arguments)
        if len(hosts) > 1:
            on, submission = arguments.on, arguments.submission
            return run_on_hosts(start, attempt, on, submission, meanings=meanings, screen=screen)
        screen.echo(f"{run.name}: attempt {attempt.n} in {attempt.uri}, {label} on {host}")
        environment = partial(_environment, job.scratch, code)
        return run_driver(attempt, environment, meanings, screen, command=options.command, shielded=True)

    def world_sizes() -> list[int]:
        return world_sizes_on(job, hosts) if len(hosts) > 1 else world_sizes_here(job)

    return run_start(start, screen, world_sizes=world_sizes, supervise=supervise)


def _hosts(text: str, own: str) -> tuple[str, ...]:
    """Return the hosts of the job, once each, and this one first; only this one if `text` is empty."""
    names = dict.fromkeys(text.split(",")) if text else [own]
    short = own.partition(".")[0]
    return tuple(sorted(names, key=lambda name: name.partition(".")[0] != short))


def _meanings(arguments: Namespace) -> dict[int, tuple[str, str]]:
    """Return the state and the cause of a run that each signal ends.

    At `--warned-after` a timer changes them, or sends the signal of the time limit if nobody else does.
    """
    state = "preempted" if arguments.restarts_on_term else "stopped"
    cause = "requeued" if arguments.restarts_on_term else "terminated"
    meanings: dict[int, tuple[str, str]] = dict.fromkeys(REQUESTS_TO_END, (state, cause))
    at_time_limit = arguments.at_time_limit or ("USR1" if arguments.warned_after is not None else None)
    if at_time_limit is None:
        return meanings
    number = int(signal.Signals[f"SIG{at_time_limit}"])
    own = {number: ("stopped" if arguments.restart_code is None else "preempted", "time_limit")}
    meanings |= own
    if arguments.warned_after is None:
        return meanings
    if arguments.at_time_limit is None:
        _after(arguments.warned_after, partial(os.kill, os.getpid(), number))
    else:  # after another signal than that one, no other start follows
        later = dict.fromkeys(REQUESTS_TO_END, ("stopped", "time_limit")) | own
        _after(arguments.warned_after - _EARLY_S, partial(meanings.update, later))
    return meanings


def _after(seconds: float, act: Callable[[], object]) -> None:
    """Act so many seconds after the start of this process."""
    began_s = this_process().pid_started_ticks / os.sysconf("SC_CLK_TCK")
    ran_s = time.clock_gettime(time.CLOCK_BOOTTIME) - began_s
    timer = threading.Timer(max(0.0, seconds - ran_s), act)
    timer.daemon = True
    timer.start()


def _environment(scratch: str | None, code: Sequence[Path], folder: Path) -> dict[str, str]:
    environment = driver_environment(scratch, folder) | {variables.CODE: os.pathsep.join(map(str, code))}
    environment.pop(variables.SUBMISSION, None)
    return environment


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
