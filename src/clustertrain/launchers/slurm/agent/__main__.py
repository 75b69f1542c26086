"""The agent: one step of a SLURM job runs it on every node. On the head it also supervises the driver.

    batch shell ─▶ srun ─▶ agent on each node ─▶ Ray          on every node, under a guardian
                                        └──────▶ driver       on the head, under another (head.py)

It uses only the resources of the allocation, and leaves no process and no file on the node.
"""

from __future__ import annotations

import os
import sys

from clustertrain.errors import ClusterTrainError, RunStopped
from clustertrain.launchers.agent.node import agent_process
from clustertrain.launchers.agent.worker import run_on_worker_node
from clustertrain.launchers.slurm.agent.allocation import read_start
from clustertrain.launchers.slurm.agent.mailbox import Mailbox
from clustertrain.node import variables
from clustertrain.observe.screen import Lines


def main(argument: str) -> int:
    """Run the agent of this node until the job ends, and return the exit code.

    Args:
        argument: the path of the job file, or the Submission of `clustertrain submit` as text.
    """
    from clustertrain.launchers.slurm.agent.head import run_on_head

    mail = Mailbox.of_this_job()
    if mail is not None:
        mail.report_start()
    try:
        with agent_process() as (folder, signals):
            start = read_start(argument, folder)
            if mail is not None:
                return run_on_head(start, signals, mail)
            return run_on_worker_node(start, signals)
    except (ClusterTrainError, RunStopped) as error:
        Lines(sys.stderr).echo("\n".join(f"{_node()}{line}" for line in f"error: {error}".splitlines()))
        if mail is not None:
            mail.write_verdict("end", error.exit_code)
        return error.exit_code


def _node() -> str:
    """Return how the lines of an error begin on all nodes but the head, which finds them in srun's output."""
    rank, nodes = int(os.environ.get("SLURM_NODEID", "0")), os.environ.get(variables.NODES, "").split(",")
    return f"{nodes[rank]}: " if 0 < rank < len(nodes) else ""


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
