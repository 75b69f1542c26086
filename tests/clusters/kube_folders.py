"""Where a cluster lives on this machine: a folder, named after two addresses that are its alone.

Whoever uses the cluster holds the lock of FOLDER/users, shared; its process 1 waits to have it alone.
"""

import contextlib
import fcntl
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

from clusters.machine import free_subnets

_FOLDERS = Path("/var/tmp")  # not /run, which may be memory: an image has gigabytes
# Nobody's: RFC 5737 keeps them for examples. Two addresses a cluster: this machine's and the node's.
_SUBNETS = ("198.51.100.0/24", "203.0.113.0/24")


def join_folder(folder: Path) -> TextIO | None:
    """The same lock for one more process, as long as the cluster does not end."""
    try:
        users = (folder / "users").open("r+")
        fcntl.flock(users, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except (FileNotFoundError, BlockingIOError):
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


def claim_folder() -> tuple[Path, TextIO]:
    """A new one, and the lock that says it is used."""
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
