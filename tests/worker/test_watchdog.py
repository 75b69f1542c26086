import pickle
import queue
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from clustertrain.run_files.folder.run_dir import RunDir
from clustertrain.worker import watchdog as module
from clustertrain.worker.stacks import HANG, Stacks
from clustertrain.worker.step_limit import StepLimit
from clustertrain.worker.watchdog import EXIT_CODE, WatchdogThread
from support.commands import ran

pytestmark = pytest.mark.slow

RANK_0 = """
import sys, time
from pathlib import Path
from clustertrain.run_files.folder.run_dir import RunDir
from clustertrain.worker import step_limit
from clustertrain.worker.stacks import Stacks
from clustertrain.worker.watchdog import WatchdogThread

stacks = Stacks(RunDir.newest(".", "digits").attempt(1).restart(0), 0, 1)
"""
STUCK = f"""{RANK_0}

def where_it_hangs():
    time.sleep(600)

with WatchdogThread({{"step": 0.2}}, lambda text: Path("expired").write_text(text), stacks) as watchdog:
    watchdog.beat("step")
    where_it_hangs()
"""


def test_a_log_that_cannot_be_written_does_not_keep_it_alive(tmp_path):
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            [sys.executable, "-c", STUCK], stderr=full, cwd=tmp_path, timeout=60, check=False
        )
    assert done.returncode == EXIT_CODE
    assert (tmp_path / "expired").exists()


LEARNING = f"""{RANK_0}
step_limit._LOWER_S = 0.2
with WatchdogThread({{"step": 600}}, print, stacks, steps=step_limit.StepLimit(0)) as watchdog:
    for step in range(12):
        watchdog.beat("usual_step")
    time.sleep(600)
"""


def test_the_message_has_the_arithmetic_of_a_learnt_limit(tmp_path):
    done = ran([sys.executable, "-c", LEARNING], code=EXIT_CODE, cwd=tmp_path, timeout=60)
    assert re.search(
        r"clustertrain: no progress in phase 'step' for 0.2 s: the slowest of the last 11 steps took \S+ s, "
        r"and the limit is 10 times that, at least 0.2 s and at most 600 s "
        r"\(failures.watchdog.step sets another\)",
        done.stderr,
    )


class Looks:
    """In place of the stacks: the watchdog asks them each time that it has looked at the last beat."""

    def __init__(self):
        self.quiet = queue.Queue()

    def look(self, is_quiet):
        self.quiet.put(is_quiet)


def test_only_the_time_between_two_usual_steps_is_learnt(monkeypatch):
    now, steps = [0.0], StepLimit(alarms=0)
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: now[0]))
    watchdog = WatchdogThread({}, print, Looks(), steps=steps)
    epoch = [("step", 500.0), *[("usual_step", 3.0)] * 6, ("evaluation", 400.0), ("step", 90.0)]
    for phase, seconds in [("first_step", 100.0), *epoch, ("save", 300.0), *epoch, ("usual_step", 0.0)]:
        watchdog.beat(phase)
        now[0] += seconds
    assert (steps.limit_s, "of the last 10 steps took 3 s" in steps.why) == (30.0, True)


STOPPED = f"""{RANK_0}
with WatchdogThread({{"step": 5.0}}, print, stacks) as watchdog:
    watchdog.beat("step")
    print("begins", flush=True)
    sys.stdin.readline()
"""


def test_the_time_for_which_the_whole_process_is_stopped_does_not_count(tmp_path):
    """As SLURM suspends a job. The rank is then still in the same step for three looks of its watchdog."""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, "-c", STOPPED], cwd=tmp_path, **pipes) as rank:
        assert rank.stdout.readline() == "begins\n"
        rank.send_signal(signal.SIGSTOP)
        time.sleep(6)
        rank.send_signal(signal.SIGCONT)
        time.sleep(1.5)
        rank.communicate("goes on\n", timeout=60)
    assert rank.returncode == 0


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


@pytest.mark.parametrize(("longest_s", "limit"), [(1.0, "for 3 s"), (60.0, "for 120 s")])
def test_after_a_request_to_stop_a_step_has_the_grace_time_or_twice_the_longest(
    monkeypatch, longest_s, limit
):
    expired, now = [], [0.0]
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr(WatchdogThread, "_expire", lambda self, text, **how: expired.append(text))
    watchdog = WatchdogThread({}, print, Looks())
    for phase in ("first_step", "step", "step"):
        watchdog.beat(phase)
        now[0] += longest_s
    for phase, quiet_s in [("step", 2.9), ("save", 600.0), ("step", 121.0)]:
        watchdog._look_at_stop(3.0, phase, quiet_s)
    assert expired == [f"no progress in phase 'step' {limit} after the request to stop (failures.grace)"]


RANK = """
import sys, time
from clustertrain.worker import watchdog
from clustertrain.run_files.folder.run_dir import RunDir
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
        answers = attempt.run.store.list(attempt.restart(0).stacks_answers_key(HANG))
        assert sorted(answers) == ["0", "1"]
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
    assert store.list(restart.stacks_answers_key(HANG)) == ["3"]
