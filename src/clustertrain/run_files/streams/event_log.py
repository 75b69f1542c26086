"""The writer of a stream of JSON lines.

The process of a script uses it as well, and its Python may have no package.
"""

from __future__ import annotations

import errno
import json
import time
from pathlib import Path
from typing import Any


class EventLog:
    """The writer of a stream; each line is one write, so that lines of one file never mix.

    A full disk loses lines, but does not end the training, which saves again when there is space.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._cut = False  # a full disk has cut the last line: it would take the next one with it

    def write(self, kind: str, **fields: Any) -> None:
        line = ("\n" * self._cut + json.dumps({"kind": kind, "time": time.time(), **fields}) + "\n").encode()
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with self._path.open("ab", buffering=0) as file:
                self._cut = file.write(line) < len(line)
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
