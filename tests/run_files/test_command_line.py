"""The commands that messages advise: the shell reads them as the words that the user typed."""

import shlex
import sys
from pathlib import Path

import pytest

from clustertrain.run_files.command_line import UNKNOWN, CommandLine, command_on, to_type, typed


def words(command):
    """The words of a command as the shell reads it, without the path of the program."""
    program, *rest = shlex.split(str(command))
    assert Path(program).name == "clustertrain"
    return rest


@pytest.mark.parametrize("job_file", ["job.yaml", "my jobs/it's one.yaml", "$HOME/*.yaml"])
def test_the_command_has_the_same_job_file_and_overrides(job_file):
    command = typed("run", job_file, ("name=a b", "args.text='x'"))
    overrides = ["--set", "name=a b", "--set", "args.text='x'"]
    assert words(f"{command} --fresh") == ["run", job_file, *overrides, "--fresh"]
    assert words(command.of("logs", "--rank", "0")) == ["logs", job_file, *overrides, "--rank", "0"]


@pytest.mark.parametrize(
    ("override", "shown"),
    [
        ("storage.secret_access_key=hunter2", "storage.secret_access_key=…"),
        ("data.train.uri=https://me:hunter2@host/a.tar", "data.train.uri=https://…host/a.tar"),
        ("data.train.uri=https://host/a.tar?token=hunter2", "data.train.uri=https://host/a.tar…"),
        ("args.prompt=who?", "args.prompt=who?"),
        ("args.mail=me@host", "args.mail=me@host"),
    ],
)
def test_credentials_are_left_out(override, shown):
    assert words(typed("run", "job.yaml", [override])) == ["run", "job.yaml", "--set", shown]


def test_a_record_is_read_in_another_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    recorded = typed("submit --to slurm", "job.yaml", ["name=a"]).recorded()
    assert str(recorded) == f"clustertrain submit --to slurm {tmp_path}/job.yaml --set name=a"


def test_without_a_job_file_a_run_is_named_by_its_folder():
    assert command_on("s3://b/runs/a/g1", "logs", "--driver") == "clustertrain logs s3://b/runs/a/g1 --driver"
    assert command_on("/my runs/a/g1", "status") == "clustertrain status '/my runs/a/g1'"
    in_pod = CommandLine("submit --to kubernetes", run="/runs/digits")
    assert (str(in_pod), in_pod.of("stop")) == (
        "clustertrain submit --to kubernetes JOBFILE",
        "clustertrain stop /runs/digits",
    )
    assert str(UNKNOWN) == "clustertrain run JOBFILE"


def test_a_program_that_the_shell_does_not_find_is_named_by_its_path(tmp_path, monkeypatch):
    python = tmp_path / "my env" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.with_name("clustertrain").touch(mode=0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    assert shlex.split(to_type("clustertrain")) == ["my env/bin/clustertrain"]
    monkeypatch.setenv("PATH", str(python.parent))
    assert to_type("clustertrain") == "clustertrain"


def test_a_program_that_is_not_beside_python_is_named_as_the_shell_finds_it(tmp_path, monkeypatch):
    """`pip install --user` puts programs elsewhere."""
    program = tmp_path / "clustertrain"
    program.touch(mode=0o755)
    monkeypatch.setattr(sys, "executable", "/nowhere/bin/python")
    monkeypatch.setattr(sys, "argv", [str(program)])
    monkeypatch.setenv("PATH", str(tmp_path))
    assert (to_type("clustertrain"), to_type("tensorboard")) == ("clustertrain", "tensorboard")
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.chdir("/")
    assert to_type("clustertrain") == str(program).removeprefix("/")
