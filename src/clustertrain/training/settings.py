"""The settings of the training loop: plain values with defaults, which can be used without a job file.

Most of them are keys of a job file: job/ derives the section `train` from these classes, and checks the
values. The docstrings are those of docs/reference/job-file.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

# What a job file checks of a value beside its type: job/sections.py.
Count = Annotated[int, "at least 1"]
CountOrZero = Annotated[int, "at least 0"]
Positive = Annotated[float, "more than 0"]
PositiveOrZero = Annotated[float, "at least 0"]
Text = Annotated[str, "not empty"]


@dataclass(frozen=True)
class LearningRate:
    """How the learning rate follows the batch size. The learning rate itself is one of your `args`."""

    scaling: Literal["none", "linear", "sqrt"] = "none"
    """`linear` multiplies the learning rate by (global batch / base batch), `sqrt` by the square root of it;
    `none` does not change it."""

    base_batch_size: Count | None = None
    """The global batch for which the learning rate was tuned. By default one worker's batch: `linear` then
    multiplies by workers × accumulate."""

    warmup_steps: CountOrZero = 0
    """Optimizer steps over which the learning rate rises linearly to its value."""


@dataclass(frozen=True)
class EvalEvery:
    """How often to evaluate: exactly one of the two keys."""

    epochs: Count | None = None
    """Epochs between evaluations."""

    steps: Count | None = None
    """Optimizer steps between evaluations."""


@dataclass(frozen=True)
class SaveEvery:
    """How often to save. With several keys, a save is due when the first of them is reached."""

    steps: Count | None = None
    """Optimizer steps between saves."""

    epochs: Count | None = None
    """Epochs between saves. Not for a `function`: only its own loop knows the epochs."""

    minutes: Positive | None = None
    """Minutes between saves."""


@dataclass(frozen=True)
class EarlyStop:
    """Ends the run when a metric has not improved in several evaluations in a row.

    The run saves and is done. After a resume the count continues from the checkpoint; a larger `patience`
    continues a run that ended.
    """

    metric: Text
    """`loss`, or the name of a metric of the evaluation. Another name is refused before the first step."""

    mode: Literal["min", "max"]
    """Whether smaller or larger values are better."""

    patience: Count
    """How many evaluations in a row without an improvement end the run. `eval_every` sets their period."""

    min_delta: PositiveOrZero = 0.0
    """A value is an improvement if it is better than the best one by more than this."""


@dataclass(frozen=True)
class Profile:
    """A profile of a few steps: what each worker did when, as a trace for Perfetto and TensorBoard."""

    steps: tuple[int, int]
    """The first and the last optimizer step to record, counted from 1: `[10, 15]` records six steps."""


@dataclass(frozen=True)
class Fsdp:
    """How FSDP divides the model, for `strategy: fsdp`."""

    blocks: tuple[Text, ...] = ()
    """The class names of the modules whose parameters are gathered together, such as `[TransformerLayer]`.
    Default: the method `blocks` of the task, or else large modules."""

    shard: Literal["full", "hybrid"] = "full"
    """`full` divides the model over all workers, `hybrid` over the workers of each node, so that nodes
    exchange only gradients."""

    reshard_after_forward: bool = True
    """Free the whole parameters of a block after its forward pass, and gather them again for its backward
    pass. With `false` there are fewer transfers, and more memory is used."""

    exchange_every_pass: bool = True
    """With `accumulate`, exchange gradients in each backward pass. With `false` only once per step: fewer
    transfers, and memory for all gradients."""


@dataclass(frozen=True)
class Ddp:
    """How DDP exchanges gradients, for `strategy: ddp`. The defaults are torch's."""

    bucket_cap_mb: Positive = 25
    """Gradients are exchanged in buckets of this many MiB, while the backward pass continues."""

    static_graph: bool = False
    """The model uses the same parameters in each step. DDP then finds unused parameters once."""

    broadcast_buffers: bool = True
    """Send rank 0's buffers, such as the running values of BatchNorm, to all workers before each forward
    pass. With `false` only before an evaluation and after a resume."""


@dataclass(frozen=True)
class Compile:
    """How torch.compile compiles the model."""

    dynamic: bool = False
    """`false` compiles once for each shape of a batch, `true` for all shapes together; a resumed run may then
    differ in the last bits."""

    mode: Literal["default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs"] = "default"
    """As torch.compile's `mode`: `reduce-overhead` uses CUDA graphs, for steps of many small kernels."""

    recompile_limit: Count = 8
    """How many shapes are compiled. The model runs uncompiled with further ones, and the log says so."""


@dataclass(frozen=True)
class Train:
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

    precision: Literal["fp32", "bf16", "fp16"] = "fp32"
    """Number format of the forward pass; weights stay fp32. fp16 scales the loss and needs a GPU."""

    matmul: Literal["tf32", "highest"] = "tf32"
    """Matrix products and convolutions of fp32 numbers on GPUs: `tf32` rounds the factors to 10 bits of
    mantissa and is several times as fast, `highest` computes in fp32. See [What TF32
    does](../guides/gpu-nodes.md#what-tf32-does)."""

    cudnn: Literal["measured", "default", "deterministic"] = "measured"
    """How cuDNN chooses the algorithms of convolutions on GPUs: `measured` tries them for each new shape,
    `default` does not try, `deterministic` uses only those whose results are the same each time."""

    accumulate: Count = 1
    """Forward and backward passes per optimizer step."""

    clip_norm: Positive | None = None
    """Maximum norm of all gradients together; a larger norm is scaled down to it."""

    compile: Compile | None = None
    """Compile the model with torch.compile: `true`, or how; by default it is not compiled. A worker's node
    needs a compiler: g++, with GPUs gcc."""

    sync_batchnorm: bool = False
    """BatchNorm layers normalize over the batches of all workers: torch's SyncBatchNorm, which needs GPUs."""

    strategy: Literal["ddp", "fsdp"] = "ddp"
    """`ddp`: every worker has the whole model. `fsdp` divides it among the workers: see [large
    models](../guides/large-models.md)."""

    fsdp: Fsdp = Fsdp()
    """How `strategy: fsdp` divides the model."""

    ddp: Ddp = Ddp()
    """How `strategy: ddp` exchanges gradients."""

    activation_checkpointing: Literal["none", "blocks", "operations"] = "none"
    """What the backward pass computes again instead of keeping it in memory. `blocks` keeps only the inputs
    of each [block](../guides/large-models.md#blocks). `operations` also keeps the results of matrix products,
    convolutions and attention."""

    find_unused_parameters: bool = False
    """DDP detects parameters that a forward pass did not use. This costs a graph traversal per step."""

    lr: LearningRate = LearningRate()
    """How the learning rate follows the batch size."""

    log_every: Count = 10
    """Optimizer steps between two lines of metrics."""

    eval_every: EvalEvery = EvalEvery(epochs=1)
    """How often to evaluate."""

    early_stop: EarlyStop | None = None
    """Ends the run early when a metric of the evaluation no longer improves."""

    compare_weights_every: CountOrZero | None = None
    """Optimizer steps between comparisons of all workers' weights and optimizer states; by default at every
    save, with 0 never."""

    loader_workers: CountOrZero | None = None
    """Loader processes per worker, at most 1024; with 0 the worker itself loads the data. Default: 0 on CPUs,
    4 with GPUs. Each process has a copy of the data set."""

    profile: Profile | None = None
    """Records a few steps in a file per worker, in the run's folder; the log shows where."""

    limit_batches: Count | None = None
    """For debugging: at most this many optimizer steps per epoch, and batches per worker and evaluation. A
    run with another value is another run."""


@dataclass(frozen=True)
class TrainSettings(Train):
    """The loop's settings: those of the section `train`, and what it needs of the rest of the job."""

    save_every: SaveEvery = SaveEvery()
    memory_every: int | None = None  # steps between two checkpoints in memory; None: measured
    keep_best: str | None = None  # the metric by which the launcher keeps the best checkpoint
    job_sha256: str = ""  # a resume under another job takes the optimizer's settings from that job
    records_samples: bool = False  # each rank logs a digest of the samples of each step
    sanity: bool = True  # tries the task once before the first step: see sanity.py

    @property
    def processes(self) -> int:
        """Loader processes per rank."""
        return self.loader_workers or 0

    @property
    def required_metrics(self) -> dict[str, str]:
        """The metrics that an evaluation must report, by the key of the job that names them."""
        named = {
            "checkpoint.keep_best.metric": self.keep_best,
            "train.early_stop.metric": self.early_stop.metric if self.early_stop is not None else None,
        }
        return {key: metric for key, metric in named.items() if metric is not None}
