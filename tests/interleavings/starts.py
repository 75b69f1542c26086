"""A start of the worker group, as its driver and rank 0 run it in a schedule."""

from types import SimpleNamespace

from clustertrain.checkpoints.manifest import CheckpointFolder
from clustertrain.checkpoints.retention import Retention
from clustertrain.checkpoints.write import Writer
from clustertrain.driver.group.start import GroupStart, _claim
from clustertrain.job.file import dump_job
from clustertrain.job.model import Job
from clustertrain.run_files.attempt_ref import AttemptRef
from clustertrain.run_files.folder.run_dir import Attempt
from clustertrain.training.ranks.host import SaveProgress
from clustertrain.worker.rank import WorkerRun


class Start:
    """Each step adds a line to the model, and each checkpoint has all lines so far.

    Attributes:
        resumed: the checkpoint from which it resumed, and the lines in it.
        committed: the lines in each of its checkpoints whose commit was reported as done.
    """

    worker = SimpleNamespace(metadata=SimpleNamespace(hostname="node1", node_ip="10.0.0.1"))

    def __init__(self, attempt: Attempt, job: Job) -> None:
        self.attempt, self.job = attempt, job
        self.resumed, self.lines, self.committed, self.has_begun = None, [], [], False

    def begin(self) -> "Start":
        ref = AttemptRef.of(self.attempt)
        config = GroupStart(ref=ref, job_yaml=dump_job(self.job), job=self.job)
        self.plan = _claim(config, [self.worker])
        if self.plan.checkpoint is not None:
            shelf = self.shelf_of_plan()
            data = b"".join(shelf.store.blocks(shelf.file_key(self.plan.checkpoint, "model.pt")))
            self.resumed, self.lines = self.plan.checkpoint, data.decode().split()
        unstruck = SimpleNamespace(committing=lambda: None)
        rank = SimpleNamespace(attempt=self.attempt, plan=self.plan, strike=unstruck)
        self.writer = Writer(
            self.attempt.run.checkpoints,
            self.attempt.n,
            self.plan.restart,
            "0" * 64,
            {},
            Retention(keep_last=1),
            still_newest=lambda: WorkerRun._still_newest(rank),
        )
        self.has_begun = True
        return self

    def shelf_of_plan(self) -> CheckpointFolder:
        return self.attempt.run.checkpoints

    def train(self, *steps: int, writer: Writer | None = None) -> None:
        """Returns None at the end, or what ended it before."""
        for step in steps:
            self.lines = [*self.lines, f"{step}-{self.attempt.n}.{self.plan.restart}"]
            text = " ".join(self.lines).encode()
            progress = SaveProgress(step, 0, samples_seen=8, world_size=1, metrics={}, reason="steps")
            (writer or self.writer).commit({"model.pt": lambda file, text=text: file.write(text)}, progress)
            self.committed.append(self.lines)
