"""The session of a script, or of a function with its own loop: checkpoints, logs and stop requests.

Both have the names of this module. Elsewhere, for example under torchrun, `log` does nothing, `data` is
empty, `checkpoint_dir` is ./checkpoints, and `stop_requested()` is False:

from clustertrain import session

for step in range(start, 1001):
    ...
    session.log(step=step, loss=loss.item(), total_steps=1000)
    if session.stop_requested():
        torch.save(..., session.checkpoint_dir / "last.pt")
        break

A function may let clustertrain save and resume, with the session itself:

def train(config):
    s = session.current()
    model, optimizer = ...
    start = 0
    if (state := s.restore()) is not None:
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        start = state["step"]
    for step in range(start + 1, 1001):
        ...
        s.log(step=step, loss=loss.item())
        requests = s.step_done(step)
        if requests.save or requests.stop:
            s.save(step=step, state={"model": model.state_dict(), "optimizer": optimizer.state_dict()})
        if requests.stop:
            return
"""

from __future__ import annotations

import mmap
import operator
import os
import sys
from collections.abc import Mapping
from difflib import get_close_matches
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from clustertrain.errors import JobError
from clustertrain.node import variables
from clustertrain.run_files.streams.event_log import EventLog
from clustertrain.training.ranks.host import Host, Requests, SaveProgress

if TYPE_CHECKING:
    from clustertrain.training.ranks.distributed import RankInfo
    from clustertrain.training.settings import SaveEvery
    from clustertrain.training.values import State

    data: Mapping[str, Path]
    checkpoint_dir: Path | str

_SLOW_STEP_S = 1.0
Kind = Literal["train", "eval"]


class Session:
    """One rank's view of the run. Its attributes stay the same until the function returns.

    Attributes:
        rank: int, 0 to world_size - 1, unique in the run. Rank 0 writes logs and saves checkpoints.
        local_rank: int, from 0, unique among the ranks of one node.
        world_size: int, the number of ranks, which is the number of workers. The process group exists, also
            with one rank: NCCL on GPUs, gloo on CPUs.
        device: torch.device, the GPU of this rank, such as cuda:1, which is also the current one; cpu without
            `resources.gpus_per_worker`. Move the model and each batch to it.
        data: mapping of the names under the job's `data:` to a pathlib.Path on this node: of a file, or of a
            folder with `extract: true`.
        args: mapping, the job's `args`; the function gets the same values as its argument.
        checkpoint_dir: pathlib.Path, a folder of the run for files of the function's own, beside those of
            `save`; a str with its URI if the storage is S3.
        rank_info: rank, local_rank, world_size and device in one object.
    """

    def __init__(
        self,
        *,
        run: Host,
        rank_info: RankInfo,
        data: Mapping[str, Path],
        args: Mapping[str, Any],
        save_every: SaveEvery,
        keep_best: str | None = None,
        checkpoint_dir: Path | str = Path("checkpoints"),
    ) -> None:
        from clustertrain.training.ranks.distributed import StopLine

        self.rank_info = rank_info
        self.rank = rank_info.rank
        self.local_rank = rank_info.local_rank
        self.world_size = rank_info.world_size
        self.device = rank_info.device
        self.data = data
        self.args = args
        self.checkpoint_dir = checkpoint_dir
        self._run = run
        self._step = 0
        self._save_every_steps = save_every.steps
        self._keep_best = keep_best  # the metric, until a save has given it: then its name is right
        self._stopped = False
        self._line = StopLine(rank_info, run.requests, save_every.minutes, _SLOW_STEP_S)

    @property
    def stopped(self) -> bool:
        """Whether `step_done` or `stop_requested` has returned a stop request."""
        return self._stopped

    def restore(self) -> State | None:
        """Return the state of the newest verified checkpoint: the dict given to `save`, and its `step`.

        Tensors are on the CPU. None if there is no checkpoint. This also restores the random states of this
        rank if the world size is the same. With GPUs, tensors above 4 kB are mapped from the checkpoint's
        file, which all ranks of a node share: move them to the GPU, or clone what you keep on the CPU.
        """
        from clustertrain.training.ranks.rng import restore_rng
        from clustertrain.training.saving import owned

        state = self._run.restore()
        if state is None:
            return None
        rng = state.pop("rng_of_ranks")  # uint8 (world size, bytes)
        if len(rng) == self.world_size:
            restore_rng(rng[self.rank], self.device)
        restored: dict[str, Any] = owned(state, self.device)
        return restored

    def step_done(self, step: int) -> Requests:
        """Report that `step` is finished; every rank calls it, and gets the same answer.

        It waits neither for the GPU nor for a rank.

        `save` is true if the job's `checkpoint.every` is due or a save was requested. `stop` is true if a
        stop was requested: save, then return. With several ranks a request counts one step later, unless the
        steps take more than a second.
        """
        self._step = step
        self._run.phase("step", step)
        stop, save, timer = self._line.read()
        due = self._save_every_steps is not None and step % self._save_every_steps == 0
        self._stopped |= stop
        save |= timer or due
        if save:
            self._line.saved()  # the clock does not ask again before the save
        self._line.broadcast()
        return Requests(stop=stop, save=save)

    def stop_requested(self) -> bool:
        """Return whether a stop was requested: save, then return.

        For a loop that does not call `step_done`: every rank calls it after the same step, waits for the
        others, and gets the same answer.
        """
        if not self._stopped:
            self._run.phase("step", self._step)
            self._stopped = self._line.is_stop_requested()
        return self._stopped

    def end(self) -> None:
        """End the exchange of requests, when the function has returned; the worker calls it on every rank."""
        import torch.distributed as dist

        if dist.is_initialized():  # the function may have destroyed the group
            self._line.close()

    def save(self, *, step: int, state: State, metrics: Mapping[str, float] | None = None) -> None:
        """Save a checkpoint; every rank calls it with the same `state`, and rank 0's is saved.

        `state` contains tensors, numbers, strings, and dicts and lists of them, because it is loaded with
        `weights_only=True`. It is copied before this returns, and written in the background. A step is saved
        once, after its evaluation: a second save of it is not written.

        Raises:
            JobError: a metric is not a number, or a tensor of one number; or the job's
                `checkpoint.keep_best.metric` is none of them.
        """
        from clustertrain.training.ranks.rng import gather_rng
        from clustertrain.training.saving import save_on_all_ranks

        step = operator.index(step)  # of numpy or torch, too, which neither the manifest nor a restore takes
        progress = SaveProgress(
            step=step,
            epoch=0,
            samples_seen=0,
            world_size=self.world_size,
            metrics=_numbers(metrics or {}),
            reason="stop" if self._stopped else "steps",
        )
        self._check_best(progress)
        self._line.saved()
        whole = {**state, "step": step, "rng_of_ranks": gather_rng(self.rank_info)}
        save_on_all_ranks(self._run, self.rank_info, whole, progress)

    def _check_best(self, progress: SaveProgress) -> None:
        """Refuse the first metrics without the metric of `keep_best`, which may be misspelt.

        Otherwise the best checkpoint would be removed. A last save is not refused, and rank 0's metrics alone
        are saved.
        """
        given, metric = progress.metrics, self._keep_best
        if metric is None or not given or self.rank != 0:
            return
        if metric in given:
            self._keep_best = None
        elif progress.reason != "stop":
            near = get_close_matches(metric, given, n=1)
            remedy = f"Did you mean {near[0]!r}?" if near else f"Use one of them, or save {metric!r} as well."
            raise JobError(
                f"checkpoint.keep_best.metric is {metric!r}, but session.save at step {progress.step} has "
                f"the metrics: {', '.join(given)}.\n{remedy}"
            )

    def log(self, *, step: int, loss: float | None = None, kind: Kind = "train", **metrics: float) -> None:
        """Write metrics of a step: numbers, or tensors and arrays of one element.

        Only rank 0 writes; the calls of the other ranks do nothing. `kind`: the metrics are of training, or
        of an evaluation. With `total_steps`, `status` and the terminal show the time that is left.
        """
        record = _record(kind, step, loss, metrics)
        self._step = record["step"]
        if self.rank == 0:
            self._run.log(record)

    def print(self, *values: object) -> None:
        """Print on rank 0 only, into the log of that rank."""
        if self.rank == 0:
            print(*values, flush=True)


def _record(kind: str, step: int, loss: float | None, metrics: Mapping[str, Any]) -> dict[str, Any]:
    """Return a line of the run's metrics."""
    if kind not in ("train", "eval"):
        raise JobError(f'session.log got kind={kind!r}.\nIt is "train" or "eval".')
    record = {"kind": kind, "step": operator.index(step), "epoch": 0, "loss": loss, **metrics}
    return {k: v.item() if hasattr(v, "item") else v for k, v in record.items()}


def _numbers(metrics: Mapping[str, Any]) -> dict[str, float]:
    numbers = {}
    for name, value in metrics.items():
        try:
            numbers[str(name)] = float(value)
        except (TypeError, ValueError, OverflowError, RuntimeError) as error:  # the last is of a tensor
            raise JobError(
                f"session.save got metrics[{name!r}] = {str(value)[:60]!r}, which is not a number.\n"
                "Give numbers, or tensors of one element; other values belong into `state`."
            ) from error
    return numbers


class ScriptSession:
    """The session of a script's process. Outside clustertrain it writes nothing and has nothing."""

    def __init__(self) -> None:
        path = os.environ.get(variables.METRICS)
        self._metrics = EventLog(Path(path)) if path else None

    @property
    def data(self) -> Mapping[str, Path]:
        """The paths of the job's data sets on this node, by their names under `data:`."""
        prefix = variables.DATA_PREFIX
        found = ((name, path) for name, path in os.environ.items() if name.startswith(prefix))
        return {name.removeprefix(prefix).lower(): Path(path) for name, path in found}

    @cached_property
    def checkpoint_dir(self) -> Path | str:
        """The folder for the script's checkpoints, which exists; the URI if the storage is S3."""
        folder = os.environ.get(variables.CHECKPOINT_DIR, "checkpoints")
        if "://" in folder:
            return folder
        Path(folder).mkdir(parents=True, exist_ok=True)
        return Path(folder)

    def log(self, *, step: int, loss: float | None = None, kind: Kind = "train", **metrics: float) -> None:
        """Write metrics of a step, as the method of `Session` does."""
        group = _process_group()
        if self._metrics is not None and (group is None or group.get_rank() == 0):
            self._metrics.write(**_record(kind, step, loss, metrics))

    def stop_requested(self) -> bool:
        """Return whether a stop was requested, as the method of `Session` does.

        The ranks agree in the script's own process group, if there is one.
        """
        page = self._page
        if page is None or page[TOLD]:
            return page is not None
        page[ASKED] = True
        page[TOLD] = _largest_of_ranks(page[REQUESTED])
        return bool(page[TOLD])

    @cached_property
    def _page(self) -> mmap.mmap | None:
        if (path := os.environ.get(variables.REQUESTS)) is None:
            return None
        with Path(path).open("r+b") as file:
            return mmap.mmap(file.fileno(), PAGE_BYTES)

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(
            f"session.current().{name}: a script has log, data, checkpoint_dir and stop_requested.\n"
            "The others are of a function that a job file names (function: module:train), under "
            "`clustertrain run`."
        )


REQUESTED, ASKED, TOLD = range(3)
PAGE_BYTES = 3
"""The page that a rank shares with its script (worker/scripts/request_page.py): whether a stop is requested,
whether the script has asked, and whether it was told so."""


_current: Session | ScriptSession | None = None


def current() -> Session | ScriptSession:
    """Return the session of this process: of the function, or else of a script, also outside a run."""
    global _current  # noqa: PLW0603  as below
    if _current is None:
        _current = ScriptSession()
    return _current


def start_session(session: Session) -> None:
    """Set the session of this process; the worker calls this before the user's function."""
    global _current  # noqa: PLW0603  a worker process has exactly one session
    _current = session


def log(*, step: int, loss: float | None = None, kind: Kind = "train", **metrics: float) -> None:
    """Write metrics of a step, as the method of the current session does."""
    current().log(step=step, loss=loss, kind=kind, **metrics)


def stop_requested() -> bool:
    """Return whether a stop was requested, as the method of the current session does."""
    return current().stop_requested()


if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        if name in ("data", "checkpoint_dir"):
            return getattr(current(), name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def _process_group() -> Any:
    """Return torch.distributed if this process has its default group; a script may do without torch."""
    dist = sys.modules.get("torch.distributed")
    return dist if dist is not None and dist.is_available() and dist.is_initialized() else None


def _largest_of_ranks(number: int) -> int:
    """Return the largest number of all ranks, which all call this."""
    group = _process_group()
    if group is None or group.get_world_size() == 1:
        return number
    import torch

    backends = str(group.get_backend_config())  # cuda:nccl, or cpu:gloo,cuda:nccl
    device = "cpu" if "cpu:" in backends else backends.partition(":")[0]
    of_ranks = torch.tensor(number, dtype=torch.int32, device=device)
    group.all_reduce(of_ranks, op=group.ReduceOp.MAX)
    return int(of_ranks)
