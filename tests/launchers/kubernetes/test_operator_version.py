"""A field that the operator's CRDs do not have: its version, and what to do. `Listed` is a fake, for the
wording; tests/kubernetes/test_kube_dry_run.py has a real server with older CRDs."""

import pytest

from clustertrain.errors import ClusterError
from clustertrain.launchers.kubernetes.cluster.dry_run import error_or_notes

FIELD = "spec.preRunningDeadlineSeconds"


class Listed:
    def __init__(self, *versions, may_list=True):
        self.versions, self.may_list = versions, may_list

    def __call__(self, *_):
        raise ClusterError("no schema is served")

    def list(self, *_):
        if not self.may_list:
            raise ClusterError("deployments is forbidden")
        return [
            {
                "metadata": {"name": "kuberay-operator", "namespace": f"ray-{version}"},
                "spec": {"template": {"spec": {"containers": [{"image": f"kuberay/operator:{version}"}]}}},
            }
            for version in self.versions
        ]


def refusal(field, operators):
    rayjob = {"kind": "RayJob", "metadata": {"name": "right"}, "apiVersion": "ray.io/v1"}
    with pytest.raises(ClusterError) as caught:
        error_or_notes([(rayjob, f'strict decoding error: unknown field "{field}"')], operators)
    return str(caught.value).splitlines()[1:]


@pytest.mark.parametrize(
    ("operators", "there"),
    [
        (
            Listed("v1.5.1"),
            "The cluster has the operator kuberay/operator:v1.5.1 "
            "(Deployment kuberay-operator in namespace ray-v1.5.1).",
        ),
        (Listed("1.6.2"), "The cluster has the operator kuberay/operator:1.6.2 (Deployment kuberay-operator"),
        (Listed(), "version is unknown"),
        (Listed(may_list=False), "version is unknown"),
    ],
)
def test_the_version_and_the_remedies_are_named(operators, there):
    refused, there_is, crds, without = refusal(FIELD, operators)
    assert refused == f"  RayJob right: {FIELD}: field not declared in schema"
    assert there_is.startswith("The field is new in KubeRay 1.6. ") and there in there_is
    assert "Helm does not update CRDs: kubectl apply --server-side -k " in crds
    assert without.endswith("--set 'kubernetes.patches={spec: {preRunningDeadlineSeconds: null}}'")
    _, other = refusal("spec.zzz", operators)
    assert other.startswith("It is misspelt, or newer than the cluster's CRDs") and there in other
