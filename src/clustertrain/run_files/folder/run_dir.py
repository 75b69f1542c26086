"""Every path of a run: of a generation, of its attempts, and of the starts of their workers."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Generic

from clustertrain.checkpoints.manifest import CheckpointFolder
from clustertrain.run_files.folder.spool import spool_folder
from clustertrain.run_files.folder.stream_names import TENSORBOARD
from clustertrain.run_files.records.claim import Beat, Claim, FunctionSeed, RestartClaim, ResumePoint
from clustertrain.run_files.records.provenance import (
    CodeSource,
    CopiedCode,
    JobChanges,
    LeftFiles,
    Provenance,
)
from clustertrain.run_files.records.requests import ResizeRequest, SaveRequest, StacksRequest, StopRequest
from clustertrain.run_files.records.result import Failure, Hang, Outcome, Result, Returned
from clustertrain.run_files.records.scheduler import Arrival, Cancellation, Rendezvous, SchedulerJob
from clustertrain.storage import Location, Store, open_store
from clustertrain.storage.record_file import RecordFile, RequestFile, T

JOB_YAML = "job.yaml"
RENDEZVOUS = "rendezvous.json"
_NUMBER = re.compile(r"(?:0|[1-9][0-9]{0,17})\Z")
_SUBMISSIONS = "submissions"
_SUBMISSION = re.compile(r".+-.+(?<!\.ended)\.json")


@dataclass(frozen=True)
class Record(Generic[T]):
    """The small file `name` in the folder of each generation, attempt or restart; it contains a `kind`."""

    name: str
    kind: type[T]

    def __get__(self, folder: RunDir | Attempt | Restart, owner: type) -> RecordFile[T]:
        return RecordFile(folder.run.store, f"{folder.key}/{self.name}", self.kind)


@dataclass(frozen=True)
class RequestAt(Generic[T]):
    """The request file `name` in the folder of each attempt or restart; it contains a `kind`."""

    name: str
    kind: type[T]

    def __get__(self, folder: RunDir | Attempt | Restart, owner: type) -> RequestFile[T]:
        return RequestFile(folder.run.store, f"{folder.key}/{self.name}", self.kind, folder.run.spool)


@dataclass(frozen=True)
class Key:
    """The key of the file or folder `name` in the folder of each generation, attempt or restart."""

    name: str

    def __get__(self, folder: RunDir | Attempt | Restart, owner: type) -> str:
        return f"{folder.key}/{self.name}"


@dataclass(frozen=True)
class OnThisNode:
    """Where this node writes the stream `name` of each attempt or restart."""

    name: str

    def __get__(self, folder: RunDir | Attempt | Restart, owner: type) -> Path:
        return folder.run.local_path(f"{folder.key}/{self.name}")


@dataclass(frozen=True)
class Restart:
    """One start of the worker group in an attempt: `number` counts from 0."""

    attempt: Attempt
    number: int

    claim = Record("claim.json", RestartClaim)
    plan = Record("plan.json", ResumePoint)
    failure = Record("failure.json", Failure)
    outcome = Record("outcome.json", Outcome)
    resize = RequestAt("resize", ResizeRequest)
    hang = Record("hang.json", Hang)
    """Created by the first rank whose watchdog expires, or that waits for a rank that has returned."""
    _returned_key = Key("returned")
    stacks_request = Record("stacks-now/request.json", StacksRequest)
    """The newest request for the stacks of all ranks."""
    reached_key = Key("reached")
    reached = OnThisNode("reached")
    """The last finished step of rank 0, mapped into its memory: it survives a SIGKILL of the writer."""

    @property
    def run(self) -> RunDir:
        return self.attempt.run

    @property
    def key(self) -> str:
        return f"{self.attempt.key}/restarts/{self.number}"

    @property
    def metrics_key(self) -> str:
        return f"{self.attempt.key}/metrics-{self.number}.jsonl"

    @property
    def metrics(self) -> Path:
        return self.run.local_path(self.metrics_key)

    def returned(self, rank: int) -> RecordFile[Returned]:
        return RecordFile(self.run.store, f"{self._returned_key}/{rank}.json", Returned)

    def returned_ranks(self) -> list[int]:
        """Return the ranks that have returned from the user's function."""
        return self.attempt._ranks_in(self._returned_key)

    def stacks_answers_key(self, request: str) -> str:
        """Return the key of the folder with each rank's stacks, in answer to the request with this id."""
        return f"{self.key}/stacks-now/{request}"

    def look_for_stacks_every_s(self, world_size: int) -> float:
        """Return after how many seconds a rank looks for a request again.

        It looks once a second, on S3 every five seconds; all ranks together look at most 100 times a second.
        """
        return max(5.0 if self.run.is_spooled else 1.0, world_size / 100)

    def profile_key(self, rank: int) -> str:
        return f"{self.key}/profile/rank-{rank}.pt.trace.json.gz"  # TensorBoard looks for such names

    def flight_record_key(self, rank: int) -> str:
        """Return the key of a rank's file from torch's flight recorder, named as `torchfrtrace` needs it."""
        return f"{self.key}/nccl/nccl_trace_rank_{rank}"

    def nccl_log(self, rank: int) -> Path:
        """Return the path of NCCL's lines of a rank; with S3 they stay in this node's spool."""
        return self.run.local_path(f"{self.key}/nccl/{rank}.log")

    def probe_key(self, node_rank: int) -> str:
        """Return the key of a node's file that the others read, to check that all see the same storage."""
        return f"{self.key}/probe-{node_rank}"


@dataclass(frozen=True)
class Attempt:
    """One start of a run: `n` counts from 1 within its generation."""

    run: RunDir
    n: int

    claim = Record("claim.json", Claim)
    changes = Record("changes.json", JobChanges)
    provenance = Record("provenance.json", Provenance)
    heartbeat = Record("heartbeat.json", Beat)
    stop = RequestAt("stop", StopRequest)
    save = RequestAt("save", SaveRequest)
    result = Record("result.json", Result)
    rendezvous = Record(RENDEZVOUS, Rendezvous)
    job_key = Key(JOB_YAML)
    """The job as this attempt runs it."""
    diff_key = Key("diff.patch")
    """The changes since the commit of the code."""
    _arrivals_key = Key("nodes")
    _node_failures_key = Key("node-failures")
    logs_key = Key("logs")
    driver_log_key = Key("logs/driver.log")
    driver_log = OnThisNode("logs/driver.log")
    events_key = Key("events.jsonl")
    events = OnThisNode("events.jsonl")
    launcher_events = OnThisNode("events-cli.jsonl")
    """The events of `clustertrain run`."""
    agent_events = OnThisNode("events-agent.jsonl")
    """The events of the agent on SLURM's head node."""
    checkpoint_copy = OnThisNode("brought")
    """The folder for this node's copy of the checkpoint that it resumes from, if the storage is S3."""

    @property
    def key(self) -> str:
        return f"{self.run.attempts_key}/{self.n}"

    @property
    def uri(self) -> str:
        return self.run.store.uri(self.key)

    @property
    def path(self) -> Path:
        """Where this node writes the attempt's streams."""
        return self.run.local_path(self.key)

    def arrival(self, node_rank: int) -> RecordFile[Arrival]:
        return RecordFile(self.run.store, f"{self._arrivals_key}/{node_rank}.json", Arrival)

    def node_failure(self, node_rank: int) -> RecordFile[Arrival]:
        return RecordFile(self.run.store, f"{self._node_failures_key}/{node_rank}.json", Arrival)

    def failed_nodes(self) -> list[int]:
        """Return the ranks of the nodes that have reported a failure."""
        return self._ranks_in(self._node_failures_key)

    def arrived(self) -> list[int]:
        """Return the ranks of the nodes that have arrived."""
        return self._ranks_in(self._arrivals_key)

    def _ranks_in(self, key: str) -> list[int]:
        ranks = (name.removesuffix(".json") for name in self.run.store.list(key))
        return sorted(int(rank) for rank in ranks if _NUMBER.match(rank))

    def node_logs_key(self, host: str) -> str:
        return f"{self.logs_key}/{host}"

    def rank_log_key(self, host: str, rank: int) -> str:
        return f"{self.node_logs_key(host)}/rank-{rank}.log"

    def rank_log(self, host: str, rank: int) -> Path:
        return self.run.local_path(self.rank_log_key(host, rank))

    def ray_log(self, host: str) -> Path:
        """Return the path of Ray's output on a node where an agent started it."""
        return self.run.local_path(f"{self.node_logs_key(host)}/ray.log")

    def node_events(self, host: str) -> Path:
        """Return the path of the events of one worker node.

        A stream has one node as its writer, since appends from two nodes to one file on NFS overwrite each
        other.
        """
        return self.path / f"events-{host}.jsonl"

    @property
    def tensorboard(self) -> Path:
        """Where this node writes TensorBoard's files; a spool has a folder of each attempt."""
        run = self.run
        return self.path / TENSORBOARD if run.is_spooled else run.local_path(run.tensorboard_key)

    def key_of(self, path: Path) -> str:
        """Return the key in the storage of a file in the attempt's folder on this node."""
        relative = path.relative_to(self.path)
        return f"{self.run.key if relative.parts[0] == TENSORBOARD else self.key}/{relative}"

    def restart(self, number: int) -> Restart:
        return Restart(self, number)

    def restarts(self) -> list[Restart]:
        """Return the starts of the worker group so far, oldest first."""
        names = self.run.store.list(f"{self.key}/restarts")
        return [Restart(self, n) for n in sorted(int(name) for name in names if _NUMBER.match(name))]

    def newest_restart(self) -> Restart | None:
        """Return the newest start that was claimed; see `RunDir.newest_attempt`."""
        return next((restart for restart in reversed(self.restarts()) if restart.claim.exists()), None)


@dataclass(frozen=True)
class RunDir:
    """One generation of the run `name` under `storage`."""

    store: Store
    name: str
    generation: int

    job_key = Key(JOB_YAML)
    work_key = Key("work")
    """Where the user's code of a submitted run works."""
    copied_code = Record("work.json", CopiedCode)
    left_files = Record("left.json", LeftFiles)
    function_seed = Record("seed.json", FunctionSeed)
    _submissions_key = Key(_SUBMISSIONS)
    attempts_key = Key("attempts")
    tensorboard_key = Key(TENSORBOARD)
    """TensorBoard's files of all attempts, in one folder: `tensorboard --logdir` shows one curve."""

    @classmethod
    def newest(cls, storage: Location | str, name: str) -> RunDir:
        """Return the newest generation; the first one if the run does not exist yet.

        A generation with only a snapshot does not count: no scheduler has accepted its job.
        """
        store = open_store(storage)
        numbers = (int(g[1:]) for g in store.list(name) if g.startswith("g") and _NUMBER.match(g[1:]))
        *later, first = (cls(store, name, each) for each in sorted({*numbers} or {1}, reverse=True))
        return next((run for run in later if run._is_used()), first)

    def _is_used(self) -> bool:
        is_started = any(name != _SUBMISSIONS for name in self.store.list(self.key))
        return is_started or any(map(_SUBMISSION.fullmatch, self.store.list(self._submissions_key)))

    def fresh(self) -> RunDir:
        """Return the generation after this one."""
        return RunDir(self.store, self.name, self.generation + 1)

    def at(self, generation: int) -> RunDir:
        return RunDir(self.store, self.name, generation)

    def with_patience(self, retry_s: float) -> RunDir:
        """Return the same run through a store that retries a fault for `retry_s` seconds at most."""
        return replace(self, store=open_store(self.store.location.with_patience(retry_s)))

    @property
    def run(self) -> RunDir:
        return self

    @property
    def on_this_node(self) -> RunDir:
        """The same run, read only from the streams of this node: no request goes to S3."""
        return replace(self, store=self.spool)

    @property
    def key(self) -> str:
        return f"{self.name}/g{self.generation}"

    @property
    def uri(self) -> str:
        return self.store.uri(self.key)

    @property
    def is_spooled(self) -> bool:
        """Whether streams are written to a spool, because the storage is not a file system."""
        return self.store.local_folder("") is None

    @property
    def spool(self) -> Store:
        """The store that this node writes streams to: the storage itself if that is a file system."""
        return open_store(str(spool_folder(self.store))) if self.is_spooled else self.store

    def local_path(self, key: str) -> Path:
        """Return the path where this node writes the stream of a key."""
        return self.store.local_folder(key) or spool_folder(self.store) / key

    def snapshot_job_key(self, digest: str) -> str:
        """Return the key of the job of a snapshot."""
        return f"{self._submissions_key}/{digest}/{JOB_YAML}"

    def snapshot_code_key(self, digest: str) -> str:
        """Return the key of the code of a snapshot."""
        return f"{self._submissions_key}/{digest}/code.tar.gz"

    def snapshot_source(self, digest: str) -> RecordFile[CodeSource]:
        """Return the file with the state of the code's repositories when it was submitted last."""
        return RecordFile(self.store, f"{self._submissions_key}/{digest}/source.json", CodeSource)

    def submission(self, scheduler: str, job_id: str) -> RecordFile[SchedulerJob]:
        """Return the record file of a job that was submitted to a scheduler for this run."""
        key = f"{self._submissions_key}/{scheduler}-{job_id}.json"
        return RecordFile(self.store, key, SchedulerJob)

    def cancellation(self, scheduler: str, job_id: str) -> RecordFile[Cancellation]:
        """Return the record file of a waiting job that `stop` cancelled."""
        key = f"{self._submissions_key}/{scheduler}-{job_id}.ended.json"
        return RecordFile(self.store, key, Cancellation)

    def submissions(self) -> list[SchedulerJob]:
        """Return the records of the jobs that were submitted, oldest first."""
        key = self._submissions_key
        names = filter(_SUBMISSION.fullmatch, self.store.list(key))
        found = (RecordFile(self.store, f"{key}/{name}", SchedulerJob).read() for name in names)
        return sorted((job for job in found if job is not None), key=lambda job: job.time)

    @property
    def checkpoints(self) -> CheckpointFolder:
        return CheckpointFolder(self.store, f"{self.key}/checkpoints")

    @property
    def data_path(self) -> Path | None:
        """Data staged once per cluster, for all runs of the storage, or None if nodes share no folder."""
        return self.store.local_folder("data")

    @property
    def mlflow_path(self) -> Path | None:
        """MLflow's file store, for all runs of the storage, or None if the storage is not a file system."""
        return self.store.local_folder("mlruns")

    def attempt(self, n: int) -> Attempt:
        return Attempt(self, n)

    def attempts(self) -> list[Attempt]:
        numbers = (int(name) for name in self.store.list(self.attempts_key) if _NUMBER.match(name))
        return [Attempt(self, n) for n in sorted(numbers)]

    def newest_attempt(self) -> Attempt | None:
        """Return the newest attempt that was claimed.

        A folder is visible before the claim in it, and stays if the process that made it is killed. If it
        counted, two starts could claim, and a fence could look for a claim in the gap.
        """
        return next((attempt for attempt in reversed(self.attempts()) if attempt.claim.exists()), None)

    def attempt_after(self, n: int) -> Attempt | None:
        """Return the newest attempt that was claimed after the `n`-th, or None.

        While there is none, no claim is read: the claim of a large job names each of its nodes, and every
        node looks for a later attempt all the time.
        """
        later = (attempt for attempt in reversed(self.attempts()) if attempt.n > n)
        return next((attempt for attempt in later if attempt.claim.exists()), None)
