"""What others on the nodes and the network get of a run: what ports.md lists, no more."""

import json
import os
import re
import secrets
import stat
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest

from clusters.slurm import NOBODY, SlurmCluster
from slurm.slurm_run import SlurmRun
from support.commands import Done, ran
from support.other_user import below

pytestmark = pytest.mark.timeout(900)
SLOW = {
    "task": "faulty:Faulty",
    "train": {"epochs": 900, "batch_size": 4, "log_every": 1},  # longer than all tests of it
    "args": {"step_s": 0.5},
}
REQUESTS = Path(__file__).parents[1] / "support" / "requests_without_token.py"
STRANGER = Path(__file__).parents[1] / "support" / "other_user.py"
# A driver as a user writes it: what it runs in the cluster prints the user's id.
DRIVER = """
import os, sys, ray
address, node = sys.argv[1:]
ray.init(address=address, log_to_driver=False, _node_ip_address=node)
print("ran as", ray.get(ray.remote(num_cpus=0)(lambda: os.getuid()).remote(), timeout=200))
sys.stdout.flush()
os._exit(0)
"""

# A stream of the syncer's, without the header in which a node names itself.
MALFORMED = """
import sys, grpc
with grpc.insecure_channel(sys.argv[1]) as channel:
    list(channel.stream_stream("/ray.rpc.syncer.RaySyncer/StartSync", bytes, bytes)(iter([b""]), timeout=60))
"""


SECRET, REFERRED, UNNAMED = "AWS_SECRET_ACCESS_KEY", "KEY_OF_A_SERVER", "SOMEBODYS_PASSWORD"
CANARIES = {name: secrets.token_hex(12) for name in (SECRET, REFERRED, UNNAMED)}  # in no file of ours


@pytest.fixture(scope="module")
def running(_possible, tmp_path_factory):
    """A run of two nodes in the middle of its training, on a cluster of its own, which is not healed between
    tests: only the last one ends it."""
    with SlurmCluster(shared=[tmp_path_factory.getbasetemp()]) as cluster:
        yield submitted(cluster, tmp_path_factory.mktemp("guarded"), umask=0)


def submitted(cluster, folder: Path, umask: int) -> SlurmRun:
    """From a login with canaries in its environment: the job names two of them."""
    slurm = {"time_limit": "1h", "environment": [SECRET]}
    env = {"KEY": f"${{{REFERRED}}}"}
    run = SlurmRun(cluster, folder, "guarded", **SLOW, slurm=slurm, env=env)
    before = os.umask(umask)
    try:
        with pytest.MonkeyPatch.context() as login:
            for name, value in CANARIES.items():
                login.setenv(name, value)
            run.submit()
    finally:
        os.umask(before)
    run.wait_for_step(2)
    return run


class Listener:
    """A socket that listens on a node."""

    def __init__(self, line: str) -> None:
        _, _, _, local, _, *process = line.split(maxsplit=5)
        self.address, _, port = local.rpartition(":")
        self.port = int(port)
        self.program = re.search(r'"([^"]*)"', process[0])[1] if process else "?"

    @property
    def is_on_all_addresses(self) -> bool:
        return self.address in ("*", "0.0.0.0", "[::]")

    @property
    def local(self) -> str:
        """Where the node itself reaches it."""
        return "127.0.0.1" if self.is_on_all_addresses else self.address


def listeners(cluster, node: str) -> list[Listener]:
    return [Listener(line) for line in cluster.run_on(node, ["ss", "-Hltnp"]).stdout.splitlines()]


def attack(cluster, node: str, targets: list[tuple[str, int]], scan: str | None = None) -> dict:
    """What another user on this node gets; see requests_without_token.py."""
    order = json.dumps({"uid": NOBODY, "targets": targets, "scan": scan})
    return json.loads(on_node(cluster, node, [sys.executable, str(REQUESTS), order]).stdout)


def on_node(cluster, node: str, argv: list[str], check: bool = True) -> Done:
    """A program of the test's on a node, as root; they import much, on a machine that may be busy."""
    command = [*cluster.enter(node), *argv]
    return ran(command, code=0 if check else None, env=cluster.environment, timeout=420)


@pytest.mark.faults
def test_without_the_token_only_what_the_docs_list_answers(running):
    with ThreadPoolExecutor(2) as pool:
        kinds = pool.map(partial(silent_ports, running), ("node1", "node2"))
        silent = Counter(kind for of_node in kinds for kind in of_node)
    assert set(silent) == {"slurm", "gloo", "store"}
    assert (silent["gloo"], silent["store"]) == (2, 1)
    assert running.attempt.result.read() is None, "it still trains"


def silent_ports(run, node: str) -> list[str]:
    """What each port of this node is that says nothing. The others refuse, on the node and from another."""
    cluster, address = run.cluster, run.cluster.address(node)
    there = {each.port: each for each in listeners(cluster, node)}
    outside = attack(cluster, "node3", [(address, port) for port in there], scan=address)
    beside = attack(cluster, node, [(each.local, port) for port, each in there.items()])
    later = {each.port for each in listeners(cluster, node)}
    lasting = {port for port in later & set(there) if there[port].address != "127.0.0.1"}
    assert lasting <= set(outside["open"]) <= later | set(there)
    for place in (outside, beside):
        for port in lasting:
            _assert_refused(there[port], place["answers"][str(port)])
    assert cluster.run_on(node, ["ss", "-Hlun"]).stdout == ""
    assert "@" not in cluster.run_on(node, ["ss", "-Hlx"]).stdout, "anybody may connect to such a socket"
    return [_kind(there[port], address) for port in lasting if _is_silent(there[port], beside)]


def _assert_refused(listener: Listener, answers: dict) -> None:
    """Every request met an answer that says no, or silence."""
    who = f"{listener.program} on {listener.address}:{listener.port}"
    for token, refused in (("none", 401), ("wrong", 403)):
        assert set(answers["http"][token].values()) <= {refused}, (who, answers["http"])
        for service, codes in answers["grpc"][token].items():
            if service.startswith("grpc."):
                continue  # which ports.md lists
            assert set(codes.values()) == {"UNAUTHENTICATED"}, (who, token, service, codes)


def _is_silent(listener: Listener, found: dict) -> bool:
    answers = found["answers"][str(listener.port)]
    return not any(answers["http"].values()) and not any(answers["grpc"].values())


def _kind(listener: Listener, address: str) -> str:
    """What a port is that says nothing to HTTP and gRPC."""
    if listener.program in ("slurmd", "srun"):
        return "slurm"
    if listener.program.startswith("ray::RayTrain"):
        return (
            "store" if listener.is_on_all_addresses else f"gloo{'' if listener.address == address else '!'}"
        )
    return f"{listener.program} on {listener.address}"


@pytest.mark.faults
def test_code_runs_with_the_token_and_not_without(running, tmp_path):
    cluster = running.cluster
    found = running.attempt.rendezvous.read()
    head = found.ray_address
    token = (cluster.root_of(found.nodes[0]) / found.token_path.lstrip("/")).read_text()
    script = tmp_path / "driver.py"
    script.write_text(DRIVER)

    def drive(environment):
        variables = [f"{name}={value}" for name, value in environment.items()]
        command = ["env", f"HOME={tmp_path}", *variables, sys.executable, str(script), head]
        return on_node(cluster, found.nodes[0], [*command, found.head_address], check=False)

    with_tokens = [{"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": each} for each in (token, "f" * 64)]
    with ThreadPoolExecutor(3) as pool:
        own, *others = pool.map(drive, (*with_tokens, {"RAY_AUTH_MODE": "disabled"}))
    assert own.stdout.strip().endswith(f"ran as {os.getuid()}"), own.stderr
    for other in others:
        assert other.returncode != 0
        assert "ran as" not in other.stdout
        assert "Failed to connect to Ray cluster" in other.stderr or "uthenticat" in other.stderr, (
            other.stderr
        )
    assert running.attempt.result.read() is None, "it still trains"


# tests/driver/test_ray_watch.py kills the raylet, and the tests below show who may send requests.
@pytest.mark.nightly
@pytest.mark.faults
def test_a_request_that_ends_ray_without_a_token_costs_a_restart(running):
    """A fault of Ray's that docs/concepts/security.md lists. When it is fixed, this test fails."""
    head = running.attempt.rendezvous.read()
    refusal = on_node(
        running.cluster,
        "node3",
        [sys.executable, "-c", MALFORMED, f"{head.head_address}:{head.port}"],
        check=False,
    )
    assert "UNAVAILABLE" in refusal.stderr, "Ray withstands it: take it out of docs/concepts/security.md"
    running.wait_for_attempt(2)
    first, _ = running.run_dir.attempts()
    ended = first.result.read()
    assert (ended.state, ended.cause) == ("lost", "node_fail"), ended
    running.wait_for_step(1)


@pytest.mark.parametrize(
    "umask",  # 000 is the one that protects nothing: what is closed then is closed by the kit
    ["000", *(pytest.param(other, marks=pytest.mark.nightly) for other in ("022", "077"))],
)
def test_secrets_stay_with_their_user_whatever_the_umask(request, tmp_path, umask):
    """The canaries travel by SLURM or not at all, and are in nothing that anybody else can read."""
    if umask == "000":
        run = request.getfixturevalue("running")
    else:
        run = submitted(request.getfixturevalue("cluster"), tmp_path, int(umask, 8))
    cluster = run.cluster
    nodes = cluster.job(run.job_id)["NodeList"]
    assert nodes == "node[1-2]"
    token = _assert_private_folders(cluster, run)
    for node in ("node1", "node2"):
        _assert_processes_tell_nothing(
            cluster, node, [token, CANARIES[SECRET], CANARIES[REFERRED]], CANARIES[UNNAMED]
        )
    script = cluster.command("scontrol", "write", "batch_script", run.job_id, "-").stdout
    shown = cluster.command("scontrol", "show", "job", run.job_id, "--details", "--oneliner").stdout
    assert not [word for word in (token, *CANARIES.values()) if word in script + shown]
    kept_by_slurm = {"environment"}  # with the job, for itself alone
    seen = _files_with(cluster, run.folder, token)
    assert seen["token"] == {"token"}
    assert seen[SECRET] | seen[REFERRED] <= kept_by_slurm
    assert seen[UNNAMED] == set()
    cluster.command("scancel", "--signal=USR2", "--batch", run.job_id)  # the end writes files, too
    run.wait("FAILED")
    assert run.result.state == "stopped", run.output
    left = _files_with(cluster, run.folder, token)
    assert left["token"] == left[UNNAMED] == set()
    assert left[SECRET] | left[REFERRED] <= kept_by_slurm
    assert len(list(run.attempt.path.glob("logs/*/rank-*.log"))) == 2
    _assert_modes_follow(umask, run)


def _assert_private_folders(cluster, run) -> str:
    """Nobody else can enter what a node has for itself of the run; returns the token."""
    tokens = set()
    for node in ("node1", "node2"):
        root = cluster.root_of(node)
        folders = {path.name[:7]: path for path in (root / "tmp").glob("ct-*")}
        private = next(path for path in folders.values() if (path / "token").exists())
        for folder in folders.values():
            assert _mode(folder) == 0o700, folder
        assert _mode(private / "token") == 0o600
        tokens.add((private / "token").read_text())
        assert list((private / "ray").iterdir()), "Ray's own, which are 0777 below it"
        if node == "node1":
            assert "ct-mail" in folders
        look = [sys.executable, str(STRANGER), str(NOBODY), "/tmp", "/dev/shm"]
        seen = json.loads(on_node(cluster, node, look).stdout)
        assert seen["sockets"] >= 2, "the raylet and the object store"
        assert seen["open"] == []
        open_to_others = cluster.run_on(
            node, ["sh", "-c", "cat /tmp/ct-*/* /tmp/ct-*/*/*"], uid=NOBODY, check=False
        )
        assert open_to_others.stdout == ""
    (token,) = tokens
    assert re.fullmatch(r"[0-9a-f]{64}", token)
    return token


def _assert_processes_tell_nothing(cluster, node: str, known: list[str], unnamed: str) -> None:
    """Anybody can read what a process was started with, and nobody else what its environment is.

    Args:
        known: the secrets that the processes of the job have.
        unnamed: the one that none of them has.
    """
    processes = cluster.processes_on(node)
    assert len(processes) > 5
    for _, argv in processes:
        assert not [secret for secret in (*known, unnamed) if secret in " ".join(argv)], argv[:3]
    read = ["sh", "-c", "cat /proc/[0-9]*/environ /proc/[0-9]*/root/tmp/ct-*/token"]
    others = cluster.run_on(node, read, uid=NOBODY, check=False)
    own = cluster.run_on(node, read, check=False)
    for secret in known:
        assert secret in own.stdout
        assert secret not in others.stdout
    assert unnamed not in own.stdout
    ranks = [argv[0] for _, argv in processes if argv and argv[0].startswith("ray::RayTrainWorker")]
    assert len(ranks) == 1, "and a rank is among them"
    assert "Permission denied" in others.stderr


def _files_with(cluster, folder: Path, token: str) -> dict[str, set[str]]:
    """The names of the files that hold a secret, by what it is: in the user's folder, in the cluster's own,
    and on the nodes. Each of them must be closed to others."""
    words = {"token": token, **CANARIES}
    found: dict[str, set[str]] = {name: set() for name in words}
    roots = [folder, cluster.folder]
    for node in cluster.nodes:
        roots += [cluster.root_of(node) / "tmp", cluster.root_of(node) / "dev" / "shm"]
    for root in roots:
        for path, mode in ((root / name, mode) for name, mode in below(root).items()):
            try:
                if not stat.S_ISREG(mode):
                    continue
                content = path.read_bytes()
            except OSError:  # removed while we looked
                continue
            for name, word in words.items():
                if word.encode() in content:
                    assert _mode(path) & 0o077 == 0, f"{path} holds {name} and is open to others"
                    found[name].add(path.name)
    return found


def _assert_modes_follow(umask: str, run) -> None:
    """What a run has in its storage is as open as its user's umask says, whichever node wrote it."""
    mask = int(umask, 8)
    files = folders = 0
    for path in (run.folder / "runs").rglob("*"):
        mode, is_folder = _mode(path), path.is_dir()
        assert mode & mask == 0, (oct(mode), path)
        files, folders = files + (not is_folder), folders + is_folder
    assert files > 5
    assert folders > 5


def _mode(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)
