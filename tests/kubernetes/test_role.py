"""k8s/rbac.yaml has what the commands need, and no verb more: with one verb less a command names it.

The RayJobs here are none of the operator's: the tests write their status, so that each takes seconds.
"""

import pytest

from clusters.kube_client import Kubernetes
from clusters.kube_pods import shell_pod
from clustertrain.errors import EXIT_CLUSTER
from kubernetes.cluster_user import User, bind_role, inert, role_rules, unique_name, write_job

MADE_CLAIM = {"volumes": [{"mount": "/mnt/runs", "claim": "made", "size": "1Gi"}]}


# How far somebody who may do everything brings a run.


def nothing(admin: User) -> None:
    """It was never submitted."""


def submitted(admin: User, **status: str) -> None:
    admin.apply()
    change = {"status": {"rayClusterName": f"{admin.name}-abc", **status}}
    admin.kube.patch("rayjobs", admin.name, change, admin.namespace, "status")


def waiting(admin: User) -> None:
    submitted(admin, jobDeploymentStatus="Initializing")


def ended(admin: User) -> None:
    submitted(admin, jobDeploymentStatus="Complete", jobStatus="SUCCEEDED")


def without_its_rayjob(admin: User) -> None:
    admin.apply()
    admin.kube.delete("rayjobs", admin.name, admin.namespace)
    admin.kube.wait_until_gone("rayjobs", admin.namespace, 240, name=admin.name)


def with_a_pod(admin: User, role: str, container: str) -> None:
    labels = {"clustertrain.io/run": admin.name, "clustertrain.io/role": role}
    pod = shell_pod(f"{admin.name}-{role}", "sleep 600", {**labels, "ray.io/cluster": f"{admin.name}-abc"})
    pod["spec"]["containers"][0]["name"] = container
    admin.kube.apply(pod, namespace=admin.namespace)
    admin.kube.wait_for_pod(admin.namespace, f"{admin.name}-{role}")


def with_a_head(admin: User) -> None:
    with_a_pod(admin, "head", "ray-head")
    submitted(admin, jobDeploymentStatus="Running", jobStatus="RUNNING")


def with_a_submitter(admin: User) -> None:
    with_a_pod(admin, "submitter", "ray-job-submitter")
    waiting(admin)


# Resource, verb, how far the run is, the command that needs it, and what the job's section says more.
NEEDED = [  # in CI: a verb of each command, and of each way to say so
    ("rayjobs.ray.io", "list", nothing, "ls", {}),
    ("rayjobs.ray.io", "patch", nothing, "submit", {}),
    ("rayjobs.ray.io", "delete", waiting, "stop", {}),
    ("pods", "list", waiting, "status", {}),
    ("pods", "create", ended, "status", {}),
    ("pods/log", "get", with_a_submitter, "logs", {}),
    ("pods/exec", "create", with_a_head, "status", {}),
    ("persistentvolumeclaims", "create", nothing, "submit", MADE_CLAIM),
]
ALSO_NEEDED = [
    ("rayjobs.ray.io", "get", nothing, "status", {}),
    ("rayjobs.ray.io", "create", nothing, "submit", {}),
    ("configmaps", "list", waiting, "stop", {}),
    ("configmaps", "create", nothing, "submit", {}),
    ("configmaps", "patch", nothing, "submit", {}),
    ("configmaps", "delete", waiting, "stop", {}),
    ("pods", "get", ended, "status", {}),
    ("pods", "delete", ended, "status", {}),
    ("events", "list", waiting, "status", {}),
    ("persistentvolumeclaims", "get", nothing, "submit", MADE_CLAIM),
    ("persistentvolumeclaims", "patch", nothing, "submit", MADE_CLAIM),
    ("networkpolicies.networking.k8s.io", "create", nothing, "submit", {}),
    ("networkpolicies.networking.k8s.io", "patch", nothing, "submit", {}),
    ("networkpolicies.networking.k8s.io", "list", waiting, "stop", {}),
    ("networkpolicies.networking.k8s.io", "delete", waiting, "stop", {}),
]
OF_KUEUE = {("workloads.kueue.x-k8s.io", "list")}


@pytest.fixture
def users(kube: Kubernetes, shared_namespace: str, tmp_path):
    """users(without, **section): somebody with the Role of the file, and somebody who may do everything."""

    def make(without=None, **section):
        job_file = write_job(tmp_path, shared_namespace, unique_name(), **inert(**section))
        kubeconfig = bind_role(kube, shared_namespace, without)
        return User(kube, shared_namespace, job_file, kubeconfig), User(kube, shared_namespace, job_file)

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
def test_a_command_without_one_verb_of_the_role_names_it(users, needed):
    resource, verb, set_up, command, section = needed
    plural = resource.partition(".")[0]
    own, admin = users((plural, verb), **section)
    set_up(admin)
    done = own(command, code=None)
    said = done.stdout + done.stderr
    assert f'cannot {verb} resource "{plural}"' in said
    assert done.returncode in (0, 3)
    assert "Traceback" not in said


@pytest.mark.parametrize(
    ("set_up", "command", "code"),
    [
        (nothing, "submit", 0),
        (nothing, "ls", 0),
        (waiting, "status", 0),
        (with_a_head, "status", 0),
        (ended, "status", 0),
        (without_its_rayjob, "status", EXIT_CLUSTER),  # its pods have no Python to read the storage
        (waiting, "logs", 0),
        (waiting, "stop", 0),
    ],
)
def test_with_the_role_the_commands_do_all_they_can(users, set_up, command, code):
    own, admin = users(service_account="default")
    set_up(admin)
    done = own(command, code=code)
    assert ' resource "' not in done.stdout + done.stderr, "which follows what an account cannot do"
