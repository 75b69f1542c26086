"""The folder of one start on one node: private, short enough for Ray's sockets, removed at the end.

If the process is killed, the next start removes it; tempfile.TemporaryDirectory would leave it.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import socket
import tempfile
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

from clustertrain.errors import ClusterError
from clustertrain.node.processes import Process, this_process
from clustertrain.supervise.orphans import end_processes_of

FORK_SERVER = "fork"
"""In a private folder: the socket of the fork server."""

_PREFIX, _OWNER = "ct-", "owner"
_SHARED_MEMORY = Path("/dev/shm")
BASES = ("/tmp", "/var/tmp", str(_SHARED_MEMORY))
_LONGEST_BASE = 24  # the path of a socket has at most 107 bytes, and Ray adds 70


def private_folder() -> Path:
    """Create a folder of mode 0700 for Ray, in TMPDIR or else in another folder for temporary files.

    Removes the folders that killed processes of this user left, and ends their processes that still run.

    Raises:
        ClusterError: none of these folders can be written; the message has the reason for each.
    """
    refused = []
    _remove_left_behind(_SHARED_MEMORY)
    named = str(Path(os.environ.get("TMPDIR") or BASES[0]).absolute())  # Ray takes no relative one
    for base in dict.fromkeys((named, *BASES)):
        _remove_left_behind(Path(base))
        if len(base) > _LONGEST_BASE:
            refused.append(f"{base} has {len(base)} characters, more than {_LONGEST_BASE}")
            continue
        try:
            return _folder_in(base)
        except OSError as error:
            refused.append(f"{base}: {error.strerror}")
    raise ClusterError(
        f"No folder for temporary files can be used on {socket.gethostname()}, where TMPDIR is "
        f"{os.environ.get('TMPDIR') or 'not set'}: {'; '.join(refused)}.\n"
        "Ray needs one for its sockets and logs: free space there, or let TMPDIR name another short path."
    )


def _folder_in(base: str) -> Path:
    folder = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=base))
    try:
        _write_owner(folder)
    except OSError:  # the disk is full
        remove(folder)
        raise
    with suppress(OSError):  # then the workers keep nothing in memory
        memory_folder(folder).mkdir(mode=0o700)
        _write_owner(memory_folder(folder))
    return folder


def _write_owner(folder: Path) -> None:
    (folder / _OWNER).write_text(json.dumps(asdict(this_process())))


def _remove_left_behind(base: Path) -> None:
    with suppress(OSError):  # it does not exist, or this user may not list it
        for folder in base.glob(f"{_PREFIX}*"):
            _remove_if_left_behind(folder)


def _remove_if_left_behind(folder: Path) -> None:
    with suppress(OSError, ValueError, TypeError):  # another user's, or made by another program
        if folder.lstat().st_uid != os.getuid():
            return
        owner = Process(**json.loads((folder / _OWNER).read_text()))
        if owner.is_here and owner.is_gone:
            end_processes_of(folder)
            remove(folder)


def memory_folder(folder: Path) -> Path:
    """Return the path of its counterpart in shared memory, which is removed with it.

    Another user may have taken the name: who uses it checks the owner.
    """
    return _SHARED_MEMORY / f"{folder.name}-memory"


def temporary_folder(folder: Path) -> Path:
    """Create a folder in it for the TMPDIR of a run.

    The files that killed processes leave there, such as the sockets of data loaders, are removed with it.
    """
    temporary = folder / "tmp"
    temporary.mkdir(mode=0o700)
    return temporary


def write_token(folder: Path, token: str | None = None) -> Path:
    """Write the token of this run to a file that only its user can read, and return the path.

    The token is random unless given.
    """
    path = folder / "token"
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(fd, "w") as file:
        file.write(token or secrets.token_hex(32))
    return path


def remove(folder: Path) -> None:
    """Remove the folder and, of a private one, its counterpart and its semaphores in shared memory."""
    shutil.rmtree(folder, ignore_errors=True)
    if not folder.name.startswith(_PREFIX):
        return
    for semaphore in _SHARED_MEMORY.glob(f"sem.{folder.name}-*"):  # worker/setup.py names them
        with suppress(OSError):
            semaphore.unlink()
    shutil.rmtree(memory_folder(folder), ignore_errors=True)
