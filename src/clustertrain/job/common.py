"""The keys of a job file that every launcher understands, and the rules that involve several sections.

`clustertrain.job.file` reads and writes the file and formats the errors.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any, Self

from pydantic import BeforeValidator, Field, model_validator

from clustertrain.job.data_and_storage import DataEntry, Storage
from clustertrain.job.references import check_dollars, check_references
from clustertrain.job.sections import Checkpoint, Drill, Failures, Resources, Section
from clustertrain.job.train import Train
from clustertrain.job.values import (
    Args,
    Argument,
    CodeFolders,
    Count,
    Environment,
    Identifier,
    Image,
    ImportPath,
    ModuleName,
    Name,
    Path,
    Refused,
    Scratch,
    ScriptPath,
    written_as,
)
from clustertrain.node import variables
from clustertrain.node.version import __version__
from clustertrain.storage.location import Location

JOB_VERSION = 1
"""The newest version of the job file: a change of the meaning of a key raises it."""
_ENTRY_POINTS = ("task", "function", "script", "module")
_OF_FUNCTION = Checkpoint.model_validate({"every": {"minutes": 10}})
DEFAULT_LOGGERS = ("tensorboard",)
"""Those of a function with its own loop."""
StorageText = Annotated[str, written_as("path or URI")]


def _storage(value: object) -> object:
    return {"uri": value} if isinstance(value, str) else value


class CommonJob(Section):
    """One training job, without the sections of the launchers."""

    version: Annotated[Count, Field(le=JOB_VERSION)] = JOB_VERSION
    """Version of the job file's format. A clustertrain that does not know it refuses the file."""

    name: Name
    """Name of the run: up to 47 lowercase letters, digits and '-', beginning with a letter."""

    task: ImportPath | None = None
    """A `Task` class, `package.module:Class`, for clustertrain's training loop. Exactly one of `task`,
    `function`, `script` and `module`."""

    function: ImportPath | None = None
    """A function `train(config)`, `package.module:function`, with its own training loop."""

    script: ScriptPath | None = None
    """An unchanged torchrun script: a path below `code`."""

    module: ModuleName | None = None
    """A module that runs like a script: `package.train`, started as `python -m package.train`. Everything
    said about `script` also holds for `module`."""

    args: Args = Field(default_factory=dict)
    """The arguments of `task` or `function`: a mapping. For `script`: a list of command line arguments, in
    which `${CLUSTERTRAIN_DATA_TRAIN}` is replaced in each worker."""

    resume_args: tuple[Argument, ...] = ()
    """More arguments for `script`, added after `args` at every start that finds something in the script's
    checkpoint folder, for example `[--init_from=resume]`."""

    data: dict[Identifier, DataEntry] = Field(default_factory=dict)
    """Data sets by name (a-z, 0-9 and '_')."""

    scratch: Scratch | None = None
    """Where each node keeps its copies of data (`per: node`): a folder such as `/local/scratch`, or a
    variable that contains it on the node, such as `SLURM_TMPDIR`. Default: the cache in the home folder."""

    train: Train | None = None
    """The training loop. Required for `task`, refused for the other entry points."""

    checkpoint: Checkpoint = Checkpoint()
    """When to save and what to keep. Refused for `script`, which saves its own checkpoints."""

    resources: Resources = Resources()
    """The number of workers, and the CPUs, GPUs and memory of each."""

    storage: Annotated[Storage, BeforeValidator(_storage, json_schema_input_type=StorageText | Storage)] = (
        Storage(uri="runs")
    )
    """Where runs are stored: a path or `s3://bucket/prefix`, or a mapping with options."""

    failures: Failures = Failures()
    """Restarts, time limits and the grace period."""

    drill: Drill = Drill()
    """For `clustertrain drill`, which proves that this training resumes: see [drill](../guides/drill.md)."""

    env: Environment = Field(default_factory=dict)
    """Environment variables of the workers ([when they take
    effect](environment.md#when-env-takes-effect)). They are recorded as they are written, so write
    a secret as `${MY_KEY}`."""

    code: CodeFolders = (".",)
    """Folder of your code, relative to the job file, or a list of folders, which are all on the import path.
    The first one is the working directory, of a submitted run [a copy of
    it](../guides/storage.md#relative-paths)."""

    interpreter: Path | None = None
    """The Python that starts a `script` or `module`, or the folder of a virtual environment, if its packages
    are in another environment. It is a path of the machines that run the job, and needs neither Ray nor
    clustertrain."""

    image: Image | None = None
    """The container image, for every target that uses one: `registry.example.org/team/train:1.0`, or a `.sif`
    file for apptainer."""

    @model_validator(mode="before")
    @classmethod
    def _defaults_of_the_entry_point(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        is_script = data.get("script") is not None or data.get("module") is not None
        if is_script and data.get("args") is None:
            return {**data, "args": []}
        checkpoint = data.get("checkpoint") or {}
        if data.get("function") is not None and isinstance(checkpoint, dict):
            return {**data, "checkpoint": {"every": _OF_FUNCTION.every, **checkpoint}}
        return data

    @model_validator(mode="before")
    @classmethod
    def _of_a_known_version(cls, data: Any) -> Any:
        """Refuse a later version before all other rules: what it means by its keys is unknown here."""
        version = data.get("version") if isinstance(data, dict) else None
        if isinstance(version, int | float) and version > JOB_VERSION:
            raise Refused(
                f"{version} is of a later clustertrain\n"
                f"clustertrain {__version__} reads versions up to {JOB_VERSION}\n"
                "install a later clustertrain",
                "version",
            )
        return data

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        self._exactly_one_of(*_ENTRY_POINTS, example="task: package.module:Class")
        self._check_entry_point()
        self._check_references()
        if self.train is not None:
            _check_device(self.train, self.resources)
            _check_batch(self.train, self.resources)
        return self

    def _check_entry_point(self) -> None:
        """Refuse sections that the entry point cannot use, which would otherwise be ignored."""
        entry_point = self.entry_point
        if self.is_script and isinstance(self.args, dict):
            rule = f"a {entry_point} takes a list of command line arguments: args: [--lr, 0.1]"
            raise Refused(f"a mapping is given together with {entry_point}\n{rule}", "args")
        if not self.is_script and not isinstance(self.args, dict):
            rule = f"a {entry_point} takes its arguments by name: args: {{lr: 0.1}}"
            raise Refused(f"a list is given together with {entry_point}\n{rule}", "args")
        if entry_point == "task" and self.train is None:
            raise Refused(
                "the section train is missing\n"
                "a task needs epochs or steps, and batch_size or global_batch_size\n"
                "for example train: {epochs: 3, batch_size: 32}",
                "task",
            )
        unfit = {
            "resume_args": (
                bool(self.resume_args) and not self.is_script,
                "gets its state from clustertrain and needs no argument to resume\nleave it out",
            ),
            "interpreter": (
                self.interpreter is not None and not self.is_script,
                "runs in the worker's own process, whose Python needs torch and Ray\n"
                "install your packages there, or run a script or module",
            ),
            "train": (
                self.train is not None and entry_point != "task",
                "runs its own training loop, so the section would have no effect\nput its values under args",
            ),
            "checkpoint": (
                "checkpoint" in self.model_fields_set and self.is_script,
                "saves its own checkpoints\n"
                f"the variable {variables.CHECKPOINT_DIR} gives it the folder for them",
            ),
        }
        for key, (is_given, rule) in unfit.items():
            if is_given:
                raise Refused(f"is given together with {entry_point}\na {entry_point} {rule}", key)
        if entry_point == "function" and self.checkpoint.periods.epochs is not None:
            raise Refused(
                "the key epochs is given together with function\n"
                "only the function's own loop knows its epochs\n"
                "save by steps or minutes instead, for example every: {minutes: 10}",
                "checkpoint",
                "every",
                "epochs",
            )
        if self.train is None and self.checkpoint.memory_every != "auto":
            raise Refused(
                f"is {self.checkpoint.memory_every} for a {entry_point}\n"
                "only a task has steps that are kept in memory\nremove the key",
                "checkpoint",
                "memory_every",
            )

    def _check_references(self) -> None:
        args = enumerate(self.args) if not isinstance(self.args, dict) else ()
        texts: list[tuple[str, str | int, str]] = [("args", index, text) for index, text in args]
        texts += [("resume_args", index, text) for index, text in enumerate(self.resume_args)]
        texts += [("env", name, text) for name, text in self.env.items()]
        for key, item, text in texts:
            try:
                if key == "env":
                    check_dollars(text)
                check_references(text, self.data, self.entry_point, is_script=self.is_script)
            except Refused as error:
                raise Refused(str(error), key, item) from None

    @property
    def entry_point(self) -> str:
        """The key that names it: task, function, script or module."""
        return self._given(*_ENTRY_POINTS)[0]

    @property
    def start_texts(self) -> dict[str, str]:
        """By their keys, the texts whose ${NAME} is replaced where the run starts, and in no record."""
        return {f"env.{name}": text for name, text in self.env.items()}

    @property
    def run_uri(self) -> str:
        """The folder of its run."""
        return f"{self.storage.uri.rstrip('/')}/{self.name}"

    @property
    def loggers(self) -> tuple[str, ...]:
        """The names of `train.log`; for a function the default. A script writes no metrics."""
        return self.train.log if self.train is not None else DEFAULT_LOGGERS

    @property
    def is_script(self) -> bool:
        """Whether the workers start it as a child process: a script or a module."""
        return self.script is not None or self.module is not None

    @property
    def has_own_checkpoint_section(self) -> bool:
        """Whether the section `checkpoint` of a function says something else than without it."""
        return self.checkpoint != _OF_FUNCTION

    @property
    def world_sizes(self) -> tuple[int, ...]:
        """The numbers of workers that this job can run with: those that divide global_batch_size evenly."""
        sizes = range(self.resources.min_workers, self.resources.max_workers + 1)
        return tuple(size for size in sizes if self.train is None or _divides(self.train, size))

    @property
    def node_counts(self) -> tuple[int, ...]:
        """Return the numbers of nodes that this job can run on.

        These are all n for which n × workers_per_node divides global_batch_size evenly. It is (1,) if
        `resources.nodes` is not set.
        """
        shape = self.resources
        if shape.nodes is None:
            return (1,)
        counts = range(shape.min_nodes, shape.max_nodes + 1)
        return tuple(
            n for n in counts if self.train is None or _divides(self.train, n * shape.workers_per_node)
        )

    def data_location(self, name: str) -> Location:
        """Return the source of a data set; an S3 entry without options takes them from the storage."""
        entry, storage = self.data[name], self.storage.location
        own = entry.location
        if not (own.is_s3 and storage.is_s3):
            return own
        if own == Location(own.uri):
            return replace(storage, uri=own.uri)
        return replace(own, retry_s=storage.retry_s)


def _check_device(train: Train, resources: Resources) -> None:
    if resources.gpus_per_worker > 0:
        return
    unfit = {
        "sync_batchnorm": (train.sync_batchnorm, "torch has no SyncBatchNorm on CPU", "remove it"),
        "precision": (train.precision == "fp16", "fp16 needs a GPU", "use bf16 or fp32 on CPU"),
    }
    for key, (is_unfit, why, other) in unfit.items():
        if is_unfit:
            remedy = f"set resources.gpus_per_worker, or {other}"
            raise Refused(f"{getattr(train, key)} with 0 GPUs per worker\n{why}\n{remedy}", "train", key)


def _divides(train: Train, workers: int) -> bool:
    return train.global_batch_size is None or train.global_batch_size % (workers * train.accumulate) == 0


def _check_batch(train: Train, resources: Resources) -> None:
    """Check the size of the global batch for some allowed number of workers.

    The rule is global_batch_size = samples per worker × workers × accumulate.
    """
    batch, least, most = train.global_batch_size, resources.min_workers, resources.max_workers
    step = 1 if resources.nodes is None else resources.workers_per_node
    if batch is None or any(_divides(train, size) for size in range(least, most + 1, step)):
        return
    share = most * train.accumulate
    multiples = [
        f"{multiple}" for multiple in (batch // share * share, batch // share * share + share) if multiple
    ]
    nearest = " and ".join(multiples)
    if least == most:
        product = f"{most} workers × accumulate {train.accumulate} = {share}"
        what = f"{product}, and {batch} / {share} = {batch / share:.6g}"
        remedy = f"nearest that fit: {nearest}"
    else:
        nodes = f" ({step} on each node)" if step > 1 else ""
        what = (
            f"no number of workers from {least} to {most}{nodes}, × accumulate {train.accumulate}, divides it"
        )
        remedy = f"nearest that fit {most} workers: {nearest}"
    raise Refused(
        f"{batch} is not a multiple of workers × accumulate\n{what}\n{remedy}",
        "train",
        "global_batch_size",
    )
