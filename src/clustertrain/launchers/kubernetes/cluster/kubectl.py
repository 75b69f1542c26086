"""Runs kubectl with the job's context and namespace. Its errors are shown in its own words.

Kubernetes' Python client is a large dependency for a login node, and its code for kubeconfigs and logins is
not that of kubectl.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, BinaryIO

from clustertrain.errors import ClusterError, ClusterTrainError
from clustertrain.job.model import Job
from clustertrain.launchers.kubernetes.section import Kubernetes
from clustertrain.launchers.shell import CommandFailed, Done, Unanswered, lines, run
from clustertrain.node.waiting import wait_until

ANSWER_S = 30.0
_GONE_POLL_S = 1.0
_START_S = 60.0  # of an API server, on a busy machine
_START_POLL_S = 0.5
_ROLES_S = 5.0  # until it has loaded its roles
# The command in the pod failed, not the connection to the pod.
ENDED_IN_POD = re.compile(r"^command terminated with exit code \d+$", re.MULTILINE)
# The API server answers, and the kubelet of a pod's node does not answer the API server.
_NODE_IS_SILENT = re.compile(r"error dialing backend|https://[^/\s]+/(exec|containerLogs)/")
# What the server itself says begins with "Error from server", also if a webhook of it does not answer.
_NO_ANSWER = re.compile(
    r"^(?!Error from server).*(connection refused|was refused|unable to connect|no such host|i/o timeout"
    r"|TLS handshake|\bEOF\b|no route|deadline exceeded|Client\.Timeout|connection reset"
    r"|context .*does not exist|context was not found|no configuration has been provided)"
    r"|\(ServiceUnavailable\)|\(Timeout\)|etcdserver: ",
    re.IGNORECASE | re.MULTILINE,
)
# An API server that has just started answers so before it has read its CRDs, roles and accounts.
_MAY_BE_STARTING = re.compile(
    r" cannot \w+ resource |no matches for kind|doesn't have a resource type|find the requested resource"
    r"|Unauthorized|ServiceUnavailable"
)


@dataclass(frozen=True)
class Kubectl:
    """kubectl for one cluster and namespace. None: as in kubectl's own configuration."""

    namespace: str | None = None
    context: str | None = None

    @classmethod
    def of(cls, job: Job) -> Kubectl:
        section = job.section(Kubernetes)
        return cls(section.namespace, section.context)

    def __call__(
        self,
        *arguments: str,
        input: str | None = None,
        timeout_s: float = ANSWER_S,
        stdout: BinaryIO | None = None,
    ) -> Done:
        """Run kubectl with these arguments; `stdout`: a file for its output, which is then not in the result.

        Raises:
            Unanswered: the cluster does not answer, or kubectl has none.
            CommandFailed: the command that it ran in a pod failed, or kubectl did, with its message.
        """
        ask = partial(
            run,
            self.argv(*arguments),
            input=None if input is None else input.encode(),
            timeout_s=timeout_s,
            stdout=stdout,
        )
        try:
            try:
                return ask()
            except CommandFailed as error:
                if ENDED_IN_POD.search(error.stderr) or not _MAY_BE_STARTING.search(error.stderr):
                    raise
            self._wait_for_its_start()
            return ask()
        except CommandFailed as error:
            raise self._told(error) from None

    def _wait_for_its_start(self) -> None:
        """Wait until the API server is ready, if it has just started."""

        def refuses(how: str) -> bool:
            ready = run(self.argv("get", "--raw=/readyz"), timeout_s=ANSWER_S, check=False)
            return how in ready.stderr

        # Before it has loaded the roles it forbids this question, too; some clusters always do.
        wait_until(lambda: not refuses("Forbidden"), _ROLES_S, _START_POLL_S)
        wait_until(lambda: not refuses("InternalError"), _START_S, _START_POLL_S)

    def delete(self, kind: str, name: str, timeout_s: float) -> None:
        """Delete an object if it exists, and wait until it is gone.

        `kubectl delete --wait` needs the permission to watch. Without it, kubectl returns at once, without an
        error.

        Raises:
            ClusterError: the object still exists after `timeout_s`; and as `__call__`.
        """
        self("delete", kind, name, "--ignore-not-found", "--wait=false")

        def is_gone() -> bool:
            return not self("get", kind, name, "--output=name", "--ignore-not-found").stdout

        if not wait_until(is_gone, timeout_s, _GONE_POLL_S):
            raise ClusterError(
                f"{kind} {name} still exists {timeout_s:.0f} s after it was deleted.\n"
                f"`{self.typed} describe {kind} {name}` shows what it waits for."
            )

    def lines(self, *arguments: str) -> Iterator[str]:
        """Yield the lines that kubectl prints, while it runs; raise as `__call__`, after the last line."""
        try:
            yield from lines(self.argv(*arguments))
        except CommandFailed as error:
            raise self._told(error) from None

    def argv(self, *arguments: str) -> list[str]:
        where = [f"--context={self.context}"] if self.context else []
        where += [f"--namespace={self.namespace}"] if self.namespace else []
        return ["kubectl", *where, *arguments]

    def current_context(self) -> str | None:
        """Return the context that kubectl uses here; None if it has none, as in a pod."""
        if self.context is not None:
            return self.context
        with suppress(ClusterError):
            return run(["kubectl", "config", "current-context"], timeout_s=ANSWER_S).stdout.strip() or None
        return None

    @property
    def typed(self) -> str:
        """How a user types kubectl for this cluster and namespace."""
        return shlex.join(self.argv())

    def find(self, kind: str, name: str) -> dict[str, Any] | None:
        """Return the object, or None if it does not exist; raise as `__call__`."""
        printed = self("get", kind, name, "--output=json", "--ignore-not-found").stdout
        value: dict[str, Any] | None = json.loads(printed or "null")
        return value

    def list(self, kind: str, selector: str = "") -> list[dict[str, Any]]:
        """Return the objects of a kind that `selector` selects by labels; raise as `__call__`."""
        selected = [f"--selector={selector}"] if selector else []
        found = self("get", kind, "--output=json", *selected)
        items: list[dict[str, Any]] = json.loads(found.stdout)["items"]
        return items

    def _told(self, error: CommandFailed) -> CommandFailed | Unanswered:
        """Return the error, as Unanswered if the cluster did not answer."""
        is_of_pod = ENDED_IN_POD.search(error.stderr) or _NODE_IS_SILENT.search(error.stderr)
        if is_of_pod or not (error.code is None or _NO_ANSWER.search(error.stderr)):
            return error
        where = f"context {self.context}" if self.context else "kubectl's current context"
        said = error.how if error.code is None else words_of(error)
        return Unanswered(f"The cluster of {where} does not answer: {said}\nCheck it: {self.typed} version")


def words_of(error: ClusterTrainError) -> str:
    """Return kubectl's message, on one line."""
    printed = error.stderr.strip().splitlines() if isinstance(error, CommandFailed) else []
    return printed[-1] if printed else str(error).splitlines()[0]
