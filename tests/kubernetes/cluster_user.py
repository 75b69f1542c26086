"""A job for tests that look at it from outside, and the product's own command line as a user of a cluster."""

import contextlib
import secrets
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml

from clusters.kube_client import Done, Kubernetes
from clusters.kube_pods import SHELL_IMAGE
from clustertrain.job.file import load_job
from clustertrain.launchers.kubernetes.render.manifests import manifests, to_yaml
from support.commands import ran

_POLL_S = 1.0  # one look is five requests, and a status is a second of CPU time
ROOT = Path(__file__).parent.parent.parent
ROLE_FILE = ROOT / "k8s" / "rbac.yaml"
# The operator leaves it to somebody else.
_INERT = [{"op": "add", "path": "/spec/managedBy", "value": "kueue.x-k8s.io/multikueue"}]


@dataclass
class User:
    """Somebody with a kubeconfig, a job file and a namespace. `sets`: given to every command."""

    kube: Kubernetes
    namespace: str
    job_file: Path
    kubeconfig: Path | None = None
    sets: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The run's."""
        return self.job_file.stem

    def __call__(self, command: str, *arguments: str, code: int | None = 0, timeout_s: float = 120) -> Done:
        """`clustertrain COMMAND --to kubernetes JOBFILE ARGUMENTS`; `code`: what it must end with."""
        return self._run(self._argv(command, *arguments), code, timeout_s)

    def start(self, command: str, *arguments: str, output: Path) -> subprocess.Popen[bytes]:
        """The same in the background."""
        argv = [sys.executable, "-m", "clustertrain.cli", *self._argv(command, *arguments)]
        with output.open("wb") as file:
            return subprocess.Popen(argv, env=self._environment, stdout=file, stderr=subprocess.STDOUT)

    def _argv(self, command: str, *arguments: str) -> list[str]:
        sets = [word for each in self.sets if command != "ls" for word in ("--set", each)]
        return [command, "--to", "kubernetes", str(self.job_file), *sets, *arguments]

    def find(self, *command: str, code: int = 0) -> Done:
        """`clustertrain COMMAND JOBFILE`, which has to find where the run is."""
        return self._run([*command, str(self.job_file)], code, 120)

    def _run(self, arguments: list[str], code: int | None, timeout_s: float) -> Done:
        argv = [sys.executable, "-m", "clustertrain.cli", *arguments]
        return ran(argv, code=code, env=self._environment, timeout=timeout_s)

    @property
    def _environment(self) -> dict[str, str]:
        return {**self.kube.environment, "KUBECONFIG": str(self.kubeconfig or self.kube.kubeconfig)}

    def apply(self) -> None:
        """As `submit` would, without asking whether it can be."""
        objects = manifests(load_job(self.job_file, self.sets))
        self.kube.apply(to_yaml(objects), namespace=self.namespace)

    def cause(self) -> str:
        """The first line of `status`."""
        return self("status").stdout.splitlines()[0]

    def wait_for_status(self, text: str, timeout_s: float = 240) -> None:
        """Asks again when anything has happened in the namespace."""
        ends, seen = time.monotonic() + timeout_s, None
        while time.monotonic() < ends:
            if (now := self._happened()) != seen and text in self.cause():
                return
            seen = now
            time.sleep(_POLL_S)
        raise AssertionError(f"status does not say {text!r} but:\n{self.cause()}\n{self.kube.story()}")

    def _happened(self) -> list[str]:
        """The version of everything that status looks at."""
        seen = ("rayjobs", "rayclusters", "pods", "persistentvolumeclaims", "events")
        found = [each for resource in seen for each in self.kube.items(resource, self.namespace)]
        return [each["metadata"]["resourceVersion"] for each in found]


def unique_name() -> str:
    """For a run beside others."""
    return f"watched-{secrets.token_hex(3)}"


def write_job(folder: Path, namespace: str, name: str = "watched", **more: object) -> Path:
    """A job whose pods could start, if their image were the kit's; sections of `more` are merged into it."""
    code = folder / "code"
    code.mkdir(exist_ok=True)
    (code / "train.py").write_text("def train(config): ...\n")
    job: dict[str, object] = {
        "name": name,
        "function": "train:train",
        "image": SHELL_IMAGE,
        "storage": "runs",
        "code": "code",
        "resources": {"workers": 1, "cpus_per_worker": 0.1, "memory_per_worker": "64Mi"},
        "kubernetes": {
            "namespace": namespace,
            "pull_policy": "Never",
            "head": {"cpus": 0.1, "memory": "64Mi"},
            "volumes": [{"mount": "/mnt/runs", "claim": "runs"}],
        },
    }
    for key, value in more.items():
        before = job.get(key)
        job[key] = {**before, **value} if isinstance(before, dict) and isinstance(value, dict) else value
    path = folder / f"{name}.yaml"
    path.write_text(yaml.safe_dump(job))
    return path


def inert(**section: object) -> dict[str, object]:
    """The section `kubernetes` of a job whose RayJob the operator leaves alone: a test writes its status."""
    return {"kubernetes": {"patches": _INERT, **section}}


@contextlib.contextmanager
def admission_policy(
    kube: Kubernetes, namespace: str, resources: Mapping[str, Sequence[str]], rules: Mapping[str, str]
) -> Iterator[None]:
    """A policy of the site for this namespace. `resources`: by API group; `rules`: expressions, each with the
    message of its refusal. The server takes it up some time after it was made."""
    of_resources = [
        {"apiGroups": [group], "apiVersions": ["*"], "operations": ["CREATE"], "resources": [*each]}
        for group, each in resources.items()
    ]
    validations = [{"expression": expression, "message": message} for expression, message in rules.items()]
    here = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace}}}
    kinds = {
        "ValidatingAdmissionPolicy": {
            "matchConstraints": {"resourceRules": of_resources},
            "validations": validations,
        },
        "ValidatingAdmissionPolicyBinding": {
            "policyName": f"site-{namespace}",
            "validationActions": ["Deny"],
            "matchResources": here,
        },
    }
    made = {"apiVersion": "admissionregistration.k8s.io/v1", "metadata": {"name": f"site-{namespace}"}}
    kube.apply(*({**made, "kind": kind, "spec": spec} for kind, spec in kinds.items()))
    try:
        yield
    finally:
        for resource in ("validatingadmissionpolicies", "validatingadmissionpolicybindings"):
            kube.delete(resource, f"site-{namespace}")


def role_rules() -> list[dict[str, Sequence[str]]]:
    documents = yaml.safe_load_all(ROLE_FILE.read_text())
    return next(each["rules"] for each in documents if each["kind"] == "Role")


def bind_role(kube: Kubernetes, namespace: str, without: tuple[str, str] | None = None) -> Path:
    """The kubeconfig of the account of k8s/rbac.yaml; `without`: its Role lacks this (resource, verb)."""
    kube.apply(ROLE_FILE.read_text(), namespace=namespace)
    if without is not None:
        rules = [less for rule in role_rules() if (less := _less(rule, *without))["verbs"]]
        kube.patch("roles", "clustertrain", {"rules": rules}, namespace)
    return kube.kubeconfig_of(namespace, "clustertrain")


def _less(rule: dict[str, Sequence[str]], resource: str, verb: str) -> dict[str, Sequence[str]]:
    verbs = [each for each in rule["verbs"] if (rule["resources"][0], each) != (resource, verb)]
    return {**rule, "verbs": verbs}
