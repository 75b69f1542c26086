"""What the processes of a schedule share: a folder of a real file system, or an S3 server in memory. They
have clocks, names and identities of their own.

The stores and all that uses them are the real ones. On a file system each call of the system is an operation,
on S3 each request. Not an operation is what no other process can notice: a temporary file before its link or
rename, a stream, the probe of a start, and a folder that was renamed in order to be removed.
"""

# ruff: noqa: N803, PTH106, PTH115, PTH120
# The names of arguments are boto3's; the functions of os are those that are wrapped.

import io
import os
import random
import re
import shutil
import time
import uuid
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace

import pytest
from botocore.exceptions import ClientError, ConnectionClosedError
from schedule import LOST, Schedule, Touches

from clustertrain.node import processes
from clustertrain.run_files import claims
from clustertrain.run_files.folder import run_dir
from clustertrain.staging import lease
from clustertrain.storage import s3_client, s3_objects

_PRIVATE = re.compile(r"/\.[^/]*\.tmp$|/\.probe-|\.jsonl$|\.gone(/|$)")
_STRETCH = 5.0  # a sleep lasts longer than asked for, as on a busy machine: fewer looks until a deadline


# ------------------------------------------------------------------------------------- a file system


class FileSystem:
    """Makes each operation on paths below `root` a point of the schedule."""

    def __init__(self, root: Path, patch: pytest.MonkeyPatch) -> None:
        self.root = f"{root}/"
        for name in ("mkdir", "unlink", "rmdir", "listdir", "scandir", "stat", "open"):
            patch.setattr(os, name, self._one_path(getattr(os, name), getattr(self, f"_touches_{name}")))
        for name in ("rename", "replace", "link"):
            patch.setattr(os, name, self._two_paths(getattr(os, name), getattr(self, f"_touches_{name}")))
        patch.setattr(os, "pwrite", self._pwrite(os.pwrite))
        patch.setattr(io, "open", self._io_open(io.open))
        patch.setattr(shutil, "rmtree", self._rmtree)

    def _of(self, path, dir_fd=None) -> str | None:
        """The path below the root; None if the operation is no point of the schedule."""
        if Schedule.process() is None or isinstance(path, int):
            return None
        text = os.fspath(path)
        if dir_fd is not None:
            text = f"{os.readlink(f'/proc/self/fd/{dir_fd}')}/{text}"
        if not text.startswith(self.root) or _PRIVATE.search(text):
            # The hidden folder of an unfinished tree is none of these: its writer may be overtaken.
            return text if _is_tree(text) and text.startswith(self.root) else None
        return text

    def _one_path(self, real, touches):
        def operation(path=".", *args, dir_fd=None, **more):
            if (at := self._of(path, dir_fd)) is not None and not self._is_idle(real.__name__, at, args):
                label = f"{real.__name__} {at.removeprefix(self.root)}"
                Schedule.current.point(
                    label, lambda: touches(self._of(path, dir_fd) or at, *args) + _above(at, self)
                )
            found = real(path, *args, **more) if dir_fd is None else real(path, *args, dir_fd=dir_fd, **more)
            return sorted(found) if real.__name__ == "listdir" else found

        operation.__name__ = real.__name__
        return operation

    def _two_paths(self, real, touches):
        def operation(source, target, **more):
            if (to := self._of(target)) is not None:
                of = os.fspath(source)
                label = f"{real.__name__} {of.removeprefix(self.root)} {to.removeprefix(self.root)}"
                Schedule.current.point(label, lambda: touches(of, to) + _above(of, self) + _above(to, self))
            elif (of := self._of(source)) is not None:  # away, in order to be removed
                label = f"{real.__name__} {of.removeprefix(self.root)} away"
                Schedule.current.point(label, lambda: touches(of, os.fspath(target)) + _above(of, self))
            return real(source, target, **more)

        return operation

    def _is_idle(self, name: str, path: str, args) -> bool:
        if name == "mkdir":
            return _exists(path)
        return name == "open" and bool(args[0] & os.O_DIRECTORY)

    # What each operation reads and writes, as things are when it happens.

    def _touches_mkdir(self, path: str, *_) -> Touches:
        if _exists(path) or not _exists(os.path.dirname(path)):
            return [(path, False), (os.path.dirname(path), False)]
        return _new(path)

    def _touches_unlink(self, path: str, *_) -> Touches:
        return _new(path) if _exists(path) else [(path, False)]

    def _touches_rmdir(self, path: str, *_) -> Touches:
        return [*_new(path), (f"{path}/*", False)]

    def _touches_listdir(self, path: str, *_) -> Touches:
        return [(f"{path}/*", False), (path, False)]

    _touches_scandir = _touches_listdir

    def _touches_stat(self, path: str, *_) -> Touches:
        return [(path, False)]

    def _touches_open(self, path: str, flags: int = 0, *_) -> Touches:
        if flags & os.O_CREAT and not _exists(path):
            return _new(path)
        return [(path, bool(flags & (os.O_TRUNC | os.O_WRONLY | os.O_RDWR)))]

    def _touches_link(self, source: str, target: str) -> Touches:
        return [(target, False)] if _exists(target) else _new(target)

    def _touches_replace(self, source: str, target: str) -> Touches:
        hidden = [] if _PRIVATE.search(source) and not _is_tree(source) else _new(source)
        return [*hidden, *([(target, True)] if _exists(target) else _new(target))]

    def _touches_rename(self, source: str, target: str) -> Touches:
        return [*_new(source), *_new(target), (f"{source}/**", True), (f"{target}/**", True)]

    def _io_open(self, real):
        def operation(file, mode="r", *args, **more):
            if (at := self._of(file)) is not None:
                writes = not mode.startswith("r") or "+" in mode

                def touches() -> Touches:
                    return (_new(at) if writes and not _exists(at) else [(at, writes)]) + _above(at, self)

                Schedule.current.point(f"open {at.removeprefix(self.root)} {mode}", touches)
            return real(file, mode, *args, **more)

        return operation

    def _pwrite(self, real):
        def operation(fd, data, offset):
            if (
                Schedule.process() is not None
                and (at := self._of(os.readlink(f"/proc/self/fd/{fd}"))) is not None
            ):
                Schedule.current.point(
                    f"pwrite {at.removeprefix(self.root)}", lambda: [(at, True), *_above(at, self)]
                )
            return real(fd, data, offset)

        return operation

    def _rmtree(self, path, ignore_errors=False, **more):
        """As shutil.rmtree: name by name, in the folders that were opened, wherever they are meanwhile."""
        try:
            self._remove_below(os.open(path, os.O_RDONLY | os.O_DIRECTORY))
            os.rmdir(path)
        except OSError:
            if not ignore_errors:
                raise

    def _remove_below(self, fd: int) -> None:
        try:
            here = os.readlink(f"/proc/self/fd/{fd}")
            if (at := self._of(here)) is not None:
                Schedule.current.point(
                    f"listdir {at.removeprefix(self.root)}", lambda: self._touches_listdir(here)
                )
            for name in sorted(os.listdir(fd)):
                try:
                    below = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=fd)
                except NotADirectoryError:
                    os.unlink(name, dir_fd=fd)
                    continue
                self._remove_below(below)
                os.rmdir(name, dir_fd=fd)
        finally:
            os.close(fd)


_real_lstat = os.lstat


def _exists(path: str) -> bool:
    try:
        _real_lstat(path)
    except OSError:
        return False
    return True


def _is_tree(path: str) -> bool:
    """Whether it is, or is in, the hidden folder of a checkpoint that is being written."""
    return re.search(r"/\.\d+-\d+\.\d+\.[0-9a-f]+\.tmp(/|$)", path) is not None


def _new(path: str) -> Touches:
    return [(path, True), (f"{os.path.dirname(path)}/*", True)]


def _above(path: str, system: FileSystem) -> Touches:
    """The folders above: a rename of one of them changes what the path means."""
    found = []
    while len(path := os.path.dirname(path)) >= len(system.root):
        found.append((f"{path}/**", False))
    return found


# -------------------------------------------------------------------------------------------- S3


class S3:
    """The requests of boto3's client that the kit makes, on objects in memory."""

    def __init__(self) -> None:
        self.objects: dict[str, tuple[bytes, dict[str, str]]] = {}

    def put_object(self, *, Key, Body, Metadata, IfNoneMatch=None, **_):
        def touches() -> Touches:
            return [(Key, False)] if IfNoneMatch and Key in self.objects else self._changes(Key)

        fate = self._point("PUT", Key, touches, may_lose=True)
        if IfNoneMatch and Key in self.objects:
            raise _refused(412, "PreconditionFailed")
        self.objects[Key] = (bytes(Body), dict(Metadata))
        return self._answer(fate, {"ETag": '"e"'})

    def get_object(self, *, Key, **_):
        self._point("GET", Key, lambda: [(Key, False)])
        data, metadata = self._found(Key)
        return {"Body": io.BytesIO(data), "Metadata": metadata, "ETag": '"e"', "ContentLength": len(data)}

    def head_object(self, *, Key, **_):
        self._point("HEAD", Key, lambda: [(Key, False)])
        data, metadata = self._found(Key)
        return {"ContentLength": len(data), "Metadata": metadata}

    def delete_object(self, *, Key, **_):
        fate = self._point("DELETE", Key, lambda: self._changes(Key), may_lose=True)
        self.objects.pop(Key, None)
        return self._answer(fate, {})

    def list_objects_v2(self, *, Prefix, Delimiter=None, **_):
        self._point("LIST", Prefix, lambda: [(f"{Prefix}{'*' if Delimiter else '**'}", False)])
        keys = sorted(key for key in self.objects if key.startswith(Prefix))
        folders = sorted(
            {Prefix + key[len(Prefix) :].partition("/")[0] + "/" for key in keys if "/" in key[len(Prefix) :]}
        )
        if Delimiter:
            keys = [key for key in keys if "/" not in key[len(Prefix) :]]
        return {
            "IsTruncated": False,
            "Contents": [{"Key": key, "LastModified": datetime.fromtimestamp(0, UTC)} for key in keys],
            "CommonPrefixes": [{"Prefix": folder} for folder in (folders if Delimiter else [])],
        }

    def list_multipart_uploads(self, **_):
        return {"IsTruncated": False}

    def get_paginator(self, method):
        return SimpleNamespace(paginate=lambda **where: [getattr(self, method)(**where)])

    def _found(self, key: str) -> tuple[bytes, dict[str, str]]:
        if key not in self.objects:
            raise _refused(404, "NoSuchKey")
        return self.objects[key]

    def _changes(self, key: str) -> Touches:
        """What a write or a removal of a key changes: the key, and the listings in which its name is new."""
        found = [(key, True)]
        folder, is_new = key, True
        while "/" in folder:
            folder = folder.rpartition("/")[0]
            found.append((f"{folder}/**", True))
            if is_new:
                found.append((f"{folder}/*", True))
                is_new = not any(other.startswith(f"{folder}/") and other != key for other in self.objects)
        return found

    def _point(self, action: str, key: str, touches, may_lose: bool = False) -> str:
        if Schedule.process() is None or ".probe-" in key:
            return ""
        return Schedule.current.point(f"{action} {key}", touches, may_lose=may_lose)

    @staticmethod
    def _answer(fate: str, answer):
        if fate == LOST:
            raise ConnectionClosedError(endpoint_url="memory")
        return answer


def _refused(status: int, code: str) -> ClientError:
    answer = {"Error": {"Code": code}, "ResponseMetadata": {"HTTPStatusCode": status}}
    return ClientError(answer, "request")


# --------------------------------------------------------------------- clocks, names and identities


def give_own_time(patch: pytest.MonkeyPatch, spools: Path) -> None:
    """Each process has its own clock, which only its sleeps advance, its own names and its own identity."""

    def clock(real, start):
        return lambda: real() if (process := Schedule.process()) is None else start + process.clock_s

    def sleep(seconds, real=time.sleep):
        if (process := Schedule.process()) is None:
            real(seconds)
        else:
            process.clock_s += _STRETCH * seconds

    def name(real=uuid.uuid4):
        return real() if (process := Schedule.process()) is None else process.name()

    def this_process(real=processes.this_process):
        if (process := Schedule.process()) is None:
            return real()
        return processes.Process(process.host, process.pid, 1)

    def is_here(identity):
        return (process := Schedule.process()) is not None and identity.host == process.host

    def is_gone(identity):
        """Whether a process of this host has crashed; of an earlier time, all have."""
        schedule = Schedule.current
        schedule.point(f"looks at {identity.pid}", lambda: [(f"life of {identity.pid}", False)])
        return not any(p.pid == identity.pid and not p.crashed for p in schedule.processes)

    patch.setattr(time, "monotonic", clock(time.monotonic, 0.0))
    patch.setattr(time, "time", clock(time.time, 1.7e9))
    patch.setattr(time, "sleep", sleep)
    patch.setattr(uuid, "uuid4", name)
    patch.setattr(random, "uniform", lambda low, high: high)
    patch.setitem(s3_client.persistently.__kwdefaults__, "pause", sleep)
    patch.setattr(claims, "this_process", this_process)
    patch.setattr(lease, "this_process", this_process)
    patch.setattr(processes.Process, "is_here", property(is_here))
    patch.setattr(processes.Process, "is_gone", property(is_gone))
    patch.setattr(
        run_dir, "spool_folder", lambda store: spools / str(getattr(Schedule.process(), "index", "x"))
    )


def serve(patch: pytest.MonkeyPatch, server: S3) -> None:
    """Connect all stores on S3 to this server."""
    patch.setattr(s3_objects, "connect", lambda location: server)


class NoThread:
    """In place of the thread that renews a lease: a holder is as slow as the schedule makes it."""

    def __init__(self, *args, **more) -> None:
        pass

    def start(self) -> None:
        pass

    def join(self) -> None:
        pass


def stop_renewals(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(lease, "threading", SimpleNamespace(Thread=NoThread, Event=lease.threading.Event))
