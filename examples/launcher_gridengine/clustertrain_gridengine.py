"""Grid Engine as a launcher of clustertrain: jobs on one host, started again at their time limit."""

import math
import os
import pathlib
import re
from collections.abc import Mapping, Sequence
from typing import Annotated, ClassVar
from xml.etree import ElementTree

from pydantic import AfterValidator, StrictBool

from clustertrain.launcher import (
    ClusterError,
    CommandFailed,
    LauncherSection,
    Path,
    Plugin,
    Scheduler,
    Seconds,
    Sent,
    State,
    run,
)

_REMEDIES = dict.fromkeys(("qsub", "qstat", "qdel"), "It is on a submit host: log in there, or set PATH.")
_HINT = "See resources and gridengine; `qconf -sql` lists the queues, `qconf -sc` the resources."

# qstat's state is a set of letters; the first of these that it has determines the phase.
_PHASES = {
    "E": ("held", "could not be started"),
    "d": ("ends", "is being deleted"),
    "s": ("suspended", "was suspended"),
    "S": ("suspended", "was suspended with its queue"),
    "T": ("suspended", "was suspended: its host is overloaded"),
    "t": ("starts", "is being sent to its host"),
    "r": ("runs", ""),  # also if it is held, which counts after a restart
    "h": ("held", "is held"),
    "q": ("waits", ""),
}


def _word(text: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9_./@+-]+", text):
        raise ValueError("must be one word of letters, digits and _ . / @ + -")
    return text


Word = Annotated[str, AfterValidator(_word)]  # it ends up in a line of options


class GridEngine(LauncherSection):
    """Settings for Grid Engine. Workers, CPUs, GPUs and memory are in `resources`."""

    text_keys: ClassVar[frozenset[str]] = frozenset(("queue", "project", "parallel_environment"))

    queue: Word | None = None
    """The queue; without it any that has the resources."""
    project: Word | None = None
    """The project that the job is accounted to."""
    parallel_environment: Word = "smp"
    """The parallel environment of a job with several slots, all of them on one host."""
    gpu_complex: Word = "gpu"
    """The consumable that counts GPUs; it has to be one for each job (JOB), not for each slot."""
    memory_complex: Word | None = None
    """The consumable that limits the memory of each slot, such as h_vmem."""
    time_limit: Seconds | None = None
    """The time after which Grid Engine ends the job; a save comes before."""
    resubmit: StrictBool = True
    """Whether the job starts again at its time limit, in place of a suspension or after the loss of its host,
    and continues."""
    python: Path | None = None
    """The Python on the hosts. Default: that of the command which submits."""
    output: Word = "."
    """The existing folder for the output of the job."""


class GridEngineScheduler(Scheduler):
    label = "Grid Engine"

    def script(self, job, needs) -> str:
        """Whoever submits it by hand needs no options."""
        section, limit_s = job.section(GridEngine), job.section(GridEngine).time_limit
        warned_s = None if limit_s is None else math.floor(limit_s - needs.lead_s)
        again = 99 if section.resubmit else None
        memory = math.ceil((needs.memory_bytes or 0) / needs.cpus / 2**20)
        optional = (
            ("q", section.queue),
            ("P", section.project),
            ("pe", needs.cpus > 1 and f"{section.parallel_environment} {needs.cpus}"),
            ("l", needs.gpus and f"{section.gpu_complex}={needs.gpus}"),
            ("l", section.memory_complex and memory and f"{section.memory_complex}={memory}M"),
            ("l", limit_s and f"s_rt={warned_s},h_rt={math.ceil(limit_s)}"),
        )
        array = f"element $SGE_TASK_ID of an array; all its elements would be the run {job.name}"
        hosts = f"the slots are on $NHOSTS hosts; the allocation rule of {section.parallel_environment}"
        # SIGUSR1 comes before a suspension, too. At its time limit a job that was restarted gets SIGUSR2, as
        # after qdel, and no other start (seen with 8.1.9).
        program = needs.program(
            '"$JOB_ID"', python=section.python, signal="USR1", warned_after_s=warned_s, restart_code=again
        )
        lines = [
            "#!/bin/bash",
            # With -notify qdel sends SIGUSR2 some time before it kills.
            f"#$ -N {job.name} -cwd -S /bin/bash -j y -notify -r {'y' if again else 'n'}",
            f"#$ -o {section.output.rstrip('/')}/$JOB_NAME.o$JOB_ID -v {','.join(needs.variables)}",
            *(f"#$ -{option} {value}" for option, value in optional if value),
            f'[ "${{SGE_TASK_ID:-undefined}}" = undefined ] || {{ echo "error: {array}"; exit 2; }}',
            f'[ "${{NHOSTS:-1}}" = 1 ] || {{ echo "error: {hosts} has to be" \'$pe_slots\'; exit 3; }}',
            program,
        ]
        return "\n".join(lines)

    def check(self, job, script: str) -> Sequence[str]:
        if not os.path.isdir(output := job.section(GridEngine).output):
            raise ClusterError(f"gridengine.output is {output}, which is no folder.\nCreate it first.")
        try:
            run(["qsub", "-w", "v"], input=script.encode())
        except CommandFailed as error:
            printed = f"{error.how}\n{error.stdout}{error.stderr}".splitlines()
            why = [line for line in printed if not re.match(r"verification: |Exiting|\s*$", line)][-1]
            raise ClusterError(f"Grid Engine refuses the job {job.name}: {why.strip()}\n{_HINT}") from None
        return ()

    def submit(self, job, script: str, environment: Mapping[str, str]) -> Sent:
        done = run(["qsub", "-terse"], input=script.encode(), environ={**os.environ, **environment})
        job_id = re.findall(r"^\d+$", done.stdout, re.MULTILINE)[-1]
        output = pathlib.Path(job.section(GridEngine).output, f"{job.name}.o{job_id}").absolute()
        return Sent(job_id, str(output), done.stderr.splitlines())

    def query(self, jobs: Sequence[Sent]) -> dict[str, State]:
        try:
            listed = ElementTree.fromstring(run(["qstat", "-xml", "-u", "*"], timeout_s=20).stdout)
        except CommandFailed as error:
            raise ClusterError(f"Grid Engine does not answer: {error.stderr.strip() or error.how}") from None
        rows = {row.findtext("JB_job_number"): row for row in listed.iter("job_list")}
        job_ids = [job.job_id for job in jobs]
        states = {each: _listed(each, rows[each]) if each in rows else _ended(each) for each in job_ids}
        return {job_id: state for job_id, state in states.items() if state is not None}

    def cancel(self, job: Sent) -> None:
        try:
            run(["qdel", job.job_id], timeout_s=20)
        except CommandFailed as error:
            if "does not exist" not in error.stdout + error.stderr:
                raise


def _listed(job_id: str, row: ElementTree.Element) -> State:
    letters, host = row.findtext("state", ""), row.findtext("queue_name", "").partition("@")[2]
    phase, why = next((_PHASES[letter] for letter in _PHASES if letter in letters), ("runs", ""))
    if "E" in letters:
        printed = run(["qstat", "-j", job_id], timeout_s=20, check=False).stdout
        why = "".join(re.findall(r"^error reason\s+\d+:\s*(.*\S)", printed, re.MULTILINE)[:1]) or why
    return State(letters, phase, why, host)


def _ended(job_id: str) -> State | None:
    """The end of a job; None if the accounting does not have it, or cannot be read here, or if the job was
    deleted while it waited for a restart: then the last record is of the start before."""
    try:
        done = run(["qacct", "-j", job_id], timeout_s=20, check=False)
    except ClusterError:
        return None
    values = dict(re.findall(r"^(hostname|failed|exit_status)\s+(\S+)", done.stdout, re.MULTILINE))
    # 25: the job waited for another start after this one.
    if done.code or "exit_status" not in values or values["failed"] == "25":
        return None
    code, failed = int(values["exit_status"]), values["failed"]
    word = "out of time" if failed == "37" else "failed" if code or failed != "0" else "ended"
    phase = "timed out" if failed == "37" else "ended"
    return State(word, phase, hosts=values["hostname"], code=code if code or failed == "0" else None)


SCHEDULER = GridEngineScheduler()
PLUGIN = Plugin("clustertrain_gridengine:SCHEDULER", section=GridEngine, remedies=_REMEDIES)
