"""Runs commands of clustertrain where the storage of a run is: in its head's pod, else in a reader pod."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import BinaryIO

from clustertrain.errors import ClusterTrainError, error_of_code
from clustertrain.job.model import Job
from clustertrain.launchers.kubernetes.cluster.kubectl import Kubectl, ended_in_pod
from clustertrain.launchers.kubernetes.observed.pod_problems import Object, name_of
from clustertrain.launchers.kubernetes.observed.reader_pod import waiting_pod
from clustertrain.launchers.kubernetes.render.pods import HEAD_CONTAINER, READER_CONTAINER
from clustertrain.launchers.shell import CommandFailed
from clustertrain.launchers.target import NotThere

READ_S = 600.0  # `ckpt verify` and `ckpt export` read every byte
_CLI = ("python", "-m", "clustertrain.cli")
_KILLED = (137, 143)  # exit codes of a command that was killed with its pod
_ENDED = re.compile(r"\n?command terminated with exit code \d+\s*$")


@dataclass(frozen=True)
class RunStorage:
    """The storage of a run. `head`: its head's pod; None if it does not run."""

    job: Job
    head: Object | None

    def run(self, *command: str, timeout_s: float = READ_S, to: BinaryIO | None = None) -> str:
        """The output of a command, which names the job file as JOB_FILE; `to`: a file for its output.

        Raises:
            NotThere: the connection broke.
            ClusterTrainError: the command failed, with the class for its exit code.
            ClusterError: no pod ran it.
        """
        with self._in_pod() as cli:
            return Kubectl.of(self.job)(*cli, *command, timeout_s=timeout_s, stdout=to).stdout

    def lines(self, *command: str) -> Iterator[str]:
        """The lines of a command, while it runs. Raises as `run`, after the last line."""
        with self._in_pod() as cli:
            yield from Kubectl.of(self.job).lines(*cli, *command)

    @contextmanager
    def _in_pod(self) -> Iterator[tuple[str, ...]]:
        """The arguments of kubectl that run clustertrain in a pod. The block raises as `run`."""
        head = self.head
        container = READER_CONTAINER if head is None else HEAD_CONTAINER
        with waiting_pod(self.job, int(READ_S)) if head is None else nullcontext(name_of(head)) as pod:
            try:
                yield "exec", pod, f"--container={container}", "--", *_CLI
            except CommandFailed as error:
                if error.code is None or not ended_in_pod(error.stderr):
                    raise NotThere(str(error)) from None
                if error.code in _KILLED:
                    raise NotThere("the head's pod is gone") from None
                raise error_from_pod(error.code, error.stderr) from None


def error_from_pod(code: int, errors: str) -> ClusterTrainError:
    """The error of a clustertrain command that failed in a pod, with the class for its exit code."""
    message = errors.partition("error: ")[2] or errors
    text = _ENDED.sub("", message).strip() or f"the command in the pod ended with code {code}"
    return error_of_code(code, text)
