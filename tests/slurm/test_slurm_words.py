"""The texts and words by which the kit recognizes what SLURM says are in SLURM's own programs."""

import shutil
from pathlib import Path

import pytest

from clusters.machine import search_path
from clustertrain.launchers.slurm.preflight import _QUEUED
from clustertrain.launchers.slurm.queue import NATIVE_STATES

ELSEWHERE = (
    # mailbox.py
    "Configuration data as of %s",
    "Exited with exit code %d",
    "Node failure on %s",
    "failed on node %s: ",
    "execve(): %s: ",
)


@pytest.fixture(scope="module")
def programs(_possible) -> bytes:
    """The bytes of SLURM's controller, its commands and its library."""
    commands = ("slurmctld", "slurmstepd", "sbatch", "squeue", "srun", "scontrol")
    paths = [shutil.which(name, path=search_path()) for name in commands]
    libraries = [*Path("/usr/lib").rglob("libslurmfull.so"), *Path("/usr/lib").rglob("launch_slurm.so")]
    assert libraries, "another place than that of Debian's package"
    return b"".join(Path(path).read_bytes() for path in (*paths, *libraries))


@pytest.mark.parametrize("text", [*_QUEUED, *NATIVE_STATES, *ELSEWHERE])
def test_slurms_programs_contain_the_text(programs, text):
    assert text.encode() in programs
