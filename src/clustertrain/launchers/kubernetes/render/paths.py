"""Paths in the pods for the paths of the submitting machine in a job file.

code                    packed into a ConfigMap, unpacked in each pod; or kubernetes.code_in_image
storage, a path         on a volume; any other path becomes a folder of the same name on the first volume
data, a path            below the code, and there in the pods as well; or on a volume
anything with ://       unchanged
"""

from __future__ import annotations

from dataclasses import dataclass
from os.path import normpath
from pathlib import PurePosixPath

from clustertrain.errors import JobError
from clustertrain.job.code_folders import places
from clustertrain.job.model import Job
from clustertrain.launchers.kubernetes.keys.pod_sections import KIT_FOLDER, Volume
from clustertrain.launchers.kubernetes.section import Kubernetes
from clustertrain.node.units import shortened
from clustertrain.storage import local_path

JOB_FILE = f"{KIT_FOLDER}/job/job.yaml"
PACKED_CODE = f"{KIT_FOLDER}/job/code.tar.gz"
WRITABLE = f"{KIT_FOLDER}/work"
CODE = f"{WRITABLE}/code"
LEAVE_FILE = "/tmp/clustertrain-leave"
"""It ends the head's pod that stays for kubernetes.ttl after the run's end."""
_DEFAULT_VOLUME = Volume(mount="/mnt/clustertrain", claim="clustertrain")


@dataclass(frozen=True)
class PodJob:
    """A job with what its objects are rendered from, converted once.

    Attributes:
        job: as the pods read it.
        packed: the job whose code is packed into the ConfigMap, or None if the image has the code.
    """

    job: Job
    section: Kubernetes
    volumes: tuple[Volume, ...]
    packed: Job | None

    @classmethod
    def of(cls, job: Job) -> PodJob:
        """Convert a job.

        Raises:
            JobError: storage or a data set is at a path that no pod can read.
        """
        data = {
            name: entry.model_copy(update={"uri": _data(job, name, entry.uri)})
            for name, entry in job.data.items()
        }
        in_pods = {
            "code": _code(job),
            "storage": job.storage.model_copy(update={"uri": _storage(job)}),
            "data": data,
        }
        packed = job if job.section(Kubernetes).code_in_image is None else None
        return cls(job.model_copy(update=in_pods), job.section(Kubernetes), volumes(job), packed)


def _code(job: Job) -> tuple[str, ...]:
    """Return the folders of the code in a pod."""
    unpacked = tuple(normpath(f"{CODE}/{place}") for place in places(job.code))
    return job.section(Kubernetes).code_in_image or unpacked


def volumes(job: Job) -> tuple[Volume, ...]:
    """Return the volumes of the job file; without any, the default volume, unless storage is on S3."""
    if (own := job.section(Kubernetes).volumes) is not None:
        return own
    return () if job.storage.location.is_s3 else (_DEFAULT_VOLUME,)


def _storage(job: Job) -> str:
    uri = job.storage.uri
    if job.storage.location.is_s3:
        return uri
    own = _volume_of(job, uri)
    first = next((each for each in ([own] if own else volumes(job)) if _can_hold(each)), None)
    if first is None:
        raise JobError(
            f"storage: {shortened(uri)} is on no writable volume, and other files of a pod are deleted with "
            "it.\n"
            "Name a writable volume under kubernetes.volumes, or set storage to S3: s3://bucket/prefix."
        )
    return uri if own else f"{first.mount}/{PurePosixPath(uri).name or 'runs'}"


def _can_hold(volume: Volume) -> bool:
    return not volume.read_only and (volume.claim is not None or volume.host_path is not None)


def _data(job: Job, name: str, uri: str) -> str:
    if "://" in uri and not uri.lower().startswith("file://"):
        return uri
    path = PurePosixPath(str(local_path(uri, what="data set")))
    if _volume_of(job, str(path)):
        return str(path)
    for folder, there in zip(job.code, _code(job), strict=False):
        if path.is_relative_to(folder):
            return f"{there}/{path.relative_to(folder)}"
    mounts = ", ".join(volume.mount for volume in volumes(job)) or "none"
    raise JobError(
        f"data.{name}.uri: {shortened(str(path))} is a path on this machine, which no pod can read.\n"
        f"Put it below `code`, on a volume ({mounts}), or name it by https:// or s3://."
    )


def _volume_of(job: Job, path: str) -> Volume | None:
    """Return the volume of a path: of several, the one that is mounted inside the others."""
    found = [volume for volume in volumes(job) if PurePosixPath(path).is_relative_to(volume.mount)]
    return max(found, key=lambda volume: len(volume.mount), default=None)
