"""What is said of manifests before a cluster sees them; tests/kubernetes/test_verdict.py asks one."""

import copy
import functools
import random
from pathlib import Path
from typing import Any

import pytest
import yaml

from clusters.kube_client import TOOLS
from clustertrain.errors import EXIT_JOB
from clustertrain.launchers.kubernetes.rules.check import Finding, check, refusals, to_error
from launchers.kubernetes.manifest_changes import CLUSTER, HEAD, WORKERS, changed
from launchers.kubernetes.right_manifests import RIGHT, rayjob
from launchers.kubernetes.wrong_manifests import NEEDS, WRONG

ROOT = Path(__file__).parents[3]
_CRDS = {
    "1.6.2": (TOOLS / "kuberay" / "crd" / "bases", "`make kube-tools` brings its CRDs"),
    "1.7.0": (
        ROOT.parent / "shared" / "kuberay",
        "the Go proxy does not serve it, and its CRDs are not here",
    ),
}


@functools.cache
def crds(version: str) -> list[dict[str, Any]]:
    """The CRDs of an operator; the test is skipped where they are not."""
    folder, why_not = _CRDS[version]
    files = [folder / f"ray.io_ray{kind}.yaml" for kind in ("jobs", "clusters")]
    if not all(file.exists() for file in files):
        pytest.skip(f"KubeRay {version}: {why_not}")
    return [yaml.load(file.read_text(), yaml.CSafeLoader) for file in files]


@pytest.fixture(scope="module", params=["1.6.2", pytest.param("1.7.0", marks=pytest.mark.newer_kuberay)])
def schemas(request):
    return crds(request.param)


# ---------------------------------------------------------------------------------------------- the table


@pytest.mark.parametrize("manifest", RIGHT.values(), ids=RIGHT)
def test_nothing_is_found_in_a_right_manifest(manifest):
    assert check([manifest]) == []


@pytest.mark.parametrize("wrong", WRONG, ids=lambda wrong: wrong.id)
def test_a_wrong_one_is_refused_for_the_right_reason(wrong):
    found = check([wrong.made])
    assert any(wrong.says in f"{each.where} {each.says}" and each.by == wrong.by for each in found), found
    assert len(found) == wrong.finds, found


def test_the_table_is_whole():
    assert len({wrong.id for wrong in WRONG}) == len(WRONG) >= 40
    assert len(RIGHT) >= 8


@pytest.mark.parametrize("change", NEEDS.values(), ids=NEEDS)
def test_a_field_of_a_newer_operator_is_a_mark_and_no_refusal(change):
    (found,) = check([changed(rayjob(), change)])
    assert found.needs == "KubeRay 1.7"
    assert refusals([found]) == []


# ------------------------------------------------------------------------------------------- with schemas


@pytest.mark.kubernetes
def test_nothing_is_found_in_the_right_ones_by_the_schemas_either(schemas):
    assert {name: found for name, each in RIGHT.items() if (found := check([each], schemas))} == {}


@pytest.mark.kubernetes
def test_with_schemas_the_same_ones_are_refused_by_the_same(schemas):
    found = {wrong.id: check([wrong.made], schemas) for wrong in WRONG}
    assert [wrong for wrong in WRONG if wrong.by not in {each.by for each in found[wrong.id]}] == []


UNKNOWN = {
    "spec/ttlSecondAfterFinished": "Did you mean 'ttlSecondsAfterFinished'?",
    f"{CLUSTER}/workerGroupSpec": "Did you mean 'workerGroupSpecs'?",
    f"{HEAD}/template/spec/nodeSelectors": "Did you mean 'nodeSelector'?",
    "specs": "Did you mean 'spec'?",
    "spec/zzz": "Take it out",
}


@pytest.mark.kubernetes
@pytest.mark.parametrize("path", UNKNOWN)
def test_an_unknown_key_is_told_with_the_nearest_one(path, schemas):
    (found,) = check([changed(rayjob(), {path: {}})], schemas)
    assert found.where == f"RayJob right: {path.replace('/', '.')}"
    assert "kubectl refuses it" in found.says
    assert UNKNOWN[path] in found.remedy


TYPES = {
    "spec/backoffLimit": ("2", "is '2', and must be a whole number"),
    "spec/entrypoint": (["python", "train.py"], "is a list, and must be text"),
    "spec/shutdownAfterJobFinishes": ("yes", "is 'yes', and must be true or false"),
    "spec/activeDeadlineSeconds": (2**31, "is 2147483648, and must be at most 2147483647"),
    "spec/submitterConfig": ([], "is a list, and must be a mapping"),
    f"{CLUSTER}/workerGroupSpecs": ({}, "is a mapping, and must be a list"),
    f"{CLUSTER}/authOptions/mode": ("tokens", "is 'tokens', and must be disabled or token"),
    f"{WORKERS}/replicas": (1.5, "is 1.5, and must be a whole number"),
}


@pytest.mark.kubernetes
@pytest.mark.parametrize("path", TYPES)
def test_a_value_of_the_wrong_type_is_told(path, schemas):
    value, says = TYPES[path]
    found = check([changed(rayjob(), {path: value})], schemas)
    assert found[0].where == f"RayJob right: {path.replace('/0', '[0]').replace('/', '.')}"
    assert found[0].says == says


@pytest.mark.kubernetes
def test_a_missing_key_is_told(schemas):
    job = rayjob()
    del job["spec"]["rayClusterSpec"]["headGroupSpec"]["template"]
    found = [each for each in check([job], schemas) if each.says == "is missing"]
    assert found[0].where == "RayJob right: spec.rayClusterSpec.headGroupSpec.template"


@pytest.mark.kubernetes
def test_an_old_crd_and_a_new_field_are_told_together():
    (found,) = check([changed(rayjob(), NEEDS["networkPolicy"])], crds("1.6.2"))
    assert found.needs is None
    assert found.remedy == "KubeRay 1.7 knows it: update the operator and its CRDs."


@pytest.mark.newer_kuberay
@pytest.mark.parametrize("change", NEEDS.values(), ids=NEEDS)
def test_the_new_operator_knows_its_fields(change):
    found = check([changed(rayjob(), change)], crds("1.7.0"))
    assert [each.needs for each in found if "is known since" in each.says] == ["KubeRay 1.7"]
    assert not any("does not know" in each.says for each in found)


# --------------------------------------------------------------------------------------------- the interface


def test_an_error_tells_the_first_three_in_two_lines_each():
    change = {"metadata/name": "a" * 50, "spec/entrypoint": "", "spec/backoffLimit": -1}
    found = check([changed(rayjob(), {**change, "spec/activeDeadlineSeconds": 0})])
    error = to_error(found)
    assert error.exit_code == EXIT_JOB
    lines = str(error).splitlines()
    assert lines[0] == (
        f"RayJob {'a' * 50}: metadata.name is '{'a' * 50}', 50 characters long, "
        "and at most 47 are allowed (the KubeRay operator refuses it)."
    )
    assert lines[1] == "  Choose a shorter name."
    assert lines[6:] == ["These are the first 3 of 4."]


def test_a_mark_is_not_in_the_error():
    mark = Finding("RayJob a: spec.x", "is known since KubeRay 1.7", "Wait.", needs="KubeRay 1.7")
    error = to_error([mark, Finding("RayJob a: spec.y", "is 1", "Give 2.")])
    assert str(error) == "RayJob a: spec.y is 1 (the KubeRay operator refuses it).\n  Give 2."


def test_without_pod_security_the_rest_is_told():
    change = {f"{CLUSTER}/headGroupSpec/template/spec/hostNetwork": True, "spec/backoffLimit": -1}
    assert [each.by for each in check([changed(rayjob(), change)], pod_security=False)] == ["operator"]


def test_the_same_object_twice_is_told():
    (found,) = check([rayjob(), rayjob()])
    assert "is there twice" in found.says


def test_objects_of_other_kinds_have_names_and_no_more():
    account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "a_b"}, "anything": [1]}
    assert [each.where for each in check([account])] == ["ServiceAccount a_b: metadata.name"]


ODD = [None, 7, "text", [], {}, True, [None], {"a": None}, -(2**70), 1e400, float("nan"), "\x00", "é" * 300]


@pytest.mark.kubernetes
@pytest.mark.parametrize("seed", range(30))
def test_no_manifest_makes_it_fail(seed):
    """Values of other types, anywhere, with and without a schema; what it says can be printed."""
    dice = random.Random(seed)
    schemas = crds("1.6.2") if seed % 3 == 0 else ()
    for name, manifest in RIGHT.items():
        made = copy.deepcopy(manifest)
        for _ in range(dice.randint(1, 4)):
            holder, key = dice.choice([*_places(made)])
            holder[key] = copy.deepcopy(dice.choice(ODD))
        for found in check([made], schemas):
            assert "\n" not in f"{found.where}{found.says}{found.remedy}", (name, found)
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
