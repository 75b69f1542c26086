"""Garbage in the files of a run: each command prints what it can, or an error of a few lines."""

import json
import os
import shutil
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from clustertrain.checkpoints.manifest import MANIFEST, Manifest
from clustertrain.cli.main import main
from clustertrain.errors import StorageError
from clustertrain.job.file import parse_job
from clustertrain.run_files import claims
from clustertrain.run_files.folder.run_dir import RunDir
from clustertrain.run_files.recorded_job import record_job
from clustertrain.run_files.records.claim import Beat, Claim, ResumePoint
from clustertrain.run_files.records.provenance import JobChanges
from clustertrain.run_files.records.requests import SaveRequest, StopRequest
from clustertrain.run_files.records.result import Failure, Outcome, Result
from clustertrain.run_files.records.scheduler import SchedulerJob
from clustertrain.run_files.streams.event_log import EventLog
from clustertrain.storage.record_file import decoded
from support.sample_records import FAR, sample_claim, sample_failure, sample_restart_claim, sample_submission

pytestmark = pytest.mark.slow

JOB = {"name": "a", "task": "m:T", "train": {"epochs": 2, "batch_size": 8}}
COMMANDS = [
    ["status"],
    ["status", "--json"],
    ["ls", "--metric", "loss", "--args", "lr"],
    ["logs"],
    ["logs", "--rank", "0"],
    ["logs", "--driver"],
    ["stop", "--no-wait"],
    ["ckpt", "ls"],
    ["ckpt", "verify"],
]
RECORDS = [
    *("claim.json", "heartbeat.json", "result.json", "stop", "save", "changes.json", "job.yaml"),
    *("restarts/0/claim.json", "restarts/0/plan.json", "restarts/0/failure.json"),
    *("restarts/0/outcome.json", "restarts/0/reached"),
]
STREAMS = ["events.jsonl", "metrics-0.jsonl", "logs/far/rank-0.log", "logs/driver.log"]
KINDS = {
    "claim.json": Claim,
    "heartbeat.json": Beat,
    "result.json": Result,
    "stop": StopRequest,
    "save": SaveRequest,
    "changes.json": JobChanges,
    "plan.json": ResumePoint,
    "failure.json": Failure,
    "outcome.json": Outcome,
    "slurm-12.json": SchedulerJob,
}
RUN_FILES = ["job.yaml", "submissions/slurm-12.json", f"checkpoints/00000007-1.0/{MANIFEST}"]


@pytest.fixture(scope="module")
def template(tmp_path_factory):
    """A run with a file of each kind."""
    storage = tmp_path_factory.mktemp("template") / "runs"
    run = RunDir.newest(str(storage), "a")
    attempt, restart = run.attempt(1), run.attempt(1).restart(0)
    attempt.claim.write(sample_claim())
    record_job(attempt, parse_job(yaml.safe_dump({**JOB, "storage": str(storage)}), "job.yaml"))
    attempt.heartbeat.write(Beat(FAR.host, FAR.pid, FAR.pid_started_ticks, 1.5, 3))
    attempt.stop.write(StopRequest("user"))
    attempt.save.write(SaveRequest())
    attempt.changes.write(JobChanges(None, None, ()))
    attempt.result.write(Result("done", "finished", 0, step=7, metrics={"loss": 0.5}))
    restart.claim.write(sample_restart_claim())
    restart.plan.write(ResumePoint(None, 0, 1))
    restart.failure.write(sample_failure())
    restart.outcome.write(Outcome(True, 7))
    run.store.write_atomic(restart.reached_key, bytes(8))
    run.submission("slurm", "12").write(sample_submission("12"))
    log = EventLog(attempt.events)
    log.write("stage", name="d", phase="ready", bytes=3, total_bytes=3, seconds=1.0)
    log.write("ray_started", seconds=1.0, address="x")
    log.write("group_started", restart=0, world_size=2, ranks=[])
    log.write("resumed", restart=0, step=0, epoch=0, checkpoint=None, world_size=2, redone_steps=0)
    log.write("worker_died", text="E", rank=1)
    log.write("restarting", restart=1, of=3, of_script=False, step=3, text="E")
    log.write("checkpoint", step=7, name="00000007-1.0", bytes=9, blocking_s=0.1, write_s=0.1, reason="x")
    for kind in ("warning", "note"):
        log.write(kind, text="t")
    metrics = EventLog(restart.metrics)
    metrics.write("train", step=7, epoch=1, loss=0.5, samples_per_s=8.0)
    metrics.write("eval", step=7, epoch=1, loss=0.5)
    for name in ("far/rank-0.log", "driver.log"):
        path = attempt.path / "logs" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("clustertrain: output begins\nx\n")
    manifest = Manifest(7, 1, 56, 2, "0" * 64, 1, 0, "steps", 1.0, {}, {"loss": 0.5}, {})
    run.store.write_atomic(run.checkpoints.file_key("00000007-1.0"), manifest.to_bytes())
    return storage


@pytest.fixture
def invoke(tmp_path, monkeypatch):
    """Calls a command of clustertrain; fails if it ends in anything but its exit codes and a short error."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    monkeypatch.setattr(claims, "heartbeat_period_s", lambda run: 0.01)
    monkeypatch.chdir(tmp_path)

    def invoke(*arguments):
        result = CliRunner().invoke(main, arguments)
        text = f"{arguments} → {result.exit_code}\n{result.output}"
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise AssertionError(text) from result.exception
        assert result.exit_code in (0, 1, 2, 3, 4), text
        assert len(result.stderr.splitlines()) <= 5 and len(result.stderr) < 2000, text
        return result

    return invoke


def wrong_values(value):
    """Wrong values for a field, most of them of another type."""
    wrong = [None, "x\x1b[31m", -1, 10**30, 1e400, [], {}, True, [[1]], {"a": 1}]
    return [each for each in wrong if type(each) is not type(value) or each != value]


def changed_records(data):
    """A record with one field missing, or of a wrong value."""
    record = json.loads(data)
    for key, value in record.items():
        yield json.dumps({k: v for k, v in record.items() if k != key}).encode()
        for wrong in wrong_values(value):
            yield json.dumps({**record, key: wrong}).encode()


RAW = [
    *(
        b"",
        b"\x00" * 64,
        b"\xff\xfe\x80",
        b"null\n",
        b"[]\n",
        b'"x"\n',
        b"{}\n",
        b"1e999\n",
        b"9" * 5000 + b"\n",
    ),
    *(b"[" * 100_000, b'{"a": ' * 50_000, b'{"kind": "train"}\n', b'{"kind": "eval", "step": 1e999}\n'),
]


def write(path, data):
    path.unlink(missing_ok=True)
    path.write_bytes(data)


def placed(tmp_path, template):
    """A copy of the run, the argument that names it, and the paths of its files."""
    shutil.copytree(template, tmp_path / "runs")
    run = tmp_path / "runs/a/g1"
    paths = [
        *(run / "attempts/1" / name for name in (*RECORDS, *STREAMS)),
        *(run / name for name in RUN_FILES),
    ]
    assert all(path.is_file() for path in paths)
    return tmp_path / "runs/a", paths


def test_the_run_as_it_was_written(tmp_path, template, invoke):
    target, _ = placed(tmp_path, template)
    for command in COMMANDS:
        done = invoke(*command, str(target if command[0] != "ls" else target.parent))
        assert done.exit_code == 0 or command[0] == "stop", command  # stop asks SLURM, which is not here


def variants_of(path):
    """What may stand in a file instead of its content. One of the records that their reader refuses by their
    types is enough: they are refused in the same place. A stream contains all wrong lines at once."""
    good = path.read_bytes()
    yield from RAW
    if path.suffix == ".jsonl":
        wrong = [line for each in good.splitlines() for line in changed_records(each)]
        yield b"\n".join([*wrong, *(raw.strip() for raw in RAW), *good.splitlines(), b""])
        return
    kind = KINDS.get(path.name)
    if kind is None:
        return
    refusals = 0
    for data in changed_records(good):
        try:
            decoded(kind, data, "file")
        except StorageError:
            refusals += 1
            if refusals > 1:
                continue
        yield data


@pytest.mark.parametrize("name", [*RECORDS, *STREAMS, *RUN_FILES])
def test_a_file_that_is_no_such_file(tmp_path, template, invoke, name):
    """Any bytes, a field of another type or without it; a folder, a named pipe, an endless device."""
    target, paths = placed(tmp_path, template)
    path = next(path for path in paths if str(path).endswith(f"/{name}"))
    variants = list(variants_of(path))

    def all_commands():
        for command in COMMANDS:
            invoke(*command, str(target if command[0] != "ls" else target.parent))

    for data in variants:
        write(path, data)
        all_commands()
    for make in (os.mkfifo, Path.mkdir, lambda path: path.symlink_to("/dev/zero")):
        path.unlink() if path.is_symlink() or not path.is_dir() else path.rmdir()
        make(path)
        all_commands()


@pytest.mark.parametrize("name", ["٣", "1\n", "9" * 200, "00000000000000000000001", "-1", "0"])
def test_a_folder_that_nobody_wrote(tmp_path, template, invoke, name):
    target, _ = placed(tmp_path, template)
    for parent in ("g1/attempts", "g1/attempts/1/restarts", "g1/attempts/1/nodes", "g1/checkpoints", "."):
        (target / parent / name).mkdir(parents=True, exist_ok=True)
    (target / f"g{name}").mkdir()
    for command in COMMANDS:
        invoke(*command, str(target if command[0] != "ls" else target.parent))
