"""The rows of `ls` for runs that an earlier release wrote."""

import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner

from clustertrain.cli.main import main
from clustertrain.observe.run_table import rows_of
from clustertrain.observe.status import status_by_files
from clustertrain.run_files import claims
from clustertrain.run_files.folder.run_dir import RunDir

SAMPLE = Path(__file__).parents[1] / "fixtures" / "sample_runs" / "storage"


@pytest.fixture
def attempt(tmp_path):
    return RunDir.newest(str(shutil.copytree(SAMPLE, tmp_path / "runs")), "finished").attempt(1)


@pytest.fixture
def of_a_later_version(attempt, monkeypatch):
    """Another run there, whose row needs its job."""
    monkeypatch.setattr(claims, "heartbeat_period_s", lambda run: 0.05)  # whether the run lives
    run = RunDir.newest(attempt.run.store.location, "stopped").attempt(1)
    for key in (run.job_key, run.run.job_key):
        with run.run.store.local_folder(key).open("a") as job:
            job.write("of_a_later_version: 1\n")
    run.path.joinpath("result.json").unlink()
    run.restart(0).metrics.unlink()
    return run.run


def test_a_run_that_cannot_be_read_costs_no_second_question_to_its_scheduler(attempt, of_a_later_version):
    asked = []

    def statuses(runs):
        asked.append(len(runs))
        return [*map(status_by_files, runs)]

    rows, _ = rows_of([attempt.run, of_a_later_version], statuses)
    assert ([row.state for row in rows], asked) == (["done", "unknown"], [2])


def test_a_sweep_is_listed_although_a_point_cannot_be_read(attempt, of_a_later_version):
    storage = attempt.run.store.location.uri
    of_a_later_version.store.local_folder(of_a_later_version.name).rename(f"{storage}/finished-2")
    attempt.run.store.local_folder(attempt.run.name).rename(f"{storage}/finished-1")
    listed = CliRunner().invoke(main, ["ls", storage, "--sweep", "finished"])
    assert listed.exit_code == 0 and "unknown key 'of_a_later_version'" in listed.stdout
    assert [line.split()[:2] for line in listed.stdout.splitlines()[1:3]] == [
        ["finished-1", "done"],
        ["finished-2", "unknown"],
    ]
