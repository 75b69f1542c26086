"""`clustertrain data`: lists, fetches and removes the data sets of a job."""

import hashlib
import io
import os
import subprocess
import sys
import tarfile

import pytest
import yaml
from click.testing import CliRunner

from clustertrain.cli.main import main
from clustertrain.job.file import dump_job, load_job
from clustertrain.node.waiting import wait_until
from clustertrain.run_files.claims import claim_attempt
from clustertrain.run_files.folder.run_dir import RunDir
from clustertrain.run_files.records.result import Result
from clustertrain.run_files.result import write_result
from clustertrain.staging.entry import data_folder
from support.web_server import Answer, serving

BODY = bytes(range(256)) * 1000


@pytest.fixture
def web():
    with serving() as web:
        web.files["/file.bin"] = BODY
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w") as archive:
            for name in ("a/x", "a/y", "z"):
                info = tarfile.TarInfo(name)
                info.size = 1000
                archive.addfile(info, io.BytesIO((name.encode() * 1000)[:1000]))
        web.files["/images.tar"] = buffer.getvalue()
        yield web


@pytest.fixture
def job_file(web, tmp_path, monkeypatch):
    """One data set per cluster, one per node, and one that is a local folder."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "folder").mkdir()
    job = {
        "name": "digits",
        "function": "m:f",
        "storage": str(tmp_path / "runs"),
        "data": {
            "train": {"uri": f"{web.url}/file.bin?page=hidden", "sha256": hashlib.sha256(BODY).hexdigest()},
            "images": {"uri": f"{web.url}/images.tar", "extract": True, "per": "node"},
            "near": {"uri": str(tmp_path / "folder")},
        },
    }
    path = tmp_path / "job.yaml"
    path.write_text(yaml.safe_dump(job, sort_keys=False))
    return path


@pytest.fixture
def data(job_file):
    return lambda command, *options: CliRunner().invoke(main, ["data", command, str(job_file), *options])


def rows(data):
    """name → (per, state) as `ls` prints them."""
    lines = data("ls").output.splitlines()
    state = lines[0].index("STATE")
    size = lines[0].index("SIZE")
    return {line.split()[0]: (line.split()[1], line[state:size].strip()) for line in lines[1:]}


def test_ls_shows_the_states_before_and_after_a_fetch(data, tmp_path):
    assert rows(data) == {
        "train": ("cluster", "absent"),
        "images": ("node", "absent"),
        "near": ("cluster", "in place"),
    }
    fetched = data("fetch")
    assert fetched.exit_code == 0, fetched.output
    assert "data train: ready after" in fetched.output
    assert rows(data)["train"] == ("cluster", "ready")
    assert rows(data)["images"] == ("node", "ready")
    listed = data("ls").output
    assert str(tmp_path / "runs" / "data") in listed
    assert str(tmp_path / "cache" / "clustertrain" / "data") in listed
    assert "250.0 KiB" in listed
    assert "hidden" not in listed


def test_fetch_takes_one_data_set_by_its_name(data):
    assert data("fetch", "images").exit_code == 0
    assert rows(data)["train"][1] == "absent"
    assert rows(data)["images"][1] == "ready"
    unknown = data("fetch", "other")
    assert unknown.exit_code == 2
    assert "There are: train, images, near" in unknown.stderr


def test_what_a_kill_left_is_shown_and_evicted(data, web, job_file, tmp_path):
    web.answers = [Answer(hold_after=100_000)]
    program = "from clustertrain.cli.main import main; main()"
    command = [sys.executable, "-c", program, "data", "fetch", str(job_file), "train"]
    with subprocess.Popen(command, env={**os.environ}) as killed:
        assert wait_until(lambda: "97.7 KiB" in data("ls", "train").output, 60, 0.1)
        killed.kill()
    web.go_on.set()
    assert rows(data)["train"][1] == "partial"
    evicted = data("evict", "train")
    assert evicted.exit_code == 0, evicted.output
    assert "train  freed" in evicted.output
    assert "freed 0 B" not in evicted.output
    left = [path for path in (tmp_path / "runs" / "data").rglob("*") if path.is_file()]
    assert left == []
    assert rows(data)["train"][1] == "absent"


def test_evict_prints_the_freed_bytes_and_keeps_the_rest(data, tmp_path):
    data("fetch")
    evicted = data("evict", "train")
    assert "train  freed 250." in evicted.output
    assert rows(data) == {
        "train": ("cluster", "absent"),
        "images": ("node", "ready"),
        "near": ("cluster", "in place"),
    }
    assert "near  kept" in data("evict").output
    assert (tmp_path / "folder").is_dir()
    assert data("fetch").exit_code == 0
    assert rows(data)["images"][1] == "ready"


def test_evict_is_refused_while_a_run_uses_it(data, job_file):
    data("fetch")
    job = load_job(job_file)
    attempt = claim_attempt(RunDir.newest(job.storage.location, job.name))  # this process runs it
    attempt.run.store.write_atomic(attempt.job_key, dump_job(job).encode())
    refused = data("evict", "train")
    assert refused.exit_code == 3
    assert f"train is in use: digits is active (pid {os.getpid()}" in refused.stderr
    assert rows(data)["train"][1] == "ready"
    assert data("evict", "train", "--force").exit_code == 0
    assert rows(data)["train"][1] == "absent"
    write_result(attempt, Result("done", "finished", 0))


def test_without_a_shared_folder_each_node_keeps_the_data_of_the_cluster(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    cache = tmp_path / "clustertrain" / "data"
    assert data_folder(tmp_path / "runs", "cluster") == tmp_path / "runs"
    assert data_folder(tmp_path / "runs", "node") == cache
    assert data_folder(None, "cluster") == cache
