"""Plans, submits, observes and cancels jobs in Grid Engine."""

from __future__ import annotations

import math
import os
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from shlex import quote

from clustertrain import variables
from clustertrain.errors import EXIT_CLUSTER, EXIT_JOB, ClusterError, JobError
from clustertrain.job.model import Job
from clustertrain.job.references import referred_names
from clustertrain.launchers.launcher import Launcher
from clustertrain.launchers.scheduler.interface import Answer, Handle, Plan, Scheduler
from clustertrain.launchers.scheduler.lead_time import lead_time_s, measured_save_s
from clustertrain.launchers.shell import run
from clustertrain.run.admission import Options
from clustertrain.run.command_line import CommandLine
from clustertrain_gridengine.queue import ANSWER_S, query
from clustertrain_gridengine.section import GridEngine

_SUBMIT_S = 60.0
_RESTART_CODE = 99  # of a job's script: Grid Engine starts the job again
_RAY_AND_DRIVER_BYTES = 2 << 30


class GridEngineScheduler(Scheduler):
    name = "gridengine"
    label = "Grid Engine"
    submit_program = "qsub"

    def plan(self, job: Job, options: Options) -> Plan:
        section, job_file = job.section(GridEngine), options.command.job_file
        if not job_file.isprintable():
            raise JobError(f"{job_file!r}: a path with control characters\nrename the file or its folder")
        if job.node_counts[-1] > 1:
            raise JobError(
                f"resources.nodes is {job.node_counts[-1]}, and a job in Grid Engine runs on one host.\n"
                "Set resources.nodes to 1."
            )
        lead_s = lead_time_s(job, measured_save_s(job))
        lines = [
            "#!/bin/bash",
            *(f"#$ -{option}" for option in _options(job, section, lead_s)),
            *_refusals(job, section),
            # `-v NAME` makes a variable empty that is not set where the job is submitted.
            *(f'[ "${name}" ] || unset {name}' for name in referred_names(job.start_texts)),
            f"job={quote(job_file)}",
            f"exec {' '.join(_command(section, lead_s))}",
            "",
        ]
        own_output = rf"{re.escape(job.name)}\.o\d+"
        return Plan("\n".join(lines).encode(), ("qsub", "-terse"), lead_s, own_output=own_output)

    def preflight(self, job: Job, plan: Plan, command: CommandLine) -> Sequence[str]:
        output = Path(job.section(GridEngine).output)
        if not output.is_dir():
            raise ClusterError(f"gridengine.output is {output}, which is no folder.\nCreate it first.")
        done = run(["qsub", "-w", "v"], input=plan.script, timeout_s=_SUBMIT_S, check=False)
        if done.code:
            raise _refusal(job, done.stdout + done.stderr)
        return ()

    def submit(self, job: Job, plan: Plan, submission: str, command: CommandLine) -> Handle:
        environ = {**os.environ, variables.SUBMISSION: submission}
        done = run(plan.argv, input=plan.script, environ=environ, timeout_s=_SUBMIT_S, check=False)
        answer = re.search(r"^(\d+)$", done.stdout, re.MULTILINE)
        if done.code or answer is None:
            raise _refusal(job, done.stdout + done.stderr)
        output = Path(job.section(GridEngine).output).absolute() / f"{job.name}.o{answer[1]}"
        return Handle(answer[1], output=str(output), printed=tuple(done.stderr.splitlines()))

    def states(self, jobs: Sequence[Handle]) -> Answer:
        return query([job.job_id for job in jobs])

    def cancel(self, job: Handle, *, only_waiting: bool = False) -> None:
        job_id = job.job_id
        answer = query([job_id])
        if only_waiting and answer.no_answer is not None:  # it may have started
            raise ClusterError(f"{answer.no_answer}\nTry again.")
        state = answer.jobs.get(job_id)
        if state is not None and (state.is_over or (only_waiting and not state.is_waiting)):
            return
        done = run(["qdel", job_id], timeout_s=ANSWER_S, check=False)
        if done.code and "does not exist" not in done.stdout + done.stderr:
            raise ClusterError(f"qdel {job_id} failed: {_last_line(done.stdout + done.stderr)}\nTry again.")


def _options(job: Job, section: GridEngine, lead_s: float) -> Iterator[str]:
    """The options of qsub, as lines of the script: whoever submits it by hand needs no others."""
    slots = math.ceil(round(job.resources.workers_per_node * job.resources.cpus_per_worker, 6))
    gpus = job.resources.workers_per_node * job.resources.gpus_per_worker
    yield f"N {job.name}"
    yield "cwd"
    yield "S /bin/bash"
    yield "j y"
    yield f"o {section.output.rstrip('/')}/$JOB_NAME.o$JOB_ID"
    yield f"r {'y' if section.resubmit else 'n'}"
    yield "notify"  # qdel sends SIGUSR2 some time before it kills
    yield f"v {','.join((variables.SUBMISSION, *referred_names(job.start_texts)))}"
    if section.queue is not None:
        yield f"q {section.queue}"
    if section.project is not None:
        yield f"P {section.project}"
    if slots > 1:
        yield f"pe {section.parallel_environment} {slots}"
    if gpus:
        yield f"l {section.gpu_complex}={gpus}"
    if section.memory_complex is not None and job.resources.memory_per_worker_bytes is not None:
        size = job.resources.workers_per_node * job.resources.memory_per_worker_bytes + _RAY_AND_DRIVER_BYTES
        yield f"l {section.memory_complex}={math.ceil(size / slots / 2**20)}M"
    if section.time_limit is not None:
        yield f"l s_rt={_warned_after_s(section.time_limit, lead_s)},h_rt={math.ceil(section.time_limit)}"


def _refusals(job: Job, section: GridEngine) -> Iterator[str]:
    """The lines that end a job which cannot be one run on one host."""
    array = f"element $SGE_TASK_ID of an array; all its elements would be the run {job.name}"
    hosts = f"the slots are on $NHOSTS hosts; the allocation rule of {section.parallel_environment} has to be"
    yield f'[ "${{SGE_TASK_ID:-undefined}}" = undefined ] || {{ echo "error: {array}"; exit {EXIT_JOB}; }}'
    yield f'[ "${{NHOSTS:-1}}" = 1 ] || {{ echo "error: {hosts}" \'$pe_slots\'; exit {EXIT_CLUSTER}; }}'


def _warned_after_s(time_limit_s: float, lead_s: float) -> int:
    if time_limit_s <= lead_s:
        raise JobError(
            f"gridengine.time_limit is {time_limit_s:g} s, and a last save takes {lead_s:g} s of it.\n"
            "Set a longer gridengine.time_limit."
        )
    return math.floor(time_limit_s - lead_s)


def _command(section: GridEngine, lead_s: float) -> Iterator[str]:
    yield quote(str(section.python or sys.executable))
    yield "-m clustertrain.launchers.scheduler.start gridengine"
    yield "--at-time-limit USR1"  # which Grid Engine sends before it suspends a job, too
    if section.time_limit is not None:
        # A job that was restarted gets SIGUSR2 then, as after qdel, and no other start (seen with 8.1.9).
        yield f"--time-limit {_warned_after_s(section.time_limit, lead_s)}"
    if section.resubmit:
        yield f"--restart-code {_RESTART_CODE}"
    yield f'"$JOB_ID" "${{{variables.SUBMISSION}:-$job}}"'


def _refusal(job: Job, printed: str) -> ClusterError:
    return ClusterError(
        f"Grid Engine refused the job {job.name}: {_last_line(printed)}\n"
        "See resources and gridengine; `qconf -sql` lists the queues, `qconf -sc` the resources."
    )


def _last_line(printed: str) -> str:
    lines = [line.strip() for line in printed.splitlines() if line.strip() not in ("", "Exiting.")]
    reasons = [line for line in lines if not line.startswith("verification: ")]  # follows the reason
    return (reasons or lines or ["it printed nothing"])[-1]


LAUNCHER = Launcher(GridEngineScheduler())
