"""The job file as frozen models: what a job may say, and the rules that join its keys.

`clustertrain.jobfile` reads and writes the file and words the errors; `docs/job-file.md` is made from
the docstrings here. A key that is left empty counts as left out.
"""

# ruff: noqa: RUF001 - the × in messages and descriptions is the sign of a product

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Literal, get_args, get_origin

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StrictBool, model_validator

from clustertrain.job_values import (
    MOST_WORKERS,
    Args,
    Argument,
    Bytes,
    Count,
    CountOrZero,
    DataUri,
    Endpoint,
    Identifier,
    ImportPath,
    Name,
    Path,
    Positive,
    Refused,
    ScriptPath,
    Seconds,
    Sha256,
    StorageUri,
    Text,
    Variable,
    Workers,
)


def _storage(value: object) -> object:
    return {"uri": value} if isinstance(value, str) else value


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
        return (
            {key: value for key, value in data.items() if value is not None}
            if isinstance(data, dict)
            else data
        )

    def _given(self, *keys: str) -> list[str]:
        return [key for key in keys if getattr(self, key) is not None]

    def _exactly_one_of(self, *keys: str) -> None:
        """One of these keys must have a value, and only one."""
        given, names = self._given(*keys), " or ".join(keys)
        if len(given) > 1:
            raise Refused(
                f"both {' and '.join(given)} are given\nexactly one of {names} is meant: leave the other out",
                given[1],
            )
        if not given:
            raise Refused(f"neither {names.replace(' or ', ' nor ')} is given\nexactly one of them is needed")


class DataEntry(Section):
    """A data set, brought to the workers before training starts; its path there is found under its name."""

    uri: DataUri
    """Where it is: a path (relative to the job file), `file:///…`, `https://…`, `http://…` or
    `s3://bucket/key`. Credentials come from the environment, never from here."""

    sha256: Sha256 | None = None
    """The checksum of the file, 64 hexadecimal digits. With it the file is verified, and may move to
    another URI without becoming another run."""

    extract: StrictBool = False
    """Unpack the archive (zip or tar) and give the folder instead of the file."""

    per: Literal["cluster", "node"] = "cluster"
    """Keep one copy in storage that all nodes read, or one on the disk of every node."""


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
        self._exactly_one_of("epochs", "steps")
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
                f"lr is {data['lr']}\nthis section says how the learning rate follows the batch size\n"
                f"give the learning rate itself to your task, under args: lr: {data['lr']}",
                "lr",
            )
        return data

    @model_validator(mode="after")
    def _one_length_and_one_batch(self) -> Train:
        self._exactly_one_of("epochs", "steps")
        self._exactly_one_of("batch_size", "global_batch_size")
        return self


class SaveEvery(Section):
    """How often to save; several together save at whichever comes first."""

    steps: Count | None = None
    """Every so many optimizer steps."""

    epochs: Count | None = None
    """Every so many epochs."""

    minutes: Positive | None = None
    """When so many minutes have passed since the last save."""

    @model_validator(mode="after")
    def _one_period(self) -> SaveEvery:
        if not self._given("steps", "epochs", "minutes"):
            raise Refused("there is neither steps nor epochs nor minutes\nat least one of them is needed")
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
    """How often to save."""

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

    nodes: Count | None = None
    """Instead of `workers`: whole nodes, one worker per GPU. Needs `gpus_per_node`."""

    gpus_per_node: Count | None = None
    """GPUs, and so workers, on each of `nodes`."""

    cpus_per_worker: Positive = 1.0
    """CPU cores per worker; fractions are allowed."""

    gpus_per_worker: CountOrZero = 0
    """GPUs per worker; 0 trains on CPU. It is 1 with `nodes`."""

    memory_per_worker_bytes: Bytes | None = Field(default=None, alias="memory_per_worker")
    """Memory per worker, such as `16Gi`."""

    @model_validator(mode="before")
    @classmethod
    def _one_worker_or_one_per_gpu(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        if any(data.get(key) is not None for key in ("nodes", "gpus_per_node")):
            default: dict[str, Any] = {"gpus_per_worker": 1}
        else:
            default = {"workers": 1}
        return default | {key: value for key, value in data.items() if value is not None}

    @model_validator(mode="after")
    def _one_shape(self) -> Resources:
        self._exactly_one_of("workers", "nodes")
        if self.nodes is None and self.gpus_per_node is not None:
            raise Refused(
                "gpus_per_node stands without nodes\n"
                "workers are counted by `workers`, or by nodes × gpus_per_node",
                "gpus_per_node",
            )
        if self.nodes is None:
            return self
        if self.gpus_per_node is None:
            raise Refused("nodes stands without gpus_per_node\nworkers = nodes × gpus_per_node", "nodes")
        if self.gpus_per_worker != 1:
            raise Refused(
                f"gpus_per_worker is {self.gpus_per_worker} beside nodes\n"
                "with nodes there is one worker per GPU\n"
                "leave it out, or give `workers` instead of nodes",
                "gpus_per_worker",
            )
        workers = self.nodes * self.gpus_per_node
        if workers > MOST_WORKERS:
            raise Refused(
                f"{self.nodes} nodes × {self.gpus_per_node} GPUs = {workers} workers\n"
                f"at most {MOST_WORKERS} are allowed",
                "nodes",
            )
        return self

    @property
    def min_workers(self) -> int:
        """The smallest world size the job runs at."""
        return self._worker_bounds()[0]

    @property
    def max_workers(self) -> int:
        """The largest world size the job runs at; the same as min_workers for a fixed one."""
        return self._worker_bounds()[1]

    def _worker_bounds(self) -> tuple[int, int]:
        workers = self.workers if self.workers is not None else (self.nodes or 1) * (self.gpus_per_node or 1)
        return workers if isinstance(workers, tuple) else (workers, workers)


class Storage(Section):
    """Where runs are kept: a path that every node sees, or S3."""

    uri: StorageUri
    """A path (relative to the job file) or `s3://bucket/prefix`."""

    endpoint: Endpoint | None = None
    """Address of an S3 server other than Amazon's."""

    region: Text | None = None
    """Region of the S3 bucket."""

    profile: Text | None = None
    """Profile of the AWS credentials file to use."""

    @model_validator(mode="after")
    def _options_are_for_s3(self) -> Storage:
        for key in self._given("endpoint", "region", "profile"):
            if not self.uri.startswith("s3://"):
                raise Refused(
                    f"{key} is given, and the storage is the path {self.uri}\n"
                    "endpoint, region and profile are for s3://bucket/prefix alone",
                    key,
                )
        return self


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
    """Restarts of the worker group before the run fails."""

    watchdog: Watchdog = Watchdog()
    """Time limits per phase."""

    grace_s: Seconds = Field(default=30.0, alias="grace")
    """After a request to stop: how long the last save may take."""


class Job(Section):
    """One training job."""

    name: Name
    """Name of the run: up to 47 lowercase letters, digits and '-', beginning with a letter."""

    task: ImportPath | None = None
    """A `Task` class, `package.module:Class`, for the kit's own training loop. Exactly one of `task`,
    `function` and `script`."""

    function: ImportPath | None = None
    """A function `train(config)`, `package.module:function`, with a loop of its own."""

    script: ScriptPath | None = None
    """An unchanged torchrun script, a path below `code`."""

    args: Args = Field(default_factory=dict)
    """What `task` or `function` is given: a mapping, the place for hyperparameters such as `lr`. For
    `script`: a list of command line arguments."""

    data: dict[Identifier, DataEntry] = Field(default_factory=dict)
    """Data sets by name (a-z, 0-9 and '_')."""

    train: Train | None = None
    """The training loop. Needed for `task`, refused for `function` and `script`."""

    checkpoint: Checkpoint | None = None
    """When to save and what to keep."""

    resources: Resources = Resources()
    """How many workers, and what each one gets."""

    storage: Annotated[Storage, BeforeValidator(_storage, json_schema_input_type=str | Storage)] = Storage(
        uri="runs"
    )
    """Where runs are kept: a path or `s3://bucket/prefix`, or a mapping with options."""

    failures: Failures = Failures()
    """Restarts, time limits and the grace time."""

    env: dict[Variable, Argument] = Field(default_factory=dict)
    """Environment variables of the workers. They are recorded with the run: no secrets here."""

    code: Path = "."
    """Folder of your code (relative to the job file): where imports start, and the working directory."""

    @model_validator(mode="before")
    @classmethod
    def _defaults_of_the_way_in(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        default: dict[str, Any] = {"checkpoint": {}} if data.get("script") is None else {"args": []}
        return default | {key: value for key, value in data.items() if value is not None}

    @model_validator(mode="after")
    def _consistent(self) -> Job:
        self._exactly_one_of("task", "function", "script")
        _check_way_in(self)
        if self.train is not None:
            _check_device(self.train, self.resources)
            _check_batch(self.train, self.resources)
        return self

    @property
    def world_sizes(self) -> tuple[int, ...]:
        """The numbers of workers this job can run with: those that global_batch_size divides into."""
        sizes = range(self.resources.min_workers, self.resources.max_workers + 1)
        return tuple(size for size in sizes if self.train is None or _divides(self.train, size))


def _check_way_in(job: Job) -> None:
    """Sections that a way in cannot apply are refused, not ignored."""
    way = job._given("task", "function", "script")[0]
    wanted, found = (list, "a mapping") if way == "script" else (dict, "a list")
    if not isinstance(job.args, tuple if wanted is list else dict):
        raise Refused(
            f"args is {found}, and the job runs a {way}\n"
            + (
                "a script takes a list of command line arguments: args: [--lr, 0.1]"
                if way == "script"
                else f"a {way} takes its arguments by name: args: {{lr: 0.1}}"
            ),
            "args",
        )
    if way == "task" and job.train is None:
        raise Refused(
            "the section train is missing\n"
            "a task needs epochs or steps, and batch_size or global_batch_size\n"
            "for example: train: {epochs: 3, batch_size: 32}",
            "task",
        )
    if way != "task" and job.train is not None:
        raise Refused(
            f"the section train stands beside a {way}\n"
            f"a {way} runs its own training loop, so train would do nothing\n"
            "put its numbers under args",
            "train",
        )
    if way == "script" and job.checkpoint is not None:
        raise Refused(
            "the section checkpoint stands beside a script\na script saves its own checkpoints\n"
            "it finds the folder for them in CLUSTERTRAIN_CHECKPOINT_DIR",
            "checkpoint",
        )


def _check_device(train: Train, resources: Resources) -> None:
    if resources.gpus_per_worker > 0:
        return
    if train.sync_batchnorm:
        raise Refused(
            "train.sync_batchnorm is true with 0 GPUs per worker\ntorch has no SyncBatchNorm on CPU\n"
            "set resources.gpus_per_worker, or leave sync_batchnorm out",
            "train",
            "sync_batchnorm",
        )
    if train.precision == "fp16":
        raise Refused(
            "train.precision is fp16 with 0 GPUs per worker\nfp16 needs a GPU\n"
            "set resources.gpus_per_worker, or use bf16 or fp32 on CPU",
            "train",
            "precision",
        )


def _divides(train: Train, workers: int) -> bool:
    return train.global_batch_size is None or train.global_batch_size % (workers * train.accumulate) == 0


def _check_batch(train: Train, resources: Resources) -> None:
    """global_batch_size = samples per worker × workers × accumulate, for some allowed number of workers."""
    batch, least, most = train.global_batch_size, resources.min_workers, resources.max_workers
    if batch is None or any(_divides(train, size) for size in range(least, most + 1)):
        return
    share = most * train.accumulate
    lower = max(1, batch // share) * share
    if least == most:
        product = f"{most} workers × accumulate {train.accumulate} = {share}"
        what = f"{product}, {batch} / {share} = {batch / share:.6g}"
        remedy = f"the nearest values that work: {lower} and {lower + share}"
    else:
        what = f"none of {least} to {most} workers, × accumulate {train.accumulate}, divides it"
        below = next((size for size in range(least - 1, 0, -1) if _divides(train, size)), None)
        above = next((size for size in range(most + 1, MOST_WORKERS + 1) if _divides(train, size)), None)
        sizes = " and ".join(str(size) for size in (below, above) if size) or "none"
        remedy = (
            f"it would divide by these workers: {sizes}; {most} workers would take {lower} or {lower + share}"
        )
    raise Refused(
        f"train.global_batch_size is {batch}: {what}\n"
        f"it must be a multiple of workers × accumulate\n{remedy}",
        "train",
        "global_batch_size",
    )


def sections(
    model: type[Section] = Job, path: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], type[Section]]]:
    """Every section of the file with its path of keys, outermost first; `*` is any name, as in data.*."""
    yield path, model
    for attribute, field in model.model_fields.items():
        key: tuple[str, ...] = (field.alias or attribute,)
        if get_origin(field.annotation) is dict:
            key = (*key, "*")
        for inner in (field.annotation, *get_args(field.annotation)):
            if isinstance(inner, type) and issubclass(inner, Section):
                yield from sections(inner, path + key)
