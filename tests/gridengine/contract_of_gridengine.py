"""Grid Engine fulfils the contract of a scheduler; test_gridengine.py runs this file on a host."""

from typing import ClassVar

from launchers.contract import SchedulerContract


class TestGridEngine(SchedulerContract):
    launcher = "gridengine"
    refused: ClassVar = {"resources": {"workers": 2, "nodes": 2}}

    def with_script(self, plan, script):
        return super().with_script(plan, b"#$ -cwd\n#$ -v CLUSTERTRAIN_SUBMISSION\n" + script)
