"""The agent of a node that is not the head, while the attempt runs: what ends its wait, and what does not."""

import socket
import threading
import time

import pytest

from clustertrain.errors import StorageError
from clustertrain.job.model import Job
from clustertrain.launchers.agent import worker
from clustertrain.launchers.agent.node import NodeLost, NodeStart
from clustertrain.launchers.slurm.agent.allocation import settings_of
from clustertrain.run_files.admission import Options
from clustertrain.run_files.claims import claim_attempt
from clustertrain.run_files.folder.run_dir import RunDir
from clustertrain.run_files.records.result import Result
from clustertrain.run_files.records.scheduler import Rendezvous, SchedulerStart
from clustertrain.run_files.result import write_result
from clustertrain.storage.record_file import RecordFile
from support.waiting import wait_until


class LivingRay:
    """Ray on this node lives."""

    def code(self) -> None:
        return None


@pytest.fixture
def head(tmp_path):
    """The attempt, the port of the head's Ray, and the thread in which the agent waits."""
    run = RunDir.newest(str(tmp_path), "a")
    job = Job.model_validate({"name": "a", "function": "m:f"})
    record = SchedulerStart("slurm", "1", {}, "0", ("node1", "node2"))
    attempt = claim_attempt(run, launcher="slurm", allocation=record)
    start = NodeStart(job, run, Options(), record, 1, tmp_path, (), settings_of(job), "")
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    rendezvous = Rendezvous("1", "0", "127.0.0.1", port, "/token", ("node1", "node2"))
    ended: list[object] = []

    def wait() -> None:
        try:
            ended.append(worker._wait_for_end(start, attempt, LivingRay(), rendezvous))
        except Exception as error:  # noqa: BLE001  the test looks at it
            ended.append(error)

    thread = threading.Thread(target=wait)
    yield attempt, port, thread, ended
    write_result(attempt, Result("done", "finished", 0))
    thread.join()


def seen(port: int) -> socket.socket:
    """The head's port, after the agent has seen it."""
    server = socket.create_server(("127.0.0.1", port))
    server.settimeout(60)
    server.accept()[0].close()
    return server


@pytest.mark.slow
def test_a_repeated_start_of_the_heads_ray_is_no_lost_head(head, monkeypatch):
    monkeypatch.setattr(worker, "RESULT_WITHIN_S", 3.0)
    attempt, port, thread, ended = head
    thread.start()
    seen(port).close()
    time.sleep(1.0)
    with seen(port):
        thread.join(4.0)
        assert (thread.is_alive(), ended) == (True, [])
        write_result(attempt, Result("done", "finished", 0))
        thread.join(60)
    assert ended == [None]


@pytest.mark.slow
def test_a_head_that_ended_without_a_result_is_lost(head, monkeypatch):
    monkeypatch.setattr(worker, "RESULT_WITHIN_S", 0.5)
    _, port, thread, ended = head
    thread.start()
    seen(port).close()
    thread.join(60)
    assert isinstance(ended[0], NodeLost)


def test_a_fault_of_the_storage_costs_no_node(head, monkeypatch):
    _, _, thread, ended = head
    tries = []

    def fault(file: RecordFile[Result]) -> bool:
        tries.append(file)
        raise StorageError("Input/output error")

    with monkeypatch.context() as patched:
        patched.setattr(RecordFile, "exists", fault)
        thread.start()
        wait_until(lambda: len(tries) > 2 or ended, 60)
    assert ended == []
