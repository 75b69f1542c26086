"""What a process has from its start, and no message can change later.

A run can use a process that was started for another one only if both have the same.
"""

from __future__ import annotations

import hashlib
import os
import re
import resource
import sys
import sysconfig
from pathlib import Path

from clustertrain.job.model import Job
from clustertrain.job.references import with_values
from clustertrain.job.start_environment import hash_seed
from clustertrain.node.limits import read_limits
from clustertrain.version import __version__

_LIMITS = 16  # of Linux: RLIMIT_CPU to RLIMIT_RTTIME
# Of a terminal or a login, which differ between two windows, and in which no training reads anything.
_OF_TERMINAL = re.compile(
    r"_|SHLVL|PWD|OLDPWD|COLUMNS|LINES|(TERM|SSH|TMUX|VSCODE|XDG_SESSION|WEZTERM|KITTY|GNOME_TERMINAL)(_.*)?"
    r"|COLORTERM|STY|WINDOW|WINDOWID|GPG_TTY|PYTEST_CURRENT_TEST"
)


def start_of(job: Job, world_size: int) -> dict[str, str]:
    """What the processes of a run of this job have from their start if this process starts them.

    Each value is a digest, because variables may hold secrets.
    """
    packages, limits = Path(sysconfig.get_path("purelib")), read_limits()
    resources = job.resources
    found: dict[str, object] = {
        "the version of clustertrain": __version__,
        "the Python": sys.executable,
        "the installed packages": packages.stat().st_mtime_ns,
        "the working directory": Path.cwd(),
        "the umask": _umask(),
        "the niceness": os.nice(0),
        "the processors": sorted(os.sched_getaffinity(0)),
        "the limits (ulimit)": [resource.getrlimit(number) for number in range(_LIMITS)],
        "the limits of memory": [group.limit_bytes for group in limits.cgroups],
        "code": job.code,
        "scratch": job.scratch,
        "the kind of entry point": job.is_script,
        "train.seed": hash_seed(job),
        "resources.workers": world_size,
        "resources.cpus_per_worker": resources.cpus_per_worker,
        "resources.gpus_per_worker": resources.gpus_per_worker,
    }
    found |= {f"env.{name}": value for name, value in with_values(job.env, os.environ).items()}
    found |= {name: value for name, value in os.environ.items() if not _OF_TERMINAL.fullmatch(name)}
    return {name: _digest(str(value)) for name, value in found.items()}


def _digest(value: str) -> str:
    return hashlib.sha256(value.encode(errors="surrogateescape")).hexdigest()[:16]


def _umask() -> int:
    umask = os.umask(0o077)  # it can only be read by a change
    os.umask(umask)
    return umask
