"""The start of a SLURM job, from the variables of its step."""

import pytest

from clustertrain.errors import ClusterError
from clustertrain.launchers.slurm.agent.allocation import read_start_of_job
from clustertrain.run.records import SchedulerStart

STEP = {
    "SLURM_JOB_ID": "12",
    "SLURM_CLUSTER_NAME": "site",
    "SLURM_NODEID": "1",
    "CLUSTERTRAIN_NODES": "n1,n2",
    "CLUSTERTRAIN_TOKEN": "s3cret",
    "CLUSTERTRAIN_MAIL": "/tmp/ct-mail-1",
}


def test_who_it_is():
    assert read_start_of_job(STEP) == (SchedulerStart("slurm", "site", "12", 0, ("n1", "n2")), 1)
    assert read_start_of_job({**STEP, "SLURM_RESTART_COUNT": "3"})[0].restart == 3


@pytest.mark.parametrize(
    "missing", ["SLURM_JOB_ID", "SLURM_NODEID", "CLUSTERTRAIN_TOKEN", "CLUSTERTRAIN_MAIL"]
)
def test_elsewhere_it_is_refused(missing):
    with pytest.raises(ClusterError, match=f"{missing} is not set: this process is not a task"):
        read_start_of_job({key: value for key, value in STEP.items() if key != missing})
