"""Two schedulers of no cluster: one in the memory of this process, and one of commands on PATH."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from clustertrain.errors import ClusterError
from clustertrain.job.site import SiteJob
from clustertrain.launchers.scheduler.interface import Phase, Scheduler, Sent, State
from clustertrain.launchers.scheduler.needs import Needs
from clustertrain.launchers.shell import run


class InMemoryScheduler(Scheduler):
    """A scheduler in the memory of this process. Its jobs wait until a test sets another state.

    Attributes:
        scripts, environments: what was submitted, by the ID of the job.
        cancelled: the IDs of the jobs that were cancelled, in order.
        no_answer: why it answers no query and takes no job; empty if it does.
    """

    label = "fake"

    def __init__(self) -> None:
        self.scripts: dict[str, str] = {}
        self.environments: dict[str, dict[str, str]] = {}
        self.cancelled: list[str] = []
        self.no_answer = ""
        self._states: dict[str, State] = {}

    def set(self, job_id: str, state: State | None) -> None:
        """Set the state of a job; with None the scheduler does not know it any more."""
        if state is None:
            self._states.pop(job_id, None)
        else:
            self._states[job_id] = state

    def script(self, job: SiteJob, needs: Needs) -> str:
        return f"#!/bin/bash\n{needs.program('$JOB_ID')}"

    def submit(self, job: SiteJob, script: str, environment: Mapping[str, str]) -> Sent:
        self._answer()
        job_id = str(len(self.scripts) + 1)
        self.scripts[job_id], self.environments[job_id] = script, dict(environment)
        self.set(job_id, State("PENDING", "waits"))
        return Sent(job_id)

    def query(self, jobs: Sequence[Sent]) -> dict[str, State]:
        self._answer()
        return {job.job_id: self._states[job.job_id] for job in jobs if job.job_id in self._states}

    def cancel(self, job: Sent) -> None:
        self.cancelled.append(job.job_id)
        state = self._states.get(job.job_id)
        if state is not None and not state.is_over:
            self.set(job.job_id, State("CANCELLED", "cancelled"))

    def _answer(self) -> None:
        if self.no_answer:
            raise ClusterError(self.no_answer)


_PHASES: Mapping[str, Phase] = {
    "PENDING": "waits",
    "RUNNING": "runs",
    "ENDED": "ended",
    "CANCELLED": "cancelled",
}


class CommandScheduler(Scheduler):
    """A scheduler whose commands `fake_commands` writes. Its jobs run on this machine."""

    label = "fake"

    def script(self, job: SiteJob, needs: Needs) -> str:
        return f"#!/bin/bash\n{needs.program('$JOB_ID')}"

    def submit(self, job: SiteJob, script: str, environment: Mapping[str, str]) -> Sent:
        done = run(["fake-submit"], input=script.encode(), environ={**os.environ, **environment})
        return Sent(done.stdout.strip())

    def query(self, jobs: Sequence[Sent]) -> dict[str, State]:
        rows = [
            line.split() for line in run(["fake-query", *(job.job_id for job in jobs)]).stdout.splitlines()
        ]
        return {
            job_id: State(word, _PHASES[word], code=int(code[0]) if code else None)
            for job_id, word, *code in rows
        }

    def cancel(self, job: Sent) -> None:
        run(["fake-cancel", job.job_id])


FAKE_HELD = "#FAKE hold\n"
"""The line of a script with which a job of `fake_commands` waits for ever."""

_COMMANDS = {
    "fake-submit": """
id=$(($(ls "$jobs" | wc -l) + 1))
job=$jobs/$id
mkdir "$job"
cat > "$job/script"
echo "$id"
if grep -q "^#FAKE hold" "$job/script"; then exit; fi
JOB_ID=$id setsid sh -c 'bash "$0/script"; echo $? > "$0/code"' "$job" > "$job/output" 2>&1 < /dev/null &
echo $! > "$job/pid"
""",
    "fake-query": """
for id; do
  job=$jobs/$id
  if [ ! -d "$job" ]; then continue
  elif [ -e "$job/cancelled" ]; then echo "$id CANCELLED"
  elif [ -s "$job/code" ]; then echo "$id ENDED $(cat "$job/code")"
  elif [ -e "$job/pid" ]; then echo "$id RUNNING"
  else echo "$id PENDING"; fi
done
""",
    "fake-cancel": """
job=$jobs/$1
if [ ! -d "$job" ] || [ -e "$job/code" ]; then exit; fi
touch "$job/cancelled"
if [ -e "$job/pid" ]; then kill -- "-$(cat "$job/pid")"; fi
""",
}


def fake_commands(folder: Path) -> None:
    """Write the commands of a CommandScheduler into a folder, which has to be on PATH."""
    (folder / "jobs").mkdir(parents=True)
    for name, text in _COMMANDS.items():
        (folder / name).write_text(f"#!/bin/sh\njobs='{folder}/jobs'{text}")
        (folder / name).chmod(0o755)
