"""The section `slurm` of a job file: settings for SLURM. Workers, CPUs, GPUs and memory are in `resources`.

Most values end up in an #SBATCH line, which sbatch splits at spaces, quotes and '#'. Each key therefore has a
set of allowed characters, so that no value can be more than one word of one option.
"""

from __future__ import annotations

import os
import re
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, StrictBool

from clustertrain.job.launcher_plugins import LauncherSection
from clustertrain.job.values import Path, Refused, Seconds, Variable, written_as

# sbatch keeps the time of --signal in 16 bits.
LONGEST_LEAD_S = 65_535

_GPUS = ("gpus", "gpus-per-node", "gpus-per-socket", "gpus-per-task", "gres")
_TASKS = ("ntasks-per-core", "ntasks-per-gpu", "ntasks-per-node", "ntasks-per-socket", "tasks-per-node")
# Options that the script sets itself, each with the keys of the job file that it comes from.
RESERVED_OPTIONS = {
    "account": "slurm.account",
    "constraint": "slurm.constraint",
    "container": "slurm.container",
    **dict.fromkeys(("cpus-per-gpu", "cpus-per-task"), "resources.cpus_per_worker"),
    "dependency": "slurm.dependency",
    "exclusive": "slurm.exclusive",
    **dict.fromkeys(("export", "export-file"), "slurm.environment"),
    **dict.fromkeys(_GPUS, "resources.gpus_per_worker"),
    "job-name": "slurm.job_name",
    **dict.fromkeys(("mem", "mem-per-cpu", "mem-per-gpu"), "resources.memory_per_worker"),
    **dict.fromkeys(("nodes", "ntasks", *_TASKS), "resources.nodes"),
    **dict.fromkeys(("error", "open-mode", "output"), "slurm.output"),
    "partition": "slurm.partition",
    "qos": "slurm.qos",
    "requeue": "slurm.requeue",
    "reservation": "slurm.reservation",
    "signal": "slurm.signal and slurm.lead_time",
    "time": "slurm.time_limit",
}
# Options that would break the run, each with the reason.
BREAKING_OPTIONS = {
    "array": "its elements would be one run: clustertrain submit --to slurm JOBFILE --grid KEY=V1,V2\n"
    "submits a job for each point of a sweep",
    "chdir": "relative paths start from the folder in which the job is submitted",
    "no-kill": "after the loss of a node the job would continue and end as COMPLETED",
    "no-requeue": "set slurm.requeue: false, and the run ends with a result of its own",
    "test-only": "nothing would be submitted: clustertrain render prints the script",
    "wait": "sbatch would not return before the job ends: clustertrain submit --wait follows the run",
    "wrap": "clustertrain generates the script",
}


def _one_word(what: str, characters: str) -> AfterValidator:
    """Return a validator for a text that has only these characters, written as in the brackets of a regex."""
    pattern = re.compile(f"[{characters}]+")
    shown = characters.replace("A-Za-z0-9_", "letters, digits and _ ").replace("\\", "")

    def word(text: str) -> str:
        if not pattern.fullmatch(text):
            raise ValueError(f"must be {what}, with only {shown}")
        return text

    return AfterValidator(word)


def _option(text: str) -> str:
    match = re.fullmatch(r"--([a-z][a-z0-9-]*)(=[!%&()*+,./0-9:;<=>?@A-Z\[\]^_a-z{|}~-]+)?", text)
    if not match:
        raise ValueError(
            "must be one long option with its value, such as --mail-type=END, without spaces or quotes\n"
            "in an #SBATCH line these would start another option"
        )
    # sbatch accepts an abbreviated name, as getopt_long does.
    near = [name for name in (*RESERVED_OPTIONS, *BREAKING_OPTIONS) if name.startswith(match[1])]
    for name in sorted(near, key=len)[:1]:
        if name in BREAKING_OPTIONS:
            raise Refused(f"--{name} is not allowed\n{BREAKING_OPTIONS[name]}")
        raise Refused(
            f"--{name} is set by clustertrain, from {RESERVED_OPTIONS[name]}\n"
            f"its own options are {', '.join(f'--{own}' for own in RESERVED_OPTIONS)}"
        )
    return text


def _variable(name: str) -> str:
    if name.upper() in ("ALL", "NONE", "NIL"):
        raise ValueError(
            "must be the name of a variable; this name has a special meaning for sbatch\n"
            "name each variable, so that no secret of the login environment is passed on unnoticed"
        )
    return name


def _shell_line(line: str) -> str:
    if not line.strip() or not line.replace("\t", " ").isprintable():
        raise ValueError("must be one line of shell, such as module load cuda")
    if line.endswith("\\"):
        raise ValueError("must not end with a backslash: it would join the next line of the script")
    if re.match(r"#\s*(SBATCH|PBS|BSUB)", line):
        raise ValueError(
            "must be shell; sbatch would read this line as an option\nput it under slurm.options"
        )
    return line


def _mount(mount: str) -> str:
    host, *rest = mount.split(":")
    inside = rest[0] if rest else host
    is_plain = mount.isprintable() and "," not in mount
    if is_plain and host.startswith("/") and inside.startswith("/") and rest[1:] in ([], ["ro"], ["rw"]):
        return mount
    raise ValueError("must be /folder, /folder:/inside or /folder:/inside:ro, absolute and without commas")


Word = Annotated[str, _one_word("a name", "A-Za-z0-9_.@+:=/-")]
Words = Annotated[str, _one_word("a name, or several separated by commas", "A-Za-z0-9_.@+:=/,-")]
JobName = Annotated[str, _one_word("a name", "A-Za-z0-9_.@+=-")]
Features = Annotated[
    str, _one_word("features, such as a100&nvlink or [rack1|rack2]", r"A-Za-z0-9_.,:=+*/!&|()\[\]-")
]
Dependency = Annotated[
    str, _one_word("a dependency, such as singleton or afterok:123", r"A-Za-z0-9_.:,?+*\[\]-")
]
PassedOn = Annotated[Variable, AfterValidator(_variable)]
ShellLine = Annotated[str, AfterValidator(_shell_line), written_as("text")]
Folder = Annotated[Path, _one_word("a folder", "A-Za-z0-9_./+@=-")]
Mount = Annotated[str, AfterValidator(_mount), written_as("`/folder[:/inside[:ro]]`")]
Option = Annotated[str, AfterValidator(_option), written_as("`--option=value`")]


class Slurm(LauncherSection):
    """Settings for SLURM; other targets ignore them. A site file can set a default for each key."""

    text_keys = frozenset(("partition", "account", "qos", "reservation", "job_name", "gpu_type"))
    expanded_keys = ("python", "output", "mounts")
    shell_keys = frozenset(("setup",))

    partition: Words | None = None
    """The partition, or several separated by commas. Default: the cluster's default partition."""

    account: Word | None = None
    """The account that is charged."""

    qos: Words | None = None
    """Quality of service."""

    reservation: Words | None = None
    """Run on the nodes of this reservation."""

    constraint: Features | None = None
    """Features that the nodes must have, such as `a100&nvlink` or `[rack1|rack2]`."""

    time_limit_s: Seconds | None = Field(default=None, alias="time_limit")
    """The time limit of the job; SLURM counts whole minutes. Default: the partition's default."""

    exclusive: StrictBool = False
    """Request whole nodes, which no other job shares."""

    job_name: JobName | None = None
    """The job's name in the queue. Default: the name of the run."""

    dependency: Dependency | None = None
    """When the job may start: `singleton` (one job of this name at a time), or for example `afterok:123`."""

    signal: Literal["USR1", "USR2", "TERM"] = "USR2"
    """The signal that SLURM sends to the batch shell before the time limit. NCCL may use USR1 itself."""

    lead_time_s: Seconds | None = Field(default=None, alias="lead_time")
    """Time between this signal and the time limit, for the last save. Default: 2 × the slowest save + 30s, at
    least 60s; before the first save `failures.grace` + 60s."""

    at_time_limit: Literal["stop", "requeue"] = "stop"
    """If the training is not finished at the time limit: `stop` ends with exit code 75, `requeue` puts the
    job back into the queue."""

    requeue: StrictBool = True
    """Put the job back into the queue after a preemption or the loss of a node. With `false` the run ends;
    submit it again to resume. The site file may set it for clusters that cancel preempted jobs."""

    nodes_wait_s: Seconds = Field(default=300.0, alias="nodes_wait")
    """How long the job waits until Ray has started on all of its nodes. Then a job of several nodes goes back
    into the queue; a job of one node ends."""

    setup: tuple[ShellLine, ...] = ()
    """Shell lines, such as `module load cuda`, that run in a login shell on the first node. The variables
    that they export are set on all nodes. A line that fails ends the job with code 3, unless it ends with `||
    true`."""

    environment: tuple[PassedOn, ...] = ()
    """Names of variables that are passed from the submitting environment to the job, such as `AWS_PROFILE`.
    SLURM stores their values with the job."""

    container: Literal["none", "apptainer", "pyxis"] = "none"
    """The container runtime of the job's `image`."""

    mounts: tuple[Mount, ...] = ()
    """Folders of the nodes to mount into the container, in addition to those of code, data and storage."""

    python: Path | None = None
    """The Python on the nodes that has clustertrain with torch and ray, such as `/sw/train/bin/python`; in a
    container the default is `python3`."""

    gpus_as: Literal["gres", "gpus-per-node"] = "gres"
    """The option of sbatch by which this site requests GPUs."""

    gpu_type: Annotated[str, _one_word("a type of GPU", "A-Za-z0-9_.-")] | None = None
    """The type of GPU, by the site's name for it, such as `a100`."""

    memory_as: Literal["mem", "mem-per-cpu"] = "mem"
    """The option of sbatch by which this site requests memory."""

    output: Folder = "."
    """Folder for the output of the batch job, `NAME-JOBID.out`; it must exist. A relative path starts in the
    folder in which the job is submitted."""

    options: tuple[Option, ...] = ()
    """More options of sbatch, such as `--mail-type=END`."""

    def check(self, image: str | None) -> None:
        has_container = self.container != "none"
        refusals = (
            (
                "at_time_limit",
                self.at_time_limit == "requeue" and not self.requeue,
                "requeue is given with slurm.requeue: false\n"
                "without a requeue the run ends at the time limit: set at_time_limit: stop, or requeue: true",
            ),
            (
                "mounts",
                not has_container and bool(self.mounts),
                f"{''.join(self.mounts[:1])} is given without a container\n"
                "without a container a job sees all folders of the node: remove it, or set slurm.container",
            ),
            (
                "container",
                has_container and image is None,
                f"{self.container} is given without an image\n"
                "a container needs an image: add image: …, or set slurm.container: none",
            ),
            (
                "container",
                self.container == "pyxis" and (image or "").endswith(".sif"),
                f"{self.container} is given with the image {image}\n"
                "only apptainer runs a .sif file: set slurm.container: apptainer, or name another image",
            ),
        )
        for key, is_refused, rule in refusals:
            if is_refused:
                raise Refused(rule, "slurm", key)

    def with_site(self, site: Self) -> Self:
        merged = super().with_site(site)
        if self.container == "none" and "container" in self.model_fields_set:  # mounts are for a container
            return merged.model_copy(update={"mounts": self.mounts})
        return merged

    def may_set(self, variable: str) -> bool:
        is_passed = variable in os.environ and variable in self.environment
        return is_passed or any(variable in line for line in self.setup)

    @property
    def starts_after_another(self) -> bool:
        return self.dependency is not None

    @property
    def has_own_packages(self) -> bool:
        return self.python is not None
