"""Makes an error of a failed sbatch: SLURM's own words, and where to look.

Plugins of a site (job_submit, cli_filter) print to the same output: greetings, notes on costs, and sometimes
the reason of a refusal. In a refusal SLURM prints the lines of job_submit as errors too. SLURM's own texts
are known, so only they are quoted as its reason and determine the remedy. The last of the other lines are
shown separately.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from clustertrain.errors import ClusterError
from clustertrain.job.model import Job
from clustertrain.launchers.shell import Done
from clustertrain.run.command_line import CommandLine

_SHOWN_LINES = 3
_LONGEST_LINE = 160

_PARTITION = "There is no such partition: `sinfo` lists them. See slurm.partition."
_ACCOUNT = "Name an account that you may use there: slurm.account; `sacctmgr show assoc user=$USER`."
_QOS = "Name a quality of service that you may use there: slurm.qos; `sacctmgr show qos`."
_LIMIT = (
    "A limit of your account or qos: `sacctmgr show assoc user=$USER`, `sacctmgr show qos`. Lower resources "
    "or slurm.time_limit, wait until your other jobs have ended, or name another slurm.qos."
)
_GRES = "See resources.gpus_per_worker, slurm.gpu_type and slurm.gpus_as; `sinfo -o '%P %G'`."
_MEMORY = "See resources.memory_per_worker and slurm.memory_as; `sinfo -o '%P %m'`."
_SIZE = "Too few nodes have all of the requested resources: see resources; `sinfo -o '%P %D %c %m %G %f'`."
_NO_ANSWER = "SLURM's controller does not answer: try again later."
MAY_BE_QUEUED = "The job may still be queued: check with `squeue --me` before you submit it again."
GENERAL = "Requested node configuration is not available"
"""SLURM's reason for many causes: no node ever has the resources, or too few nodes are usable now."""

REMEDIES: dict[str, str] = {
    "Invalid partition name specified": _PARTITION,
    "invalid partition specified": _PARTITION,
    "No partition specified or system default partition": "Set slurm.partition: `sinfo` lists them.",
    "Required partition not available (inactive or drain)": "Name a partition that takes jobs now: "
    "slurm.partition; `sinfo -o '%P %a'`.",
    "User's group not permitted to use this partition": "Name a partition that you may use: slurm.partition.",
    "Requested nodes not in this partition": "See slurm.options and slurm.partition; `sinfo -o '%P %N'`.",
    "Invalid account or account/partition combination specified": _ACCOUNT,
    "Invalid qos specification": _QOS,
    "Job violates accounting/QOS policy": _LIMIT,
    "Requested account has breached requested QOS usage threshold": _LIMIT,
    "Access denied to requested reservation": "Name a reservation that you may use, or none: "
    "slurm.reservation; `scontrol show reservation` lists who may use which.",
    "Requested reservation is invalid": "See slurm.reservation; `scontrol show reservation` lists them.",
    "Invalid job array specification": "The sweep has more points than an array of this cluster may have: "
    "`scontrol show config | grep MaxArraySize`. Submit it in parts: fewer values in each --grid.",
    "Invalid generic resource (gres) specification": _GRES,
    "Invalid GRES specification (with and without type identification)": _GRES,
    "Requested GRES option unsupported by configured SelectType plugin": "Set slurm.gpus_as: gres.",
    "Invalid feature specification": "See slurm.constraint; `sinfo -o '%P %f'` lists what nodes have.",
    "Invalid license specification": "See slurm.options; `scontrol show licenses` lists them.",
    "Job dependency problem": "See slurm.dependency: the job that it names may have ended long ago.",
    "Requested time limit is invalid": "See slurm.time_limit; `sinfo -o '%P %l'` lists those allowed.",
    "Time limit specification required, but not provided": "Set slurm.time_limit.",
    "Memory specification can not be satisfied": _MEMORY,
    "Memory required by task is not available": _MEMORY,
    "Node count specification invalid": _SIZE,
    "CPU count specification invalid": _SIZE,
    "More processors requested than permitted": _SIZE,
    "Requested more tasks than available processors": _SIZE,
    "Invalid node name specified": "See --nodelist and --exclude in slurm.options; `sinfo -N` lists them.",
    "Unable to contact slurm controller": _NO_ANSWER,
    "Socket timed out on send/recv operation": _NO_ANSWER,
    "Zero Bytes were transmitted or received": _NO_ANSWER,
    GENERAL: _SIZE,
}
"""SLURM's own texts, or how they begin, with a remedy each."""
QUEUED = (
    GENERAL,
    "Required node not available (down, drained or reserved)",
    "Requested nodes are busy",
    "Requested partition configuration not available now",
    "Requested reservation not usable now",
    "Partition in DOWN state",
    "Job can not start due to maintenance reservation.",
    "Invalid time specified",  # for a reservation that begins later
)
"""What `sbatch --test-only` prints also for jobs that sbatch takes into the queue."""
_OPTION = re.compile(r"(unrecognized|unknown|invalid) option", re.IGNORECASE)
_LIMIT_NAME = re.compile(r"(QOS|Assoc)\w+")  # beside "Job violates accounting/QOS policy"
_ERROR = re.compile(
    r"^(sbatch: )?(error: |fatal: |allocation failure: |(?=unrecognized |unknown |invalid |option ))",
    re.IGNORECASE,
)
_OWN_REASON = re.compile(
    r"^(sbatch: )?(error: )?(allocation failure|Batch job submission failed|Unable to allocate resources): "
)
_PROGRAM = re.compile(r"(sbatch: )?((Batch job submission failed|Unable to allocate resources): )?")


def refusal(job: Job, done: Done, command: CommandLine, *, may_be_queued: bool = False) -> ClusterError:
    """The error for a failed sbatch, with a remedy. `may_be_queued`: whether the job may be in the queue."""
    errors, others = sorted_lines(done.stderr)
    remedy = _remedy(errors) or f"`{command.on_job('render --to slurm')}` prints the script that was sent."
    if remedy == _NO_ANSWER and may_be_queued:
        remedy = MAY_BE_QUEUED
    printed = "; ".join(errors[:_SHOWN_LINES]).removesuffix(".") or f"nothing; it ended with code {done.code}"
    beside = f"A plugin of the site printed: {'; '.join(others[-_SHOWN_LINES:])}\n" if others else ""
    return ClusterError(f"SLURM refused the job {job.name}. sbatch printed: {printed}.\n{beside}{remedy}")


def reason_of_the_plan(stderr: str) -> str | None:
    """SLURM's reason why `sbatch --test-only` plans no start of a job that sbatch may still queue, or None if
    sbatch refuses the job."""
    errors, _ = sorted_lines(stderr)
    return next((text for text in QUEUED if errors and errors[0].startswith(text)), None)


def _remedy(errors: Sequence[str]) -> str | None:
    for error in sorted(errors, key=GENERAL.__eq__):  # another error may name the cause of a general reason
        if (text := next(filter(error.startswith, REMEDIES), None)) is not None:
            return REMEDIES[text]
        if _OPTION.match(error):
            return "See slurm.options: this sbatch has no such option."
    return None


def sorted_lines(stderr: str) -> tuple[list[str], list[str]]:
    """The different lines of sbatch with an error, SLURM's own reason first, and the other ones. Beside
    SLURM's own reason only its own texts are errors. Without any error all lines count as errors."""
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    errors = [line for line in lines if _ERROR.match(line)] or lines
    if own := [line for line in errors if _OWN_REASON.match(line)]:
        errors = [*own, *(line for line in errors if line not in own and _is_of_slurm(_plain(line)))]
    others = [line for line in lines if line not in errors]
    return [*_shown(errors)], [*_shown(others)]


def _is_of_slurm(line: str) -> bool:
    return line.startswith((*REMEDIES, *QUEUED)) or _LIMIT_NAME.fullmatch(line) is not None


def _plain(line: str) -> str:
    """A line without the name of the program and the kind of the message."""
    return _PROGRAM.sub("", _ERROR.sub("", line, count=1), count=1).strip()


def _shown(lines: Sequence[str]) -> Iterator[str]:
    for line in filter(None, dict.fromkeys(_plain(line) for line in lines)):
        plain = "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in line)
        yield plain if len(plain) <= _LONGEST_LINE else f"{plain[:_LONGEST_LINE]}…"
