import pickle
import queue
import subprocess
import sys
from types import SimpleNamespace

import pytest

from clustertrain.run.folder import RunDir
from clustertrain.worker import watchdog as module
from clustertrain.worker.stacks import Stacks
from clustertrain.worker.watchdog import EXIT_CODE, WatchdogThread

pytestmark = pytest.mark.slow

STUCK = """
import time
from pathlib import Path
from clustertrain.worker.watchdog import WatchdogThread

def where_it_hangs():
    time.sleep(600)

with WatchdogThread({"step": 0.2}, lambda text: Path("expired").write_text(text)) as watchdog:
    watchdog.beat("step")
    where_it_hangs()
"""


def test_a_phase_without_progress_ends_the_process_and_shows_where(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", STUCK], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == EXIT_CODE
    assert "no progress in phase 'step' for 0.2 s (failures.watchdog.step)" in done.stderr
    assert "where_it_hangs" in done.stderr
    assert (tmp_path / "expired").read_text().startswith("no progress in phase 'step'")


class Looks:
    """In place of the stacks: the watchdog asks them each time that it has looked at the last beat."""

    def __init__(self):
        self.quiet = queue.Queue()

    def look(self, is_quiet):
        self.quiet.put(is_quiet)


def test_beats_and_phases_without_a_limit_keep_it_quiet(monkeypatch):
    """The clock is the test's: each beat comes before the limit, all together take longer."""
    expired, looks, now = [], Looks(), [0.0]
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: now[0]))
    with WatchdogThread({"step": 1.0}, expired.append, looks) as watchdog:
        for phase, seconds in [("step", 0.9)] * 6 + [("idle", 100.0)]:
            watchdog.beat(phase)
            now[0] += seconds
            while looks.quiet.get(timeout=60) != (phase == "step"):
                pass  # it had looked before
            looks.quiet.get(timeout=60)  # the look before this one is over
    assert expired == []


RANK = """
import sys, time
from clustertrain.worker import watchdog
from clustertrain.run.folder import RunDir
from clustertrain.worker.stacks import Stacks

watchdog._QUIET_S = 0.2

def where_this_rank_stands():
    print("stands", flush=True)
    time.sleep(600)

attempt = RunDir.newest(sys.argv[1], "digits").attempt(1)
rank, limit_s = int(sys.argv[2]), float(sys.argv[3])
with watchdog.WatchdogThread({"step": limit_s}, print, Stacks(attempt.restart(0), rank, 2)) as dog:
    dog.beat("step")
    where_this_rank_stands()
"""


def test_the_other_ranks_write_their_stacks_before_the_group_ends(tmp_path):
    """Rank 1 is in a phase that may take long; when rank 0 expires, rank 1 writes its stacks as well."""
    ranks = {}
    try:
        for rank, limit_s in ((1, "600"), (0, "2")):
            with (tmp_path / f"rank-{rank}.log").open("wb") as log:
                ranks[rank] = subprocess.Popen(
                    [sys.executable, "-c", RANK, str(tmp_path), str(rank), limit_s],
                    stdout=subprocess.PIPE,
                    stderr=log,
                )
            assert ranks[rank].stdout.readline() == b"stands\n"
        assert ranks[0].wait(60) == EXIT_CODE
        assert ranks[1].poll() is None, "it is Ray that ends the group"
        attempt = RunDir.newest(str(tmp_path), "digits").attempt(1)
        marks = attempt.run.store.list(attempt.restart(0).stacks_key)
        assert sorted(marks) == ["0", "1"]
        logs = [(tmp_path / f"rank-{rank}.log").read_text() for rank in (0, 1)]
        assert "no progress in phase 'step' for 2 s" in logs[0]
        assert "rank 0 makes no progress; the stacks of all threads follow" in logs[1]
        assert all("where_this_rank_stands" in log for log in logs)
    finally:
        for process in ranks.values():
            process.kill()
            process.communicate()


class Distributed:
    """As torch.distributed, with a group of this backend, or without a group."""

    def __init__(self, backend):
        self._backend = backend

    def is_initialized(self):
        return self._backend is not None

    def get_backend(self):
        return self._backend


@pytest.mark.parametrize("backend", ["nccl", "gloo", None])
def test_a_rank_that_hangs_leaves_the_flight_record_of_nccl_and_only_of_nccl(tmp_path, monkeypatch, backend):
    """The record is torch's, of a process without collectives."""
    from torch import distributed

    if not distributed.is_nccl_available():
        pytest.skip("torch without NCCL")
    monkeypatch.setitem(sys.modules, "torch.distributed", Distributed(backend))
    restart = RunDir.newest(str(tmp_path), "digits").attempt(1).restart(0)
    Stacks(restart, rank=3, world_size=1).share()
    store = restart.attempt.run.store
    record = store.read_or_none(restart.flight_record_key(3))
    assert (record is not None) == (backend == "nccl")
    if record is not None:
        assert pickle.loads(record).keys() >= {"version", "pg_config"}  # as torchfrtrace reads it
    assert store.list(restart.stacks_key) == ["3"]
