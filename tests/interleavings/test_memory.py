"""The checkpoints in the memory of a node: a rank of the old start still writes one while the next start
chooses where to resume, and either of them may crash."""

from concurrent.futures import Future
from types import SimpleNamespace

import pytest
from schedule import Process, explore
from starts import Start

from clustertrain.checkpoints.manifest import CheckpointName
from clustertrain.checkpoints.read import verify
from clustertrain.errors import StorageError
from clustertrain.node import variables
from clustertrain.run_files.claims import claim_attempt
from clustertrain.run_files.folder.run_dir import RunDir
from clustertrain.worker.memory_shelf import memory_saver, memory_shelf
from support.small_job import job

__all__ = ["job"]

PLACE = SimpleNamespace(local_rank=0)


class OnlyWorker:
    """The one worker of the group; it answers at once, in the process that asks."""

    metadata = SimpleNamespace(hostname="node1", node_ip="10.0.0.1")
    distributed_context = SimpleNamespace(world_rank=0, local_rank=0, node_rank=0)

    def execute_async(self, function, *args):
        answer = Future()
        answer.set_result(function(*args))
        return answer


class StartInMemory(Start):
    """It saves in the memory of its node as well."""

    worker = OnlyWorker()

    def shelf_of_plan(self):
        shelf = self.memory if self.plan.in_memory else super().shelf_of_plan()
        verify(shelf, self.plan.checkpoint)
        return shelf

    def begin(self):
        self.memory = memory_shelf(self.attempt.n)
        super().begin()
        saver = memory_saver(self.memory, self.plan, PLACE, None, on_failed=print)
        self.in_memory = saver._writer  # the thread of a saver would be no process of the schedule
        return self


@pytest.fixture
def first(world, job, monkeypatch):
    """A start with a checkpoint in the storage, and two newer ones in memory."""
    folder = world.root / "memory"
    folder.mkdir(mode=0o700)
    monkeypatch.setenv(variables.MEMORY_DIR, str(folder))
    start = StartInMemory(
        claim_attempt(RunDir.newest(world.storage, "a")), job(storage=world.storage)
    ).begin()
    start.train(10)
    start.train(12, 14, writer=start.in_memory)
    world.keep()
    return start


@pytest.mark.parametrize("world", ["files"], indirect=True)
def test_the_next_start_resumes_from_a_whole_checkpoint_and_so_does_the_one_after_it(world, first):
    def scenario():
        world.begin()
        old, new = (StartInMemory(first.attempt, first.job) for _ in range(2))
        old.__dict__ |= {**first.__dict__, "committed": [*first.committed]}

        def takes_over():
            new.begin()
            new.train(CheckpointName.parse(new.plan.checkpoint).step + 2, writer=new.in_memory)

        def check(schedule):
            of_old, of_new = (process.outcome for process in schedule.processes)
            assert isinstance(of_old, StorageError | None)  # its unfinished checkpoint was removed
            assert of_new is None, repr(of_new)
            last = StartInMemory(first.attempt, first.job).begin()
            assert last.plan.in_memory
            assert last.lines[:3] == first.committed[-1], last.lines  # step 14 was in memory before
            for lines in new.committed:
                assert last.lines[: len(lines)] == lines, f"{last.plan.checkpoint} has not {lines}"

        return [Process(0, lambda: old.train(18, writer=old.in_memory)), Process(1, takes_over)], check

    explore(scenario)
