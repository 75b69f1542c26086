"""A script that resumes from a file at a relative path, whose job goes back into the queue."""

import re

import pytest

from clustertrain.node.waiting import wait_until

pytestmark = pytest.mark.timeout(600)

SCRIPT = """\
import os, socket, time
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
start = torch.load("snapshot.pt")["epoch"] if os.path.exists("snapshot.pt") else 0
print("from", start, "on", socket.gethostname(), open("words.txt").read(), flush=True)
for epoch in range(start, 4 if start else 10**6):
    dist.barrier()
    if dist.get_rank() == 0:
        torch.save({"epoch": epoch + 1}, "new.pt")
        os.replace("new.pt", "snapshot.pt")
    dist.barrier()
    if epoch == 1:
        time.sleep(10**6)
dist.destroy_process_group()
"""


# In CI: whole/test_relative_paths.py has a script of this kind, test_training.py a job that goes back.
@pytest.mark.nightly
def test_a_requeued_script_goes_on_from_its_own_file(make, cluster, tmp_path):
    code = tmp_path / "code"
    code.mkdir()
    (code / "train.py").write_text(SCRIPT)
    (code / "words.txt").write_text("hello")
    run = make("placed", script="train.py", code=str(code), failures={"grace": "2s"}).submit()
    work = run.run_dir.local_path(run.run_dir.work_key)

    def has_saved_twice():
        return len(logs := starts(run, 1)) == 2 and (work / "snapshot.pt").exists() and logs

    assert wait_until(has_saved_twice, 150, 0.5), run.output
    cluster.command("scontrol", "requeue", run.job_id)
    output = run.wait("COMPLETED", 300)
    assert {begun for begun, _ in starts(run, 1)} == {"0"}
    second = starts(run, 2)
    assert [begun for begun, _ in second] in (["1", "1"], ["2", "2"]), output
    assert len({host for _, host in second}) == 2, "each node has a copy of the code, and all one folder"
    assert sorted(each.name for each in work.iterdir()) == ["snapshot.pt", "train.py", "words.txt"]
    assert sorted(each.name for each in code.iterdir()) == ["train.py", "words.txt"]
    assert run.left_on_nodes() == {}


def starts(run, attempt):
    """The epoch from which each rank began, and its host."""
    logs = [path.read_text() for path in run.run_dir.attempt(attempt).path.glob("logs/*/rank-*.log")]
    return re.findall(r"^from (\d+) on (\S+) hello$", "".join(logs), re.MULTILINE)
