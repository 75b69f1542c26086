"""The checkpoints in the memory of a node: a rank of the old start still writes one while the next start
chooses where to resume, and either of them may crash."""

from concurrent.futures import Future
from types import SimpleNamespace

import pytest
from schedule import Process, explore

from clustertrain.checkpoints.manifest import CheckpointName
from clustertrain.checkpoints.read import verify
from clustertrain.checkpoints.retention import Retention
from clustertrain.checkpoints.write import Writer
from clustertrain.driver.group.start import GroupStart, _claim
from clustertrain.errors import StorageError
from clustertrain.job.file import dump_job
from clustertrain.node import variables
from clustertrain.run_files.attempt_ref import AttemptRef
from clustertrain.run_files.claims import claim_attempt
from clustertrain.run_files.folder.run_dir import RunDir
from clustertrain.training.ranks.host import SaveProgress
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


class Start:
    """A start of the group: each step adds a line to the model, and each checkpoint has all lines so far."""

    def __init__(self, attempt, job):
        self.attempt, self.job, self.committed = attempt, job, []

    def begin(self):
        config = GroupStart(ref=AttemptRef.of(self.attempt), job_yaml=dump_job(self.job), job=self.job)
        self.plan = _claim(config, [OnlyWorker()])
        self.memory = memory_shelf(self.attempt.n)
        shelf = self.memory if self.plan.in_memory else self.attempt.run.checkpoints
        self.lines = []
        if self.plan.checkpoint is not None:
            verify(shelf, self.plan.checkpoint)
            data = b"".join(shelf.store.blocks(shelf.file_key(self.plan.checkpoint, "model.pt")))
            self.lines = data.decode().split()
        saver = memory_saver(self.memory, self.plan, PLACE, None, on_failed=print)
        self.in_memory = saver._writer  # the thread of a saver would be no process of the schedule
        return self

    def save(self, step, writer):
        self.lines = [*self.lines, f"{step}-{self.plan.restart}"]
        progress = SaveProgress(step, 0, samples_seen=8, world_size=1, metrics={}, reason="steps")
        text = " ".join(self.lines).encode()
        writer.commit({"model.pt": lambda file: file.write(text)}, progress)
        self.committed.append(self.lines)

    def save_in_storage(self, step):
        writer = Writer(
            self.attempt.run.checkpoints,
            self.attempt.n,
            self.plan.restart,
            "0" * 64,
            {},
            Retention(keep_last=1),
            still_newest=lambda: True,
        )
        self.save(step, writer)


@pytest.fixture
def first(world, job, monkeypatch):
    """A start with a checkpoint in the storage, and two newer ones in memory."""
    folder = world.root / "memory"
    folder.mkdir(mode=0o700)
    monkeypatch.setenv(variables.MEMORY_DIR, str(folder))
    start = Start(claim_attempt(RunDir.newest(world.storage, "a")), job(storage=world.storage)).begin()
    start.save_in_storage(10)
    for step in (12, 14):
        start.save(step, start.in_memory)
    world.keep()
    return start


@pytest.mark.parametrize("world", ["files"], indirect=True)
def test_the_next_start_resumes_from_a_whole_checkpoint_and_so_does_the_one_after_it(world, first):
    def scenario():
        world.begin()
        old, new = Start(first.attempt, first.job), Start(first.attempt, first.job)
        old.__dict__ |= {**first.__dict__, "committed": [*first.committed]}

        def takes_over():
            new.begin()
            new.save(CheckpointName.parse(new.plan.checkpoint).step + 2, new.in_memory)

        def check(schedule):
            of_old, of_new = (process.outcome for process in schedule.processes)
            assert isinstance(of_old, StorageError | None)  # its unfinished checkpoint was removed
            assert of_new is None, repr(of_new)
            last = Start(first.attempt, first.job).begin()
            assert last.plan.in_memory
            assert last.lines[:3] == first.committed[-1], last.lines  # step 14 was in memory before
            for lines in new.committed:
                assert last.lines[: len(lines)] == lines, f"{last.plan.checkpoint} has not {lines}"

        return [Process(0, lambda: old.save(18, old.in_memory)), Process(1, takes_over)], check

    explore(scenario)
