"""The section `train` of a job file: clustertrain's training loop.

`docs/job-file.md` is generated from the docstrings here.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, PlainValidator, StrictBool, model_validator

from clustertrain.job.sections import Section
from clustertrain.job.strategy import CompileOrBool, Ddp, Fsdp
from clustertrain.job.values import (
    ArgsByName,
    Count,
    CountOrZero,
    DottedName,
    Loggers,
    MetricName,
    Positive,
    PositiveOrZero,
    Refused,
    Text,
)
from clustertrain.units import integer, shortened


class LearningRate(Section):
    """How the learning rate follows the batch size. The learning rate itself is one of your `args`."""

    scaling: Literal["none", "linear", "sqrt"] = "none"
    """`linear` multiplies the learning rate by (global batch / base batch), `sqrt` by the square root of it;
    `none` does not change it."""

    base_batch_size: Count | None = None
    """The global batch for which the learning rate was tuned. By default one worker's batch: `linear` then
    multiplies by workers × accumulate."""

    warmup_steps: CountOrZero = 0
    """Optimizer steps over which the learning rate rises linearly to its value."""


class EvalEvery(Section):
    """How often to evaluate: exactly one of the two keys."""

    epochs: Count | None = None
    """Epochs between evaluations."""

    steps: Count | None = None
    """Optimizer steps between evaluations."""

    @model_validator(mode="after")
    def _one_period(self) -> EvalEvery:
        self._exactly_one_of("epochs", "steps", example="epochs: 1")
        return self


class EarlyStop(Section):
    """Ends the run when a metric has not improved in several evaluations in a row. The run saves and is done.
    After a resume the count continues from the checkpoint; a larger `patience` continues a run that ended."""

    metric: Text
    """`loss`, or the name of a metric of the evaluation. Another name is refused before the first step."""

    mode: Literal["min", "max"]
    """Whether smaller or larger values are better."""

    patience: Count
    """How many evaluations in a row without an improvement end the run. `eval_every` sets their period."""

    min_delta: PositiveOrZero = 0.0
    """A value is an improvement if it is better than the best one by more than this."""


class Part(Section):
    """A class or function by its name in Python, with arguments; without arguments the name is enough:
    `loss: torch.nn.MSELoss`."""

    class_: DottedName = Field(alias="class")
    """A class, which is created with `args`, or a function, which is called with them, of an installed
    package or of your code."""

    args: ArgsByName = Field(default_factory=dict)
    """Arguments by name."""


def _part(value: object) -> object:
    return {"class": value} if isinstance(value, str) else value


PartOrName = Annotated[Part, BeforeValidator(_part, json_schema_input_type=DottedName | Part)]


def _processes(value: object) -> int | Literal["auto"]:
    if value == "auto":
        return "auto"
    try:
        count = integer(value)
    except ValueError:
        count = -1
    if count < 0:
        raise ValueError("must be a whole number, at least 0, or auto")
    return count


LoaderWorkers = Annotated[
    int | Literal["auto"],
    PlainValidator(_processes, json_schema_input_type=Annotated[int, Field(ge=0)] | Literal["auto"]),
]
MOST_LOADER_WORKERS = 1024  # per worker
MOST_PROFILED_STEPS = 100


def _first_and_last(value: object) -> object:
    rule = "must be [first, last]: two steps, counted from 1"
    if not isinstance(value, list | tuple) or len(value) != 2:
        raise ValueError(rule)
    first, last = (integer(step) for step in value)
    given = shortened(str([first, last]))
    if not 1 <= first <= last:
        raise Refused(f"{given} is not accepted\n{rule}, with 1 ≤ first ≤ last\nfor example: [10, 15]")
    if last - first >= MOST_PROFILED_STEPS:
        raise Refused(
            f"{given} are {last - first + 1} steps\n"
            f"at most {MOST_PROFILED_STEPS} are allowed: a profile has every operation of each step\n"
            "name fewer steps"
        )
    return first, last


class Profile(Section):
    """A profile of a few steps: what each worker did when, as a trace for Perfetto and TensorBoard."""

    steps: Annotated[
        tuple[int, int], BeforeValidator(_first_and_last, json_schema_input_type=tuple[Count, Count])
    ]
    """The first and the last optimizer step to record, counted from 1: `[10, 15]` records six steps."""


class Train(Section):
    """clustertrain's training loop. Only for `task`: a function or a script has its own loop."""

    epochs: Count | None = None
    """Passes over the training data. Exactly one of `epochs` and `steps`."""

    steps: Count | None = None
    """Optimizer steps. Exactly one of `epochs` and `steps`."""

    batch_size: Count | None = None
    """Samples per worker and forward pass. Exactly one of `batch_size` and `global_batch_size`."""

    global_batch_size: Count | None = None
    """Samples per optimizer step over all workers: batch size × workers × accumulate. It stays the same
    if the number of workers changes."""

    seed: CountOrZero = 0
    """Seed of the initial weights, the shuffling and the random numbers of every worker."""

    loss: PartOrName | None = None
    """The loss of outputs and targets in place of cross entropy, such as `{class: torch.nn.CrossEntropyLoss,
    args: {label_smoothing: 0.1}}`. Refused for a task that has its own method `loss`."""

    metrics: dict[MetricName, PartOrName] = Field(default_factory=dict)
    """The metrics of an evaluation by name, in place of the accuracy, such as `{f1: {class:
    torchmetrics.F1Score, args: {task: multiclass, num_classes: 10}}}`. Refused for a task that has its own
    method `metrics`."""

    precision: Literal["fp32", "bf16", "fp16"] = "fp32"
    """Number format of the forward pass; weights stay fp32. fp16 scales the loss and needs a GPU."""

    float8: StrictBool = False
    """Multiply the inputs, weights and gradients of large linear layers in float8, by torchao, on GPUs from
    Ada and Hopper on. Needs `precision: bf16` and the extra `float8`: see [float8](gpu.md#float8)."""

    matmul: Literal["tf32", "highest"] = "tf32"
    """Matrix products and convolutions of fp32 numbers on GPUs: `tf32` rounds the factors to 10 bits of
    mantissa and uses the tensor cores, `highest` computes in fp32. CPUs always do. `tf32` is the default,
    although torch's own for matrix products is fp32, because it is several times as fast, and the rounding
    is smaller than that of bf16: see [What TF32 does](gpu.md#what-tf32-does)."""

    cudnn: Literal["measured", "default", "deterministic"] = "measured"
    """How cuDNN chooses the algorithms of convolutions on GPUs: `measured` tries them for each new shape and
    uses the fastest, `default` does not try, `deterministic` uses only those whose results are the same each
    time. A task may set something else in `__init__` or `model`."""

    accumulate: Count = 1
    """Forward and backward passes per optimizer step."""

    clip_norm: Positive | None = None
    """Maximum norm of all gradients together; a larger norm is scaled down to it."""

    compile: CompileOrBool = None
    """Compile the model with torch.compile: `true`, or how; by default it is not compiled. A worker's node
    needs a compiler: g++, with GPUs gcc."""

    normalization: Literal["as_is", "sync", "group", "instance", "layer"] = "as_is"
    """What BatchNorm layers become, with their weights: `sync` normalizes over the batches of all workers and
    needs GPUs; `group`, `instance` and `layer` normalize each sample by itself."""

    strategy: Literal["ddp", "fsdp"] = "ddp"
    """`ddp`: every worker has the whole model. `fsdp` divides weights, gradients and the optimizer's state
    among the workers, for models that do not fit on one GPU: see [FSDP](fsdp.md)."""

    fsdp: Fsdp = Fsdp()
    """How `strategy: fsdp` divides the model."""

    ddp: Ddp = Ddp()
    """How `strategy: ddp` exchanges gradients."""

    activation_checkpointing: Literal["none", "blocks", "operations"] = "none"
    """What the backward pass computes again, in place of keeping it in memory. `blocks` keeps only the inputs
    of each block: about a third more computation. `operations` also keeps the results of matrix products,
    convolutions and attention, and computes the cheaper operations again. The blocks are those of
    [FSDP](fsdp.md#blocks), also with DDP."""

    find_unused_parameters: StrictBool = False
    """DDP detects parameters that a forward pass did not use. This costs a graph traversal per step."""

    gradient_compression: Literal["none", "fp16", "bf16"] = "none"
    """Exchange gradients in this number format: half of the bytes."""

    lr: LearningRate = LearningRate()
    """How the learning rate follows the batch size."""

    log_every: Count = 10
    """Optimizer steps between two lines of metrics."""

    log: Loggers = ("tensorboard",)
    """Where the metrics are written as a curve: `tensorboard`, `mlflow`, `wandb`, one or several. With an
    empty list, none."""

    eval_every: EvalEvery = EvalEvery(epochs=1)
    """How often to evaluate."""

    early_stop: EarlyStop | None = None
    """Ends the run early when a metric of the evaluation no longer improves."""

    compare_weights_every: CountOrZero | None = None
    """Optimizer steps between comparisons of all workers' weights and optimizer states; by default at every
    save, with 0 never."""

    loader_workers: LoaderWorkers = "auto"
    """Loader processes per worker, at most 1024; with 0 the worker itself loads the data. `auto` is 0 on
    CPUs. With GPUs a batch is loaded and timed at the start: below 2 ms it is 0, otherwise `cpus_per_worker`
    - 1, at most 16. It is also 0 if each process would have a copy of more than 256 MiB."""

    profile: Profile | None = None
    """Records a few steps in a file per worker, in the run's folder; the log shows where."""

    memory_snapshot: StrictBool = False
    """If a GPU is out of memory, write what it held and the last 100,000 allocations, with their lines of
    code: a file in the run's folder, which the message names. It costs each allocation a few microseconds."""

    limit_batches: Count | None = None
    """For debugging: at most this many optimizer steps per epoch, and batches per worker and evaluation. The
    results are then not those of the whole data, so a run with another value is another run."""

    sanity: StrictBool = True
    """Before each start, rehearse the task in one process: build the model and the optimizer, one training
    batch forward and backward, one evaluation batch through every metric. With `false` only the import of the
    code and `args` are checked."""

    @model_validator(mode="before")
    @classmethod
    def _lr_is_an_argument(cls, data: Any) -> Any:
        if isinstance(data, dict) and isinstance(data.get("lr"), int | float | str):
            raise Refused(
                f"{shortened(str(data['lr']))} is not a mapping\n"
                "the section lr configures how the learning rate follows the batch size\n"
                "pass the learning rate itself to your task, under args",
                "lr",
            )
        return data

    @model_validator(mode="after")
    def _loss_is_reported_anyway(self) -> Train:
        if "loss" in self.metrics:
            raise Refused(
                "every evaluation reports its loss under this name\nuse another name", "metrics", "loss"
            )
        return self

    @model_validator(mode="after")
    def _profile_is_within_the_run(self) -> Train:
        if self.profile is not None and self.steps is not None and self.profile.steps[1] > self.steps:
            raise Refused(
                f"{list(self.profile.steps)} are not all steps of this run: it has {self.steps}\n"
                "name steps from 1 to train.steps, or train longer",
                "profile",
                "steps",
            )
        return self

    @model_validator(mode="after")
    def _float8_has_bf16(self) -> Train:
        if self.float8 and self.precision != "bf16":
            raise Refused(
                f"true with precision {self.precision}\nother operations than the products are in bf16\n"
                "set precision: bf16, or remove the key",
                "float8",
            )
        return self

    @model_validator(mode="after")
    def _strategy_has_what_it_needs(self) -> Train:
        if self.strategy == "ddp":
            if self.fsdp != Fsdp():
                raise Refused(
                    "is given, but strategy is ddp\n"
                    "the section configures FSDP\nset strategy: fsdp, or remove it",
                    "fsdp",
                )
            return self
        unfit = {
            "precision": (self.precision == "fp16", "bf16 or fp32: bf16 needs no loss scaling"),
            "gradient_compression": (
                self.gradient_compression != "none",
                "none; precision bf16 has the same use",
            ),
            "compare_weights_every": (
                bool(self.compare_weights_every),
                "0: no two workers have the same weights",
            ),
        }
        for key, (is_unfit, remedy) in unfit.items():
            if is_unfit:
                raise Refused(
                    f"is {getattr(self, key)}, and strategy is fsdp\nFSDP does not support it\nset {remedy}",
                    key,
                )
        return self

    @property
    def parts(self) -> Iterator[tuple[tuple[str, ...], Part]]:
        """The loss and the metrics of the job file, each with its path of keys."""
        if self.loss is not None:
            yield ("train", "loss"), self.loss
        for name, metric in self.metrics.items():
            yield ("train", "metrics", name), metric

    @model_validator(mode="after")
    def _one_length_and_one_batch(self) -> Train:
        self._exactly_one_of("epochs", "steps", example="epochs: 3")
        self._exactly_one_of("batch_size", "global_batch_size", example="batch_size: 32")
        return self
