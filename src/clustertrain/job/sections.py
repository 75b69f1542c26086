"""The sections of a job file, each a frozen model with the rules that join its own keys.

`docs/job-file.md` is made from the docstrings here. A key that is left empty counts as left out.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StrictBool, model_validator

from clustertrain.job.values import (
    MOST_WORKERS,
    Bytes,
    Count,
    CountOrZero,
    Nodes,
    Positive,
    Refused,
    Seconds,
    Text,
    Workers,
)
from clustertrain.units import shortened


class Section(BaseModel):
    """What every part of a job file shares: frozen, and no key that is not known."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        use_attribute_docstrings=True,
        allow_inf_nan=False,
        hide_input_in_errors=True,
    )

    @model_validator(mode="before")
    @classmethod
    def _empty_is_left_out(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        known = {field.alias or name for name, field in cls.model_fields.items()}
        return {key: value for key, value in data.items() if value is not None or key not in known}

    def _given(self, *keys: str) -> list[str]:
        return [key for key in keys if getattr(self, key) is not None]

    def _exactly_one_of(self, *keys: str, example: str) -> None:
        """One of these keys must have a value, and only one."""
        given, names = self._given(*keys), ", ".join(keys[:-1]) + " and " + keys[-1]
        if len(given) > 1:
            both = "both " if len(given) == 2 else ""
            raise Refused(
                f"{both}{' and '.join(given)} are given\nexactly one of {names} may be: leave the others out",
                given[1],
            )
        if not given:
            raise Refused(f"none of {names} is given\nexactly one of them is needed, for example {example}")


class LearningRate(Section):
    """How the learning rate follows the batch size. The learning rate itself is one of your `args`."""

    scaling: Literal["none", "linear", "sqrt"] = "none"
    """Multiply the learning rate by (global batch / base batch), by its square root, or leave it."""

    base_batch_size: Count | None = None
    """The global batch that the learning rate was tuned for. Left out, it is one worker's batch, so that
    `linear` multiplies by workers × accumulate."""

    warmup_steps: CountOrZero = 0
    """Optimizer steps over which the learning rate rises linearly to its value."""


class EvalEvery(Section):
    """How often to evaluate: one of the two."""

    epochs: Count | None = None
    """Every so many epochs."""

    steps: Count | None = None
    """Every so many optimizer steps."""

    @model_validator(mode="after")
    def _one_period(self) -> EvalEvery:
        self._exactly_one_of("epochs", "steps", example="epochs: 1")
        return self


class Train(Section):
    """The training loop of the kit: for `task` alone, a function or a script has a loop of its own."""

    epochs: Count | None = None
    """Passes over the training data. Exactly one of `epochs` and `steps`."""

    steps: Count | None = None
    """Optimizer steps. Exactly one of `epochs` and `steps`."""

    batch_size: Count | None = None
    """Samples per worker and forward pass. Exactly one of `batch_size` and `global_batch_size`."""

    global_batch_size: Count | None = None
    """Samples per optimizer step over all workers: batch size × workers × accumulate. It stays the same
    when the number of workers changes."""

    seed: CountOrZero = 0
    """Seed of initial weights, shuffling and every worker's random numbers."""

    precision: Literal["fp32", "bf16", "fp16"] = "fp32"
    """Number format of the forward pass; weights stay fp32. fp16 scales the loss and needs a GPU."""

    accumulate: Count = 1
    """Forward and backward passes per optimizer step."""

    clip_norm: Positive | None = None
    """Largest norm of all gradients together; larger ones are scaled down to it."""

    compile: StrictBool = False
    """Compile the model with torch.compile."""

    sync_batchnorm: StrictBool = False
    """Batch normalisation over all workers rather than each one's own batch. Needs GPUs."""

    find_unused_parameters: StrictBool = False
    """Let DDP look for parameters that a forward pass did not use. Costs a traversal per step."""

    lr: LearningRate = LearningRate()
    """How the learning rate follows the batch size."""

    log_every: Count = 10
    """Optimizer steps between two lines of metrics."""

    eval_every: EvalEvery = EvalEvery(epochs=1)
    """How often to evaluate."""

    loader_workers: CountOrZero = 0
    """Processes that load data, per worker; 0 loads in the worker itself."""

    @model_validator(mode="before")
    @classmethod
    def _lr_is_an_argument(cls, data: Any) -> Any:
        if isinstance(data, dict) and isinstance(data.get("lr"), int | float | str):
            raise Refused(
                f"{shortened(str(data['lr']))} is not a mapping\n"
                "lr says here how the learning rate follows the batch size\n"
                "give the learning rate itself to your task, under args",
                "lr",
            )
        return data

    @model_validator(mode="after")
    def _one_length_and_one_batch(self) -> Train:
        self._exactly_one_of("epochs", "steps", example="epochs: 3")
        self._exactly_one_of("batch_size", "global_batch_size", example="batch_size: 32")
        return self


class SaveEvery(Section):
    """How often to save; several together save at whichever comes first."""

    steps: Count | None = None
    """Every so many optimizer steps."""

    epochs: Count | None = None
    """Every so many epochs; not for a `function`, whose loop alone knows them."""

    minutes: Positive | None = None
    """When so many minutes have passed since the last save."""

    @model_validator(mode="after")
    def _one_period(self) -> SaveEvery:
        if not self._given("steps", "epochs", "minutes"):
            raise Refused(
                "none of steps, epochs and minutes is given\n"
                "at least one of them is needed, for example epochs: 1"
            )
        return self


class KeepBest(Section):
    """Which checkpoint is the best."""

    metric: Text
    """Name of a metric that evaluation reports."""

    mode: Literal["min", "max"]
    """Whether the smallest or the largest is best."""


class Checkpoint(Section):
    """When to save and what to keep. Refused for `script`, which saves its own."""

    every: SaveEvery = SaveEvery(epochs=1)
    """How often to save. Left out for a `function`, it is `minutes: 10`."""

    keep_last: Count = 3
    """How many of the newest checkpoints to keep."""

    keep_best: KeepBest | None = None
    """Keep the best checkpoint as well."""

    async_: StrictBool = Field(default=True, alias="async")
    """Write in the background while training goes on."""


class Resources(Section):
    """How many workers, and what each one gets."""

    workers: Workers | None = None
    """Number of workers, or [min, max]: the run starts and resumes with any number between them. 1 when
    `nodes` is left out as well."""

    nodes: Nodes | None = None
    """Number of nodes, or [min, max], on a cluster; a local run has one. The same number of workers on each:
    workers = nodes × workers per node, at both ends of a range. Needs `workers` or `gpus_per_node`."""

    gpus_per_node: Count | None = None
    """Instead of `workers`: GPUs on each of `nodes`, and one worker for each GPU."""

    cpus_per_worker: Positive = 1.0
    """CPU cores per worker; fractions are allowed."""

    gpus_per_worker: CountOrZero = 0
    """GPUs per worker; 0 trains on CPU. It is 1 with `gpus_per_node`."""

    memory_per_worker_bytes: Bytes | None = Field(default=None, alias="memory_per_worker")
    """Memory per worker, such as `16Gi`."""

    @model_validator(mode="before")
    @classmethod
    def _one_worker_or_one_per_gpu(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        default: dict[str, Any] = {}
        if data.get("gpus_per_node") is not None:
            default = {"gpus_per_worker": 1}
        elif data.get("nodes") is None:
            default = {"workers": 1}
        return default | {key: value for key, value in data.items() if value is not None}

    @model_validator(mode="after")
    def _one_shape(self) -> Resources:
        if self.nodes is None and self.gpus_per_node is not None:
            raise Refused(
                "stands without nodes\nworkers are counted by `workers`, or by nodes × gpus_per_node",
                "gpus_per_node",
            )
        self._exactly_one_of("workers", "gpus_per_node", example="workers: 2")
        if self.gpus_per_node is not None:
            self._check_one_worker_per_gpu()
        elif self.nodes is not None:
            self._check_even_spread()
        return self

    def _check_one_worker_per_gpu(self) -> None:
        if self.gpus_per_worker != 1:
            raise Refused(
                f"{self.gpus_per_worker} stands beside gpus_per_node\n"
                "with gpus_per_node there is one worker per GPU\n"
                "leave it out, or give `workers` instead of gpus_per_node",
                "gpus_per_worker",
            )
        if self.max_workers > MOST_WORKERS:
            raise Refused(
                f"{self.max_nodes} nodes × {self.gpus_per_node} GPUs = {self.max_workers} workers\n"
                f"at most {MOST_WORKERS} are allowed",
                "nodes",
            )

    def _check_even_spread(self) -> None:
        """workers = nodes × workers per node, at both ends of the ranges."""
        ends = [(self.min_workers, self.min_nodes), (self.max_workers, self.max_nodes)]
        if len({workers / nodes for workers, nodes in ends}) == 1 and self.max_workers % self.max_nodes == 0:
            return
        shares = [f"{workers} / {nodes} = {workers / nodes:.4g}" for workers, nodes in ends]
        each = max(1, round(self.max_workers / self.max_nodes))
        low, high = self.min_nodes * each, self.max_nodes * each
        raise Refused(
            f"{' and '.join(dict.fromkeys(shares))} workers per node\n"
            "every node has the same whole number of workers: workers = nodes × workers per node\n"
            f"for example workers: {high if low == high else [low, high]}",
            "workers",
        )

    @property
    def min_workers(self) -> int:
        """The smallest world size the job runs at."""
        return self._worker_bounds()[0]

    @property
    def max_workers(self) -> int:
        """The largest world size the job runs at; the same as min_workers for a fixed one."""
        return self._worker_bounds()[1]

    @property
    def min_nodes(self) -> int:
        """The smallest number of nodes on a cluster."""
        return _bounds(self.nodes or 1)[0]

    @property
    def max_nodes(self) -> int:
        """The largest number of nodes on a cluster; 1 when `nodes` is left out."""
        return _bounds(self.nodes or 1)[1]

    @property
    def workers_per_node(self) -> int:
        """Workers on each node of a cluster, at most: all of them when `nodes` is left out."""
        return self.max_workers // self.max_nodes

    def _worker_bounds(self) -> tuple[int, int]:
        if self.gpus_per_node is not None:
            return self.min_nodes * self.gpus_per_node, self.max_nodes * self.gpus_per_node
        return _bounds(self.workers or 1)


def _bounds(value: int | tuple[int, int]) -> tuple[int, int]:
    return value if isinstance(value, tuple) else (value, value)


class Watchdog(Section):
    """How long each phase may go without progress before the worker group is restarted."""

    stage_s: Seconds = Field(default=7200.0, alias="stage")
    """Bringing the data."""

    first_step_s: Seconds = Field(default=1200.0, alias="first_step")
    """The first step, with compilation."""

    step_s: Seconds = Field(default=600.0, alias="step")
    """Every later step."""

    evaluation_s: Seconds = Field(default=3600.0, alias="evaluation")
    """One whole evaluation."""

    save_s: Seconds = Field(default=1800.0, alias="save")
    """Writing one checkpoint."""


class Failures(Section):
    """What happens when a worker dies, hangs, or the run is asked to stop."""

    retries: CountOrZero = 3
    """Restarts of the worker group in a row without a new checkpoint; one more failure ends the run. A
    script keeps its own checkpoints: there all restarts of an attempt count."""

    attempts: Count = 5
    """Starts of the run in a row without a new checkpoint; the next one is refused, unless it is asked for
    with `--retry`. What you stopped yourself does not count."""

    watchdog: Watchdog = Watchdog()
    """Time limits per phase."""

    grace_s: Seconds = Field(default=30.0, alias="grace")
    """After a request to stop: how long the last save may take."""
