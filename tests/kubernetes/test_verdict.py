"""What `check` says of manifests against what a real API server, KubeRay operator and Kueue do with them.

Every row of launchers/wrong_manifests.py and every right one is put to them, all at once. No image is needed:
the pods name a claim that is not there and are never scheduled, and that they were made is all that is asked.
"""

import json
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import pytest
import yaml

from clusters.kube_client import Kubernetes
from clustertrain.launchers.kubernetes.rules.check import check, refusals
from launchers.kubernetes.manifest_changes import Manifest, changed
from launchers.kubernetes.right_manifests import NAMES, RIGHT, rayjob
from launchers.kubernetes.wrong_manifests import NEEDS, WRONG

_QUIET_S = 10.0  # the operator looks again every 2 or 3 s
_LONGEST_S = 300.0  # on a machine that has more to do
_AT_ONCE = 4
_POD_FAILURES = {
    *("FailedToCreateHeadPod", "FailedToCreateWorkerPod", "FailedToCreateRayJobSubmitter"),
    "FailedToCreateService",  # of the head's ports, before its pod
}
_REFUSED_CLUSTERS = ("InvalidRayClusterMetadata", "InvalidRayClusterSpec")
_PLURALS = {"NetworkPolicy": "networkpolicies"}
_READY = {"status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}}


@dataclass
class Court:
    """A namespace where manifests await their verdict. `said`: what refused each, and in which words."""

    kube: Kubernetes
    namespace: str
    said: dict[str, tuple[str, str]] = field(default_factory=dict)

    def put(self, manifests: Iterable[tuple[str, Manifest]]) -> dict[str, str]:
        """The names of those that were taken, by their own names."""
        named = {name: self._named(manifest, name) for name, manifest in manifests}
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            done = dict(zip(named, pool.map(self._create, named.values()), strict=True))
        for name, refusal in done.items():
            if refusal:
                self.said[name] = ("kueue" if "admission webhook" in refusal else "api", refusal)
        return {made["metadata"]["name"]: name for name, made in named.items() if not done[name]}

    def wait(self, taken: dict[str, str]) -> None:
        """Until the operator is done with all that were taken; what it refused, or its pods, is then said."""
        ends, since, before = time.monotonic() + _LONGEST_S, time.monotonic(), ""
        while time.monotonic() - since < _QUIET_S:
            assert time.monotonic() < ends, f"no end of it within {_LONGEST_S:g} s"
            time.sleep(2)
            if (now := self._look(taken)) != before:
                since, before = time.monotonic(), now

    def make_ready(self, names: Iterable[str]) -> None:
        """Tell the operator that the clusters of these RayJobs run, so that it makes the submitters' pods."""
        jobs = {name: self.kube.get("rayjob", name, self.namespace) for name in names}
        clusters = {job["status"]["rayClusterName"] for job in jobs.values()}
        for pod in self.kube.items("pods", self.namespace):
            if pod["metadata"]["labels"].get("ray.io/cluster") in clusters:
                name, option = pod["metadata"]["name"], "--subresource=status"
                self.kube.patch("pod", name, _READY, option, namespace=self.namespace)

    def _named(self, manifest: Manifest, name: str) -> Manifest:
        """Under a name of its own, unless the name is what it is about."""
        return (
            changed(manifest, {"metadata/name": name}) if manifest["metadata"]["name"] in NAMES else manifest
        )

    def _create(self, manifest: Manifest) -> str:
        """What `kubectl create` sends, without what it asks before: it is called hundreds of times."""
        version, kind = manifest["apiVersion"], manifest["kind"]
        group = f"apis/{version}" if "/" in version else f"api/{version}"
        path = f"/{group}/namespaces/{self.namespace}/{_PLURALS.get(kind, f'{kind.lower()}s')}"
        raw = ("create", f"--raw={path}?fieldValidation=Strict", "--filename=-")
        done = self.kube.kubectl(*raw, input=json.dumps(manifest), check=False)
        return (done.stderr.strip() or "?") if done.returncode else ""

    def _look(self, taken: dict[str, str]) -> str:
        """Everything that the operator has done so far, as a text."""
        found: dict[str, list[Manifest]] = {}
        for each in self.kube.items("rayjobs,rayclusters,pods,jobs,events", self.namespace):
            found.setdefault(each["kind"], []).append(each)
        jobs, clusters, pods, submitters, events = (
            found.get(kind, []) for kind in ("RayJob", "RayCluster", "Pod", "Job", "Event")
        )
        for job in jobs:
            status = job.get("status", {})
            if status.get("jobDeploymentStatus") == "ValidationFailed":
                self.said[taken[job["metadata"]["name"]]] = ("operator", status["message"])
        owners = {each["metadata"]["name"]: _job_of(each) for each in (*clusters, *submitters)}
        for event in events:
            of = event["involvedObject"]["name"]
            if (name := taken.get(owners.get(of, of))) and (by := _who(event)):
                self.said.setdefault(name, (by, event["message"]))
        states = [job.get("status", {}).get("jobDeploymentStatus") for job in jobs]
        return json.dumps([states, len(clusters), len(pods), len(submitters), sorted(self.said)])


def _job_of(owned: Manifest) -> str:
    """The RayJob that a cluster or a submitter is of; a cluster of its own is its own."""
    labels = owned["metadata"].get("labels", {})
    return labels.get("ray.io/originated-from-cr-name", owned["metadata"]["name"])


def _who(event: Manifest) -> str | None:
    """Who refuses something in this event."""
    if event["reason"] in _REFUSED_CLUSTERS:
        return "operator"
    # An API server that allows no privileged pod at all says so earlier.
    if any(words in event["message"] for words in ("violates PodSecurity", "disallowed by cluster policy")):
        return "pod-security"
    return "pods" if event["reason"] in _POD_FAILURES else None


@pytest.fixture
def court(kube, namespace):
    return Court(kube, namespace)


_WATCHED = {"api", "operator", "pods", "pod-security"}  # without Kueue, all others are taken


@pytest.mark.timeout(900)
def test_check_says_what_the_api_server_and_the_operator_say(court):
    rights = {f"right-{number}": manifest for number, manifest in enumerate(RIGHT.values())}
    expected = {wrong.id: wrong.by if wrong.by in _WATCHED else None for wrong in WRONG} | dict.fromkeys(
        rights
    )
    taken = court.put([*rights.items(), *((wrong.id, wrong.made) for wrong in WRONG)])
    court.wait(taken)
    submitters = [name for name in taken if name.startswith(("submitter", "no-submitter"))]
    court.make_ready(["right-0", *submitters])
    court.wait(taken)
    found = {name: court.said.get(name, (None, ""))[0] for name in expected}
    different = {
        name: f"check: {expected[name]}, really: {court.said.get(name)}"
        for name in expected
        if found[name] != expected[name]
    }
    assert different == {}, yaml.safe_dump(different, width=300)
    assert court.kube.get("job", "right-0", court.namespace), "no submitter was made of the right one"


def test_the_old_crds_do_not_know_the_fields_of_the_new_ones(court):
    assert court.put((name.lower(), changed(rayjob(), change)) for name, change in NEEDS.items()) == {}
    assert {words.partition("unknown field")[1] for _, words in court.said.values()} == {"unknown field"}
    assert all(not refusals(check([changed(rayjob(), change)])) for change in NEEDS.values())


@pytest.fixture
def priority(kube_alone):
    kube_alone.start_kueue()
    made = {"apiVersion": "kueue.x-k8s.io/v1beta1", "kind": "WorkloadPriorityClass", "value": 1000}
    kube_alone.apply({**made, "metadata": {"name": "high"}})
    yield
    kube_alone.kubectl("delete", "workloadpriorityclass", "high")


@pytest.mark.timeout(900)
def test_check_says_what_kueue_says(kube_alone, namespace, priority):
    court = Court(kube_alone, namespace)
    wrongs = {wrong.id: wrong for wrong in WRONG if wrong.id.startswith(("kueue", "topology", "slice"))}
    rights = {name.replace(" ", "-"): right for name, right in RIGHT.items() if name.startswith("kueue")}
    court.put([*rights.items(), *((name, wrong.made) for name, wrong in wrongs.items())])
    expected = {name: wrong.by for name, wrong in wrongs.items() if wrong.by == "kueue"}
    assert {name: by for name, (by, _) in court.said.items()} == expected, court.said

    def queued() -> set[str]:
        found = kube_alone.items("workloads.kueue.x-k8s.io", namespace)
        return {owner["name"] for each in found for owner in each["metadata"]["ownerReferences"]}

    kube_alone.wait_for(lambda: queued() >= {*rights}, 60, "the right ones are not queued")
    time.sleep(_QUIET_S)
    assert queued() == {*rights}  # and none of those that wait for ever
