"""What another user of a machine can use there; a program of its own, run as root.

    python stranger.py UID FOLDER…

It becomes that user, and prints as JSON how many sockets are below the folders, and what is open to this
user: files and folders that it can write, and sockets that take its connection.
"""

import json
import os
import socket
import stat
import sys
from pathlib import Path


def is_open(path: Path, mode: int) -> bool:
    if stat.S_ISSOCK(mode):
        with socket.socket(socket.AF_UNIX) as client:
            return client.connect_ex(str(path)) == 0
    return not stat.S_ISLNK(mode) and os.access(path, os.W_OK)


def main(uid: int, folders: list[str]) -> None:
    there = {}
    for folder in folders:
        for path in Path(folder).rglob("*"):
            try:
                there[path] = path.lstat().st_mode
            except FileNotFoundError:  # removed while we looked
                continue
    os.setgroups([])
    os.setgid(uid)
    os.setuid(uid)
    seen = [str(path) for path, mode in there.items() if is_open(path, mode)]
    print(json.dumps({"sockets": sum(map(stat.S_ISSOCK, there.values())), "open": seen}))


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
