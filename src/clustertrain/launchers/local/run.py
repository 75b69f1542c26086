"""A run on this machine: checks the code, claims an attempt, starts the driver under its guardian, and shows
the progress."""

from __future__ import annotations

import os
import signal
from functools import partial

from clustertrain.errors import EXIT_FAILED
from clustertrain.job.model import Job
from clustertrain.launchers.check import check_code, placing
from clustertrain.launchers.known_runs import KnownRun, by_name, record_known_run
from clustertrain.launchers.local.ray import ray_address
from clustertrain.launchers.one_host import driver_environment, world_sizes_here
from clustertrain.observe.screen import Screen
from clustertrain.run.admission import Options, claim_next_attempt
from clustertrain.run.command_line import CommandLine
from clustertrain.run.folder import Attempt, RunDir
from clustertrain.run.records import Result
from clustertrain.run.result import failed, write_result
from clustertrain.run.streams.stream_upload import StreamUpload, send_leftovers
from clustertrain.supervise.stop_on_signal import run_driver

_STATES_OF_SIGNALS: dict[int, tuple[str, str]] = {
    signal.SIGINT: ("stopped", "interrupt"),
    signal.SIGTERM: ("stopped", "terminated"),
    signal.SIGHUP: ("stopped", "terminated"),
}


def run_local(
    job: Job, job_file: str, options: Options, screen: Screen, *, owns_process: bool = True
) -> tuple[RunDir, Result]:
    """Check the job's code and run the job to its end; nothing runs if it is already finished. Returns the
    run and its result.

    Args:
        owns_process: as for `supervise`. A process that is not the run's own lives on after an error here,
            and as long as it lives an attempt without a result counts as running: so it gets one.

    Raises:
        ClusterTrainError: as `claim_next_attempt` and `check_code`.
        RunStopped: a signal arrived during the check of the code.
    """

    def check(world_size: int) -> None:
        if not options.no_check:
            check_code(
                job,
                screen.echo,
                command=options.command,
                world_size=world_size,
                elsewhere=bool(ray_address()),
            )

    if (note := _allocation_note(options.command)) is not None and not ray_address():
        screen.echo(f"note: {note}")
    with placing(options.command):
        run, begun = claim_next_attempt(
            job,
            options,
            lambda: _local_world_sizes(job),
            screen.echo,
            launcher="local",
            before_claim=check,
        )
    if isinstance(begun, Result):
        return run, begun
    known = KnownRun.of(job, job_file, "local")
    if (problem := record_known_run(known)) is not None:
        screen.echo(f"note: {problem}")
    try:
        send_leftovers(run, screen.echo)
        with StreamUpload(begun, screen.echo):
            command = by_name(options.command, known)
            return run, _supervise(begun, job, command, screen, owns_process=owns_process)
    except BaseException as error:
        if not owns_process:
            write_result(begun, failed(begun, f"{type(error).__name__}: {error}", EXIT_FAILED))
        raise


def _allocation_note(command: CommandLine) -> str | None:
    """What to type instead in a shell with an allocation of SLURM, if the run leaves nodes of it unused."""
    nodes, count = os.environ.get("SLURM_JOB_NODELIST"), os.environ.get("SLURM_JOB_NUM_NODES")
    is_on_node = "SLURMD_NODENAME" in os.environ  # salloc leaves the shell on the login node, without it
    if nodes is None or (is_on_node and count == "1"):
        return None
    where = "this machine alone" if is_on_node else "this machine, which is not on that list"
    one = "" if is_on_node else f"On one of them: srun --nodes=1 --ntasks=1 --pty {command}\n"
    return (
        f"SLURM allocated {nodes} to this shell, and the run trains on {where}.\n{one}"
        f"On several nodes: {command.on_job('submit --to slurm')}"
    )


def _local_world_sizes(job: Job) -> list[int]:
    """The numbers of workers in [min, max] for which this machine has enough CPUs and GPUs.

    With RAY_ADDRESS all of them: the driver counts what that cluster has.
    """
    return list(job.world_sizes) if ray_address() else world_sizes_here(job)


def _supervise(
    attempt: Attempt, job: Job, command: CommandLine, screen: Screen, *, owns_process: bool
) -> Result:
    screen.echo(
        f"{job.name}: attempt {attempt.n} in {attempt.run.uri}; Ray's output goes to {attempt.driver_log}"
    )
    environment = partial(driver_environment, job, has_own_ray=not ray_address())
    return run_driver(
        attempt, environment, _STATES_OF_SIGNALS, screen, command=command, owns_process=owns_process
    )
