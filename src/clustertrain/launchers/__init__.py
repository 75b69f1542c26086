"""Where a job runs. Each launcher is a folder; its module is imported when it is asked for."""

LAUNCHERS = {
    "local": "clustertrain.launchers.local.launcher",
    "slurm": "clustertrain.launchers.slurm.launcher",
    "kubernetes": "clustertrain.launchers.kubernetes.launcher",
}
