"""A sweep on a real cluster: a job for each point."""

import json
import re

import pytest

from clustertrain.run_files.folder.run_dir import RunDir
from clustertrain.run_files.submission import Submission

pytestmark = pytest.mark.timeout(600)

AGENT = """\
#!/bin/sh
printf '%s\\n' "$@" > "$SLURM_SUBMIT_DIR/arguments-$SLURM_JOB_ID"
: > "$CLUSTERTRAIN_MAIL/agent"
"""


def state_of(login, name):
    return json.loads(login("status", "--json", f"runs/{name}").stdout)["state"]


def test_each_point_is_a_job_that_is_stopped_alone(login, cluster):
    login.write_agent(AGENT)
    login.job(args={"lr": 0.0, "seed": 0}, slurm={"options": ["--hold"]})
    grid = "--grid", "lr=0.1,0.01", "--grid", "seed=1,2"
    printed = login.submit("--no-check", *grid)
    ids = dict(re.findall(r"submitted (\S+) as SLURM job (\d+): PENDING", printed))
    names = ["digits-0-1-1", "digits-0-1-2", "digits-0-01-1", "digits-0-01-2"]
    assert list(ids) == names and len(set(ids.values())) == 4
    assert [state_of(login, name) for name in names] == ["queued"] * 4
    again = login("submit", "--to", "slurm", "--no-check", *grid, code=3)
    assert again.stderr.count("is queued already: ") == 4

    assert login("stop", "runs/digits-0-1-2").returncode == 0
    assert [state_of(login, name) for name in names] == ["queued", "cancelled", "queued", "queued"]
    del ids["digits-0-1-2"]
    cluster.command("scontrol", "release", ",".join(ids.values()))
    for name, job_id in ids.items():
        cluster.wait_for_state(job_id, ["COMPLETED"])
        *_, argument = (login.folder / f"arguments-{job_id}").read_text().splitlines()
        assert Submission.from_text(argument).name == name
        (record,) = RunDir.newest(str(login.folder / "runs"), name).submissions()
        assert record.output.endswith(f"/{name}-{job_id}.out")
