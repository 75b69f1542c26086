"""Leases: one holder among any number, judged by its signs of life."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from types import SimpleNamespace

import pytest

from clustertrain.node.processes import this_host
from clustertrain.staging import lease as lease_module
from clustertrain.staging.lease import Contender, LeaseLost

HOLDER = """
import sys
from pathlib import Path
from clustertrain.staging.lease import Contender
with Contender(Path(sys.argv[1]), "x", lease_s=float(sys.argv[2])).try_acquire() as lease:
    print("held", flush=True)
    sys.stdin.readline()
    print("lost" if lease.is_lost else "kept", flush=True)
"""


def holder(folder, lease_s):
    """Another process that holds the lease until a line is written to it."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(folder), str(lease_s)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout.readline() == "held\n"
    return process


def write_holder(folder, number, **changes):
    """The record of a holder on another host, which is not renewed."""
    record = {
        "host": "elsewhere/boot/pid",
        "pid": 1,
        "pid_started_ticks": 1,
        "token": "t",
        "counter": 0,
        "released": False,
    }
    folder.mkdir(exist_ok=True)
    (folder / f"x.{number}").write_bytes(json.dumps({**record, **changes}).encode().ljust(1024))


@pytest.fixture
def clock(monkeypatch):
    clock = SimpleNamespace(now=1000.0)
    clock.monotonic = lambda: clock.now
    monkeypatch.setattr(lease_module, "time", clock)
    return clock


def looks_until_acquired(contender, clock, step_s):
    """Seconds of watching until the contender has the lease."""
    began = clock.now
    for _ in range(1000):
        if contender.try_acquire() is not None:
            return clock.now - began
        clock.now += step_s
    raise AssertionError("never acquired")


def test_one_holds_it_and_the_next_follows_a_release(tmp_path):
    with Contender(tmp_path / "l", "x").try_acquire() as first:
        other = Contender(tmp_path / "l", "x")
        assert other.try_acquire() is None
        assert not first.is_lost
        first.check()
    with other.try_acquire() as second:
        assert second.token != first.token
        assert first.is_lost
    assert sorted(path.name for path in (tmp_path / "l").iterdir()) == ["x.2"]


def test_two_leases_do_not_touch_each_other(tmp_path):
    with Contender(tmp_path, "x").try_acquire(), Contender(tmp_path, "x.1").try_acquire() as second:
        assert second is not None
        assert Contender(tmp_path, "x").try_acquire() is None


@pytest.mark.parametrize("mtime", [0, 2**32])
def test_a_holder_on_another_host_is_timed_by_the_local_clock_and_by_no_time_stamp(tmp_path, clock, mtime):
    write_holder(tmp_path, 1)
    os.utime(tmp_path / "x.1", (mtime, mtime))
    assert looks_until_acquired(Contender(tmp_path, "x", lease_s=30.0), clock, 1.0) == pytest.approx(30.0)


def test_a_contender_that_was_itself_stopped_does_not_count_that_time(tmp_path, clock):
    write_holder(tmp_path, 1)
    contender = Contender(tmp_path, "x", lease_s=30.0)
    assert contender.try_acquire() is None
    clock.now += 10_000.0
    assert contender.try_acquire() is None


def test_a_torn_record_counts_as_a_renewal(tmp_path, clock):
    write_holder(tmp_path, 1)
    contender = Contender(tmp_path, "x", lease_s=30.0)
    for _ in range(6):
        assert contender.try_acquire() is None
        clock.now += 5.0
    (tmp_path / "x.1").write_bytes(b'{"host": "else')
    assert contender.try_acquire() is None


@pytest.mark.parametrize("flags", [os.WEXITED, os.WEXITED | os.WNOWAIT], ids=["reaped", "zombie"])
def test_a_dead_process_of_this_machine_is_seen_at_once(tmp_path, flags):
    process = holder(tmp_path, 600.0)
    assert Contender(tmp_path, "x", lease_s=600.0).try_acquire() is None
    process.kill()
    os.waitid(os.P_PID, process.pid, flags)
    assert Contender(tmp_path, "x", lease_s=600.0).try_acquire() is not None
    process.communicate()


@pytest.mark.parametrize(
    ("host", "pid", "is_taken_over"),
    [
        (this_host(), os.getpid(), True),  # its start is that of another process: the pid is used again
        (this_host().replace("/", "/other-", 1), 2**22 + 1, False),  # another boot: not looked up here
    ],
    ids=["used again", "elsewhere"],
)
def test_a_pid_counts_only_with_its_host_and_its_start(tmp_path, host, pid, is_taken_over):
    write_holder(tmp_path, 1, host=host, pid=pid, pid_started_ticks=1)
    assert (Contender(tmp_path, "x", lease_s=600.0).try_acquire() is not None) == is_taken_over


def test_a_stopped_holder_is_taken_over_and_finds_out(tmp_path):
    process = holder(tmp_path, 0.4)
    os.kill(process.pid, signal.SIGSTOP)
    contender = Contender(tmp_path, "x", lease_s=0.4)
    began = time.monotonic()
    while (taken := contender.try_acquire()) is None:
        time.sleep(0.02)
    assert time.monotonic() - began >= 0.4
    with taken:
        before = json.loads((tmp_path / "x.2").read_bytes())["token"]
        os.kill(process.pid, signal.SIGCONT)
        assert process.communicate("\n")[0] == "lost\n"
        assert json.loads((tmp_path / "x.2").read_bytes())["token"] == before == taken.token
        taken.check()


def test_a_living_holder_keeps_it_beyond_its_time(tmp_path, clock):
    """Real renewals, watched for 25 × 5 s of a clock that stands still until the next one comes."""
    with Contender(tmp_path, "x", lease_s=0.05).try_acquire() as held:
        contender = Contender(tmp_path, "x", lease_s=30.0)
        for _ in range(25):
            before = (tmp_path / "x.1").read_bytes()
            assert contender.try_acquire() is None
            clock.now += 5.0
            while (tmp_path / "x.1").read_bytes() == before:
                os.sched_yield()
        held.check()


def test_exactly_one_takes_over(tmp_path):
    """Also where a slow contender judged a holder that another one has replaced since."""
    for round_number in range(20):
        folder = tmp_path / str(round_number)
        write_holder(folder, 1, host=this_host(), pid=os.getpid(), pid_started_ticks=1)
        barrier, taken = threading.Barrier(8), []

        def contend(folder=folder, barrier=barrier, taken=taken):
            contender = Contender(folder, "x", lease_s=600.0)
            barrier.wait()
            if (lease := contender.try_acquire()) is not None:
                taken.append(lease)

        threads = [threading.Thread(target=contend) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(taken) == 1
        assert not taken[0].is_lost
        taken[0].check()


def test_a_number_that_is_free_again_is_not_held(tmp_path, monkeypatch):
    """Two others take over between the look of a contender and its own takeover."""
    write_holder(tmp_path, 1, released=True)
    create_exclusive = lease_module.create_exclusive

    def create_late(path, data):
        (tmp_path / "x.1").unlink()
        write_holder(tmp_path, 3)
        return create_exclusive(path, data)

    monkeypatch.setattr(lease_module, "create_exclusive", create_late)
    assert Contender(tmp_path, "x").try_acquire() is None
    assert (tmp_path / "x.3").exists()


def test_check_reports_the_takeover(tmp_path):
    with Contender(tmp_path, "x").try_acquire() as held:
        write_holder(tmp_path, 2)
        with pytest.raises(LeaseLost, match=f"x.1 was taken over: this process .pid {os.getpid()}.") as lost:
            held.check()
        assert lost.value.exit_code == 4


def test_the_token_is_returned_only_for_a_holder_that_has_ended(tmp_path, clock):
    """What a holder left that may only have been stopped must not be taken for one's own."""
    with Contender(tmp_path, "x").try_acquire() as first:
        assert first.ended_token is None
    released = Contender(tmp_path, "x").try_acquire()
    assert released.ended_token == first.token
    with released:
        write_holder(tmp_path, 5)
    silent = Contender(tmp_path, "x", lease_s=30.0)
    while (lease := silent.try_acquire()) is None:
        clock.now += 5.0
    assert lease.ended_token is None
    with lease:
        pass


@pytest.mark.parametrize(
    "changes",
    [
        {"released": "yes"},
        {"released": True, "token": 7},
        {"released": True, "pid": None},
        {"released": True, "pid": 2**70},
        {"released": True, "counter": []},
    ],
    ids=str,
)
def test_a_record_with_a_wrong_value_is_a_holder_that_may_live(tmp_path, clock, changes):
    write_holder(tmp_path, 1, **changes)
    contender = Contender(tmp_path, "x", lease_s=10.0)
    assert contender.try_acquire() is None
    assert looks_until_acquired(contender, clock, step_s=1.0) >= 10.0
