"""The launcher for Kubernetes clusters with KubeRay. It reads the storage of a run through a pod."""

from __future__ import annotations

from pathlib import Path

from clustertrain.errors import JobError
from clustertrain.launchers.elsewhere import LauncherElsewhere
from clustertrain.launchers.kubernetes.observed.view import kubectl_for
from clustertrain.launchers.kubernetes.status import rows_in
from clustertrain.launchers.kubernetes.storage import KubernetesReach
from clustertrain.launchers.kubernetes.submit import SCHEDULER
from clustertrain.observe.columns import Columns
from clustertrain.observe.run_table import Table, table_of


class KubernetesLauncher(LauncherElsewhere):
    """Runs whose state and storage are read in their cluster."""

    def ls(self, place: str | None, namespace: str | None, columns: Columns) -> Table:
        if columns.headers:
            raise JobError(
                "--args and --metric: --to kubernetes lists RayJobs, without their storage.\n"
                "Use `clustertrain ls` without --to."
            )
        if place is not None and not Path(place).is_file():
            raise JobError(
                f"{place} is not a job file, and only a job file names the cluster.\nName the job file."
            )
        return table_of(rows_in(kubectl_for(place, namespace)), (), columns)


LAUNCHER = KubernetesLauncher(SCHEDULER, KubernetesReach())
