"""The batch shell of a node that SLURM gave up and that comes back, beside the job's next start elsewhere."""

import pytest

from clustertrain.job.model import Job
from clustertrain.launchers.slurm.script import render
from slurm.trained import PATIENCE_S, wait_for_no_process
from waiting import wait_until

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


@pytest.mark.timeout(600)
@pytest.mark.faults
def test_a_start_that_was_given_up_does_not_put_the_next_one_back(cluster, tmp_path):
    agent = tmp_path / "python"
    agent.write_text(AGENT.replace("FOLDER", str(tmp_path)))
    agent.chmod(0o755)
    keys = {"name": "a", "function": "m:f", "resources": {"workers": 1}, "slurm": {"output": str(tmp_path)}}
    rendered = render(Job.model_validate(keys), job_path="job.yaml", python=str(agent), lead_s=90)
    script = tmp_path / "script"
    script.write_bytes(rendered.script)
    job_id = cluster.sbatch(str(script))
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
