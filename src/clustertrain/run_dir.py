"""Every path of a run, in one object.

    <storage>/<name>/
      g<k>/                       a generation: `--fresh` starts the next one and leaves the old aside
        job.yaml                  as resolved; the record of what ran
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
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from clustertrain.errors import StorageError
from clustertrain.storage import Store, open_store

_NUMBER = re.compile(r"^\d+$")


@dataclass(frozen=True)
class Attempt:
    """One start of a run: `n` counts from 1 within its generation."""

    run: RunDir
    n: int

    @property
    def key(self) -> str:
        return f"{self.run.key}/attempts/{self.n}"

    @property
    def path(self) -> Path:
        return self.run.store_path(self.key)

    @property
    def log_dir(self) -> Path:
        return self.path / "logs"

    @property
    def driver_log(self) -> Path:
        return self.log_dir / "driver.log"

    def rank_log(self, host: str, rank: int) -> Path:
        return self.log_dir / host / f"rank-{rank}.log"

    @property
    def events(self) -> Path:
        return self.path / "events.jsonl"

    def node_events(self, host: str) -> Path:
        """The events of one worker node: a stream has one node as its writer, since appends from two
        nodes to one file on NFS overwrite each other."""
        return self.path / f"events-{host}.jsonl"

    def metrics(self, restart: int) -> Path:
        return self.path / f"metrics-{restart}.jsonl"

    @property
    def tensorboard(self) -> Path:
        return self.path / "tensorboard"

    def restart_key(self, restart: int) -> str:
        return f"{self.key}/restarts/{restart}"

    def reached(self, restart: int) -> Path:
        """The last finished step of rank 0, mapped into its memory: it survives a SIGKILL of the writer."""
        return self.path / "restarts" / str(restart) / "reached"

    def read(self, name: str) -> dict[str, Any] | None:
        """A small JSON file of the attempt (claim, heartbeat, stop, save, result), None when absent."""
        return self.run.read_json(f"{self.key}/{name}")

    def write(self, name: str, value: dict[str, Any]) -> None:
        self.run.write_json(f"{self.key}/{name}", value)

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
    def newest(cls, storage_uri: str, name: str) -> RunDir:
        """The newest generation; the first one where the run does not exist yet."""
        store = open_store(storage_uri)
        generations = [int(g[1:]) for g in store.list(name) if g.startswith("g") and _NUMBER.match(g[1:])]
        return cls(store, name, max(generations, default=1))

    def fresh(self) -> RunDir:
        """The generation after this one."""
        return RunDir(self.store, self.name, self.generation + 1)

    def at(self, generation: int) -> RunDir:
        return RunDir(self.store, self.name, generation)

    @property
    def key(self) -> str:
        return f"{self.name}/g{self.generation}"

    def store_path(self, key: str) -> Path:
        """The local path of a key; streams and logs need one."""
        return Path(self.store.uri(key))

    @property
    def path(self) -> Path:
        return self.store_path(self.key)

    @property
    def job_key(self) -> str:
        return f"{self.key}/job.yaml"

    @property
    def checkpoints_key(self) -> str:
        return f"{self.key}/checkpoints"

    @property
    def data_path(self) -> Path:
        """Data staged once per cluster is shared by all runs of the storage."""
        return self.store_path("data")

    def attempt(self, n: int) -> Attempt:
        return Attempt(self, n)

    def attempts(self) -> list[Attempt]:
        numbers = (int(name) for name in self.store.list(f"{self.key}/attempts") if _NUMBER.match(name))
        return [Attempt(self, n) for n in sorted(numbers)]

    def newest_attempt(self) -> Attempt | None:
        attempts = self.attempts()
        return attempts[-1] if attempts else None

    def read_json(self, key: str) -> dict[str, Any] | None:
        data = self.store.read_or_none(key)
        if data is None:
            return None
        try:
            value = json.loads(data)
        except ValueError as error:
            raise StorageError(
                f"{self.store.uri(key)} is not JSON: {error}\n"
                "Every such file is written whole, so something else wrote it. Remove it, or restore it."
            ) from error
        if not isinstance(value, dict):
            raise StorageError(f"{self.store.uri(key)} holds {type(value).__name__}, not an object.")
        return value

    def write_json(self, key: str, value: dict[str, Any]) -> None:
        self.store.write_atomic(key, json.dumps(value, indent=1, sort_keys=True).encode() + b"\n")


@dataclass(frozen=True)
class AttemptRef:
    """Where an attempt is, in words that travel to another process."""

    storage_uri: str
    name: str
    generation: int
    attempt: int

    def open(self) -> Attempt:
        return RunDir.newest(self.storage_uri, self.name).at(self.generation).attempt(self.attempt)


def run_names(store: Store) -> list[str]:
    """The runs of a storage: folders that hold a generation."""
    return sorted(
        name
        for name in store.list("")
        if any(g.startswith("g") and _NUMBER.match(g[1:]) for g in store.list(name))
    )
