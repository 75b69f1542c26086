"""The settings of the training loop: plain values with defaults, independent of the job file."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from clustertrain.errors import JobError


@dataclass(frozen=True)
class EarlyStop:
    """The run ends after `patience` evaluations in a row that did not improve `metric` by more than
    `min_delta`."""

    metric: str  # "loss", or a name of the task's metrics
    mode: Literal["min", "max"]
    patience: int
    min_delta: float = 0.0

    def __post_init__(self) -> None:
        """
        Raises:
            JobError: patience is less than 1, or min_delta less than 0.
        """
        for key, value, least in (("patience", self.patience, 1), ("min_delta", self.min_delta, 0)):
            if not value >= least:
                raise JobError(
                    f"train.early_stop.{key} is {value}; it must be at least {least}.\nSet a larger value."
                )


@dataclass(frozen=True)
class TrainSettings:
    """The loop's settings: exactly one of `epochs` and `steps`, and one of the two batch sizes."""

    epochs: int | None = None
    steps: int | None = None  # optimizer steps
    batch_size: int | None = None  # samples per rank and forward pass
    global_batch_size: int | None = None  # samples per optimizer step: batch_size × world_size × accumulate
    seed: int = 0
    precision: Literal["fp32", "bf16", "fp16"] = "fp32"
    float8: bool = False  # large matrix products
    matmul: Literal["tf32", "highest"] = "tf32"  # products of fp32 numbers on GPUs
    cudnn: Literal["measured", "default", "deterministic"] = "measured"  # its choice of algorithms
    accumulate: int = 1  # forward and backward passes per optimizer step
    clip_norm: float | None = None
    compile: bool = False
    compile_dynamic: bool = False  # one kernel for all shapes
    compile_mode: str = "default"  # of torch.compile
    recompile_limit: int = 8  # shapes that are compiled
    normalization: Literal["as_is", "sync", "group", "instance", "layer"] = "as_is"  # of BatchNorm layers
    strategy: Literal["ddp", "fsdp"] = "ddp"
    shard: Literal["full", "hybrid"] = "full"  # of FSDP: over all ranks, or within each node
    fsdp_blocks: tuple[str, ...] = ()  # class names of modules
    fsdp_reshards: bool = True  # a block's parameters are freed after its forward pass
    fsdp_exchanges_every_pass: bool = True  # with accumulate
    activation_checkpointing: Literal["none", "blocks", "operations"] = "none"
    ddp_bucket_cap_mb: float = 25.0
    ddp_static_graph: bool = False
    ddp_broadcast_buffers: bool = True
    find_unused_parameters: bool = False
    gradient_compression: Literal["none", "fp16", "bf16"] = "none"
    lr_scaling: Literal["none", "linear", "sqrt"] = "none"
    lr_base_batch_size: int | None = None  # None: one rank's batch
    warmup_steps: int = 0
    log_every: int = 10  # optimizer steps
    eval_every_steps: int | None = None
    eval_every_epochs: int | None = None
    early_stop: EarlyStop | None = None
    compare_weights_every: int | None = None  # optimizer steps; None: at every save, 0: never
    loader_workers: int | Literal["auto"] = 0  # processes per rank
    cpus: float | None = None  # of this rank, for loader_workers auto; None: its share of the node's
    limit_batches: int | None = None  # optimizer steps per epoch, and batches per rank and evaluation
    save_every_steps: int | None = None
    save_every_epochs: int | None = None
    save_every_minutes: float | None = None
    profile_steps: tuple[int, int] | None = None  # the first and the last one, counted from 1
    keep_best: str | None = (
        None  # the metric of an evaluation by which the launcher keeps the best checkpoint
    )
    job_sha256: str = ""  # a resume under another job takes the optimizer's settings from that job

    @property
    def processes(self) -> int:
        """Loader processes per rank; 0 as long as "auto" is not resolved: feeding.with_loader_processes."""
        return 0 if self.loader_workers == "auto" else self.loader_workers

    def __post_init__(self) -> None:
        """
        Raises:
            JobError: both or none of a pair are given.
        """
        _exactly_one("epochs", self.epochs, "steps", self.steps)
        _exactly_one("batch_size", self.batch_size, "global_batch_size", self.global_batch_size)

    @property
    def required_metrics(self) -> dict[str, str]:
        """The metrics that an evaluation must report, by the key of the job that names them."""
        named = {
            "checkpoint.keep_best.metric": self.keep_best,
            "train.early_stop.metric": self.early_stop.metric if self.early_stop is not None else None,
        }
        return {key: metric for key, metric in named.items() if metric is not None}


def _exactly_one(first: str, value: int | None, second: str, other: int | None) -> None:
    if (value is None) == (other is None):
        raise JobError(
            f"train: {first} is {value} and {second} is {other}; exactly one of them is needed.\n"
            f"Set only {first} or only {second}."
        )
