"""The check of a job's code before anything starts: first as text, then in a process that imports it.

Reasons:

First the file, its syntax and the name in it are read as text (`job/source.py`), which takes milliseconds
and needs no torch. `check` and `submit` then start one process under a guardian of its own
(`supervise/check_process.py` runs `worker/check.py`): it imports the code, compares the arguments with
its parameters, and rehearses a task on one batch, because a mistake must not cost a place in a queue.
Slowness is never a refusal: at the deadline the start goes on. With `submit` only what is wrong on every
machine is a refusal, and the process may use half of the memory that is available, because a login node
is shared.

`run` is its own check: it reads the text, claims, and starts. Only with `--takeover` and `--fresh`, which
end or hide a run that may be good, does the process come first. Before the first step of a run that has
never trained, or whose job or code has changed (`is_tried` in `run_files/provenance.py`), the ranks try the
task (`training/sanity.py`): one batch of the evaluation with every metric, `images()`, the state of a
checkpoint, whether the loss is a sum. The rehearsal calls the same functions and `prepare`, so both say
the same lines. What the user's code raises there, or in the first step, is a `RaisedByTask`. It travels
to the driver with the report of its cause, and `driver/cause/rank_failure.py` decides: a mistake ends the
run with exit code 2 and no restart, and what the network, the storage, the memory, a GPU or another rank
has raised is handled as at any other step. The attempt stays, and determines neither state nor job of a
run that had a checkpoint.

A JobError has the keys of the job file that it is about (`at`), if it concerns one; the process that read
the file puts line and column before the message. The run is claimed under the number that was free before
the check: of two starts at the same time one is refused.

`run --debug` is the one-rank form of `run --no-ray`, in the process of the command, which has the
terminal (`worker/debug.py`): it enters the job (`enter_job` in `worker/setup.py`) and calls the entry
points as a rank does there. It writes no run: a debugger stops heartbeats and watchdogs, and a
half-trained checkpoint must not be resumed.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

from clustertrain.errors import (
    DataError,
    JobError,
    error_of_code,
)
from clustertrain.job.file import dump_job, place_of_key
from clustertrain.job.loggers import MLFLOW_URI, WANDB_DIR, WANDB_MODE, is_offline
from clustertrain.job.model import Job
from clustertrain.job.references import names_of, with_values, without_references
from clustertrain.job.source import check_source
from clustertrain.job.start_environment import hash_seed, without_gpus
from clustertrain.node.installed import (
    how_to_install,
    how_to_install_loggers,
    missing_for_training,
    missing_of,
)
from clustertrain.node.interpreter import interpreter_file
from clustertrain.run_files.command_line import UNKNOWN, CommandLine
from clustertrain.staging.entry import StagedData, data_folder
from clustertrain.supervise.check_process import CheckRequest, run_check

Depth = Literal["text", "files", "rehearsal"]
"""How far the check goes: the code as text, local data as well, the code imported and a task rehearsed."""
DEADLINE_S = 120.0  # a large model on a slow disk: the start goes on without the rest of the check


@dataclass(frozen=True)
class Checked:
    """What the check of a job that has no mistake found.

    Attributes:
        seconds: what the check took.
        notes: what was not checked.
    """

    seconds: float
    notes: list[str]


@contextmanager
def placing(command: CommandLine) -> Iterator[None]:
    """Add the place of a key, `FILE:LINE:COLUMN: `, to an error of the block about a key of the job file."""
    try:
        yield
    except JobError as error:
        place = place_of_key(command.job_file, command.sets, error.at) if error.at else ""
        if not place:
            raise
        raise JobError(f"{place}: {error}") from error


def check_code(
    job: Job,
    echo: Callable[[str], None],
    command: CommandLine = UNKNOWN,
    world_size: int | None = None,
    *,
    elsewhere: bool = False,
    depth: Depth = "rehearsal",
) -> Checked:
    """Check the code, args, loggers and local data of a job, rehearse a task, and print what is returned.

    Args:
        command: names the job file in which an error gets its place.
        world_size: the number of workers; the largest that the job allows if it is not known.
        elsewhere: the job will run on other machines, as it must where torch is not installed. What may
            differ there becomes a note.
        depth: with "text" and "files" no code is imported, and the check takes milliseconds.

    Raises:
        ClusterTrainError: what is wrong, with file, line and remedy.
        RunStopped: a signal asked for an end.
    """
    started_s = time.monotonic()
    elsewhere = elsewhere or _is_submit_side()
    with placing(command):
        env = _env_here(job.env, elsewhere) if depth == "rehearsal" else {}
        check_source(job)
        notes = check_loggers(job, elsewhere=elsewhere)
        if depth != "text":
            for name, entry in job.data.items():
                with _noted(notes, elsewhere, f"data.{name} is not on this machine", f"data.{name}: "):
                    folder = data_folder(None, "node")
                    StagedData.of(job.data_location(name), entry.sha256, entry.extract, folder)
            if job.interpreter is not None:
                with _noted(notes, elsewhere, "the machines of the job need the interpreter"):
                    interpreter_file(job.interpreter)
        if depth == "rehearsal" and not job.is_script:
            size = world_size or job.world_sizes[-1]
            notes += _import_and_rehearse(job, env, size, elsewhere=elsewhere, echo=echo)
    for note in notes:
        echo(note if note.startswith("warning: ") else f"note: {note}")
    checked = Checked(time.monotonic() - started_s, notes)
    if depth == "rehearsal":
        echo(f"checked in {checked.seconds:.1f} s")
    return checked


@contextmanager
def _noted(notes: list[str], elsewhere: bool, what: str, key: str = "") -> Iterator[None]:
    """Make an error of the block a note if the job runs elsewhere, where the missing file may be.

    Otherwise put the key before it.
    """
    try:
        yield
    except (DataError, JobError) as error:
        if not elsewhere:
            raise type(error)(f"{key}{error}") from error
        notes.append(f"{what}: {str(error).splitlines()[0]}")


def _env_here(env: Mapping[str, str], elsewhere: bool) -> dict[str, str]:
    """Return the job's `env` for the check.

    A variable that is not set here, and may be set elsewhere, is empty.

    Raises:
        JobError: a variable that it refers to is not set, and the job will run here.
    """
    unset = dict.fromkeys(names_of(env), "") if elsewhere else {}
    return without_references(with_values(env, {**unset, **os.environ}))


def check_loggers(job: Job, *, elsewhere: bool = False) -> list[str]:
    """Check that the loggers of `train.log` can write; returns notes.

    Variables that a Secret or a shell line sets are not known here.

    Raises:
        JobError: a package is not installed where the job runs, or a logger has no place to write to.
    """
    loggers, sections = job.loggers, job.launcher_sections.values()
    if job.storage.location.is_s3:
        given = {**({} if elsewhere else os.environ), **job.env}
        needed = {name for name in (MLFLOW_URI, WANDB_DIR) if name not in given}
        missing = {name for name in needed if not any(section.may_set(name) for section in sections)}
        _refuse_files_on_s3(loggers, missing, given.get(WANDB_MODE))
    if not (absent := missing_of(loggers)):
        return []
    text = f"train.log: {' and '.join(absent)}: not installed here"
    if elsewhere:
        return [f"{text}; the nodes need it. {how_to_install_loggers(absent)}"]
    raise JobError(f"{text}.\n{how_to_install_loggers(absent)}")


def _refuse_files_on_s3(loggers: Sequence[str], missing: Set[str], wandb_mode: str | None) -> None:
    """Refuse storage on S3 as the folder for the files of MLflow and W&B.

    Args:
        missing: the variables that are set nowhere.

    Raises:
        JobError: a logger would need one.
    """
    if "mlflow" in loggers and MLFLOW_URI in missing:
        raise JobError(
            f"train.log: mlflow has no server, and {MLFLOW_URI} is not set.\n"
            "Without a server MLflow writes files, and storage on S3 has no folder for them.\n"
            f"Write its address into the job file: env: {{{MLFLOW_URI}: https://…}}"
        )
    if "wandb" in loggers and is_offline(wandb_mode) and WANDB_DIR in missing:
        raise JobError(
            f"train.log: wandb is offline, and {WANDB_DIR} is not set.\n"
            "Offline W&B writes files, and storage on S3 has no folder for them.\n"
            f"Write a folder that outlives the run into the job file: env: {{{WANDB_DIR}: /…}}"
        )


def _import_and_rehearse(
    job: Job,
    env: Mapping[str, str],
    world_size: int,
    *,
    elsewhere: bool,
    echo: Callable[[str], None],
) -> list[str]:
    """Check the code in a process of its own, with these variables, and return notes.

    The output of the code is shown.

    Raises:
        ClusterTrainError: as `check_code`.
    """
    if job.task and _is_submit_side():
        return ["the code was not imported: torch is not installed here"]
    request = CheckRequest(dump_job(job), world_size, elsewhere)
    environment = {**os.environ, **hash_seed(job), **env, **without_gpus(job)}
    report = run_check(request, environment, DEADLINE_S)
    for line in report.printed:
        echo(f"  | {line}")
    if not report.ended:
        ended = f"the check of the code was ended after {DEADLINE_S:g} s, in the {report.phase}"
        return [*report.notes, ended]
    if not report.error:
        return report.notes
    if elsewhere and report.of_this_machine:
        return [*report.notes, f"not all of the code could be checked here: {report.error.splitlines()[0]}"]
    raise error_of_code(report.exit_code, report.error)


def _is_submit_side() -> bool:
    """Return whether this Python can check and submit jobs, and cannot train."""
    return "torch" in missing_for_training()


def check_training_installed(command: str) -> None:
    """Check that torch and ray are installed, without importing them.

    Raises:
        JobError: one is not, and `command` needs both.
    """
    if missing := missing_for_training():
        what = f"`clustertrain {command}` needs {' and '.join(missing)}: not installed here."
        raise JobError(f"{what}\n{how_to_install('train')}")
