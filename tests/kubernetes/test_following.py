"""What follows a run: it survives an API server that restarts, and its last words are of the end."""

import time
from pathlib import Path

import pytest
from urllib3.exceptions import HTTPError

from clusters.kube import KubeCluster
from clusters.kube_api import Refused
from clusters.kube_client import Kubernetes
from clustertrain.errors import EXIT_CLUSTER
from kubernetes.cluster_user import User, bind_role, inert, write_job
from kubernetes.fake_head import FakeHead


class Follower:
    """A command that runs beside the test, and the file of its output."""

    def __init__(self, own: User, folder: Path, *command: str) -> None:
        self.output = folder / f"{command[0]}.out"
        self._process = own.start(*command, output=self.output)
        self.command = command

    def has_printed(self, text: str) -> bool:
        return text in self.output.read_text()

    def end(self, code: int = 0) -> list[str]:
        assert self._process.wait(120) == code, self.output.read_text()
        return self.output.read_text().splitlines()


def followed(kube: Kubernetes, namespace: str, folder: Path) -> tuple[User, FakeHead, Follower, Follower]:
    """A run of an account of this namespace, that `submit --wait` and `logs -f` follow; its workers start."""
    volume = kube.make_volume(namespace, "runs")
    job_file = write_job(folder, namespace, **inert())
    own = User(kube, namespace, job_file, bind_role(kube, namespace))
    head = FakeHead(kube, namespace, own.name, volume)
    waiting = Follower(own, folder, "submit", "--wait")
    kube.watch("rayjobs", namespace, bool, 60, "no RayJob", name=own.name)
    head.says("waiting", "workers")
    head.start()
    kube.wait_for(lambda: waiting.has_printed("waiting (workers)"), 60, "--wait does not see it")
    logs = Follower(own, folder, "logs", "--follow")
    kube.wait_for(lambda: head.is_followed, 60, "nobody follows it")
    return own, head, waiting, logs


def done(kube: Kubernetes, head: FakeHead) -> None:
    """It ends, and a while later the operator has noticed."""
    head.says("done", "finished", over=True, of_result=True, exit_code=0)
    head.end_its_logs()
    kube.wait_for(lambda: head.is_read, 60, "nobody sees its end")
    head.native(jobDeploymentStatus="Complete", jobStatus="SUCCEEDED")


def test_followers_of_a_run_print_its_end_last(kube, namespace, tmp_path):
    _, head, waiting, logs = followed(kube, namespace, tmp_path)
    done(kube, head)
    assert logs.end()[-3:] == ["the attempt begins", "the attempt ends", "done (finished)"]
    table = waiting.end()
    assert any(line.split(maxsplit=1) == ["state", "done (finished)"] for line in table)
    assert any(line.startswith("RayJob ") and line.endswith(": Complete, SUCCEEDED") for line in table)


def test_a_run_that_kubectl_applied_is_known_by_its_job_file_and_not_readable_without_its_head(
    kube, namespace, tmp_path
):
    """What `render` prints, with a head that runs; nobody has submitted it."""
    volume = kube.make_volume(namespace, "runs")
    own = User(kube, namespace, write_job(tmp_path, namespace, **inert()), bind_role(kube, namespace))
    apply = ("apply", "--server-side", "--filename=-")
    kube.kubectl(*apply, input=own("render").stdout, namespace=namespace, kubeconfig=own.kubeconfig)
    head = FakeHead(kube, namespace, own.name, volume)
    head.says("running", "training", step=12)
    head.start()
    head.end_its_logs()
    rows = own("status").stdout.splitlines()
    assert "running (training)" in "\n".join(rows)
    assert ["attempt", "1"] in [row.split() for row in rows]
    assert own("logs").stdout.splitlines()[-1] == "the attempt ends"
    assert own.find("ckpt", "ls", "--to", "kubernetes").stdout.startswith("-m clustertrain.cli ckpt ls /")
    assert own.name in own("ls").stdout

    (pod,) = kube.items("pods", namespace, "clustertrain.io/role=head")
    kube.delete("pods", pod["metadata"]["name"], namespace, grace_s=0)
    kube.wait_until_gone("pods", namespace, 60, name=pod["metadata"]["name"])
    (attempt,) = [row for row in own("status").stdout.splitlines() if row.startswith("attempt")]
    assert attempt.endswith("not readable now: its head's pod does not run")
    head.native(jobDeploymentStatus="Suspended", jobStatus="")
    said = own("stop").stdout
    assert "workers that run save before their pods end" in said
    assert f"Kubernetes job {own.name} is deleted" in said
    assert not kube.items("rayjobs", namespace) and not kube.items("networkpolicies", namespace)
    unread = own("status", code=EXIT_CLUSTER).stderr
    assert "has no RayJob" in unread and "the storage was not read" in unread


def serves_rayjobs(kube: Kubernetes) -> bool | None:
    """None: it does not answer at all."""
    try:
        kube.api.send("GET", "/apis/ray.io/v1")
    except Refused as refused:
        assert refused.status in (403, 404, 503), refused
        return False
    except HTTPError:
        return None
    return True


@pytest.mark.nightly  # in CI: the answers of such a server in launchers/kubernetes/test_kubectl.py
def test_an_api_server_that_starts_is_waited_for(kube_alone: KubeCluster, namespace, tmp_path):
    """Before it has read its CRDs it says that there are no RayJobs, and before its roles that nothing is
    allowed. A server may start so fast that nobody sees that: then it starts again."""
    own, head, waiting, logs = followed(kube_alone, namespace, tmp_path)
    for _ in range(5):
        kube_alone.kill("apiserver")
        kube_alone.wait_for(lambda: waiting.has_printed("does not answer"), 60, "nobody has asked it")
        kube_alone.start("apiserver")
        while serves_rayjobs(kube_alone) is None:
            time.sleep(0.02)
        asked_early = not serves_rayjobs(kube_alone)
        statuses = [own.start("status", output=tmp_path / f"status-{n}") for n in range(2)]
        said = [(each.wait(120), (tmp_path / f"status-{n}").read_text()) for n, each in enumerate(statuses)]
        assert all(code == 0 and "waiting (workers)" in text for code, text in said), said
        if asked_early:
            break
    assert asked_early
    done(kube_alone, head)
    followers = [*waiting.end(), *logs.end()]
    wrong = ("error:", "no matches for kind", " cannot ")
    assert not [line for line in followers if any(each in line for each in wrong)]
    assert followers[-1] == "done (finished)"
