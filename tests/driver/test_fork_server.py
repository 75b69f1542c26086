"""The fork server with real processes; what Ray would run in them is a program that tells what it has."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import ray

from clustertrain.driver.fork.starter import SETUP_WORKER
from clustertrain.node import variables
from clustertrain.node.waiting import wait_until
from support.fork_servers import fork_server
from support.leftovers import left_after, living_descendants

pytestmark = pytest.mark.slow

WORKER = """
import json, os, random, sys
import signal
had = set(sys.modules)
import numpy, ray, torch
print(json.dumps({
    "is_fork": "torch" in had and "ray" in had,
    "arguments": sys.argv[1:], "folder": os.getcwd(), "job": os.environ.get("RAY_JOB_ID"),
    "threads": os.environ.get("OMP_NUM_THREADS"), "python": random.random(),
    "numpy": float(numpy.random.rand()), "torch": torch.rand(1).item(),
    "object_id": ray.ObjectRef.from_random().hex(),
    "main": __name__, "child_signals": str(signal.getsignal(signal.SIGCHLD)),
}), flush=True)
"""
DRIVER = """
import os, sys
from pathlib import Path
from clustertrain.driver.fork.starter import fork_server_of_this_process
driver = os.getpid()
try:
    fork_server_of_this_process(Path(sys.argv[1]), float(sys.argv[2]))
    print(os.environ["CLUSTERTRAIN_FORK_SERVER"], flush=True)
    sys.stdin.read()
finally:
    if os.getpid() != driver:
        print("it goes on as the driver", flush=True)
"""
EXITING_WORKER = """
import atexit, sys
atexit.register(print, "it ends", flush=True)
sys.exit(0)
"""
IMPATIENT = """
from clustertrain.worker.fork import client
client._ANSWER_S = 0.01
try:
    client.ask({"arguments": []}, files=(0, 1, 2))
except TimeoutError:
    pass
"""


class Server:
    """A fork server, and workers as a raylet would start them."""

    def __init__(self, folder, starter, socket, worker=WORKER):
        self.folder, self.starter = folder, starter
        (folder / "default_worker.py").write_text(worker)
        of_ray = Path(ray.__file__).parent / "_private/workers/setup_worker.py"
        (folder / "setup_worker.py").symlink_to(of_ray)
        self.environment = {**os.environ, variables.FORK_SERVER: socket, "RAY_JOB_ID": "01000000"}
        self.environment.pop("OMP_NUM_THREADS", None)

    def start(self, *, context="{}", **environment):
        program = [sys.executable, SETUP_WORKER, str(self.folder / "default_worker.py"), "--worker-id=7"]
        program += [f"--serialized-runtime-env-context={context}", "--language=PYTHON"]
        with (self.folder / "out").open("w") as out:
            subprocess.run(
                program, env=self.environment | environment, cwd=self.folder, stdout=out, check=True
            )

    def printed(self, end):
        """What the worker has printed, up to this text."""
        wait_until(lambda: (self.folder / "out").read_text().endswith(end), 60, 0.02)
        return (self.folder / "out").read_text()

    def worker(self, **options):
        self.start(**options)
        return json.loads(self.printed("}\n"))


@pytest.fixture
def server(tmp_path):
    before = set(living_descendants())
    with fork_server(cpus=2.5) as started:
        yield Server(tmp_path, *started)
    assert left_after(10, before) == {}


def test_a_worker_that_exits_does_not_go_on_as_the_driver_whose_fork_it_is(tmp_path):
    """It would begin the attempt a second time, and write its result."""
    before = set(living_descendants())
    with fork_server(starter=DRIVER) as started:
        server = Server(tmp_path, *started, worker=EXITING_WORKER)
        server.start()
        assert server.printed("it ends\n") == "it ends\n"
    assert left_after(10, before) == {}


def test_a_worker_is_a_fork_with_its_own_arguments_folder_and_random_numbers(server, tmp_path):
    first, second = server.worker(), server.worker()
    assert first["is_fork"]
    assert second["is_fork"]
    assert first["arguments"] == ["--worker-id=7"]
    assert first["folder"] == str(tmp_path)
    assert first["main"] == "__main__"
    assert (first["job"], second["job"]) == ("01000000", "01000000")
    assert first["threads"] == "2"
    assert first["child_signals"] == "0"
    assert first["python"] != second["python"]
    assert first["numpy"] != second["numpy"]
    assert first["torch"] != second["torch"]
    assert first["object_id"] != second["object_id"]


def test_a_worker_of_another_job_of_ray_is_a_new_process(server):
    """Ray reads the job once: a fork would register as a worker of the first one."""
    server.worker()
    other = server.worker(RAY_JOB_ID="02000000")
    assert (other["job"], other["is_fork"]) == ("02000000", False)


def test_one_that_does_not_wait_for_the_answer_costs_no_second_import(server):
    """On a busy machine the import of Ray takes longer than a worker waits."""
    program = [sys.executable, "-c", IMPATIENT]
    subprocess.run(program, env=server.environment, cwd=server.folder, check=True)
    assert [server.worker()["is_fork"] for _ in range(2)] == [True, True]
    server.starter.stdin.close()
    assert server.starter.stdout.read().count("workers are forks") == 1


def test_what_a_process_reads_only_at_its_start_needs_a_process_of_its_own(server):
    of_torch = {"TORCH_DISTRIBUTED_DEBUG": "INFO"}, {"PYTORCH_ALLOC_CONF": "max_split_size_mb:512"}
    for given in ({"OMP_NUM_THREADS": "3"}, *of_torch):
        assert not server.worker(context=json.dumps({"env_vars": given}))["is_fork"], given
    assert not server.worker(LD_LIBRARY_PATH="/nowhere")["is_fork"]
    assert not server.worker(RAY_RAYLET_PID="7")["is_fork"]
    assert server.worker()["is_fork"]


def test_a_server_that_cannot_be_used_costs_imports_and_no_worker(tmp_path):
    """As with a Ray that lacks a name of which a worker is made."""
    lacks = "from clustertrain.driver import ray_internals; ray_internals._MODULES['parser'] = 'nowhere'\n"
    with fork_server(starter=lacks + DRIVER) as started:
        server = Server(tmp_path, *started)
        assert [server.worker()["is_fork"] for _ in range(2)] == [False, False]


def test_a_killed_server_costs_imports_and_no_worker(server):
    assert server.worker()["is_fork"]
    for pid in living_descendants():
        if "clustertrain.driver.fork.server" in living_descendants()[pid]:
            os.kill(pid, signal.SIGKILL)
    assert not server.worker()["is_fork"]
