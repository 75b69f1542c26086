"""KubeRay's own samples, which come with its module: nothing in them is refused."""

from pathlib import Path

import pytest

from clusters.kube_client import TOOLS
from clustertrain.launchers.kubernetes.manifest_file import manifests_in
from clustertrain.launchers.kubernetes.rules.check import advice, check, refusals

SAMPLES = sorted(TOOLS.glob("kuberay/samples/**/*.yaml"))


@pytest.mark.skipif(not SAMPLES, reason="`make kube-tools` has not fetched KubeRay")
def test_none_of_the_samples_is_refused():
    assert len(SAMPLES) >= 50
    refused, advised = {}, 0
    for path in SAMPLES:
        documents = manifests_in(Path(path))
        assert documents, path
        found = check(documents, enforced=lambda namespace: "privileged")
        refused |= {path.name: refusals(found)} if refusals(found) else {}
        advised += len(advice(found))
    assert refused == {}
    assert advised > 0  # most of them have no token, for example
