"""The program of each host but the first of a job of several hosts; several_hosts.py starts it there.

It reads what it has to know from its standard input, because other users can read arguments.
"""

from __future__ import annotations

import json
import os
import socket
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from clustertrain.errors import ClusterError, ClusterTrainError, RunStopped
from clustertrain.launchers.agent.node import NodeStart, agent_process, settings_of
from clustertrain.launchers.agent.worker import run_on_worker_node
from clustertrain.launchers.scheduler.in_job import check_plugin, read_start
from clustertrain.observe.screen import Lines
from clustertrain.run_files.records.scheduler import SchedulerStart
from clustertrain.storage.record_file import json_object, typed


@dataclass(frozen=True)
class ForAgent:
    """What the head tells the agents of the other hosts.

    Attributes:
        submission: what the submission sent as text, or the path of the job file.
        folder: in which the head runs; a relative path starts there.
        variables: the variables that the job got, with their values.
        token: as in NodeStart.
    """

    record: SchedulerStart
    submission: str
    folder: str
    variables: Mapping[str, str]
    token: str

    def to_text(self) -> str:
        """Return one line of text."""
        return json.dumps(asdict(self)) + "\n"

    @classmethod
    def from_text(cls, text: str) -> ForAgent:
        """Read the text of `to_text`.

        Raises:
            ClusterError: it is another one.
        """
        try:
            return typed(cls, json_object(text.encode()))
        except ValueError as error:
            raise ClusterError(
                f"The agent on {socket.gethostname()} got no start on its standard input: {error}.\n"
                "The words of `on`, in the script of the launcher, have to pass standard input on."
            ) from None


def main(rank: str) -> int:
    """Run Ray on the host with this index until the attempt ends, and return the exit code."""
    try:
        with agent_process() as (folder, signals):
            told = ForAgent.from_text(sys.stdin.readline())
            os.environ.update(told.variables)
            return run_on_worker_node(_start_of(told, int(rank), folder), signals)
    except (ClusterTrainError, RunStopped) as error:
        Lines(sys.stderr).echo(f"error: {error}")
        return error.exit_code


def _start_of(told: ForAgent, rank: int, folder: Path) -> NodeStart:
    """Return the start of this agent's job.

    Raises:
        ClusterTrainError: a folder, the plug-in or the snapshot is missing, or the job is wrong.
    """
    try:
        os.chdir(told.folder)
    except OSError as error:
        raise ClusterError(
            f"{told.folder} on {socket.gethostname()}: {error.strerror}.\n"
            "Submit from a folder that all hosts of the job share."
        ) from None
    check_plugin(told.record.scheduler)
    job, run, options, code = read_start(told.submission, folder, "submit")
    return NodeStart(job, run, options, told.record, rank, folder, code, settings_of(job), told.token)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
