"""The agent that one step of a SLURM job runs on every node; the head's does what `clustertrain run` does.

    batch shell ─▶ srun ─▶ agent on each node ─▶ Ray          on every node, under a guardian
                                        └──────▶ driver       on the head, under another (head.py)

It takes from the machine what the allocation gave, and leaves nothing on it.
"""

from __future__ import annotations

import sys

from clustertrain.errors import ClusterTrainError, RunStopped
from clustertrain.launchers.slurm.agent.mailbox import Mailbox
from clustertrain.launchers.slurm.agent.node import Heard, read_start
from clustertrain.launchers.slurm.agent.worker import serve_worker
from clustertrain.node.signals import REQUESTS_TO_END, signals_heard
from clustertrain.observe.screen import Lines
from clustertrain.supervise.guardian import become_subreaper, kill_descendants
from clustertrain.supervise.private_folder import private_folder, remove


def main(argument: str) -> int:
    """Take part in a SLURM job until it ends; returns the exit code.

    Args:
        argument: the job file, or what `clustertrain submit` said (a Submission as text).
    """
    from clustertrain.launchers.slurm.agent.head import serve_head

    become_subreaper()
    mail = Mailbox.of_this_job()
    if mail is not None:
        mail.say_hello()
    folder = private_folder()
    try:
        heard = Heard()
        with signals_heard(heard, REQUESTS_TO_END):
            start = read_start(argument, folder)
            return serve_head(start, heard, mail) if start.allocation.is_head else serve_worker(start, heard)
    except (ClusterTrainError, RunStopped) as error:
        Lines(sys.stderr).say(f"error: {error}")
        if mail is not None:
            mail.decide("end", error.exit_code)
        return error.exit_code
    finally:
        kill_descendants()
        remove(folder)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
