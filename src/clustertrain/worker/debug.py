"""`clustertrain run --debug`: the first worker's training in this process, so that breakpoint() and pdb work.

It is the one-rank form of `run --no-ray`: the variables, the devices and the entry points are those of a rank
there. There is no guardian, no watchdog, and no file of a run: nothing is saved or resumed. An exception of
the user's code keeps its traceback, and Ctrl-C raises KeyboardInterrupt as in any Python program.
"""

from __future__ import annotations

import bdb
import os
import runpy
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from clustertrain.errors import JobError
from clustertrain.job.model import Job
from clustertrain.job.references import with_values
from clustertrain.observe.screen import Lines
from clustertrain.training.ranks.host import Requests
from clustertrain.training.task_errors import RaisedByTask
from clustertrain.worker.code.user_code import code_folders
from clustertrain.worker.machine.local_data import stage_here
from clustertrain.worker.place import ONLY_RANK
from clustertrain.worker.scripts.script_command import (
    fill_environment,
    program_of,
    script_arguments,
    worker_variables,
)
from clustertrain.worker.setup import enter_job
from clustertrain.worker.single_rank_group import rank_zero, set_environment
from clustertrain.worker.train import call_function, settings_of, train_task


def debug(job: Job) -> None:
    """Train a job to its end, or until an exception.

    Raises:
        ClusterTrainError: the data, the GPU or the code is refused, as in a worker.
        KeyboardInterrupt: Ctrl-C, or `q` in pdb.
    """
    if job.interpreter is not None:
        raise JobError(
            f"interpreter: {job.interpreter} cannot be used with --debug, which trains in this process, "
            f"with {sys.executable}.\nTo debug with this Python: --set interpreter="
        )
    screen = Lines(sys.stdout)
    screen.echo(
        "debug: rank 0 as the only rank, in this process: no Ray, no restarts, no checkpoints, nothing "
        "resumed; no loader processes, no compile, no profile"
    )
    job = _of_one_rank(job)
    place = replace(ONLY_RANK, gpus=tuple(range(job.resources.gpus_per_worker)))
    enter_job(job, place)
    data = stage_here(job, lambda event: None)
    with tempfile.TemporaryDirectory(prefix="clustertrain-debug-") as checkpoints:
        values = worker_variables(data, attempt=1, restart=0, checkpoints=checkpoints)
        os.environ |= values
        fill_environment(job, values)
        try:
            if job.is_script:
                set_environment()
                program = program_of(job, code_folders(job), script_arguments(job, values, resumes=False))
                _run_as_main(program.argv[2:])
                return
            with rank_zero(place.device) as rank_info:
                if job.function:
                    call_function(job, rank_info, _NoFiles(screen), data, Path(checkpoints))
                else:
                    # a breakpoint is for steps
                    settings = replace(settings_of(job), sanity=False, memory_every=0)
                    train_task(job, settings, rank_info, _NoFiles(screen), data)
        except bdb.BdbQuit:
            raise KeyboardInterrupt from None
        except RaisedByTask as error:  # whoever debugs wants the exception itself
            raise (error.__cause__ or error) from None


def _run_as_main(arguments: Sequence[str]) -> None:
    """Run what `python ARGUMENTS` runs: a script, or `-m` and a module."""
    if arguments[0] == "-m":
        sys.argv = [*arguments[1:]]
        runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = [*arguments]
        sys.path.insert(0, str(Path(arguments[0]).resolve().parent))
        runpy.run_path(arguments[0], run_name="__main__")


def _of_one_rank(job: Job) -> Job:
    """Return the job as its first worker has it.

    Loader processes have no terminal, and compiled code has no lines.
    """
    train = job.train and replace(job.train, loader_workers=0, compile=None, profile=None)
    if train is not None and train.global_batch_size is not None:
        share = train.global_batch_size // (job.world_sizes[-1] * train.accumulate)
        train = replace(train, batch_size=share, global_batch_size=None)
    return job.model_copy(update={"env": with_values(job.env, os.environ), "train": train})


class _NoFiles:
    """training's Host that shows metrics, and neither saves nor restores."""

    rank = 0
    saves_in_background = True

    def __init__(self, screen: Lines) -> None:
        self._screen = screen

    def requests(self) -> Requests:
        return Requests()

    def _do_nothing(self, *args: Any) -> Any:
        """Do nothing: nothing is restored or saved; there is no watchdog and no logger of images."""

    restore = fill = reserve = save = wait_for_write = images = phase = finish = profile = _do_nothing
    is_writing = memory_lacks = save_in_memory = _do_nothing

    def log(self, record: dict[str, Any]) -> None:
        self._screen.show([{"time": time.time(), **record}])
