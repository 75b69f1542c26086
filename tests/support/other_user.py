"""What another user of a machine can use there; a program of its own, run as root.

    python other_user.py UID FOLDER…

It becomes that user, and prints as JSON how many sockets are below the folders, and what is open to this
user: files and folders that it can write, and sockets that take its connection.
"""

import contextlib
import json
import os
import socket
import stat
import sys
from pathlib import Path


def below(folder: Path) -> dict[Path, int]:
    """The modes of all paths, relative to the folder. What is mounted below it is not the run's: a checkout
    below /tmp, the folders of the test."""
    found, own = {}, folder.stat().st_dev
    for top, folders, files in os.walk(folder):
        for path in (Path(top, name) for name in (*folders, *files)):
            with contextlib.suppress(FileNotFoundError):  # removed while we looked
                status = path.lstat()
                if status.st_dev == own:
                    found[path.relative_to(folder)] = status.st_mode
        folders[:] = [name for name in folders if Path(top, name).relative_to(folder) in found]
    return found


def is_open(path: Path, mode: int) -> bool:
    if stat.S_ISSOCK(mode):
        with socket.socket(socket.AF_UNIX) as client:
            return client.connect_ex(str(path)) == 0
    return not stat.S_ISLNK(mode) and os.access(path, os.W_OK)


def main(uid: int, folders: list[str]) -> None:
    there = {folder: below(Path(folder)) for folder in folders}
    entered = {folder: os.open(folder, os.O_RDONLY) for folder in folders}
    os.setgroups([])
    os.setgid(uid)
    os.setuid(uid)
    opened = []
    for folder, paths in there.items():
        with contextlib.suppress(PermissionError):  # the folder itself is closed
            os.fchdir(entered[folder])  # those above do not count: they are the test's
            opened += [f"{folder}/{path}" for path, mode in paths.items() if is_open(path, mode)]
    sockets = sum(stat.S_ISSOCK(mode) for paths in there.values() for mode in paths.values())
    print(json.dumps({"sockets": sockets, "open": opened}))


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
