"""A Ray on this machine that ends or ceases to answer: its driver ends, so that it can be started again."""

import json
import os
import re
import select
import signal
import sys

import pytest

from clustertrain.errors import EXIT_RAY_ENDED
from clustertrain.launchers.one_host import driver_environment
from clustertrain.supervise.private_folder import private_folder
from clustertrain.supervise.process import Guarded
from support.waiting import wait_until

pytestmark = pytest.mark.slow

DRIVER = """
import json, os, sys, threading
from clustertrain.driver import __main__ as driver, ray_watch
from clustertrain.driver.ray_cluster import Deadline
from clustertrain.job.sections import Resources
from clustertrain.launchers.local.ray import LocalRay

kills_gcs_when_up = sys.argv[1] == "yes"
ray_watch._ANSWERS_WITHIN_S = 3.0
if kills_gcs_when_up:
    end_with = ray_watch.end_with

    def watched(node):
        end_with(node)
        node.all_processes["gcs_server"][0].process.kill()

    ray_watch.end_with = watched
driver.end_by_sigterm()
cluster = LocalRay(os.environ["CLUSTERTRAIN_RAY_DIR"], Resources(), Deadline(120.0, "failures.ray_start"))
cluster.connect(None, [1])
[node] = ray_watch._watched
pids = {kind: infos[0].process.pid for kind, infos in node.all_processes.items()}
print(json.dumps(pids | {"driver": os.getpid()}), flush=True)
threading.Event().wait()
"""


@pytest.fixture
def start(tmp_path):
    """Starts a driver that has a Ray and no workers, under its guardian."""
    started = []

    def start_one(kills_gcs_when_up="no"):
        folder = private_folder()
        command = [sys.executable, "-c", DRIVER, kills_gcs_when_up]
        environment = driver_environment(None, folder)
        started.append(Guarded(command, tmp_path / "log", folder, environment))
        return started[0]

    yield start_one
    for driver in started:
        driver.end()


def ends(driver):
    """How it ended: its exit code and the end of its log."""
    assert select.select([driver.fd], [], [], 120)[0]
    return driver.end(), "\n".join(driver.output())


@pytest.mark.parametrize(
    ("victim", "number", "codes", "what"),
    [
        # Ray itself trains on after it, and fails after 60 s.
        ("gcs_server", signal.SIGTERM, {EXIT_RAY_ENDED}, r"Ray's gcs_server \(pid \d+\) has closed its port"),
        pytest.param(
            *("gcs_server", signal.SIGSTOP, {EXIT_RAY_ENDED}),
            r"Ray's gcs_server \(pid \d+\) has not answered for 3 s",
            marks=pytest.mark.nightly,  # in CI: the port that is closed
        ),
        ("driver", signal.SIGTERM, {128 + signal.SIGTERM}, ""),
    ],
)
def test_a_driver_ends_soon_after_its_ray_and_by_sigterm(start, victim, number, codes, what):
    driver = start()
    lines = []

    def is_up():
        lines[:] = [line for line in driver.output() if line.startswith("{")]
        return lines or driver.code() is not None

    wait_until(is_up, 120)
    os.kill(json.loads(lines[0])[victim], number)
    code, log = ends(driver)
    assert code in codes, log
    assert re.search(what, log), log


def test_a_gcs_that_is_killed_between_the_start_and_the_connection_is_noticed(start):
    code, log = ends(start(kills_gcs_when_up="yes"))
    assert code == EXIT_RAY_ENDED, log
    assert re.search(r"Ray's gcs_server \(pid \d+\) was killed by signal 9 \(SIGKILL\)", log)
