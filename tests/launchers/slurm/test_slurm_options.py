"""What the command line of `submit` adds to a job, as it reaches the agent on the head's node."""

from dataclasses import asdict, replace

import pytest

from clustertrain.launchers.slurm.agent.node import options_of
from clustertrain.launchers.slurm.submit import submission_of
from clustertrain.run.admission import Options
from clustertrain.run.command_line import CommandLine
from clustertrain.run.folder import RunDir
from clustertrain.run.submission import Submission


@pytest.mark.parametrize("option", ["takeover", "allow_world_size_change", "accept_changes", "retry"])
@pytest.mark.parametrize("restart", [0, 1])
def test_each_option_reaches_the_agent_and_retry_only_its_first_start(tmp_path, option, restart):
    command = CommandLine("submit --to slurm", "/jobs/a job.yaml", ("name=a",))
    given = Options(**{option: True}, command=command)
    sent = submission_of(RunDir.newest(str(tmp_path), "digits"), "0" * 16, given).to_text()
    read = options_of(Submission.from_text(sent), restart)
    assert asdict(read) == asdict(replace(given, retry=given.retry and not restart))
