"""Opens regular files only.

A named pipe would wait for a writer, and a device such as /dev/zero has no end.
"""

from __future__ import annotations

import errno
import io
import os
import stat
from pathlib import Path


class NotAFile(OSError):
    """The path is a device, a named pipe or a socket."""


def open_file(path: Path | str) -> io.BufferedReader:
    """Open a regular file to read it.

    Raises:
        NotAFile: something else is there.
        OSError: it cannot be opened.
    """
    flags = os.O_RDONLY | os.O_CLOEXEC
    try:
        fd = os.open(path, flags | os.O_NONBLOCK)  # otherwise the open of a named pipe waits
    except BlockingIOError:  # a regular file whose lease an NFS client of this machine has, for a moment
        fd = os.open(path, flags)
    try:
        mode = os.fstat(fd).st_mode
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        if not stat.S_ISREG(mode):
            raise NotAFile(errno.EINVAL, "not a regular file", str(path))
        return os.fdopen(fd, "rb")
    except BaseException:
        os.close(fd)
        raise


def read_file(path: Path | str) -> bytes:
    """Return the bytes of a regular file; raises as `open_file`."""
    with open_file(path) as file:
        return file.read()
