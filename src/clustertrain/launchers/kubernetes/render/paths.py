"""Paths in the pods for the paths of the submitting machine in a job file.

code                    packed into a ConfigMap, unpacked in each pod; or kubernetes.code_in_image
storage, a path         on a volume; any other path becomes a folder of the same name on the first volume
data, a path            below the code, and there in the pods as well; or on a volume
anything with ://       unchanged
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from os.path import normpath
from pathlib import PurePosixPath

from clustertrain.errors import JobError
from clustertrain.job.code_folders import places
from clustertrain.job.model import Job
from clustertrain.launchers.kubernetes.pod_sections import OWN_FOLDER, Volume
from clustertrain.launchers.kubernetes.section import Kubernetes
from clustertrain.node.units import shortened
from clustertrain.run_files.snapshot import UserCode
from clustertrain.storage import local_path

JOB_FILE = f"{OWN_FOLDER}/job/job.yaml"
PACKED_CODE = f"{OWN_FOLDER}/job/code.tar.gz"
WRITABLE = f"{OWN_FOLDER}/work"
CODE = f"{WRITABLE}/code"
LEAVE_FILE = "/tmp/clustertrain-leave"
"""It ends the head's pod that stays for kubernetes.ttl after the run's end."""
_MARGIN_S = 30  # after the last save: to write the result and to end all processes
_DEFAULT_VOLUME = Volume(mount="/mnt/clustertrain", claim="clustertrain")


@dataclass(frozen=True)
class PodJob:
    """A job with what its objects are rendered from, converted once.

    Attributes:
        job: as the pods read it.
        packed: the code that is packed into the ConfigMap, or None if the image has it.
    """

    job: Job
    section: Kubernetes
    volumes: tuple[Volume, ...]
    packed: UserCode | None

    @classmethod
    def of(cls, job: Job) -> PodJob:
        """Convert a job.

        Raises:
            JobError: storage or a data set is at a path that no pod can read.
        """
        section, storage = job.section(Kubernetes), job.storage.location
        volumes = section.volumes
        if volumes is None:
            volumes = () if storage.is_s3 else (_DEFAULT_VOLUME,)
        unpacked = tuple(normpath(f"{CODE}/{place}") for place in places(job.code))
        code = section.code_in_image or unpacked
        there = dict(zip(job.code, code, strict=False))
        data = {
            name: entry.model_copy(update={"uri": _data(name, entry.uri, there, volumes)})
            for name, entry in job.data.items()
        }
        uri = storage.uri if storage.is_s3 else _storage(storage.uri, volumes)
        in_pods = {"code": code, "storage": job.storage.model_copy(update={"uri": uri}), "data": data}
        # Pods cannot read data sets below the code folder of this machine, so these are packed as well.
        packed = UserCode(job.code, {}, storage) if section.code_in_image is None else None
        return cls(job.model_copy(update=in_pods), section, volumes, packed)

    @property
    def grace_s(self) -> int:
        """The termination grace period of a pod in seconds: for the last save, and a margin."""
        return math.ceil(self.job.failures.grace_s) + _MARGIN_S


def _storage(path: str, volumes: Sequence[Volume]) -> str:
    own = _volume_of(path, volumes)
    candidates = [own] if own else volumes
    can_hold = (each for each in candidates if not each.read_only and (each.claim or each.host_path))
    if (first := next(can_hold, None)) is None:
        raise JobError(
            f"storage: {shortened(path)} is on no writable volume, and other files of a pod are deleted with "
            "it.\n"
            "Name a writable volume under kubernetes.volumes, or set storage to S3: s3://bucket/prefix."
        )
    return path if own else f"{first.mount}/{PurePosixPath(path).name or 'runs'}"


def _data(name: str, uri: str, code: Mapping[str, str], volumes: Sequence[Volume]) -> str:
    """Return the URI of a data set in a pod. `code`: the folders of the code there, by those here."""
    if "://" in uri and not uri.lower().startswith("file://"):
        return uri
    path = PurePosixPath(str(local_path(uri, what="data set")))
    if _volume_of(str(path), volumes):
        return str(path)
    for folder, there in code.items():
        if path.is_relative_to(folder):
            return f"{there}/{path.relative_to(folder)}"
    mounts = ", ".join(volume.mount for volume in volumes) or "none"
    raise JobError(
        f"data.{name}.uri: {shortened(str(path))} is a path on this machine, which no pod can read.\n"
        f"Put it below `code`, on a volume ({mounts}), or name it by https:// or s3://."
    )


def _volume_of(path: str, volumes: Sequence[Volume]) -> Volume | None:
    """Return the volume of a path: of several, the one that is mounted inside the others."""
    found = [volume for volume in volumes if PurePosixPath(path).is_relative_to(volume.mount)]
    return max(found, key=lambda volume: len(volume.mount), default=None)
