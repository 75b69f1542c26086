"""The folder of one start on one node: private, short enough for Ray's sockets, removed at the end.

If the process is killed, the next start removes it; tempfile.TemporaryDirectory would leave it.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import tempfile
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

from clustertrain.node.processes import Process, this_process

_PREFIX, _OWNER = "ct-", "owner"


def private_folder() -> Path:
    """A new folder of mode 0700 for Ray. Its path is short: a socket's path has at most 107 bytes, and Ray
    adds 70.

    Removes the folders that killed processes of this user left.
    """
    base = tempfile.gettempdir()
    base = base if len(base) <= 24 else "/tmp"
    _remove_left_behind(Path(base))
    folder = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=base))
    (folder / _OWNER).write_text(json.dumps(asdict(this_process())))
    return folder


def _remove_left_behind(base: Path) -> None:
    for folder in base.glob(f"{_PREFIX}*"):
        with suppress(OSError, ValueError, TypeError):  # another user's, or made by another program
            if folder.lstat().st_uid != os.getuid():
                continue
            owner = Process(**json.loads((folder / _OWNER).read_text()))
            if owner.is_here and owner.is_gone:
                remove(folder)


def write_token(folder: Path, token: str | None = None) -> Path:
    """Write the token of this run to a file that only its user can read; random unless given. Returns the
    path."""
    path = folder / "token"
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(fd, "w") as file:
        file.write(token or secrets.token_hex(32))
    return path


def remove(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
