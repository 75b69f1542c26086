"""The table of the types of Ray's fields is that of KubeRay's CRDs, which `make kube-tools` fetches."""

import pytest
import yaml

from clusters.kube_client import TOOLS
from clustertrain.launchers.kubernetes.rules.check import check, refusals
from clustertrain.launchers.kubernetes.rules.ray_fields import CLUSTER_TYPES, JOB_TYPES
from launchers.kubernetes.manifest_changes import CLUSTER, HEAD, HEAD_BOX, WORKERS, changed
from launchers.kubernetes.right_manifests import rayjob

PROBE = "startupProbe/periodSeconds"
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


@pytest.mark.parametrize("path", ["spec/backoffLimit", f"{WORKERS}/replicas", f"{HEAD_BOX}/{PROBE}"])
def test_a_number_beyond_int32_is_refused(path):
    """Not among the manifests that are sent to a real cluster: its operator would read no other RayJob."""
    manifest = changed(rayjob(), {f"{HEAD_BOX}/startupProbe": {"httpGet": {"port": 8000}}, path: 2**31})
    refused = refusals(check([manifest], version=""))
    assert any("the operator cannot read it" in each.message for each in refused)


def test_a_value_that_kuberay_does_not_have_is_advice():
    (found,) = check([changed(rayjob(), {f"{CLUSTER}/autoscalerOptions": {"version": "v3"}})], version="")
    assert (found.by, found.message) == ("nobody", "is 'v3', and KubeRay 1.6 has v1 and v2")


@pytest.mark.parametrize(
    ("path", "remedy"),
    [
        ("spec/backoffLimits", "Did you mean 'backoffLimit'?"),
        (f"{CLUSTER}/workerGroupSpec", "Did you mean 'workerGroupSpecs'?"),
        (f"{WORKERS}/replica", "Did you mean 'replicas'?"),
        (f"{CLUSTER}/authOptions/modes", "Did you mean 'mode'?"),
        (f"{HEAD}/zzz", "A cluster without this field refuses it."),
    ],
)
def test_a_field_that_kuberay_does_not_have_is_advice(path, remedy):
    (found,) = check([changed(rayjob(), {path: 1})], version="")
    assert (found.by, found.remedy) == ("nobody", remedy)
    assert found.where == f"RayJob right: {path.replace('/0', '[0]').replace('/', '.')}"


@pytest.mark.parametrize(
    "path", ["spec/rayClusterSpec/headGroupSpec/rayStartParams/any", "spec/metadata/any"]
)
def test_a_key_of_the_user_is_no_field(path):
    assert check([changed(rayjob(), {path: "1"})], version="") == []


def test_a_number_that_is_whole_may_have_a_fraction_of_zero():
    assert check([changed(rayjob(), {f"{WORKERS}/replicas": 1.0, "spec/entrypointNumCpus": 1})]) == []
