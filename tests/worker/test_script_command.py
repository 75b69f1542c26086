"""The interpreter and the import path of a script."""

import os
import socket
import venv
from pathlib import Path

import pytest

from clustertrain.errors import JobError
from clustertrain.job.model import Job
from clustertrain.worker.scripts.script_command import (
    program_of,
    python_variables,
)


def test_a_script_has_the_import_path_of_its_code_and_job_and_its_own_environment(tmp_path, monkeypatch):
    environment = tmp_path / "environment"
    venv.create(environment)
    monkeypatch.setenv("PYTHONPATH", "/site")
    own = {"interpreter": str(environment)}
    of_job = {**own, "env": {"PYTHONPATH": "/site"}}
    for keys, path in [({}, "/code:/site"), (own, "/code"), (of_job, "/code:/site")]:
        job = Job(name="a", script="train.py", **keys)
        found = python_variables(job, [Path("/code")])
        assert found["PYTHONPATH"] == path
    assert found["VIRTUAL_ENV"] == str(environment)
    assert found["PATH"].startswith(f"{environment}/bin{os.pathsep}")


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
