"""The contents of an unpacked folder as three numbers, for a later verification.

The digest is the sum of sha256("<size>:<sha256 of the bytes>:<path>") over all files, modulo 2²⁵⁶. A sum does
not depend on the order of the files, so names need not be sorted, and a million files need no list in memory.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from clustertrain.regular_file import open_file

_MODULUS = 1 << 256


@dataclass(frozen=True)
class Contents:
    """The number of files, their total size, and the digest over path, size and sha256 of each."""

    files: int = 0
    size_bytes: int = 0
    digest: int = 0

    def plus(self, path: str, size_bytes: int, sha256: str) -> Contents:
        """The contents with one more file; `path` is relative, with '/' between its parts."""
        record = f"{size_bytes}:{sha256}:{path}".encode()
        one = int.from_bytes(hashlib.sha256(record).digest(), "big")
        return Contents(self.files + 1, self.size_bytes + size_bytes, (self.digest + one) % _MODULUS)


def contents_of(folder: Path) -> Contents:
    """Reads every byte of every file below `folder`.

    Raises:
        OSError: something there cannot be read.
    """
    found = Contents()
    for path in _files_below(folder):
        with open_file(path) as file:
            sha256 = hashlib.file_digest(file, "sha256").hexdigest()
            size_bytes = file.tell()
        found = found.plus(path.relative_to(folder).as_posix(), size_bytes, sha256)
    return found


def _files_below(folder: Path) -> Iterator[Path]:
    """Everything that is not a folder. Links are followed when they are read; an archive has none."""
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                yield from _files_below(Path(entry.path))
            else:
                yield Path(entry.path)
