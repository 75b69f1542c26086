"""A command finds the run that it names, whichever launcher has it."""

import os
import re
import tempfile
from pathlib import Path

import pytest
from click.testing import CliRunner

from clustertrain.cli.main import main
from clustertrain.errors import EXIT_STORAGE, JobError
from clustertrain.job.file import load_job
from clustertrain.launchers.known_runs import KnownRun, record_known_run
from clustertrain.launchers.listing import list_runs
from clustertrain.launchers.resolve_run import find, find_job
from clustertrain.launchers.target import Target
from clustertrain.observe.status import NotStarted
from clustertrain.run_files.claims import claim_attempt
from clustertrain.run_files.folder.run_dir import RunDir
from clustertrain.run_files.recorded_job import record_job

FUTURE = 4e9


@pytest.fixture
def job(tmp_path, monkeypatch):
    """A job file in the current folder; no scheduler on PATH."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "job.yaml").write_text("name: digits\nfunction: m:f\nstorage: runs\n")
    return load_job("job.yaml")


def submitted(job, launcher, **fields):
    run = KnownRun.of(job, "job.yaml", launcher, fields.pop("cluster", "ml"))
    record_known_run(KnownRun(**{**vars(run), **fields}))


def started(job, launcher="local"):
    run = RunDir.newest(job.storage.location, job.name)
    claim_attempt(run, launcher=launcher)
    return run


def found(text, *sets, to=None):
    notes = []
    launcher, target = find(text, sets, to, notes.append)
    assert not notes
    return launcher.name, target


def test_a_job_file_names_the_launcher_of_the_newest_start(job):
    submitted(job, "kubernetes", time=1.0)
    started(job)
    assert found("job.yaml")[0] == "local"
    submitted(job, "kubernetes", time=FUTURE)
    assert found("job.yaml")[0] == "kubernetes"
    assert found("job.yaml", to="local")[0] == "local"


def test_set_beside_a_folder_of_a_run_is_refused(job):
    started(job)
    with pytest.raises(JobError, match="--set changes a job file"):
        find("runs/digits", ["train.epochs=3"], None, print)


# --------------------------------------------------------------------------------------------------- ls


def test_ls_shows_runs_of_all_launchers_in_one_table(job, tmp_path):
    started(job)
    other = load_job("job.yaml", ["name=far", "storage=/nowhere/runs"])
    submitted(other, "slurm", cluster="SLURM cluster sim", job_id="7", host="login1")
    pods = load_job("job.yaml", ["name=pods"])
    submitted(pods, "kubernetes", cluster="Kubernetes namespace ml", storage_there="/storage/runs")
    header, *rows = list_runs().lines()
    assert header.split() == ["NAME", "STATE", "STEP", "FIGURES", "ATTEMPT", "WHERE", "ETTR", "HOURS"]
    digits, far, pods = rows
    assert digits.split()[:3] == ["digits", "waiting", "-"]
    assert far.split()[:2] == ["far", "unknown"]
    assert "SLURM cluster sim, job 7" in far
    assert "`clustertrain status /nowhere/runs/far` reads its state" in far
    assert pods.split()[:2] == ["pods", "unknown"] and "Kubernetes namespace ml" in pods


def test_ls_lists_the_runs_on_a_server_without_asking_it(job):
    for name in ("a", "b"):
        submitted(load_job("job.yaml", [f"storage=s3://b/{name}", f"name={name}"]), "slurm")
    rows = list_runs(everywhere=True).lines()[1:]
    assert [row.split()[:2] for row in rows] == [[name, "unknown"] for name in ("a", "b")]


def test_ls_in_a_project_shows_its_runs_and_the_others_on_demand(job, tmp_path, monkeypatch):
    started(job)
    submitted(job, "local")
    project = tmp_path / "project"
    project.mkdir()
    monkeypatch.chdir(project)
    (project / "job.yaml").write_text("name: mine\nfunction: m:f\nstorage: ../shared\n")
    mine = load_job("job.yaml")
    started(mine)
    submitted(mine, "local")
    _, row, note = list_runs().lines()
    assert row.split()[0] == "mine", "its storage is elsewhere, and its job file is here"
    assert re.fullmatch(r"note: 1 more of your runs elsewhere: `\S*clustertrain ls --all`", note)
    listed = CliRunner().invoke(main, ["ls", "--all"]).output.splitlines()
    assert [line.split()[0] for line in listed] == ["NAME", "digits", "mine"]


def test_ls_forgets_what_its_storage_no_longer_holds(job, tmp_path):
    run = started(job)
    submitted(job, "local")
    (tmp_path / "runs" / "digits").rename(tmp_path / "gone")
    assert len(list_runs().lines()) == 1
    (tmp_path / "gone").rename(tmp_path / "runs" / "digits")
    state = tmp_path / "state" / "clustertrain" / "runs"
    assert list(state.iterdir()) == []
    assert run.attempts()


UNREADABLE = ["attempts", "attempts/1/restarts", "attempts/1/events.jsonl", "checkpoints", "submissions"]


@pytest.mark.parametrize("to", [None, "local", "slurm"])
@pytest.mark.parametrize("key", UNREADABLE)
def test_ls_goes_on_after_a_run_that_cannot_be_read(job, key, to):
    """A link to itself is refused to root as well."""
    started(job)
    other = Path("runs/other/g1", key)
    started(load_job("job.yaml", ["name=other"]))
    if other.exists():
        other.rename("aside")
    other.symlink_to(other.name)
    submitted(load_job("job.yaml", ["name=other"]), "local")
    done = CliRunner().invoke(main, ["ls", "runs", *(["--to", to] if to else [])])
    assert done.exit_code == 0, done.output
    _, digits, unread = done.output.splitlines()
    assert digits.split()[:2] == ["digits", "waiting"]
    assert unread.split()[:2] == ["other", "unknown"]
    assert str(other) in unread


@pytest.mark.parametrize("to", [None, "local"])
def test_ls_names_a_folder_that_cannot_be_listed(job, tmp_path, to):
    """Such as lost+found, or the runs of another user."""
    (tmp_path / "runs").mkdir()
    Path("runs/closed").symlink_to("closed")
    arguments = ["ls", "runs", *(["--to", to] if to else [])]
    refused = CliRunner().invoke(main, arguments)
    assert refused.exit_code == EXIT_STORAGE, refused.output
    started(job)
    done = CliRunner().invoke(main, arguments)
    assert done.exit_code == 0, done.output
    _, digits, note = done.output.splitlines()
    assert digits.split()[:2] == ["digits", "waiting"]
    assert note.startswith(f"note: {tmp_path}/runs/closed cannot be listed by uid ")
    assert note.endswith("; it is left out")


# ------------------------------------------------------------------------------------- folders of a run


def test_a_run_with_the_name_of_a_generation_is_found(job):
    run = started(load_job("job.yaml", ["name=g1"]))
    assert found("runs/g1")[1].visible_run() == run
    assert found("runs/g1/g1")[1].visible_run() == run


def test_an_s3_uri_has_the_endpoint_of_the_known_run(job):
    options = ["storage={uri: s3://b/runs, endpoint: 'http://127.0.0.1:9'}", "image=registry/a:1"]
    submitted(load_job("job.yaml", options), "kubernetes")
    for text in ("s3://b/runs/digits", "s3://b/runs/digits/g3/attempts/2"):
        launcher, target = found(text)
        assert launcher == "kubernetes"
        assert target.submitted_job.storage.endpoint == "http://127.0.0.1:9"


def test_a_folder_that_a_pod_printed_names_its_run(job):
    submitted(job, "kubernetes", storage_there="/storage/runs")
    launcher, target = found("/storage/runs/digits/g1/attempts/2")
    assert (launcher, target.known.name, target.attempt) == ("kubernetes", "digits", 2)
    with pytest.raises(NotStarted):
        find("/elsewhere/runs/digits/g1", (), None, print)


def test_a_submitted_run_is_followed_by_its_record(job):
    """`submit --wait --set name=b` follows b, and not the run of the unchanged job file."""
    started(job)
    other = load_job("job.yaml", ["name=b"])
    run = started(other)
    target = Target("job.yaml", other, KnownRun.of(other, "job.yaml", "slurm"), sets=("name=b",))
    assert target.visible_run() == run
    assert str(target.command("run")).endswith("clustertrain run job.yaml --set name=b")
    assert target.command("run").of("status").endswith(f"clustertrain status {run.uri.removesuffix('/g1')}")


def test_the_job_of_a_run_is_the_one_that_ran(job):
    run = started(load_job("job.yaml", ["data.train.uri=/data"]))
    with pytest.raises(JobError, match="contains no job"):
        find_job("runs/digits", (), None, print)
    record_job(run.attempt(1), load_job("job.yaml", ["data.train.uri=/data"]))
    for folder in ("runs/digits", "runs/digits/g1", "runs/digits/g1/attempts/1"):
        assert list(find_job(folder, (), None, print).data) == ["train"]
    assert list(find_job("job.yaml", ["data.test.uri=/data"], None, print).data) == ["test"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
@pytest.mark.parametrize("command", ["status", "logs", "ls"])
@pytest.mark.parametrize("target", ["runs/x", "job.yaml"])
def test_the_home_of_another_user_is_refused_in_two_lines(command, target, monkeypatch):
    """Path.exists raises PermissionError there."""
    with tempfile.TemporaryDirectory(dir="/tmp", prefix="home-") as folder:  # other users may enter /tmp
        home = Path(folder)
        (home / "runs" / "x").mkdir(parents=True)
        (home / "job.yaml").touch()
        monkeypatch.setenv("XDG_STATE_HOME", "/tmp/absent")
        CliRunner().invoke(main, [command, "/tmp/absent/x"])  # imports what another user may not read
        os.seteuid(65534)
        try:
            done = CliRunner().invoke(main, [command, str(home / target)])
        finally:
            os.seteuid(0)
    assert done.exit_code in (2, 4), done.output
    assert done.stderr.startswith("error: ")
    assert f"{home / target}" in done.stderr
    assert "Permission denied" in done.stderr
    assert len(done.stderr.splitlines()) == 2


# ------------------------------------------------------------------------------ two checkouts of one user


def test_a_run_of_another_checkout_is_not_taken_for_the_one_in_this_folder(job, tmp_path, monkeypatch):
    """Both have the same job file and HOME; the one here was started with another HOME."""
    started(job)
    submitted(job, "local")
    other = tmp_path / "other"
    other.mkdir()
    (other / "job.yaml").write_text((tmp_path / "job.yaml").read_text())
    monkeypatch.chdir(other)
    started(load_job("job.yaml"))
    for own, folder in ((other, "runs/digits"), (other, "job.yaml"), (tmp_path, str(tmp_path / "job.yaml"))):
        assert found(folder)[1].files.run.store.location.uri == f"{own}/runs"
    rows = [row["where"].split()[-1] for row in list_runs(everywhere=True).values()]
    assert rows == [f"{other}/runs", f"{tmp_path}/runs"]
