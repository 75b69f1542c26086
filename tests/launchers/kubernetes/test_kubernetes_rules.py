"""What is said of manifests before a cluster sees them; tests/kubernetes/test_verdict.py asks one."""

import copy
import random
from typing import Any

import pytest

from clustertrain.errors import EXIT_JOB
from clustertrain.launchers.kubernetes.rules.check import Finding, advice, check, refusals, to_error
from clustertrain.launchers.kubernetes.rules.security import Level
from launchers.kubernetes.manifest_changes import ABSENT, CLUSTER, HEAD_BOX, HEAD_POD, changed
from launchers.kubernetes.right_manifests import RIGHT, other, rayjob
from launchers.kubernetes.wrong_manifests import NEEDS, WRONG

# ---------------------------------------------------------------------------------------------- the table


@pytest.mark.parametrize("manifest", RIGHT.values(), ids=RIGHT)
def test_nothing_is_found_in_a_right_manifest(manifest):
    assert check([manifest]) == []


@pytest.mark.parametrize("wrong", WRONG, ids=lambda wrong: wrong.id)
def test_a_wrong_one_is_refused_for_the_right_reason(wrong):
    found = check([wrong.made])
    assert any(wrong.message in f"{each.where} {each.message}" and each.by == wrong.by for each in found), (
        found
    )
    assert len(found) == wrong.finds, found


def test_the_table_is_whole():
    assert len({wrong.id for wrong in WRONG}) == len(WRONG) >= 40
    assert len(RIGHT) >= 8


@pytest.mark.parametrize("change", NEEDS.values(), ids=NEEDS)
def test_a_field_of_a_newer_operator_is_a_mark_and_no_refusal(change):
    (found,) = check([changed(rayjob(), change)])
    assert found.since == "KubeRay 1.7"
    assert refusals([found]) == []


# --------------------------------------------------------------------------------------------- the interface


def test_an_error_tells_the_first_three_in_two_lines_each():
    change = {"metadata/name": "a" * 50, "spec/runtimeEnvYAML": "[a]", "spec/backoffLimit": -1}
    found = check([changed(rayjob(), {**change, "spec/activeDeadlineSeconds": 0})])
    error = to_error(found)
    assert error.exit_code == EXIT_JOB
    lines = str(error).splitlines()
    assert lines[0] == (
        f"RayJob {'a' * 50}: metadata.name is '{'a' * 50}', 50 characters long, "
        "and at most 47 are allowed (the KubeRay operator refuses it after it was applied)."
    )
    assert lines[1] == "  Choose a shorter name."
    assert lines[6:] == ["These are the first 3 of 4."]


def test_a_mark_is_not_in_the_error():
    mark = Finding("RayJob a: spec.x", "is new in KubeRay 1.7", "Wait.", since="KubeRay 1.7")
    error = to_error([mark, Finding("RayJob a: spec.y", "is 1", "Give 2.")])
    assert (
        str(error)
        == "RayJob a: spec.y is 1 (the KubeRay operator refuses it after it was applied).\n  Give 2."
    )


def test_without_pod_security_the_rest_is_told():
    change = {f"{CLUSTER}/headGroupSpec/template/spec/hostNetwork": True, "spec/backoffLimit": -1}
    assert [each.by for each in check([changed(rayjob(), change)], enforced=lambda _: "privileged")] == [
        "operator"
    ]


def test_what_nobody_refuses_is_advice():
    bare = changed(rayjob(), {f"{CLUSTER}/authOptions": ABSENT, "spec/shutdownAfterJobFinishes": ABSENT})
    found = check([changed(bare, {"spec/ttlSecondsAfterFinished": ABSENT})])
    assert refusals(found) == []
    ends, token = advice(found)
    assert ends.startswith(
        "advice: RayJob right: spec.shutdownAfterJobFinishes is missing: the cluster stays"
    )
    assert "can run code there. Set authOptions" in token


@pytest.mark.parametrize("level", ["privileged", "baseline", "restricted"])
def test_pod_security_counts_where_it_is_enforced(level):
    both = changed(
        rayjob(),
        {
            f"{HEAD_POD}/securityContext/runAsUser": 0,
            f"{HEAD_BOX}/securityContext/capabilities/add": ["KILL", "SYS_PTRACE"],
            f"{HEAD_POD}/hostNetwork": True,
        },
    )
    asked: list[str] = []

    def enforced(namespace: str) -> Level:
        asked.append(namespace)
        return level

    found = [each.where.rpartition(".")[2] for each in check([both], enforced=enforced)]
    baseline = ["hostNetwork", "add[1]"]
    expected = {"privileged": [], "baseline": baseline, "restricted": [*baseline, "add[0]", "runAsUser"]}
    assert sorted(found) == sorted(expected[level]), found
    assert asked == [""]


def test_kinds_of_one_name_in_several_groups_are_different():
    calico = {"apiVersion": "crd.projectcalico.org/v1", "kind": "NetworkPolicy"}
    named = {"metadata": {"name": "right-head"}, "spec": {"selector": "all()", "types": ["Egress"]}}
    of_kubernetes = RIGHT["NetworkPolicy"]
    assert check([of_kubernetes, calico | named]) == []
    assert check([of_kubernetes, changed(of_kubernetes, {"metadata/namespace": "other"})]) == []
    assert [each.by for each in check([calico | named, calico | named])] == ["nobody"]


def test_the_schemas_are_those_of_a_version():
    surge = {"spec/template/spec/resources": {"limits": {"cpu": "1"}}}  # of a whole pod
    assert check([changed(other("Deployment"), surge)], version="1.34") == []
    (found,) = check([changed(other("Deployment"), surge)], version="1.25")
    assert found.message == "is not a field of Kubernetes"


def test_without_the_package_of_the_schemas_the_rules_remain(monkeypatch):
    monkeypatch.setattr("clustertrain.launchers.kubernetes.rules.check.schemas_of", lambda version: None)
    assert check([changed(other("Service"), {"spec/selectors": {}})]) == []
    assert check([changed(rayjob(), {"metadata/name": "Right"})])


def test_the_same_object_twice_is_told():
    (found,) = check([rayjob(), rayjob()])
    assert "occurs twice" in found.message


def test_objects_of_other_kinds_have_names_and_no_more():
    account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "a_b"}, "anything": [1]}
    assert [each.where for each in check([account])] == ["ServiceAccount a_b: metadata.name"]


ODD = [None, 7, "text", [], {}, True, [None], {"a": None}, -(2**70), 1e400, float("nan"), "\x00", "é" * 300]


@pytest.mark.parametrize("seed", range(30))
def test_no_manifest_makes_it_fail(seed):
    """Values of other types, anywhere; what it says can be printed."""
    dice = random.Random(seed)
    for name, manifest in RIGHT.items():
        made = copy.deepcopy(manifest)
        for _ in range(dice.randint(1, 4)):
            holder, key = dice.choice([*_places(made)])
            holder[key] = copy.deepcopy(dice.choice(ODD))
        for found in check([made]):
            assert "\n" not in f"{found.where}{found.message}{found.remedy}", (name, found)
    for odd in ODD:
        assert check([odd]) or isinstance(odd, dict)


def _places(value: Any):
    """Everything in it, as the holder and the key."""
    entries = (
        value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    )
    for key, inner in [*entries]:
        yield value, key
        yield from _places(inner)
