"""docker/compose.yaml on this machine, by `make compose-up`: Ray on a head and two workers, S3, TensorBoard.

with ComposedCluster(folder) as cluster:         # `folder` is what the containers have at /work
    run = OnCluster(cluster, "name", task=…).start()
    podman("pause", cluster.name("worker-2"))
"""

import os
import shutil
import sys
from pathlib import Path

from clusters.containers import ROOT, environment, kit_image, podman, stand_in_base, told, unique
from clustertrain.node.ports import free_block
from support.commands import ran
from support.whole_run import CODE, Run

_VERSITYGW = Path(sys.executable).parent / "versitygw"
_UP_S = 400


def why_not() -> str | None:
    """What is missing beside what containers need."""
    return None if _VERSITYGW.exists() else "there is no versitygw: `make test` builds it where there is Go"


class ComposedCluster:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._id = unique("composed")
        self.tensorboard_port = free_block(1, seed=os.getpid()).first
        shutil.copytree(CODE, folder / "jobs", ignore=shutil.ignore_patterns("__pycache__"))
        folder.chmod(0o755)
        self._variables = {
            "COMPOSE_PROJECT_NAME": self._id,
            "NAME": self._id,
            "PROJECT": str(folder),
            "TENSORBOARD_PORT": str(self.tensorboard_port),
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        }

    def __enter__(self) -> "ComposedCluster":
        images = {"IMAGE": kit_image(), "S3_IMAGE": self._s3_image()}
        try:
            self._make("compose-up", **images)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._make("compose-down")
        podman("rmi", "--force", f"localhost/{self._id}", check=False)

    def _s3_image(self) -> str:
        """versitygw where its own image has it."""
        build = self.folder / "s3-image"
        build.mkdir()
        shutil.copy(_VERSITYGW, build)
        (build / "Dockerfile").write_text(f"FROM {stand_in_base()}\nCOPY versitygw /usr/local/bin/\n")
        podman("build", "--quiet", f"--tag=localhost/{self._id}", str(build), timeout_s=300)
        shutil.rmtree(build)
        return f"localhost/{self._id}"

    def _make(self, target: str, **variables: str) -> None:
        variables = {**environment(), **self._variables, **variables}
        argv = ["make", "--no-print-directory", target, "ENGINE=podman"]
        done = ran(argv, cwd=ROOT, env=variables, timeout=_UP_S)
        if done.returncode:
            raise AssertionError(
                f"make {target} ended with {done.returncode}:\n{told(done)}\n{self.output()}"
            )

    def name(self, service: str) -> str:
        return f"{self._id}-{service}"

    @property
    def network(self) -> str:
        return f"{self._id}_ray"

    @property
    def storage(self) -> Path:
        """Where this machine sees the volume that the containers have at /storage."""
        format_ = "--format={{.Mountpoint}}"
        return Path(podman("volume", "inspect", format_, f"{self._id}_storage").stdout.strip())

    def output(self) -> str:
        """The last lines of each container."""
        services = ("head", "worker-1", "worker-2", "s3", "tensorboard")
        return "\n".join(
            f"{service}: {told(podman('logs', '--tail=20', self.name(service), check=False))}"
            for service in services
        )


class OnCluster(Run):
    """One job file, started on the head; its storage is looked at from this machine."""

    patience_s = 240.0

    def __init__(self, cluster: ComposedCluster, name: str, **sections) -> None:
        self.cluster = cluster
        one_cpu_each = {"workers": 2, "cpus_per_worker": 1}  # as many as a node of it has
        super().__init__(
            cluster.folder, name, storage=str(cluster.storage), resources=one_cpu_each, **sections
        )

    def start(self, *arguments: str) -> "OnCluster":
        there = ("--set", "storage=/storage", "--set", "code=/work/jobs")
        command = ("clustertrain", "run", f"/work/{self.job_file.name}", *there, *arguments)
        return self.launch("podman", "exec", self.cluster.name("head"), *command, env=environment())

    def end(self, code: int, *, within_s: float = 400) -> str:
        return super().end(code, within_s=within_s, all_gone=False)
