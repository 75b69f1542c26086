"""One file from its source onto the disk: hashed while it is written, resumed after a cut.

The bytes gather in a `Part`. Every few seconds they are brought to disk and their number and checksum noted,
so that another process can go on after a kill: it takes over exactly the bytes whose checksum it can repeat.
"""

from __future__ import annotations

import hashlib
import http.client
import json
import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from clustertrain.errors import DataError, StorageError
from clustertrain.sources import CutShort, FileSource, Source, masked
from clustertrain.storage.posix import refused

TRIES = 6  # in a row that bring nothing new
BACKOFF_S = 1.0  # doubles from try to try
_LONGEST_BACKOFF_S = 30.0
NOTE_EVERY_S = 2.0
NOTE_EVERY_BYTES = 64 << 20
_CHUNK_BYTES = 1 << 20

Tick = Callable[[int, int | None], None]
"""Called often with the bytes that are there and the total (None: unknown); what it raises ends the work."""


class Part:
    """The first bytes of a file, gathered in a folder of their own by one process."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "download"
        self._note = folder / "progress.json"
        self.validator: str | None = None
        self.begin(None)

    def begin(self, validator: str | None) -> None:
        """Forget what was gathered."""
        self.size_bytes = 0
        self.validator = validator
        self._hash = hashlib.sha256()
        self._noted_at, self._noted_bytes = time.monotonic(), 0
        self.forget()
        self.path.write_bytes(b"")

    def forget(self) -> None:
        """Leave nothing for another process to go on from."""
        self._note.unlink(missing_ok=True)

    @property
    def sha256(self) -> str:
        return self._hash.hexdigest()

    def append(self, file: IO[bytes], data: bytes) -> None:
        file.write(data)
        self._hash.update(data)
        self.size_bytes += len(data)
        grown = self.size_bytes - self._noted_bytes
        if grown >= NOTE_EVERY_BYTES or time.monotonic() - self._noted_at >= NOTE_EVERY_S:
            self.note(file)

    def note(self, file: IO[bytes]) -> None:
        """Bring the bytes to disk, then write down how many they are: a kill or a crash loses only what came
        later."""
        file.flush()
        os.fsync(file.fileno())
        note = {"validator": self.validator, "size_bytes": self.size_bytes, "sha256": self.sha256}
        new = self._note.with_suffix(".new")
        new.write_text(json.dumps(note))
        new.replace(self._note)
        self._noted_at, self._noted_bytes = time.monotonic(), self.size_bytes

    def adopt(self, folder: Path, tick: Tick) -> bool:
        """Copy what another process noted; False when its bytes are not those of its note.

        A copy, since that process may only have been stopped and go on writing when it wakes.
        """
        noted = noted_progress(folder)
        if noted is None:
            return False
        self.begin(noted["validator"])
        try:
            with (folder / self.path.name).open("rb") as source, self.path.open("wb") as target:
                while chunk := source.read(min(_CHUNK_BYTES, noted["size_bytes"] - self.size_bytes)):
                    self.append(target, chunk)
                    tick(self.size_bytes, None)
                self.note(target)
        except OSError:
            self.begin(None)  # unreadable, or no room for two copies: begin again with an empty file
            return False
        if (self.size_bytes, self.sha256) != (noted["size_bytes"], noted["sha256"]):
            self.begin(None)
            return False
        return True


def noted_progress(folder: Path) -> dict[str, Any] | None:
    """What a part's folder says of itself: validator, size_bytes, sha256; None when it says nothing."""
    try:
        value = json.loads((folder / "progress.json").read_text())
    except (OSError, ValueError):
        return None
    return value if isinstance(value, dict) and value.get("validator") and value.get("size_bytes") else None


def fetch(source: Source, part: Part, *, uri: str, sha256: str | None, tick: Tick) -> None:
    """Complete `part` from `source`.

    A transfer that breaks off is resumed where the source can prove that its bytes are still the same, and
    begun again where not. Six tries in a row that bring nothing new are the end.

    Raises:
        DataError: it cannot be had, or has another checksum; then nothing of it is kept.
        StorageError: it does not fit on the disk, or cannot be written.
    """
    in_one_piece = _complete(source, part, uri, tick)
    if sha256 is not None and part.sha256 != sha256 and not in_one_piece:
        part.begin(None)  # the server may have taken two different files for one
        _complete(source, part, uri, tick)
    if sha256 is not None and part.sha256 != sha256:
        received, size_bytes = part.sha256, part.size_bytes
        part.begin(None)
        raise DataError(
            f"{masked(uri)} does not have the checksum that the job gives ({size_bytes} bytes came).\n"
            f"expected sha256 {sha256}\n"
            f"received sha256 {received}; correct the job, or find out who changed the file."
        )


def _complete(source: Source, part: Part, uri: str, tick: Tick) -> bool:
    """True when the last transfer brought everything, False when it went on from an earlier one."""
    tries, most_bytes = 0, part.size_bytes
    while True:
        try:
            return _transfer(source, part, uri, tick)
        except CutShort as cut:
            tries = 1 if part.size_bytes > most_bytes else tries + 1
            most_bytes = max(most_bytes, part.size_bytes)
            if tries >= TRIES:
                raise DataError(
                    f"{masked(uri)} cannot be fetched: {cut}.\n"
                    f"{TRIES} tries in a row brought nothing beyond byte {most_bytes}. Run again to go on."
                ) from cut
            _pause(max(BACKOFF_S * 2 ** (tries - 1), cut.retry_after_s), part, tick)


def _pause(seconds: float, part: Part, tick: Tick) -> None:
    ends = time.monotonic() + min(seconds, _LONGEST_BACKOFF_S)
    while (left := ends - time.monotonic()) > 0:
        tick(part.size_bytes, None)
        time.sleep(min(left, 0.2))


def _transfer(source: Source, part: Part, uri: str, tick: Tick) -> bool:
    """One try: ask for what is missing, and append what comes. True when that was everything."""
    stream = source.open(part.size_bytes, part.validator)
    with stream.file:
        if stream.offset != part.size_bytes or stream.offset == 0:
            part.begin(stream.validator)
        if stream.offset > part.size_bytes:
            raise CutShort(f"asked for byte {part.size_bytes} and on, the server began at {stream.offset}")
        _check_space(part, uri, stream.total_bytes)
        with _written(part) as target:
            try:
                while chunk := _read(stream.file):
                    with _explained_write(part):
                        part.append(target, chunk)
                    tick(part.size_bytes, stream.total_bytes)
            finally:
                with _explained_write(part):
                    part.note(target)
    if stream.total_bytes is not None and part.size_bytes != stream.total_bytes:
        if part.size_bytes > stream.total_bytes:
            part.begin(None)
        raise CutShort(f"{part.size_bytes} of {stream.total_bytes} bytes came")
    if isinstance(source, FileSource) and source.validator() != stream.validator:
        raise CutShort(f"{source.path} changed while it was copied")
    return stream.offset == 0


def _read(file: Any) -> bytes:
    try:
        data: bytes = file.read1(_CHUNK_BYTES)
    except (OSError, http.client.HTTPException) as error:
        raise CutShort(f"{type(error).__name__}: {error}") from error
    return data


@contextmanager
def _written(part: Part) -> Iterator[IO[bytes]]:
    with _explained_write(part), part.path.open("ab") as target:
        yield target


@contextmanager
def _explained_write(part: Part) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise refused(part.path, "written", error) from error


def _check_space(part: Part, uri: str, total_bytes: int | None) -> None:
    if total_bytes is None:
        return
    free_bytes, missing_bytes = shutil.disk_usage(part.path.parent).free, total_bytes - part.size_bytes
    if missing_bytes > free_bytes:
        raise StorageError(
            f"{masked(uri)} does not fit: {missing_bytes} bytes are still to come, "
            f"{free_bytes} are free at {part.path.parent.parent}.\n"
            "Free space there, or keep the data elsewhere."
        )
