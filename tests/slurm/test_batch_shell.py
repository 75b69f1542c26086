"""The batch shell of a node that SLURM gave up and that comes back, beside the job's next start elsewhere;
and what it tells the agent of its node when another node is lost."""

import re
import sys

import pytest

from clustertrain.job.model import Job
from slurm.slurm_run import PATIENCE_S, wait_for_no_process
from support.sbatch_script import script
from support.waiting import wait_until

# In place of the agent: the first start requests a requeue once a file exists, the second ends with code 0.
AGENT = """\
#!/bin/bash
touch "$CLUSTERTRAIN_MAIL/agent" FOLDER/there
if [ -z "${SLURM_RESTART_COUNT:-}" ]; then
  until [ -e FOLDER/come-back ]; do sleep 0.1; done
  echo requeue 75 > "$CLUSTERTRAIN_MAIL/verdict"
  exit 75
fi
until [ -e FOLDER/end ]; do sleep 0.1; done
echo end 0 > "$CLUSTERTRAIN_MAIL/verdict"
"""


# In place of the agent: after SLURM's signal it writes what it makes of the shell's messages.
HEARS = """\
#!/bin/bash
trap '' TERM # as the agents do: SLURM sends it to every process of the step
touch "$CLUSTERTRAIN_MAIL/agent" "FOLDER/there-$SLURM_NODEID"
[ "$SLURM_NODEID" = 0 ] || exec sleep 600
exec PYTHON -c '
import os, pathlib, time
from clustertrain.launchers.slurm.agent.mailbox import Mailbox, lost_node
mail = Mailbox.of_this_job()
while not mail.has_term():
    time.sleep(0.1)
said = lost_node("", mail.query_job())
while not lost_node(mail.errors(), ""):
    time.sleep(0.1)
pathlib.Path("FOLDER/new").write_text(f"{said}\\n{lost_node(mail.errors(), str())}")
os.replace("FOLDER/new", "FOLDER/said")
time.sleep(600)
'
"""


def submitted(cluster, folder, text: str, **resources) -> str:
    """The id of a job whose agent is this program."""
    agent = folder / "python"
    agent.write_text(text.replace("FOLDER", str(folder)).replace("PYTHON", sys.executable))
    agent.chmod(0o755)
    keys = {"name": "a", "function": "m:f", "resources": resources, "slurm": {"output": str(folder)}}
    (folder / "script").write_text(script(Job.model_validate(keys), python=str(agent)))
    return cluster.sbatch(str(folder / "script"))


# In place of the agent: that of node2 has ended long before that of the head, which writes the verdict.
OUTLIVES = """\
#!/bin/bash
[ "$SLURM_NODEID" = 0 ] || exit 3
touch "$CLUSTERTRAIN_MAIL/agent"
env > FOLDER/environment
sleep 5
ln -s "end 0" "$CLUSTERTRAIN_MAIL/verdict"
"""


def test_a_site_that_ends_a_step_with_its_first_task_does_not_end_the_agent_of_the_head(
    fresh_cluster, tmp_path
):
    cluster = fresh_cluster(2, KillOnBadExit=1, WaitTime=2, MpiDefault="pmi2")
    job_id = submitted(cluster, tmp_path, OUTLIVES, workers=2, nodes=2)
    state = cluster.wait_for_state(job_id, {"COMPLETED", "FAILED"})["JobState"]
    assert (state, "PMI_RANK" in (tmp_path / "environment").read_text()) == ("COMPLETED", False)


@pytest.mark.timeout(600)
@pytest.mark.faults
def test_the_agent_of_the_head_learns_which_node_was_lost_since_when_and_how(cluster, tmp_path):
    job_id = submitted(cluster, tmp_path, HEARS, workers=2, nodes=2)
    head = cluster.wait_for_state(job_id, {"RUNNING"})["BatchHost"]
    wait_until(lambda: len([*tmp_path.glob("there-*")]) == 2, PATIENCE_S)
    hosts = cluster.command("scontrol", "show", "hostnames", cluster.job(job_id)["NodeList"]).stdout.split()
    (other,) = {*hosts} - {head}
    cluster.crash(other)
    wait_until((tmp_path / "said").exists, PATIENCE_S)
    by_state, by_srun = (tmp_path / "said").read_text().splitlines()
    pattern = rf"Node {other} was lost: SLURM has it as down\* since \d{{4}}-\S+ \(Not responding\)\."
    assert re.fullmatch(pattern, by_state)
    assert by_srun == f"Node {other} was lost: srun reports its failure."


@pytest.mark.timeout(600)
@pytest.mark.faults
def test_a_start_that_was_given_up_does_not_put_the_next_one_back(cluster, tmp_path):
    job_id = submitted(cluster, tmp_path, AGENT, workers=1)
    first = cluster.wait_for_state(job_id, {"RUNNING"})["BatchHost"]
    wait_until((tmp_path / "there").exists, PATIENCE_S)
    cluster.cut(first)
    cluster.wait_for_state(job_id, {"PENDING"})
    second = cluster.wait_for_state(job_id, {"RUNNING"})
    assert (second["Restarts"], second["BatchHost"] != first) == ("1", True)
    cluster.mend(first)
    (tmp_path / "come-back").touch()
    wait_for_no_process(cluster, [first], within_s=150)
    assert "ct-mail" not in cluster.run_on(first, ["ls", "/tmp"]).stdout  # it came to its own end
    still = cluster.job(job_id)
    assert (still["JobState"], still["Restarts"], still["BatchHost"]) == ("RUNNING", "1", second["BatchHost"])
    (tmp_path / "end").touch()
    cluster.wait_for_state(job_id, {"COMPLETED"})
