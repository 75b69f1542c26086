"""Registers Kubernetes as a launcher."""

from clustertrain.job.launcher_plugins import Plugin
from clustertrain.launchers.kubernetes.section import Kubernetes

PLUGIN = Plugin(
    launcher="clustertrain.launchers.kubernetes.launcher:LAUNCHER",
    connect="clustertrain.launchers.kubernetes.ray:ray_cluster",
    section=Kubernetes,
    remedies={"kubectl": "Install it (https://kubernetes.io/docs/tasks/tools), or add its folder to PATH."},
)
