"""Which rank is named if several fail: the one at fault, and not those that end because it is gone."""

from types import SimpleNamespace

import pytest

from clustertrain.driver.calls import NoAnswer, RankDied
from clustertrain.driver.cause import ranks
from clustertrain.driver.cause.failures import GroupFailures
from clustertrain.driver.cause.rank_failure import RankFailures
from clustertrain.driver.cause.ranks import Ranks, _tail
from clustertrain.node.processes import this_host
from support.sample_records import sample_failure

ABORTED = "ncclRemoteError: A call failed possibly due to a network error\nFatal Python error: Aborted\n"
ABSENT = "Watchdog caught collective operation timeout: WorkNCCL(SeqNum=7, Timeout(ms)=600000)\n"
OWN_GPU = "Process group watchdog thread terminated with exception: CUDA error: an illegal memory access\n"


class DeadRanks(Ranks):
    """Ranks without processes: those that have died, by the end of their log."""

    def __init__(self, dead: dict[int, str]) -> None:
        self._logs = dead

    def dead(self):
        return {rank: RuntimeError("died") for rank in self._logs}

    def log_tail(self, rank):
        return self._logs[rank]


class SampleFailures(RankFailures):
    def of_dead_rank(self, rank, error):
        return sample_failure(rank=rank, error="died")

    def of_exception(self, rank, error):
        return sample_failure(rank=rank, error=type(error).__name__)


class GroupOf(GroupFailures):
    def __init__(self, dead: dict[int, str]) -> None:
        self.ranks = DeadRanks(dead)
        self._failures = SampleFailures(self.ranks)


@pytest.mark.parametrize(
    ("dead", "raised", "cause"),
    [
        pytest.param({0: ABORTED, 1: ABORTED, 2: "step 7\n"}, {}, (2, "died"), id="killed"),
        pytest.param({0: ABSENT, 2: "step 7\n"}, {}, (2, "died"), id="it was waited for"),
        pytest.param({0: ABORTED, 3: OWN_GPU}, {}, (3, "died"), id="its GPU failed"),
        pytest.param({0: ABORTED}, {1: KeyError("x")}, (1, "KeyError"), id="an exception"),
        pytest.param({2: "step 7\n"}, {0: KeyError("x")}, (2, "died"), id="a death before an exception"),
        pytest.param(
            {0: ABORTED}, {1: RuntimeError("Connection closed by peer")}, (0, "died"), id="consequences only"
        ),
        pytest.param(
            {}, {0: RuntimeError("Connection closed by peer"), 1: KeyError("x")}, (1, "KeyError"), id="gloo"
        ),
    ],
)
def test_the_rank_at_fault_is_named(dead, raised, cause):
    errors = {rank: RuntimeError("RayActorError") for rank in dead} | raised
    found = GroupOf(dead)._first_cause(errors)
    assert (found.rank, found.error) == cause


def test_a_worker_that_ray_killed_for_memory_before_its_training_is_found():
    """Ray's OutOfMemoryError has no id of the actor."""
    group, recorded = GroupOf({1: ""}), []
    workers = {rank: SimpleNamespace(metadata=SimpleNamespace(pid=10 + rank)) for rank in (0, 1)}
    group.ranks.workers = workers
    group._record = recorded.append
    group.report_lost_worker(RankDied("1 worker(s) were killed due to the node running low on memory"))
    assert [(failure.rank, failure.error) for failure in recorded] == [(1, "died")]


def test_the_stopped_rank_is_named_and_not_one_that_is_busy(monkeypatch):
    """Rank 0 stages data, and answers nothing meanwhile either."""
    states = {10: "S (sleeping)", 11: "T (stopped)"}
    monkeypatch.setattr(ranks, "process_state", states.get)
    group, recorded = GroupOf({}), []
    metadata = [SimpleNamespace(pid=pid, hostname="a") for pid in states]
    group.ranks.workers = {rank: SimpleNamespace(metadata=each) for rank, each in enumerate(metadata)}
    group.ranks.limits = dict.fromkeys((0, 1), SimpleNamespace(host=this_host()))
    group.ranks.all_answers, group.ranks.answer_s, group._record = dict, 5.0, recorded.append
    group._failures.failure = lambda rank, error, text, *_, **fields: (rank, text)
    group.report_lost_worker(NoAnswer())
    ((rank, text),) = recorded
    assert rank == 1 and "rank 1 (pid 11 on a) does not answer; its process is in state T (stopped)" in text


def test_the_cause_is_before_the_stacks_that_python_writes(tmp_path):
    """torch's NCCL writes the stacks of all threads after its error, and a process has hundreds."""
    log = tmp_path / "rank.log"
    handled = "CUDA out of memory, and the program went on\n"
    stacks = "Current thread 0x1 (most recent call first):\n" + '  File "a.py", line 1 in work\n' * 10_000
    steps = "step\n" * 10_000
    log.write_text(f"{handled}{steps}{OWN_GPU}Fatal Python error: Aborted\n\n{stacks}")
    tail = _tail(log)
    assert OWN_GPU in tail and tail.endswith(stacks)
    assert handled not in tail
    log.write_text(handled + steps)
    assert len(_tail(log)) == 20_000
