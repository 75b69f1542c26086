"""A real Kubernetes with the real KubeRay operator on this machine, as root; no registry is asked.

    with KubeCluster() as cluster:
        cluster.start_operator()
        cluster.load("localhost/clustertrain:dev")                  # from podman
        namespace = cluster.make_namespace("digits")                # unique, and `restricted`
        runs = cluster.make_volume(namespace, "runs")               # a PVC, ReadWriteMany: its folder here
        cluster.apply(Path("k8s/rayjob-digits.yaml").read_text(), namespace=namespace)
        cluster.stop_operator(); cluster.start_operator()
        cluster.kill("apiserver"); cluster.start("apiserver")
        subprocess.run(["kubectl", "get", "pods"], env=cluster.environment)

One node, node1, with a network of its own: API server, etcd, controllers, scheduler, kubelet on containerd
and kube-proxy are processes; CoreDNS and the operator are pods. All know this machine as `cluster.machine`.
Clusters do not meet: each has a folder, a subnet, a cgroup, and namespaces of processes, mounts and network.
One ends with the last process that uses it, however that ends (see kube_site.sh).
"""

import contextlib
import functools
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import yaml
from urllib3.exceptions import HTTPError

from clusters.kube_addons import Addons
from clusters.kube_api import Api, Refused, manifest
from clusters.kube_client import SPARING, TOOLS, all_are, is_built, path
from clusters.kube_conf import NODE, SERVICES, command_lines, write_configuration
from clusters.kube_folders import claim_folder, join_folder, locked
from clusters.kube_images import empty_image, program_image
from clusters.kube_pods import SHELL_IMAGE
from clusters.kube_policy import enforced
from clusters.machine import NAMESPACES, inside, last_words, lay_cable, missing, no_namespaces
from support.commands import Done, ran
from support.waiting import wait_until

_HERE = Path(__file__).parent
_BUILT = ("coredns", "etcd", "kube-apiserver", "kube-controller-manager", "kube-proxy", "kube-scheduler")
_BUILT += ("kubectl", "kubelet", "kueue", "ray-operator")
_PACKAGES = {
    "containerd": ("containerd", "ctr"),
    "runc": ("runc",),
    "containernetworking-plugins": ("/usr/lib/cni/ptp",),
    "busybox-static": ("busybox",),
    "catatonit": ("catatonit",),
    "iptables": ("iptables",),
    "conntrack": ("conntrack",),
    "iproute2": ("ip",),
    "openssl": ("openssl",),
    "podman": ("podman",),
}
_STORE = "/run/images"  # in a cluster: where podman keeps images, see kube_site.sh
_PATIENCE_S = 90.0  # for what takes seconds on an idle machine


def why_not() -> str | None:
    """What this machine lacks for a cluster. Waits while `make kube-tools` runs."""
    if os.geteuid() != 0:
        return "a Kubernetes of processes needs root"
    is_built(wait=True)
    if lacking := missing(_PACKAGES):
        return lacking
    if absent := [name for name in _BUILT if not (TOOLS / "bin" / name).exists()]:
        return f"{', '.join(absent)} not built: make kube-tools (needs Go)"
    return no_namespaces()


def _program(name: str) -> Path:
    return Path(shutil.which(name, path=path()) or name)


@functools.cache
def _podman_store() -> str:
    return ran(["podman", "info", "--format={{.Store.GraphRoot}}"], code=0).stdout.strip()


class KubeCluster(Addons):
    """Of this process, or shared by several: see `shared_cluster`."""

    machine: str  # the address of this machine, as nodes and pods see it

    def __enter__(self) -> "KubeCluster":
        self.up()
        return self

    def __exit__(self, *error: object) -> None:
        self.down()

    # Up and down

    def up(self) -> None:
        self.folder, self._users = claim_folder()
        _, node_address = _addresses(self.folder)
        write_configuration(self.folder, node_address, self.folder.name)
        self._locate()
        try:
            self._open_site()
            self._start_node()
            self.start_dns()
        except BaseException:
            self.down()
            raise

    def join(self, folder: Path) -> bool:
        """The cluster of another process, as long as that or another one is there."""
        users = join_folder(folder)
        if users is None:
            return False
        self.folder, self._users = folder, users
        self._locate()
        return True

    def leave(self) -> None:
        """The cluster ends soon, unless others use it."""
        self.api.close()
        self._users.close()

    def down(self) -> None:
        """Nothing is left: no process, link, mount, cgroup or folder."""
        self.leave()
        self._wait_until(lambda: not self.folder.exists(), "it does not end")

    def _locate(self) -> None:
        self.machine, self.node_address = _addresses(self.folder)
        self.kubeconfig = self.folder / "kubeconfig"
        config = yaml.safe_load(self.kubeconfig.read_text())
        cluster, user = config["clusters"][0]["cluster"], config["users"][0]["user"]
        self.api = Api(cluster["server"], cluster["certificate-authority"], user["token"])

    def _open_site(self) -> None:
        script = [str(_HERE / "kube_site.sh"), str(self.folder), self.folder.name, _podman_store()]
        # Not a child of ours: another process may use it longer.
        argv = ["setsid", "--fork", *NAMESPACES, *script]
        subprocess.run(argv, stdin=subprocess.DEVNULL, check=True)
        self._wait_until((self.folder / "pid").exists, "the site does not open")
        lay_cable(self.folder.name, f"{self.machine}/30", (self.folder / "pid").read_text().strip())
        self.inside("ip", "address", "add", f"{self.node_address}/30", "dev", "uplink")
        self.inside("ip", "link", "set", "uplink", "up")
        # The node itself finds services by its iptables, which come after the routes. There is no other way
        # out: what is not here is unreachable at once.
        self.inside("ip", "route", "add", SERVICES, "dev", "uplink")

    def _start_node(self) -> None:
        self.start("containerd")
        self.start("etcd")
        self.start("apiserver")
        self._wait_until(lambda: self.inside("ctr", "version", check=False).returncode == 0, "no containerd")
        self.load_program("localhost/pause:test", _program("catatonit"), "/pause", "-P")
        self.load_program(SHELL_IMAGE, _program("busybox"), "/bin/busybox")
        self.load_program("localhost/coredns:test", TOOLS / "bin" / "coredns", "/coredns")
        self.wait_for_api_server()
        for name in ("controllers", "scheduler", "kubelet", "proxy"):
            self.start(name)
        self._wait_until(self._is_ready, "the node is not Ready")

    def _is_ready(self) -> bool:
        return all_are("Ready", [self.get("nodes", NODE)])

    # Its programs: containerd, etcd, apiserver, controllers, scheduler, kubelet, proxy

    def start(self, name: str) -> None:
        """The pid that it writes is one of the cluster's, which no other process can have."""
        script = (
            'ulimit -n "$(ulimit -Hn)"; echo $$ >"$1"; log=$2; shift 2; exec "$@" >>"$log" 2>&1 </dev/null'
        )
        files = [str(self.folder / "processes" / name), str(self.folder / "log" / name)]
        command = command_lines(self.folder, self.node_address)[name]
        self.inside("setsid", "--fork", "bash", "-c", script, name, *files, *command)

    def kill(self, name: str) -> None:
        """Every connection to it breaks; `start` brings it back."""
        pid = (self.folder / "processes" / name).read_text().strip()
        self.inside("kill", "-KILL", pid)
        self._wait_until(lambda: self.inside("kill", "-0", pid, check=False).returncode, f"{name} lives on")

    def wait_for_api_server(self) -> None:
        def answers() -> bool:
            with contextlib.suppress(Refused, HTTPError):
                return self.api.text("GET", "/readyz") == "ok"
            return False

        self._wait_until(answers, "the API server does not answer")

    def inside(self, *argv: str, input: str = "", check: bool = True) -> Done:
        """Runs on the node, in its namespaces."""
        pid = (self.folder / "pid").read_text().strip()
        variables = {**os.environ, **SPARING, "PATH": path()}
        argv = (*inside(pid), "--wd=/", *argv)
        return ran(argv, code=0 if check else None, env=variables, input=input)

    def heal(self) -> None:
        """As after `start_operator`: all programs run, and the node takes pods."""
        for name in command_lines(self.folder, self.node_address):
            pid = (self.folder / "processes" / name).read_text().strip()
            if self.inside("kill", "-0", pid, check=False).returncode:
                self.start(name)
        self.wait_for_api_server()
        self.uncordon()
        self.start_operator()

    # Images

    def load_program(self, image: str, program: Path, *command: str) -> None:
        """An image of this one program, which links to no library."""
        self._import(program_image(image, program, command))

    def _import(self, archive: bytes) -> None:
        with tempfile.NamedTemporaryFile(dir=self.folder) as file:
            file.write(archive)
            file.flush()
            self.inside("ctr", "--namespace=k8s.io", "images", "import", file.name)

    def load(self, image: str, name: str = "") -> None:
        """From podman, where it has to stay; it is named after its content. `name`: one more name for it."""
        (content,) = json.loads(ran(["podman", "image", "inspect", image], code=0).stdout)
        with locked(self.folder / "loaded") as record:
            if image not in record.read().split():
                self._mount(image, content)
                record.write(f"{image}\n")
        if name:
            self.inside("ctr", "--namespace=k8s.io", "images", "tag", "--force", image, name)

    def _mount(self, image: str, content: Mapping) -> None:
        """The folders in which podman has its layers, where containerd has unpacked an image with none of its
        files: to copy gigabytes takes minutes."""
        self._import(empty_image(image, content["Config"], mark=content["Id"]))
        (mark,) = (self.folder / "containerd").glob(f"*.overlayfs/snapshots/*/fs/{content['Id']}")
        data = content["GraphDriver"]["Data"]
        layers = [data["UpperDir"], *filter(None, data.get("LowerDir", "").split(":")), str(mark.parent)]
        lower = ":".join(layers).replace(_podman_store(), _STORE)
        self.inside("mount", "-t", "overlay", "overlay", "-o", f"ro,lowerdir={lower}", str(mark.parent))

    # The node, its storage, its network

    def cordon(self) -> None:
        self.patch("nodes", NODE, {"spec": {"unschedulable": True}})

    def uncordon(self) -> None:
        self.patch("nodes", NODE, {"spec": {"unschedulable": False}})

    def volume_folder(self, namespace: str, name: str) -> Path:
        return self.folder / "volumes" / f"{namespace}-{name}"

    def make_volume(self, namespace: str, name: str) -> Path:
        """A claim that is bound; the folder that the pods see is one of this machine."""
        folder = self.volume_folder(namespace, name)
        folder.mkdir()
        folder.chmod(0o1777)
        metadata = {"name": name, "namespace": namespace}
        common, size = {"accessModes": ["ReadWriteMany"], "storageClassName": ""}, {"storage": "100Gi"}
        meta = {"name": folder.name, "labels": {"for-namespace": namespace}}
        volume = {**common, "capacity": size, "claimRef": metadata, "hostPath": {"path": str(folder)}}
        claim = {**common, "volumeName": folder.name, "resources": {"requests": size}}
        self.apply(
            manifest("PersistentVolume", metadata=meta, spec=volume),
            manifest("PersistentVolumeClaim", metadata=metadata, spec=claim),
        )

        def bound(claims: list[dict]) -> bool:
            return any(each["status"].get("phase") == "Bound" for each in claims)

        self.watch("persistentvolumeclaims", namespace, bound, 30, f"{name} is not bound", name=name)
        return folder

    def delete_namespace(self, name: str) -> None:
        super().delete_namespace(name)
        self.delete_all("persistentvolumes", selector=f"for-namespace={name}")

    def network_policies(self, namespace: str) -> contextlib.AbstractContextManager[None]:
        """Those of this namespace are enforced meanwhile, by the fixture: see kube_policy.py."""
        return enforced(self, namespace, self.inside)

    # What went wrong

    def _wait_until(self, condition, otherwise: str) -> None:
        wait_until(condition, _PATIENCE_S, lambda: f"{otherwise}\n{last_words(self.folder / 'log')}", 0.1)


def _addresses(folder: Path) -> tuple[str, str]:
    """This machine's and the node's."""
    machine, node = (folder / "addresses").read_text().split()
    return machine, node


@contextlib.contextmanager
def shared_cluster(meeting: Path) -> Iterator[KubeCluster]:
    """One with an operator for all processes that come to the same file; it ends with the last of them."""
    cluster = KubeCluster()
    with locked(meeting) as record:
        lines = record.read().splitlines()
        if not (lines and cluster.join(Path(lines[-1]))):
            cluster.up()
            cluster.start_operator()
            record.write(f"{cluster.folder}\n")
    try:
        yield cluster
    finally:
        cluster.leave()
