"""The sections of a job file, each a frozen model with the rules between its own keys.

`docs/reference/job-file.md` is generated from the docstrings here. An empty key counts as missing.
"""

from __future__ import annotations

import re
from dataclasses import is_dataclass
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    StrictBool,
    Tag,
    model_validator,
)

from clustertrain.job.field_docstrings import describe
from clustertrain.job.settings_fields import add_fields
from clustertrain.job.values import (
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
from clustertrain.training import settings


class Section(BaseModel):
    """Base of every section of a job file: frozen; unknown keys are errors."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        json_schema_extra=describe,
        allow_inf_nan=False,
        hide_input_in_errors=True,
    )

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        for base in filter(is_dataclass, cls.__bases__):
            add_fields(cls, base)

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
        """Check that exactly one of these keys has a value."""
        given, names = self._given(*keys), ", ".join(keys[:-1]) + " and " + keys[-1]
        if len(given) > 1:
            both = "both " if len(given) == 2 else ""
            raise Refused(
                f"{both}{' and '.join(given)} are given\n"
                f"exactly one of {names} is allowed: remove the others",
                given[1],
            )
        if not given:
            raise Refused(f"none of {names} is given\nexactly one of them is needed, for example {example}")


class SaveEvery(Section, settings.SaveEvery):
    @model_validator(mode="after")
    def _one_period(self) -> SaveEvery:
        if not self._given("steps", "epochs", "minutes"):
            raise Refused(
                "none of steps, epochs and minutes is given\n"
                "at least one of them is needed, for example epochs: 1"
            )
        return self


def _periods_or_auto(value: object) -> object:
    if isinstance(value, str) and value != "auto":
        raise ValueError("must be auto, or a mapping such as {epochs: 1}")
    return value


# Which of the two a value is decides its type alone, so an error is about that one.
SaveEveryOrAuto = Annotated[
    Annotated[SaveEvery, Tag("periods")] | Annotated[Literal["auto"], Tag("auto")],
    Discriminator(lambda value: "auto" if value == "auto" else "periods"),
    BeforeValidator(_periods_or_auto, json_schema_input_type=Literal["auto"] | SaveEvery),
]


class KeepBest(Section):
    """Selects the best checkpoint."""

    metric: Text
    """Name of a metric of the evaluation."""

    mode: Literal["min", "max"]
    """Whether the smallest or the largest value is best."""


class Checkpoint(Section):
    """When to save and what to keep. Refused for `script`, which saves its own."""

    every: SaveEveryOrAuto = SaveEvery(epochs=1)  # type: ignore[call-arg]  # pydantic.mypy reads no dataclass
    """How often to save. For a `function` the default is `minutes: 10`. `auto` computes the interval from the
    measured saves and `failures.mtbf`: see [How often to
    save](../guides/checkpoints.md#how-often-to-save)."""

    memory_every: CountOrZero | Literal["auto"] = "auto"
    """Steps of a task between two [checkpoints in
    memory](../guides/checkpoints.md#checkpoints-in-memory). With `auto` the copies take at most 1 % of the
    time of steps; with 0 there are none."""

    keep_last: Count = 3
    """How many of the newest checkpoints to keep."""

    keep_best: KeepBest | None = None
    """Keep the best checkpoint as well."""

    async_: StrictBool = Field(default=True, alias="async")
    """Write in the background while training continues."""

    @property
    def periods(self) -> settings.SaveEvery:
        """The periods of the job file; none with `auto`."""
        return settings.SaveEvery() if self.every == "auto" else self.every


class Resources(Section):
    """The number of workers, and the CPUs, GPUs and memory of each."""

    workers: Workers | None = None
    """Number of workers, or [min, max]: the run starts and resumes with any number in this range. The default
    is 1 if `nodes` is not set either."""

    nodes: Nodes | None = None
    """Number of nodes of a cluster, or [min, max]. Every node has the same number of workers. Needs `workers`
    or `gpus_per_node`."""

    gpus_per_node: Count | None = None
    """Instead of `workers`: GPUs on each of the `nodes`, with one worker per GPU."""

    cpus_per_worker: Positive = 1.0
    """CPU cores per worker; fractions are allowed."""

    gpus_per_worker: CountOrZero = 0
    """GPUs per worker; 0 trains on CPU. With `gpus_per_node` it is 1."""

    bind_cpus: StrictBool = True
    """Bind each worker with GPUs, and its loader processes, to the CPUs of its GPUs' NUMA node, if the
    allocation has enough of them."""

    memory_per_worker_bytes: Bytes | None = Field(default=None, alias="memory_per_worker")
    """Memory per worker, such as `16Gi`. Default on Kubernetes: 16Gi per GPU, or 4Gi without GPUs; elsewhere
    no request."""

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
                "is given without nodes\nset `workers`, or both nodes and gpus_per_node",
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
                f"{self.gpus_per_worker} is given together with gpus_per_node\n"
                "with gpus_per_node there is one worker per GPU\n"
                "remove it, or set `workers` instead of gpus_per_node",
                "gpus_per_worker",
            )

    def _check_even_spread(self) -> None:
        """Check that workers = nodes × workers per node, at both ends of the ranges."""
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
        """The smallest world size of the job."""
        return self._worker_bounds()[0]

    @property
    def max_workers(self) -> int:
        """The largest world size of the job; for a fixed number of workers the same as min_workers."""
        return self._worker_bounds()[1]

    @property
    def min_nodes(self) -> int:
        """The smallest number of nodes on a cluster."""
        return _bounds(self.nodes or 1)[0]

    @property
    def max_nodes(self) -> int:
        """The largest number of nodes on a cluster; 1 if `nodes` is not set."""
        return _bounds(self.nodes or 1)[1]

    @property
    def workers_per_node(self) -> int:
        """The maximum number of workers on a node of a cluster; all workers if `nodes` is not set."""
        return self.max_workers // self.max_nodes

    def _worker_bounds(self) -> tuple[int, int]:
        if self.gpus_per_node is not None:
            return self.min_nodes * self.gpus_per_node, self.max_nodes * self.gpus_per_node
        return _bounds(self.workers or 1)


def _bounds(value: int | tuple[int, int]) -> tuple[int, int]:
    return value if isinstance(value, tuple) else (value, value)


class Watchdog(Section):
    """The time that each phase may take without progress before the worker group is restarted."""

    stage_s: Seconds = Field(default=7200.0, alias="stage")
    """Staging the data."""

    process_group_s: Seconds = Field(default=300.0, alias="process_group")
    """Making the process group of a task or function: until all ranks are connected to each other."""

    first_step_s: Seconds = Field(default=1200.0, alias="first_step")
    """The first step, including compilation. Before that, the start of the ranks' processes, and each answer
    of a rank while it is set up."""

    step_s: Seconds | None = Field(default=None, alias="step")
    """Every later step. By default 10 minutes; for most steps of a task it is
    [learnt from those before](../concepts/fault-tolerance.md#the-limit-of-a-step), at least 20 seconds."""

    evaluation_s: Seconds = Field(default=3600.0, alias="evaluation")
    """One whole evaluation."""

    save_s: Seconds = Field(default=1800.0, alias="save")
    """A checkpoint that is being written, without a byte of progress; also the copy to host memory."""


_RESTARTS = 3


class Failures(Section):
    """What happens if a worker dies or hangs, or on a request to stop the run."""

    retries: CountOrZero | None = None
    """Restarts of the workers in a row without a new checkpoint; one more failure ends the run. Default: 3.
    For a script all restarts of an attempt count."""

    attempts: Count = 5
    """Attempts of a scheduler's job in a row without a new checkpoint; the next one is refused. A start by
    hand begins the count anew."""

    mtbf_s: Seconds | None = Field(default=None, alias="mtbf")
    """For `checkpoint.every: auto`: the mean time between two failures of one node, such as `90d`. Default:
    153 days 20 hours, as Meta published for its cluster RSC-1."""

    watchdog: Watchdog = Watchdog()
    """Time limits per phase."""

    ray_start_s: Seconds = Field(default=300.0, alias="ray_start")
    """How long Ray may take to start, or to answer at `RAY_ADDRESS`. SLURM and Kubernetes have
    `slurm.nodes_wait` and `kubernetes.start_deadline` instead."""

    resize_after_s: Seconds = Field(default=120.0, alias="resize_after")
    """With `workers: [min, max]` on Kubernetes or at `RAY_ADDRESS`: how long to wait for a lost node before
    fewer workers continue, and how long there must be room before more do."""

    grace_s: Seconds = Field(default=30.0, alias="grace")
    """Time for the last save after a request to stop. After that, a function whose step hangs is ended."""

    @property
    def most_restarts(self) -> int:
        """The restarts in a row, also where the job says no number."""
        return _RESTARTS if self.retries is None else self.retries


LOSS = r"(?i)\w*loss['\"]?\s*[:=]?\s*['\"]?(?P<loss>[-+]?(?:\d[\d.]*(?:e[-+]?\d+)?|nan|inf)\b)"
"""Finds a loss in a line that a script prints."""


def _expression(value: str) -> str:
    rule = "must be a regular expression with the group loss, such as 'loss: (?P<loss>[0-9.]+)'"
    try:
        if "loss" in re.compile(value).groupindex:
            return value
    except re.error as error:
        rule = f"{rule}; {error}"
    raise ValueError(rule)


class Fault(Section):
    """The fault that a run of `clustertrain drill` causes itself, in its first start.

    Only that command sets it. Such a run also records which samples each step has used.
    """

    kind: Literal["none", "rank", "driver", "stop", "save"]
    """What is struck; `none` only records."""

    rank: CountOrZero = 0
    """The rank that is struck."""

    step: Count = 1
    """The step after which it happens. Of a script, the number of the printed loss."""


class Drill(Section):
    """For `clustertrain drill`, which proves that this training resumes: see [drill](../guides/drill.md)."""

    loss: Annotated[Text, AfterValidator(_expression)] = LOSS
    """Finds the loss in a line that a `script` prints: a regular expression with the group `loss`. A group
    `step` identifies the line."""

    fault: Fault | None = None
    """Set by `clustertrain drill` alone."""
