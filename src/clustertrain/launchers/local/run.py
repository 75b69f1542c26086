"""A run on this machine, from the job file to the end of its driver.

In: a job, from api.py. Out: a driver (driver/__main__.py), and its result.

This module reads the code, claims an attempt, starts the driver under its guardian, and shows the progress.
"""

from __future__ import annotations

import signal
from contextlib import ExitStack
from functools import partial

from clustertrain.errors import EXIT_FAILED, ClusterError
from clustertrain.job.model import Job
from clustertrain.launchers.check import Depth, check_code, placing
from clustertrain.launchers.known_runs import KnownRun, by_folder, record_known_run
from clustertrain.launchers.one_host import driver_environment, ray_address, world_sizes_here
from clustertrain.launchers.source_state import source_of
from clustertrain.node.signals import handled_signals
from clustertrain.observe.screen import Screen
from clustertrain.run_files.admission import Options, admit
from clustertrain.run_files.folder.run_dir import RunDir
from clustertrain.run_files.records.result import Result
from clustertrain.run_files.result import failed, write_result
from clustertrain.run_files.snapshot import UserCode
from clustertrain.run_files.streams.stream_upload import StreamUpload, send_leftovers
from clustertrain.run_files.working_folder import FilesOfRun
from clustertrain.supervise.stop_on_signal import run_driver

_STATES_OF_SIGNALS: dict[int, tuple[str, str]] = {
    signal.SIGINT: ("stopped", "interrupt"),
    signal.SIGTERM: ("stopped", "terminated"),
    signal.SIGHUP: ("stopped", "terminated"),
}


def run_local(job: Job, options: Options, screen: Screen, *, owns_process: bool) -> tuple[RunDir, Result]:
    """Run the job to its end, if it is not finished already, and return the run and its result.

    The ranks check the code before their first step. Before a start that ends or hides a run that may be
    good, a process of its own does it.

    Args:
        owns_process: as for `supervise`. A process that is not the run's own lives on after an error here,
            and as long as it lives an attempt without a result counts as running: so it gets one.

    Raises:
        ClusterError: `options.no_ray`, and RAY_ADDRESS is set.
        ClusterTrainError: as `admit` and `check_code`.
        RunStopped: a signal arrived during the check of the code.
    """
    if options.no_ray and (address := ray_address()):
        raise ClusterError(
            f"RAY_ADDRESS={address} names a Ray cluster, and --no-ray trains on this machine alone.\n"
            "Unset RAY_ADDRESS, or omit --no-ray."
        )
    code = UserCode.of(job)
    files = FilesOfRun(code)
    with placing(options.command):
        admission = admit(job, options, screen.echo)
        run = admission.run
        if admission.finished is not None:
            return run, admission.finished
        world_size = admission.world_size_of(world_sizes_here(job))
    depth: Depth = "rehearsal" if options.takeover or options.fresh else "files"
    elsewhere = bool(ray_address())
    check_code(job, screen.echo, options.command, world_size, elsewhere=elsewhere, depth=depth)
    with ExitStack() as held:
        # From before the claim on: an attempt that a signal ends has a result.
        signals = held.enter_context(handled_signals(_STATES_OF_SIGNALS))
        begun = admission.claim(world_size, source_of(code), screen.echo)
        known = KnownRun.of(job, options.command.job_file, "local")
        if (problem := record_known_run(known)) is not None:
            screen.echo(f"note: {problem}")
        try:
            send_leftovers(run, screen.echo)
            with StreamUpload(begun, screen.echo):
                screen.echo(
                    f"{run.name}: attempt {begun.n} in {run.uri}; "
                    f"the driver's output goes to {begun.driver_log}"
                )
                result = run_driver(
                    begun,
                    partial(driver_environment, job.scratch, no_ray=options.no_ray),
                    _STATES_OF_SIGNALS,
                    screen,
                    command=by_folder(options.command, known),
                    owns_process=owns_process,
                    before=signals,
                )
                files.record(run, screen.echo)
                held.close()  # Ctrl-C ends the last upload of the streams
                return run, result
        except BaseException as error:
            if not owns_process:
                write_result(begun, failed(begun, f"{type(error).__name__}: {error}", EXIT_FAILED))
            raise
