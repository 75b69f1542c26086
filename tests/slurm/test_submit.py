"""Handing a job to a real SLURM: what arrives there, what is written down, what is refused before."""

import re
import shlex
import shutil
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

from clustertrain.job.file import load_job
from clustertrain.run_files.claims import claim_attempt
from clustertrain.run_files.folder.run_dir import RunDir
from clustertrain.run_files.records.result import Result
from clustertrain.run_files.result import write_result
from clustertrain.run_files.submission import Submission

ENDING_AGENT = """\
#!{python}
import os, sys, time
from pathlib import Path
from clustertrain.run_files.claims import claim_attempt
from clustertrain.run_files.records.result import Result
from clustertrain.run_files.records.scheduler import SchedulerStart
from clustertrain.run_files.result import write_result
from clustertrain.run_files.submission import Submission

if os.environ["SLURM_NODEID"] == "0":
    Path(os.environ["CLUSTERTRAIN_MAIL"], "agent").touch()
    run = Submission.from_text(sys.argv[3]).run
    start = SchedulerStart("slurm", os.environ["SLURM_JOB_ID"], {{"cluster": "test"}})
    attempt = claim_attempt(run, launcher="slurm", allocation=start)
    write_result(attempt, Result({result}))
    sys.exit({code})
"""


@pytest.fixture
def login(login):
    login.job()
    return login


def job_id_of(printed):
    return re.search(r"^submitted digits as SLURM job (\d+): [A-Z]+", printed, re.MULTILINE)[1]


def test_what_is_sent_is_what_render_prints(login, cluster):
    login.job(slurm={"partition": "short", "options": ["--comment=hello"]})
    job_id = job_id_of(login.submit())
    sent = cluster.command("scontrol", "write", "batch_script", job_id, "-").stdout
    rendered = login("render", "--to", "slurm").stdout
    assert sent.rstrip("\n\0") == rendered.rstrip("\n")
    assert "#SBATCH --partition=short\n" in sent
    assert cluster.job(job_id)["Comment"] == "hello"


def test_the_nodes_get_the_snapshot_and_its_job(login, cluster, tmp_path):
    env = {"A": "${REFERRED}", "B": "${NOT_HERE}"}
    login.job(resources={"workers": 2, "nodes": 2}, slurm={"environment": ["AWS_PROFILE"]}, env=env)
    secrets = {"AWS_SECRET_ACCESS_KEY": "canary-1", "MY_TOKEN": "canary-2"}
    printed = login.submit(AWS_PROFILE="team", REFERRED="canary-in-env", **secrets)
    assert "note: env.B: NOT_HERE is not set here; if no node sets it, the job ends at its start\n" in printed
    assert "env.A" not in printed
    job_id = job_id_of(printed)
    cluster.wait_for_state(job_id, {"COMPLETED", "FAILED"})
    assert cluster.job(job_id)["JobState"] == "COMPLETED", Path(login.records()[0]["output"]).read_text()
    for node in ("0", "1"):
        module, name, text = (tmp_path / f"arguments-{node}").read_text().splitlines()
        assert (module, name) == ("-m", "clustertrain.launchers.slurm.agent")
        environment = (tmp_path / f"environment-{node}").read_text()
        assert "AWS_PROFILE=team\n" in environment
        assert "REFERRED=canary-in-env\n" in environment
        assert not [secret for secret in secrets.values() if secret in environment]
    submission = Submission.from_text(text)
    assert submission.job() == load_job(tmp_path / "job.yaml")
    submission.unpack_code(tmp_path / "unpacked")
    assert (tmp_path / "unpacked" / "train.py").read_text() == "def train(config): pass\n"
    for path in (tmp_path / "runs").rglob("*"):
        assert path.is_dir() or b"canary" not in path.read_bytes()
    assert "canary" not in cluster.command("scontrol", "write", "batch_script", job_id, "-").stdout


def test_a_record_and_the_printed_commands_lead_to_the_job_and_repeat_no_options(login, tmp_path):
    before = time.time()
    overrides = ("--set", "args.note=a b", "--set", "slurm.dependency=singleton")  # others may be queued
    printed = login.submit("./job.yaml", *overrides)
    job_id, run = job_id_of(printed), str(tmp_path / "runs" / "digits")
    (record,) = login.records()
    assert (record["scheduler"], record["job_id"], record["place"]) == ("slurm", job_id, {"cluster": "test"})
    assert record["output"] == str(tmp_path / f"digits-{job_id}.out")
    assert before - 1 < record["time"] < time.time() + 1
    assert record["output"] in printed
    advised = re.findall(r"^(?:status|logs|stop): +(.*)", printed, re.MULTILINE)
    commands = [shlex.split(command)[1:] for command in advised]
    assert commands == [["status", run], ["logs", run, "--follow"], ["stop", run]]
    for folder in (run, f"{run}/g1"):
        assert job_id in login("status", folder).stdout


def test_the_same_job_again_is_not_uploaded_again(login, cluster, tmp_path):
    """What it prints lies in the folder of the code here, and is no part of it."""
    login.write_agent('#!/bin/sh\n: > "$CLUSTERTRAIN_MAIL/agent"\n')
    login.job(code=".", storage="code/runs")
    first = job_id_of(login.submit())
    cluster.wait_for_state(first, {"COMPLETED"})
    assert (tmp_path / f"digits-{first}.out").exists()
    folder = tmp_path / "code/runs/digits/g1/submissions"
    (snapshot,) = [path for path in folder.iterdir() if path.is_dir()]
    uploaded = (snapshot / "code.tar.gz").stat().st_mtime_ns
    second = job_id_of(login.submit())
    assert [path for path in folder.iterdir() if path.is_dir()] == [snapshot]
    assert (snapshot / "code.tar.gz").stat().st_mtime_ns == uploaded
    assert {path.name for path in folder.glob("*.json")} == {f"slurm-{first}.json", f"slurm-{second}.json"}


def test_a_run_that_is_queued_is_not_queued_twice_by_mistake(login):
    first = job_id_of(login.submit("--set", "slurm.options=[--hold]"))
    error = login.submit(code=3)
    assert f"digits is queued already: SLURM job {first}" in error
    second = job_id_of(login.submit("--takeover"))
    third = job_id_of(login.submit("--set", "slurm.dependency=singleton"))
    assert len({first, second, third}) == 3


def test_fresh_submits_the_next_generation(login, tmp_path):
    attempt = claim_attempt(RunDir.newest(str(tmp_path / "runs"), "digits"))
    write_result(attempt, Result("done", "finished", 0))
    login.submit("--fresh")
    assert login.records(1) == []
    (record,) = login.records(2)
    assert (tmp_path / "runs/digits/g2/submissions" / record["digest"] / "job.yaml").exists()


def test_variables_of_the_shell_do_not_change_what_the_script_says(login, cluster):
    """sbatch itself takes SBATCH_… before the script."""
    login.job(slurm={"partition": "gpu", "time_limit": "7m"})
    shell = {
        "SBATCH_PARTITION": "short",
        "SBATCH_TIMELIMIT": "1",
        "SBATCH_JOB_NAME": "x",
        "SBATCH_EXPORT": "ALL",
    }
    job = cluster.job(job_id_of(login.submit(**shell)))
    assert (job["Partition"], job["TimeLimit"], job["JobName"]) == ("gpu", "00:07:00", "digits")


def test_the_snapshot_is_as_private_as_the_umask_says(login, tmp_path):
    login.submit(umask=0o027)
    (job,) = (tmp_path / "runs").rglob("submissions/*/job.yaml")
    (record,) = (tmp_path / "runs").rglob("submissions/slurm-*.json")
    for path in (job, job.with_name("code.tar.gz"), record):
        assert stat.S_IMODE(path.stat().st_mode) == 0o640
    assert stat.S_IMODE(job.parent.stat().st_mode) == 0o750


def test_a_job_file_whose_path_is_shell_is_a_path(login, cluster, tmp_path):
    name = "$(touch made) 'and' \"quotes\" ; touch made.yaml"
    (tmp_path / "job.yaml").rename(tmp_path / name)
    job_id = job_id_of(login.submit(name))
    cluster.wait_for_state(job_id, {"COMPLETED"})
    assert not list(tmp_path.glob("made*"))


@pytest.fixture
def wrapped(login):
    """Puts lines of shell around the real sbatch, whose options are $*; returns the environment."""

    def write(body):
        real = shutil.which("sbatch", path=login.cluster.environment["PATH"])
        folder = login.folder / "bin"
        folder.mkdir()
        (folder / "sbatch").write_text(f"#!/bin/sh\nreal={real}\n{body}\n")
        (folder / "sbatch").chmod(0o755)
        return {"PATH": f"{folder}:{login.cluster.environment['PATH']}"}

    return write


def test_an_answer_that_was_lost_is_not_taken_for_a_refusal(login, wrapped):
    lost = "echo 'allocation failure: Socket timed out on send/recv operation' >&2; exit 1"
    environ = wrapped(f'$real "$@" || exit; case "$*" in --parsable*) {lost};; esac')
    before = login.jobs()
    error = login.submit(code=3, **environ)
    assert len(login.jobs() - before) == 1  # it was taken
    assert "Socket timed out" in error
    assert "may still be queued" in error


def test_a_record_that_cannot_be_written_does_not_lose_the_job(login, wrapped):
    away = "mv runs/digits/g1/submissions gone; touch runs/digits/g1/submissions"
    environ = wrapped(f'$real "$@"; code=$?; case "$*" in --parsable*) {away};; esac; exit $code')
    printed = login.submit(**environ)
    job_id = job_id_of(printed)
    assert f"warning: SLURM job {job_id} is queued, but its record could not be written" in printed
    assert job_id in login.jobs()


# ----------------------------------------------------------------------------------- the Python on the nodes


def test_a_login_node_without_torch_needs_to_be_told_the_python_of_the_nodes(login):
    login.job(slurm={"python": None})
    error = login.submit(code=2)
    assert "slurm.python is not given" in error
    assert "site.yaml" in error


def test_the_site_file_names_the_python_for_all_jobs(login, cluster, tmp_path):
    login.job(slurm={"python": None})
    (tmp_path / "site.yaml").write_text("slurm: {python: ./agent, partition: short}\n")
    job_id = job_id_of(login.submit(CLUSTERTRAIN_SITE=str(tmp_path / "site.yaml")))
    assert cluster.job(job_id)["Partition"] == "short"
    cluster.wait_for_state(job_id, {"COMPLETED"})
    assert (tmp_path / "arguments-0").exists()
    (text,) = (tmp_path / "runs").rglob("submissions/*/job.yaml")
    assert "python: ./agent" in text.read_text()  # the nodes need no site file


def test_this_python_is_taken_where_it_can_train(login):
    login.job(slurm={"python": None})
    assert (
        f"{sys.executable} -m clustertrain.launchers.slurm.agent"
        in login("render", "--to", "slurm", light=False).stdout
    )


# ------------------------------------------------------------------------------------------------ --wait

ENDINGS = {
    "done": ("'done', 'finished', 0, step=12", 0, 0),
    "failed": ("'failed', 'error', 1, text='It broke.\\nMend it.'", 1, 1),
    "bad data": ("'failed', 'data', 4, text='Wrong sum.\\nFetch it.'", 4, 4),
    "stopped": ("'stopped', 'user', 75", 75, 75),
}


@pytest.mark.parametrize(("result", "ends_with", "code"), ENDINGS.values(), ids=ENDINGS)
def test_waiting_ends_with_the_runs_code(login, result, ends_with, code):
    login.write_agent(ENDING_AGENT.format(python=sys.executable, result=result, code=ends_with))
    done = login("submit", "--to", "slurm", "--wait", code=code)
    state = result.split("'")[1]
    lines = done.stdout.splitlines()
    assert any(line.startswith(f"{state}: attempt 1") for line in lines), done.stdout
    assert len(lines) == len({*lines}), "a line for each change, and no more"
    assert "state" in done.stdout
    if state == "failed":
        assert "error: " in done.stderr
    if state == "stopped":
        assert "submit --to slurm job.yaml" in done.stdout


def test_waiting_for_one_that_never_starts_an_attempt(login):
    done = login(
        "submit", "--to", "slurm", "--wait", "--set", "slurm.environment=[AGENT_CODE]", AGENT_CODE="9", code=1
    )
    assert "lost" in done.stdout


def test_waiting_for_one_that_is_cancelled_while_it_waits(login, cluster):
    arguments = ["submit", "--to", "slurm", "--wait", "--set", "slurm.options=[--hold]"]
    waiting = subprocess.Popen(
        [sys.executable, "-m", "clustertrain.cli", *arguments],
        cwd=login.folder,
        env={**cluster.environment, "CLUSTERTRAIN_SITE": "", "PYTHONUNBUFFERED": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    with waiting:
        lines = []
        for line in waiting.stdout:
            lines.append(line)
            if line.startswith("queued"):
                cluster.command("scancel", login.records()[0]["job_id"])
    assert waiting.returncode == 130, lines
    assert any(line.startswith("cancelled") for line in lines)
