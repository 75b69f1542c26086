"""The table of the types of Ray's fields is that of KubeRay's CRDs, which `make kube-tools` fetches."""

import pytest
import yaml

from clusters.kube_client import TOOLS
from clustertrain.launchers.kubernetes.rules.check import check
from clustertrain.launchers.kubernetes.rules.ray_fields import CLUSTER_TYPES, JOB_TYPES
from launchers.kubernetes.manifest_changes import CLUSTER, HEAD, WORKERS, changed
from launchers.kubernetes.right_manifests import rayjob

CRD = TOOLS / "kuberay" / "crd" / "bases" / "ray.io_rayjobs.yaml"
OF_CRD = {
    "string": "text",
    "integer": "a whole number",
    "number": "a number",
    "boolean": "true or false",
    "object": "a mapping",
    "array": "a list",
}
OF_KUBERNETES = {"template", "submitterPodTemplate", "headService"}  # schemas.py, or nothing
# Their fields are rules of their own, or those of a container.
OTHERS = (
    "condition",
    "env",
    "envFrom",
    "resources",
    "securityContext",
    "volumeMounts",
    "redis",
    "deletionRules[]",
)


def types_of(schema, path=""):
    """The type of each field of Ray's own."""
    for key, inner in schema.get("properties", {}).items():
        yield f"{path}{key}", OF_CRD[inner.get("type", "string")]  # without one: an amount
        if inner.get("type") == "array":
            yield f"{path}{key}[]", OF_CRD[inner["items"]["type"]]
            yield from types_of(inner["items"], f"{path}{key}[].")
        elif key not in OF_KUBERNETES:
            yield from types_of(inner, f"{path}{key}.")


def table(types):
    return {path: expected for expected, paths in types.items() for path in paths}


@pytest.mark.skipif(not CRD.exists(), reason="`make kube-tools` has not fetched KubeRay")
def test_the_table_is_that_of_the_crd():
    versions = yaml.load(CRD.read_text(), yaml.CSafeLoader)["spec"]["versions"]
    schema = next(each for each in versions if each["name"] == "v1")["schema"]["openAPIV3Schema"]
    of_job = dict(types_of(schema["properties"]["spec"]))
    of_cluster = {
        path.removeprefix("rayClusterSpec."): of_job.pop(path)
        for path in [*of_job]
        if path.startswith("rayClusterSpec.")
    }
    for ours, theirs in ((table(JOB_TYPES), of_job), (table(CLUSTER_TYPES), of_cluster)):
        assert ours.items() <= theirs.items()
        left = [path for path in theirs.keys() - ours.keys() if not any(each in path for each in OTHERS)]
        assert left == []


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("spec/entrypoint", 1, "spec.entrypoint is 1, and must be text"),
        ("spec/backoffLimit", "2", "spec.backoffLimit is '2', and must be a whole number"),
        ("spec/backoffLimit", 2**31, "and must be a whole number"),
        ("spec/entrypointNumCpus", "1", "and must be a number"),
        ("spec/shutdownAfterJobFinishes", "yes", "is 'yes', and must be true or false"),
        ("spec/submitterConfig", [], "spec.submitterConfig is a list, and must be a mapping"),
        (f"{CLUSTER}/rayVersion", 2.6, "spec.rayClusterSpec.rayVersion is 2.6, and must be text"),
        (f"{HEAD}/enableIngress", 1, "and must be true or false"),
        (f"{WORKERS}/replicas", 1.5, "spec.rayClusterSpec.workerGroupSpecs[0].replicas is 1.5, and"),
        (f"{WORKERS}/groupName", float("inf"), "is inf, and must be text"),
    ],
)
def test_a_value_of_another_type_is_found_without_the_schemas(path, value, message):
    found = check([changed(rayjob(), {path: value})], version="")
    assert message in " ".join(f"{each.where} {each.message}" for each in found if each.by == "api")


def test_a_number_that_is_whole_may_have_a_fraction_of_zero():
    assert check([changed(rayjob(), {f"{WORKERS}/replicas": 1.0, "spec/entrypointNumCpus": 1})]) == []
