"""The script of a SLURM job, as `render` prints it, with the Python and the lead time that a test gives."""

from dataclasses import replace

from clustertrain.launchers.scheduler.needs_of_job import needs_of
from clustertrain.launchers.slurm.script import render
from clustertrain.run_files.admission import Options
from clustertrain.run_files.command_line import typed


def needs(job, *, job_file="job.yaml", lead_s=90.0):
    return replace(
        needs_of(job, Options(command=typed("submit", job_file)), "slurm"), lead_time=lambda: lead_s
    )


def script(job, *, job_file="job.yaml", python="/sw/python", lead_s=90.0) -> str:
    section = job.slurm.model_copy(update={"python": python})
    return render(job.model_copy(update={"slurm": section}), needs(job, job_file=job_file, lead_s=lead_s))
