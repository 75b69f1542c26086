"""Kubernetes fulfils the contract of a scheduler, with a RayJob in place of a script."""

from typing import ClassVar

import pytest

from clusters.kube_pods import SHELL_IMAGE
from clustertrain.run.command_line import UNKNOWN
from kubernetes.watched import inert
from launchers.contract import OPTIONS, SUBMISSION, SchedulerContract


class TestKubernetes(SchedulerContract):
    launcher = "kubernetes"
    refused: ClassVar = {"image": None}

    @pytest.fixture(autouse=True)
    def _cluster(self, kube, namespace, monkeypatch, tmp_path):
        for name in ("PATH", "KUBECONFIG"):
            monkeypatch.setenv(name, kube.environment[name])
        (tmp_path / "m.py").write_text("def f(config): pass\n")
        sections = {"image": SHELL_IMAGE, **inert(namespace=namespace)}
        monkeypatch.setattr(self, "sections", sections, raising=False)

    def test_a_job_ends_and_cancelling_it_then_is_no_error(self, scheduler):
        """Nobody runs this one: it waits, and ends when it is cancelled."""
        job = self.job()
        handle = scheduler.submit(job, scheduler.plan(job, OPTIONS), SUBMISSION, UNKNOWN)
        state = scheduler.states([handle]).jobs[handle.job_id]
        assert (state.job_id, state.is_waiting, state.text) == (handle.job_id, True, "new")
        for _ in range(2):
            scheduler.cancel(handle, only_waiting=True)
            assert not scheduler.states([handle]).jobs
