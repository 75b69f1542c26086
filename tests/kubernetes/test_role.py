"""k8s/rbac.yaml has what the commands need, and no verb more: with one verb less a command names it.

The RayJobs here are none of the operator's: the tests write their status, so that each takes seconds.
"""

from dataclasses import dataclass

import pytest

from clusters.kube_client import Kubernetes
from clusters.kube_pods import shell_pod
from clustertrain.errors import EXIT_CLUSTER
from kubernetes.cluster_user import User, bind_role, inert, role_rules, unique_name, write_job

MADE_CLAIM = {"volumes": [{"mount": "/mnt/runs", "claim": "made", "size": "1Gi"}]}


@dataclass
class Two:
    """`own` has the Role of the file, `admin` every right, and brings the run as far as `own` finds it."""

    own: User
    admin: User

    @property
    def cluster(self) -> str:
        """What the operator would have made."""
        return f"{self.admin.name}-abc"

    def submitted(self, **status: str) -> None:
        self.admin.apply()
        if status:
            change = {"status": {"rayClusterName": self.cluster, **status}}
            kube, namespace = self.admin.kube, self.admin.namespace
            kube.patch("rayjobs", self.admin.name, change, namespace, "status")

    def with_a_pod(self, role: str, container: str) -> None:
        run = {"clustertrain.io/run": self.admin.name, "clustertrain.io/role": role}
        name = f"{self.cluster}-{role}"
        pod = shell_pod(name, "sleep 600", {**run, "ray.io/cluster": self.cluster})
        pod["spec"]["containers"][0]["name"] = container
        kube, namespace = self.admin.kube, self.admin.namespace
        kube.apply(pod, namespace=namespace)
        kube.wait_for_pod(namespace, name)

    def with_a_head(self) -> None:
        self.with_a_pod("head", "ray-head")
        self.submitted(jobDeploymentStatus="Running", jobStatus="RUNNING")

    def with_a_submitter(self) -> None:
        self.with_a_pod("submitter", "ray-job-submitter")
        self.waiting()

    def without_its_rayjob(self) -> None:
        self.admin.apply()
        self.admin.kube.delete("rayjobs", self.admin.name, self.admin.namespace)
        self.admin.kube.wait_until_gone("rayjobs", self.admin.namespace, 240, name=self.admin.name)

    def ended(self) -> None:
        self.submitted(jobDeploymentStatus="Complete", jobStatus="SUCCEEDED")

    def waiting(self) -> None:
        self.submitted(jobDeploymentStatus="Initializing")

    def nothing(self) -> None:
        """It was never submitted."""


# Resource, verb, how far the run is, the command that needs it, and what the job's section says more.
NEEDED = [  # in CI: a verb of each command, and of each way to say so
    ("rayjobs.ray.io", "list", Two.nothing, "ls", {}),
    ("rayjobs.ray.io", "patch", Two.nothing, "submit", {}),
    ("rayjobs.ray.io", "delete", Two.waiting, "stop", {}),
    ("pods", "list", Two.waiting, "status", {}),
    ("pods", "create", Two.ended, "status", {}),
    ("pods/log", "get", Two.with_a_submitter, "logs", {}),
    ("pods/exec", "create", Two.with_a_head, "status", {}),
    ("persistentvolumeclaims", "create", Two.nothing, "submit", MADE_CLAIM),
]
ALSO_NEEDED = [
    ("rayjobs.ray.io", "get", Two.nothing, "status", {}),
    ("rayjobs.ray.io", "create", Two.nothing, "submit", {}),
    ("configmaps", "list", Two.waiting, "stop", {}),
    ("configmaps", "create", Two.nothing, "submit", {}),
    ("configmaps", "patch", Two.nothing, "submit", {}),
    ("configmaps", "delete", Two.waiting, "stop", {}),
    ("pods", "get", Two.ended, "status", {}),
    ("pods", "delete", Two.ended, "status", {}),
    ("events", "list", Two.waiting, "status", {}),
    ("persistentvolumeclaims", "get", Two.nothing, "submit", MADE_CLAIM),
    ("persistentvolumeclaims", "patch", Two.nothing, "submit", MADE_CLAIM),
    ("networkpolicies.networking.k8s.io", "create", Two.nothing, "submit", {}),
    ("networkpolicies.networking.k8s.io", "patch", Two.nothing, "submit", {}),
    ("networkpolicies.networking.k8s.io", "list", Two.waiting, "stop", {}),
    ("networkpolicies.networking.k8s.io", "delete", Two.waiting, "stop", {}),
]
OF_KUEUE = {("workloads.kueue.x-k8s.io", "list")}


@pytest.fixture
def two(kube: Kubernetes, shared_namespace: str, tmp_path):
    """two(without, **section)"""

    def make(without=None, **section):
        job_file = write_job(tmp_path, shared_namespace, unique_name(), **inert(**section))
        kubeconfig = bind_role(kube, shared_namespace, without)
        return Two(User(kube, shared_namespace, job_file, kubeconfig), User(kube, shared_namespace, job_file))

    return make


def test_the_table_has_every_verb_of_the_role():
    role = {
        (".".join(filter(None, (resource, group))), verb)
        for rule in role_rules()
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }
    assert role == {(resource, verb) for resource, verb, *_ in NEEDED + ALSO_NEEDED} | OF_KUEUE


@pytest.mark.parametrize(
    "needed",
    [*NEEDED, *(pytest.param(row, marks=pytest.mark.nightly) for row in ALSO_NEEDED)],
    ids="{0[1]}-{0[0]}".format,
)
def test_a_command_without_one_verb_of_the_role_names_it(two, needed):
    resource, verb, set_up, command, section = needed
    plural = resource.partition(".")[0]
    run = two((plural, verb), **section)
    set_up(run)
    done = run.own(command, code=None)
    said = done.stdout + done.stderr
    assert f'cannot {verb} resource "{plural}"' in said
    assert done.returncode in (0, 3)
    assert "Traceback" not in said


@pytest.mark.parametrize(
    ("set_up", "command", "code"),
    [
        (Two.nothing, "submit", 0),
        (Two.nothing, "ls", 0),
        (Two.waiting, "status", 0),
        (Two.with_a_head, "status", 0),
        (Two.ended, "status", 0),
        (Two.without_its_rayjob, "status", EXIT_CLUSTER),  # its pods have no Python to read the storage
        (Two.waiting, "logs", 0),
        (Two.waiting, "stop", 0),
    ],
)
def test_with_the_role_the_commands_do_all_they_can(two, set_up, command, code):
    run = two(service_account="default")
    set_up(run)
    done = run.own(command, code=code)
    assert ' resource "' not in done.stdout + done.stderr, "which follows what an account cannot do"
