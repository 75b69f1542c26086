import json
import subprocess
import sys
import threading
import time

import pytest

from clustertrain.claims import Heartbeat, claim_attempt, who_runs
from clustertrain.errors import ClusterError
from clustertrain.processes import this_process
from clustertrain.run_dir import RunDir


@pytest.fixture
def run(tmp_path):
    return RunDir.newest(str(tmp_path), "digits")


def test_attempts_count_up_and_name_their_process(run):
    first, second = claim_attempt(run, world_size=2), claim_attempt(run, world_size=2)
    assert (first.n, second.n) == (1, 2)
    assert first.read("claim.json")["world_size"] == 2
    assert who_runs(second).startswith("pid ")


def test_one_of_many_contenders_gets_an_attempt(run):
    barrier = threading.Barrier(8)
    got, refused = [], []

    def contend():
        barrier.wait()
        try:
            got.append(claim_attempt(run).n)
        except ClusterError as error:
            refused.append(error)

    threads = [threading.Thread(target=contend) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(got) == len(set(got))
    assert len(got) + len(refused) == 8
    assert sorted(got) == [a.n for a in run.attempts()]


def test_a_killed_process_runs_nothing(run, tmp_path):
    code = (
        "import sys; from clustertrain.claims import claim_attempt; from clustertrain.run_dir import RunDir\n"
        f"claim_attempt(RunDir.newest({str(tmp_path)!r}, 'digits')); print('claimed', flush=True)\n"
        "sys.stdin.read()"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdout.readline() == b"claimed\n"
    attempt = run.newest_attempt()
    assert who_runs(attempt) == f"pid {process.pid} on this machine"
    process.kill()
    process.communicate()
    assert who_runs(attempt) is None


def test_a_pid_that_is_used_again_is_somebody_else(run):
    attempt = claim_attempt(run)
    claim = attempt.read("claim.json")
    attempt.write("claim.json", {**claim, "pid_started_ticks": claim["pid_started_ticks"] - 1})
    assert who_runs(attempt) is None


def test_a_driver_that_outlived_its_launcher_still_runs(run):
    attempt = claim_attempt(run)
    claim = attempt.read("claim.json")
    attempt.write("claim.json", {**claim, "pid_started_ticks": 0})
    attempt.write("heartbeat.json", {**this_process(), "counter": 1})
    assert who_runs(attempt) is not None


def test_an_attempt_with_a_result_is_over(run):
    attempt = claim_attempt(run)
    attempt.write("result.json", {"state": "done"})
    assert who_runs(attempt) is None


def test_another_machine_lives_while_its_heartbeat_changes(run):
    attempt = run.attempt(1)
    attempt.write("claim.json", {"host": "far/pid:[1]", "pid": 7, "pid_started_ticks": 1})
    attempt.write("heartbeat.json", {"host": "far/pid:[1]", "pid": 8, "pid_started_ticks": 1, "counter": 1})
    assert who_runs(attempt, watch_s=0.2) is None
    beating = threading.Event()

    def beat():
        counter = 1
        while not beating.wait(0.02):
            counter += 1
            attempt.write("heartbeat.json", {"host": "far/pid:[1]", "counter": counter})

    thread = threading.Thread(target=beat)
    thread.start()
    try:
        assert who_runs(attempt, watch_s=2) == "pid 7 on far"
    finally:
        beating.set()
        thread.join()


def test_the_heartbeat_beats(run):
    attempt = run.attempt(1)
    attempt.path.mkdir(parents=True)
    with Heartbeat(attempt):
        ends = time.monotonic() + 10
        while attempt.read("heartbeat.json") is None:
            assert time.monotonic() < ends
            time.sleep(0.01)
    assert json.loads((attempt.path / "heartbeat.json").read_text())["counter"] == 1
