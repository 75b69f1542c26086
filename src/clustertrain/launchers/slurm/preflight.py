"""Checks a job before it is submitted, so that an error shows before hours in the queue.

this machine   SLURM answers, the job's files can be written, its image exists
the cluster    the time limit suffices, `sbatch --test-only` plans the job

All checks run on the machine that submits. What is visible only on the nodes is checked by the agents, before
the training starts.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Mapping
from pathlib import Path
from shlex import join, quote

from clustertrain.errors import ClusterError, JobError, StorageError
from clustertrain.job.model import Job
from clustertrain.launchers.scheduler.interface import start_text
from clustertrain.launchers.shell import CommandFailed, Done, Unanswered, run
from clustertrain.launchers.slurm.queue import slurm_time_s
from clustertrain.launchers.slurm.script import is_image_file
from clustertrain.launchers.slurm.section import Slurm
from clustertrain.node.units import duration_text
from clustertrain.storage.posix import refused

ANSWER_S = 20.0
START_S = 60.0
TEST_S = 60.0  # SLURM plans the start among all waiting jobs, which takes long on a large cluster
_QUEUED = (
    "Requested node configuration is not available",
    "Required node not available (down, drained or reserved)",
    "Requested nodes are busy",
    "Requested partition configuration not available now",
    "Requested reservation not usable now",
    "Partition in DOWN state",
    "Job can not start due to maintenance reservation.",
    "Invalid time specified",  # for a reservation that begins later
)
"""What `sbatch --test-only` prints also of jobs that sbatch takes into the queue."""


def check_controller(environ: Mapping[str, str]) -> None:
    """Check that SLURM's controller answers.

    If it is down, `scontrol ping` reports that at once, and every other command retries for 9 to 18 s.

    Args:
        environ: the environment of sbatch, see launcher.py.

    Raises:
        ClusterError: SLURM's commands are not on PATH.
        Unanswered: the controller does not answer.
    """
    pings = run(["scontrol", "ping"], environ=environ, timeout_s=ANSWER_S, check=False).stdout
    if " is DOWN" in pings and " is UP" not in pings:
        raise Unanswered(
            f"SLURM's controller does not answer: {pings.splitlines()[0]}.\n"
            "Running jobs continue without it. Try again later, or contact the cluster's administrators."
        )


def check_output(job: Job) -> None:
    """Check that the folder of the job's output can be written, by creating a file in it.

    SLURM accepts a job whose output it cannot write, and the job fails without a message.

    Raises:
        StorageError: the folder does not exist, or cannot be written.
    """
    folder = Path(job.section(Slurm).output)
    try:
        with tempfile.NamedTemporaryFile(dir=folder, prefix=".clustertrain-probe-"):
            return
    except FileNotFoundError:
        raise StorageError(
            f"slurm.output is {job.section(Slurm).output}, and {folder.absolute()} does not exist.\n"
            "SLURM does not create it, and the job would fail without a message: "
            f"mkdir -p {quote(str(folder.absolute()))}"
        ) from None
    except OSError as error:
        raise StorageError(f"slurm.output: {refused(folder.absolute(), 'written', error)}") from error


def check_image(job: Job) -> None:
    """Check that the image, if it is a file, exists on this machine.

    Raises:
        StorageError: it does not exist.
    """
    is_file = job.section(Slurm).container in ("apptainer", "pyxis") and is_image_file(job.image or "")
    if is_file and not (image := Path(job.image or "")).exists():
        raise StorageError(
            f"image is {job.image}, and {image.absolute()} does not exist.\n"
            "Build or pull it first, or use an image in a registry, such as docker://…"
        )


def check_time(job: Job, lead_s: float) -> None:
    """Check that the time limit covers the start, the lead time for the last save, and the grace time.

    Raises:
        JobError: it is shorter; the message shows the arithmetic.
    """
    limit_s, grace_s = job.section(Slurm).time_limit_s, job.failures.grace_s
    required_s = START_S + lead_s + grace_s
    if limit_s is None or limit_s >= required_s:
        return
    raise JobError(
        f"slurm.time_limit is {duration_text(limit_s)}, and the job needs {START_S:g} s to start + "
        f"{lead_s:g} s for the last save (slurm.lead_time) + {grace_s:g} s to end (failures.grace) = "
        f"{required_s:g} s.\n"
        "Set a longer slurm.time_limit, or a shorter slurm.lead_time."
    )


def test_only(script: str, environ: Mapping[str, str]) -> str | None:
    """Let SLURM check the exact script that will be submitted.

    Return when a job that has to wait would start, or what SLURM prints if it plans no start: it plans with
    the nodes that it can use now. A busy SLURM may not answer in time: then sbatch itself checks the job.

    Raises:
        ClusterError: SLURM refuses it.
    """
    argv = ["sbatch", "--test-only"]
    try:
        done = run(argv, input=script.encode(), environ=environ, timeout_s=TEST_S, check=False)
    except CommandFailed as error:
        return f"SLURM has not checked the job: {' '.join(argv)} {error.how}"
    if done.code == 0:
        planned = re.search(r" to start at (\S+)", done.stderr)
        starts = start_text((planned and slurm_time_s(planned[1])) or None)
        return f"SLURM would start the job {starts} if it came now" if starts else None
    if any(text in done.stderr for text in _QUEUED):
        return f"SLURM plans no start of the job yet. sbatch --test-only printed:\n{done.stderr.strip()}"
    raise refusal(done)


def refusal(done: Done, where_to_look: str = "") -> ClusterError:
    """Return the error for an sbatch that failed, with what it printed."""
    printed = done.stderr.strip() or "It printed nothing."
    return ClusterError(
        f"{join(done.argv)} ended with code {done.code}:\n{printed}\n{where_to_look}".rstrip()
    )
