"""The folders of a job's code, and where each of them is in a copy of all of them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import PurePosixPath


def places(folders: Sequence[str]) -> tuple[str, ...]:
    """Return the path of each folder in a copy, relative to the copy.

    A single folder is the copy itself. Of several, each has a folder of its own, `1` for the first, so that
    two of them may contain a file of the same name. A folder inside another one stays inside it.
    """
    if len(folders) == 1:
        return (".",)
    return tuple(str(_place(folders, n)) for n in range(len(folders)))


def is_own(place: str) -> bool:
    """Return whether a folder with this place is copied itself; otherwise it is part of another one."""
    return "/" not in place


def _place(folders: Sequence[str], n: int) -> PurePosixPath:
    folder = PurePosixPath(folders[n])
    around = [m for m, other in enumerate(folders) if folder.is_relative_to(other)]  # at least itself
    outermost = min(around, key=lambda m: len(PurePosixPath(folders[m]).parts))
    return PurePosixPath(str(outermost + 1)) / folder.relative_to(folders[outermost])
