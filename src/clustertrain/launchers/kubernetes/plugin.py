"""Registers Kubernetes as a launcher."""

from clustertrain.job.launcher_plugins import Plugin
from clustertrain.launchers.kubernetes.section import Kubernetes

PLUGIN = Plugin(
    "clustertrain.launchers.kubernetes.scheduler:SCHEDULER",
    section=Kubernetes,
    remedies={"kubectl": "Install it (https://kubernetes.io/docs/tasks/tools), or add its folder to PATH."},
    connect="clustertrain.launchers.kubernetes.ray:ray_cluster",
    reach="clustertrain.launchers.kubernetes.storage:REACH",
)
