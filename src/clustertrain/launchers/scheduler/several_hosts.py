"""The head of a job of several hosts, for start.py: an agent runs on each other host (agent.py).

    start.py ──▶ Ray's head, the driver
        └──▶ the words of `on` ──▶ agent.py on each other host ──▶ Ray

The words run under a guardian, and end with the head. An agent ends by itself: when the attempt has a result,
or Ray on the head is gone.
"""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from clustertrain.launchers.agent.head import run_attempt
from clustertrain.launchers.agent.node import NodeStart
from clustertrain.launchers.agent.node_end import NodeEnd
from clustertrain.launchers.scheduler.agent import ForAgent
from clustertrain.launchers.scheduler.needs_of_job import environment_of
from clustertrain.node.signals import handled_signals
from clustertrain.node.waiting import wait_until
from clustertrain.observe.screen import Screen
from clustertrain.run_files.folder.run_dir import Attempt
from clustertrain.run_files.records.result import Result
from clustertrain.supervise.guardian import become_subreaper, kill_descendants
from clustertrain.supervise.private_folder import write_token
from clustertrain.supervise.process import Guarded
from clustertrain.supervise.stop_on_signal import StopOnSignal

_AGENTS_END_WITHIN_S = 10.0  # they look for the result every 2 s, and send what their node has written to S3


@dataclass
class SeveralHostsEnd(NodeEnd):
    """An EndPolicy for the head: a signal, a lost host, or a newer attempt."""

    stop: StopOnSignal
    agents: Mapping[str, Guarded]

    def end_now(self, is_training: bool) -> Result | None:
        return self.stop.end_now(is_training) or self.end_of_a_node(is_training)

    def find_ended_agent(self) -> str:
        if self.stop.signals:  # the scheduler may end all processes of the job
            return ""
        lost = ((host, agent) for host, agent in self.agents.items() if agent.code() is not None)
        return next((f"The agent on {h} {a.how_it_ended()}.\n{a.last_lines()}".strip() for h, a in lost), "")


def run_on_hosts(
    start: NodeStart,
    attempt: Attempt,
    on: str,
    submission: str,
    *,
    meanings: Mapping[int, tuple[str, str]],
    screen: Screen,
) -> Result:
    """Run the attempt with Ray on each host of the start, and return its result.

    Args:
        on: the words that run a command on a host; `{host}` is its name.
        submission: as in ForAgent.
        meanings: the signals to handle, each with the state and the cause of a run that it ends.
    """
    become_subreaper()
    agents: dict[str, Guarded] = {}
    with handled_signals(meanings) as signals:
        stop = StopOnSignal(attempt, signals, meanings, screen, once=True)

        def policy_with(ray: Guarded) -> SeveralHostsEnd:
            agents.update(_start_agents(start, on, submission))
            return SeveralHostsEnd(start, attempt, ray, stop, agents)

        label = start.record.scheduler
        try:
            result = run_attempt(start, attempt, label, policy_with, screen, owns_process=False)
            wait_until(
                lambda: all(each.code() is not None for each in agents.values()), _AGENTS_END_WITHIN_S, 0.1
            )
            return result
        finally:
            for agent in agents.values():
                agent.end()
            kill_descendants()


def _start_agents(start: NodeStart, on: str, submission: str) -> dict[str, Guarded]:
    """Start the agents of the other hosts; the token gets there on standard input."""
    folder = start.folder / "agents"
    folder.mkdir(mode=0o700)
    variables = environment_of(start.job, submission)
    told = ForAgent(start.record, submission, str(Path.cwd()), variables, start.token)
    path = write_token(folder, told.to_text())
    agents = {}
    for rank, host in enumerate(start.record.nodes[1:], start=1):
        words = [word.replace("{host}", host) for word in shlex.split(on)]
        words += [sys.executable, "-P", "-m", "clustertrain.launchers.scheduler.agent", str(rank)]
        command = ["sh", "-c", 'exec "$@" < "$0"', str(path), *words]
        own = folder / str(rank)
        own.mkdir(mode=0o700)
        agents[host] = Guarded(command, folder / f"{rank}.log", own, os.environ, shielded=True)
    return agents
