"""Runs commands of clustertrain where the storage of a run is: in its head's pod, else in a reader pod.

A reader pod is always deleted. The job file is in the pod itself, so nothing of the run needs to stay in the
cluster for it.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import BinaryIO

from clustertrain.errors import ClusterError, ClusterTrainError, error_of_code
from clustertrain.job.model import Job
from clustertrain.launchers.kubernetes.cluster.kubectl import ENDED_IN_POD, Kubectl, words_of
from clustertrain.launchers.kubernetes.observed.pods import Object, has_started, name_of, troubles
from clustertrain.launchers.kubernetes.render.pods import HEAD_CONTAINER, READER_CONTAINER, reader_pod
from clustertrain.launchers.shell import CommandFailed
from clustertrain.launchers.target import NotThere
from clustertrain.node.waiting import wait_until

READ_S = 3600  # `ckpt export` may send 100 GB, and `ckpt verify` reads every byte
_START_LIMIT_S = 90.0
_POLL_S = 0.7
_CLI = ("python", "-m", "clustertrain.cli")
_KILLED = (137, 143)  # exit codes of a command that was killed with its pod


@dataclass(frozen=True)
class RunStorage:
    """The storage of a run. `head`: its head's pod; None if it does not run."""

    job: Job
    head: Object | None

    def run(self, *command: str, timeout_s: float = READ_S, to: BinaryIO | None = None) -> str:
        """Run a command that names the job file as JOB_FILE, and return its output.

        With `to`, a file, the output goes there.

        Raises:
            NotThere: the connection broke.
            ClusterTrainError: the command failed, with the class for its exit code.
            ClusterError: no pod ran it.
        """
        with self._in_pod() as cli:
            return Kubectl.of(self.job)(*cli, *command, timeout_s=timeout_s, stdout=to).stdout

    def lines(self, *command: str) -> Iterator[str]:
        """Yield the lines of a command, while it runs; raise as `run`, after the last line."""
        with self._in_pod() as cli:
            yield from Kubectl.of(self.job).lines(*cli, *command)

    @contextmanager
    def _in_pod(self) -> Iterator[tuple[str, ...]]:
        """Yield the arguments of kubectl that run clustertrain in a pod.

        The block raises as `run`.
        """
        head = self.head
        container = READER_CONTAINER if head is None else HEAD_CONTAINER
        with _reader(self.job) if head is None else nullcontext(name_of(head)) as pod:
            try:
                yield "exec", pod, f"--container={container}", "--", *_CLI
            except CommandFailed as error:
                if error.code is None or not ENDED_IN_POD.search(error.stderr):
                    raise NotThere(words_of(error)) from None
                if error.code in _KILLED:
                    raise NotThere("the head's pod is gone") from None
                raise error_from_pod(error.code, error.stderr) from None


def error_from_pod(code: int, errors: str) -> ClusterTrainError:
    """Return the error of a clustertrain command that failed in a pod, with the class for its exit code."""
    message = errors.partition("error: ")[2] or errors
    text = ENDED_IN_POD.sub("", message).strip() or f"the command in the pod ended with code {code}"
    return error_of_code(code, text)


@contextmanager
def _reader(job: Job) -> Iterator[str]:
    """Start a short-lived pod that runs until the block ends, at most for READ_S, and yield its name.

    Raises:
        ClusterError: it was not created, or did not start in time. The message has the reason.
    """
    kubectl, name = Kubectl.of(job), f"{job.name[:40]}-read-{secrets.token_hex(3)}"
    kubectl("create", "--filename=-", input=json.dumps(reader_pod(job, name, READ_S)))
    try:
        _wait_for_start(kubectl, name)
        yield name
    finally:
        kubectl("delete", "pod", name, "--ignore-not-found", "--wait=false", "--grace-period=1")


def _wait_for_start(kubectl: Kubectl, name: str) -> None:
    def is_up() -> bool:
        pod = kubectl.find("pod", name)
        return pod is not None and has_started(pod)

    if not wait_until(is_up, _START_LIMIT_S, _POLL_S):
        pod, late = kubectl.find("pod", name), f"the reader pod did not start within {_START_LIMIT_S:.0f} s"
        said = troubles([pod] if pod else [], kubectl.list("events"), missing=False)
        raise ClusterError(": ".join([late, *said]))
