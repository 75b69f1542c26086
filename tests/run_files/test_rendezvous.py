"""How the nodes of one start of a job find each other through the storage."""

import pytest

from clustertrain.errors import StorageError
from clustertrain.run_files.claims import claim_attempt
from clustertrain.run_files.records.scheduler import Arrival, Rendezvous, SchedulerStart
from clustertrain.run_files.rendezvous import failures, report_failure, wait_for_head


def share(restart=0, job_id="7"):
    return SchedulerStart("slurm", job_id, {"cluster": "site"}, str(restart), ("n1", "n2"))


def rendezvous(restart=0):
    return Rendezvous("7", str(restart), "10.0.0.1", 20100, "/tmp/ct-1/token", ("n1", "n2"))


def test_that_of_an_earlier_start_is_not_taken(run):
    attempt = claim_attempt(run, world_size=2)
    attempt.rendezvous.write(rendezvous(restart=0))
    with pytest.raises(StorageError) as caught:
        wait_for_head(run, share(restart=1), 0.1, 0.01, lambda: False)
    assert "another file system" in str(caught.value)
    assert "n1 writes it there" in str(caught.value)
    second = claim_attempt(run, world_size=2)
    second.rendezvous.write(rendezvous(restart=1))
    assert wait_for_head(run, share(restart=1), 5, 0.01, lambda: False)[0].n == second.n


def test_a_job_that_is_over_ends_the_wait(run):
    assert wait_for_head(run, share(), 5, 0.01, lambda: True) is None


def test_a_failure_is_found_without_reading_the_nodes_that_arrived(run):
    attempt = claim_attempt(run, world_size=2)
    attempt.arrival(0).write(Arrival("n1"))
    assert failures(attempt) == []
    report_failure(attempt, 1, Arrival("n2", error="too small", exit_code=3))
    attempt.arrival(0).store.write_atomic(attempt.arrival(0).key, b"is not read")
    assert [(each.host, each.error, each.exit_code) for each in failures(attempt)] == [("n2", "too small", 3)]
    assert attempt.arrival(1).read().error == "too small"
