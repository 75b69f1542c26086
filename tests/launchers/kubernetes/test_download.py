"""`ckpt export` of a run on Kubernetes: a pod sends the model, and this machine writes the file.

The kubectl here is a fake. Its `exec` runs the command on this machine, as a pod that has the storage would;
tests/kubernetes has a real one.
"""

import json
import sys

import pytest
import torch
import yaml
from click.testing import CliRunner

from clustertrain.cli.main import main
from clustertrain.job.file import load_job
from clustertrain.launchers.known_runs import KnownRun, record_known_run
from clustertrain.launchers.kubernetes.render.paths import JOB_FILE
from clustertrain.run_files.claims import claim_attempt
from clustertrain.run_files.folder.run_dir import RunDir
from clustertrain.run_files.recorded_job import record_job
from clustertrain.run_files.streams.event_log import EventLog
from launchers.kubernetes.sample_objects import pod, rayjob
from support.commands import write_program
from support.sample_checkpoints import save

pytestmark = pytest.mark.slow

KUBECTL = """
import json, subprocess, sys
FOLDER, JOB_FILE = {folder!r}, {job_file!r}
argv = sys.argv[1:]
with open(FOLDER + "/calls", "a") as calls:
    calls.write(json.dumps(argv) + "\\n")
if argv[0] == "get":
    answers = json.load(open(FOLDER + "/answers.json"))
    if argv[1] not in answers:
        sys.exit(0 if "--ignore-not-found" in argv else 1)
    print(json.dumps(answers[argv[1]]))
elif argv[0] == "exec":
    command = [FOLDER + "/pod.yaml" if word == JOB_FILE else word for word in argv[argv.index("--") + 1 :]]
    done = subprocess.run([sys.executable, *command[1:]], stdout=subprocess.PIPE)
    cut = json.load(open(FOLDER + "/cut"))
    sys.stdout.buffer.write(done.stdout[:cut])
    sys.stdout.flush()
    if done.returncode:
        print(f"command terminated with exit code {{done.returncode}}", file=sys.stderr)
    sys.exit(done.returncode)
"""
HEAD = pod("digits-head", "head")
WHILE_IT_RUNS = {"rayjobs.ray.io": rayjob(), "pods": {"items": [HEAD]}, "events": {"items": []}}


@pytest.fixture
def cluster(tmp_path, monkeypatch):
    """A run on Kubernetes with checkpoints of steps 10 and 20, of which the first one is the best."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    keep_best = {"every": {"steps": 10}, "keep_best": {"metric": "loss", "mode": "min"}}
    sections = {"name": "digits", "function": "m:f", "image": "registry/a:1", "checkpoint": keep_best}
    for file, storage in (("job.yaml", "runs"), ("pod.yaml", str(tmp_path / "volume"))):
        (tmp_path / file).write_text(yaml.safe_dump({**sections, "storage": storage}))
    program = KUBECTL.format(folder=str(tmp_path), job_file=JOB_FILE)
    write_program(tmp_path / "kubectl", program, sys.executable)
    (tmp_path / "cut").write_text("null")
    job = load_job("job.yaml")
    assert record_known_run(KnownRun.of(job, "job.yaml", "kubernetes", "Kubernetes namespace ml")) is None
    run = RunDir.newest(str(tmp_path / "volume"), "digits")
    record_job(claim_attempt(run), load_job("pod.yaml"))
    for step in (10, 20):
        state = {"model": {"weight": torch.full((1000,), float(step))}, "optimizer": {"lr": 0.1}}
        save(run.checkpoints, step, state, loss=step / 100)

    def export(*options, **answers):
        (tmp_path / "answers.json").write_text(json.dumps(answers))
        return CliRunner().invoke(
            main, ["ckpt", "export", "job.yaml", "--output", "out.safetensors", *options]
        )

    export.folder = tmp_path
    return export


def test_the_export_of_an_absent_checkpoint_names_those_that_there_are(cluster):
    result = cluster("--name", "7", **WHILE_IT_RUNS)
    assert result.exit_code == 2
    assert "contains no checkpoint '7'.\nThere are: 00000010-1.0, 00000020-1.0." in result.stderr
    assert "exit code" not in result.stderr


@pytest.mark.parametrize("cut", [0, 700, 3000])
def test_a_stream_that_was_cut_is_not_exported(cluster, cut):
    (cluster.folder / "cut").write_text(str(cut))
    result = cluster(**WHILE_IT_RUNS)
    assert result.exit_code == 4, result.output
    assert not list(cluster.folder.glob("out.*"))


def test_exec_on_a_rank_whose_pod_is_gone_names_its_host(cluster):
    ranks = [{"rank": rank, "host": f"digits-worker-{'ab'[rank]}", "pid": 70 + rank} for rank in (0, 1)]
    attempt = RunDir.newest(str(cluster.folder / "volume"), "digits").attempt(1)
    EventLog(attempt.events).write("group_started", restart=0, world_size=2, ranks=ranks)
    answers = {**WHILE_IT_RUNS, "pods": {"items": [HEAD, pod("digits-worker-b", "worker")]}}
    (cluster.folder / "answers.json").write_text(json.dumps(answers))
    done = CliRunner().invoke(main, ["exec", "job.yaml", "--rank", "0", "--", "nvidia-smi"])
    assert "No pod of digits that runs has the host digits-worker-a" in done.stderr


def test_an_existing_file_is_refused_before_anything_is_sent(cluster):
    (cluster.folder / "out.json").touch()
    result = cluster(**WHILE_IT_RUNS)
    assert (result.exit_code, "exists already" in result.stderr) == (2, True)
    assert not (cluster.folder / "calls").exists()
