"""What is made of an API server's words in a dry run. The kubectl here is a fake that says them: some of them
no server of the tests can be brought to say. tests/kubernetes/test_kube_dry_run.py asks a real one.
"""

import json

import pytest

from clustertrain.errors import ClusterError
from clustertrain.launchers.kubernetes.cluster.dry_run import check_admission
from clustertrain.launchers.kubernetes.cluster.kubectl import Kubectl
from clustertrain.launchers.kubernetes.cluster.operator_pods import check_pods
from clustertrain.launchers.shell import Unanswered
from launchers.kubernetes.right_manifests import RIGHT, rayjob

NO_DRY_RUN = 'Error from server (BadRequest): admission webhook "audit.example.org" does not support dry run'


@pytest.fixture
def fake(tmp_path, monkeypatch):
    """fake({kind: words}) puts a kubectl on PATH that refuses input with such an object, in these words; it
    writes its arguments and input into the file that is returned."""
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")

    def put(refused):
        cases = []
        for number, (kind, words) in enumerate(refused.items()):
            (tmp_path / f"words{number}").write_text(f"Warning: unrelated\n{words}\n")
            cases.append(f"""*'"kind": "{kind}"'*) cat {tmp_path}/words{number} >&2; exit 1;;""")
        calls = tmp_path / "calls"
        script = ["#!/bin/sh", "input=$(cat)", f'printf "%s\\n%s\\n" "$*" "$input" >>{calls}']
        script += ['case "$input" in', *cases, "esac", ""]
        (tmp_path / "kubectl").write_text("\n".join(script))
        (tmp_path / "kubectl").chmod(0o755)
        return calls

    return put


def test_objects_that_are_taken_are_sent_at_once(fake):
    calls = fake({})
    assert check_admission([RIGHT["ConfigMap"], rayjob()], Kubectl("team")) == []
    lines = calls.read_text().splitlines()
    asked = [line for line in lines if line.startswith("--")]
    assert asked == ["--namespace=team apply --server-side --dry-run=server --filename=-"]


def test_a_webhook_that_knows_no_dry_run_is_a_note_and_the_rest_is_checked(fake):
    fake({"ConfigMap": NO_DRY_RUN})
    (note,) = check_admission([RIGHT["ConfigMap"], rayjob()], Kubectl())
    assert note.startswith("not all of ConfigMap right-")
    assert "was checked: admission webhook audit.example.org" in note
    fake({"ConfigMap": NO_DRY_RUN, "RayJob": "error: no RayJobs on Fridays"})
    with pytest.raises(ClusterError, match="RayJob right: no RayJobs on Fridays"):
        check_admission([RIGHT["ConfigMap"], rayjob()], Kubectl())


def test_an_object_that_others_have_changed_names_them_and_the_fields(fake):
    words = (
        'error: Apply failed with 2 conflicts: conflicts with "admin":\n- .spec.a\n- .spec.b\nPlease review …'
    )
    fake({"ConfigMap": words})
    with pytest.raises(ClusterError) as caught:
        check_admission([RIGHT["ConfigMap"]], Kubectl())
    conflicts = [line.partition(": ")[2] for line in str(caught.value).splitlines()[1:-1]]
    assert conflicts == ['Apply failed with 2 conflicts: conflicts with "admin":', "- .spec.a", "- .spec.b"]


def test_a_refusal_without_a_rule_is_one(fake):
    fake({"ConfigMap": ""})
    with pytest.raises(ClusterError, match="refuses this, and nothing was applied:\n  ConfigMap right-"):
        check_admission([RIGHT["ConfigMap"]], Kubectl())


def test_a_rayjob_of_this_name_that_will_be_replaced_is_not_in_the_way(fake):
    calls = fake({"RayJob": 'Error from server (AlreadyExists): rayjobs.ray.io "right" already exists'})
    assert check_admission([RIGHT["ConfigMap"], rayjob()], Kubectl(), replaced=True) == []
    assert "create --dry-run=server --filename=-" in calls.read_text().splitlines()


def test_a_server_that_goes_away_meanwhile_is_no_refusal(fake):
    fake({"RayJob": "The connection to the server 10.0.0.1:6443 was refused"})
    with pytest.raises(Unanswered):
        check_admission([RIGHT["ConfigMap"], rayjob()], Kubectl())


def test_more_than_three_rules_are_counted(fake):
    rules = "\n".join(f"* spec.field{number}: Required value" for number in range(5))
    fake({"RayJob": f'The RayJob "right" is invalid: \n{rules}\n* <nil>: Invalid value: null: some more'})
    with pytest.raises(ClusterError) as caught:
        check_admission([rayjob()], Kubectl())
    assert str(caught.value).splitlines()[1:] == [
        "  RayJob right: spec.field0: Required value",
        "  RayJob right: spec.field1: Required value",
        "  RayJob right: spec.field2: Required value",
        "  and 2 more.",
        "Correct it in the job file, or ask the cluster's administrator about the rule.",
    ]


# ------------------------------------------------------------------------- the pods that the operator creates


def test_the_pods_of_a_rayjob_are_created_in_a_dry_run(fake):
    calls = fake({})
    assert check_pods([rayjob()], Kubectl("team")) == []
    arguments, *sent = calls.read_text().splitlines()
    assert arguments == "--namespace=team create --dry-run=server --filename=-"
    head, worker, submitter = map(json.loads, sent)
    assert [each["metadata"]["generateName"] for each in (head, worker, submitter)] == [
        "right-head-",
        "right-workers-",
        "right-submitter-",
    ]
    assert [each["name"] for each in head["spec"]["containers"]] == ["ray-head"]
    (added,) = (each for each in worker["spec"]["initContainers"] if each["name"] == "wait-gcs-ready")
    assert added["securityContext"] == worker["spec"]["containers"][0]["securityContext"]


def test_with_the_submitter_beside_ray_the_heads_pod_has_the_container_that_the_operator_adds(fake):
    """It has no securityContext, which a namespace that enforces `restricted` refuses."""
    calls = fake({})
    assert check_pods([rayjob(submission_mode="SidecarMode")], Kubectl()) == []
    head, worker = map(json.loads, calls.read_text().splitlines()[1:])
    _, added = head["spec"]["containers"]
    assert (added["name"], added["image"]) == ("ray-job-submitter", head["spec"]["containers"][0]["image"])
    assert "securityContext" not in added
    assert len(worker["spec"]["containers"]) == 1


@pytest.mark.parametrize(
    "words",
    [
        'pods "right-head-x" is forbidden: exceeded quota: small, requested: pods=1',
        'pods "right-head-x" is forbidden: status unknown for quota: small, resources: pods',
        'pods "right-head-x" is forbidden: error looking up service account team/default: serviceaccount '
        '"default" not found',
    ],
)
def test_a_refusal_that_passes_by_itself_is_none(fake, words):
    fake({"Pod": f"Error from server (Forbidden): {words}"})
    assert check_pods([rayjob()], Kubectl()) == []


_POLICY = "ValidatingAdmissionPolicy 'memory-of-labels' with binding 'site' denied request: "
_STANDARD = 'violates PodSecurity "restricted:latest": '
_AMOUNTS = "resources (workers), kubernetes.head and kubernetes.submitter"


@pytest.mark.parametrize(
    ("words", "keys"),
    [
        ("maximum cpu usage per Container is 900m, but limit is 4", _AMOUNTS),
        (
            "maximum ephemeral-storage usage per Container is 1Gi, but limit is 4Gi",
            "kubernetes.ephemeral_storage",
        ),
        (f"{_POLICY}every pod names its owner in a label", "kubernetes.labels"),
        (f"{_POLICY}failed expression: has(object.metadata.labels.owner)", "kubernetes.labels"),
        (
            'admission webhook "cpu.example.org" denied the request: no cost centre: annotation',
            "kubernetes.annotations",
        ),
        (f"{_POLICY}images come from registry.corp.example", "image"),
        (f"{_POLICY}imagePullPolicy must be Always", "kubernetes.pull_policy"),
        (f"{_POLICY}spec.imagePullSecrets is required", "kubernetes.pull_secrets"),
        (
            f'{_STANDARD}unrestricted capabilities (container "ray-worker" must not include "IPC_LOCK" in '
            "securityContext.capabilities.add), runAsUser=0 (pod must not set runAsUser=0)",
            "kubernetes.run_as, kubernetes.worker_capabilities, kubernetes.patches",
        ),
        (f"{_STANDARD}host namespaces (hostNetwork=true)", "kubernetes.host_network"),
        (f'{_STANDARD}hostPath volumes (volume "x")', "kubernetes.volumes"),
        (f"{_POLICY}this team trains on Fridays", ""),
    ],
)
def test_a_pod_that_is_refused_names_the_rule_and_the_keys_of_its_words(fake, words, keys):
    fake({"Pod": f'Error from server (Forbidden): pods "right-head-x" is forbidden: {words}'})
    with pytest.raises(ClusterError) as caught:
        check_pods([rayjob()], Kubectl())
    first, refusal, *_, remedy = str(caught.value).splitlines()
    assert first.endswith("nothing was applied:")
    assert refusal.startswith("  Pod right-head-: ") and refusal.endswith(words)
    decided_by = f" What it names is in {keys}." if keys else ""
    assert remedy == f"The operator could not create this pod.{decided_by}"


def test_a_policy_on_other_objects_names_its_keys_as_well(fake):
    fake({"ConfigMap": f"Error from server (Forbidden): {_POLICY}every object names its owner in a label"})
    with pytest.raises(ClusterError) as caught:
        check_admission([RIGHT["ConfigMap"]], Kubectl())
    assert str(caught.value).endswith("about the rule. What it names is in kubernetes.labels.")
    fake({"ConfigMap": f'The configmaps "right" is invalid: : {_POLICY}no'})
    with pytest.raises(ClusterError, match=r"ConfigMap right-\w+: ValidatingAdmissionPolicy 'memory"):
        check_admission([RIGHT["ConfigMap"]], Kubectl())


def test_an_account_that_may_not_create_pods_gets_a_note(fake):
    fake({"Pod": 'Error from server (Forbidden): pods: User "ci" cannot create resource "pods" in'})
    (note,) = check_pods([rayjob()], Kubectl())
    assert note.startswith("the API server did not check the pods: ci may not create pods")
