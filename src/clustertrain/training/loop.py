"""The training loop: `train` reads from top to bottom, and is the same for one rank and several."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from torch import nn

from clustertrain.training.data.loader_kinds import evaluated_part, loader_of, order_of
from clustertrain.training.data.sampling import BatchSizes, MicroBatch, Position, TrainOrder
from clustertrain.training.early_stop import EarlyStopping
from clustertrain.training.evaluation import Evaluation, check_reported
from clustertrain.training.measured.step_watch import StepWatch
from clustertrain.training.model.building import (
    autocast_of,
    exchange_if,
    load_datasets,
    load_weights,
    make_model,
    settle_buckets,
    shard,
    wrap,
)
from clustertrain.training.model.compiling import limit_recompiles
from clustertrain.training.model.restore_tensors import with_tensors
from clustertrain.training.model.unused_parameters import AwaitedGradients
from clustertrain.training.ranks.block_calls import BlockCalls
from clustertrain.training.ranks.consistency import check_same_model, check_same_weights
from clustertrain.training.ranks.distributed import RankInfo, StopLine
from clustertrain.training.ranks.host import Host, Requests, SaveProgress
from clustertrain.training.ranks.rng import derive_seed, gather_rng, restore_rng, seed_all
from clustertrain.training.saving import save_on_all_ranks
from clustertrain.training.settings import TrainSettings
from clustertrain.training.step.callbacks import call_after_evaluation, call_after_step
from clustertrain.training.step.kernels import kernels_in_use
from clustertrain.training.step.not_finite import NotFinite
from clustertrain.training.step.optimization import Optimization
from clustertrain.training.step.precision import Precision
from clustertrain.training.step.running_loss import Meter, check_weights
from clustertrain.training.task import Task, collate_of
from clustertrain.training.task_errors import check_loss


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
        ClusterError: the model is to be compiled, and the node has no compiler.
        NonFiniteLoss: on all ranks, before anything of that step is saved.
        NonFiniteWeights: on all ranks, when a save is due.
        WeightsDiverged: on all ranks, when they are compared.
    """
    state = run.restore()
    run.phase("first_step", Position.of(state).step)
    precision = Precision(autocast_of(settings, rank_info), rank_info.device)
    limit_recompiles(settings, note=partial(_note, run, Position.of(state)))
    seed_all(settings.seed, rank=0)  # the same weights, and the same synthetic data, on all ranks
    model = make_model(task, settings, rank_info)
    difference = check_same_model(model, f"{type(task).__name__}.model()", rank_info)
    sharding = shard(task, model, settings, rank_info)
    training_data, eval_data, size = load_datasets(task, data, rank_info, settings.epochs)
    sizes = BatchSizes.of(settings, rank_info.world_size, size)
    order = order_of(training_data, size, settings, sizes, rank=rank_info.rank, start=Position.of(state))
    early_stopping = EarlyStopping(settings.early_stop, rank_info, state)
    done = order.done(order.settle(order.start))
    if state is not None and (done or early_stopping.text):
        run.finish()
        precision.scaler.load(state["scaler"])
        why, skipped = "" if done else early_stopping.text, precision.scaler.skipped_steps
        return TrainResult(order.start.step, order.start.epoch, state["metrics"], True, why, skipped)

    loader, settings = loader_of(
        task, training_data, order, settings, rank_info, note=partial(_note, run, order.start)
    )
    evaluation = None
    if eval_data is not None:
        evaluation = Evaluation(
            task=task,
            model=model,
            dataset=evaluated_part(eval_data, settings.limit_batches, sizes),
            collate=collate_of(task),
            batch_size=sizes.batch_size,
            settings=settings,
            precision=precision,
            rank_info=rank_info,
        )
    if settings.required_metrics:
        reported = None if evaluation is None else evaluation.of_one_batch()
        for key, metric in settings.required_metrics.items():
            check_reported(key, metric, task, reported)
    optimization = Optimization(
        task=task,
        model=model,
        settings=settings,
        sizes=sizes,
        total_steps=order.total_steps,
        scaler=precision.scaler,
    )
    wrapped = wrap(task, model, settings, rank_info)
    loop = _Loop(
        task=task,
        settings=settings,
        rank_info=rank_info,
        run=run,
        model=model,
        wrapped=wrapped,
        precision=precision,
        order=order,
        optimization=optimization,
        evaluation=evaluation,
        early_stopping=early_stopping,
    )
    with closing(iter(loader)) as batches:  # type: ignore[type-var]  # Loader.__iter__ is a generator
        first = next(batches)
        flops = settle_buckets(task, wrapped, model, first[1], precision=precision, device=rank_info.device)
        loop.watch.count_flops(model, first, precision, counted=flops)
        loop.begin(state, (order.limit_text, difference), (sharding, kernels_in_use(rank_info.device)))
        state = None  # every rank has read the whole checkpoint into host memory
        finished = loop.steps(chain([first], batches))
    end, skipped = loop.position, precision.scaler.skipped_steps
    run.phase("save", end.step)
    run.finish()
    why = "" if order.done(end) else early_stopping.text
    return TrainResult(end.step, end.epoch, loop.metrics, finished, why, skipped)


def _note(run: Host, start: Position, text: str) -> None:
    """A line of the log about the data."""
    if run.rank == 0:
        run.log({"kind": "note", "step": start.step, "epoch": start.epoch, "text": text})


class _Loop:
    """The state of the loop between two optimizer steps: logging, evaluation, saving."""

    def __init__(
        self,
        *,
        task: Task,
        settings: TrainSettings,
        rank_info: RankInfo,
        run: Host,
        model: nn.Module,
        wrapped: nn.Module,
        precision: Precision,
        order: TrainOrder,
        optimization: Optimization,
        evaluation: Evaluation | None,
        early_stopping: EarlyStopping,
    ) -> None:
        self._task, self._settings, self._rank_info, self._run = task, settings, rank_info, run
        self._model, self._wrapped, self._precision = model, wrapped, precision
        self._order, self._optimization, self._evaluation = order, optimization, evaluation
        self.position = order.settle(order.start)
        self.metrics: dict[str, float] = {}
        self._early_stopping = early_stopping
        self._evaluation_due = False  # a stop request came before it
        self._awaited = AwaitedGradients(task, model, wrapped)
        self._block_calls = BlockCalls(model, rank_info)
        self._meter = Meter(rank_info, NotFinite(model, settings, precision))
        self.watch = StepWatch(task, settings, rank_info, order, profile=run.profile, log=self._log)
        self._line = StopLine(rank_info, self._requests)
        self._reserved, self._saved_at_s = False, time.monotonic()

    def begin(
        self, state: dict[str, Any] | None, warnings: Iterable[str | None], notes: Iterable[str]
    ) -> None:
        """Load a saved state, and seed every rank's random numbers. Empty warnings and notes are left out."""
        for kind, texts in (("warning", warnings), ("note", notes)):
            for each in filter(None, texts):
                self._log(kind, text=each)
        seed_all(derive_seed(self._settings.seed, self.position.step), self._rank_info.rank)
        if state is not None:
            state = with_tensors(state, self._model, self._optimization.optimizer, self._run.fill)
            load_weights(self._task, self._model, state["model"])
            self._optimization.load(state)
        self._log("note", text=self._optimization.lr_text(self.position.step))
        if state is not None:
            self._load_rest(state)

    def _load_rest(self, state: dict[str, Any]) -> None:
        self.metrics = dict(state["metrics"])
        self._evaluation_due = state.get("evaluation_due", False)
        self._meter.load(state["meter"])
        random_states = state["rng_of_ranks"]  # uint8 (world_size, bytes)
        if len(random_states) == self._rank_info.world_size:
            restore_rng(random_states[self._rank_info.rank], self._rank_info.device)
        else:
            self._log(
                "note",
                text=f"resumed at world size {self._rank_info.world_size}, saved at {len(random_states)}: "
                "random states are reseeded, and the result is not bit-identical to an uninterrupted run",
            )

    def steps(self, batches: Iterable[tuple[MicroBatch, Any]]) -> bool:
        """Train on `batches`. Returns False if a stop was requested before their end."""
        self._meter.start_clock()
        ended = self._make_up_evaluation()
        loss: torch.Tensor | float = 0.0  # of the step, over this rank's samples
        for key, batch in self.watch.batches(batches) if not ended else ():
            loss = loss + self._accumulate(key, batch)
            if key.after is None:
                continue
            self._optimization.step(key.after.step)
            self.position = key.after
            self.watch.step_done(self.position.step)
            self._run.phase("step", self.position.step)
            call_after_step(self._task, self.position, loss, self._optimization)
            loss = 0.0
            self._reserve()
            if self._between_steps():
                break
            self._line.broadcast()
        self._line.close()
        return self._order.done(self.position) or bool(self._early_stopping.text)

    def _make_up_evaluation(self) -> bool:
        """Evaluate if a stop request left it out, as an uninterrupted run did. True if the run ends here."""
        if self._evaluation_due:
            self._evaluation_due = False
            measured = self._evaluate(is_due=True)
            if self._early_stopping.text:
                self._save("end", measured)
        return bool(self._early_stopping.text)

    def _reserve(self) -> None:
        """Once, when the optimizer has its state, so that the first save waits no longer than the others."""
        if not self._reserved:
            self._reserved = True
            self._run.reserve(self._tensors())

    def _tensors(self) -> dict[str, Any]:
        return {"model": self._model.state_dict(), **self._optimization.state()}

    def _accumulate(self, key: MicroBatch, batch: Any) -> torch.Tensor:
        """One forward and backward pass; ranks exchange gradients only in the last one of a step.

        Returns:
            the share of this rank's loss of the step, a scalar on the device.
        """
        with exchange_if(key.after is not None, self._wrapped, self._settings):
            with self._precision.autocast(), self._awaited.naming():
                loss = self._task.loss(self._wrapped, batch)
            check_loss(self._task, loss)
            share = loss * key.share
            self.watch.backward(loss, exchanges=key.after is not None)
            self._optimization.backward(share)
        if key.after is not None:
            self._awaited.check()
        self._meter.not_finite.look(loss, lambda model: self._task.loss(model, batch))
        self._meter.add(self.position.step + 1, loss, len(key.ids))
        return share.detach().reshape(())

    def _between_steps(self) -> bool:
        """Log, evaluate and save if due, on all ranks after the same step. True if the run ends here."""
        requests, step = self._line.read(), self.position.step
        ended = self._order.done(self.position)
        if ended or step % self._settings.log_every == 0:
            self._log_training()
        measured: dict[str, float] = {}
        if self._due(self._settings.compare_weights_every or None, None):
            check_same_weights(self._model, self._optimization.optimizer, self.position.step, self._rank_info)
        due = self._due(self._settings.eval_every_steps, self._settings.eval_every_epochs)
        self._evaluation_due = due and requests.stop and not ended
        if ended or (due and not requests.stop):
            measured = self._evaluate(is_due=due)
            ended = ended or bool(self._early_stopping.text)
        if reason := self._why_save(ended, requests):
            self._save(reason, measured)
        return ended or requests.stop

    def _due(self, every_steps: int | None, every_epochs: int | None) -> bool:
        epoch_ended = self.position.offset == 0
        return bool(
            (every_steps and self.position.step % every_steps == 0)
            or (every_epochs and epoch_ended and self.position.epoch % every_epochs == 0)
        )

    def _why_save(self, ended: bool, requests: Requests) -> str | None:
        reasons = {
            "end": ended,
            "stop": requests.stop,
            "save": requests.save,
            "steps": self._due(self._settings.save_every_steps, None),
            "epochs": self._due(None, self._settings.save_every_epochs),
            "minutes": requests.save_timer,
        }
        return next((reason for reason, due in reasons.items() if due), None)

    def _requests(self) -> Requests:
        """Rank 0's requests: those of the launcher, and its timer between two saves."""
        minutes = self._settings.save_every_minutes
        since_s = time.monotonic() - self._saved_at_s
        return self._run.requests()._replace(save_timer=minutes is not None and since_s >= 60 * minutes)

    def _log_training(self) -> None:
        self._block_calls.check(self.position.step)
        loss, samples_per_s = self._meter.read()
        record = {"loss": loss, "lr": self._optimization.lr, **self.watch.figures(samples_per_s)}
        if self._evaluation is None:
            self.metrics = {"loss": loss}
        if self._rank_info.rank != 0:
            return
        record |= self._precision.scaler.figures()
        if self._optimization.grad_norm is not None:
            record["grad_norm"] = self._optimization.grad_norm.item()
        self._log(
            "train",
            **record,
            total_steps=self._order.total_steps,
            epoch_progress=self.position.offset / self._order.epoch_samples,
        )

    def _evaluate(self, *, is_due: bool) -> dict[str, float]:
        """Evaluate, if there is evaluation data; returns the values, for the checkpoint of this step.

        Args:
            is_due: False for the extra evaluation at the end of a run, which early stopping does not count.
        """
        if self._evaluation is None:
            return {}
        self._meter.flush()
        step = self.position.step
        with self._meter.paused():
            self._run.phase("evaluation", step)
            self.metrics = self._evaluation.run(step)
            self._log("eval", **self.metrics)
            if images := self._evaluation.images(step):
                self._run.images(step, images)
            call_after_evaluation(self._task, step, self.metrics)
            if is_due:
                self._early_stopping.add(step, self.metrics)
                if self._early_stopping.text and not self._order.done(self.position):
                    self._log("note", text=self._early_stopping.text)
            self._run.phase("step", step)
        return self.metrics

    def _save(self, reason: str, measured: dict[str, float]) -> None:
        """Save, if all losses and weights are finite, and the weights of all ranks equal; called on all
        ranks."""
        self._block_calls.check(self.position.step)
        self._meter.flush()
        check_weights(self._model, self.position.step, self._settings)
        if self._settings.compare_weights_every is None:
            check_same_weights(self._model, self._optimization.optimizer, self.position.step, self._rank_info)
        with self._meter.paused():
            state = {
                **self._tensors(),
                "rng_of_ranks": gather_rng(self._rank_info),
                "metrics": self.metrics,
                "early_stop": self._early_stopping.state(),
                "evaluation_due": self._evaluation_due,
                "meter": self._meter.state(),
                "position": self.position.as_dict(),
            }
            progress = SaveProgress(
                step=self.position.step,
                epoch=self.position.epoch,
                samples_seen=self.position.samples_seen,
                world_size=self._rank_info.world_size,
                metrics=measured,
                reason=reason,
            )
            save_on_all_ranks(self._run, self._rank_info, state, progress)
            self._saved_at_s = time.monotonic()

    def _log(self, kind: str, **fields: Any) -> None:
        if self._rank_info.rank == 0:
            self._run.log({"kind": kind, "step": self.position.step, "epoch": self.position.epoch, **fields})
