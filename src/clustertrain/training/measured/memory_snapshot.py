"""What the memory of a GPU held when it was exhausted: a file for pytorch.org/memory_viz."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

_MOST_ENTRIES = 100_000  # allocations and frees, the newest; each has a few KB with its stack
_WHAT = "What the GPU's memory held, for pytorch.org/memory_viz: "


@contextmanager
def memory_snapshot(
    enabled: bool, device: torch.device, file: Callable[[], tuple[Path, str]]
) -> Iterator[None]:
    """Record each allocation inside. If torch's allocator is out of memory, write a file, and add its place
    to the error.

    Args:
        file: the file, and the place where people find it.
    """
    if not enabled or device.type != "cuda":
        yield
        return
    torch.cuda.memory._record_memory_history(max_entries=_MOST_ENTRIES)
    try:
        yield
    except torch.OutOfMemoryError as error:
        path, place = file()
        error.add_note(_WHAT + _written(path, place))
        raise
    finally:
        torch.cuda.memory._record_memory_history(enabled=None)


def _written(path: Path, place: str) -> str:
    """`place`, or why there is no file."""
    unfinished = path.with_name(f".{path.name}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        torch.cuda.memory._dump_snapshot(str(unfinished))  # type: ignore[no-untyped-call]  # torch
        unfinished.replace(path)
    except (OSError, RuntimeError, MemoryError) as error:
        return f"not written: {type(error).__name__}: {error}".partition("\n")[0]
    return place
