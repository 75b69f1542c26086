import errno
import os
import shlex
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from clustertrain.cli.main import main
from clustertrain.errors import EXIT_JOB, EXIT_STORAGE
from clustertrain.job.file import load_job, parse_job
from clustertrain.launchers.known_runs import KnownRun, by_folder, record_known_run
from clustertrain.node.installed import launcher_names
from clustertrain.observe.tables import finish
from clustertrain.run_files.claims import claim_attempt
from clustertrain.run_files.command_line import typed
from clustertrain.run_files.folder.run_dir import RunDir
from clustertrain.run_files.recorded_job import record_job
from clustertrain.run_files.records.result import Result
from clustertrain.run_files.result import write_result
from clustertrain.run_files.streams.event_log import EventLog
from support.commands import ran


@pytest.fixture
def cli(tmp_path, monkeypatch):
    """Calls a command in an empty folder; returns click's result."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return lambda *arguments: CliRunner().invoke(main, arguments)


def test_a_character_that_the_locale_lacks_is_no_traceback(tmp_path):
    latin1 = {**os.environ, "PYTHONIOENCODING": "iso-8859-1", "XDG_STATE_HOME": str(tmp_path)}
    command = [sys.executable, "-m", "clustertrain.cli", "exec", "--help"]
    assert r"COMMAND\u2026" in ran(command, code=0, env=latin1, timeout=60).stdout


def test_ctrl_c_during_the_imports_is_no_traceback(tmp_path):
    (tmp_path / "click.py").write_text("raise KeyboardInterrupt")
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = ran([sys.executable, "-m", "clustertrain.cli", "--version"], code=130, env=environment)
    assert done.stdout + done.stderr == ""


def test_a_full_output_is_no_traceback():
    program = "import sys; from clustertrain.cli.main import main; main(['--version'], standalone_mode=False)"
    command = shlex.join([sys.executable, "-c", f"{program}; sys.stdout.isatty()"])
    full = ran(["bash", "-c", f"{command} >/dev/full"], code=EXIT_STORAGE, timeout=60).stderr
    assert full == "error: The output cannot be written: No space left on device.\nFree space there.\n"


def test_code_in_a_folder_that_the_user_may_not_enter_is_no_traceback(cli, tmp_path, monkeypatch):
    def refuse(path):
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    (tmp_path / "job.yaml").write_text("name: a\nscript: train.py\ncode: /theirs/code\n")
    monkeypatch.setattr(Path, "is_dir", refuse)
    result = cli("check", "--no-code", "job.yaml")
    assert result.exit_code == EXIT_STORAGE
    assert result.stderr.startswith("error: /theirs/code cannot be used by uid ")


def test_init_writes_a_job_without_mistakes(cli, tmp_path):
    assert cli("init", "my-Run_1").exit_code == 0
    result = cli("check", "--no-code", "--defaults", "my-Run_1/job.yaml")
    assert result.exit_code == 0
    assert "name: my-run-1" in result.output


def test_init_overwrites_nothing(cli, tmp_path):
    (tmp_path / "task.py").write_text("mine")
    result = cli("init")
    assert result.exit_code == EXIT_JOB
    assert "task.py exists already" in result.stderr
    assert not (tmp_path / "job.yaml").exists()
    assert (tmp_path / "task.py").read_text() == "mine"


def test_init_below_a_file_is_refused(cli, tmp_path):
    (tmp_path / "file").touch()
    assert cli("init", "file/sub").exit_code == EXIT_STORAGE


BAD_JOBS = {
    "missing": (None, "job.yaml"),
    "not YAML": ("name: [", "job.yaml:"),
    "an unknown key": ("name: a\nfunction: m:f\nstorge: x\n", "storage"),
}


@pytest.mark.parametrize(("text", "said"), BAD_JOBS.values(), ids=BAD_JOBS)
def test_a_bad_job_gets_two_or_three_lines_and_2(cli, tmp_path, text, said):
    if text is not None:
        (tmp_path / "job.yaml").write_text(text)
    result = cli("run")
    assert result.exit_code == EXIT_JOB
    assert said in result.stderr
    assert "Traceback" not in result.stderr
    assert 1 <= len(result.stderr.splitlines()) <= 4
    assert result.stdout == ""
    assert not (tmp_path / "runs").exists()


def test_a_job_that_turns_off_the_token_is_refused(cli, tmp_path):
    (tmp_path / "job.yaml").write_text("name: a\nfunction: m:f\nenv:\n  RAY_AUTH_MODE: disabled\n")
    result = cli("run")
    assert result.exit_code == EXIT_JOB
    assert "job.yaml:4:3: env.RAY_AUTH_MODE: this variable is set by clustertrain" in result.stderr
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("command", ["status", "logs", "stop"])
def test_a_run_that_never_started(cli, command):
    cli("init", "a")
    result = cli(command, "a/job.yaml")
    assert result.exit_code == EXIT_JOB
    assert "there is no run" in result.stderr
    assert "clustertrain run" in result.stderr


@pytest.fixture
def runs(cli, tmp_path):
    """Runs `digits` and `b` of one job file, each of which has stopped; the attempt of `b`."""
    (tmp_path / "a job.yaml").write_text(
        "name: digits\nfunction: m:f\nstorage: runs\ndata: {here: {uri: .}}\n"
    )
    for name in ("digits", "b"):
        job = load_job("a job.yaml", [f"name={name}"])
        attempt = claim_attempt(RunDir.newest(job.storage.location, name))
        record_job(attempt, job)
        write_result(attempt, Result("stopped", "interrupt", 75))
    return attempt


COMMANDS = ("status", "logs", "ckpt ls", "ckpt verify", "data ls", "data evict", "stop")


def assert_is_about(run, command, result):
    """The run b, which is over."""
    if command == "stop":
        assert "b is not running" in result.stderr
    elif command == "ckpt verify":
        assert result.exit_code == EXIT_JOB
        assert f"{run.uri}/checkpoints contains no checkpoint" in result.stderr
    else:
        assert result.exit_code == 0, result.output
    if command == "status":
        assert run.uri in result.output


@pytest.mark.parametrize("command", COMMANDS)
def test_set_names_the_same_run_as_at_its_start(cli, runs, command):
    result = cli(*command.split(), "a job.yaml", "--set", "name=b")
    assert_is_about(runs.run, command, result)
    missing = cli(*command.split(), "a job.yaml", "--set", "nmae=b")
    assert missing.exit_code == EXIT_JOB
    assert "unknown key 'nmae'" in missing.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("logs runs/b --attempt 0", "has no attempt 0"),
        ("explain runs/b --attempt 0", "has no attempt 0"),
        ("ls --namespace team", "Add --to kubernetes"),
    ],
)
def test_an_option_that_fits_nothing_is_refused(cli, runs, arguments, said):
    result = cli(*arguments.split())
    assert result.exit_code == 2, result.output
    assert said in result.output


def test_logs_of_the_folder_of_an_attempt_are_those_of_the_attempt(cli, runs):
    EventLog(runs.events).write("note", text="the first")
    second = claim_attempt(runs.run)
    EventLog(second.events).write("note", text="the second")
    write_result(second, Result("stopped", "interrupt", 75))
    shown = {
        folder: cli("logs", f"runs/b/g1{folder}").output for folder in ("", "/attempts/1", "/attempts/2")
    }
    assert "the second" in shown[""] and "the first" not in shown[""]
    assert "the first" in shown["/attempts/1"] and "the second" not in shown["/attempts/1"]
    assert "the second" in shown["/attempts/2"]


def test_the_commands_at_the_end_of_a_run_with_options_have_them_once(cli, runs, capsys):
    """Five options of a run that is known, and a command by its folder that works."""
    sets = ["name=b", *(f"env.A{n}={'x' * 30}" for n in range(4))]
    known = KnownRun.of(load_job("a job.yaml", sets), "a job.yaml", "local")
    record_known_run(known)
    result = Result("failed", "error", 1, checkpoint="00000010-1.0")
    finish(runs.run, result, by_folder(typed("run", "a job.yaml", sets), known))
    output = capsys.readouterr().out
    assert output.count("--set") == 5
    assert (
        "again, with a changed job:  the same with --accept-changes\nfresh:  the same with --fresh\n"
        in output
    )
    logs = output.partition("logs: ")[2].splitlines()[0]
    assert logs.split()[1:] == ["logs", known.uri]
    assert cli("logs", known.uri).exit_code == 0


def test_a_refused_start_advises_the_same_command(cli, runs):
    claim_attempt(runs.run)  # this process runs it
    for start in ("run", "submit --to local"):
        result = cli(*start.split(), "a job.yaml", "--set", "name=b")
        assert f"clustertrain {start} 'a job.yaml' --set name=b --takeover`" in result.stderr


@pytest.mark.parametrize("command", ["check", "render", "submit", "ls", "status", "logs", "stop"])
def test_an_unknown_launcher_names_those_that_there_are(cli, command):
    result = cli(command, "--to", "pbs")
    assert result.exit_code == EXIT_JOB
    for name in launcher_names():
        assert repr(name) in result.output


def test_the_rendering_of_a_run_on_this_machine_is_its_job_with_every_default(cli):
    cli("init", ".")
    shown = cli("render", "--to", "local").stdout
    assert parse_job(shown, "shown") == load_job("job.yaml")
    assert "retries: " in shown


def test_ctrl_c_before_a_run_has_started_names_the_command_to_type(cli, monkeypatch):
    def interrupted(*arguments, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr("clustertrain.launchers.local.run.admit", interrupted)
    cli("init")
    result = cli("run", "job.yaml", "--set", "train.epochs=2")
    assert result.exit_code == 130
    assert "clustertrain run job.yaml --set train.epochs=2`" in result.output
