"""The section `gridengine` of a job file. Each value is one word, because it ends up in a line of options."""

from __future__ import annotations

import re
from typing import Annotated, ClassVar

from pydantic import AfterValidator, StrictBool

from clustertrain.job.launcher_plugins import LauncherSection
from clustertrain.job.values import Path, Seconds


def _word(text: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9_./@+-]+", text):
        raise ValueError("must be one word of letters, digits and _ . / @ + -")
    return text


Word = Annotated[str, AfterValidator(_word)]


class GridEngine(LauncherSection):
    """Settings for Grid Engine. Workers, CPUs, GPUs and memory are in `resources`."""

    text_keys: ClassVar[frozenset[str]] = frozenset(("queue", "project", "parallel_environment"))

    queue: Word | None = None
    """The queue; without it any that has the resources."""
    project: Word | None = None
    """The project that the job is accounted to."""
    parallel_environment: Word = "smp"
    """The parallel environment of a job with several slots, all of them on one host."""
    gpu_complex: Word = "gpu"
    """The consumable that counts GPUs; it has to be one for each job (JOB), not for each slot."""
    memory_complex: Word | None = None
    """The consumable that limits the memory of each slot, such as h_vmem."""
    time_limit: Seconds | None = None
    """The time after which Grid Engine ends the job; a save comes before."""
    resubmit: StrictBool = True
    """Whether the job starts again at its time limit, in place of a suspension or after the loss of its host,
    and continues."""
    python: Path | None = None
    """The Python on the hosts. Default: that of the command which submits."""
    output: Word = "."
    """The existing folder for the output of the job."""
