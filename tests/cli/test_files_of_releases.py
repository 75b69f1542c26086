"""The files that earlier releases wrote are read, and what is printed of them as JSON keeps its fields.

fixtures/make_release_files.py makes such a folder; a release whose files differ from those before gets one.
"""

import json
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner

from clustertrain.cli.main import main

RELEASES = sorted((Path(__file__).parents[1] / "fixtures").glob("release_*"))
PRINTED = [
    ("finished.status", ["status", "finished.yaml"]),
    ("stopped.status", ["status", "stopped.yaml"]),
    ("ls", ["ls", "runs"]),
    ("finished.ckpt-ls", ["ckpt", "ls", "finished.yaml"]),
    ("stopped.ckpt-ls", ["ckpt", "ls", "runs/stopped"]),
    ("finished.logs", ["logs", "finished.yaml"]),
    ("stopped.logs", ["logs", "runs/stopped"]),
]


@pytest.fixture(params=RELEASES, ids=lambda folder: folder.name)
def release(request, tmp_path, monkeypatch):
    """The files of a release, in another folder than they were written in."""
    copied = shutil.copytree(request.param, tmp_path / "copied")
    (copied / "storage").rename(copied / "runs")
    monkeypatch.chdir(copied)
    return copied


def command(*arguments):
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 0, result.output
    return result.stdout


def kept(old, new):
    """Whether each field is there, with the same type; null says nothing about the type."""
    if isinstance(old, dict) and isinstance(new, dict):
        return all(key in new and kept(value, new[key]) for key, value in old.items())
    if is_table(old) and is_table(new):
        return kept(dict(old), dict(new))  # a table may get rows
    if isinstance(old, list) and isinstance(new, list):
        return len(old) == len(new) and all(map(kept, old, new))
    return old is None or type(old) is type(new)


def is_table(value):
    """Whether it is the rows of a table, each a name and a text."""
    if not isinstance(value, list) or not value:
        return False
    return all(isinstance(row, list) and [type(cell) for cell in row] == [str, str] for row in value)


def objects(printed):
    """`logs` prints an object on each line, the others one value."""
    try:
        return json.loads(printed)
    except json.JSONDecodeError:
        return [json.loads(line) for line in printed.splitlines()]


@pytest.mark.parametrize(("file", "arguments"), PRINTED, ids=[file for file, _ in PRINTED])
def test_the_json_of_its_runs_has_each_field_with_the_same_type(release, file, arguments):
    old = objects((release / "printed" / f"{file}.json").read_text())
    new = objects(command(*arguments, "--json"))
    assert kept(old, new), (old, new)


def test_what_counts_as_a_lost_field():
    old = {"a": [{"b": 1, "c": None}]}
    assert kept(old, {"a": [{"b": 2, "c": "text", "d": 0}], "e": 0})
    assert not kept(old, {"a": [{"b": "1", "c": None}]})
    assert not kept(old, {"a": [{"c": None}]})
    assert not kept(old, {"a": []})


@pytest.mark.parametrize("name", ["finished", "stopped"])
def test_the_state_and_the_step_are_those_of_then(release, name):
    old = json.loads((release / "printed" / f"{name}.status.json").read_text())
    new = json.loads(command("status", f"{name}.yaml", "--json"))
    for key in ("state", "cause", "exit_code", "attempt", "step", "over", "began_at"):
        assert new[key] == old[key]


def test_its_runs_are_shown_for_people(release):
    assert "done (finished)" in command("status", "finished.yaml")
    assert "stopped (user)" in command("status", "runs/stopped")
    _, *rows = command("ls", "runs").splitlines()
    assert [row.split()[:2] for row in rows] == [["finished", "done"], ["stopped", "stopped"]]
    assert "done (finished)" in command("status", "runs/finished/g1")
    (checkpoint,) = release.glob("runs/finished/g1/checkpoints/*")
    assert f"checkpoint {checkpoint.name}: " in command("logs", "finished.yaml")
    rank = command("logs", "finished.yaml", "--rank", "0")
    assert rank == next(release.glob("runs/finished/g1/attempts/1/logs/*/rank-0.log")).read_text()


@pytest.mark.parametrize("name", ["finished", "stopped"])
def test_its_checkpoints_are_read(release, name):
    shelf = sorted(path.name for path in release.glob(f"runs/{name}/g1/checkpoints/*"))
    listed = command("ckpt", "ls", f"{name}.yaml").splitlines()[1:]
    verified = command("ckpt", "verify", f"{name}.yaml").splitlines()
    assert shelf and shelf == [line.split()[0] for line in listed] == [line.split()[0] for line in verified]
    assert all("whole" in line for line in verified)


@pytest.mark.parametrize("name", ["finished", "stopped"])
def test_its_job_files_are_jobs(release, name):
    assert f"\nname: {name}\n" in command("check", "--no-code", "--defaults", f"{name}.yaml")
