"""The objects of a run on Kubernetes, as dicts. Pure: the same job gives the same objects.

ConfigMap      the job as the pods read it, and its packed code; immutable, with a hash in its name
claims         those with a size in the job file
NetworkPolicy  see network_policy.py
RayJob         head, workers, submitter; the job's patches are applied last
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import yaml

from clustertrain.errors import JobError, StorageError
from clustertrain.job.file import dump_job
from clustertrain.job.model import Job
from clustertrain.launchers.kubernetes.pod_sections import Volume
from clustertrain.launchers.kubernetes.render.amounts import with_nodes
from clustertrain.launchers.kubernetes.render.network_policy import network_policy
from clustertrain.launchers.kubernetes.render.patches import patched
from clustertrain.launchers.kubernetes.render.paths import PodJob
from clustertrain.launchers.kubernetes.render.pods import (
    RUN_LABEL,
    Manifest,
    head_parameters,
    head_template,
    of_the_site,
    pods,
    run_labels,
    submitter_template,
    worker_parameters,
    worker_template,
)
from clustertrain.launchers.kubernetes.section import Kubernetes
from clustertrain.node.units import size_value
from clustertrain.node.version import RAY_VERSION, __version__
from clustertrain.run_files.admission import Options
from clustertrain.run_files.records.provenance import CodeSource
from clustertrain.run_files.snapshot import compressed, pack
from clustertrain.storage.record_file import encoded

MOST_CODE_BYTES = 900_000  # a Kubernetes object has at most 1 MiB in all
_MOST_SOURCE_BYTES = 100_000
_SUBMITTER_RETRIES = 8
_STORAGE, _VERSION = "clustertrain.io/storage", "clustertrain.io/version"


def manifests(job: Job, options: Options = Options()) -> list[Manifest]:  # noqa: B008  it is frozen
    """Return all objects of a run, in the order in which they are applied: the RayJob last.

    Args:
        job: as loaded, merged with the site file.

    Raises:
        JobError: the job has no image, names a path that no pod can read, or lacks the number of nodes for
            its workers with GPUs.
        StorageError: the packed code is too large for a ConfigMap, or cannot be read.
    """
    if job.image is None:
        raise JobError(
            "image is missing, and the pods need one.\n"
            "Add image: …, clustertrain's (`make image`) or one built from it: see docs/guides/images.md."
        )
    resources = with_nodes(job.resources, job.section(Kubernetes))
    run = PodJob.of(job.model_copy(update={"resources": resources}))
    config = job_config_map(run, options.source)
    objects = [config, *(_claim(run, volume) for volume in run.volumes if volume.size_bytes is not None)]
    if run.section.network_policies:
        objects.append(network_policy(run))
    objects.append(ray_job(run, config["metadata"]["name"], options))
    for metadata in (each["metadata"] for each in objects):
        if run.section.namespace is not None:
            metadata["namespace"] = run.section.namespace
        metadata.update(of_the_site(run.section, metadata))
    return objects


def to_json(objects: Sequence[Manifest]) -> str:
    """Return the objects for kubectl, one on each line.

    JSON has one meaning for each value; YAML 1.1 and Go's YAML differ. The text is not a List: kubectl's
    messages on items of a List leave out the kind of an error.
    """
    return "\n".join(map(json.dumps, objects))


def to_yaml(objects: Sequence[Manifest]) -> str:
    """Return the objects as YAML, for people, git and `kubectl apply -f -`.

    A mapping or list that fits is on one line: `- {name: HOME, value: /tmp}`.
    """
    text: str = yaml.dump_all(objects, Dumper=_Dumper, sort_keys=False, width=1000, explicit_start=True)
    return text


class _Dumper(yaml.SafeDumper):
    """Writes text of several lines as a block, and never a YAML alias.

    PyYAML leaves text without quotes that Go's YAML reads as a number or a boolean, such as 1e9, 089, 0o7 and
    y. Only words that no YAML reads as something else stay without quotes.
    """

    def ignore_aliases(self, data: Any) -> bool:
        return True

    def represent_mapping(self, tag: str, mapping: Any, flow_style: bool | None = None) -> yaml.MappingNode:
        return super().represent_mapping(tag, mapping, _fits(mapping))

    def represent_sequence(
        self, tag: str, sequence: Any, flow_style: bool | None = None
    ) -> yaml.SequenceNode:
        return super().represent_sequence(tag, sequence, _fits(sequence))


def _fits(value: Any) -> bool:
    """Return whether a mapping or list is written on one line."""
    text = json.dumps(value)
    return len(text) <= _LINE and "\\n" not in text


_LINE = 160  # as JSON, with its quotes
_WORD = re.compile(r"[A-Za-z/][^\n]*")
_OF_YAML = {"y", "n", "yes", "no", "on", "off", "true", "false", "null"}


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    is_word = _WORD.fullmatch(text) and text.lower() not in _OF_YAML
    style = "|" if "\n" in text else None if is_word else "'"
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _text)


def job_config_map(run: PodJob, source: CodeSource | None = None) -> Manifest:
    """Return the ConfigMap with the job, its code, and the state of the code's repositories.

    Raises:
        StorageError: the packed code is too large for a ConfigMap, or cannot be read.
    """
    job_yaml = dump_job(run.job, defaults=False)  # the pods have the same version, so the same defaults
    content: Manifest = {"data": {"job.yaml": job_yaml}}
    hashed = hashlib.sha256(job_yaml.encode())
    if source is not None:
        content["data"]["source.json"] = _source_json(source)
        hashed.update(content["data"]["source.json"].encode())
    if run.packed is not None:
        archive = pack(run.packed)
        packed = compressed(archive)
        if len(packed) > MOST_CODE_BYTES:
            raise StorageError(
                f"code: {' and '.join(run.packed.folders)} has {len(packed):,} bytes when packed, "
                f"and a ConfigMap has room for {MOST_CODE_BYTES:,}.\n"
                "Name data sets by https:// or s3://, or put the code into the image: docs/guides/images.md."
            )
        hashed.update(archive)  # its path is not part of the name
        content["binaryData"] = {"code.tar.gz": base64.b64encode(packed).decode()}
    name = f"{run.job.name}-{hashed.hexdigest()[:10]}"
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": name, "labels": run_labels(run)},
        "immutable": True,
        **content,
    }


def _source_json(source: CodeSource) -> str:
    """Return the record, without the files and then the diffs if the ConfigMap has no room for them."""
    for each in (source, CodeSource(source.repositories)):
        if len(text := encoded(each)) <= _MOST_SOURCE_BYTES:
            return text.decode()
    left_out = "the diff is left out: a ConfigMap has no room for it"
    short = (
        replace(each, diff="", note=left_out if each.diff else each.note) for each in source.repositories
    )
    return encoded(CodeSource(tuple(short))).decode()


def ray_job(run: PodJob, config: str, options: Options) -> Manifest:
    """Return the RayJob; `config` is the name of its ConfigMap."""
    section = run.section
    flags = [flag_of(option) for option in START_OPTIONS if getattr(options, option)]
    entrypoint = " ".join(["python -m clustertrain.launchers.kubernetes.in_pod.entrypoint", *flags])
    spec: Manifest = {
        "entrypoint": entrypoint,
        "submissionMode": "K8sJobMode",
        "backoffLimit": 0,  # it would count every failure, also a permanent one
        "preRunningDeadlineSeconds": round(section.start_deadline_s),
        "shutdownAfterJobFinishes": True,
        "ttlSecondsAfterFinished": 0,  # the head's pod stays for kubernetes.ttl: in_pod/pre_stop.py
        "rayClusterSpec": _ray_cluster(run, config),
        "submitterConfig": {"backoffLimit": _SUBMITTER_RETRIES},
        "submitterPodTemplate": submitter_template(run, entrypoint),
    }
    if section.deadline_s is not None:
        spec["activeDeadlineSeconds"] = round(section.deadline_s)
    metadata = {
        "name": run.job.name,
        "labels": run_labels(run) | _queue_labels(run),
        "annotations": {_STORAGE: run.job.storage.uri, _VERSION: __version__},
    }
    rayjob = {"apiVersion": "ray.io/v1", "kind": "RayJob", "metadata": metadata, "spec": spec}
    return patched(rayjob, section.patches)


# Options of a start, by which the entrypoint is rendered and reads its arguments: in_pod/entrypoint.py.
START_OPTIONS = ("fresh", "takeover", "accept_changes")


def flag_of(option: str) -> str:
    return f"--{option.replace('_', '-')}"


def _ray_cluster(run: PodJob, config: str) -> Manifest:
    least, most = pods(run)
    return {
        "rayVersion": RAY_VERSION,
        "authOptions": {"mode": "token"},
        "headGroupSpec": {"rayStartParams": head_parameters(), "template": head_template(run, config)},
        "workerGroupSpecs": [
            {
                "groupName": "workers",
                "replicas": most,
                "minReplicas": least,
                "maxReplicas": most,
                "rayStartParams": worker_parameters(run),
                "template": worker_template(run, config),
            }
        ],
    }


def _queue_labels(run: PodJob) -> dict[str, str]:
    queue = run.section.queue
    if queue is None:
        return {}
    if queue.kind == "kueue":
        found = {
            "kueue.x-k8s.io/queue-name": queue.name,
            "kueue.x-k8s.io/priority-class": queue.priority_class,
        }
    else:
        found = {"volcano.sh/queue-name": queue.name, "ray.io/priority-class-name": queue.priority_class}
    return {key: value for key, value in found.items() if value is not None}


def _claim(run: PodJob, volume: Volume) -> Manifest:
    size = size_value(volume.size_bytes or 0)
    spec: Manifest = {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": size}}}
    if volume.storage_class is not None:
        spec["storageClassName"] = volume.storage_class
    common = {key: value for key, value in run_labels(run).items() if key != RUN_LABEL}  # it outlives the run
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": volume.claim, "labels": common},
        "spec": spec,
    }
