"""What the batch shell makes of the agent's verdict. Programs of the test stand in for SLURM's."""

import os
import sys
from pathlib import Path

import pytest

from clustertrain.job.model import Job
from support.commands import Done, ran, write_program
from support.sbatch_script import script

AGENT = """\
exec PYTHON -c '
from clustertrain.launchers.slurm.agent.mailbox import Mailbox
mail = Mailbox.of_this_job()
mail.report_start()
WRITE
'
"""
# It runs the last four words, the agent's command line, on this machine.
SRUN = 'shift $(($# - 4)); exec "$@"'
# For the first two questions after the end the controller is down.
SCONTROL = """\
case "$1 $2" in
  "show hostnames") echo node1 ;;
  "show job")
    echo >> ASKED
    [ "$(wc -l < ASKED)" -gt 2 ] || { echo "Unable to contact slurm controller" >&2; exit 1; }
    echo "JobId=7 JobState=RUNNING Requeue=1 Restarts=0 BatchFlag=1" ;;
  "requeue 7") touch REQUEUED ;;
esac
"""


def batch(folder: Path, python: str) -> Done:
    """The end of the script of a job on this machine."""
    programs = folder / "bin"
    programs.mkdir()
    scontrol = SCONTROL.replace("ASKED", str(folder / "asked")).replace("REQUEUED", str(folder / "requeued"))
    for name, text in {"srun": SRUN, "scontrol": scontrol}.items():
        write_program(programs / name, text, "/bin/bash")
    job = Job.model_validate({"name": "a", "function": "m:f"})
    text = script(job, python=python)
    step = {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "node1", "SLURM_JOB_NUM_NODES": "1"}
    environ = {**os.environ, **step, "PATH": f"{programs}:{os.environ['PATH']}", "TMPDIR": str(folder)}
    return ran(["bash", "-s"], input=text, env=environ, cwd=folder, timeout=120)


def agent(folder: Path, write: str) -> str:
    path = folder / "agent"
    write_program(path, AGENT.replace("PYTHON", sys.executable).replace("WRITE", write))
    return str(path)


WRITTEN = 'mail.write_verdict("requeue", 75)'
ON_A_FULL_DISK = '(mail._folder / "verdict").symlink_to("requeue 75")'


@pytest.mark.slow
@pytest.mark.parametrize("write", [WRITTEN, ON_A_FULL_DISK])
def test_a_requeue_waits_for_the_controller(tmp_path, write):
    """tests/slurm/test_batch_shell.py has one that is not of the newest start."""
    done = batch(tmp_path, agent(tmp_path, write))
    assert (done.returncode, (tmp_path / "requeued").exists()) == (75, True), done
    assert "job 7 is requeued" in done.stdout
    assert list(tmp_path.glob("ct-mail-*")) == []
