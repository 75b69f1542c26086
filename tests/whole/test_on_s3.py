"""Whole runs whose storage is S3: real servers, and a proxy that makes their faults."""

import signal
import time
from pathlib import Path

import pytest
from click.testing import CliRunner

from clustertrain.checkpoints.manifest import CheckpointFolder, names
from clustertrain.checkpoints.read import verify
from clustertrain.cli.main import main
from clustertrain.run_files.streams.history import curve
from clustertrain.storage import open_store
from support.fault_proxy import FaultProxy
from support.whole_run import FAULTY, ONE_WORKER, same_weights

pytestmark = pytest.mark.faults


def storage(bucket, **options):
    location = bucket.location("runs", **options)
    return {
        "uri": location.uri,
        "endpoint": location.endpoint,
        "region": location.region,
        "retry": location.retry_s,
    }


def sections(bucket, *, args=None, **options):
    return {
        **FAULTY,
        "args": args or {},
        "checkpoint": {"every": {"steps": 4}, "keep_last": 2, "memory_every": 0},
        "storage": storage(bucket, **options),
    }


def files_below(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


@pytest.mark.s3
def test_a_killed_worker_costs_its_last_steps_on_s3_too(
    make_run, versitygw_s3, uninterrupted, tmp_path, monkeypatch
):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("AWS_ENDPOINT_URL", versitygw_s3.endpoint)  # what `status s3://…` goes by
    marker = str(tmp_path / "struck")
    strike = {"fault": "kill", "rank": None, "at_call": 13, "marker": marker}
    job = sections(versitygw_s3, args=strike)
    job["train"]["profile"] = {"steps": [18, 19]}
    job["env"] = {"XDG_CACHE_HOME": str(tmp_path / "for libraries")}  # what is sent is not below it
    run = make_run("on-s3", **job)
    output = run.start().end(0)
    assert "died of signal 9 (SIGKILL)" in output and "steps to repeat" in output
    died, resumed = (next(e for e in run.events if e["kind"] == kind) for kind in ("worker_died", "resumed"))
    assert (died["rank"], died["signal"]) == (0, signal.SIGKILL)
    assert resumed["redone_steps"] == died["step"] - resumed["step"] == run.result.redone_steps
    assert run.result.restarts == 1
    assert same_weights(run.weights(), uninterrupted(2))
    shelf = run.run_dir.checkpoints
    assert [name.step for name in names(shelf)] == [20, 21]
    assert all(verify(shelf, name) for name in names(shelf))
    assert versitygw_s3.uploads() == []
    assert [r["step"] for r in curve(run.run_dir) if r["kind"] == "train"] == list(range(1, 22))
    profile = run.attempt.restart(1).profile_key(0)
    assert f"the profile of steps 18 to 19 is {shelf.store.uri(profile)}; those of the other" in output
    assert shelf.store.list(profile.rpartition("/")[0]) == [
        f"rank-{rank}.pt.trace.json.gz" for rank in (0, 1)
    ]
    assert all(r["compute_s"] > 0 for r in curve(run.run_dir) if r["kind"] == "train")
    assert files_below(tmp_path / "cache" / "clustertrain" / "spool") == []  # everything went up
    for command, told in (
        (["status"], "done (finished)"),
        (["logs"], "restart"),
        (["ckpt", "verify"], "00000021-1.1  whole"),
    ):
        result = CliRunner().invoke(main, [*command, f"{shelf.store.location.uri}/on-s3"])
        assert result.exit_code == 0, result.output
        assert told in result.output
    keys = "\n".join(versitygw_s3.all_keys())
    assert "logs/driver.log.d/000001" in keys
    assert "/tensorboard/events" in keys


def shelf_behind(run, bucket):
    """The run's checkpoints, read directly from the server."""
    return CheckpointFolder(open_store(bucket.location("runs")), run.run_dir.checkpoints.key)


@pytest.mark.nightly
def test_an_outage_of_half_a_minute_costs_nothing(make_run, moto_s3, uninterrupted, tmp_path, monkeypatch):
    """The server is down while a save is due: training continues, the save succeeds. Later another machine
    requests a stop, and the next start continues the run."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with FaultProxy(moto_s3.endpoint) as proxy:
        slow = {"step_s": 0.5}
        run = make_run("outage", **sections(moto_s3, args=slow, endpoint=proxy.endpoint, retry_s=600.0))
        shelf = shelf_behind(run, moto_s3)
        run.start()
        run.wait_for_step(2)
        proxy.down()
        down_at = time.monotonic()
        run.wait_for_step(7)  # beyond step 4, whose save meets the outage
        assert names(shelf) == []
        time.sleep(max(0.0, 30 - (time.monotonic() - down_at)))
        proxy.up()
        run.wait_for_step(13)
        with monkeypatch.context() as elsewhere:
            elsewhere.setenv("XDG_CACHE_HOME", str(tmp_path / "another machine's"))
            stopped = CliRunner().invoke(main, ["stop", str(run.job_file)])
        assert stopped.exit_code == 0, stopped.output
        run.end(75, within_s=180)
        assert run.result.cause == "user"
        saved = [event["step"] for event in run.events if event["kind"] == "checkpoint"]
        assert saved[:3] == [4, 8, 12]  # neither doubled nor dropped
        assert run.result.restarts == 0
        assert saved[-1] == run.result.step < 21
        run.start().end(0, within_s=180)
        assert next(e for e in run.events if e["kind"] == "resumed")["step"] == saved[-1]
        assert same_weights(run.weights(), uninterrupted(2))


def test_a_server_that_stays_down_ends_the_run_and_saved_checkpoints_verify(
    make_run, moto_s3, tmp_path, monkeypatch
):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with FaultProxy(moto_s3.endpoint) as proxy:
        until = tmp_path / "down"  # the steps before the second checkpoint wait for it
        held = {"task": "held:Held", "args": {"until": str(until), "at_call": 7}}
        there = sections(moto_s3, endpoint=proxy.endpoint, retry_s=3.0) | held
        run = make_run("away", **there, **ONE_WORKER)
        shelf = shelf_behind(run, moto_s3)
        run.start()
        run.wait_for_event("checkpoint")
        proxy.down()
        until.touch()
        output = run.end(4, within_s=120)
    assert "did not succeed in 3 s of retries" in output
    assert f"at {proxy.endpoint}" in output
    (name,) = names(shelf)
    assert verify(shelf, name).step == name.step == 4
