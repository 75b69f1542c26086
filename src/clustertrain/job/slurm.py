"""The section `slurm` of a job file: what only SLURM has. Workers, CPUs, GPUs and memory are in `resources`.

Most values end up in an #SBATCH line, which sbatch splits at spaces, quotes and '#': each key has the
characters that its values are made of, so that no value can be more than one word of one option.
"""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, StrictBool

from clustertrain.job.sections import Section
from clustertrain.job.values import Path, Refused, Seconds, Variable, written_as

# sbatch keeps the time of --signal in 16 bits.
LONGEST_LEAD_S = 65_535

# What the script says itself, each with what it is made of.
KIT_OPTIONS = {
    "account": "slurm.account",
    "constraint": "slurm.constraint",
    "container": "slurm.container",
    "cpus-per-gpu": "resources.cpus_per_worker",
    "cpus-per-task": "resources.cpus_per_worker",
    "dependency": "slurm.dependency",
    "error": "slurm.output",
    "exclusive": "slurm.exclusive",
    "export": "slurm.environment",
    "export-file": "slurm.environment",
    "gpus": "resources.gpus_per_worker",
    "gpus-per-node": "resources.gpus_per_worker",
    "gpus-per-socket": "resources.gpus_per_worker",
    "gpus-per-task": "resources.gpus_per_worker",
    "gres": "resources.gpus_per_worker",
    "job-name": "slurm.job_name",
    "mem": "resources.memory_per_worker",
    "mem-per-cpu": "resources.memory_per_worker",
    "mem-per-gpu": "resources.memory_per_worker",
    "nodes": "resources.nodes",
    "ntasks": "resources.nodes",
    "ntasks-per-core": "resources.nodes",
    "ntasks-per-gpu": "resources.nodes",
    "ntasks-per-node": "resources.nodes",
    "ntasks-per-socket": "resources.nodes",
    "open-mode": "slurm.output",
    "output": "slurm.output",
    "partition": "slurm.partition",
    "qos": "slurm.qos",
    "requeue": "slurm.at_time_limit",
    "reservation": "slurm.reservation",
    "signal": "slurm.signal and slurm.lead_time",
    "tasks-per-node": "resources.nodes",
    "time": "slurm.time_limit",
}
# What would break the run, each with the reason.
BREAKING_OPTIONS = {
    "chdir": "relative paths are found from the folder where the job is submitted",
    "help": "sbatch would print a page instead of submitting",
    "no-kill": "the job would go on, and end as COMPLETED, without a node that it lost",
    "no-requeue": "a run that is preempted or loses a node goes on by a requeue",
    "parsable": "the kit reads what sbatch prints",
    "quiet": "the kit reads what sbatch prints",
    "test-only": "nothing would be submitted: clustertrain render prints the script",
    "usage": "sbatch would print a page instead of submitting",
    "version": "sbatch would print its version instead of submitting",
    "wait": "sbatch would not answer before the job ends: clustertrain submit --wait follows the run",
    "wrap": "the script is the kit's own",
}


def _one_word(what: str, characters: str) -> AfterValidator:
    """Text of these characters alone, which stand as in a regular expression's brackets."""
    pattern = re.compile(f"[{characters}]+")
    shown = characters.replace("A-Za-z0-9_", "letters, digits and _ ").replace("\\", "")

    def word(text: str) -> str:
        if not pattern.fullmatch(text):
            raise ValueError(f"must be {what}, of {shown} alone")
        return text

    return AfterValidator(word)


def _option(text: str) -> str:
    match = re.fullmatch(r"--([a-z][a-z0-9-]*)(=[!%&()*+,./0-9:;<=>?@A-Z\[\]^_a-z{|}~-]+)?", text)
    if not match:
        raise ValueError(
            "must be one long option with its value, such as --mail-type=END, without spaces or quotes\n"
            "in an #SBATCH line they would begin another option"
        )
    # sbatch takes the beginning of a name for the name, as getopt_long does.
    near = [name for name in (*KIT_OPTIONS, *BREAKING_OPTIONS) if name.startswith(match[1])]
    for name in sorted(near, key=len)[:1]:
        if name in BREAKING_OPTIONS:
            raise Refused(f"--{name} is not for a job of the kit\n{BREAKING_OPTIONS[name]}")
        raise Refused(
            f"--{name} is what the kit says itself, from {KIT_OPTIONS[name]}\n"
            f"its own are {', '.join(f'--{own}' for own in KIT_OPTIONS)}"
        )
    return text


def _variable(name: str) -> str:
    if name.upper() in ("ALL", "NONE", "NIL"):
        raise ValueError(
            "must be the name of a variable, and sbatch has a meaning of its own for this one\n"
            "each variable is named, so that no secret of a login travels unseen"
        )
    return name


def _shell_line(line: str) -> str:
    if not line.strip() or not line.replace("\t", " ").isprintable():
        raise ValueError("must be one line of shell, such as module load cuda")
    if line.endswith("\\"):
        raise ValueError("must end without a backslash: the line after it is the kit's own")
    if re.match(r"#\s*(SBATCH|PBS|BSUB)", line):
        raise ValueError("must be shell, and sbatch would take it for an option\nput it under slurm.options")
    return line


def _output(path: str) -> str:
    if re.fullmatch(r"[A-Za-z0-9_./+@=-]+", path):
        return path
    raise ValueError("must be a folder whose path has letters, digits and _ . / + @ = - alone")


def _program(path: str) -> str:
    if path.startswith("-"):
        raise ValueError("must be a program, such as /sw/train/bin/python, and not an option")
    return path


def _mount(mount: str) -> str:
    host, *rest = mount.split(":")
    inside = rest[0] if rest else host
    is_plain = mount.isprintable() and "," not in mount
    if is_plain and host.startswith("/") and inside.startswith("/") and rest[1:] in ([], ["ro"], ["rw"]):
        return mount
    raise ValueError("must be /folder, /folder:/inside or /folder:/inside:ro, absolute and without commas")


def _image(image: str) -> str:
    if not image.isprintable() or not image or image.startswith("-") or image != image.strip():
        raise ValueError("must be an image, such as registry.example.org/team/train:1.0 or /images/train.sif")
    return image


def _lead_time(seconds: float) -> float:
    if seconds > LONGEST_LEAD_S:
        raise ValueError(f"must be at most {LONGEST_LEAD_S}s, about 18h: SLURM keeps no longer one")
    return seconds


Image = Annotated[str, AfterValidator(_image), written_as("image")]
Word = Annotated[str, _one_word("a name", "A-Za-z0-9_.@+:=/-")]
Words = Annotated[str, _one_word("a name, or several with commas between", "A-Za-z0-9_.@+:=/,-")]
JobName = Annotated[str, _one_word("a name", "A-Za-z0-9_.@+=-")]
Features = Annotated[
    str, _one_word("features, such as a100&nvlink or [rack1|rack2]", r"A-Za-z0-9_.,:=+*/!&|()\[\]-")
]
Dependency = Annotated[str, _one_word("singleton, or such as afterok:123", r"A-Za-z0-9_.:,?+*\[\]-")]
Traveling = Annotated[Variable, AfterValidator(_variable)]
ShellLine = Annotated[str, AfterValidator(_shell_line), written_as("text")]
Folder = Annotated[Path, AfterValidator(_output)]
Mount = Annotated[str, AfterValidator(_mount), written_as("`/folder[:/inside[:ro]]`")]
Program = Annotated[Path, AfterValidator(_program)]
Option = Annotated[str, AfterValidator(_option), written_as("`--option=value`")]
LeadTime = Annotated[Seconds, AfterValidator(_lead_time)]


class Slurm(Section):
    """What only SLURM has; other targets leave it alone. A site file gives defaults, key by key."""

    partition: Words | None = None
    """Where it runs; several with commas between. Left out: the cluster's default."""

    account: Word | None = None
    """Who is charged."""

    qos: Words | None = None
    """Quality of service."""

    reservation: Words | None = None
    """Run on the nodes of this reservation."""

    constraint: Features | None = None
    """Features that nodes must have, such as `a100&nvlink` or `[rack1|rack2]`."""

    time_limit_s: Seconds | None = Field(default=None, alias="time_limit")
    """How long the job may run, in full minutes to SLURM. Left out: the partition's default."""

    exclusive: StrictBool = False
    """Whole nodes, which no other job shares."""

    job_name: JobName | None = None
    """Name in the queue. Left out: the run's name."""

    dependency: Dependency | None = None
    """When it may start: `singleton` (one of this name at a time), or as `afterok:123`."""

    signal: Literal["USR1", "USR2", "TERM"] = "USR2"
    """What SLURM sends the batch shell before the time limit. NCCL may use USR1 itself."""

    lead_time_s: LeadTime | None = Field(default=None, alias="lead_time")
    """How long before the time limit the signal comes: time for the last save. SLURM sends it up to 60 s
    earlier. Left out: 2 × the last save + 30s, at least 60s; before the first save `failures.grace` + 60s."""

    at_time_limit: Literal["stop", "requeue"] = "stop"
    """With work left at the time limit: end with exit code 75, or queue again and go on."""

    nodes_wait_s: Seconds = Field(default=300.0, alias="nodes_wait")
    """How long the nodes of the job may take to come up."""

    setup: tuple[ShellLine, ...] = ()
    """Lines of shell before anything else, such as `module load cuda`, on the job's first node; what they
    export reaches all nodes. `$` is the shell's own here."""

    environment: tuple[Traveling, ...] = ()
    """Names of variables that travel from where the job is submitted, such as `AWS_PROFILE`. SLURM keeps
    their values with the job. Nothing else travels but HOME, USER, LOGNAME, SHELL and LANG."""

    container: Literal["none", "apptainer", "pyxis", "podman"] = "none"
    """What runs the job's `image`."""

    mounts: tuple[Mount, ...] = ()
    """Folders of the nodes that the container sees, beside those of code, data and storage, which it has."""

    python: Program | None = None
    """The Python on the nodes that has clustertrain with torch and ray, such as `/sw/train/bin/python`; in a
    container `python3`. A relative path begins where the job is submitted."""

    gpus_as: Literal["gres", "gpus-per-node"] = "gres"
    """How this site is asked for GPUs."""

    gpu_type: Annotated[str, _one_word("a type of GPU", "A-Za-z0-9_.-")] | None = None
    """Which GPUs, by the site's name for them, such as `a100`."""

    memory_as: Literal["mem", "mem-per-cpu"] = "mem"
    """How this site is asked for memory."""

    output: Folder = "."
    """Folder for what the job itself prints, `NAME-JOBID.out`; it must be there. A relative path begins where
    the job is submitted."""

    options: tuple[Option, ...] = ()
    """More options of sbatch, such as `--mail-type=END`."""


def check_container(slurm: Slurm, image: str | None) -> None:
    """What a container needs.

    Raises:
        Refused: a container without an image, mounts without a container, or an image of another runtime.
    """
    if slurm.container == "none":
        if slurm.mounts:
            raise Refused(
                f"{slurm.mounts[0]} stands without a container\n"
                "without one a job sees all folders of the node: leave it out, or set slurm.container",
                "slurm",
                "mounts",
            )
        return
    if image is None:
        raise Refused(
            f"{slurm.container} stands without image\n"
            "a container is made from one: add image: …, or set slurm.container: none",
            "slurm",
            "container",
        )
    if image.endswith(".sif") and slurm.container != "apptainer":
        raise Refused(
            f"{slurm.container} stands beside image {image}\n"
            "only apptainer runs a .sif file: set slurm.container: apptainer, or name another image",
            "slurm",
            "container",
        )
