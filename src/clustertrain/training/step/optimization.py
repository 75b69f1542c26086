"""From gradients to new weights: the learning rate, its warm-up, clipping."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator
from copy import deepcopy
from functools import partial
from inspect import signature
from typing import Any

import torch
from torch import nn
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from clustertrain.errors import JobError
from clustertrain.training.data.sampling import TrainOrder
from clustertrain.training.ranks.dtensors import local, map_state, of_python, whole
from clustertrain.training.saving import owned
from clustertrain.training.step.precision import LossScaler
from clustertrain.training.step.schedule import Schedule
from clustertrain.training.task import Task
from clustertrain.training.values import State

_SCHEDULED = {"lr", "momentum", "betas"}  # what schedulers change in the groups of an optimizer


def lr_factor(scaling: str, batch: int, base: int) -> float:
    """Return the factor for a learning rate tuned for batch size `base`, if the batch size is `batch`.

    linear: batch / base, with a warm-up (Goyal et al. 2017, arXiv:1706.02677). sqrt: its square root, which
    keeps the variance of the gradient's estimate (Krizhevsky 2014, arXiv:1404.5997). none: 1.
    """
    return {"none": 1.0, "linear": batch / base, "sqrt": math.sqrt(batch / base)}[scaling]


class Optimization:
    """The task's optimizer and scheduler, with the learning rate scaled for the batch size."""

    def __init__(self, task: Task, model: nn.Module, order: TrainOrder, scaler: LossScaler) -> None:
        settings = order.settings
        self._settings, self._sizes, self._total_steps = settings, order.sizes, order.total_steps
        self._horizon = {
            "global_batch_size": order.sizes.global_batch_size,
            "total_steps": order.total_steps,
            "job_sha256": settings.job_sha256,
        }
        self._parameters = [*model.parameters()]
        self._scaler = scaler
        self.optimizer = task.optimizer(model)
        _check_parameters(task, self.optimizer, model)
        optimized = {id(parameter) for group in self.optimizer.param_groups for parameter in group["params"]}
        self._optimized = [parameter for parameter in self._parameters if id(parameter) in optimized]
        for group in self.optimizer.param_groups:  # as a resume reads them: numpy's of fewer bits round more
            options = {key: value for key, value in group.items() if key != "params"}
            group.update(map_state(options, lambda path, tensor: tensor))
        base = settings.lr.base_batch_size or order.sizes.batch_size
        self._unscaled_lr = float(self.optimizer.param_groups[0]["lr"])
        for group in self.optimizer.param_groups:
            group["lr"] *= lr_factor(settings.lr.scaling, order.sizes.global_batch_size, base)
        unscheduled = deepcopy(self._options_now())
        self._scheduler, self._unit = _scheduler_of(task, task.scheduler(self.optimizer, order.total_steps))
        per = order.steps_per_epoch if self._unit == "epoch" else 1
        self._schedule = partial(Schedule, task, unscheduled, self.optimizer.defaults, order.total_steps, per)
        self._task_name, self._groups = type(task).__name__, self._groups_now()
        self._options = deepcopy(self._options_now())  # before an optimizer changes those that are its state
        self.lr = 0.0  # of the first group, in the last step
        self.grad_norm: torch.Tensor | None = None  # before clipping, in the last step
        self._is_behind = False  # the scheduler, by one step

    def lr_text(self, done: int) -> str:
        """Describe how the learning rate follows from the batch size, and its warm-up: a line per rule.

        Args:
            done: the steps that are done.
        """
        scheduled = float(self.optimizer.param_groups[0]["lr"])  # of the next step, without warm-up
        rule, sizes, lr = self._settings.lr, self._sizes, self._unscaled_lr
        batch, base = sizes.global_batch_size, rule.base_batch_size or sizes.batch_size
        scaled = lr * lr_factor(rule.scaling, batch, base)
        factor = {"none": "1", "linear": f"{batch} / {base}", "sqrt": f"√({batch} / {base})"}[rule.scaling]
        of_base = "" if rule.scaling == "none" else f", base {base}"
        lines = [
            f"learning rate: {lr:g} × {factor} = {scaled:g} ({rule.scaling}; global batch: "
            f"batch_size {sizes.batch_size} × workers {sizes.world_size} × accumulate {sizes.accumulate} "
            f"= {batch}{of_base})"
        ]
        if done:
            rate = scheduled * self._warmup(done + 1)
            return lines[0] if math.isclose(rate, scaled) else f"{lines[0]}\nstep {done + 1} has {rate:g}"
        if not math.isclose(scheduled, scaled):
            lines.append(f"the task's scheduler starts with {scheduled:g}, not with {scaled:g}")
        if warmup := rule.warmup_steps:
            never_ends = "; the run ends before the warm-up" if warmup > self._total_steps else ""
            lines.append(
                f"warm-up: {warmup} of {self._total_steps} steps; step 1 has {scheduled:g} × 1 / {warmup} "
                f"= {scheduled / warmup:g}{never_ends}"
            )
        return "\n".join(lines)

    def schedule_lines(self) -> Iterator[tuple[str, str]]:
        """Yield lines of the log with their kind: the rates of the run, and what is wrong with them.

        It takes up to two seconds.
        """
        if self._scheduler is not None:
            schedule = self._schedule()
            yield "note", schedule.text(self._warmup)
            if text := schedule.warning():
                yield "warning", text

    def _warmup(self, step: int) -> float:
        return min(1.0, step / max(1, self._settings.lr.warmup_steps))

    def step(
        self, step: int, factor: float | torch.Tensor | None = None, *, ends_epoch: bool = False
    ) -> None:
        """Take the optimizer step number `step`, counted from 1, with the gradients times `factor`.

        A step that the loss scaler skips (fp16, gradients too large for the scale) counts as a step, because
        its samples are consumed; the scheduler is not stepped.
        """
        if factor is not None:
            self._scale_gradients(factor)
        clip_norm = self._settings.clip_norm
        if clip_norm is not None:
            self._scaler.unscale(self.optimizer)
            self.grad_norm = whole(nn.utils.clip_grad_norm_(self._optimized, clip_norm))
        self._follow()
        self._step_at(self._warmup(step))
        for parameter in self._parameters:  # also those that are not the optimizer's: they would add up
            parameter.grad = None
        if self._unit == "epoch" and ends_epoch:
            _step(self._scheduler, 1)
        self._is_behind = self._unit == "step"
        if not self._scaler.enabled:
            self._follow()

    def _scale_gradients(self, factor: float | torch.Tensor) -> None:
        gradients = [local(each.grad) for each in self._optimized if each.grad is not None]
        if not gradients:  # those of the optimizer have none in this step
            return
        if isinstance(factor, torch.Tensor):
            factor = factor.to(gradients[0].dtype)  # of one type they are multiplied in one kernel
        torch._foreach_mul_(gradients, factor)

    def _follow(self) -> None:
        """Step the scheduler after an optimizer step that was made.

        With a loss scaler that is known only when the GPU has done it: then before the next one.
        """
        if self._is_behind and self._scaler.was_made() and self._scheduler is not None:
            self._scheduler.step()
        self._is_behind = False

    def _step_at(self, warmup: float) -> None:
        """Step with the scheduler's learning rates × `warmup`, and restore the scheduler's rates."""
        groups = self.optimizer.param_groups
        lrs = [of_python(group["lr"]) for group in groups]  # a scheduler may have computed with numpy
        for group, lr in zip(groups, lrs, strict=True):
            group["lr"] = lr * warmup
        self.lr = float(groups[0]["lr"])
        self._scaler.step(self.optimizer)
        for group, lr in zip(groups, lrs, strict=True):
            group["lr"] = lr

    def check_groups(self, step: int) -> None:
        """Check that the optimizer has the groups of parameters that the task has returned.

        Raises:
            JobError: it has other groups.
        """
        if (now := self._groups_now()) != self._groups:
            sizes = [[len(ids) for ids in groups] for groups in (now, self._groups)]
            raise JobError(
                f"After step {step} the optimizer has other groups of parameters, {sizes[0]}, than "
                f"{self._task_name}.optimizer() returned, {sizes[1]}: no start could load its checkpoints.\n"
                "Give optimizer() all groups, with lr 0 until they join; then change the lr of the group. "
                "With several workers DDP would not average what was frozen at the start."
            )

    def _groups_now(self) -> list[list[int]]:
        """Return the ids of the parameters of each group."""
        return [[*map(id, group["params"])] for group in self.optimizer.param_groups]

    def _options_now(self) -> list[dict[str, Any]]:
        groups = self.optimizer.param_groups
        return [{key: value for key, value in group.items() if key != "params"} for group in groups]

    def state(self) -> State:
        self._follow()
        return {
            "optimizer": self.optimizer.state_dict(),
            "optimizer_options": self._options,
            "optimizer_class": type(self.optimizer).__name__,
            "scheduler": self._scheduler.state_dict() if self._scheduler is not None else None,
            "scheduler_unit": self._unit,
            "scaler": self._scaler.state(),
            "horizon": self._horizon,
        }

    def load(self, state: State) -> None:
        """Load `state`, bit-identically if global batch, length of the run and job are the same.

        If they differ (more epochs, another number of ranks, another learning rate), the saved schedule would
        end at the wrong step or learning rate: then the optimizer keeps the settings of this run, and its
        schedule is stepped to the saved position. A setting that is the same in both runs, and that the
        optimizer has changed, is a part of its state (the counter of a schedule-free one) and is loaded.

        Raises:
            JobError: the state is that of another optimizer, or of other groups of parameters.
        """
        own = self._options_now()
        self._load_optimizer(state)
        self._scaler.load(state["scaler"])
        schedule, is_same_unit = state["scheduler"], state["scheduler_unit"] == self._unit
        is_same = state["horizon"] == self._horizon and (schedule is None) == (self._scheduler is None)
        if is_same and is_same_unit:
            if self._scheduler is not None:
                self._scheduler.load_state_dict(schedule)
            return
        before = state["optimizer_options"]
        for group, options, old in zip(self.optimizer.param_groups, own, before, strict=True):
            is_kept = {key for key in old.keys() - _SCHEDULED if repr(old[key]) == repr(options.get(key))}
            group.update({key: value for key, value in options.items() if key not in is_kept})
        if self._scheduler is not None:
            done = state["position"][self._unit]  # a ChainedScheduler has no last_epoch
            _step(self._scheduler, (schedule or {}).get("last_epoch", done) if is_same_unit else done)

    def _load_optimizer(self, state: State) -> None:
        found, own = state["optimizer_class"], type(self.optimizer).__name__
        if found != own:
            raise _unusable(f"is of {found}, and Task.optimizer() returned {own}")
        try:
            self.optimizer.load_state_dict(owned(state["optimizer"], self._parameters[0].device))
        except ValueError as error:  # other groups of parameters
            raise _unusable(f"does not fit Task.optimizer(): {error}") from error


def _unusable(difference: str) -> JobError:
    return JobError(
        f"The optimizer's state in the checkpoint {difference}.\n"
        "Undo the change, or start over with --fresh, which keeps this run."
    )


def _check_parameters(task: Task, optimizer: Any, model: nn.Module) -> None:
    """Check that the optimizer steps without a closure, and has only parameters of the model.

    Raises:
        JobError: its step needs a closure, or it has parameters that are not the model's.
    """
    name = f"{type(task).__name__}.optimizer()"
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise JobError(
            f"{name} returned {type(optimizer).__name__}, not a torch.optim.Optimizer.\n"
            "Return the optimizer itself."
        )
    of_model = {id(parameter) for parameter in model.parameters()}
    _, *arguments = signature(type(optimizer).step).parameters.values()
    if any(each.default is each.empty and each.kind is each.POSITIONAL_OR_KEYWORD for each in arguments):
        raise JobError(
            f"{name} returned {type(optimizer).__name__}, whose step() needs a function that computes the "
            "loss again: a step here has one pass over its samples.\n"
            "Use another optimizer, or a `function` with a loop of its own."
        )
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    others = sum(id(parameter) not in of_model for parameter in parameters)
    if others:
        raise JobError(
            f"{name} has {len(parameters)} parameters; {others} of them are not parameters of the model.\n"
            "They would be neither averaged over the ranks nor saved. Build it from the parameters of "
            "the given model, and make every trained module a part of model()."
        )


def _scheduler_of(task: Task, made: Any) -> tuple[LRScheduler | None, str]:
    """Return the scheduler, and whether it is stepped after each "step" or "epoch".

    Raises:
        JobError: it is not a scheduler, or one that needs a metric.
    """
    name = f"{type(task).__name__}.scheduler()"
    is_pair = isinstance(made, tuple) and len(made) == 2
    scheduler, unit = made if is_pair else (made, "step")
    if isinstance(scheduler, ReduceLROnPlateau):
        raise JobError(
            f"{name} returned ReduceLROnPlateau, which needs a metric; "
            "schedulers are stepped after each optimizer step or epoch.\nUse one that counts them."
        )
    is_scheduler = made is None or hasattr(scheduler, "step")
    if not is_scheduler or unit != ("epoch" if is_pair else "step"):
        what = f"({type(scheduler).__name__}, {unit!r})" if is_pair else type(made).__name__
        raise JobError(
            f"{name} returned {what}, not a torch.optim.lr_scheduler.LRScheduler.\n"
            'Return the scheduler itself, or (scheduler, "epoch") for one that is stepped after each epoch.'
        )
    return scheduler, unit


def _step(scheduler: Any, steps: int) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch expects an optimizer step before each
        for _ in range(steps):
            scheduler.step()
