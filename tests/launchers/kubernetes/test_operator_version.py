"""A field that the operator's CRDs do not have: its version, and what to do. `Listed` is a fake, for the
wording; tests/kubernetes/test_kube_dry_run.py has a real server with older CRDs."""

import pytest

from clustertrain.errors import ClusterError
from clustertrain.launchers.kubernetes.cluster.operator_version import too_old

FIELD = "spec.preRunningDeadlineSeconds"


class Listed:
    def __init__(self, *versions, may_list=True):
        self.versions, self.may_list = versions, may_list

    def list(self, *_):
        if not self.may_list:
            raise ClusterError("deployments is forbidden")
        pod = {"spec": {"containers": [{"image": "quay.io/kuberay/operator:nightly"}]}}
        return [
            {
                "metadata": {
                    "name": "kuberay-operator",
                    "namespace": f"ray-{version}",
                    "labels": {"app.kubernetes.io/version": version},
                },
                "spec": {"template": pod},
            }
            for version in self.versions
        ]


@pytest.mark.parametrize(
    ("operators", "there", "remedy"),
    [
        (Listed("v1.5.1"), "v1.5.1 (Deployment kuberay-operator in namespace ray-v1.5.1)", "null}}'"),
        (Listed("1.6.2"), "1.6.2 (Deployment kuberay-operator", "ray-operator/config/crd?ref=v1.6.2'"),
        (Listed(), "", "null}}'"),
        (Listed(may_list=False), "", "null}}'"),
    ],
)
def test_the_version_and_the_remedy_are_named(operators, there, remedy):
    text = too_old(FIELD, operators)
    assert "KubeRay 1.6" in text
    assert too_old("spec.zzz", operators) is None
    assert there in text
    assert text.endswith(remedy)
