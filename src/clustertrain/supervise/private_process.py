"""A process with a private folder, which another process of this user may take over before it has work."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Self

from clustertrain.supervise.orphans import end_processes_of
from clustertrain.supervise.private_folder import remove, take_over
from clustertrain.supervise.process import Adopted, Guarded

LOG = "log"


class PrivateProcess:
    """A process under a guardian, and its private folder with its log."""

    def __init__(self, folder: Path, process: Guarded) -> None:
        self.folder, self.process = folder, process

    @classmethod
    def adopt(cls, folder: Path, descriptors: Sequence[int]) -> Self:
        """Take over one that another process has started."""
        take_over(folder)
        return cls(folder, Adopted(folder / LOG, descriptors))

    def discard(self) -> None:
        """End it and all that it has started."""
        self.process.end()
        end_processes_of(self.folder)  # for the case that both guardians were killed
        remove(self.folder)
