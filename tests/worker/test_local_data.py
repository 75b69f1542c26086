"""Where data with one copy per node is kept: the cache, or the scratch folder of the node."""

import os
import socket

import pytest

from clustertrain.errors import JobError, StorageError
from clustertrain.job.file import dump_job, load_job, parse_job
from clustertrain.worker.machine.local_data import data_at_hand, stage_here

JOB = """
name: a
script: train.py
data: {{words: {{uri: {uri}, per: {per}}}}}
scratch: {scratch}
"""


@pytest.fixture
def job_of(tmp_path):
    (tmp_path / "words.txt").write_text("words")
    (tmp_path / "train.py").touch()
    (tmp_path / "disk").mkdir()

    def job_of(scratch, per="node"):
        file = tmp_path / "job.yaml"
        file.write_text(JOB.format(uri=tmp_path / "words.txt", per=per, scratch=scratch))
        return load_job(file)

    return job_of


def staged(job):
    return stage_here(job, lambda event: None)["words"]


@pytest.mark.parametrize("scratch", ["{disk}", "NODE_DISK", "${{NODE_DISK}}/."])
def test_a_folder_or_a_variable_names_the_disk_of_the_node(job_of, tmp_path, monkeypatch, scratch):
    disk = tmp_path / "disk"
    monkeypatch.setenv("NODE_DISK", str(disk))
    job = job_of(scratch.format(disk=disk))
    own = disk / f"clustertrain-{os.getuid()}"
    assert staged(job).is_relative_to(own / "data") and staged(job).read_text() == "words"
    assert own.stat().st_mode & 0o777 == 0o700
    assert staged(parse_job(dump_job(job), "job.yaml")) == staged(job), "also as the workers read it"
    assert data_at_hand(job, tmp_path)[0] == {"words": staged(job)}


def test_data_of_the_cluster_stays_in_the_storage(job_of, tmp_path):
    assert staged(job_of(tmp_path / "disk", per="cluster")).is_relative_to(tmp_path / "runs")


def test_a_scratch_that_a_node_does_not_have_is_named(job_of, tmp_path, monkeypatch):
    host = socket.gethostname()
    for scratch, text in {
        "NODE_DISK": f"scratch is NODE_DISK, but on {host} that variable is not set.",
        tmp_path / "none": f"{tmp_path}/none/clustertrain-{os.getuid()} on {host} cannot be created: No such",
        "/proc": f"/proc/clustertrain-{os.getuid()} on {host} cannot be created",
    }.items():
        with pytest.raises(StorageError) as error:
            staged(job_of(scratch))
        assert str(error.value).startswith(text)
    monkeypatch.setenv("NODE_DISK", "relative")
    with pytest.raises(StorageError, match="that variable is 'relative', not an absolute folder"):
        staged(job_of("NODE_DISK"))
    assert data_at_hand(job_of("NODE_DISK"), tmp_path)[0], "a login node checks the job without its disk"


def test_a_folder_of_another_user_is_not_used(job_of, tmp_path, monkeypatch):
    if os.getuid():
        pytest.skip("needs root, to make a folder of another user")
    own = tmp_path / "disk" / "clustertrain-0"
    own.mkdir()
    os.chown(own, 4242, 4242)
    with pytest.raises(StorageError, match="belongs to user 4242"):
        staged(job_of(tmp_path / "disk"))


@pytest.mark.parametrize("scratch", ["disk/here", "node_disk", "''"])
def test_neither_a_folder_nor_a_variable_is_refused(job_of, scratch):
    with pytest.raises(JobError, match="scratch"):
        job_of(scratch)
