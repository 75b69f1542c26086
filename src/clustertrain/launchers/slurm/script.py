"""The sbatch script of a job. It depends only on the arguments, so `submit` sends what `render` prints.

    #SBATCH lines                  generated here from the job
    templates/mailbox.sh           the same for every job
    a few quoted variables         generated here from the job; one of them has the lines of slurm.setup
    templates/batch.sh             the same for every job

Of a job file, the shell executes only the lines of `slurm.setup`, in a shell of their own. #SBATCH lines are
comments to the shell, and the model accepts only a single word as their value. The variables are quoted.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from importlib import resources
from pathlib import PurePosixPath
from shlex import quote

from clustertrain.errors import JobError
from clustertrain.job.model import Job
from clustertrain.job.references import referred_names
from clustertrain.launchers.gpu_slices import check_slices
from clustertrain.launchers.scheduler.needs import Needs
from clustertrain.launchers.slurm.section import LONGEST_LEAD_S, Slurm
from clustertrain.node import variables
from clustertrain.node.installed import how_to_install, missing_for_training
from clustertrain.node.version import __version__
from clustertrain.storage.location import local_path

_MIB = 2**20
# The variables of the submitter's environment that the agent and the batch shell need. Others are passed on
# only if the job names them, so that no secret of the login session reaches the nodes.
_PASSED_VARIABLES = ("HOME", "USER", "LOGNAME", "SHELL", "LANG", variables.SUBMISSION)
_FOLDERS = ("PATH", "LD_LIBRARY_PATH")
# The mailbox of the batch shell and the agent is a folder in this one (mailbox.sh); a container mounts it.
_TEMPORARY = '"$temporary"'
# What NVIDIA's hooks read to give a container GPUs, whatever its image sets for them.
_NVIDIA = ("NVIDIA_VISIBLE_DEVICES", "NVIDIA_DRIVER_CAPABILITIES")


def render(job: Job, needs: Needs) -> str:
    """Return the script of a job whose `slurm` section is merged with the site file's.

    Raises:
        JobError: a path for a container has ',' or ':', several ranks of a node would use slices of a GPU, or
            the Python of the nodes is not known.
    """
    lines = [
        "#!/bin/bash",
        *(f"#SBATCH --{option}" for option in _options(job, needs)),
        f"# Made by clustertrain {__version__}: clustertrain render --to slurm {quote(needs.job_file)}",
        "",
        _template("mailbox.sh"),
        "# The values of this job.",
        *_variables(job, needs),
        "",
    ]
    return "\n".join([*lines, _template("batch.sh")])


def job_name(job: Job) -> str:
    """Return the name of the job in the queue; the name of its output file starts with it."""
    return job.section(Slurm).job_name or job.name


def _template(name: str) -> str:
    return resources.files("clustertrain.launchers.slurm").joinpath("templates", name).read_text("utf-8")


def passed_variables(job: Job) -> tuple[str, ...]:
    """Return the variables of the submitter's environment that reach the nodes."""
    return (*_PASSED_VARIABLES, *_named_variables(job))


def _named_variables(job: Job) -> tuple[str, ...]:
    """Return the variables that the job names, in slurm.environment or in a reference of `env`.

    A reference to a variable with folders of this machine does not count: a container has other folders.
    """
    named = (name for name in referred_names(job.start_texts) if name not in (*_PASSED_VARIABLES, *_FOLDERS))
    return tuple(dict.fromkeys((*job.section(Slurm).environment, *named)))


def lead_time_s(job: Job, needs: Needs) -> float:
    """Return the seconds from SLURM's signal to the time limit: slurm.lead_time if the job sets it."""
    if (lead_time_s := job.section(Slurm).lead_time_s) is not None:
        return lead_time_s
    return min(needs.lead_s, float(LONGEST_LEAD_S))


# ------------------------------------------------------------------------------------------ #SBATCH lines


def _options(job: Job, needs: Needs) -> Iterator[str]:
    slurm = job.section(Slurm)
    yield f"job-name={job_name(job)}"
    for option in ("partition", "account", "qos", "reservation", "constraint", "dependency"):
        if (value := getattr(slurm, option)) is not None:
            yield f"{option}={value}"
    yield from _shape(job, needs)
    if slurm.time_limit_s is not None:
        yield f"time={_time(slurm.time_limit_s)}"
    yield f"signal=B:{slurm.signal}@{math.ceil(lead_time_s(job, needs))}"
    yield "requeue" if slurm.requeue else "no-requeue"  # the default is the cluster's JobRequeue
    yield f"export={','.join(passed_variables(job))}"
    yield f"output={slurm.output.rstrip('/')}/%x-%j.out"
    yield "open-mode=append"
    # By default SLURM gives a job the limits of the shell that submits it. Those of a login node on CPU time,
    # memory and processes would end the training.
    yield "propagate=NONE"
    yield from (option.removeprefix("--") for option in slurm.options)


def _shape(job: Job, needs: Needs) -> Iterator[str]:
    slurm, counts = job.section(Slurm), job.node_counts
    if len(counts) == 1:
        yield f"nodes={counts[0]}"
        yield "ntasks-per-node=1"
    else:  # with --ntasks-per-node SLURM would allocate only the minimum of the range (seen with 22.05)
        yield f"nodes={counts[0]}-{counts[-1]}"
    yield f"cpus-per-task={needs.cpus}"
    if gpus := needs.gpus:
        shape = job.resources
        each, key = shape.gpus_per_worker, ("slurm", "gpu_type")
        check_slices(key, slurm.gpu_type or "", shape.workers_per_node, each, "node")
        kind = f"{slurm.gpu_type}:" if slurm.gpu_type else ""
        yield f"gres=gpu:{kind}{gpus}" if slurm.gpus_as == "gres" else f"gpus-per-node={kind}{gpus}"
    if memory_bytes := needs.memory_bytes:
        shares = needs.cpus if slurm.memory_as == "mem-per-cpu" else 1
        yield f"{slurm.memory_as}={-(-memory_bytes // (shares * _MIB))}M"
    if slurm.exclusive:
        yield "exclusive"


def _time(seconds: float) -> str:
    """Format a time as SLURM does: days-hours:minutes:seconds."""
    minutes, second = divmod(math.ceil(seconds), 60)
    hours, minute = divmod(minutes, 60)
    days, hour = divmod(hours, 24)
    return (f"{days}-" if days else "") + f"{hour:02}:{minute:02}:{second:02}"


# ---------------------------------------------------------------------------------------------- variables


def _variables(job: Job, needs: Needs) -> Iterator[str]:
    """Yield lines of shell that set the body's variables: job, at_time_limit, setup, launch."""
    container = job.section(Slurm).container
    is_absolute = needs.job_file.startswith("/")
    folder = "" if container == "none" or is_absolute else '"$PWD"/'  # a container has another $PWD
    yield f"job={folder}{quote(needs.job_file)}"
    yield f"at_time_limit={job.section(Slurm).at_time_limit}"
    lines = "\n".join(job.section(Slurm).setup)
    if lines:
        yield "# shellcheck disable=SC2016  # another shell expands $ here"
    yield f"setup={quote(lines)}"
    if container == "pyxis":
        yield from _gpus_in_container(needs)
    prefixes = {"apptainer": _apptainer, "pyxis": _pyxis}
    yield "launch=("
    # --cpus-per-task is repeated, because srun does not inherit it from the job since SLURM 22.05. With a
    # site's KillOnBadExit or WaitTime the end of one agent would kill that of the head before it writes the
    # result, and with its MpiDefault each rank would be rank 0 for MPI.
    yield '    srun --nodes="$SLURM_JOB_NUM_NODES" --ntasks="$SLURM_JOB_NUM_NODES" --ntasks-per-node=1'
    # With --mem=0 the step gets all memory of the job. Where SLURM gives that for each CPU and more CPUs than
    # requested (MaxMemPerCPU, whole nodes), the step would get that of its own CPUs only.
    yield f"    --cpus-per-task={needs.cpus} --mem=0"
    yield "    --kill-on-bad-exit=0 --wait=0 --mpi=none --export=ALL"
    if container in prefixes:
        yield from (f"    {line}" for line in prefixes[container](job, needs))
    yield f"    {quote(python_on_nodes(job))} -m clustertrain.launchers.slurm.agent"
    yield ")"


def _gpus_in_container(needs: Needs) -> Iterator[str]:
    """Set NVIDIA_VISIBLE_DEVICES for NVIDIA's container hooks.

    A job with GPUs gets the node's value or `all`, which SLURM's cgroup limits. A job without GPUs gets
    `void`, which also works on a node without a driver.
    """
    visible = '"${NVIDIA_VISIBLE_DEVICES:-all}"' if needs.gpus else "void"
    yield f"export NVIDIA_VISIBLE_DEVICES={visible}"
    yield 'export NVIDIA_DRIVER_CAPABILITIES="${NVIDIA_DRIVER_CAPABILITIES:-compute,utility}"'


def _apptainer(job: Job, needs: Needs) -> Iterator[str]:
    """Yield the command that runs a program in a container of Apptainer.

    Apptainer passes on the environment, the network, /dev and the working folder by default.
    """
    image = job.image or ""
    yield "apptainer exec --nv" if needs.gpus else "apptainer exec"
    yield from (f"--bind {mount}" for mount in _mounts(job))
    yield quote(image if "://" in image or is_image_file(image) else f"docker://{image}")


def _pyxis(job: Job, needs: Needs) -> Iterator[str]:
    """Yield the options that Pyxis adds to srun.

    The container runs as the user, not as root, without the home folder. Pyxis passes on the environment and
    /dev; a variable that the image sets as well has the image's value, except the variables of
    --container-env.
    """
    yield f"--container-image={quote(_enroot_image(job.image or ''))}"
    comma = "','"  # shellcheck warns of an unquoted comma in an array
    yield f"--container-mounts={comma.join(_mounts(job))}"
    yield f"--container-env={comma.join((*_NVIDIA, *_named_variables(job)))}"
    yield "--no-container-mount-home --no-container-remap-root --no-container-entrypoint"


def _mounts(job: Job) -> Iterator[str]:
    """Yield mounts as shell words `/host:/inside[:ro]`.

    These are the mailbox's parent, the job file's folder, the paths in the job, and slurm.mounts.
    """
    for word in (_TEMPORARY, '"${job%/*}"'):
        yield f"{word}:{word}"
    seen: list[PurePosixPath] = []
    container = job.section(Slurm).container
    for path, mode in _job_paths(job):
        if any(path.is_relative_to(outer) for outer in seen):
            continue
        seen.append(path)
        if {",", ":"} & {*str(path)}:
            raise JobError(
                f"{path}: a path with ',' or ':', which {container} cannot mount in a container\n"
                "rename or move it, or set slurm.container: none"
            )
        yield quote(f"{path}:{path}{mode}")
    for mount in job.section(Slurm).mounts:
        yield quote(mount if ":" in mount else f"{mount}:{mount}")


def _job_paths(job: Job) -> Iterator[tuple[PurePosixPath, str]]:
    if not job.storage.location.is_s3:
        yield PurePosixPath(job.storage.uri), ""
    for folder in job.code:
        yield PurePosixPath(folder), ""
    for name, entry in job.data.items():
        if "://" not in entry.uri or entry.uri.startswith("file://"):
            yield PurePosixPath(local_path(entry.uri, what=f"source of {name}")), ":ro"


def is_image_file(image: str) -> bool:
    """Return whether `image` is the path of a file, not a name in a registry."""
    return image.startswith(("/", "./", "../")) or image.endswith((".sif", ".sqsh"))


def _enroot_image(image: str) -> str:
    """Convert to enroot's notation, which has # after the registry: registry.example.org#team/train:1."""
    image = image.removeprefix("docker://")
    registry, slash, rest = image.partition("/")
    is_registry = "." in registry or ":" in registry or registry == "localhost"
    return (
        image if is_image_file(image) or "#" in image or not (slash and is_registry) else f"{registry}#{rest}"
    )


def python_on_nodes(job: Job) -> str:
    """Return the Python on the nodes.

    It is `slurm.python`; else python3 in a container; else the Python of this process.

    Raises:
        JobError: `slurm.python` is not given, and this process's Python lacks packages for training.
    """
    slurm = job.section(Slurm)
    if slurm.python is not None:
        return slurm.python
    if slurm.container != "none":
        return "python3"
    if missing := missing_for_training():
        raise JobError(
            f"slurm.python is not given, and {sys.executable} has no {' and no '.join(missing)}\n"
            f"{how_to_install('train')}\n"
            "Or give slurm.python, in the job file or for all jobs in ~/.config/clustertrain/site.yaml"
        )
    return sys.executable
