"""Every path of a run, in one object.

    <storage>/<name>/
      g<k>/                       a generation: `--fresh` starts the next one and keeps the old one
        job.yaml                  the job as the newest attempt runs it
        seed.json                 of a run of a function: the seed with which it begins
        submissions/              the jobs that were submitted to schedulers
          <digest>/               a snapshot: job.yaml, code.tar.gz and source.json
          slurm-<id>.json         a job of a scheduler; slurm-<id>.ended.json if `stop` cancelled it
        attempts/<n>/             one start of the run, claimed by creating claim.json
          claim.json              its process: host, pid and start of that process, scheduler's job id
          provenance.json, diff.patch  commit, packages and machine; the changes since the commit
          job.yaml, changes.json  the job of this attempt, and its differences from the one before
          rendezvous.json         the address of Ray's head; nodes/<k>.json: a node that found it
          node-failures/<k>.json  why a node cannot take part, or was lost
          restarts/<r>/           one start of the worker group; only its newest one may write
            claim.json            the process that claimed it; plan.json: what it resumes from
            failure.json          the failure that ended it; outcome.json: the report of rank 0 at its end
            reached, resize       the last finished step; a request to change the number of workers
            hang.json, stacks/    the first rank that hung; which ranks have written their stacks
            stacks-now/           a request for the stacks of all ranks, and their answers
            profile/              the ranks' profiles
            nccl/                 <rank>.log: NCCL's lines; nccl_trace_rank_<rank>: its last collectives
          heartbeat.json          a counter that changes while the driver lives
          stop, save              requests; the file exists if the request was made
          events*.jsonl           events; one writing process per file
          metrics-<r>.jsonl       metrics, by rank 0 of restart r
          logs/                   driver.log, <host>/rank-<k>.log, <host>/ray.log
          result.json             its result, written once
        checkpoints/<step>-<n>.<r>/   files, MANIFEST.json
        work/                     where the code of a submitted run works; work.json: what was copied there
        left.json                 the files that a run on one machine has left in the folder of its code
        tensorboard/              the curve, a file from each start of the worker group
        wandb/                    files of W&B, which names them itself
      data/                       data sets that are staged once for the whole cluster
      mlruns/                     MLflow's file store, for all runs of the storage

A small file contains one record (records.py), and the object that names it also reads and writes it. Streams
(events, metrics, logs) are written in place, or with S3 in this node's spool, which
streams/stream_upload.py uploads.
"""

from __future__ import annotations

import hashlib
import re
import socket
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Generic

from clustertrain.checkpoints.manifest import Shelf
from clustertrain.node.processes import Process
from clustertrain.node.user_folders import spool_base
from clustertrain.record_file import RecordFile, RequestFile, T
from clustertrain.run import records
from clustertrain.storage import Location, Store, open_store

JOB_YAML = "job.yaml"
RENDEZVOUS = "rendezvous.json"
STREAMS = ("*.jsonl", "logs/*.log", "logs/*/*.log")
"""The files in the folder of an attempt that grow, as patterns of Path.glob."""
_TENSORBOARD = "tensorboard"
WHOLE_FILES = (f"{_TENSORBOARD}/*", "restarts/*/reached", "restarts/*/*/rank-*")
"""The files there that are rewritten in place."""

_NUMBER = re.compile(r"(?:0|[1-9][0-9]{0,17})\Z")
_EVENTS = re.compile(r"events.*\.jsonl")
_RANK_LOG = re.compile(r"rank-(\d+)\.log")
_SUBMISSIONS = "submissions"
_SUBMISSION = re.compile(r".+-.+(?<!\.ended)\.json")


@dataclass(frozen=True)
class _Record(Generic[T]):
    """The small file `name` in the folder of each generation, attempt or restart; it contains a `kind`."""

    name: str
    kind: type[T]

    def __get__(self, folder: RunDir | Attempt | Restart, owner: type) -> RecordFile[T]:
        return RecordFile(folder.run.store, f"{folder.key}/{self.name}", self.kind)


@dataclass(frozen=True)
class _Request(Generic[T]):
    """The request file `name` in the folder of each attempt or restart; it contains a `kind`."""

    name: str
    kind: type[T]

    def __get__(self, folder: Attempt | Restart, owner: type) -> RequestFile[T]:
        return RequestFile(folder.run.store, f"{folder.key}/{self.name}", self.kind, folder.run.spool)


@dataclass(frozen=True)
class _Key:
    """The key of the file or folder `name` in the folder of each generation, attempt or restart."""

    name: str

    def __get__(self, folder: RunDir | Attempt | Restart, owner: type) -> str:
        return f"{folder.key}/{self.name}"


@dataclass(frozen=True)
class _OnThisNode:
    """Where this node writes the stream `name` of each attempt or restart."""

    name: str

    def __get__(self, folder: Attempt | Restart, owner: type) -> Path:
        return folder.run.local_path(f"{folder.key}/{self.name}")


@dataclass(frozen=True)
class Restart:
    """One start of the worker group in an attempt: `number` counts from 0."""

    attempt: Attempt
    number: int

    claim = _Record("claim.json", records.RestartClaim)
    plan = _Record("plan.json", records.ResumePoint)
    failure = _Record("failure.json", records.Failure)
    outcome = _Record("outcome.json", records.Outcome)
    resize = _Request("resize", records.ResizeRequest)
    hang = _Record("hang.json", records.Hang)
    """Created by the first rank whose watchdog expires, or that waits for a rank that has returned."""
    _returned_key = _Key("returned")
    stacks_request = _Record("stacks-now/request.json", records.StacksRequest)
    """The newest request for the stacks of all ranks."""
    reached_key = _Key("reached")
    reached = _OnThisNode("reached")
    """The last finished step of rank 0, mapped into its memory: it survives a SIGKILL of the writer."""
    stacks_key = _Key("stacks")
    """The folder with a file of each rank that has written its stacks."""

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

    def returned(self, rank: int) -> RecordFile[records.Returned]:
        return RecordFile(self.run.store, f"{self._returned_key}/{rank}.json", records.Returned)

    def returned_ranks(self) -> list[int]:
        """Return the ranks that have returned from the user's function."""
        return self.attempt._ranks_in(self._returned_key)

    def stacks(self, rank: int) -> RecordFile[Process]:
        return RecordFile(self.run.store, f"{self.stacks_key}/{rank}", Process)

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

    claim = _Record("claim.json", records.Claim)
    changes = _Record("changes.json", records.JobChanges)
    provenance = _Record("provenance.json", records.Provenance)
    heartbeat = _Record("heartbeat.json", records.Beat)
    stop = _Request("stop", records.StopRequest)
    save = _Request("save", records.SaveRequest)
    result = _Record("result.json", records.Result)
    rendezvous = _Record(RENDEZVOUS, records.Rendezvous)
    job_key = _Key(JOB_YAML)
    """The job as this attempt runs it."""
    diff_key = _Key("diff.patch")
    """The changes since the commit of the code."""
    _arrivals_key = _Key("nodes")
    _node_failures_key = _Key("node-failures")
    logs_key = _Key("logs")
    driver_log_key = _Key("logs/driver.log")
    driver_log = _OnThisNode("logs/driver.log")
    events_key = _Key("events.jsonl")
    events = _OnThisNode("events.jsonl")
    launcher_events = _OnThisNode("events-cli.jsonl")
    """The events of `clustertrain run`."""
    agent_events = _OnThisNode("events-agent.jsonl")
    """The events of the agent on SLURM's head node."""
    checkpoint_copy = _OnThisNode("brought")
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

    def arrival(self, node_rank: int) -> RecordFile[records.Arrival]:
        return RecordFile(self.run.store, f"{self._arrivals_key}/{node_rank}.json", records.Arrival)

    def node_failure(self, node_rank: int) -> RecordFile[records.Arrival]:
        return RecordFile(self.run.store, f"{self._node_failures_key}/{node_rank}.json", records.Arrival)

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
        return self.path / _TENSORBOARD if run.is_spooled else run.local_path(run.tensorboard_key)

    def key_of(self, path: Path) -> str:
        """Return the key in the storage of a file in the attempt's folder on this node."""
        relative = path.relative_to(self.path)
        return f"{self.run.key if relative.parts[0] == _TENSORBOARD else self.key}/{relative}"

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

    job_key = _Key(JOB_YAML)
    work_key = _Key("work")
    """Where the user's code of a submitted run works."""
    copied_code = _Record("work.json", records.CopiedCode)
    left_files = _Record("left.json", records.LeftFiles)
    _submissions_key = _Key(_SUBMISSIONS)
    attempts_key = _Key("attempts")
    tensorboard_key = _Key(_TENSORBOARD)
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

    def snapshot_source(self, digest: str) -> RecordFile[records.Source]:
        """Return the file with the state of the code's repositories when it was submitted last."""
        return RecordFile(self.store, f"{self._submissions_key}/{digest}/source.json", records.Source)

    def submission(self, scheduler: str, job_id: str) -> RecordFile[records.SchedulerJob]:
        """Return the record file of a job that was submitted to a scheduler for this run."""
        key = f"{self._submissions_key}/{scheduler}-{job_id}.json"
        return RecordFile(self.store, key, records.SchedulerJob)

    def cancellation(self, scheduler: str, job_id: str) -> RecordFile[records.Cancellation]:
        """Return the record file of a waiting job that `stop` cancelled."""
        key = f"{self._submissions_key}/{scheduler}-{job_id}.ended.json"
        return RecordFile(self.store, key, records.Cancellation)

    @property
    def function_seed(self) -> RecordFile[records.FunctionSeed]:
        return RecordFile(self.store, f"{self.key}/seed.json", records.FunctionSeed)

    def submissions(self) -> list[records.SchedulerJob]:
        """Return the records of the jobs that were submitted, oldest first."""
        key = self._submissions_key
        names = filter(_SUBMISSION.fullmatch, self.store.list(key))
        found = (RecordFile(self.store, f"{key}/{name}", records.SchedulerJob).read() for name in names)
        return sorted((job for job in found if job is not None), key=lambda job: job.time)

    @property
    def checkpoints(self) -> Shelf:
        return Shelf(self.store, f"{self.key}/checkpoints")

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


def spool_folder(store: Store) -> Path:
    """Return the folder for the streams of this node until they are sent to the storage, under the same keys.

    The nodes of a cluster may have one home folder, and no node may remove what another one writes.
    """
    location = store.location
    identity = f"{socket.gethostname()} {location.endpoint or ''} {location.uri.rstrip('/')}"
    return spool_base() / hashlib.sha256(identity.encode()).hexdigest()[:16]


def is_events_stream(name: str) -> bool:
    """Return whether a file of an attempt's folder contains events."""
    return _EVENTS.fullmatch(name) is not None


def is_stream_of_records(name: str) -> bool:
    """Return whether a file of an attempt's folder contains events or metrics."""
    return name.endswith(".jsonl")


def rank_of_log(name: str) -> int | None:
    """Return the rank of a file in a node's log folder, or None if it is not the log of a rank."""
    match = _RANK_LOG.fullmatch(name)
    return int(match[1]) if match else None
