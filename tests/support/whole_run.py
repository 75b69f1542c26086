"""Whole runs: the real program, Ray, a driver and workers, in a folder of the test's own."""

import fcntl
import functools
import importlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
import yaml

from clustertrain.checkpoints.read import fetch_checkpoint
from clustertrain.job.file import load_job
from clustertrain.observe.ledger.book import Ledger
from clustertrain.observe.ledger.of_run import ledger_of
from clustertrain.run_files.folder.run_dir import Attempt, RunDir
from clustertrain.run_files.records.result import Result
from clustertrain.run_files.streams.history import AttemptFollower, events_of_attempt
from support.leftovers import children, left_after, living_descendants

CODE = Path(__file__).parents[1] / "whole" / "jobs"
# Each worker costs 5 CPU seconds, which import torch and Ray: two are for what only two can show.
FAULTY = {"task": "faulty:Faulty", "train": {"epochs": 3, "batch_size": 4, "log_every": 1}}
ONE_WORKER = {"resources": {"workers": 1, "cpus_per_worker": 0.5}}


class Run:
    """One job file in a folder, and the starts of `clustertrain run` on it."""

    patience_s = 240.0  # for a step that takes well under a minute on an idle machine
    unchecked = "--no-check"  # of `submit`; tests/launchers/test_code_check.py has the check
    poll_s = 0.05

    def __init__(self, folder: Path, name: str, **sections) -> None:
        self.folder, self.name = folder, name
        folder.mkdir(parents=True, exist_ok=True)
        self.job_file = folder / f"{name}.yaml"
        self.job = {
            "name": name,
            "code": str(CODE),
            "storage": str(folder / "runs"),
            "resources": {"workers": 2, "cpus_per_worker": 0.5},
            **sections,
        }
        self.job_file.write_text(yaml.safe_dump(self.job))
        self.process: subprocess.Popen | None = None
        self.before: set[int] = set()

    def start(self, *arguments: str, within: Sequence[str] = (), **environment: str) -> "Run":
        """
        Args:
            within: a command that runs the program under limits of its own.
        """
        program = [sys.executable, "-m", "clustertrain.cli", "run", str(self.job_file)]
        return self.launch(*within, *program, *arguments, env={**os.environ, **environment})

    def launch(self, *argv: str, **options: object) -> "Run":
        """A start by this command."""
        self.before = set(living_descendants())
        self.live = None  # the attempt as this machine's files show it: no storage is asked
        self.attempts_before = len(self.run_dir.attempts())
        pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        self.process = subprocess.Popen(argv, text=True, **pipes, **options)
        return self

    def end(self, code: int, *, within_s: float = 300, all_gone: bool = True) -> str:
        """Wait for the program's end; returns what it printed. Nothing of it may be left then."""
        try:
            output, _ = self.process.communicate(timeout=within_s)
        except subprocess.TimeoutExpired:
            self.process.send_signal(signal.SIGKILL)
            output, _ = self.process.communicate()
            raise AssertionError(f"still running after {within_s} s:\n{output}") from None
        assert self.process.returncode == code, output
        if all_gone:
            left = self.left(0)
            assert left == {}, left
        return output

    def left(self, after_s: float) -> dict[int, str]:
        return left_after(after_s, self.before)

    def wait_for_step(self, step: int) -> None:
        """Until the newest attempt has logged this step."""
        self._wait_for(lambda record: record["kind"] == "train" and record["step"] >= step)

    def wait_for_event(self, kind: str) -> None:
        self._wait_for(lambda record: record["kind"] == kind)

    def wait_for_start(self, restart: int) -> None:
        """Until this start of the workers has begun."""
        self._wait_for(lambda record: record["kind"] == "group_started" and record["restart"] == restart)

    def _wait_for(self, wanted) -> None:
        ends = time.monotonic() + self.patience_s
        follower = AttemptFollower(self.live) if self.live else None
        while time.monotonic() < ends:
            newest = self.attempt if follower is None else None  # a folder is visible before its claim
            if newest is not None and newest.n > self.attempts_before:
                self.live = self.run_dir.on_this_node.attempt(newest.n)
                follower = AttemptFollower(self.live)
            if follower is not None and any(wanted(record) for record in follower.new()):
                return
            if (output := self._has_ended()) is not None:
                raise AssertionError(f"ended too soon:\n{output}")
            time.sleep(self.poll_s)
        raise AssertionError(f"waited {self.patience_s:g} s in vain")

    def _has_ended(self) -> str | None:
        """What was printed, where the start is over."""
        return self.process.communicate()[0] if self.process.poll() is not None else None

    @property
    def run_dir(self) -> RunDir:
        return RunDir.newest(load_job(self.job_file).storage.location, self.name)

    @property
    def attempt(self) -> Attempt:
        return self.run_dir.newest_attempt()

    @property
    def result(self) -> Result:
        return self.attempt.result.read()

    @property
    def events(self) -> list[dict]:
        return events_of_attempt(self.attempt)

    def rank_log(self, rank: int) -> str:
        return next(self.attempt.path.glob(f"logs/*/rank-{rank}.log")).read_text()

    def weights(self) -> dict:
        """The model of the newest checkpoint."""
        import torch

        newest = fetch_checkpoint(self.run_dir.checkpoints, self.result.checkpoint, self.folder / "brought")
        return torch.load(newest.path / "model.pt", weights_only=True)

    @property
    def checkpoints(self) -> Path:
        return self.run_dir.local_path(self.run_dir.checkpoints.key)

    def driver_pid(self) -> int:
        return self.attempt.heartbeat.read().pid

    def guardian_pid(self) -> int:
        """The first guardian of the driver; its only child is the second one."""
        (guardian,) = children(self.process.pid)
        return guardian

    def ray_pid(self, name: str) -> int:
        """A process of Ray's: "gcs_server" or "raylet"."""
        (pid,) = (pid for pid, command in self.left(0).items() if command.split()[0].endswith(f"/{name}"))
        return pid


def same_weights(a: dict, b: dict) -> bool:
    """Whether two models agree in every bit."""
    import torch

    return a.keys() == b.keys() and all(torch.equal(a[key], b[key]) for key in a)


def of_one_process(run: Run) -> dict:
    """The weights of a run of tests/whole/jobs/faulty.py with one worker, trained in this process."""
    import torch

    from clustertrain.training.ranks.distributed import RankInfo
    from clustertrain.worker.train import settings_of
    from training.tasks import run_task

    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(CODE)
        task = importlib.import_module("faulty").Faulty()
    settings = settings_of(load_job(run.job_file))
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # a worker has one; two add up in another order
    try:
        return run_task(RankInfo(0, 0, 1, torch.device("cpu")), task, settings).weights()
    finally:
        torch.set_num_threads(threads)


@pytest.fixture(scope="session")
def uninterrupted(tmp_path_factory):
    """The weights of a run that nothing disturbed, by its number of workers; one for all test processes."""
    folder = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent

    @functools.cache
    def weights(workers):
        run = Run(
            folder / "reference",
            f"reference-{workers}",
            **FAULTY,
            resources={"workers": workers, "cpus_per_worker": 0.5},
        )
        with (folder / f"reference-{workers}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            output = run.start().end(0, within_s=300)  # one that is finished is left as it is
        assert run.result.state == "done", output
        assert run.result.step == (21 if workers == 2 else 15)
        return run.weights()

    return weights


def books_add_up(run: Run) -> Ledger:
    """The ledger of a run that has ended; it books the time from the first claim to the result once."""
    ledger = ledger_of(run.run_dir)
    wall_s = run.result.ended_at - run.run_dir.attempt(1).claim.read().time
    booked = [booking for phase in ledger.phases for booking in phase.booked]
    assert all(booking.seconds > 0 for booking in booked), booked
    assert sum(booking.seconds for booking in booked) == pytest.approx(wall_s, rel=0.01), ledger
    assert all(loss.cause for loss in ledger.losses()), ledger.losses()
    return ledger
