"""What this user read last of a run's storage, for the time in which no pod of the run can read it.

    $XDG_STATE_HOME/clustertrain/runs/<name>-<digest>.last      the RayJob's uid, and the status as JSON

The file's time is that of the reading. It only informs: nothing is decided by it.
"""

from __future__ import annotations

import hashlib
import json
from contextlib import suppress
from dataclasses import asdict, dataclass

from clustertrain.errors import StorageError
from clustertrain.job.model import Job
from clustertrain.launchers.kubernetes.observed.pod_problems import Object
from clustertrain.launchers.kubernetes.section import Kubernetes
from clustertrain.node.user_folders import known_runs_folder
from clustertrain.observe.status_json import StoredStatus
from clustertrain.regular_file import read_file
from clustertrain.storage import open_store


@dataclass(frozen=True)
class LastKnown:
    """The status of a run at a moment that is over. `time`: in seconds since 1970."""

    stored: StoredStatus
    time: float


def remember(job: Job, rayjob: Object, stored: StoredStatus) -> None:
    """Write the file, unless the folder cannot be written: then nothing is known later."""
    text = f"{rayjob['metadata']['uid']}\n{json.dumps(asdict(stored))}"
    with suppress(OSError, StorageError):
        known_runs_folder().mkdir(mode=0o700, parents=True, exist_ok=True)
        open_store(str(known_runs_folder())).write_atomic(_file_name(job), text.encode())


def last_known(job: Job, rayjob: Object) -> LastKnown | None:
    """The last reading, or None if there is none of this RayJob."""
    path = known_runs_folder() / _file_name(job)
    with suppress(OSError, ValueError, KeyError, TypeError):  # it is missing, or damaged
        uid, _, printed = read_file(path).decode().partition("\n")
        stored = StoredStatus.parsed(printed) if uid == rayjob["metadata"]["uid"] else None
        return None if stored is None else LastKnown(stored, path.stat().st_mtime)
    return None


def _file_name(job: Job) -> str:
    identity = f"{job.section(Kubernetes).context}\n{job.section(Kubernetes).namespace}\n{job.name}"
    return f"{job.name[:40]}-{hashlib.sha256(identity.encode()).hexdigest()[:16]}.last"
