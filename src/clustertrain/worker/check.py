"""The check of a job's code, in one process and in seconds: import, args, and a rehearsal of a task.

supervise/check_process.py starts it for `check`, for `submit`, and for `run` with --takeover or --fresh. It
calls the code as a worker does, with one rank and without a process group.
"""

from __future__ import annotations

import os
import re
import resource
import sys
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from clustertrain.errors import EXIT_FAILED, ClusterTrainError
from clustertrain.job.file import parse_job
from clustertrain.job.model import Job
from clustertrain.node.limits import read_limits
from clustertrain.run_files.command_line import UNKNOWN
from clustertrain.run_files.folder.run_dir import JOB_YAML
from clustertrain.supervise.check_process import CheckFolder, CheckReport, CheckRequest
from clustertrain.worker.code.user_code import (
    ImportRefused,
    check_function,
    check_task,
    enter_code,
    make_task,
    place_of,
)
from clustertrain.worker.machine.gc_tuning import collect_rarely
from clustertrain.worker.machine.local_data import data_at_hand
from clustertrain.worker.single_rank_group import device_of, rank_zero

if TYPE_CHECKING:
    from clustertrain.training.task import Task

_LEAST_MEMORY_BYTES = 2 << 30
_NAMES_A_DEVICE = re.compile(r"cuda|nvidia|gpu|cpu|triton|\bhip\b", re.IGNORECASE)
REHEARSAL = "rehearsal"


def main(folder_text: str) -> None:
    """Run the check that the folder requests, and write its report there."""
    collect_rarely()
    folder = CheckFolder(Path(folder_text))
    request = folder.request.read()
    if request is None:
        raise ClusterTrainError(f"{folder_text} has no request. This is a bug: please report it.")
    check = _Check(folder, request, parse_job(request.job_yaml, JOB_YAML))
    try:
        check.run()
        check.report(ended=True)
    except (Exception, SystemExit) as error:  # noqa: BLE001  every error of the user's code is reported
        check.report(
            ended=True,
            error=check.text_of(error),
            exit_code=error.exit_code if isinstance(error, ClusterTrainError) else EXIT_FAILED,
            of_this_machine=check.is_of_this_machine(error),
        )


@dataclass
class _Check:
    folder: CheckFolder
    request: CheckRequest
    job: Job
    phase: str = "start"
    notes: list[str] = field(default_factory=list)

    def report(self, **fields: object) -> None:
        self.folder.report.write(CheckReport(self.phase, notes=self.notes, **fields))  # type: ignore[arg-type]

    def enter(self, phase: str) -> None:
        self.phase = phase
        self.report()

    def run(self) -> None:
        """Import the code, and for a task make it and rehearse its training.

        Raises:
            ClusterTrainError: what is wrong.
        """
        job = self.job
        if self.request.elsewhere:
            _limit_memory()
        self.enter("import of the code")
        sys.dont_write_bytecode = True  # the check leaves nothing in the folder of the code
        enter_code(job)
        if job.function:
            check_function(job.function)
            return
        cls = check_task(job.task or "")
        self.enter("creation of the task")
        task = make_task(cls, job)
        if job.train is None or not job.train.sanity:
            return
        data, missing = data_at_hand(job, self.folder.scratch)
        if missing:
            self.notes.append(
                f"the rehearsal was left out, because data is not staged here: {', '.join(missing)}. "
                f"`{UNKNOWN.of('data fetch')}` stages it."
            )
            return
        self.enter(REHEARSAL)
        _rehearse(job, task, data, self.request, self.notes.append)

    def text_of(self, error: BaseException) -> str:
        """Return the message of an error; that of clustertrain has its place."""
        if isinstance(error, ClusterTrainError):
            return f"{REHEARSAL}: {error}" if self.phase == REHEARSAL else str(error)
        return f"The {self.phase} failed: {type(error).__name__}: {error}\nAt {place_of(error)}."

    def is_of_this_machine(self, error: BaseException) -> bool:
        """Return whether the error may not occur on the machines of a job that runs elsewhere.

        Another package, file or device may be there.
        """
        cause = error.__cause__ or error
        if isinstance(error, ImportRefused):
            return not isinstance(cause, SyntaxError | NameError)
        if isinstance(cause, OSError | MemoryError) or "allocate memory" in str(cause):
            return True
        return self._lacks_gpu and cause is not error and bool(_NAMES_A_DEVICE.search(str(cause)))

    @property
    def _lacks_gpu(self) -> bool:
        return self.job.resources.gpus_per_worker > 0 and device_of(self.job).type == "cpu"


def _rehearse(
    job: Job, task: Task, data: dict[str, Path], request: CheckRequest, warn: Callable[[str], None]
) -> None:
    from clustertrain.training.rehearsal import rehearse
    from clustertrain.worker.machine.gpus import check_gpus
    from clustertrain.worker.train import settings_of

    settings = settings_of(job)
    gpus = job.resources.gpus_per_worker
    if gpus and not request.elsewhere:
        check_gpus(request.world_size, gpus)
    device = device_of(job)
    if device.type == "cpu" and gpus:  # both need a GPU
        precision = "fp32" if settings.precision == "fp16" else settings.precision
        settings = replace(settings, precision=precision, sync_batchnorm=False)
    with rank_zero(device):
        rehearse(task, settings, device, data, world_size=request.world_size, warn=warn)


def _limit_memory() -> None:
    """Limit this process to half of the available memory.

    A login node is shared, and a model for many GPUs may not fit.
    """
    available_bytes = read_limits().available_bytes
    if available_bytes is not None:
        most_bytes = max(_LEAST_MEMORY_BYTES, available_bytes // 2)
        _, hard_bytes = resource.getrlimit(resource.RLIMIT_DATA)
        if hard_bytes != resource.RLIM_INFINITY:
            most_bytes = min(most_bytes, hard_bytes)
        resource.setrlimit(resource.RLIMIT_DATA, (most_bytes, hard_bytes))


if __name__ == "__main__":
    main(*sys.argv[1:])
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # threads and processes of the user's code end here
