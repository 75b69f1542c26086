"""SLURM fulfils the contract of a scheduler."""

from typing import ClassVar

import pytest

from launchers.contract import SchedulerContract


class TestSlurm(SchedulerContract):
    launcher = "slurm"
    refused: ClassVar = {"image": "./a,b.sif", "slurm": {"container": "apptainer"}, "code": "a,b"}

    @pytest.fixture(autouse=True)
    def _cluster(self, cluster, monkeypatch):
        for name in ("SLURM_CONF", "PATH"):
            monkeypatch.setenv(name, cluster.environment[name])
