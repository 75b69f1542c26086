"""The keeper's socket, in a private folder of its user, and what is said on it."""

from __future__ import annotations

import os
import socket
import stat
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, TypeVar

from clustertrain.errors import ClusterError
from clustertrain.record_file import decoded, encoded

SOCKET, JOB_FILE, LOG = "socket", "job.yaml", "log"
_MOST_BYTES = 2**16  # a socket takes more
_MOST_DESCRIPTORS = 3
_PEER = struct.Struct("iII")  # pid, uid, gid
_ANSWERS_WITHIN_S = 10.0
_LONGEST_PATH = 107  # in bytes, of a socket

T = TypeVar("T", "Ask", "Answer")


@dataclass(frozen=True)
class Ask:
    """What is asked of the keeper. `start`: what the processes of a run would have from their start."""

    what: Literal["state", "take", "down"]
    start: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Answer:
    """The state of the keeper, or its spare driver, whose descriptors come with it.

    Attributes:
        is_up: the spare driver has nothing left to do before a run, or a run uses it.
        text: the state in words, with what is kept for which runs.
        differs: what the run and the spare driver have not in common.
        folder: the private folder of the spare driver, if it is handed over.
    """

    is_up: bool = False
    text: str = ""
    differs: list[str] = field(default_factory=list)
    folder: str = ""


def keeper_folder() -> Path:
    """The folder of this user's keeper: its socket, its log, and the job that it keeps Ray for."""
    base = os.environ.get("XDG_RUNTIME_DIR", "")  # after `su` that of another user, in a job of another host
    name = f"clustertrain-{os.getuid()}"
    is_short = len(os.fsencode(Path(base, name, SOCKET))) <= _LONGEST_PATH
    return Path(base if is_short and os.access(base, os.W_OK) else "/tmp", name)


def check_private(folder: Path) -> None:
    """Check that no other user can have made the folder, or can change it.

    Raises:
        ClusterError: one can.
        FileNotFoundError: it does not exist.
    """
    found = folder.lstat()
    mode = stat.S_IMODE(found.st_mode)
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or mode & 0o077:
        raise ClusterError(
            f"{folder} belongs to user {found.st_uid} and has mode {mode:03o}; for a Ray of your own it has "
            f"to be a folder of user {os.getuid()} with mode 700.\n"
            "Remove it, or let XDG_RUNTIME_DIR name a folder that only you can write."
        )


def connect() -> socket.socket | None:
    """A connection to the keeper of this user, or None if there is none.

    Raises:
        ClusterError: another user may have made its folder or its socket.
    """
    folder = keeper_folder()
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    connection.settimeout(_ANSWERS_WITHIN_S)
    try:
        check_private(folder)
        connection.connect(str(folder / SOCKET))
        check_peer(connection)
    except (FileNotFoundError, ConnectionRefusedError):
        connection.close()
        return None
    except BaseException:
        connection.close()
        raise
    return connection


def check_peer(connection: socket.socket) -> int:
    """Check that a process of this user is at the other end; returns its pid.

    Raises:
        ClusterError: it is another user's.
    """
    pid, uid, _ = _PEER.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size))
    if uid != os.getuid():
        raise ClusterError(
            f"Process {pid} of user {uid} is at the other end of the socket of `clustertrain up`."
        )
    return int(pid)


def send(connection: socket.socket, message: Ask | Answer, descriptors: Sequence[int] = ()) -> None:
    socket.send_fds(connection, [encoded(message)], list(descriptors))


def receive(connection: socket.socket, kind: type[T]) -> tuple[T, list[int]]:
    """The next message, and the descriptors that came with it.

    Raises:
        ConnectionError: the other side has ended.
        StorageError: it is a message of another version.
    """
    data, descriptors, _, _ = socket.recv_fds(connection, _MOST_BYTES, _MOST_DESCRIPTORS)
    if not data:
        raise ConnectionError("the other side has ended")
    return decoded(kind, data, "A message of another version of clustertrain"), descriptors
