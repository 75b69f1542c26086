"""Settings of a SLURM cluster that change what a run can expect: `submit` and `status` report them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress

from clustertrain.errors import ClusterError
from clustertrain.job.model import Job
from clustertrain.launchers.shell import run
from clustertrain.launchers.slurm.section import Slurm

_ANSWER_S = 10.0
TRAINS_ON = "proctrack/pgid suspends the agent only, and the training continues on its GPUs"


def site_settings(environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """The names and values of `scontrol show config`, or empty if SLURM does not answer."""
    with suppress(ClusterError):
        done = run(["scontrol", "show", "config"], environ=environ, timeout_s=_ANSWER_S)
        return dict(re.findall(r"^(\w+)\s*=\s*(.*?)\s*$", done.stdout, re.MULTILINE))
    return {}


def tracks_by_group(settings: Mapping[str, str]) -> bool:
    """Whether SLURM finds the processes of a job by their process group. Ray's have groups of their own."""
    return settings.get("ProctrackType") == "proctrack/pgid"


def site_notes(job: Job, settings: Mapping[str, str]) -> list[str]:
    """What a user of this cluster should know before the job waits in its queue."""
    notes = []
    if tracks_by_group(settings):
        notes.append(
            f"ProctrackType of this cluster is proctrack/pgid. If SLURM suspends the job: {TRAINS_ON}.\n"
            "A stop of the run frees them; administrators can set proctrack/cgroup."
        )
    if settings.get("SelectType") == "select/linear" and job.resources.gpus_per_worker:
        notes.append(
            "SelectType of this cluster is select/linear, which gives no step of a job its GPUs (seen with "
            "SLURM 22.05).\nAdministrators can set select/cons_tres."
        )
    if not job.section(Slurm).requeue:
        return notes
    modes = settings.get("PreemptMode", "").split(",")
    values = [
        *(["JobRequeue=0"] if settings.get("JobRequeue") == "0" else []),
        *(["PreemptMode=CANCEL"] if "CANCEL" in modes else []),
    ]
    if values:
        notes.append(
            f"this cluster has {' and '.join(values)}, and the job asks for a requeue after a preemption or "
            "the loss of a node.\nslurm.requeue: false leaves that to the cluster."
        )
    return notes
