"""A file or folder as an attribute of the folder that contains it: a record, a request, a key, a stream."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Generic, Protocol

from clustertrain.storage import Store
from clustertrain.storage.record_file import RecordFile, RequestFile, T


class Run(Protocol):
    """The run that a folder belongs to."""

    @property
    def store(self) -> Store: ...

    @property
    def spool(self) -> Store: ...

    def local_path(self, key: str) -> Path: ...


class Folder(Protocol):
    """The folder of a generation, an attempt or a restart."""

    @property
    def run(self) -> Run: ...

    @property
    def key(self) -> str: ...


@dataclass(frozen=True)
class Record(Generic[T]):
    """The small file `name` in the folder of each generation, attempt or restart; it contains a `kind`."""

    name: str
    kind: type[T]

    def __get__(self, folder: Folder, owner: type) -> RecordFile[T]:
        return RecordFile(folder.run.store, f"{folder.key}/{self.name}", self.kind)


@dataclass(frozen=True)
class Request(Generic[T]):
    """The request file `name` in the folder of each attempt or restart; it contains a `kind`."""

    name: str
    kind: type[T]

    def __get__(self, folder: Folder, owner: type) -> RequestFile[T]:
        return RequestFile(folder.run.store, f"{folder.key}/{self.name}", self.kind, folder.run.spool)


@dataclass(frozen=True)
class Key:
    """The key of the file or folder `name` in the folder of each generation, attempt or restart."""

    name: str

    def __get__(self, folder: Folder, owner: type) -> str:
        return f"{folder.key}/{self.name}"


@dataclass(frozen=True)
class OnThisNode:
    """Where this node writes the stream `name` of each attempt or restart."""

    name: str

    def __get__(self, folder: Folder, owner: type) -> Path:
        return folder.run.local_path(f"{folder.key}/{self.name}")
