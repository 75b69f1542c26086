"""Every field of a rendered run gets wrong values: what `validate` finds without a cluster is compared with
what a real API server refuses in dry runs of the objects and of their pods.

`pytest -m nightly -s` prints what only one of the two refuses. Not in CI, since it sends 3,000 objects; rules
that are wrong show there in test_verdict.py.
"""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
import yaml

from clusters.kube_api import Refused
from clusters.kube_client import Kubernetes
from clustertrain.launchers.kubernetes.operator_pods import pods_of
from clustertrain.launchers.kubernetes.rules.check import check, refusals
from kubernetes.watched import ROOT
from launchers.kubernetes.manifest_mutations import Manifest, mutations

_AT_ONCE = 4
_OF_A_DRY_RUN = {"api", "pods", "pod-security"}  # not what the operator refuses later
# The rules are right: refused is a Job or a pod that only the operator makes. Go reads a list as bytes, too.
_NOT_IN_A_DRY_RUN = (
    *(
        "RayJob: spec = {}",
        "RayJob: spec = (removed)",
        ".template = {}",
        "ConfigMap: binaryData.code.tar.gz = []",
    ),
    *(
        "spec.submitterConfig.backoffLimit = -1",
        "submitterPodTemplate = {}",
        "submitterPodTemplate = (removed)",
    ),
    *("submitterPodTemplate.spec.restartPolicy = ''", "submitterPodTemplate.spec.restartPolicy = (removed)"),
)


def wrong_values(namespace: str) -> Iterator[tuple[str, Manifest]]:
    """Of one object of each kind of the example, by name of the change."""
    documents = yaml.safe_load_all((ROOT / "k8s" / "base" / "rayjob-digits.yaml").read_text())
    for manifest in {each["kind"]: each for each in documents}.values():
        manifest["metadata"]["namespace"] = namespace
        for change, made in mutations(manifest):
            if not change.startswith(("apiVersion", "kind", "metadata.namespace")):
                yield f"{manifest['kind']}: {change}", made


def refused(kube: Kubernetes, namespace: str, manifest: Manifest) -> str:
    """What the server refuses of the object, or of its pods; "" if nothing."""

    def refusal(each: Manifest) -> str:
        try:
            kube.api.create(each, namespace, dryRun="All", fieldValidation="Strict")
        except Refused as answer:
            return str(answer)
        return ""

    return refusal(manifest) or next(filter(None, map(refusal, pods_of([manifest]))), "")


@pytest.mark.nightly
@pytest.mark.timeout(1800)
def test_validate_finds_without_a_cluster_what_the_api_server_refuses(kube, namespace):
    made = dict(wrong_values(namespace))
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        answers = dict(
            zip(made, pool.map(lambda each: refused(kube, namespace, each), made.values()), strict=True)
        )
    found = {name: check([manifest]) for name, manifest in made.items()}
    missed = {name: answer for name, answer in answers.items() if answer and not found[name]}
    invented = {
        name: each.message
        for name, findings in found.items()
        for each in findings
        if each.by in _OF_A_DRY_RUN and not answers[name] and not name.endswith(_NOT_IN_A_DRY_RUN)
    }
    theirs = [name for name in made if answers[name]]
    ours = [name for name in theirs if refusals(found[name])]
    print(f"\n{len(made)} wrong values, {len(theirs)} refused by it, {len(ours)} of them by the rules")
    for title, those in (("only by it", missed), ("only by the rules", invented)):
        print(f"{len(those)} {title}", *(f"  {name}: {text[:200]}" for name, text in those.items()), sep="\n")
    assert (missed, invented) == ({}, {})
