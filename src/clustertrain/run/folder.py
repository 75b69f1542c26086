"""Every path of a run, in one object.

    <storage>/<name>/
      g<k>/                       a generation: `--fresh` starts the next one and leaves the old aside
        job.yaml                  as resolved; the record of what ran
        submissions/              what schedulers were told to run
          <digest>/               job.yaml and code.tar.gz, as they were when it was submitted
          slurm-<id>.json         a job of a scheduler; slurm-<id>.ended.json where `stop` cancelled it
        attempts/<n>/             one start of the run, claimed by making the folder
          claim.json              who runs it: host, pid, start of that process, scheduler's job id
          job.yaml                the job as this attempt ran it
          restarts/<r>/           one start of the worker group, claimed likewise; the fence of its writers
          heartbeat.json          who lives: counter, phase, step
          stop, save              requests; a file that is there is a request that was made
          events*.jsonl           what happened; one writer per file
          metrics-<r>.jsonl       what was measured, by rank 0 of restart r
          tensorboard/
          logs/                   driver.log, <host>/rank-<k>.log, ray/
          result.json             how it ended, written once
        checkpoints/<step>-<n>.<r>/   files, MANIFEST.json
      data/                       what was staged once for the whole cluster

Small files are written whole or not at all; the streams (events, metrics, logs, TensorBoard) belong to one
attempt and restart, and a reader drops superseded steps.

A stream needs a file system. Where the storage is one, streams are written in place; where it is S3, they
are written to this node's spool, in the same order of folders, and observe/shipping.py sends them up.
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from clustertrain.checkpoints.manifest import Shelf
from clustertrain.errors import StorageError
from clustertrain.node.cache import cache_folder
from clustertrain.storage import Location, Store, open_store

_NUMBER = re.compile(r"^\d+$")
_SUBMISSION = re.compile(r"^[a-z]+-[^.]+\.json$")


@dataclass(frozen=True)
class Attempt:
    """One start of a run: `n` counts from 1 within its generation."""

    run: RunDir
    n: int

    @property
    def key(self) -> str:
        return f"{self.run.key}/attempts/{self.n}"

    @property
    def uri(self) -> str:
        return self.run.store.uri(self.key)

    @property
    def path(self) -> Path:
        """Where this node writes the attempt's streams."""
        return self.run.local_path(self.key)

    @property
    def driver_log(self) -> Path:
        return self.path / "logs" / "driver.log"

    def rank_log(self, host: str, rank: int) -> Path:
        return self.path / "logs" / host / f"rank-{rank}.log"

    @property
    def events(self) -> Path:
        return self.run.local_path(self.events_key)

    @property
    def events_key(self) -> str:
        return f"{self.key}/events.jsonl"

    def node_events(self, host: str) -> Path:
        """The events of one worker node: a stream has one node as its writer, since appends from two
        nodes to one file on NFS overwrite each other."""
        return self.path / f"events-{host}.jsonl"

    def metrics_key(self, restart: int) -> str:
        return f"{self.key}/metrics-{restart}.jsonl"

    def metrics(self, restart: int) -> Path:
        return self.run.local_path(self.metrics_key(restart))

    @property
    def brought_path(self) -> Path:
        """Where this node keeps its copy of the checkpoint that it resumes from, when storage is S3."""
        return self.path / "brought"

    @property
    def tensorboard(self) -> Path:
        return self.path / "tensorboard"

    def restart_key(self, restart: int) -> str:
        return f"{self.key}/restarts/{restart}"

    def reached_key(self, restart: int) -> str:
        return f"{self.restart_key(restart)}/reached"

    def reached(self, restart: int) -> Path:
        """The last finished step of rank 0, mapped into its memory: it survives a SIGKILL of the writer."""
        return self.run.local_path(self.reached_key(restart))

    def read(self, name: str) -> dict[str, Any] | None:
        """A small JSON file of the attempt (claim, heartbeat, result), None when absent."""
        return self.run.read_json(f"{self.key}/{name}")

    def write(self, name: str, value: dict[str, Any]) -> None:
        self.run.write_json(f"{self.key}/{name}", value)

    def ask(self, name: str, value: dict[str, Any]) -> None:
        """Request `stop` or `save`. On this node it is heard even while S3 is down.

        Raises:
            StorageError: the storage did not take it; other nodes do not hear it.
        """
        self.run.spool.write_atomic(f"{self.key}/{name}", _to_json(value))
        if self.run.is_spooled:
            self.write(name, value)

    def asked(self, name: str) -> dict[str, Any] | None:
        """The newest request of that name, None when there is none."""
        return self.run.read_json(f"{self.key}/{name}", self.run.spool) or self.read(name)

    def restarts(self) -> list[int]:
        return sorted(
            int(name) for name in self.run.store.list(f"{self.key}/restarts") if _NUMBER.match(name)
        )


@dataclass(frozen=True)
class RunDir:
    """One generation of the run `name` under `storage`."""

    store: Store
    name: str
    generation: int

    @classmethod
    def newest(cls, storage: Location | str, name: str) -> RunDir:
        """The newest generation; the first one where the run does not exist yet."""
        store = open_store(storage)
        generations = [int(g[1:]) for g in store.list(name) if g.startswith("g") and _NUMBER.match(g[1:])]
        return cls(store, name, max(generations, default=1))

    def fresh(self) -> RunDir:
        """The generation after this one."""
        return RunDir(self.store, self.name, self.generation + 1)

    def at(self, generation: int) -> RunDir:
        return RunDir(self.store, self.name, generation)

    def with_patience(self, retry_s: float) -> RunDir:
        """The same run through a store that meets a fault for so many seconds at most, then gives up."""
        return replace(self, store=open_store(self.store.location.with_patience(retry_s)))

    @property
    def on_this_node(self) -> RunDir:
        """The same run as this node's streams alone show it: no request goes to S3."""
        return replace(self, store=self.spool)

    @property
    def key(self) -> str:
        return f"{self.name}/g{self.generation}"

    @property
    def uri(self) -> str:
        return self.store.uri(self.key)

    @property
    def is_spooled(self) -> bool:
        """Whether streams are written elsewhere than to the storage, which is no file system."""
        return self.store.local_folder("") is None

    @property
    def spool(self) -> Store:
        """What this node writes streams to: the storage itself where that is a file system."""
        return open_store(str(spool_folder(self.store))) if self.is_spooled else self.store

    def local_path(self, key: str) -> Path:
        """Where this node writes the stream of a key."""
        return self.store.local_folder(key) or spool_folder(self.store) / key

    @property
    def job_key(self) -> str:
        return f"{self.key}/job.yaml"

    def snapshot_key(self, digest: str) -> str:
        """The folder of a job and its code as they were when they were submitted."""
        return f"{self.key}/submissions/{digest}"

    def submission_key(self, scheduler: str, job_id: str) -> str:
        """The record that a scheduler's job was submitted for this run."""
        return f"{self.key}/submissions/{scheduler}-{job_id}.json"

    def submissions(self) -> list[dict[str, Any]]:
        """The records of what schedulers were told to run, oldest first."""
        folder = f"{self.key}/submissions"
        names = [name for name in self.store.list(folder) if _SUBMISSION.match(name)]
        found = [record for name in names if (record := self.read_json(f"{folder}/{name}"))]
        return sorted(found, key=lambda record: float(record["time"]))

    @property
    def checkpoints(self) -> Shelf:
        return Shelf(self.store, f"{self.key}/checkpoints")

    @property
    def data_path(self) -> Path | None:
        """Data staged once per cluster, for all runs of the storage; None where nodes share no folder."""
        return self.store.local_folder("data")

    def attempt(self, n: int) -> Attempt:
        return Attempt(self, n)

    def attempts(self) -> list[Attempt]:
        numbers = (int(name) for name in self.store.list(f"{self.key}/attempts") if _NUMBER.match(name))
        return [Attempt(self, n) for n in sorted(numbers)]

    def newest_attempt(self) -> Attempt | None:
        attempts = self.attempts()
        return attempts[-1] if attempts else None

    def read_json(self, key: str, store: Store | None = None) -> dict[str, Any] | None:
        data = (store or self.store).read_or_none(key)
        if data is None:
            return None
        try:
            value = json.loads(data)
        except (ValueError, RecursionError) as error:
            raise StorageError(
                f"{self.store.uri(key)} is not JSON: {error}\n"
                "Every such file is written whole, so something else wrote it. Remove it, or restore it."
            ) from error
        if not isinstance(value, dict):
            raise StorageError(f"{self.store.uri(key)} holds {type(value).__name__}, not an object.")
        return value

    def write_json(self, key: str, value: dict[str, Any]) -> None:
        self.store.write_atomic(key, _to_json(value))


def _to_json(value: dict[str, Any]) -> bytes:
    return json.dumps(value, indent=1, sort_keys=True).encode() + b"\n"


def spool_folder(store: Store) -> Path:
    """Where this node gathers the streams of a storage that is no file system, under the storage's keys."""
    location = store.location
    identity = f"{location.endpoint or ''} {location.uri.rstrip('/')}"
    return cache_folder() / "spool" / hashlib.sha256(identity.encode()).hexdigest()[:16]


@dataclass(frozen=True)
class AttemptRef:
    """Where an attempt is, in words that travel to another process."""

    location: Location
    name: str
    generation: int
    attempt: int

    @classmethod
    def of(cls, attempt: Attempt) -> AttemptRef:
        run = attempt.run
        return cls(run.store.location, run.name, run.generation, attempt.n)

    @classmethod
    def from_text(cls, text: str) -> AttemptRef:
        """The opposite of `to_text`."""
        fields = json.loads(text)
        return cls(**{**fields, "location": Location(**fields["location"])})

    def to_text(self) -> str:
        return json.dumps(asdict(self))

    def open(self) -> Attempt:
        return RunDir(open_store(self.location), self.name, self.generation).attempt(self.attempt)


def run_names(store: Store) -> list[str]:
    """The runs of a storage: folders that hold a generation."""
    return sorted(
        name
        for name in store.list("")
        if any(g.startswith("g") and _NUMBER.match(g[1:]) for g in store.list(name))
    )
