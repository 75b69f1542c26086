"""A Kubernetes as its users see it: objects over HTTP, and kubectl for what a user does with it.

namespace = cluster.make_namespace("digits")       # unique, and `restricted`
cluster.apply(pod, namespace=namespace)             # dicts or YAML
cluster.wait_for_pod(namespace, "name", "Succeeded")
cluster.logs(namespace, "name")
kubeconfig = cluster.kubeconfig_of(namespace, "clustertrain")      # of a service account
cluster.delete_namespace(namespace)

A resource has the name that its URL has, in plural: cluster.get("pods", "name", namespace).
"""

import contextlib
import fcntl
import os
import secrets
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import yaml

from clusters.kube_api import Api, Refused, manifest
from clusters.kube_api import path as place
from clusters.kube_conf import write_kubeconfig
from clusters.machine import search_path
from support.commands import Done, ran
from support.waiting import wait_until

TOOLS = Path(sys.prefix) / "kube"  # where `make kube-tools` puts them
SPARING = {"GOGC": "400"}  # Go programs use more memory, and less CPU time to free it
_POLL_S = 0.2
_OVER = ("Succeeded", "Failed")


class Kubernetes:
    """`folder`: where it lives; `kubeconfig`: of a user who may do everything; `api`: the same user's."""

    folder: Path
    node_address: str
    kubeconfig: Path
    api: Api

    @property
    def environment(self) -> dict[str, str]:
        """Of a process that finds kubectl and this cluster."""
        return {**os.environ, **SPARING, "PATH": path(), "KUBECONFIG": str(self.kubeconfig)}

    def kubectl(
        self,
        *arguments: str,
        namespace: str = "",
        input: str | None = None,
        check: bool = True,
        kubeconfig: Path | None = None,
        timeout_s: float = 120.0,
    ) -> Done:
        """`kubeconfig`: of another user, see `kubeconfig_of`."""
        argv = ["kubectl", *([f"--namespace={namespace}"] if namespace else []), *arguments]
        environment = {**self.environment, "KUBECONFIG": str(kubeconfig or self.kubeconfig)}
        given = {} if input is None else {"input": input}
        return ran(argv, code=0 if check else None, env=environment, timeout=timeout_s, **given)

    # Objects

    def apply(self, *manifests: Mapping | str, namespace: str = "default") -> None:
        """Raises Refused."""
        for made in manifests:
            for each in yaml.load_all(made, yaml.CSafeLoader) if isinstance(made, str) else [made]:
                self.api.apply(each, namespace)

    def get(self, resource: str, name: str, namespace: str = "") -> dict:
        """{} when there is none."""
        try:
            return self.api.send("GET", place(resource, namespace, name))
        except Refused as refused:
            if refused.status != 404:
                raise
            return {}

    def items(self, resource: str, namespace: str = "", selector: str = "") -> list[dict]:
        """Of all namespaces, where none is named."""
        return self.api.send("GET", place(resource, namespace), **_selected(selector))["items"]

    def patch(self, resource: str, name: str, change: Mapping, namespace: str = "", part: str = "") -> None:
        """`part`: such as `status`."""
        self.api.send("PATCH", place(resource, namespace, name, part), change, "merge-patch+json")

    def delete(self, resource: str, name: str, namespace: str = "", grace_s: float | None = None) -> None:
        """Asks for it, and does not wait until it is gone. What is not there need not be deleted."""
        try:
            self.api.send("DELETE", place(resource, namespace, name), _deletion(grace_s))
        except Refused as refused:
            if refused.status != 404:
                raise

    def delete_all(
        self, resource: str, namespace: str = "", selector: str = "", grace_s: float | None = None
    ) -> None:
        self.api.send("DELETE", place(resource, namespace), _deletion(grace_s), **_selected(selector))

    # Waiting

    def wait_for(
        self, condition: Callable[[], object], timeout_s: float, otherwise: str, poll_s: float = _POLL_S
    ) -> None:
        wait_until(condition, timeout_s, lambda: f"{otherwise}\n{self.story()}", poll_s)

    def watch(
        self,
        resource: str,
        namespace: str,
        condition: Callable[[list[dict]], object],
        timeout_s: float,
        otherwise: str,
        *,
        name: str = "",
        selector: str = "",
    ) -> None:
        """Until the condition is true of the objects: of all there are, of one, or of those with labels."""
        which = {"fieldSelector": f"metadata.name={name}"} if name else _selected(selector)
        where = place(resource, namespace)
        self.wait_for(lambda: condition(self.api.send("GET", where, **which)["items"]), timeout_s, otherwise)

    def wait_until_gone(
        self, resource: str, namespace: str, timeout_s: float, name: str = "", selector: str = ""
    ) -> None:
        which = {"name": name, "selector": selector}
        self.watch(resource, namespace, lambda left: not left, timeout_s, f"{resource} are left", **which)

    def wait_for_pod(self, namespace: str, pod: str, phase: str = "Running", timeout_s: float = 240) -> None:
        """Or longer than that phase, if it has already ended."""
        reached = (phase, *_OVER)

        def is_there(pods: list[dict]) -> bool:
            return any(each["status"].get("phase") in reached for each in pods)

        self.watch("pods", namespace, is_there, timeout_s, f"{pod} is not {phase}", name=pod)
        now = self.phase(namespace, pod)
        assert now == phase, f"{pod} is {now}\n{self.story()}"

    def story(self) -> str:
        """For the reader of a failed test: pods, and the latest that happened."""
        pods = self.kubectl("get", "pods", "--all-namespaces", check=False)
        events = self.kubectl("get", "events", "--all-namespaces", "--sort-by=.lastTimestamp", check=False)
        return f"{pods.stdout}{pods.stderr}\n" + "\n".join(events.stdout.splitlines()[-20:])

    # Namespaces

    def make_namespace(self, prefix: str = "test") -> str:
        name = f"{prefix}-{secrets.token_hex(3)}"
        labels = {"pod-security.kubernetes.io/enforce": "restricted"}
        self.apply(manifest("Namespace", metadata={"name": name, "labels": labels}))
        said = f"{name} has no default service account"
        self.watch("serviceaccounts", name, bool, 30, said, name="default")
        return name

    def delete_namespace(self, name: str) -> None:
        """Asks for it. Pods that run are given a second; nobody makes new ones in a namespace that goes."""
        self.delete("namespaces", name)
        self.api.send("DELETE", place("pods", name), _deletion(1), fieldSelector="spec.nodeName!=")

    # Pods

    def phase(self, namespace: str, pod: str) -> str:
        """Pending, Running, Succeeded, Failed, or nothing at all."""
        return self.get("pods", pod, namespace).get("status", {}).get("phase", "")

    def logs(self, namespace: str, pod: str, **options: str) -> str:
        """`options`: of the API, such as tailLines="15"."""
        return self.api.text("GET", place("pods", namespace, pod, "log"), **options)

    def execute(self, namespace: str, pod: str, *argv: str, check: bool = True) -> Done:
        return self.kubectl("exec", pod, "--", *argv, namespace=namespace, check=check)

    def events(self, namespace: str) -> list[str]:
        """ "Reason: message" of all, oldest first."""
        found = sorted(self.items("events", namespace), key=lambda each: each.get("lastTimestamp") or "")
        return [f"{event['reason']}: {event['message']}" for event in found]

    # Users

    def kubeconfig_of(self, namespace: str, account: str) -> Path:
        """Of a service account that is there."""
        wanted = manifest("TokenRequest", metadata={}, spec={"expirationSeconds": 7200})
        made = self.api.send("POST", place("serviceaccounts", namespace, account, "token"), wanted)
        file = self.folder / f"{namespace}-{account}.kubeconfig"
        write_kubeconfig(file, self.node_address, made["status"]["token"], namespace)
        return file


def all_are(condition: str, things: list[dict]) -> bool:
    """Whether there are some, and each has this condition."""
    conditions = [each.get("status", {}).get("conditions") or () for each in things]
    return bool(things) and all(
        any((each["type"], each["status"]) == (condition, "True") for each in of_one) for of_one in conditions
    )


def _selected(selector: str) -> dict[str, str]:
    return {"labelSelector": selector} if selector else {}


def _deletion(grace_s: float | None) -> dict:
    """What kubectl sends: what is owned goes afterwards, and not before."""
    given = {} if grace_s is None else {"gracePeriodSeconds": round(grace_s)}
    return {"kind": "DeleteOptions", "apiVersion": "v1", "propagationPolicy": "Background", **given}


def path() -> str:
    """Where the programs are: those of `make kube-tools` first."""
    return f"{TOOLS / 'bin'}:{search_path()}"


def is_built(*, wait: bool = False) -> bool:
    """Whether no `make kube-tools` runs now; waits until then, if asked to."""
    with contextlib.suppress(FileNotFoundError), (TOOLS / "lock").open() as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_SH | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            return False
    return True
