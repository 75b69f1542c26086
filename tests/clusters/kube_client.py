"""A Kubernetes as its users see it, through kubectl: any cluster that a kubeconfig leads to.

namespace = cluster.make_namespace("digits")       # unique, and `restricted`
cluster.apply(pod, namespace=namespace)             # dicts or YAML
cluster.wait_for(lambda: cluster.phase(namespace, "name") == "Succeeded", 60, "the pod does not end")
cluster.logs(namespace, "name")
kubeconfig = cluster.account(namespace, rules)      # of a service account that may do only this
cluster.delete_namespace(namespace)
"""

import json
import os
import secrets
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import yaml

Done = subprocess.CompletedProcess[str]
TOOLS = Path(sys.prefix) / "kube"  # where `make kube-tools` puts them
USERS_CLUSTER = "CLUSTERTRAIN_KUBECONFIG"  # the variable that names a cluster instead of ours
_POLL_S = 0.2


class Kubernetes:
    """`kubeconfig`: of a user who may do everything."""

    kubeconfig: Path

    @property
    def environment(self) -> dict[str, str]:
        """Of a process that finds kubectl and this cluster."""
        return {**os.environ, "PATH": path(), "KUBECONFIG": str(self.kubeconfig)}

    # Objects

    def kubectl(
        self,
        *arguments: str,
        namespace: str = "",
        input: str | None = None,
        check: bool = True,
        kubeconfig: Path | None = None,
        timeout_s: float = 120.0,
    ) -> Done:
        """`kubeconfig`: of another user, such as `account` makes."""
        argv = ["kubectl", *([f"--namespace={namespace}"] if namespace else []), *arguments]
        environment = {**self.environment, "KUBECONFIG": str(kubeconfig or self.kubeconfig)}
        done = subprocess.run(
            argv,
            env=environment,
            input=input,
            stdin=subprocess.DEVNULL if input is None else None,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )
        if check and done.returncode:
            raise AssertionError(
                f"{' '.join(argv)} ended with {done.returncode}:\n{done.stdout}{done.stderr}"
            )
        return done

    def apply(self, *manifests: Mapping | str, namespace: str = "", check: bool = True) -> Done:
        """On the server's side: a CRD is larger than the annotation that `apply` would write."""
        texts = [made if isinstance(made, str) else yaml.safe_dump(made) for made in manifests]
        text = "\n---\n".join(texts)
        return self.kubectl(
            "apply", "--server-side", "--filename=-", namespace=namespace, input=text, check=check
        )

    def get(self, kind: str, name: str, namespace: str = "") -> dict:
        """{} when there is none."""
        done = self.kubectl("get", kind, name, "--output=json", "--ignore-not-found", namespace=namespace)
        return json.loads(done.stdout or "{}")

    def items(self, kind: str, namespace: str = "", selector: str = "") -> list[dict]:
        options = [f"--selector={selector}"] if selector else []
        return json.loads(self.kubectl("get", kind, "--output=json", *options, namespace=namespace).stdout)[
            "items"
        ]

    def patch(self, kind: str, name: str, change: Mapping, *options: str, namespace: str = "") -> None:
        text = json.dumps(change)
        self.kubectl("patch", kind, name, "--type=merge", f"--patch={text}", *options, namespace=namespace)

    def wait_for(self, condition: Callable[[], object], timeout_s: float, otherwise: str) -> None:
        ends = time.monotonic() + timeout_s
        while not condition():
            if time.monotonic() > ends:
                raise AssertionError(f"{otherwise} within {timeout_s} s\n{self.story()}")
            time.sleep(_POLL_S)

    def story(self) -> str:
        """For the reader of a failed test: pods, and the latest that happened."""
        pods = self.kubectl("get", "pods", "--all-namespaces", check=False)
        events = self.kubectl("get", "events", "--all-namespaces", "--sort-by=.lastTimestamp", check=False)
        return f"{pods.stdout}{pods.stderr}\n" + "\n".join(events.stdout.splitlines()[-20:])

    # Namespaces

    def make_namespace(self, prefix: str = "test", security: str = "restricted") -> str:
        name = f"{prefix}-{secrets.token_hex(3)}"
        labels = {"pod-security.kubernetes.io/enforce": security}
        self.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}})
        self.wait_for(
            lambda: self.get("serviceaccount", "default", name), 30, f"{name} has no default service account"
        )
        return name

    def delete_namespace(self, name: str, wait: bool = True) -> None:
        self.kubectl("delete", "pods", "--all", "--grace-period=1", "--wait=false", namespace=name)
        self.kubectl("delete", "namespace", name, f"--wait={str(wait).lower()}")

    # Pods

    def phase(self, namespace: str, pod: str) -> str:
        """Pending, Running, Succeeded, Failed, or nothing at all."""
        return self.get("pod", pod, namespace).get("status", {}).get("phase", "")

    def logs(self, namespace: str, pod: str, *options: str) -> str:
        return self.kubectl("logs", pod, *options, namespace=namespace).stdout

    def execute(self, namespace: str, pod: str, *argv: str, check: bool = True) -> Done:
        return self.kubectl("exec", pod, "--", *argv, namespace=namespace, check=check)

    def events(self, namespace: str, of: str = "") -> list[str]:
        """ "Reason: message" of all, or of one object, oldest first."""
        options = [
            "--sort-by=.lastTimestamp",
            *([f"--field-selector=involvedObject.name={of}"] if of else []),
        ]
        done = self.kubectl("get", "events", "--output=json", *options, namespace=namespace)
        return [f"{event['reason']}: {event['message']}" for event in json.loads(done.stdout)["items"]]

    # Users

    def account(self, namespace: str, rules: Sequence[Mapping], name: str = "") -> Path:
        """The kubeconfig of a service account that has one Role, with these rules."""
        name = name or f"user-{secrets.token_hex(3)}"
        role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": name}
        subject = {"kind": "ServiceAccount", "name": name, "namespace": namespace}
        rbac = "rbac.authorization.k8s.io/v1"
        self.apply(
            {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": name}},
            {"apiVersion": rbac, "kind": "Role", "metadata": {"name": name}, "rules": list(rules)},
            {
                "apiVersion": rbac,
                "kind": "RoleBinding",
                "metadata": {"name": name},
                "roleRef": role,
                "subjects": [subject],
            },
            namespace=namespace,
        )
        return self.kubeconfig_of(namespace, name)

    def kubeconfig_of(self, namespace: str, account: str) -> Path:
        """Of a service account that is there."""
        token = self.kubectl("create", "token", account, "--duration=2h", namespace=namespace).stdout.strip()
        config = yaml.safe_load(self.kubectl("config", "view", "--raw", "--minify", "--flatten").stdout)
        config["users"][0]["user"] = {"token": token}
        config["contexts"][0]["context"]["namespace"] = namespace
        made = self._private_folder() / f"{namespace}-{account}.kubeconfig"
        made.touch(0o600)
        made.write_text(yaml.safe_dump(config))
        return made

    def _private_folder(self) -> Path:
        raise NotImplementedError


def path() -> str:
    """Where the programs are: those of `make kube-tools` first."""
    return f"{TOOLS / 'bin'}:{os.environ.get('PATH', '')}:/usr/local/sbin:/usr/sbin:/sbin"
