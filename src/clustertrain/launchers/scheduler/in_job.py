"""What the programs of all jobs do: they read what the submission sent, and run the attempt to its end."""

from __future__ import annotations

import socket
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from clustertrain.errors import ClusterError, JobError
from clustertrain.job.code_folders import places
from clustertrain.job.file import load_job
from clustertrain.job.launcher_plugins import plugin_of
from clustertrain.job.model import Job
from clustertrain.launchers.agent.node import NodeStart
from clustertrain.launchers.source_state import source_of
from clustertrain.observe.screen import Screen
from clustertrain.observe.tables import print_ending
from clustertrain.run_files.admission import Options, admit, was_stopped_by_user
from clustertrain.run_files.command_line import CommandLine
from clustertrain.run_files.folder.run_dir import Attempt, RunDir
from clustertrain.run_files.records.provenance import CodeSource
from clustertrain.run_files.records.result import Result
from clustertrain.run_files.records.scheduler import SchedulerStart
from clustertrain.run_files.snapshot import UserCode
from clustertrain.run_files.streams.stream_upload import StreamUpload, send_leftovers
from clustertrain.run_files.submission import Submission


def read_start(
    start: str, folder: Path, command: str, *, unpack: bool = True
) -> tuple[Job, RunDir, Options, list[Path]]:
    """Read the job, its run and the options, and unpack its code on this host.

    Return also the folders of the unpacked code; none if the folders of the job file are used.

    Args:
        start: what the submission sent as text, or the path of the job file.
        folder: a private folder, in which the code is unpacked.
        command: what submits a job file by hand.
        unpack: False if the nodes read the folders of the job file.

    Raises:
        ClusterTrainError: the job is wrong, or the snapshot is missing.
    """
    if not Submission.is_text(start):
        job = load_job(start)
        run = RunDir.newest(job.storage.location, job.name)
        return job, run, Options(command=CommandLine(command, start, run=run.uri)), []
    submission = Submission.from_text(start)
    job, options = submission.job(), submission.options
    if not unpack:
        return job, submission.run, options, []
    submission.unpack_code(folder / "code")
    return job, submission.run, options, [folder / "code" / place for place in places(job.code)]


def check_plugin(launcher: str) -> None:
    """Check that the launcher is installed in this Python, too: its section of the job file is read here.

    Raises:
        ClusterError: it is not, or cannot be used.
    """
    try:
        plugin_of(launcher)
    except JobError as error:
        raise ClusterError(
            f"{error}\nInstall its distribution on {socket.gethostname()}, in {sys.executable}."
        ) from error


def run_start(
    start: NodeStart,
    screen: Screen,
    *,
    world_sizes: Callable[[], Sequence[int]],
    supervise: Callable[[Attempt], Result],
) -> Result | None:
    """Run an attempt of a job that its scheduler has started, as `run_to_its_end`.

    Return None if its user has stopped the run in an earlier start.
    """
    job, run, record = start.job, start.run, start.record
    if was_stopped_by_user(run, record):
        screen.echo(f"{run.name} was stopped by its user, and its job was restarted: nothing is started.")
        return None
    return run_to_its_end(
        job, start.options, record, screen, world_sizes=world_sizes, supervise=supervise, run=run
    )


def run_to_its_end(
    job: Job,
    options: Options,
    start: SchedulerStart,
    screen: Screen,
    *,
    world_sizes: Callable[[], Sequence[int]],
    supervise: Callable[[Attempt], Result],
    run: RunDir | None = None,
    source: CodeSource | None = None,
) -> Result:
    """Claim the next attempt, run it, send its streams and print its end.

    If the run is already finished, only return its result.

    Args:
        world_sizes: returns the numbers of workers that the resources suffice for, ascending. Called only if
            training is left to do.
        supervise: runs the attempt.
        run: as for `admit`.
        source: the state of the code; by default that of the submission, else of the folders of the job file.

    Raises:
        ClusterTrainError: as `admit`; the resources suffice for too few workers.
    """
    admission = admit(job, options, screen.echo, run=run, allocation=start)
    if admission.finished is not None:
        return admission.finished
    world_size = admission.world_size_of(world_sizes())
    if options.snapshot:
        source = admission.run.snapshot_source(options.snapshot).read() or CodeSource()
    attempt = admission.claim(world_size, source or source_of(UserCode.of(job)), screen.echo)
    send_leftovers(admission.run, screen.echo)
    with StreamUpload(attempt, screen.echo):
        result = supervise(attempt)
    print_ending(admission.run, result)
    return result
