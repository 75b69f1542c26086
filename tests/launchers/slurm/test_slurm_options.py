"""What the command line of `submit` adds to a job, as it reaches the agent on the head's node."""

from dataclasses import asdict, replace

import pytest

from clustertrain.run_files.admission import Options
from clustertrain.run_files.command_line import CommandLine
from clustertrain.run_files.folder.run_dir import RunDir
from clustertrain.run_files.submission import Submission, submission_of


@pytest.mark.parametrize("option", ["takeover", "accept_changes"])
def test_each_option_reaches_the_agent(tmp_path, option):
    command = CommandLine("submit --to slurm", "/jobs/a job.yaml", ("name=a",))
    given = Options(**{option: True}, command=command)
    sent = submission_of(RunDir.newest(str(tmp_path), "digits"), "0" * 16, given).to_text()
    read = Submission.from_text(sent).options
    read = replace(read, command=replace(read.command, run=""))
    assert asdict(read) == asdict(replace(given, snapshot="0" * 16))
