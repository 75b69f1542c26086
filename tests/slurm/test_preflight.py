"""What is refused before it waits in a queue: two lines, the right exit code, and nothing submitted."""

import os
import re
import time

import pytest


def refusal(login, code, **environment):
    """The error's lines; nothing may have been submitted or written down."""
    before = login.jobs()
    error = login.submit(code=code, **environment)
    assert login.jobs() <= before
    assert not (login.folder / "runs" / "digits").exists()
    return error


def test_a_time_limit_that_is_too_short_is_refused_with_the_arithmetic(login):
    login.job(slurm={"time_limit": "2m"})
    said = "slurm.time_limit is 2m, and the job needs 60 s to start + 90 s for the last save"
    assert said in refusal(login, 2)


NO_PLAN = "note: SLURM plans no start of the job yet. sbatch --test-only printed:\n"
GENERAL = "allocation failure: Requested node configuration is not available"


def drained(cluster):
    cluster.command("scontrol", "update", "NodeName=node3", "State=DRAIN", "Reason=a new disk")


def in_a_partition_that_is_down(cluster):
    cluster.command("scontrol", "update", "PartitionName=gpu", "State=DOWN")


@pytest.fixture
def changing(cluster):
    """The cluster, whose partition is as before in the end."""
    yield cluster
    cluster.command("scontrol", "update", "PartitionName=gpu", "State=UP", "Default=YES")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (drained, f"{NO_PLAN}{GENERAL}"),
        (in_a_partition_that_is_down, "PENDING (PartitionDown)"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_what_slurm_queues_until_nodes_return_is_submitted_with_its_reason(login, changing, change, said):
    """SLURM's --test-only plans with the nodes that it can use now, and says of such a job what it says of
    one that no node can ever run."""
    change(changing)
    login.job(resources={"workers": 3, "nodes": 3})
    assert said in login.submit("job.yaml")
    (record,) = login.records()
    assert changing.job(record["job_id"])["JobState"] == "PENDING"


def test_what_no_node_has_is_refused_by_sbatch_itself(login):
    login.job(resources={"workers": 1, "gpus_per_worker": 3})
    error = login.submit("job.yaml", code=3)
    assert login.records() == []
    assert error.startswith("error: sbatch --parsable --export=ALL ended with code 1:\n")
    assert "Requested node configuration is not available" in error
    assert "`squeue --me`" in error


def test_a_controller_that_is_down_is_told_of_at_once(login, cluster):
    login.job()
    cluster.stop_controller()
    started = time.monotonic()
    error = login.submit(code=3)
    took_s = time.monotonic() - started
    cluster.start_controller()
    assert "SLURM's controller does not answer" in error
    assert took_s < 8, "every other command of SLURM tries for 9 s at least"
    assert login.records() == []


# --------------------------------------------------------------------------------------- files and folders


def test_a_missing_output_folder_is_refused_until_it_is_made(login, tmp_path):
    login.job(slurm={"output": "logs"})
    assert f"mkdir -p {tmp_path / 'logs'}" in refusal(login, 4)
    (tmp_path / "logs").mkdir()
    job_id = re.search(r"SLURM job (\d+)", login.submit())[1]
    login.cluster.wait_for_state(job_id, {"COMPLETED"})
    assert (tmp_path / "logs" / f"digits-{job_id}.out").exists()


# What the job file says, and words of the refusal. SLURM takes a job whose output cannot be written; it fails
# with 0:53 and says nothing.
UNWRITABLE = f"cannot be written by uid {os.getuid()}"
REFUSED = {
    "a file as output": ({"slurm": {"output": "a-file"}}, ("slurm.output", UNWRITABLE)),
    "a kernel's folder as output": ({"slurm": {"output": "/sys"}}, ("slurm.output", UNWRITABLE)),
    "storage below a file": ({"storage": "a-file/runs"}, ("/a-file",)),
    "apptainer": (
        {"image": "train.sif", "slurm": {"container": "apptainer"}},
        ("/train.sif does not exist",),
    ),
    "pyxis": (
        {"image": "/no/train.sqsh", "slurm": {"container": "pyxis"}},
        ("/no/train.sqsh does not exist",),
    ),
}


@pytest.mark.parametrize(("sections", "words"), REFUSED.values(), ids=REFUSED)
def test_a_place_that_cannot_be_used_is_refused(login, tmp_path, sections, words):
    (tmp_path / "a-file").touch()
    login.job(**sections)
    error = refusal(login, 4)
    assert all(each in error for each in words), error


def test_a_submission_looks_for_no_image_of_a_registry_and_leaves_no_file_of_its_checks(login, tmp_path):
    login.job(image="registry.example.org/train:1", slurm={"container": "pyxis"})
    assert "submitted" in login.submit()
    names = {path.name for path in tmp_path.iterdir()}
    of_job = ("digits-", "arguments-", "environment-")
    assert {each for each in names if not each.startswith(of_job)} == {"code", "agent", "job.yaml", "runs"}
