"""Sends the streams of this node to S3 while they grow.

Events, metrics and logs are sent as numbered objects (streams.py). TensorBoard's files and the step counter
are sent as a whole if they changed, because their readers cannot join pieces. A note beside each file records
how much was sent: after a kill the next sender continues there, and two senders never send the same bytes.
While S3 is down, the streams stay on this node.
"""

from __future__ import annotations

import fcntl
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from clustertrain.errors import StorageError
from clustertrain.run_files.folder.run_dir import Attempt, RunDir
from clustertrain.run_files.folder.stream_names import STREAMS, WHOLE_FILES
from clustertrain.run_files.streams.streams import part_key
from clustertrain.storage import Store
from clustertrain.storage.record_file import decoded, encoded

SEND_EVERY_S = 5.0
WHOLE_EVERY_S, WHOLE_SHARE = 30.0, 20  # at most 1/20 of the time: TensorBoard's files grow all the time
_PIECE_BYTES = 8 << 20
SHORT_RETRY_S = 5.0  # the next round is the retry
LAST_RETRY_S = 60.0  # the last round has no next one


@dataclass(frozen=True)
class SentBytes:
    """How much of a stream was sent: bytes, and pieces."""

    bytes: int = 0
    parts: int = 0


class StreamUpload:
    """Sends the streams of one attempt while the block runs, sends the rest at its end, and clears the spool.

    Does nothing if the storage is a file system.
    """

    def __init__(self, attempt: Attempt, echo: Callable[[str], None]) -> None:
        self._attempt = attempt
        self._echo = echo
        self._ended = threading.Event()
        self._whole_sent: dict[Path, int] = {}
        self._whole_due = 0.0
        self._warned = False
        self._thread = threading.Thread(target=self._send_often, name="stream-upload", daemon=True)

    def start(self) -> StreamUpload:
        """Start sending without a block, in a process that runs until it is killed."""
        if self._attempt.run.is_spooled:
            self._thread.start()
        return self

    def __enter__(self) -> StreamUpload:
        return self.start()

    def __exit__(self, *exc: object) -> None:
        if not self._attempt.run.is_spooled:
            return
        self._ended.set()
        self._thread.join()
        try:
            self.send(LAST_RETRY_S)
        except (StorageError, OSError) as error:
            self._echo(
                f"warning: the end of the logs stays in {self._attempt.path} until the next start: {error}"
            )
            return
        shutil.rmtree(self._attempt.path, ignore_errors=True)

    def _send_often(self) -> None:
        while not self._ended.wait(SEND_EVERY_S):
            try:
                self.send(SHORT_RETRY_S, at_end=False)
                self._warned = False
            except (StorageError, OSError) as error:
                if not self._warned:
                    self._echo(f"warning: logs stay on this node until S3 answers: {error}")
                self._warned = True

    def send(self, retry_s: float, *, at_end: bool = True) -> None:
        """Send what is new. `at_end`: also the files that are sent as a whole and are not due yet.

        Raises:
            StorageError: S3 did not accept it within `retry_s` seconds.
        """
        impatient = self._attempt.run.with_patience(retry_s).store
        with _one_at_a_time(self._attempt.path):
            for path in _files(self._attempt.path, STREAMS):
                key = self._attempt.key_of(path)
                for piece in _pieces(path, (sent := _sent(path)).bytes):
                    impatient.write_atomic(part_key(key, sent.parts + 1), piece)
                    sent = SentBytes(sent.bytes + len(piece), sent.parts + 1)
                    _note(path, sent)
            began = time.monotonic()
            if at_end or began >= self._whole_due:
                for path in _files(self._attempt.path, WHOLE_FILES):
                    self._send_whole(impatient, path)
                took_s = time.monotonic() - began
                self._whole_due = began + max(WHOLE_EVERY_S, WHOLE_SHARE * took_s)

    def _send_whole(self, store: Store, path: Path) -> None:
        data = path.read_bytes()
        if self._whole_sent.get(path) != hash(data):
            store.write_atomic(self._attempt.key_of(path), data)
            self._whole_sent[path] = hash(data)


def attempts_here(run: RunDir) -> list[Attempt]:
    """Return the attempts that have streams in the spool of this node."""
    folder = run.local_path(run.attempts_key)
    if not run.is_spooled or not folder.is_dir():
        return []
    return [run.attempt(int(path.name)) for path in sorted(folder.iterdir()) if path.name.isdecimal()]


def send_leftovers(run: RunDir, echo: Callable[[str], None]) -> None:
    """Send what a killed start of this run left in the spool of this node. No process may be running it."""
    for attempt in attempts_here(run):
        with StreamUpload(attempt, echo):
            pass


@contextmanager
def _one_at_a_time(folder: Path) -> Iterator[None]:
    """Hold a lock, so that one process of this node sends at a time.

    When a pod ends, its preStop hook sends while the process of postStart may still send.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".sending").open("w") as lock:
        with suppress(OSError):  # a home folder on Lustre or NFS may have no locks; a pod's disk has them
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _files(folder: Path, patterns: Sequence[str]) -> list[Path]:
    return sorted(path for pattern in patterns for path in folder.glob(pattern) if path.is_file())


def _note_path(path: Path) -> Path:
    return path.with_name(f".{path.name}.sent")


def _sent(path: Path) -> SentBytes:
    """Return how much of a stream was sent."""
    note = _note_path(path)
    return decoded(SentBytes, note.read_bytes(), str(note)) if note.exists() else SentBytes()


def _note(path: Path, sent: SentBytes) -> None:
    new = _note_path(path).with_suffix(".new")
    new.write_bytes(encoded(sent))
    new.replace(_note_path(path))


def _pieces(path: Path, start: int) -> Iterator[bytes]:
    with path.open("rb") as file:
        file.seek(start)
        while piece := file.read(_PIECE_BYTES):
            yield piece
