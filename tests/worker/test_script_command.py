"""The command of a script or module, and what its arguments refer to."""

import os
import socket
import sys
import venv
from pathlib import Path

import pytest

from clustertrain.errors import JobError
from clustertrain.job.model import Job
from clustertrain.worker.scripts.script_command import (
    program_of,
    python_variables,
    script_arguments,
    worker_variables,
)
from support.commands import ran
from support.script_processes import ran_script

SCRIPT = Job(name="a", script="train.py")


def output_of(program, folder):
    return ran(program.argv, cwd=folder).stdout


def test_a_module_runs_as_python_m_runs_it(tmp_path):
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "width.py").write_text("width = 3\n")
    (tmp_path / "package" / "train.py").write_text(
        "import sys\nfrom .width import width\nprint(__name__, width, sys.argv)\n"
    )
    program = program_of(Job(name="a", module="package.train"), [tmp_path], ["--lr", "0.1"])
    assert program.name == "package.train"
    assert output_of(program, tmp_path) == (f"__main__ 3 ['{tmp_path}/package/train.py', '--lr', '0.1']\n")
    assert program.argv[0] == sys.executable


def test_arguments_have_the_values_of_this_worker(tmp_path):
    job = Job(
        name="a",
        script="train.py",
        args=["-d", "${CLUSTERTRAIN_DATA_train}/x", "${now}"],
        resume_args=["--from=${CLUSTERTRAIN_CHECKPOINT_DIR}@${CLUSTERTRAIN_ATTEMPT}.${CLUSTERTRAIN_RESTART}"],
        data={"train": {"uri": "d"}},
    )
    values = worker_variables({"train": tmp_path}, attempt=2, restart=1, checkpoints="s3://b/c")
    first = ["-d", f"{tmp_path}/x", "${now}"]
    assert script_arguments(job, values, resumes=False) == first
    assert script_arguments(job, values, resumes=True) == [*first, "--from=s3://b/c@2.1"]


@pytest.fixture(scope="module")
def environment(tmp_path_factory):
    """A virtual environment without packages."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder)
    return folder


SEEN = """
import importlib.util, os, shutil, sys
print(sys.prefix, importlib.util.find_spec("ray"), os.environ["RANK"])
print(os.environ["PYTHONPATH"], os.environ["VIRTUAL_ENV"], shutil.which("python"))
"""


@pytest.mark.parametrize("given", [".", "bin/python"])
def test_a_script_runs_in_its_own_environment(environment, given, tmp_path, monkeypatch, capfd):
    """Within the environment of the worker, which has Ray."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, sys.path)))
    (tmp_path / "train.py").write_text(SEEN)
    job = Job(name="a", script="train.py", interpreter=str(environment / given))
    folders = [tmp_path, tmp_path / "lib"]
    variables = {"RANK": "0", **python_variables(job, folders)}
    assert ran_script(program_of(job, folders, []), tmp_path, environment=variables)
    assert capfd.readouterr().out.splitlines() == [
        f"{environment} None 0",
        f"{tmp_path}:{tmp_path}/lib {environment} {environment}/bin/python",
    ]


def test_the_import_path_begins_with_the_code_and_keeps_that_of_the_job(tmp_path, environment, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", "/site")
    own = {"interpreter": str(environment)}
    of_job = {**own, "env": {"PYTHONPATH": "/site"}}
    for keys, path in [({}, "/code:/site"), (own, "/code"), (of_job, "/code:/site")]:
        job = Job(name="a", script="train.py", **keys)
        assert python_variables(job, [Path("/code")])["PYTHONPATH"] == path


def test_an_interpreter_that_is_not_there_or_cannot_run(tmp_path):
    def refusal(path):
        with pytest.raises(JobError) as caught:
            program_of(Job(name="a", script="train.py", interpreter=str(path)), [tmp_path], [])
        return str(caught.value)

    assert f"{tmp_path}/bin/python does not exist on {socket.gethostname()}" in refusal(tmp_path)
    (tmp_path / "python").symlink_to("/far/python3")
    assert "is a link to /far/python3, which does not exist" in refusal(tmp_path / "python")
    (tmp_path / "train.py").touch(mode=0o644)
    assert "train.py is not executable" in refusal(tmp_path / "train.py")
