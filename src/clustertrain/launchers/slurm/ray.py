"""The driver's connection to the Ray of a SLURM job."""

from __future__ import annotations

from clustertrain.driver.ray_cluster import RayCluster
from clustertrain.job.model import Job
from clustertrain.launchers.agent.ray import ray_of_agents
from clustertrain.launchers.slurm.agent.allocation import settings_of


def ray_cluster(job: Job) -> RayCluster:
    """Return the cluster whose head the agent of this node started."""
    return ray_of_agents(settings_of(job))
