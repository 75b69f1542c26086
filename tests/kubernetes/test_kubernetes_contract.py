"""Kubernetes fulfils the contract of a scheduler, with a RayJob in place of a script."""

import secrets
from typing import ClassVar

import pytest

from clusters.kube_pods import SHELL_IMAGE
from clustertrain.testing import SchedulerContract
from kubernetes.cluster_user import inert


class TestKubernetes(SchedulerContract):
    launcher = "kubernetes"
    refused: ClassVar = {"image": None}
    # Nobody runs these jobs: they wait until they are cancelled.
    test_a_job_gets_its_submission_and_ends_and_cancelling_it_then_is_no_error = None
    test_a_job_that_runs_is_not_cancelled_in_the_queue = None

    @pytest.fixture(autouse=True)
    def _cluster(self, kube, namespace, monkeypatch, tmp_path):
        for name in ("PATH", "KUBECONFIG"):
            monkeypatch.setenv(name, kube.environment[name])
        (tmp_path / "m.py").write_text("def f(config): pass\n")
        sections = {"image": SHELL_IMAGE, **inert(namespace=namespace)}
        monkeypatch.setattr(self, "sections", sections, raising=False)

    def sent(self, scheduler, program, options=""):
        job = self.job(name=f"contract-{secrets.token_hex(3)}")
        return scheduler.submit(job, self.script(job), {})

    def test_cancelling_a_job_that_waits_twice_is_no_error(self, scheduler, namespace):
        sent = self.sent(scheduler, "")
        assert sent.place["namespace"] == namespace
        state = scheduler.query([sent])[sent.job_id]
        assert (state.is_waiting, state.word) == (True, "new")
        for _ in range(2):
            scheduler.cancel_waiting(sent)
            assert not scheduler.query([sent])
