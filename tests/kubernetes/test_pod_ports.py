"""What other pods get out of a run: what docs/concepts/security.md lists, and no more.

The policy is enforced by the tests' own cluster (kube_policy.py) from before the run is submitted to its
end. To see what the token alone keeps shut, one more policy lets a stranger in.
"""

import json
import re
import subprocess
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from clusters.kube import KubeCluster
from clusters.kube_pods import shell_pod
from clusters.slurm import NOBODY
from kubernetes.rayjob_runs import CLAIM, HELD, HELD_STEP, RayJobRun
from support.whole_run import same_weights

pytestmark = pytest.mark.timeout(900)

ROOT = Path(__file__).parents[2]
PROBE = (ROOT / "tests" / "support" / "network_probe.py").read_text()
REQUESTS = (ROOT / "tests" / "support" / "requests_without_token.py").read_text()
WEB, OTHER = 8000, 5353  # the second is open to the DNS of the cluster, and to no other pod
SERVE = (
    f"cd /tmp && echo data > data.txt && (python -m http.server {WEB} & exec python -m http.server {OTHER})"
)
RUN, ROLE = "clustertrain.io/run", "clustertrain.io/role"
LET_IN = {
    "apiVersion": "networking.k8s.io/v1",
    "kind": "NetworkPolicy",
    "metadata": {"name": "let-in"},
    "spec": {
        "podSelector": {"matchLabels": {RUN: "guarded"}},
        "ingress": [{"from": [{"podSelector": {"matchLabels": {RUN: "other"}}}]}],
    },
}
Port = tuple[str, int]  # the name of a pod or a service, and its port


@dataclass(frozen=True)
class Pod:
    cluster: KubeCluster
    namespace: str
    name: str
    address: str

    def probe(self, *arguments: str) -> object:
        """See network_probe.py."""
        return self.python(PROBE, *arguments)

    def python(self, source: str, *arguments: str) -> object:
        command = ("exec", self.name, "--", "python", "-c", source, *arguments)
        done = self.cluster.kubectl(*command, namespace=self.namespace, timeout_s=420)
        return json.loads(done.stdout)


@dataclass(frozen=True)
class Listener:
    """A socket that other pods can try."""

    address: str
    port: int
    program: str
    pid: int


@dataclass(frozen=True)
class Door:
    """A row of the table of ports.md, and what it is here."""

    row: tuple[str, ...]
    program: str  # how its command line looks
    answers: frozenset[str]

    def is_of(self, role: str, pod: Pod, listener: Listener, answers: frozenset[str]) -> bool:
        _, roles, address, port, _ = self.row
        return (
            role in roles.replace("workers", "worker").split(", ")
            and (address == "the pod's own") == (listener.address in (pod.address, f"::ffff:{pod.address}"))
            and _is_port(listener.port, port)
            and re.search(self.program, listener.program) is not None
            and self.answers == answers
        )


def _is_port(port: int, documented: str) -> bool:
    if documented == "chosen by the kernel":
        return 32768 <= port <= 60999
    first, _, last = documented.partition(" to ")
    return int(first) <= port <= int(last or first)


OF_GRPC = frozenset({"grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"})
TO_GRPC = "gRPC's own services: anybody"
OF_METRICS = frozenset(  # the same page whatever is asked for
    {"/", "/metrics", "/api/healthz", "/api/version", "/api/jobs/", "/api/authentication_mode"}
    | {"/api/gcs_healthz", "/api/local_raylet_healthz", "/nodes", "/logs"}
)
OF_DASHBOARD = frozenset({"/", "/api/gcs_healthz", "/api/authentication_mode"})
TO_DASHBOARD = "the empty page, health checks, whether a token is required: anybody"
OF_AGENT = frozenset({"/api/healthz", "/api/local_raylet_healthz"})
SILENT = frozenset({"takes a connection and says nothing"})
NONE: frozenset[str] = frozenset()
# By listener: how its command line looks, what the table says that it answers, and what it answers.
LISTENERS = {
    "Ray's GCS": ("/gcs_server ", TO_GRPC, OF_GRPC),
    "Ray's dashboard": ("/dashboard.py ", TO_DASHBOARD, OF_DASHBOARD),
    "Ray's dashboard, its metrics": ("/dashboard.py ", "anybody", OF_METRICS),
    "Ray's client server": ("ray.util.client.server ", "nobody", NONE),
    "Ray's metrics": ("DashboardAgent", "anybody", OF_METRICS),
    "Ray's dashboard agent": ("DashboardAgent", "health checks: anybody", OF_AGENT),
    "Ray's dashboard agent, gRPC": ("DashboardAgent", "nobody", NONE),
    "Ray's runtime environment agent": ("RuntimeEnvAgent", "nobody", NONE),
    "Ray's two raylet servers": ("/raylet ", TO_GRPC, OF_GRPC),
    "the driver and every process that Ray starts": (
        r"ray::|clustertrain\.driver|default_worker",
        TO_GRPC,
        OF_GRPC,
    ),
    "torch's TCPStore, in the pod of rank 0": ("RayTrainWorker", "anybody", SILENT),
    "gloo, a socket of each rank": ("RayTrainWorker", "anybody", SILENT),
}


def documented(page: Path, header: str) -> set[tuple[str, ...]]:
    """The rows of the table of a page that has this header."""
    table = page.read_text().partition(f"\n| {header} |\n")[2].partition("\n\n")[0]
    return {tuple(cell.strip() for cell in line.strip("|").split("|")) for line in table.splitlines()[1:]}


PORTS = documented(
    Path(__file__).with_name("ports.md"),
    "listener | in the pod of | address | port | who gets an answer without the token",
)


@pytest.fixture
def outside(kube, namespace, other_namespace, image) -> dict[str, Pod]:
    """Pods that are not of the run, by name: one of another run beside it, and two in another namespace, of
    which one has the labels of the run's own. They have the kit's image for its Python, and serve a file."""
    kube.load(image)
    wanted = {
        "stranger": (namespace, {RUN: "other", ROLE: "worker"}),
        "twin": (other_namespace, {RUN: "guarded", ROLE: "worker"}),
        "prometheus": (other_namespace, {"app.kubernetes.io/name": "prometheus"}),
    }
    for name, (where, labels) in wanted.items():
        pod = shell_pod(name, "", labels)
        command = ["sh", "-c", SERVE]
        pod["spec"]["containers"][0].update(image=image, imagePullPolicy="Never", command=command)
        kube.apply(pod, namespace=where)
    for name, (where, _) in wanted.items():
        kube.wait_for_pod(where, name, timeout_s=120)
    return {name: pod_of(kube, where, name) for name, (where, _) in wanted.items()}


@pytest.fixture
def run(kube, namespace, outside, image, tmp_path) -> RayJobRun:
    """With data on HTTP."""
    kube.make_volume(namespace, CLAIM)
    data = {"data": {"uri": f"http://{outside['twin'].address}:{WEB}/data.txt"}}
    return RayJobRun(kube, namespace, tmp_path, "guarded", image=image, data=data, **HELD)


def pod_of(cluster: KubeCluster, namespace: str, name: str) -> Pod:
    return Pod(cluster, namespace, name, cluster.get("pods", name, namespace)["status"]["podIP"])


@pytest.mark.faults
@pytest.mark.nightly  # in CI: the token in slurm/test_security.py, the policies in launchers/kubernetes
def test_a_run_trains_behind_its_doors_and_others_get_what_the_docs_list(kube, run, outside, uninterrupted):
    with kube.network_policies(run.namespace):
        run.submit()
        run.wait_for_step(HELD_STEP)
        names = {"head": run.pods("head")[0], "submitter": run.pods("submitter")[0]}
        names |= dict(zip(("worker", "worker 2"), sorted(run.pods("worker")), strict=True))
        inside = {role: pod_of(kube, run.namespace, name) for role, name in names.items()}
        _assert_only_the_documented_flows_pass(kube, inside, outside)
        before = run.events
        seen = _what_answers(kube, inside, outside["stranger"])
        assert run.events == before  # no rank failed meanwhile
        _assert_documented(seen)
        look = [
            sys.executable,
            str(ROOT / "tests" / "support" / "other_user.py"),
            str(NOBODY),
            str(run.volume / "runs"),
        ]
        files = json.loads(subprocess.run(look, check=True, capture_output=True).stdout)
        assert files["open"] == [], "of the volume, which other pods may mount as other users"
        run.go_on()
        run.wait()
    assert (run.result.state, run.result.step, run.result.restarts) == ("done", 21, 0)
    assert same_weights(run.weights(), uninterrupted(2))


# Flows


def _assert_only_the_documented_flows_pass(
    kube: KubeCluster, inside: Mapping[str, Pod], outside: Mapping[str, Pod]
) -> None:
    """Who connects to what is the table, row by row, and what nobody guards."""
    before = _ports_of(inside)
    services = {("API server", 443): ("kubernetes", "default"), ("DNS", 53): ("kube-dns", "kube-system")}
    addresses = {
        port: kube.get("services", *service)["spec"]["clusterIP"] for port, service in services.items()
    }
    unguarded = {*services, ("twin", WEB), ("twin", OTHER)}
    pods = {**inside, **outside}
    targets = {
        **addresses,
        **{(name, port): pods[name].address for name, port in before | unguarded if name in pods},
    }
    passed = {(name, port) for name, pod in pods.items() for port in _reached(pod, targets)}
    of_ray = before & _ports_of(inside)
    ray = {"head", "worker", "worker 2"}
    rows = {
        (
            "the operator's pod; the submitter's pod",
            "head",
            "8265, Ray's dashboard, which accepts jobs and requires the token",
        ): {("submitter", ("head", 8265))},
        ("head and workers of the run", "each other", "all"): {
            (name, port) for name in ray for port in of_ray
        },
        ("Prometheus", "head and workers", "8080, metrics, which need no token"): {
            ("prometheus", (name, 8080)) for name in ray
        },
        (
            "pods of the run",
            "pods of `kube-system` and `openshift-dns`, and 169.254.0.0/16 on the node",
            "53 and 5353, DNS",
        ): {(name, ("DNS", 53)) for name in inside},
        (
            "pods of the run, where storage or data is on S3 or HTTP, or `env` names a logger's server",
            "anywhere",
            "the port of each endpoint, 443 for https",
        ): {(name, ("twin", WEB)) for name in inside},
    }
    assert set(rows) == documented(ROOT / "docs/concepts/security.md", "from | to | port")
    allowed = set().union(*rows.values()) | {(name, port) for name in outside for port in unguarded}
    fleeting = before - of_ray
    assert {each for each in passed if each[1] not in fleeting} == allowed
    assert {name for name, _ in of_ray} == ray
    assert (
        inside["worker"].probe("name", "kubernetes.default.svc.cluster.local") == addresses["API server", 443]
    )


def _ports_of(pods: Mapping[str, Pod]) -> set[Port]:
    return {(name, each.port) for name, pod in pods.items() for each in _listeners(pod)}


def _listeners(pod: Pod) -> list[Listener]:
    found = pod.probe("sockets")
    assert (found["udp"], found["abstract"]) == ([], [])
    listening = [Listener(*each) for each in found["tcp"]]
    return [each for each in listening if each.address.removeprefix("::ffff:") != "127.0.0.1"]


def _reached(pod: Pod, targets: Mapping[Port, str]) -> Iterable[Port]:
    places = {(address, name[1]): name for name, address in targets.items()}
    return {places[address, port] for address, port in pod.probe("reach", json.dumps(list(places)))}


# Ports


def _what_answers(
    kube: KubeCluster, inside: Mapping[str, Pod], stranger: Pod
) -> set[tuple[str, tuple[str, ...]]]:
    """The row of each port that takes a connection from the stranger, by the role of its pod."""
    head = inside["head"]
    kube.apply(LET_IN, namespace=stranger.namespace)
    gets_in = json.dumps([(head.address, 6379)])
    kube.wait_for(lambda: stranger.probe("reach", gets_in), 240, "nobody lets the stranger in")
    assert not list(_listeners(inside["submitter"]))
    return {
        (role, door.row)
        for role, pod in inside.items()
        if role != "submitter"
        for door in _doors(role.removesuffix(" 2"), pod, stranger)
    }


def _assert_documented(seen: set[tuple[str, tuple[str, ...]]]) -> None:
    """Every port that answers is a row of the table, and every row is there."""
    assert {(row[0], row[-1]) for row in PORTS} == {(name, said) for name, (_, said, _) in LISTENERS.items()}
    assert {row for role, row in seen if role == "head"} == {row for row in PORTS if row[1] != "workers"}
    in_workers = [{row for role, row in seen if role == worker} for worker in ("worker", "worker 2")]
    of_each = {row for row in PORTS if row[1] != "head"}
    of_rank_0 = {row for row in of_each if row[0].endswith("of rank 0")}
    assert sorted(in_workers, key=len) == [of_each - of_rank_0, of_each]


def _doors(role: str, pod: Pod, stranger: Pod) -> Iterable[Door]:
    """What the open ports of a pod are; those that come or go meanwhile are left out."""
    all_doors = [Door(row, program, answers) for row in PORTS for program, _, answers in [LISTENERS[row[0]]]]
    before = _listeners(pod)
    targets = [(pod.address, each.port) for each in before]
    order = {"uid": None, "targets": targets, "scan": pod.address}
    found = stranger.python(REQUESTS, json.dumps(order))
    later = _listeners(pod)
    still = {(each.address, each.port) for each in later}  # a worker's command line names what it runs now
    lasting = [each for each in before if (each.address, each.port) in still]
    ports = {each.port for each in lasting}
    assert ports <= set(found["open"]) <= {each.port for each in (*before, *later)}
    for each in lasting:
        answers = _answers(found["answers"][str(each.port)])
        doors = [door for door in all_doors if door.is_of(role, pod, each, answers)]
        assert len(doors) == 1, (role, each, sorted(answers))
        yield doors[0]


def _answers(found: Mapping[str, Mapping]) -> frozenset[str]:
    """Which requests were neither refused nor unknown, without a token or with a wrong one."""
    if not any((*found["http"].values(), *found["grpc"].values())):
        return SILENT
    http = {path for each in found["http"].values() for path, status in each.items() if status < 400}
    grpc = {
        f"{service}/{method}"
        for each in found["grpc"].values()
        for service, codes in each.items()
        for method, code in codes.items()
        if code not in ("UNAUTHENTICATED", "UNIMPLEMENTED")
    }
    return frozenset(http | grpc)
