"""A sweep on a real cluster: one array, whose elements are runs of their own."""

import json
import re

import pytest

from clustertrain.run.folder import RunDir
from slurm.trained import FAULTY

pytestmark = pytest.mark.timeout(600)

# Of each element: the submission that it takes from those of all.
AGENT = """\
#!/bin/sh
printf '%s\\n' "$@" > "$SLURM_SUBMIT_DIR/arguments-$SLURM_ARRAY_TASK_ID"
: > "$CLUSTERTRAIN_MAIL/agent"
"""


def state_of(login, name):
    return json.loads(login("status", "--json", f"runs/{name}").stdout)["state"]


def test_the_points_are_one_array_of_which_each_is_stopped_alone(login, cluster):
    login.write_agent(AGENT)
    login.job(args={"lr": 0.0, "seed": 0}, slurm={"options": ["--hold"]})
    grid = "--grid", "lr=0.1,0.01", "--grid", "seed=1,2"
    printed = login.submit("--no-check", *grid)
    ids = re.findall(r"submitted (\S+) as SLURM job (\d+)_(\d): PENDING", printed)
    names = ["digits-0-1-1", "digits-0-1-2", "digits-0-01-1", "digits-0-01-2"]
    assert [(name, index) for name, _, index in ids] == [(name, str(n)) for n, name in enumerate(names)]
    (job_id,) = {number for _, number, _ in ids}
    assert [state_of(login, name) for name in names] == ["queued"] * 4
    again = login("submit", "--to", "slurm", "--no-check", *grid, code=3)
    assert again.stderr.count("is queued already: ") == 4

    assert login("stop", "runs/digits-0-1-2").returncode == 0
    assert [state_of(login, name) for name in names] == ["queued", "cancelled", "queued", "queued"]
    cluster.command("scontrol", "release", f"{job_id}_[0,2-3]")
    for index, name in enumerate(names):
        if name == "digits-0-1-2":
            continue
        cluster.wait_for_state(f"{job_id}_{index}", ["COMPLETED"])
        *_, argument = (login.folder / f"arguments-{index}").read_text().splitlines()
        assert json.loads(argument)[index]["name"] == name
        (record,) = RunDir.newest(str(login.folder / "runs"), name).submissions()
        assert record.output.endswith(f"/digits-{job_id}_{index}.out")


def test_points_that_ask_for_other_resources_are_jobs_of_their_own(login):
    login.write_agent(AGENT)
    login.job(resources={"workers": 1})
    printed = login.submit("--no-check", "--grid", "resources.workers=1,2", "--set", "slurm.options=[--hold]")
    assert len(re.findall(r"as SLURM job \d+: PENDING", printed)) == 2


@pytest.mark.nightly  # in CI: the same array with a stub in the first test; a requeue in test_container.py
def test_an_element_trains_and_is_put_back_alone(make, cluster):
    """`exec` finds its node; then it gets the signal before the time limit, and the other one does not."""
    long = {**FAULTY, "args": {"step_s": 0.4, "width": 8}, "resources": {"workers": 1, "nodes": 1}}
    run = make("sweep", **long, slurm={"at_time_limit": "requeue"})
    submit = ("submit", "--to", "slurm", "--no-check", str(run.job_file), "--grid", "width=8,16")
    run.command(*submit, code=0)
    points = [RunDir.newest(str(run.folder / "runs"), f"sweep-{width}") for width in (8, 16)]
    first, second = (point.submissions()[0].job_id for point in points)
    run.name, run.job_id, run.attempts_before, run.live = "sweep-8", first, 0, None
    run.wait_for_step(3)
    host = run.command("exec", str(run.folder / "runs" / "sweep-8"), "--rank", "0", "--", "hostname")
    assert re.fullmatch(r"node\d\n", host.stdout), host.stderr
    cluster.command("scancel", "--signal=USR2", "--batch", first)
    for job_id in (first, second):
        cluster.wait_for_state(job_id, ["COMPLETED"], 150)
    states = [[attempt.result.read().state for attempt in point.attempts()] for point in points]
    assert states == [["preempted", "done"], ["done"]]
    listed = run.command("ls", str(run.folder / "runs"), "--sweep", "sweep").stdout
    assert re.findall(r"^(sweep-\d+) +(\w+) ", listed, re.M) == [("sweep-16", "done"), ("sweep-8", "done")]
