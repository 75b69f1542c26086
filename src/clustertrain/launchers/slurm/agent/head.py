"""The agent of the head node.

It claims the attempt, and runs it (launchers/agent/head.py). It ends the run when SLURM ends the job
(end_policy.py), and writes the verdict for the batch shell.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from clustertrain.errors import EXIT_DONE
from clustertrain.launchers.agent.head import run_attempt, world_sizes_on
from clustertrain.launchers.agent.node import NodeStart
from clustertrain.launchers.scheduler.in_job import run_start
from clustertrain.launchers.slurm.agent.end_policy import SlurmEndPolicy
from clustertrain.launchers.slurm.agent.mailbox import Mailbox
from clustertrain.launchers.slurm.section import Slurm
from clustertrain.observe.screen import Lines
from clustertrain.run_files.folder.run_dir import Attempt
from clustertrain.run_files.records.result import Result
from clustertrain.run_files.states import STATES
from clustertrain.supervise.process import Guarded

_REQUEUED_CAUSES = ("preempted", "node_fail", "time_limit")  # "requeued": SLURM has already done it


def run_on_head(start: NodeStart, signals: Sequence[int], mail: Mailbox) -> int:
    """Run the attempt to its end, and return the exit code; the batch shell ends with the same one."""
    screen = Lines(sys.stdout)

    def supervise(attempt: Attempt) -> Result:
        def policy_with(ray: Guarded) -> SlurmEndPolicy:
            return SlurmEndPolicy(start, attempt, ray, signals, mail, screen)

        return run_attempt(start, attempt, "SLURM", policy_with, screen)

    def world_sizes() -> list[int]:
        return world_sizes_on(start.job, start.record.nodes)

    result = run_start(start, screen, world_sizes=world_sizes, supervise=supervise)
    code = EXIT_DONE if result is None else result.exit_code
    restarts = result is not None and STATES[result.state].restarts and result.cause in _REQUEUED_CAUSES
    requeue = restarts and start.job.section(Slurm).requeue
    mail.write_verdict("requeue" if requeue else "end", code)
    return code
