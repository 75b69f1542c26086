"""The training loop: `train` reads from top to bottom, and is the same for one rank and several.

In: a task, its data and settings, and the Host of the rank, from worker/train.py. Out: a TrainResult; saves
and log lines go through the Host.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import torch

from clustertrain.training.data.sampling import MicroBatch, Position
from clustertrain.training.measured.step_watch import StepWatch
from clustertrain.training.memory_saves import MemorySaves, as_rank_0_has_it
from clustertrain.training.model.building import exchange_if
from clustertrain.training.preparing import Prepared
from clustertrain.training.ranks.consistency import check_same_weights
from clustertrain.training.ranks.distributed import RankInfo, StopLine
from clustertrain.training.ranks.host import Host
from clustertrain.training.ranks.rng import derive_seed, seed_all
from clustertrain.training.sanity import first_of, settle_buckets, try_task
from clustertrain.training.saving import save_on_all_ranks
from clustertrain.training.settings import TrainSettings
from clustertrain.training.step.running_loss import check_weights
from clustertrain.training.task import Task
from clustertrain.training.task_errors import check_loss, refusing_loss
from clustertrain.training.training_state import TrainingState
from clustertrain.training.values import Batch, State


@dataclass(frozen=True)
class TrainResult:
    """The result of a run."""

    step: int  # optimizer steps done
    epoch: int  # epochs completed
    metrics: Mapping[str, float]  # of the last evaluation; without one, the last loss
    finished: bool  # False: stopped by request
    early_stop: str = ""  # why it finished before its last step, in three lines
    skipped_steps: int | None = None  # since the start of the run, by the loss scaler, or None without one


def train(
    task: Task, settings: TrainSettings, rank_info: RankInfo, run: Host, data: Mapping[str, Path]
) -> TrainResult:
    """Train to the end, or until a stop request. All ranks call it, in their process group.

    Raises:
        JobError: settings, task and data are inconsistent.
        NonFiniteLoss: on all ranks, before anything of that step is saved.
        NonFiniteWeights: on all ranks, when a save is due.
        WeightsDiverged: on all ranks, when they are compared.
    """
    saved = run.restore()
    start = Position.of(saved)
    run.phase("first_step", start.step)
    prepared = Prepared(task, settings, rank_info, data, saved=saved, note=partial(_note, run, start))
    scaler = prepared.precision.scaler
    position = prepared.order.settle(start)
    if saved is not None and prepared.is_over(position):
        run.finish()
        scaler.load(saved["scaler"])
        why = prepared.why_early(position)
        return TrainResult(start.step, start.epoch, saved["metrics"], True, why, scaler.skipped_steps)
    loop = _Loop(run, prepared)
    with closing(iter(prepared.batches)) as batches:  # type: ignore[type-var]  # Loader.__iter__ is a generator
        first = first_of(prepared, batches)
        loop.begin(first[1], saved)
        saved = None  # every rank has read the whole checkpoint into host memory
        if settings.sanity:
            loop.try_task(first[1])
        finished = loop.steps(chain([first], batches))
    end = loop.position
    run.phase("save", end.step)
    run.finish()
    loop.watch.profile.finish()  # when the checkpoint is safe: it may take a while
    why = prepared.why_early(end)
    return TrainResult(end.step, end.epoch, loop.state.metrics, finished, why, scaler.skipped_steps)


def _note(run: Host, start: Position, text: str) -> None:
    """Log a line about the data on rank 0."""
    if run.rank == 0:
        run.log({"kind": "note", "step": start.step, "epoch": start.epoch, "text": text})


@dataclass
class _Loop:
    """The steps of a rank, and what is done between two of them: log, evaluate, save."""

    run: Host
    prepared: Prepared

    def __post_init__(self) -> None:
        prepared = self.prepared
        self.task, self.settings, self.rank_info = prepared.task, prepared.settings, prepared.rank_info
        self.model, self.wrapped, self.awaited = prepared.model, prepared.wrapped, prepared.awaited
        self.precision, self.optimization = prepared.precision, prepared.optimization
        self.order, self.evaluation = prepared.order, prepared.evaluation
        self.early_stopping, self.state = prepared.early_stopping, TrainingState(prepared)
        self.meter, self.counts = self.state.meter, self.state.counts
        self.watch = StepWatch(self.task, self.rank_info, self.order, self.run.profile, log=self._log)
        self.line = StopLine(self.rank_info, self.run.requests, self.settings.save_every.minutes)
        # Any step may take minutes longer, perhaps on one rank for which the others wait: to compile for a
        # new shape, write a profile, call on_step, or read from a source that does not answer at once.
        has_callback = type(self.task).on_step is not Task.on_step
        self.is_regular = not (
            self.settings.compile or self.settings.profile or has_callback or self.order.is_stream
        )
        every, note = self.settings.memory_every, partial(self._log, "note")
        self.memory = MemorySaves(every, self.run, self.rank_info, self.meter, note)

    @property
    def position(self) -> Position:
        """After the last finished step."""
        return self.state.position

    def begin(self, batch: Batch, saved: State | None) -> None:
        """Try the first batch, load a saved state, and seed every rank's random numbers."""
        prepared = self.prepared
        if self.rank_info.world_size > 1:
            settle_buckets(prepared, batch)
        warnings = [*prepared.warnings]
        if prepared.split is not None:
            warnings.append(prepared.split.check(batch, self.position, self.rank_info))
        for kind, texts in (("warning", warnings), ("note", prepared.notes)):
            for each in filter(None, texts):
                self._log(kind, text=each)
        step = self.position.step
        seed_all(derive_seed(self.settings.seed, step), self.rank_info.rank)
        if saved is not None:
            self.state.load(saved, self.run.fill, self._log)
            return
        self._log("note", text=self.optimization.lr_text(step))
        for kind, text in self.optimization.schedule_lines() if self.rank_info.rank == 0 else ():
            self._log(kind, text=text)

    def try_task(self, batch: Batch) -> None:
        """Find the mistakes of a task that has never trained in this form."""
        if warning := try_task(self.prepared, batch)[1]:
            self._log("warning", text=warning)

    def steps(self, batches: Iterable[tuple[MicroBatch, Batch]]) -> bool:
        """Train on `batches`, and return False if a stop was requested before their end."""
        self.state.of_task.remember()
        self.meter.start_clock()
        if self.state.evaluation_due:  # as an uninterrupted run did
            self.state.evaluation_due = False
            measured = self._evaluate(is_due=True)
            if self.early_stopping.text:
                self._save("end", measured)
                return True
            if self.settings.keep_best and (reason := self._save_due()):
                self._save(reason, measured)  # the best one is found by its metrics
        loss: torch.Tensor | float = 0.0  # of the step, over this rank's samples
        first_step = self.position.step + 1
        for key, batch in self.watch.batches(batches):
            is_first = self.position.step < first_step
            with refusing_loss(self.task, batch) if is_first else nullcontext():
                loss = loss + self._accumulate(key, batch)
            if self.settings.records_samples:
                self._record_samples(key)
            if key.after is None:
                continue
            loss, factor = self.counts.end_step(key.after.step, loss)
            self.optimization.step(key.after.step, factor, ends_epoch=key.after.offset == 0)
            self.state.position = key.after
            self.watch.step_done(self.position.step)
            is_usual = self.is_regular and self.position.offset != 0 and self.position.step != first_step
            phase = "usual_step" if is_usual else "step"
            self.run.phase(phase, self.position.step)
            self._call_back(loss)
            loss = 0.0
            if self.position.step == first_step:  # the optimizer has its state now
                self.state.of_task.remember()
                tensors = self.state.tensors()
                self.run.reserve(tensors)  # the first save then waits no longer than the others
                self.memory.begin(first_step, tensors)
            if self._between_steps():
                break
            if self.memory.due(self.position.step):
                self._save_in_memory(phase)
            self.line.broadcast()
        self.line.close()
        return self.prepared.is_over(self.position)

    def _record_samples(self, key: MicroBatch) -> None:
        """Log which samples this rank has used in a pass. The seed of their fetch names the pass."""
        used = f"{derive_seed(key.seed, *key.ids):016x}"
        record = {"step": self.position.step + 1, "epoch": key.epoch, "of_pass": key.seed, "ids": used}
        self.run.log({"kind": "samples", **record})

    def _accumulate(self, key: MicroBatch, batch: Batch) -> torch.Tensor:
        """Run one forward and backward pass; ranks exchange gradients only in the last one of a step.

        Returns:
            the share of this rank's loss of the step, a scalar on the device; of a sum, sum / K.
        """
        last = key.after is not None
        with exchange_if(last, self.wrapped, self.settings):
            with self.precision.autocast(), self.awaited.naming():
                returned = self.task.loss(self.wrapped, batch)
            check_loss(self.task, returned)
            loss, share, count = self.counts.take(returned, key.share, last=last)
            self.watch.backward(loss, exchanges=last)
            self.precision.scaler.backward(share)
        if last:
            self.awaited.check()
        self.meter.not_finite.look(loss, lambda model: self.task.loss(model, batch))
        self.meter.add(self.position.step + 1, loss, len(key.ids), count)
        return share.detach().reshape(())

    def _call_back(self, loss: torch.Tensor | float) -> None:
        metrics = {"loss": loss, "lr": self.optimization.lr}
        if self.optimization.grad_norm is not None:
            metrics["grad_norm"] = self.optimization.grad_norm
        with self._naming("on_step"):
            self.task.on_step(self.position.step, metrics)
        if self.position.offset == 0:
            with self._naming("on_epoch"):
                self.task.on_epoch(self.position.epoch)

    @contextmanager
    def _naming(self, callback: str) -> Iterator[None]:
        """Add the name of a callback to an exception, which keeps its type."""
        try:
            yield
            self.optimization.check_groups(self.position.step)
        except Exception as error:
            error.add_note(
                f"Raised in {type(self.task).__name__}.{callback}() after step {self.position.step}."
            )
            raise

    def _between_steps(self) -> bool:
        """Log, evaluate and save if due, on all ranks after the same step.

        Returns:
            True if the run ends here.
        """
        ended = self.order.done(self.position)
        requests, step = self.line.read(), self.position.step
        if ended or step % self.settings.log_every == 0:
            self._log_training()
        measured: dict[str, float] = {}
        if self._due(self.settings.compare_weights_every or None, None):
            check_same_weights(self.model, self.optimization.optimizer, step, self.rank_info)
        due = self._due(self.settings.eval_every.steps, self.settings.eval_every.epochs)
        self.state.evaluation_due = due and requests.stop and not ended
        if ended or (due and not requests.stop):
            measured = self._evaluate(is_due=due)
            ended = ended or bool(self.early_stopping.text)
        asked = {"end": ended, "stop": requests.stop, "save": requests.save}
        reason = next(filter(asked.get, asked), self._save_due())
        if reason := reason or "minutes" * requests.save_timer:
            self._save(reason, measured)
        return ended or requests.stop

    def _save_due(self) -> str:
        """Return why this step is saved, or empty if it is not."""
        every = self.settings.save_every
        if self._due(every.steps, None):
            return "steps"
        return "epochs" if self._due(None, every.epochs) else ""

    def _due(self, every_steps: int | None, every_epochs: int | None) -> bool:
        epoch_ended = self.position.offset == 0
        return bool(
            (every_steps and self.position.step % every_steps == 0)
            or (every_epochs and epoch_ended and self.position.epoch % every_epochs == 0)
        )

    def _log_training(self) -> None:
        loss, samples_per_s = self.meter.read()
        record = {"loss": loss, "lr": self.optimization.lr, **self.watch.figures(samples_per_s)}
        if self.evaluation is None:
            self.state.metrics = {"loss": loss}
        record |= self.precision.scaler.figures()
        if self.optimization.grad_norm is not None:
            record["grad_norm"] = self.optimization.grad_norm.item()
        record |= {"step": self.position.step, "epoch": self.position.epoch}
        record["total_steps"] = self.order.total_steps
        record["epoch_progress"] = self.position.offset / self.order.epoch_samples
        self._log("train", **record)

    def _evaluate(self, *, is_due: bool) -> dict[str, float]:
        """Evaluate, if there is evaluation data, and return the values, for the checkpoint of this step.

        Args:
            is_due: False for the extra evaluation at the end of a run, which early stopping does not count.
        """
        if self.evaluation is None:
            return {}
        self.meter.flush()
        step = self.position.step
        if is_due and not self.order.done(self.position):  # a start that resumes here begins with it
            self.state.evaluation_due = True
        with self.meter.paused():
            self.run.phase("evaluation", step)
            metrics = self.evaluation.run(step)
            self.state.metrics, self.state.evaluation_due = metrics, False
            self._log("eval", **self.state.metrics)
            if images := self.evaluation.images(step):
                self.run.images(step, images)
            with self._naming("on_eval"):
                self.task.on_eval(step, dict(self.state.metrics))  # which the callback may change
            if is_due:
                self.early_stopping.add(step, self.state.metrics)
                if self.early_stopping.text and not self.order.done(self.position):
                    self._log("note", text=self.early_stopping.text)
            self.run.phase("step", step)
        return self.state.metrics

    def _save(self, reason: str, measured: dict[str, float]) -> None:
        """Save, if all losses and weights are finite, and the weights of all ranks equal.

        It is called on all ranks.
        """
        self.meter.flush()
        check_weights(self.model, self.position.step)
        if self.settings.compare_weights_every is None:
            check_same_weights(self.model, self.optimization.optimizer, self.position.step, self.rank_info)
        if self.rank_info.rank == 0 and (lost := self.state.of_task.lost()):
            self._log("warning", text=lost)
        with self.meter.paused():
            progress = self.state.progress(reason, measured)
            save_on_all_ranks(self.run, self.rank_info, self.state.whole(), progress)
            self.line.saved()

    def _save_in_memory(self, phase: str) -> None:
        """Save in the memory of the nodes, without the checks of a save in the storage.

        A usual step lasts no longer because of it.
        """
        self.run.phase("save", self.position.step)
        with self.memory.copying(self.position.step):
            state = as_rank_0_has_it(self.state.whole(), self.model, self.rank_info)
            self.run.save_in_memory(state, self.state.progress("memory", {}))
        self.run.phase(phase, self.position.step)

    def _log(self, kind: str, **fields: Any) -> None:
        if self.rank_info.rank == 0:
            self.run.log({"kind": kind, "step": self.position.step, "epoch": self.position.epoch, **fields})
