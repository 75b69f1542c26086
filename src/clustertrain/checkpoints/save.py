"""Saves in the background: the state is copied to host memory, then written while training continues.

The peak of extra memory is one copy of the state, which is reused for every save. If a save is due while the
previous one is still being written, it waits; the logged `blocking_s` includes this time. `wait` shows a
watchdog whether the bytes of a slow write still increase.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from clustertrain.checkpoints.manifest import MODEL_FILE
from clustertrain.checkpoints.pinned import DeviceThread, PinnedMemory
from clustertrain.checkpoints.write import StaleWriter, Writer
from clustertrain.errors import JobError, StorageError
from clustertrain.training.ranks.dtensors import is_divided, local, map_state
from clustertrain.training.ranks.host import SaveProgress
from clustertrain.training.saving import check_readable
from clustertrain.training.values import State

if TYPE_CHECKING:
    from clustertrain.checkpoints.group import PartWriter

TRAINING_FILE = "training.pt"
_FAILURES_IN_A_ROW = 3
_FEW_BYTES = 4 << 20
_MOST_THREADS = 8  # of a copy: these use up the bandwidth of the memory


class Saver:
    """Rank 0's side of a save: `save` returns after the copy, and the write is done when `wait` returns None.

    With `background=False` the training waits for that, so it counts as `blocking_s`.
    """

    def __init__(
        self,
        writer: Writer | PartWriter,
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
        self._is_pageable = False
        self._files_in_write: list[Any] = []

    def reserve(self, state: State) -> None:
        """Allocate the buffers for a state like this one, in the background.

        Writing to new memory takes several times as long, and otherwise the first save would wait for it. The
        copied values are not used.
        """
        if self._background and self._buffers is None:
            held = self._held(state)
            self._thread = DeviceThread(target=self._reserve, args=(held,), name="checkpoint-buffers")
            self._thread.start()

    def _reserve(self, state: State) -> None:
        with suppress(RuntimeError, MemoryError, OSError):  # out of memory: the save then reports it
            self._buffers = copy_to_host(state, None, self._note_refusal)

    def _note_refusal(self, reason: str) -> None:
        if not self._is_pageable:
            self._is_pageable = True
            self._on_failed(
                f"CUDA does not pin the host memory for saves ({reason}): training waits longer for each. "
                "Raise the limit on locked memory (ulimit -l; docker --ulimit memlock=-1)."
            )

    def save(self, state: State, progress: SaveProgress) -> None:
        """Copy `state` (live tensors, any device) and begin to write it; returns after the copy.

        Raises:
            Fenced: an earlier save found that another start has taken the run over.
            StorageError: three saves in a row could not be written.
            Exception: a permanent error of an earlier save, such as a state that cannot be pickled.
        """
        started = time.monotonic()
        held = self._held(state)
        self._join()
        self.check()
        threads = min(len(os.sched_getaffinity(0)), _MOST_THREADS)  # the other ranks wait meanwhile
        self._buffers = copy_to_host(held, self._buffers, self._note_refusal, threads=threads)
        blocking_s = time.monotonic() - started if self._background else None
        self._thread = DeviceThread(
            target=self._write, args=(self._buffers, progress, started, blocking_s), name="checkpoint"
        )
        self._thread.start()

    def wait(self, timeout_s: float) -> int | None:
        """Wait at most `timeout_s` for the save in progress.

        Return None if it is over, otherwise the bytes that were written so far. An error of the save is not
        raised here: `save` and `finish` raise it.
        """
        thread = self._thread
        if thread is not None:
            thread.join(timeout_s)
        is_over = thread is None or not thread.is_alive()
        return None if is_over else sum(file.size_bytes for file in self._files_in_write)

    def finish(self) -> None:
        """Wait for the save in progress. Raises the error of the last save if it was not committed."""
        self._join()
        if self._error is not None:
            raise self._error

    def check(self) -> None:
        """Raise the error of a background save if further saves would fail, too; otherwise costs nothing."""
        if self._error is None:
            return
        may_pass = isinstance(self._error, StorageError)  # any other error: this state can never be saved
        if not may_pass or isinstance(self._error, StaleWriter) or self._failures >= _FAILURES_IN_A_ROW:
            raise self._error

    def _write(self, state: State, progress: SaveProgress, started: float, blocking_s: float | None) -> None:
        try:
            time.sleep(0)  # training goes on first: a new thread holds the interpreter for up to 5 ms
            check_readable(state)
            name, size_bytes, left = self._writer.commit(self._files(state), progress)
        except Exception as error:  # noqa: BLE001  nothing catches it in a thread: `check` raises it in the loop
            self._error = error
            self._failures += 1
            self._on_failed(f"the checkpoint of step {progress.step} was not written: {error}")
            return
        self._error, self._failures, self._files_in_write = None, 0, []
        write_s = time.monotonic() - started
        self._on_saved(
            step=progress.step,
            name=str(name),
            bytes=size_bytes,
            blocking_s=write_s if blocking_s is None else blocking_s,
            write_s=write_s,
            reason=progress.reason,
        )
        if left is not None:
            self._on_failed(left)

    def _held(self, state: State) -> dict[str, Any]:
        """Return the part of the state that this rank copies and writes.

        Raises:
            JobError: a tensor is divided among the ranks.
        """

        def check(path: str, tensor: torch.Tensor) -> None:
            if is_divided(tensor):
                raise JobError(
                    f"{path} is a DTensor: each rank has a part of it, and a save writes what rank 0 has.\n"
                    "Save whole tensors, for example those of torch.distributed.checkpoint.state_dict."
                    "get_model_state_dict with full_state_dict=True, or use a task with train.strategy: fsdp."
                )

        map_state(state, check, "state")
        return state

    def _files(self, held: dict[str, Any]) -> dict[str, Callable[[Any], None]]:
        """Return for each file a function that writes it."""
        rest = {key: value for key, value in held.items() if key != "model"}
        files: dict[str, Callable[[Any], None]] = {TRAINING_FILE: partial(self._dump, rest)}
        return {MODEL_FILE: partial(self._dump, held["model"]), **files} if "model" in held else files

    def _dump(self, state: Any, file: Any) -> None:
        """Call torch.save; on a write error raise the original error instead of torch's RuntimeError."""
        self._files_in_write.append(file)
        try:
            torch.save(state, file)
        except RuntimeError as error:
            if isinstance(error.__context__, OSError | StorageError):
                raise error.__context__ from error
            raise

    def _join(self) -> None:
        if self._thread is not None:
            self._thread.join()
            self._thread = None


def load(checkpoint: Path) -> State:
    """Load the state of a verified checkpoint in a folder of this node, with tensors on the CPU.

    The tensors are mapped from the files: all ranks of a node share the pages, and a page is read when it is
    used. Writing to such a tensor copies the page, and changes no file. A tensor that is kept must be cloned:
    when another node has removed the file from a network file system, its pages can no longer be read.
    """
    state: State = _mapped(checkpoint / TRAINING_FILE)
    if (checkpoint / MODEL_FILE).exists():
        state["model"] = _mapped(checkpoint / MODEL_FILE)
    return state


def _mapped(file: Path) -> Any:
    return torch.load(file, map_location="cpu", weights_only=True, mmap=True)


def copy_to_host(
    state: Any,
    buffers: Any = None,
    refused: Callable[[str], None] = lambda reason: None,
    *,
    threads: int = 1,
) -> Any:
    """Copy nested dicts, lists and tuples, with every tensor on the CPU.

    Tensors of `buffers` (an earlier copy) are reused if path, shape and dtype are the same. Two views of one
    storage (tied weights) stay one tensor. CUDA tensors go to pinned memory; all copies are complete on
    return. `refused` is called with CUDA's reason if it does not pin the memory. `threads` is the number of
    threads that copy what is in host memory.
    """
    old: dict[str, torch.Tensor] = {}
    map_state(buffers, old.__setitem__)
    copy = _Copy(old)
    result = map_state(state, copy.of)
    copy.copy_in_memory(threads)
    if copy.from_cuda:
        torch.cuda.synchronize()
    if copy.pinned.refusal:
        refused(copy.pinned.refusal)
    return result


def bytes_of(state: Any) -> int:
    """Return the bytes of this rank's tensors in nested dicts, lists and tuples."""
    sizes: list[int] = []

    def add(path: str, tensor: torch.Tensor) -> None:
        sizes.append(local(tensor).nbytes)

    map_state(state, add)
    return sum(sizes)


class _Copy:
    """Copies tensors to the host, each once, into those of the same path in `old` if they fit."""

    def __init__(self, old: dict[str, torch.Tensor]) -> None:
        self.from_cuda = False
        self.pinned = PinnedMemory()
        self._in_memory: list[tuple[torch.Tensor, torch.Tensor]] = []  # to, from
        self._old = old
        self._copies: dict[tuple[Any, ...], torch.Tensor] = {}
        self._used: set[int] = set()

    def of(self, path: str, tensor: torch.Tensor) -> torch.Tensor:
        if tensor.is_meta:  # in another file
            return tensor
        tensor = tensor.detach()
        source = (tensor.device, tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype)
        if tensor.numel() and source in self._copies:
            return self._copies[source]
        buffer = self._old.get(path)
        fits = buffer is not None and (buffer.shape, buffer.dtype) == (tensor.shape, tensor.dtype)
        if buffer is None or not fits or id(buffer) in self._used:  # two sources must not share one buffer
            like = self.pinned.empty_like if tensor.is_cuda else partial(torch.empty_like, device="cpu")
            buffer = like(tensor)
        if tensor.is_cuda:
            buffer.copy_(tensor, non_blocking=True)
            self.from_cuda = True
        else:
            self._in_memory.append((buffer, tensor))
        self._used.add(id(buffer))
        self._copies[source] = buffer
        return buffer

    def copy_in_memory(self, threads: int) -> None:
        """Copy the tensors that are in host memory; each thread takes the next tensor.

        The threads of a torch operation wait for each other after every tensor: on cores shared with another
        save or job, that took ten times as long (benchmarks/saving.py). To start threads takes longer than to
        copy a few megabytes.
        """
        if sum(buffer.nbytes for buffer, _ in self._in_memory) < _FEW_BYTES:
            for buffer, tensor in self._in_memory:
                buffer.copy_(tensor)
            return
        left, of_torch = iter(self._in_memory), torch.get_num_threads()

        def copy_next(_: int) -> None:
            torch.set_num_threads(1)  # of an operation in this thread
            for buffer, tensor in left:
                buffer.copy_(tensor)

        try:
            with ThreadPoolExecutor(threads) as pool:
                list(pool.map(copy_next, range(threads)))
        finally:
            torch.set_num_threads(of_torch)
