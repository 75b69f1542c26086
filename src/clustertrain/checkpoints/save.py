"""Saves without stopping the loop: copy the state to host memory, then write it in the background.

Peak extra memory is one copy of the state, kept and reused from save to save. A save that comes due while
the one before is still being written waits for it: it is neither doubled nor dropped, and the wait is in
the `blocking_s` that is logged.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import torch

from clustertrain.checkpoints.write import Fenced, Writer
from clustertrain.errors import StorageError

MODEL_FILE = "model.pt"
TRAINING_FILE = "training.pt"
_FAILURES_IN_A_ROW = 3


class Saver:
    """Rank 0's side of a save. `background=False` writes before `save` returns."""

    def __init__(
        self,
        writer: Writer,
        *,
        background: bool,
        on_saved: Callable[..., None],
        on_failed: Callable[[str], None],
    ) -> None:
        self._writer = writer
        self._background = background
        self._on_saved = on_saved
        self._on_failed = on_failed
        self._buffers: dict[str, Any] | None = None
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None
        self._failures = 0

    def reserve(self, state: dict[str, Any]) -> None:
        """Allocate the buffers of a state like this one, in the background: writing to fresh memory takes
        several times as long, and the first save would wait for it. What is copied meanwhile is of no use.
        """
        if self._background and self._buffers is None:
            self._thread = threading.Thread(target=self._reserve, args=(state,), name="checkpoint-buffers")
            self._thread.start()

    def _reserve(self, state: dict[str, Any]) -> None:
        with suppress(RuntimeError, MemoryError):  # no room: the save meets the same, and says so
            self._buffers = copy_to_host(state)

    def save(self, state: dict[str, Any], progress: dict[str, Any]) -> None:
        """Snapshot `state` (live tensors, any device) and commit it; returns once the copy is made.

        Raises:
            Fenced: an earlier save found that another start has taken the run over.
            StorageError: three saves in a row could not be written.
            Exception: what an earlier save met that no later one can escape, such as a state that cannot be
                pickled.
        """
        started = time.monotonic()
        self._join()
        self._raise_if_hopeless()
        self._buffers = copy_to_host(state, self._buffers)
        blocking_s = time.monotonic() - started
        if not self._background:
            self._write(self._buffers, progress, started)
            self._raise_if_hopeless()
            return
        self._thread = threading.Thread(
            target=self._write, args=(self._buffers, progress, started, blocking_s), name="checkpoint"
        )
        self._thread.start()

    def finish(self) -> None:
        """Wait for the save in flight. Raises what kept the last one from being committed."""
        self._join()
        if self._error is not None:
            raise self._error

    def check(self) -> None:
        """Raise what makes further saves pointless, when a save in the background met it; costs nothing
        otherwise."""
        self._raise_if_hopeless()

    def _write(
        self, state: dict[str, Any], progress: dict[str, Any], started: float, blocking_s: float | None = None
    ) -> None:
        rest = {key: value for key, value in state.items() if key != "model"}
        files: dict[str, Callable[[Any], None]] = {TRAINING_FILE: partial(_dump, rest)}
        if "model" in state:
            files = {MODEL_FILE: partial(_dump, state["model"]), **files}
        try:
            name, size_bytes = self._writer.commit(files, progress)
        except Exception as error:  # noqa: BLE001  a thread has nobody above it: the loop is told by `check`
            self._error = error
            self._failures += 1
            self._on_failed(f"the checkpoint of step {progress['step']} was not written: {error}")
            return
        self._error = None
        self._failures = 0
        write_s = time.monotonic() - started
        self._on_saved(
            step=progress["step"],
            name=str(name),
            bytes=size_bytes,
            blocking_s=write_s if blocking_s is None else blocking_s,
            write_s=write_s,
            reason=progress["reason"],
        )

    def _join(self) -> None:
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def _raise_if_hopeless(self) -> None:
        if self._error is None:
            return
        may_pass = isinstance(self._error, StorageError)  # anything else: a state that cannot be saved, ever
        if not may_pass or isinstance(self._error, Fenced) or self._failures >= _FAILURES_IN_A_ROW:
            raise self._error


def _dump(state: Any, file: Any) -> None:
    """torch.save; when writing fails it raises that error, which torch hides behind one of its own."""
    try:
        torch.save(state, file)
    except RuntimeError as error:
        if isinstance(error.__context__, OSError | StorageError):
            raise error.__context__ from error
        raise


def load(checkpoint: Path) -> dict[str, Any]:
    """The state of a verified checkpoint, tensors on the CPU."""
    state: dict[str, Any] = torch.load(checkpoint / TRAINING_FILE, map_location="cpu", weights_only=True)
    if (checkpoint / MODEL_FILE).exists():
        state["model"] = torch.load(checkpoint / MODEL_FILE, map_location="cpu", weights_only=True)
    return state


def copy_to_host(state: Any, buffers: Any = None) -> Any:
    """A copy of nested dicts, lists and tuples with every tensor on the CPU.

    Tensors of `buffers` (an earlier copy) are reused where place, shape and dtype agree. Two views of one
    storage (tied weights) stay one tensor. CUDA tensors go to pinned memory; all copies are done on return.
    """
    copy = _Copy()
    with _one_thread():
        result = copy.of(state, buffers)
    if copy.from_cuda:
        torch.cuda.synchronize()
    return result


@contextmanager
def _one_thread() -> Iterator[None]:
    """Copying is bound by memory, and threads wait for each other at the end of every tensor: where cores are
    shared, with the save before or with other jobs, that took ten times as long (benchmarks/saving.py)."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


class _Copy:
    def __init__(self) -> None:
        self.from_cuda = False
        self._copies: dict[tuple[Any, ...], torch.Tensor] = {}
        self._used: set[int] = set()

    def of(self, value: Any, buffer: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return self._tensor(value.detach(), buffer)
        if isinstance(value, dict):
            old = buffer if isinstance(buffer, dict) else {}
            return {key: self.of(item, old.get(key)) for key, item in value.items()}
        if isinstance(value, list | tuple):
            same = isinstance(buffer, list | tuple) and len(buffer) == len(value)
            items = [self.of(item, buffer[i] if same else None) for i, item in enumerate(value)]
            return items if isinstance(value, list) else tuple(items)
        return value  # numbers, strings, None: immutable

    def _tensor(self, tensor: torch.Tensor, buffer: Any) -> torch.Tensor:
        source = (tensor.device, tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype)
        if tensor.numel() and source in self._copies:
            return self._copies[source]
        fits = isinstance(buffer, torch.Tensor) and (buffer.shape, buffer.dtype) == (
            tensor.shape,
            tensor.dtype,
        )
        if not fits or id(buffer) in self._used:  # two sources must not share what one source shared before
            buffer = torch.empty_like(tensor, device="cpu", pin_memory=tensor.is_cuda)
        buffer.copy_(tensor, non_blocking=tensor.is_cuda)
        self.from_cuda |= tensor.is_cuda
        self._used.add(id(buffer))
        self._copies[source] = buffer
        result: torch.Tensor = buffer
        return result
