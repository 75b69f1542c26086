"""Runs kubectl with the job's context and namespace, and turns its errors into messages with a remedy.

Kubernetes' Python client is a large dependency for a login node, and its code for kubeconfigs and logins is
not that of kubectl.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, BinaryIO

from clustertrain.errors import ClusterError
from clustertrain.job.model import Job
from clustertrain.launchers.kubernetes.section import Kubernetes
from clustertrain.launchers.shell import CommandFailed, Done, Unanswered, lines, run
from clustertrain.waiting import wait_until

ANSWER_S = 30.0
_GONE_POLL_S = 1.0
_START_S = 60.0  # of an API server, on a busy machine
_START_POLL_S = 0.5
_ROLES_S = 5.0  # until it has loaded its roles
# The command in the pod failed, not the connection to the pod.
ENDED_IN_POD = re.compile(r"^command terminated with exit code \d+$", re.MULTILINE)
# The API server answers, and the kubelet of a pod's node does not answer the API server.
_NODE_IS_SILENT = re.compile(r"error dialing backend|https://[^/\s]+/(exec|containerLogs)/")
_FORBIDDEN = re.compile(r'User "([^"]+)" cannot (\w+) resource "([^"]+)"(?: in API group "([^"]*)")?')
# An API server that has just started answers so before it has read its CRDs, roles and accounts.
_MAY_BE_STARTING = re.compile(
    rf"{_FORBIDDEN.pattern}|no matches for kind|doesn't have a resource type|find the requested resource"
    "|Unauthorized|ServiceUnavailable"
)


class NotFound(ClusterError):
    """The cluster has no such object."""


class Forbidden(ClusterError):
    """The account lacks a permission. `what`: verb and resource, such as "list nodes"."""

    def __init__(self, user: str, what: str) -> None:
        super().__init__(
            f"{user} may not {what}: no role of the cluster allows it.\n"
            "k8s/rbac.yaml is a Role with all permissions that clustertrain needs: "
            "ask the cluster's administrator to bind it."
        )
        self.what = what


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
            NotFound, Forbidden, Unanswered: see these classes.
            CommandFailed: the command that it ran in a pod failed, or kubectl did for another reason.
            ClusterError: any other failure, with kubectl's message.
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
            raise _explained(error, self) from None

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
        """The lines that kubectl prints, while it runs. Raises as `__call__`, after the last line."""
        try:
            yield from lines(self.argv(*arguments))
        except CommandFailed as error:
            raise _explained(error, self) from None

    def argv(self, *arguments: str) -> list[str]:
        where = [f"--context={self.context}"] if self.context else []
        where += [f"--namespace={self.namespace}"] if self.namespace else []
        return ["kubectl", *where, *arguments]

    def current_context(self) -> str | None:
        """The context that kubectl uses for this; None if it has none, as in a pod."""
        if self.context is not None:
            return self.context
        with suppress(ClusterError):
            return run(["kubectl", "config", "current-context"], timeout_s=ANSWER_S).stdout.strip() or None
        return None

    @property
    def typed(self) -> str:
        """How a user types kubectl for this cluster and namespace."""
        return shlex.join(self.argv())

    def raw(self, path: str) -> dict[str, Any] | None:
        """The API server's answer at a path; None if it serves none there, or not to this user."""
        with suppress(CommandFailed):
            value: dict[str, Any] = json.loads(
                run(self.argv("get", f"--raw={path}"), timeout_s=ANSWER_S).stdout
            )
            return value
        return None

    def get(self, kind: str, name: str) -> dict[str, Any]:
        """One object. Raises as `__call__`; NotFound if it does not exist."""
        value: dict[str, Any] = json.loads(self("get", kind, name, "--output=json").stdout)
        return value

    def find(self, kind: str, name: str) -> dict[str, Any] | None:
        """The object, or None if it does not exist. Raises as `__call__`."""
        try:
            return self.get(kind, name)
        except NotFound:
            return None

    def list(self, kind: str, selector: str = "", *options: str) -> list[dict[str, Any]]:
        """The objects of a kind that `selector` selects by labels. Raises as `__call__`."""
        selected = [f"--selector={selector}"] if selector else []
        found = self("get", kind, "--output=json", *selected, *options)
        items: list[dict[str, Any]] = json.loads(found.stdout)["items"]
        return items

    def events(self) -> Sequence[dict[str, Any]]:
        """The events of the namespace, without those that name no reason: any program may write events.
        Raises as `__call__`."""
        return [event for event in self.list("events") if {"reason", "message"} <= event.keys()]


def _explained(error: CommandFailed, kubectl: Kubectl) -> ClusterError:
    if ENDED_IN_POD.search(error.stderr) or _NODE_IS_SILENT.search(error.stderr):
        return error
    message = error.stderr.strip().removesuffix("\nensure CRDs are installed first")
    last = message.splitlines()[-1] if message else str(error)
    where = f"context {kubectl.context}" if kubectl.context else "kubectl's current context"
    if match := _FORBIDDEN.search(message):
        user, verb, resource, group = match.groups()
        named = f"{resource}.{group}" if group else resource
        return Forbidden(user, f"{verb} {named}")
    for pattern, kind, text in _KNOWN_ERRORS:
        if re.search(pattern, message if error.code is not None else error.how, re.IGNORECASE):
            return kind(text.format(last=last, where=where, kubectl=kubectl.typed))
    return error


# The first pattern that matches counts, whatever the case of its letters.
_KNOWN_ERRORS: tuple[tuple[str, type[ClusterError], str], ...] = (
    (
        r'no matches for kind "Ray\w+"|the server doesn\'t have a resource type "?ray',
        ClusterError,
        "The cluster of {where} has no RayJobs: the KubeRay operator is not installed there.\n"
        "Install KubeRay 1.6 or later, or name another context: kubernetes.context.",
    ),
    (
        "failed calling webhook",
        ClusterError,
        "An admission webhook of the cluster of {where} does not answer: {last}\n"
        "Until the webhook answers, the API server refuses the objects: ask the cluster's administrator.",
    ),
    (
        # Without a configuration kubectl connects to localhost:8080, where no API server listens.
        r"context .* does not exist|context was not found|no configuration has been provided"
        r"|current-context|server localhost:8080",
        Unanswered,
        "kubectl has no cluster: {last}\n"
        "Set KUBECONFIG to a configuration file, or name a context: kubernetes.context.",
    ),
    (
        r"connection refused|no such host|i/o timeout|unable to connect|was refused|TLS handshake|\bEOF\b"
        r"|no route|deadline exceeded|Client\.Timeout exceeded|connection reset|ServiceUnavailable"
        r"|\betcdserver: |did not end within",
        Unanswered,
        "The cluster of {where} does not answer: {last}\nCheck that it runs, and that it is the right one.",
    ),
    (
        "Unauthorized|provide credentials|must be logged in|getting credentials",
        ClusterError,
        "The login to the cluster of {where} failed: {last}\n"
        "Log in again; `{kubectl} auth whoami` shows the account.",
    ),
    (
        "NotFound|not found|doesn't have a resource type",
        NotFound,
        "{last}\nThe request went to the cluster of {where}.",
    ),
)
