"""A real SLURM cluster on this machine, as root: a controller and nodes, each in namespaces of its own.

    with SlurmCluster(nodes=3, shared=[tmp_path], MinJobAge=2) as cluster:
        job = cluster.sbatch("--nodes=2", wrap="srun hostname")
        cluster.wait_for_state(job, {"COMPLETED"})
        cluster.output(job)
        cluster.crash("node1"); cluster.boot("node1")      # its power
        cluster.cut("node2"); cluster.mend("node2")        # its network
        subprocess.run(["squeue"], env=cluster.environment)

This process is the login node. A node has an address, a host name, processes, a /tmp and a /dev/shm of its
own, no name server, and two GPUs that are device nodes without a device; all other files are the machine's.
Clusters do not meet: each has a folder, a subnet and a process namespace of its own. They end with it, and it
ends with this process, however that ends (see slurm_site.sh).
"""

import contextlib
import ipaddress
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Collection, Sequence
from pathlib import Path

from clusters.machine import (
    NAMESPACES,
    free_subnets,
    inside,
    last_words,
    lay_cable,
    missing,
    no_namespaces,
    search_path,
)
from clusters.slurm_conf import write_configuration
from clustertrain.supervise.guardian import descendants
from support.commands import Done, ran
from support.waiting import wait_until

NOBODY = 65534  # the uid of another user, known to every machine and owner of nothing
CHECKOUT = Path(__file__).parents[2]
_HERE = Path(__file__).parent
_SUBNETS = "198.18.0.0/15"  # nobody's: RFC 2544 keeps it for experiments
_PACKAGES = {
    "slurm-wlm": ("slurmctld", "slurmd", "sbatch"),
    "munge": ("munged",),
    "iproute2": ("ip",),
    "util-linux": ("nsenter", "unshare", "setpriv"),
}
_PATIENCE_S = 120.0  # for what takes well under a second on an idle machine


def why_not() -> str | None:
    """What this machine lacks for a cluster."""
    return missing(_PACKAGES) or no_namespaces()


class SlurmCluster:
    """`shared`: folders of /tmp and /dev/shm that the nodes see too, beside the checkout and this Python.
    `settings`: lines of slurm.conf, such as EnforcePartLimits="NO".
    """

    def __init__(self, nodes: int = 3, shared: Sequence[Path] = (), **settings: object) -> None:
        self.nodes = tuple(f"node{n + 1}" for n in range(nodes))
        pythons = (sys.prefix, sys.base_prefix, sys.exec_prefix)
        self._visible = {str(Path(path).absolute()) for path in (*shared, CHECKOUT, *pythons)}
        self._settings = settings
        self._processes: dict[str, subprocess.Popen] = {}  # of nsenter or unshare, which wait for ours
        self._pids: dict[str, int] = {}
        self._hidden: list[tuple[str, Path]] = []

    # Up and down

    def __enter__(self) -> "SlurmCluster":
        self.folder, self._subnet = _claim_subnet()
        self._write_files()
        try:
            script = [str(_HERE / "slurm_site.sh"), str(self.folder)]
            self._start("site", [*NAMESPACES, "--mount-proc", *script], 1)
            self._wait_until_up("site")
            self._connect()
            self.start_controller()
            self.boot(*self.nodes)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        """Nothing is left: no process, link, mount or folder."""
        # The site's process 1 takes all others with it. A fork of this process may hold the pipe to it open.
        if site := self._pids.get("site"):
            os.kill(site, signal.SIGKILL)
        for process in self._processes.values():
            process.stdin.close()
        for process in self._processes.values():
            process.wait(_PATIENCE_S)
            process.stdout.close()
        self._processes.clear()
        self._pids.clear()
        # The kernel takes its time to find that the other end has gone.
        subprocess.run(["ip", "link", "delete", self.folder.name], stderr=subprocess.DEVNULL, check=False)
        shutil.rmtree(self.folder, ignore_errors=True)  # if it did not come as far as the site

    def _write_files(self) -> None:
        for name in ("etc", "log", "mount", "munge", "out", "spool", "state"):
            (self.folder / name).mkdir()
        (self.folder / "out").chmod(0o1777)
        key = self.folder / "munge" / "key"
        key.touch(0o600)
        key.write_bytes(os.urandom(1024))
        addresses = {node: self.address(node) for node in self.nodes}
        write_configuration(self.folder, self._address(2), addresses, self._settings)
        hosts = {"localhost": "127.0.0.1", "controller": self._address(2), **addresses}
        hosts |= {socket.gethostname(): self._address(1)}
        lines = [f"{address} {name}\n" for name, address in hosts.items()]
        (self.folder / "etc" / "hosts").write_text("".join(lines))
        (self.folder / "etc" / "resolv.conf").touch()  # an unreachable name server would stall every look-up

    def _connect(self) -> None:
        """A cable from this machine to the cluster's switch: it is the gateway, and it may talk to all."""
        lay_cable(self.folder.name, f"{self._address(1)}/24", self._pids["site"])
        for words in (
            ("link", "set", "uplink", "master", "switch", "up"),
            ("address", "add", f"{self._address(2)}/24", "dev", "switch"),
        ):
            subprocess.run([*self._on_the_switch(), *words], check=True)

    def _on_the_switch(self) -> list[str]:
        return ["nsenter", f"--net=/proc/{self._pids['site']}/ns/net", "ip"]

    @property
    def login_address(self) -> str:
        """Of this machine, as the nodes see it."""
        return self._address(1)

    def _address(self, n: int) -> str:
        return str(self._subnet[n])

    def address(self, node: str) -> str:
        return self._address(10 + self.nodes.index(node))

    # Power, network, storage

    def boot(self, *nodes: str) -> None:
        """Until SLURM has them again."""
        for node in nodes:
            n = self.nodes.index(node)
            script = [str(_HERE / "slurm_node.sh"), str(self.folder), node, f"{self.address(node)}/24"]
            script += [f"02:00:00:00:00:{n:02x}", self._address(1), *sorted(self._visible)]
            self._start(node, [*self._inside("site"), *NAMESPACES, *script], 2)
        for node in nodes:
            self._wait_until_up(node)
        self._wait_until(
            lambda: re.search(r"unk|down|drain|\*", " ".join(self._node_states(nodes))) is None,
            f"{', '.join(nodes)}: not usable",
        )

    def crash(self, node: str) -> None:
        """Its power fails: every process ends at once, and no packet says so."""
        subprocess.run([*self._on_the_switch(), "link", "delete", node], check=True)
        self._end(node, signal.SIGKILL)

    def cut(self, node: str) -> None:
        """Its network fails; its processes and its view of the storage do not."""
        subprocess.run([*self._on_the_switch(), "link", "set", node, "down"], check=True)

    def mend(self, node: str) -> None:
        subprocess.run([*self._on_the_switch(), "link", "set", node, "up"], check=True)

    def without_share(self, node: str, folder: Path) -> None:
        """This node sees an empty file system of its own there, until `share`."""
        self.run_on(node, ["mount", "-t", "tmpfs", "-o", "mode=1777", "tmpfs", str(folder)])
        self._hidden.append((node, folder))

    def share(self, node: str, folder: Path) -> None:
        """It may see the folder already."""
        self.run_on(node, ["umount", "--lazy", str(folder)], check=False)

    def stop_controller(self) -> None:
        self._end("controller", signal.SIGTERM)

    def start_controller(self) -> None:
        """Until it answers."""
        self._start("controller", [*self._inside("site"), "env", *self._variables(), "slurmctld", "-D"], 1)
        self._wait_until(
            lambda: self.command("scontrol", "ping", check=False).returncode == 0, "the controller is silent"
        )

    def heal(self) -> None:
        """As after `up`: no job, all nodes there and idle, nothing of a job left on them."""
        if "controller" not in self._pids:
            self.start_controller()
        self.boot(*(node for node in self.nodes if node not in self._pids))
        for node in self.nodes:
            self.mend(node)
        while self._hidden:
            self.share(*self._hidden.pop())
        self._wait_until(self._no_job_is_left, "jobs do not end")
        for node in self.nodes:
            # Whom SIGKILL ended removed nothing, and may not have come as far as to say whose it was.
            self.run_on(node, ["sh", "-c", "rm -rf --one-file-system /tmp/ct-* /dev/shm/ct-*"])
        for node, state in zip(self.nodes, self._node_states(self.nodes), strict=True):
            if re.search("down|drain", state):
                # Of a node that is down SLURM asks nothing for up to a minute after it answers again.
                self.command("scontrol", "update", f"NodeName={node}", "State=RESUME")
        self._wait_until(lambda: set(self._node_states(self.nodes)) == {"idle"}, "the nodes are not idle")

    def _no_job_is_left(self) -> bool:
        """Ends what there is; again and again, for a job may be between two states."""
        jobs = self.command("squeue", "--noheader", "--format=%A").stdout.split()
        if jobs:
            self.command("scancel", *jobs, check=False)
        left = [pid for node in self.nodes for pid, _ in self.processes_on(node)]
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return not jobs and not left

    # SLURM

    @property
    def environment(self) -> dict[str, str]:
        """This process's, with which SLURM's commands talk to this cluster."""
        others = ("SLURM_", "SBATCH_")
        outside = {name: value for name, value in os.environ.items() if not name.startswith(others)}
        return outside | {"SLURM_CONF": f"{self.folder}/etc/slurm.conf", "PATH": search_path()}

    def command(self, *argv: str, check: bool = True) -> Done:
        """On the login node."""
        return ran(argv, code=0 if check else None, env=self.environment, timeout=_PATIENCE_S)

    def sbatch(self, *argv: str, wrap: str | None = None) -> str:
        """Submit; returns the job's id. Its output is `output(id)`, unless `argv` says otherwise."""
        out = self.folder / "out"
        options = ["--parsable", f"--output={out}/%j", f"--chdir={out}", *argv]
        options += ["--wrap", wrap] if wrap is not None else []
        return self.command("sbatch", *options).stdout.strip().partition(";")[0]

    def output(self, job_id: str) -> str:
        """What it has printed by now."""
        with contextlib.suppress(FileNotFoundError):
            return (self.folder / "out" / job_id).read_text()
        return ""

    def job(self, job_id: str) -> dict[str, str]:
        """What `scontrol show job` says: JobState, Reason, Restarts, BatchHost, NodeList, …"""
        text = self.command("scontrol", "--oneliner", "show", "job", job_id).stdout
        return dict(re.findall(r"(\S+?)=(\S*)", text))

    def wait_for_state(self, job_id: str, states: Collection[str], timeout_s: float = 240) -> dict[str, str]:
        """Until JobState is one of these; returns `job`."""

        def reached() -> dict[str, str] | None:
            job = self.job(job_id)
            return job if job["JobState"] in states else None

        def otherwise() -> str:
            return f"{job_id} is not {' or '.join(states)}: {self.job(job_id)}"

        return wait_until(reached, timeout_s, otherwise, 0.2)  # each look is a process

    def _node_states(self, nodes: Collection[str]) -> list[str]:
        asked = ("sinfo", "--noheader", "--Node", "--partition=gpu", "--format=%N %T")
        done = self.command(*asked, check=False)
        states = dict(line.split() for line in done.stdout.splitlines())
        return [states.get(node, "unknown") for node in nodes]

    # On a node

    def enter(self, node: str, uid: int | None = None) -> list[str]:
        """The beginning of a command line that runs on the node, in /. `uid`: another user's."""
        user = [] if uid is None else ["setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups"]
        return [*self._inside(node), "env", *self._variables(), *user]

    def run_on(self, node: str, argv: Sequence[str], uid: int | None = None, check: bool = True) -> Done:
        return self.command(*self.enter(node, uid), *argv, check=check)

    def root_of(self, node: str) -> Path:
        """The node's files, as this machine sees them."""
        return Path(f"/proc/{self._pids[node]}/root")

    def processes_on(self, node: str) -> list[tuple[int, list[str]]]:
        """(pid, argv) of what lives there, containers too, beside slurmd and process 1; the pids are those of
        this machine."""
        if node not in self._pids:
            return []  # it has no power
        found = []
        for pid in descendants(self._pids[node]):
            with contextlib.suppress(OSError):  # it ended while we looked
                argv = Path(f"/proc/{pid}/cmdline").read_bytes().decode().rstrip("\0").split("\0")
                if argv[0] not in ("", "slurmd"):  # "": a zombie
                    found.append((pid, argv))
        return found

    # Processes

    def _inside(self, name: str) -> list[str]:
        return inside(self._pids[name])

    def _variables(self) -> list[str]:
        return [f"SLURM_CONF={self.folder}/etc/slurm.conf", f"PATH={search_path()}"]

    def _start(self, name: str, argv: Sequence[str], depth: int) -> None:
        """`depth`: how many parents, which only wait, ours will have."""
        with (self.folder / "log" / f"console-{name}").open("ab") as console:
            process = subprocess.Popen(
                argv,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=console,
                start_new_session=True,  # a Ctrl-C is for the tests alone
                umask=0o022,
                env=self.environment,
            )
        self._processes[name] = process
        pid = process.pid
        for _ in range(depth):
            pid = self._child_of(pid, process)
        self._pids[name] = pid

    def _child_of(self, pid: int, process: subprocess.Popen) -> int:
        def child() -> str:
            with contextlib.suppress(OSError):
                return Path(f"/proc/{pid}/task/{pid}/children").read_text()
            return ""

        self._wait_until(lambda: child() or process.poll() is not None, f"{process.args[-1]} does not start")
        return int(child() or pid)

    def _wait_until_up(self, name: str) -> None:
        if self._processes[name].stdout.readline() != b"up\n":
            raise AssertionError(f"{name} does not come up:\n{last_words(self.folder / 'log')}")

    def _end(self, name: str, number: signal.Signals) -> None:
        os.kill(self._pids.pop(name), number)
        with self._processes.pop(name) as process:
            process.wait(_PATIENCE_S)

    def _wait_until(self, condition, otherwise: str) -> None:
        wait_until(condition, _PATIENCE_S, lambda: f"{otherwise}\n{last_words(self.folder / 'log')}")


def _claim_subnet() -> tuple[Path, ipaddress.IPv4Network]:
    """A subnet that this machine does not use, claimed by the folder named after it."""
    for subnet in free_subnets(_SUBNETS, prefix=24):
        _, b, c, _ = str(subnet.network_address).split(".")
        folder = Path("/run") / f"ct-{b}-{c}"  # short: it holds sockets, and a link has the same name
        with contextlib.suppress(FileExistsError):
            folder.mkdir(0o755)
            return folder, subnet
    raise AssertionError(f"no subnet of {_SUBNETS} is free; /run/ct-* are the clusters that there are")
