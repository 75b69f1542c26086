"""Patches of the RayJob: a mapping is merged by names, a list is a JSON patch; what does not fit is named."""

import pytest
import yaml

from clustertrain.errors import JobError
from clustertrain.job.file import parse_job
from clustertrain.launchers.kubernetes.render.patches import patched, strategic_merge

RAYJOB = {
    "kind": "RayJob",
    "metadata": {"name": "digits", "labels": {"a": "b"}},
    "spec": {
        "ttl": 600,
        "rayClusterSpec": {
            "workerGroupSpecs": [
                {
                    "groupName": "workers",
                    "replicas": 2,
                    "template": {
                        "spec": {
                            "automountServiceAccountToken": False,
                            "containers": [
                                {
                                    "name": "ray-worker",
                                    "image": "a",
                                    "env": [{"name": "HOME", "value": "/tmp"}],
                                }
                            ],
                            "volumes": [{"name": "tmp", "emptyDir": {}}, {"name": "shm", "emptyDir": {}}],
                            "tolerations": [{"key": "a"}],
                        }
                    },
                }
            ]
        },
    },
}
GROUP = "/spec/rayClusterSpec/workerGroupSpecs/0"


def of_workers(patch):
    return {"spec": {"rayClusterSpec": {"workerGroupSpecs": [{"groupName": "workers", **patch}]}}}


def of_pod(patch):
    return of_workers({"template": {"spec": patch}})


def group_of(rayjob):
    (group,) = rayjob["spec"]["rayClusterSpec"]["workerGroupSpecs"]
    return group


def test_a_value_is_replaced_and_null_removes_it():
    assert strategic_merge({"a": {"b": 1, "c": 2}, "d": [1]}, {"a": {"b": None}, "d": [2]}) == {
        "a": {"c": 2},
        "d": [2],
    }


def test_a_worker_group_is_merged_by_its_name():
    result = patched(RAYJOB, of_workers({"replicas": 4, "suspend": False}))
    assert group_of(result) == {**group_of(RAYJOB), "replicas": 4, "suspend": False}
    assert group_of(RAYJOB)["replicas"] == 2


def test_containers_variables_and_volumes_are_merged_by_their_names():
    box = {
        "name": "ray-worker",
        "env": [{"name": "NEW", "value": "1"}, {"name": "HOME", "value": "/h"}],
        "volumeMounts": [{"name": "x", "mountPath": "/x"}],
    }
    volumes = [{"name": "shm", "emptyDir": {"sizeLimit": "1Gi"}}, {"name": "tmp", "$patch": "delete"}]
    pod = group_of(patched(RAYJOB, of_pod({"containers": [box], "volumes": volumes})))["template"]["spec"]
    assert pod["containers"] == [
        {
            "name": "ray-worker",
            "image": "a",
            "env": [{"name": "HOME", "value": "/h"}, {"name": "NEW", "value": "1"}],
            "volumeMounts": [{"name": "x", "mountPath": "/x"}],
        }
    ]
    assert pod["volumes"] == [{"name": "shm", "emptyDir": {"sizeLimit": "1Gi"}}]


def test_other_lists_are_replaced_and_so_is_one_that_asks_for_it():
    assert group_of(patched(RAYJOB, of_pod({"tolerations": [{"key": "b"}]})))["template"]["spec"][
        "tolerations"
    ] == [{"key": "b"}]
    volumes = [{"$patch": "replace"}, {"name": "only", "emptyDir": {}}]
    assert group_of(patched(RAYJOB, of_pod({"volumes": volumes})))["template"]["spec"]["volumes"] == [
        {"name": "only", "emptyDir": {}}
    ]
    ttl = patched(RAYJOB, {"spec": {"$patch": "replace", "ttl": 1}})
    assert ttl == {**RAYJOB, "spec": {"ttl": 1}}


@pytest.mark.parametrize(
    ("patch", "place", "rule"),
    [
        (
            {"spec": {"rayClusterSpec": {"workerGroupSpecs": [{"groupName": "worker", "replicas": 1}]}}},
            "kubernetes.patches.spec.rayClusterSpec.workerGroupSpecs[0]",
            "no groupName 'worker' to change, and a new one needs template.\nworkerGroupSpecs has: workers.",
        ),
        (
            of_pod({"containers": [{"name": "ray", "env": []}]}),
            "workerGroupSpecs[0].template.spec.containers[0]",
            "has no name 'ray' to change, and a new one needs image.\ncontainers has: ray-worker.",
        ),
        (
            of_pod({"volumes": [{"emptyDir": {}}]}),
            "spec.volumes[0]",
            "a new one needs name.\nvolumes has: tmp, shm.",
        ),
        (of_pod({"volumes": [{"name": "x", "$patch": "delete"}]}), "volumes[0]", "has no name 'x' to change"),
        ([{"op": "set", "path": "/a"}], "kubernetes.patches[0]: set /a", "Unknown operation 'set'"),
        ([{"path": "/a"}], "kubernetes.patches[0]", "does not contain 'op' member"),
        ([{"op": "add", "path": "/a"}], "patches[0]: add /a", "does not contain a 'value' member"),
        ([{"op": "move", "path": "/a"}], "patches[0]: move /a", "does not contain a 'from' member"),
        ([{"op": "remove", "path": "a/b"}], "patches[0]: remove a/b", "must start with /"),
        (
            [{"op": "replace", "path": "/spec/tt", "value": 1}],
            "kubernetes.patches[0]: replace /spec/tt",
            "can't replace a non-existent object 'tt'",
        ),
        (
            [{"op": "remove", "path": "/spec/ttl"}, {"op": "add", "path": f"{GROUP}/nope/x", "value": 1}],
            f"kubernetes.patches[1]: add {GROUP}/nope/x",
            "member 'nope' not found",
        ),
        ([{"op": "test", "path": "/spec/ttl", "value": 1}], "kubernetes.patches[0]: test /spec/ttl", "600"),
        ([{"op": "replace", "path": "", "value": 1}], "kubernetes.patches", "kind becomes null"),
    ],
)
def test_a_patch_that_does_not_fit_is_named_with_its_path(patch, place, rule):
    with pytest.raises(JobError) as caught:
        patched(RAYJOB, patch)
    text = str(caught.value)
    assert place in text and rule in text, text
    assert 2 <= len(text.splitlines()) <= 3 and max(map(len, text.splitlines())) < 400
    assert caught.value.at == ("kubernetes", "patches")


NEW_GROUP = {"groupName": "b", "template": {"spec": {"containers": [{"name": "b", "image": "b"}]}}}


@pytest.mark.parametrize(
    ("patch", "text"),
    [
        ({"kind": "Pod"}, "kind becomes 'Pod', and must stay 'RayJob'"),
        ({"kind": None}, "kind becomes null, and must stay 'RayJob'"),
        (
            {"metadata": None},
            "name becomes null, and must stay 'digits'.\nSet the job's key `name`.",
        ),
        ({"metadata": 3}, "metadata.name becomes null"),
        ({"metadata": {"name": "other"}}, "metadata.name becomes 'other', and must stay 'digits'"),
        ({"metadata": {"namespace": "x"}}, "must stay null.\nSet the job's key `kubernetes.namespace`."),
        ([{"op": "remove", "path": "/metadata"}], "metadata.name becomes null"),
        ([{"op": "replace", "path": "", "value": {"kind": "List"}}], "kind becomes 'List'"),
        (
            of_pod({"automountServiceAccountToken": True}),
            "spec: automountServiceAccountToken is True",
        ),
        (of_pod({"automountServiceAccountToken": None}), "automountServiceAccountToken is null, and must be"),
        (
            {"spec": {"rayClusterSpec": {"workerGroupSpecs": [NEW_GROUP]}}},
            "workerGroupSpecs[1].template.spec: automountServiceAccountToken is null",
        ),
        (
            [{"op": "add", "path": "/spec/submitterPodTemplate", "value": NEW_GROUP["template"]}],
            "spec.submitterPodTemplate.spec: automountServiceAccountToken is null",
        ),
    ],
)
def test_the_identity_of_a_run_and_the_missing_token_of_its_pods_stay(patch, text):
    with pytest.raises(JobError) as caught:
        patched(RAYJOB, patch)
    assert text in str(caught.value)
    assert len(str(caught.value).splitlines()) == 2


def test_operations_of_a_json_patch_come_in_their_order():
    variable = {"name": "A", "value": "b"}
    operations = [
        {"op": "add", "path": f"{GROUP}/template/spec/containers/0/env/-", "value": variable},
        {"op": "copy", "from": "/spec/ttl", "path": "/spec/deadline"},
        {"op": "remove", "path": "/spec/ttl"},
        {"op": "test", "path": f"{GROUP}/replicas", "value": 2},
        {"op": "replace", "path": f"{GROUP}/replicas", "value": None},
    ]
    result = patched(RAYJOB, operations)
    (box,) = group_of(result)["template"]["spec"]["containers"]
    assert box["env"] == [{"name": "HOME", "value": "/tmp"}, variable]
    assert (result["spec"]["deadline"], "ttl" in result["spec"], group_of(result)["replicas"]) == (
        600,
        False,
        None,
    )
    assert RAYJOB["spec"]["ttl"] == 600


@pytest.mark.parametrize("patches", [["add"], "add", 3])
def test_patches_are_a_mapping_or_a_list_of_mappings(patches):
    text = yaml.safe_dump({"name": "a", "function": "t:t", "kubernetes": {"patches": patches}})
    with pytest.raises(JobError, match=r"kubernetes.patches.* is not accepted\nmust be a valid"):
        parse_job(text, "job.yaml")
