"""Where a cluster lives on this machine: a folder, named after two addresses that are its alone.

Whoever uses the cluster holds the lock of FOLDER/users, shared; its process 1 waits to have it alone.
"""

import contextlib
import fcntl
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

from clusters.machine import free_subnets

_FOLDERS = Path("/var/tmp")  # not /run, which may be memory: an image has gigabytes
# Nobody's: RFC 5737 keeps them for examples. Two addresses a cluster: this machine's and the node's.
_SUBNETS = ("198.51.100.0/24", "203.0.113.0/24")


def claim_folder() -> tuple[Path, TextIO]:
    """A new one, and the lock that says it is used."""
    remove_dead_clusters()
    with _one_at_a_time():
        return _claim()


def join_folder(folder: Path) -> TextIO | None:
    """The same lock for one more process, as long as the cluster does not end."""
    users = None
    try:
        users = (folder / "users").open("r+")
        fcntl.flock(users, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return None
    except BlockingIOError:
        users.close()
        return None
    return users


@contextlib.contextmanager
def locked(file: Path) -> Iterator[TextIO]:
    """Read from the beginning, written at the end, by one at a time."""
    with file.open("a+") as opened:
        fcntl.flock(opened, fcntl.LOCK_EX)
        opened.seek(0)
        yield opened
        opened.flush()


@contextlib.contextmanager
def _one_at_a_time() -> Iterator[None]:
    """Among all processes of this machine; its lock is that of a folder, which no one need remove."""
    opened = os.open(_FOLDERS, os.O_RDONLY)
    try:
        fcntl.flock(opened, fcntl.LOCK_EX)
        yield
    finally:
        os.close(opened)


def _claim() -> tuple[Path, TextIO]:
    for subnet in free_subnets(*_SUBNETS, prefix=30):
        _, _, c, d = str(subnet.network_address).split(".")
        folder = _FOLDERS / f"kube-{c}-{d}"  # a link has the same name, which may have 15 characters
        with contextlib.suppress(FileExistsError):
            folder.mkdir(0o755)
            users = (folder / "users").open("w")
            fcntl.flock(users, fcntl.LOCK_SH)
            machine, node = subnet.hosts()
            (folder / "addresses").write_text(f"{machine} {node}")
            return folder, users
    raise AssertionError(f"no subnet is free; {_FOLDERS}/kube-* are the clusters that there are")


def remove_dead_clusters() -> None:
    """What is left of those whose process 1 was killed: no other end comes before it has tidied up."""
    for folder in _FOLDERS.glob("kube-*-*"):
        with (
            _one_at_a_time(),
            contextlib.suppress(FileNotFoundError, BlockingIOError),
            (folder / "users").open("r+") as users,
        ):
            fcntl.flock(users, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if not _has_process_1(folder):
                for cgroup in _cgroups(folder.name):
                    cgroup.rmdir()
                shutil.rmtree(folder)


def _has_process_1(folder: Path) -> bool:
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        pid = (folder / "pid").read_text().strip()
        return str(folder).encode() in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    return False


def _cgroups(name: str) -> list[Path]:
    """The deepest first."""
    roots = [*Path("/sys/fs/cgroup").glob(name), *Path("/sys/fs/cgroup").glob(f"*/{name}")]
    return sorted(
        (inner for root in roots for inner in (root, *root.rglob("*")) if inner.is_dir()), reverse=True
    )
