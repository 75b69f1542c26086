"""`clustertrain run --debug`: the first worker's training in this process, so that breakpoint() and pdb work.

One rank, no Ray, no guardian, no watchdog, and no files of a run: nothing is saved or resumed. An exception
of the user's code keeps its traceback, and Ctrl-C raises KeyboardInterrupt as in any Python program.
"""

from __future__ import annotations

import bdb
import os
import runpy
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from clustertrain.errors import JobError
from clustertrain.job.model import Job
from clustertrain.job.references import with_values, without_references
from clustertrain.job.source import script_file
from clustertrain.job.start_environment import without_gpus
from clustertrain.observe.screen import Lines
from clustertrain.training.ranks.host import Requests
from clustertrain.training.settings import TrainSettings
from clustertrain.worker.code.user_code import code_folders, enter_code
from clustertrain.worker.data.local_data import stage_here
from clustertrain.worker.machine.gpus import check_gpus
from clustertrain.worker.scripts.script_command import fill_environment, script_arguments, worker_variables
from clustertrain.worker.single_rank_group import device_of, rank_zero, set_environment
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
    job = job.model_copy(update={"env": with_values(job.env, os.environ)})
    os.environ.update(without_references(job.env) | without_gpus(job))
    enter_code(job)
    if job.resources.gpus_per_worker:
        check_gpus(1, job.resources.gpus_per_worker)
    screen.echo(f"debug: {_differences(job)}")
    data = stage_here(job, lambda event: None)
    try:
        if job.is_script:
            _run_script(job, data)
            return
        fill_environment(job, _variables(data, checkpoints=""))
        with rank_zero(device_of(job)) as rank_info:
            run = _NoFiles(screen)
            if job.function:
                call_function(job, rank_info, run, data)
            else:
                train_task(job, _settings(job), rank_info, run, data)
    except bdb.BdbQuit:
        raise KeyboardInterrupt from None


def _differences(job: Job) -> str:
    workers = job.world_sizes[-1]
    which = "the only worker" if workers == 1 else f"rank 0 of {workers} as the only rank"
    text = f"{which}, in this process: no Ray, no restarts, no checkpoints, nothing resumed"
    changed = []
    if job.train is not None and job.train.loader_workers not in (0, "auto"):
        changed.append("loader_workers 0")
    if job.train is not None and job.train.compile:
        changed.append("compile false")
    return f"{text}; {', '.join(changed)}" if changed else text


def _settings(job: Job) -> TrainSettings:
    """The settings of the first worker. Loader processes have no terminal, and compiled code has no lines."""
    settings = replace(settings_of(job), loader_workers=0, compile=None)
    if settings.global_batch_size is None:
        return settings
    share = settings.global_batch_size // (job.world_sizes[-1] * settings.accumulate)
    return replace(settings, batch_size=share, global_batch_size=None)


def _run_script(job: Job, data: Mapping[str, Path]) -> None:
    """Run the script as the main program of this process, with the environment of one torchrun worker."""
    set_environment()
    with tempfile.TemporaryDirectory(prefix="clustertrain-debug-") as checkpoints:
        values = _variables(data, checkpoints)
        os.environ |= values
        fill_environment(job, values)
        args = script_arguments(job, values, resumes=False)
        if job.module:
            sys.argv = [job.module, *args]
            runpy.run_module(job.module, run_name="__main__", alter_sys=True)
        else:
            script = script_file(code_folders(job), job.script or "")
            sys.path.insert(0, str(script.parent))
            sys.argv = [str(script), *args]
            runpy.run_path(str(script), run_name="__main__")


def _variables(data: Mapping[str, Path], checkpoints: str) -> dict[str, str]:
    return worker_variables(data, attempt=1, restart=0, checkpoints=checkpoints)


class _NoFiles:
    """training's Host that shows metrics, and neither saves nor restores."""

    rank = 0
    saves_in_background = True

    def __init__(self, screen: Lines) -> None:
        self._screen = screen

    def requests(self) -> Requests:
        return Requests()

    def _do_nothing(self, *args: Any) -> None:
        """Nothing is restored or saved; there is no watchdog and no logger of images."""

    restore = fill = reserve = save = wait_for_write = keep = images = phase = finish = _do_nothing

    def log(self, record: dict[str, Any]) -> None:
        self._screen.show([{"time": time.time(), **record}])

    def profile(self) -> tuple[Path, str]:
        path = Path.cwd() / "debug.pt.trace.json.gz"
        return path, str(path)

    def memory(self) -> tuple[Path, str]:
        path = Path.cwd() / "debug.memory.pickle"
        return path, str(path)
