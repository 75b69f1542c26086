"""Runs commands of clustertrain where the storage of a run is: in its head's pod, else in a reader pod."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
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

    @property
    def _kubectl(self) -> Kubectl:
        return Kubectl.of(self.job)

    @contextmanager
    def _pod(self) -> Iterator[tuple[str, str]]:
        """Pod and container in which commands run."""
        if self.head is not None:
            yield name_of(self.head), HEAD_CONTAINER
            return
        with waiting_pod(self.job, int(READ_S)) as reader:
            yield reader, READER_CONTAINER

    def run(self, *command: str, timeout_s: float = READ_S, to: BinaryIO | None = None) -> str:
        """The output of a command, which names the job file as JOB_FILE; `to`: a file for its output.

        Raises:
            ClusterTrainError: the command failed, with the class for its exit code.
            ClusterError: no pod ran it.
        """
        with self._pod() as pod:
            done = self._kubectl.exec(*pod, *_CLI, *command, timeout_s=timeout_s, stdout=to)
        if done.code:
            raise error_from_pod(done.code, done.stderr)
        return done.stdout

    def lines(self, *command: str) -> Iterator[str]:
        """The lines of a command, while it runs.

        Raises:
            NotThere: the connection broke; and as `run`, after the last line.
        """
        with self._pod() as (pod, container):
            try:
                yield from self._kubectl.lines("exec", pod, f"--container={container}", "--", *_CLI, *command)
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
