"""Makes an error of a failed sbatch: SLURM's own words, and where to look.

Plugins of a site (job_submit, cli_filter) print to the same output: greetings, notes on costs, and sometimes
the reason of a refusal. In a refusal SLURM prints the lines of job_submit as errors too. SLURM's own reason
determines the remedy, then the other errors, wherever they are. The last of the other lines are shown
separately.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from clustertrain.errors import ClusterError
from clustertrain.job.model import Job
from clustertrain.launchers.shell import Done
from clustertrain.run.command_line import CommandLine

_SHOWN_LINES = 3
_LONGEST_LINE = 160

_REFUSALS: tuple[tuple[str, str], ...] = (
    (r"invalid partition", "There is no such partition: `sinfo` lists them. See slurm.partition."),
    (r"account", "Name an account that you may use there: slurm.account; `sacctmgr show assoc user=$USER`."),
    (r"qos", "Name a quality of service that you may use: slurm.qos; `sacctmgr show qos`."),
    (r"not permitted to use this partition|denied", "Name a partition that you may use: slurm.partition."),
    (r"\(gres\)|gpu", "See resources.gpus_per_worker, slurm.gpu_type and slurm.gpus_as; `sinfo -o '%P %G'`."),
    (r"invalid feature", "See slurm.constraint; `sinfo -o '%P %f'` lists what nodes have."),
    (r"reservation", "See slurm.reservation; `scontrol show reservation` lists them."),
    (r"dependency", "See slurm.dependency: the job that it names may have ended long ago."),
    (r"time limit", "See slurm.time_limit; `sinfo -o '%P %l'` lists what partitions allow."),
    (r"memory", "See resources.memory_per_worker and slurm.memory_as; `sinfo -o '%P %m'`."),
    (
        r"node configuration|node count|more processors|cpu count",
        "Too few nodes have all of the requested resources: see resources; `sinfo -o '%P %D %c %m %G %f'`.",
    ),
    (
        r"unrecognized option|invalid option|unknown option",
        "See slurm.options: this sbatch has no such option.",
    ),
)
_NO_ANSWER = r"unable to contact|timed out|zero bytes"
_ERROR = re.compile(
    r"^(sbatch: )?(error: |fatal: |allocation failure: |(?=unrecognized |unknown |invalid |option ))",
    re.IGNORECASE,
)
_OWN_REASON = re.compile(
    r"^(sbatch: )?(error: )?(allocation failure|Batch job submission failed|Unable to allocate resources): "
)
_GENERAL = "node configuration"  # SLURM's reason for many causes; another error may name the cause
_PROGRAM = re.compile(r"(sbatch: )?((Batch job submission failed|Unable to allocate resources): )?")


def refusal(job: Job, done: Done, command: CommandLine, *, may_be_queued: bool = False) -> ClusterError:
    """The error for a failed sbatch, with a remedy. `may_be_queued`: whether the job may be in the queue."""
    shows_script = f"`{command.on_job('render --to slurm')}` prints the script that was sent."
    errors, others = sorted_lines(done.stderr)
    whole = " ".join(errors)
    own = " ".join(line for line in done.stderr.splitlines() if _OWN_REASON.match(line.strip()))
    remedy = (own and _GENERAL not in own and _remedy(own)) or _remedy(whole)
    if re.search(_NO_ANSWER, own or whole, re.IGNORECASE):
        remedy = "SLURM's controller does not answer: try again later."
        if may_be_queued:
            remedy = "The job may still be queued: check with `squeue --me` before you submit it again."
    shown = [*errors[:1], *errors[1:][1 - _SHOWN_LINES :]]  # the last words of a plugin say most
    printed = "; ".join(shown).removesuffix(".") or f"nothing; it ended with code {done.code}"
    beside = f"A plugin of the site printed: {'; '.join(others[-_SHOWN_LINES:])}\n" if others else ""
    return ClusterError(
        f"SLURM refused the job {job.name}. sbatch printed: {printed}.\n{beside}{remedy or shows_script}"
    )


def _remedy(errors: str) -> str | None:
    return next((text for rule, text in _REFUSALS if re.search(rule, errors, re.IGNORECASE)), None)


def sorted_lines(stderr: str) -> tuple[list[str], list[str]]:
    """The different lines of sbatch with an error, SLURM's own reason first, and the other ones. Without any
    error all lines count as errors."""
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    errors = [line for line in lines if _ERROR.match(line)] or lines
    errors.sort(key=lambda line: _OWN_REASON.match(line) is None)
    others = [line for line in lines if line not in errors]
    return _shown([_ERROR.sub("", line, count=1) for line in errors]), _shown(others)


def _shown(lines: Sequence[str]) -> list[str]:
    plain = ["".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in line) for line in lines]
    short = [_PROGRAM.sub("", line, count=1).strip() for line in plain]
    return [
        line if len(line) <= _LONGEST_LINE else f"{line[:_LONGEST_LINE]}…"
        for line in dict.fromkeys(short)
        if line
    ]
