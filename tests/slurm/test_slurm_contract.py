"""SLURM fulfils the contract of a scheduler."""

from typing import ClassVar

import pytest

from clustertrain.testing import SchedulerContract


class TestSlurm(SchedulerContract):
    launcher = "slurm"
    refused: ClassVar = {"image": "./a,b.sif", "slurm": {"container": "apptainer"}, "code": "a,b"}
    held = "#SBATCH --hold\n"

    @pytest.fixture(autouse=True)
    def _cluster(self, cluster, monkeypatch):
        for name in ("SLURM_CONF", "PATH"):
            monkeypatch.setenv(name, cluster.environment[name])
