"""The rows of `ls` for runs that an earlier release wrote."""

import json
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner

from clustertrain.cli.main import main
from clustertrain.ledger.prometheus import write_metrics
from clustertrain.run.folder import RunDir

RELEASE = Path(__file__).parents[1] / "fixtures" / "release_0" / "storage"


@pytest.fixture
def attempt(tmp_path):
    return RunDir.newest(str(shutil.copytree(RELEASE, tmp_path / "runs")), "finished").attempt(1)


def used(attempt):
    printed = CliRunner().invoke(main, ["ls", attempt.run.store.location.uri, "--json"]).stdout
    (row,) = (row for row in json.loads(printed) if row["name"] == "finished")
    return row["ettr"], row["device_hours"]


def test_the_ledger_of_a_run_that_ended_is_what_it_wrote_last(attempt):
    computed = used(attempt)
    write_metrics(attempt.run, alive=False)
    attempt.restart(0).metrics.unlink()
    assert used(attempt) == computed
    path = attempt.run.local_path(attempt.run.prometheus_key)
    path.write_text(path.read_text().replace("ledger_time_seconds{", "of_a_later_version{"))
    assert used(attempt) != computed


def test_a_run_with_a_job_of_a_later_version_hides_no_other(attempt):
    run = RunDir.newest(attempt.run.store.location, "stopped").attempt(1)
    with run.run.store.local_folder(run.job_key).open("a") as job:
        job.write("of_a_later_version: 1\n")
    run.path.joinpath("result.json").unlink()
    run.restart(0).metrics.unlink()
    listed = CliRunner().invoke(main, ["ls", attempt.run.store.location.uri, "--json"])
    finished, stopped = json.loads(listed.stdout)
    assert (listed.exit_code, finished["state"], stopped["state"]) == (0, "done", "unknown")
    assert "unknown key 'of_a_later_version'" in stopped["text"]
