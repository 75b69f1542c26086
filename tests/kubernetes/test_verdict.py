"""What `check` says of manifests against what a real API server, KubeRay operator and Kueue do with them.

Every row of launchers/wrong_manifests.py and every right one is put to them, all at once. No image is needed:
the pods name a claim that is not there and are never scheduled, and that they were made is all that is asked.
"""

import json
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import pytest
import yaml

from clusters.kube_api import Refused
from clusters.kube_client import Kubernetes
from clustertrain.launchers.kubernetes.rules.check import check, refusals
from launchers.kubernetes.manifest_changes import Manifest, changed
from launchers.kubernetes.right_manifests import NAMES, RIGHT, rayjob
from launchers.kubernetes.wrong_manifests import NEEDS, WRONG

_QUIET_S = 5.0  # the operator looks again every 2 or 3 s
_POLL_S = 2.0  # to list everything takes a second of CPU
_LONGEST_S = 300.0  # on a machine that has more to do
_AT_ONCE = 4
_POD_FAILURES = {
    *("FailedToCreateHeadPod", "FailedToCreateWorkerPod", "FailedToCreateRayJobSubmitter"),
    "FailedToCreateService",  # of the head's ports, before its pod
}
_REFUSED_CLUSTERS = ("InvalidRayClusterMetadata", "InvalidRayClusterSpec")
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

    def wait(self, taken: dict[str, str], expected: Callable[[], bool]) -> None:
        """Until all that is expected is said, and then until the operator has nothing to add; or until the
        time is up, for the test to show what is missing."""
        ends, since, before = time.monotonic() + _LONGEST_S, time.monotonic(), ""
        while time.monotonic() < ends and not (expected() and time.monotonic() - since > _QUIET_S):
            time.sleep(_POLL_S)
            if (now := self._look(taken)) != before:
                since, before = time.monotonic(), now

    def make_ready(self, names: Iterable[str]) -> None:
        """Tell the operator that the clusters of these RayJobs run, so that it makes the submitters' pods."""
        jobs = {name: self.kube.get("rayjobs", name, self.namespace) for name in names}
        clusters = {job["status"]["rayClusterName"] for job in jobs.values()}
        for pod in self.kube.items("pods", self.namespace):
            if pod["metadata"]["labels"].get("ray.io/cluster") in clusters:
                self.kube.patch("pods", pod["metadata"]["name"], _READY, self.namespace, "status")

    def has(self, resource: str, name: str) -> bool:
        return bool(self.kube.get(resource, name, self.namespace))

    def _named(self, manifest: Manifest, name: str) -> Manifest:
        """Under a name of its own, unless the name is what it is about."""
        return (
            changed(manifest, {"metadata/name": name}) if manifest["metadata"]["name"] in NAMES else manifest
        )

    def _create(self, manifest: Manifest) -> str:
        """What refuses it, as `kubectl create` would send it."""
        try:
            self.kube.api.create(manifest, self.namespace, fieldValidation="Strict")
        except Refused as refused:
            return str(refused)
        return ""

    def _look(self, taken: dict[str, str]) -> str:
        """Everything that the operator has done so far, as a text."""
        jobs, events = (self.kube.items(resource, self.namespace) for resource in ("rayjobs", "events"))
        clusters, pods, submitters = (
            self.kube.metadata(resource, self.namespace) for resource in ("rayclusters", "pods", "jobs")
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


@pytest.mark.nightly  # in CI: test_kube_dry_run.py, and the same manifests in launchers/kubernetes
@pytest.mark.timeout(900)
def test_check_says_what_the_api_server_and_the_operator_say(court):
    rights = {f"right-{number}": manifest for number, manifest in enumerate(RIGHT.values())}
    expected = {wrong.id: wrong.by if wrong.by in _WATCHED else None for wrong in WRONG} | dict.fromkeys(
        rights
    )
    taken = court.put([*rights.items(), *((wrong.id, wrong.made) for wrong in WRONG)])
    submitters = {name for name in taken if name.startswith(("submitter", "no-submitter"))}
    refused = {name for name in expected if expected[name]}
    court.wait(taken, lambda: court.said.keys() >= refused - submitters)
    court.make_ready(["right-0", *submitters])
    court.wait(taken, lambda: court.said.keys() >= refused and court.has("jobs", "right-0"))
    found = {name: court.said.get(name, (None, ""))[0] for name in expected}
    different = {
        name: f"check: {expected[name]}, really: {court.said.get(name)}"
        for name in expected
        if found[name] != expected[name]
    }
    assert different == {}, yaml.safe_dump(different, width=300)
    assert court.has("jobs", "right-0"), "no submitter was made of the right one"


def test_the_old_crds_do_not_know_the_fields_of_the_new_ones(court):
    assert court.put((name.lower(), changed(rayjob(), change)) for name, change in NEEDS.items()) == {}
    assert {words.partition("unknown field")[1] for _, words in court.said.values()} == {"unknown field"}
    assert all(not refusals(check([changed(rayjob(), change)])) for change in NEEDS.values())


@pytest.fixture
def priority(kube, namespace):
    kube.queue_jobs(namespace)
    made = {"apiVersion": "kueue.x-k8s.io/v1beta1", "kind": "WorkloadPriorityClass", "value": 1000}
    kube.apply({**made, "metadata": {"name": "high"}})
    yield
    kube.delete("workloadpriorityclasses", "high")


@pytest.mark.nightly  # in CI: Kueue in test_watching_pods.py
@pytest.mark.timeout(900)
def test_check_says_what_kueue_says(kube, namespace, priority):
    court = Court(kube, namespace)
    wrongs = {wrong.id: wrong for wrong in WRONG if wrong.id.startswith(("kueue", "topology", "slice"))}
    rights = {name.replace(" ", "-"): right for name, right in RIGHT.items() if name.startswith("kueue")}
    court.put([*rights.items(), *((name, wrong.made) for name, wrong in wrongs.items())])
    expected = {name: wrong.by for name, wrong in wrongs.items() if wrong.by == "kueue"}
    assert {name: by for name, (by, _) in court.said.items()} == expected, court.said

    def queued() -> set[str]:
        found = kube.items("workloads", namespace)
        return {owner["name"] for each in found for owner in each["metadata"]["ownerReferences"]}

    kube.wait_for(lambda: queued() >= {*rights}, 240, "the right ones are not queued")
    time.sleep(_QUIET_S)
    assert queued() == {*rights}  # and none of those that wait for ever
