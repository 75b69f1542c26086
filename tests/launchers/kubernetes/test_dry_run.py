"""What is made of an API server's words in a dry run. The kubectl here is a fake that says them: some of them
no server of the tests can be brought to say. tests/kubernetes/test_kube_dry_run.py asks a real one.
"""

import pytest

from clustertrain.errors import ClusterError
from clustertrain.launchers.kubernetes.cluster.kubectl import Kubectl
from clustertrain.launchers.kubernetes.scheduler import check_admission
from clustertrain.launchers.shell import Unanswered
from launchers.kubernetes.right_manifests import RIGHT, rayjob

NO_DRY_RUN = 'Error from server (BadRequest): admission webhook "audit.example.org" does not support dry run'


@pytest.fixture
def fake(tmp_path, monkeypatch):
    """fake(words) puts a kubectl on PATH that refuses all input in these words, or takes it where there are
    none; it writes its arguments and input into the file that is returned."""
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")

    def put(words=""):
        calls = tmp_path / "calls"
        (tmp_path / "words").write_text(f"Warning: unrelated\n{words}\n")
        ends = f"cat {tmp_path}/words >&2; exit 1" if words else "exit 0"
        script = f'#!/bin/sh\nprintf "%s\\n" "$*" >>{calls}\ncat >>{calls}\necho >>{calls}\n{ends}\n'
        (tmp_path / "kubectl").write_text(script)
        (tmp_path / "kubectl").chmod(0o755)
        return calls

    return put


def test_a_webhook_that_knows_no_dry_run_is_a_note(fake):
    fake(NO_DRY_RUN)
    assert check_admission([RIGHT["ConfigMap"], rayjob()], Kubectl()) == [NO_DRY_RUN]
    fake(f"{NO_DRY_RUN}\nerror: no RayJobs on Fridays")
    with pytest.raises(ClusterError, match="error: no RayJobs on Fridays"):
        check_admission([RIGHT["ConfigMap"], rayjob()], Kubectl())


def test_a_server_that_goes_away_meanwhile_is_no_refusal(fake):
    fake("The connection to the server 10.0.0.1:6443 was refused")
    with pytest.raises(Unanswered):
        check_admission([RIGHT["ConfigMap"], rayjob()], Kubectl())
