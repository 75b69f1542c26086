"""What a job names and the cluster does not have is refused by name, and so is another image.

The cluster that is asked here is a fake, for the wording alone; tests/kubernetes/test_watching_pods.py asks a
real one.
"""

import json

import pytest

from clustertrain.errors import ClusterError
from clustertrain.job.file import parse_job
from clustertrain.launchers.kubernetes.cluster.kubectl import Kubectl
from clustertrain.launchers.kubernetes.cluster.preflight import check_cluster, check_image, why_not_for_all
from clustertrain.launchers.kubernetes.keys.pod_sections import Volume
from clustertrain.version import RAY_VERSION, __version__

JOB = """
name: digits
function: train:train
image: clustertrain:dev
resources: {{workers: 2}}
kubernetes: {{head: {{cpus: 1}}{kubernetes}}}
"""


def make_job(kubernetes=""):
    """kubernetes=", …": more of its section."""
    return parse_job(JOB.format(kubernetes=kubernetes), "job.yaml")


# ------------------------------------------------------------------------------------------------- the claims


@pytest.mark.parametrize(
    ("modes", "nodes", "writes", "read_only", "said"),
    [
        (["ReadWriteMany"], 9, True, False, None),
        (["ReadWriteOnce"], 1, True, False, None),
        (["ReadWriteOnce"], 0, True, False, None),  # how many there are may not be looked at
        (["ReadWriteOnce"], 2, True, False, "only one node can mount it, and the pods may run on any of 2"),
        (["ReadWriteOncePod"], 1, True, False, "only one pod can mount it"),
        (["ReadOnlyMany"], 2, True, False, "the run writes its storage there"),
        (["ReadOnlyMany"], 2, False, True, None),
        (["ReadWriteOnce", "ReadWriteMany"], 2, True, False, None),
    ],
)
def test_a_claim_is_for_all_pods(modes, nodes, writes, read_only, said):
    volume = Volume(mount="/mnt/x", claim="shared", read_only=read_only)
    why = why_not_for_all(volume, modes, nodes, writes=writes)
    assert why is None if said is None else said in (why or "") and "shared" in (why or "")


# -------------------------------------------------------------------------------------------- a fake cluster


@pytest.fixture
def fake(tmp_path, monkeypatch):
    """fake({"get secret s": answer, …}) puts a kubectl on PATH; an answer of None is that it is forbidden."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    for engine in ("podman", "docker"):  # has no image
        (folder / engine).write_text("#!/bin/sh\nexit 1\n")
        (folder / engine).chmod(0o755)

    def put(answers):
        cases = [_case(asked, answer) for asked, answer in answers.items()]
        missing = "echo 'Error from server (NotFound): it was not found' >&2; exit 1"
        listed = """*"s --output=json"*) echo '{"items": []}';;"""  # kinds are asked for in plural
        script = "\n".join(["#!/bin/sh", 'case "$*" in', *cases, listed, f"*) {missing};;", "esac", ""])
        (folder / "kubectl").write_text(script)
        (folder / "kubectl").chmod(0o755)
        return Kubectl("team")

    return put


def _case(asked, answer):
    says = f"echo '{json.dumps(answer)}'"
    if answer is None:
        who = f'User "ci" cannot get resource "{asked.split()[1]}"'
        says = f"echo 'Error from server (Forbidden): {who}' >&2; exit 1"
    return f'*"{asked}"*) {says};;'


CLAIM = {"spec": {"accessModes": ["ReadWriteMany"]}}
SEEN = {
    "get namespace team": {},
    "get persistentvolumeclaim clustertrain ": CLAIM,
}


def test_a_run_that_nothing_keeps_from_starting(fake):
    job = make_job()
    assert check_cluster(job, fake(SEEN)) == []


def test_what_may_not_be_looked_at_is_left_out_and_named(fake):
    job = make_job(kubernetes=", secrets: [aws]")
    kubectl = fake({**SEEN, "get secret": None, "get nodes": None})
    (note,) = check_cluster(job, kubectl)
    for kind in ("secret", "nodes"):
        assert f"may not get {kind}" in note


# -------------------------------------------------------------------------------------------------- the image


@pytest.mark.parametrize(
    ("labels", "said"),
    [
        (None, "has no label io.clustertrain.version"),
        ({"io.clustertrain.version": __version__, "io.clustertrain.ray": RAY_VERSION}, None),
        ({"io.clustertrain.version": __version__, "io.clustertrain.ray": "2.40.0"}, "has Ray 2.40.0"),
        ({"io.clustertrain.version": "9.9", "io.clustertrain.ray": RAY_VERSION}, "has clustertrain 9.9"),
    ],
)
def test_an_image_of_this_machine_is_the_kits_with_the_same_ray(tmp_path, monkeypatch, labels, said):
    podman = tmp_path / "podman"
    podman.write_text(f"#!/bin/sh\necho '{json.dumps(labels)}'\n")
    podman.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    if said is None:
        check_image(make_job())
        return
    with pytest.raises(ClusterError, match=said):
        check_image(make_job())


def test_an_image_that_no_engine_here_has_is_left_to_the_pods(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    check_image(make_job())
