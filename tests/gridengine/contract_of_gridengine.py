"""Grid Engine fulfils the contract of a scheduler; test_gridengine.py runs this file on a host."""

from typing import ClassVar

from clustertrain.testing import SchedulerContract


class TestGridEngine(SchedulerContract):
    launcher = "gridengine"
    refused: ClassVar = {"gridengine": {"time_limit": "10s"}}
    header = "#$ -cwd\n#$ -v CLUSTERTRAIN_SUBMISSION\n"
    held = "#$ -h\n"
