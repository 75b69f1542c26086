"""The last step of the ranks in the memory of their nodes, from which the next start of the group resumes.

While training, each rank keeps its own part in a file in /dev/shm. When a rank has died, the controller asks
the others to save the state that they share (`offered`, then `save`), before it ends them; the next start
resumes from it (`kept_on_node`, then `restore`). The state is a checkpoint in another folder, in the same
format, and the fence is in its name. With FSDP the own parts are the whole state, and nothing is saved.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import time
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from clustertrain import variables
from clustertrain.checkpoints.manifest import MODEL_FILE, CheckpointDamaged, CheckpointName, Shelf, names
from clustertrain.checkpoints.read import verify
from clustertrain.checkpoints.retention import Retention
from clustertrain.checkpoints.save import TRAINING_FILE, load
from clustertrain.checkpoints.write import Fenced, Writer
from clustertrain.node.limits import Limits, read_limits
from clustertrain.storage import Location, open_store
from clustertrain.training.copied_step import fill, is_whole, whole_state
from clustertrain.training.last_step import parts_in, with_own_part
from clustertrain.training.ranks.dtensors import map_state
from clustertrain.training.ranks.host import KeptStep
from clustertrain.worker.restart_plan import RestartPlan

SETTLES_S = 2.0  # a rank completes its step, if it can
BUSY_S = 8.0  # and more on a busy node; a restart waits so long only for a rank that is stuck
_POLL_S = 0.002
_SHARE = 4  # of the available memory: a state that needs more than 1 / 4 of it is not written


KeptFile = tuple[str, int]
"""A file in the memory of a node, and the mark of the state that it is of: own parts of two are in one."""


@dataclass(frozen=True)
class KeptState:
    """A verified state in the memory of a node.

    Attributes:
        mark: see training's LastStep.
        saved_step: the last step whose save had begun.
        due: whether the work between two steps is due, and whether its evaluation is.
        files: those of the state without the own parts of the ranks.
    """

    name: CheckpointName
    mark: int
    epoch: int
    world_size: int
    saved_step: int
    due: tuple[bool, bool]
    files: frozenset[str] = frozenset()

    def needed_by(self, ranks: Iterable[int]) -> set[KeptFile]:
        """What these ranks resume from."""
        own_parts = (f"{self.name.attempt}.{self.name.restart}/own-{rank}" for rank in ranks)
        return {(file, self.mark) for file in (*self.files, *own_parts)}


@dataclass(frozen=True)
class KeptOnNode:
    """What the memory of a node has of all earlier starts in this attempt.

    Attributes:
        states: those that verify.
        sizes_bytes: of the files of these states and of the complete own parts.
    """

    states: frozenset[KeptState]
    sizes_bytes: Mapping[KeptFile, int]


class _Kept:
    """The last step of this process."""

    plan: RestartPlan
    last_step: KeptStep | None = None


_kept = _Kept()


def _memory() -> Path | None:
    """The private folder in /dev/shm of this start on this node, or None if it has none."""
    folder = Path(os.environ.get(variables.MEMORY_DIR) or "/nonexistent")
    with suppress(OSError):
        found = folder.lstat()
        if found.st_uid == os.getuid() and found.st_mode & 0o777 == 0o700:  # a pod adds the setgid bit
            return folder
    return None


def _shelf(folder: Path, attempt: int, restart: int) -> Shelf:
    """The states and the own parts of one start of the group."""
    return Shelf(open_store(Location(str(folder))), f"{attempt}.{restart}")


def _own_part(shelf: Shelf, rank: int) -> Path:
    return Path(shelf.uri(f"own-{rank}"))


def keep(plan: RestartPlan, rank: int, last_step: KeptStep) -> None:
    """Keep the last step of this rank from now on, if the node has memory for it."""
    if (folder := _memory()) is None:
        return
    shelf = _shelf(folder, plan.ref.attempt, plan.restart)
    room_bytes = _room_bytes(read_limits()) / int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    try:
        Path(str(shelf)).mkdir(exist_ok=True)
    except OSError:
        return
    last_step.open(_own_part(shelf, rank), room_bytes)
    if not last_step.is_whole:
        _kept.plan, _kept.last_step = plan, last_step


def forget_earlier(plan: RestartPlan) -> None:
    """Free the memory of the earlier starts; all ranks have read what they resumed from."""
    for folder, restart in _starts(plan.ref.attempt):
        if restart < plan.restart:
            shutil.rmtree(folder / f"{plan.ref.attempt}.{restart}", ignore_errors=True)


def _starts(attempt: int) -> Iterator[tuple[Path, int]]:
    if (folder := _memory()) is not None:
        for path in folder.glob(f"{attempt}.*"):
            yield folder, int(path.suffix[1:])


# -- after a rank has died: called by the controller in the others, while their training may still run ----


def offered() -> tuple[int, float] | None:
    """The mark of the state that this rank can save, and how long that may take in seconds."""
    found = _settled()
    if found is None:
        return None
    mark, _, state = found
    size_bytes = sum(leaf.nbytes for leaf in tree_leaves(state) if isinstance(leaf, torch.Tensor))
    if size_bytes > _room_bytes(read_limits()):
        return None
    return mark, SETTLES_S + BUSY_S + size_bytes / 5e8


def _settled() -> tuple[int, Any, dict[str, Any]] | None:
    """The state of the last step, as soon as it does not change."""
    last_step, ends = _kept.last_step, time.monotonic() + SETTLES_S
    while last_step is not None and time.monotonic() < ends:
        if (found := last_step.state()) is not None:
            return found
        time.sleep(_POLL_S)
    return None


def save() -> None:
    """Save the state of the last step, without the own parts of the ranks, on this node."""
    folder, last_step, plan = _memory(), _kept.last_step, _kept.plan
    while folder is not None and last_step is not None and (found := _settled()) is not None:
        mark, progress, state = found
        writer = Writer(
            shelf=_shelf(folder, plan.ref.attempt, plan.restart),
            attempt=plan.ref.attempt,
            restart=plan.restart,
            job_sha256="",
            versions={},
            retention=Retention(keep_last=2),
            still_newest=partial(last_step.is_still, mark),  # so that what was written is of one step
        )
        rest = {key: value for key, value in state.items() if key != "model"}
        parts = {MODEL_FILE: state["model"], TRAINING_FILE: rest}
        with suppress(Fenced):  # it went on to the next step
            plain = map_state(parts, lambda path, tensor: tensor)
            writer.commit({file: partial(torch.save, part) for file, part in plain.items()}, progress)
            return


def save_before_end() -> None:
    """Save the last step because the watchdog ends this rank, unless another rank of the node has saved the
    same; wait for one that does, because the first rank that ends ends them all."""
    folder, offer = _memory(), offered()
    if folder is None or offer is None:
        return
    path = Path(str(_shelf(folder, _kept.plan.ref.attempt, _kept.plan.restart)), "saved")
    with path.open("a+") as saved:
        fcntl.flock(saved, fcntl.LOCK_EX)
        saved.seek(0)
        if str(offer[0]) not in saved.read().split():
            save()
            print(offer[0], file=saved)


def _room_bytes(limits: Limits) -> float:
    """The most that a state may take of the node's memory."""
    memory = [limits.available_bytes or 0]
    memory += [c.limit_bytes - (c.used_bytes or 0) for c in limits.cgroups if c.limit_bytes is not None]
    shm = (limits.shm_bytes or 0) - (limits.shm_used_bytes or 0)
    return min(min(memory) / _SHARE, shm / 2)  # the loaders of the next start need some of it, too


# -- before the next start ---------------------------------------------------------------------------------


def kept_on_node(attempt: int) -> KeptOnNode:
    states, sizes_bytes = set[KeptState](), dict[KeptFile, int]()
    for folder, restart in _starts(attempt):
        shelf = _shelf(folder, attempt, restart)
        for name in names(shelf):
            with suppress(CheckpointDamaged, OSError, ValueError, KeyError):
                verify(shelf, name)
                saved = Path(shelf.uri(name))
                found = {f"{shelf.key}/{name}/{each.name}": each.stat().st_size for each in saved.iterdir()}
                state = _kept_state(name, load(saved), found)
                states.add(state)
                sizes_bytes |= {(file, state.mark): size for file, size in found.items()}
        files = [*Path(str(shelf)).glob("own-*")]
        with ThreadPoolExecutor() as pool:  # a checksum takes a second for each GB, and a node may have many
            for file, own_parts in zip(files, pool.map(_own_parts, files), strict=True):
                for mark, whole in own_parts.items():
                    if whole is not None:
                        states.add(_kept_state(CheckpointName(mark // 2, attempt, restart), whole))
                    sizes_bytes[f"{shelf.key}/{file.name}", mark] = file.stat().st_size
    return KeptOnNode(frozenset(states), sizes_bytes)


def _own_parts(file: Path) -> dict[int, dict[str, Any] | None]:
    """The complete own parts in a file, by their marks: the state if it is whole, or None."""
    found = dict[int, dict[str, Any] | None]()
    with suppress(RuntimeError, OSError, EOFError, UnpicklingError):  # a copy of it was cut
        for mark, own in parts_in(file).items():
            whole = whole_state(own, 1) if is_whole(own) else None
            if whole is not None or not is_whole(own):
                found[mark] = whole
    return found


def _kept_state(name: CheckpointName, state: dict[str, Any], files: Iterable[str] = ()) -> KeptState:
    return KeptState(
        name=name,
        mark=state["mark"],
        epoch=state["epoch"],
        world_size=state["world_size"],
        saved_step=state["saved_step"],
        due=(state["between_due"], state["evaluation_due"]),
        files=frozenset(files),
    )


def newest_usable(
    states: Iterable[KeptState], world_size: int, committed_step: int, *, keeps_best: bool
) -> KeptState | None:
    """The newest of the states that is newer than the checkpoint of `committed_step` in the storage.

    Args:
        keeps_best: a checkpoint is kept as the best. A save that was lost may have been that one: then it is
            repeated.
    """
    usable = [
        state
        for state in states
        if state.name.step > committed_step
        and state.world_size == world_size
        and not (keeps_best and state.saved_step > committed_step)
    ]
    return max(usable, key=lambda state: (state.name, state.mark), default=None)


# -- to a node that lacks a state or an own part: the controller asks another node and this one -----------


def read_piece(file: str, offset: int, length: int) -> bytes:
    """A part of a file in the memory of this node."""
    with _in_memory(file).open("rb") as stream:
        stream.seek(offset)
        return stream.read(length)


def make_room(sizes_bytes: Mapping[str, int]) -> bool:
    """Prepare to receive files. Returns whether this node has the memory."""
    for file in sizes_bytes:
        path = _in_memory(file)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
    return sum(sizes_bytes.values()) <= _room_bytes(read_limits())


def write_piece(file: str, piece: bytes) -> None:
    """Append to a file in the memory of this node."""
    with _in_memory(file).open("ab") as stream:
        stream.write(piece)


def _in_memory(file: str) -> Path:
    folder = _memory()
    if folder is None:
        raise FileNotFoundError(file)
    return folder / file


def restore(plan: RestartPlan, rank: int, world_size: int) -> dict[str, Any]:
    """The state of the plan, with the own part of this rank."""
    shelf, own = _planned(plan, rank)
    state = whole_state(own, world_size) if is_whole(own) else None
    if state is not None:
        return state
    return with_own_part(load(Path(shelf.uri(plan.checkpoint or ""))), own, world_size)


def fill_planned(plan: RestartPlan, rank: int, tensors: dict[str, torch.Tensor]) -> None:
    """Copy this rank's parts of divided tensors, by their paths in the state of the plan."""
    fill(_planned(plan, rank)[1], tensors)


def _planned(plan: RestartPlan, rank: int) -> tuple[Shelf, dict[str, Any]]:
    """The folder of the plan's state, and the own part of this rank."""
    name, folder = CheckpointName.parse(plan.checkpoint or ""), _memory()
    if name is None or folder is None:
        raise KeyError(plan.checkpoint)
    shelf = _shelf(folder, name.attempt, name.restart)
    return shelf, parts_in(_own_part(shelf, rank))[plan.kept_mark]
