"""The hook that `ray start` calls in a pod before it starts Ray (RAY_START_HOOK).

It sets Ray's environment, and waits as long as the job allows.

The operator writes the command of a pod. Ray's limits are fixed, such as 30 s until the node has registered:
on a busy node a container exceeds them, and is started again, each time later.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

from clustertrain.driver.ray_cluster import Deadline
from clustertrain.errors import ClusterError
from clustertrain.launchers.kubernetes.in_pod.this_pod import job_of_pod
from clustertrain.launchers.kubernetes.section import Kubernetes
from clustertrain.node import variables
from clustertrain.node.ray_settings import RAY_ENVIRONMENT
from clustertrain.node.user_folders import spool_base

_MEMORY = Path("/dev/shm/clustertrain")  # a volume of the pod, so it outlives a container of it


def wait_as_long_as_the_job(parameters: Any, head: bool) -> None:
    """Have `ray start` start Ray's processes as every launcher does, until start_deadline.

    Args:
        parameters: Ray's RayParams of the node, incomplete.
        head: this is the node of the head.
    """
    from clustertrain.driver.fork.starter import start_fork_server
    from clustertrain.driver.ray_internals import make_nodes_with
    from clustertrain.driver.ray_node import start_ray

    job = job_of_pod()
    deadline_s = job.section(Kubernetes).start_deadline_s
    with suppress(OSError):  # then the workers keep nothing in memory
        _MEMORY.mkdir(mode=0o700, exist_ok=True)
    for name, value in RAY_ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    os.environ[variables.MEMORY_DIR] = str(_MEMORY)
    os.environ[variables.SPOOL] = str(spool_base())
    start_fork_server(Path(mkdtemp()), job.resources.cpus_per_worker)

    def node(parameters: Any, **options: Any) -> Any:
        deadline = Deadline(deadline_s, "kubernetes.start_deadline")
        try:
            return start_ray(parameters, deadline, lambda text: print(text, flush=True), **options)
        except ClusterError as error:
            sys.exit(str(error))

    make_nodes_with(node)
