"""Commands that read a run's storage in the cluster: in the head's pod, else in a short-lived reader pod."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import BinaryIO

from clustertrain.errors import EXIT_STORAGE, JobError
from clustertrain.job.model import Job
from clustertrain.launchers.kubernetes.cluster.kubectl import Kubectl
from clustertrain.launchers.kubernetes.observed.pod_problems import name_of
from clustertrain.launchers.kubernetes.observed.reader_pod import read_by_pod, waiting_pod
from clustertrain.launchers.kubernetes.observed.view import (
    CLI,
    error_from_pod,
    observe_run,
)
from clustertrain.launchers.kubernetes.render.paths import JOB_FILE, in_pods
from clustertrain.launchers.kubernetes.render.pods import HEAD_CONTAINER, READER_CONTAINER
from clustertrain.launchers.kubernetes.section import Kubernetes

_READ_S = 600.0  # `ckpt verify` and `ckpt export` read every byte
_COMMANDS = ("ckpt ls", "ckpt verify", "data ls", "data verify")


def lines_of(job: Job, command: str, options: Sequence[str]) -> Iterator[str]:
    """The output lines of `clustertrain COMMAND JOBFILE OPTIONS`, run in the cluster.

    Raises:
        JobError: the command writes files.
        ClusterTrainError: the command failed, or the cluster did not run it.
    """
    if command not in _COMMANDS:
        where = in_pods(job).storage
        raise JobError(
            f"`{command}` writes files, and the storage of {job.name} is in the cluster: {where.uri}.\n"
            "Run it on a machine or in a pod that can write to that storage."
        )
    kubectl = Kubectl.of(job.section(Kubernetes))
    observed = observe_run(job, kubectl, [])
    arguments = [*command.split(), JOB_FILE, *options]
    if observed.head is not None:
        done = kubectl.exec(name_of(observed.head), HEAD_CONTAINER, *CLI, *arguments, timeout_s=_READ_S)
        yield from done.stdout.splitlines()
        if done.code:
            raise error_from_pod(done.code, done.stderr)
        return
    printed, error, rest = read_by_pod(job, kubectl, arguments).partition("error: ")
    yield from printed.splitlines()
    if error:
        raise error_from_pod(EXIT_STORAGE, error + rest)


def download(job: Job, command: str, options: Sequence[str], to: BinaryIO) -> None:
    """Write the standard output of `clustertrain COMMAND JOBFILE OPTIONS`, run in the cluster, to a file.

    Raises: as `lines_of`.
    """
    kubectl = Kubectl.of(job.section(Kubernetes))
    observed = observe_run(job, kubectl, [])
    argv = [*CLI, *command.split(), JOB_FILE, *options]
    if observed.head is not None:
        done = kubectl.exec(name_of(observed.head), HEAD_CONTAINER, *argv, timeout_s=_READ_S, stdout=to)
    else:
        with waiting_pod(job, kubectl, int(_READ_S)) as pod:
            done = kubectl.exec(pod, READER_CONTAINER, *argv, timeout_s=_READ_S, stdout=to)
    if done.code:
        raise error_from_pod(done.code, done.stderr)
