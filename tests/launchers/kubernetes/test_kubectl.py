"""What the kit makes of kubectl's words. The kubectl here is a fake that says them; tests/kubernetes has a
real one, and a real API server.
"""

import json
import os
from dataclasses import replace

import pytest

from clustertrain.errors import EXIT_CLUSTER, ClusterError, JobError, StorageError
from clustertrain.launchers.known_runs import KnownRun
from clustertrain.launchers.kubernetes.cluster.kubectl import Kubectl, Unanswered
from clustertrain.launchers.kubernetes.observed.run_storage import RunStorage, error_from_pod
from clustertrain.launchers.kubernetes.scheduler import SCHEDULER, check_admission, place_of
from clustertrain.launchers.kubernetes.storage import REACH
from clustertrain.launchers.scheduler.interface import Sent
from clustertrain.launchers.shell import CommandFailed
from clustertrain.launchers.target import NotThere, Target
from launchers.kubernetes.sample_manifests import RIGHT, rayjob
from support.commands import write_program


@pytest.fixture
def fake(tmp_path, monkeypatch):
    """fake(code, stderr, stdout) puts a kubectl on PATH that says so; one that `hangs` does not end."""
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")

    def put(code, stderr="", stdout="", hangs=False):
        (tmp_path / "stderr").write_text(stderr)
        (tmp_path / "stdout").write_text(stdout)
        ready = 'case "$*" in *--raw=/readyz) echo ok; exit;; esac'
        says = f'{ready}; echo "$@" >argv; echo $$ >pid; cat stdout; cat stderr >&2'
        ends = "exec sleep 60" if hangs else f"exit {code}"
        write_program(tmp_path / "kubectl", f"cd {tmp_path}\n{says}\n{ends}")
        return tmp_path / "argv"

    return put


FORBIDDEN = (
    'Error from server (Forbidden): rayjobs.ray.io is forbidden: User "system:serviceaccount:team:ci" cannot '
    'list resource "rayjobs" in API group "ray.io" in the namespace "team"'
)


@pytest.mark.parametrize(
    ("stderr", "kind"),
    [
        (FORBIDDEN, CommandFailed),
        (
            "Error from server (InternalError): failed calling webhook: dial tcp: connection refused",
            CommandFailed,
        ),
        ('error: context "there" does not exist', Unanswered),
        (
            "The connection to the server localhost:8080 was refused - did you specify the right host?",
            Unanswered,
        ),
        (
            'error: failed to download openapi: Get "https://10.0.0.1:6443/openapi/v2": net/http: request '
            "canceled (Client.Timeout exceeded while awaiting headers)",
            Unanswered,
        ),
    ],
)
def test_every_refusal_is_in_kubectls_words(fake, stderr, kind):
    fake(1, f"E1121 20:00:00 memcache.go:265] noise\n{stderr}\n")
    with pytest.raises(ClusterError) as caught:
        Kubectl("team", "there")("get", "rayjobs.ray.io")
    assert type(caught.value) is kind
    assert stderr in str(caught.value)
    assert caught.value.exit_code == EXIT_CLUSTER
    assert 2 <= len(str(caught.value).splitlines()) <= 3


@pytest.mark.parametrize(
    "early",
    [
        'error: the server doesn\'t have a resource type "rayjobs"',
        FORBIDDEN,
        "Error from server (NotFound): the server could not find the requested resource",
        "error: You must be logged in to the server (Unauthorized)",
        "Error from server (ServiceUnavailable): the request has been made before all known HTTP paths have "
        "been installed, please try again",
    ],
)
def test_the_first_words_of_a_server_that_starts_are_not_believed(tmp_path, monkeypatch, early):
    """It does not know its CRDs, roles and accounts yet. These are the words of a real one."""
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    forbidden = 'Error from server (Forbidden): forbidden: User "ci" cannot get path "/readyz"'
    unready = (
        'Error from server (InternalError): an error on the server ("[+]ping ok\\n[-]etcd-readiness failed")'
    )
    answers = [early, forbidden, unready, "", "", "is asked once"]
    for number, words in enumerate(answers):
        (tmp_path / f"{number}").write_text(words)
    asks = 'n=$(ls | grep -c asked); echo "$@" >asked-$n; cat $n >&2; [ ! -s $n ]'
    write_program(tmp_path / "kubectl", f"cd {tmp_path}; {asks}")
    assert Kubectl("team")("get", "rayjobs.ray.io").code == 0
    asked = [(tmp_path / f"asked-{n}").read_text().split()[1:] for n in range(5)]
    assert asked == [["get", "rayjobs.ray.io"], *[["get", "--raw=/readyz"]] * 3, ["get", "rayjobs.ray.io"]]


def test_one_that_hangs_is_a_cluster_that_does_not_answer(fake):
    fake(0, hangs=True)
    with pytest.raises(Unanswered, match="current context does not answer: did not end within"):
        Kubectl("team")("get", "pods", timeout_s=0.5)


def test_a_remedy_is_typed_for_the_cluster_and_namespace_of_the_job(fake):
    there = "kubectl --context=there --namespace=team"
    fake(1, "Unable to connect to the server: EOF")
    with pytest.raises(Unanswered, match=f"Check it: {there} version"):
        Kubectl("team", "there")("get", "pods")
    fake(0, stdout="pod/h")
    with pytest.raises(ClusterError, match=f"`{there} describe pod h` shows"):
        Kubectl("team", "there").delete("pod", "h", timeout_s=0)


def test_a_command_in_a_pod_has_its_own_exit_code(fake):
    fake(2, "error: wrong\nmend it\ncommand terminated with exit code 2\n", "some words\n")
    with pytest.raises(CommandFailed) as caught:
        Kubectl()("exec", "h", "--container=main", "--", "python")
    failed = caught.value
    assert (failed.code, failed.stdout) == (2, "some words\n")
    error = error_from_pod(failed.code, failed.stderr)
    assert type(error) is JobError and str(error) == "wrong\nmend it"
    assert type(error_from_pod(4, "")) is StorageError


@pytest.mark.parametrize(
    "stderr",
    [
        "error: cannot exec into a container in a completed pod; current phase is Failed",
        'Error from server (Forbidden): admission webhook "no.exec" denied the request: not here',
        "Error from server: error dialing backend: dial tcp 10.0.0.5:10250: i/o timeout",
        "error: Internal error occurred: error sending request: Post "
        '"https://10.0.0.5:10250/exec/ml/h/ray-head?command=python": dial tcp 10.0.0.5:10250: connect: '
        "connection refused",
    ],
)
def test_a_pod_in_which_nothing_runs_is_not_there_and_the_cluster_is_not_blamed(fake, job, stderr):
    fake(1, f"{stderr}\n")
    storage = RunStorage(job(image="kit"), {"metadata": {"name": "h"}})
    for read in (storage.run, lambda command: list(storage.lines(command))):
        with pytest.raises(NotThere) as caught:
            read("status")
        assert str(caught.value).splitlines()[0] == stderr


def test_what_it_prints_comes_line_by_line_and_its_failure_at_the_end(fake):
    fake(1, "error: unexpected EOF\n", "one\ntwo\n")
    lines = Kubectl().lines("logs", "h")
    assert [next(lines), next(lines)] == ["one", "two"]
    with pytest.raises(Unanswered):
        next(lines)


def test_whoever_stops_reading_ends_it(fake, tmp_path):
    fake(0, stdout="one\n", hangs=True)
    lines = Kubectl().lines("logs", "--follow")
    assert next(lines) == "one"
    lines.close()
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)


@pytest.fixture
def moved(fake, job):
    """moved(current) submits a run where kubectl's context is `current`, and returns it with its place."""

    def submitted(current):
        digits = job(name="digits", image="a:1")
        fake(0 if current else 1, stdout=current)
        place = place_of(Kubectl("ml", Kubectl.of(digits).current_context()))
        known = replace(KnownRun.of(digits, "job.yaml", "kubernetes", job_id="digits"), place=place)
        return Target("job.yaml", digits, known), place

    return submitted


@pytest.mark.parametrize(("current", "context"), [("there\n", "there"), ("", None)])
def test_later_commands_ask_where_kubectl_pointed_at_the_submission(moved, fake, current, context):
    """Not where its current context points by then; in a pod it has none."""
    target, place = moved(current)
    assert place == {"namespace": "ml", **({"context": context} if context else {})}
    assert REACH.sent(target) == Sent("digits", place=place)
    argv = fake(1, "Unable to connect to the server: EOF")
    with pytest.raises(Unanswered):
        REACH.status(target)
    context_words = [f"--context={context}"] if context else []
    assert argv.read_text().split()[:-4] == [*context_words, "--namespace=ml", "get"]


def test_a_run_that_is_only_named_by_its_job_file_is_asked_for_where_kubectl_points(job):
    in_namespace = job(name="digits", image="a:1", kubernetes={"namespace": "team"})
    assert REACH.sent(Target("job.yaml", in_namespace)) == Sent("digits", place={"namespace": "team"})
    assert REACH.sent(Target("job.yaml", job(name="digits", image="a:1"))) == Sent("digits")


def test_a_job_is_asked_for_in_its_place(fake):
    status = {"jobDeploymentStatus": "Complete", "jobStatus": "FAILED"}
    argv = fake(0, stdout=json.dumps({"items": [{"metadata": {"name": "digits"}, "status": status}]}))
    place = {"namespace": "ml", "context": "prod"}
    states = SCHEDULER.query([Sent("digits", place=place), Sent("other", place=place)])
    assert {job_id: state.word for job_id, state in states.items()} == {"digits": "Complete, FAILED"}
    assert argv.read_text().startswith("--context=prod --namespace=ml get rayjobs.ray.io ")
    SCHEDULER.query([Sent("digits")])
    assert argv.read_text().startswith("get rayjobs.ray.io ")


def test_a_job_that_may_have_started_is_not_cancelled_in_its_queue(fake):
    argv = fake(1, "The connection to the server was refused")
    with pytest.raises(ClusterError):
        SCHEDULER.cancel_waiting(Sent("digits"))
    assert argv.read_text().startswith("get rayjobs.ray.io ")


# ------------------------------------------------------------------------------------------------ dry runs

NO_DRY_RUN = 'Error from server (BadRequest): admission webhook "audit.example.org" does not support dry run'


def test_a_webhook_that_knows_no_dry_run_is_a_note(fake):
    """No server of the tests can be brought to say this; tests/kubernetes/test_kube_dry_run.py asks one."""
    objects = [RIGHT["ConfigMap"], rayjob()]
    fake(1, f"Warning: unrelated\n{NO_DRY_RUN}\n")
    assert check_admission(objects, Kubectl()) == [NO_DRY_RUN]
    fake(1, f"Warning: unrelated\n{NO_DRY_RUN}\nerror: no RayJobs on Fridays\n")
    with pytest.raises(ClusterError, match="error: no RayJobs on Fridays"):
        check_admission(objects, Kubectl())


def test_a_server_that_goes_away_during_a_dry_run_is_no_refusal(fake):
    fake(1, "The connection to the server 10.0.0.1:6443 was refused\n")
    with pytest.raises(Unanswered):
        check_admission([rayjob()], Kubectl())
