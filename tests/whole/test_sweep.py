"""A sweep of strikes: each run meets one or two, of kinds and at moments that a seed draws, and ends with the
bits of a run that met none.

The seed of a night is its date, or SWEEP_SEED; each test prints it. `pytest -k "bits[17]"` repeats run 17.
"""

import contextlib
import os
import random
import re
import signal
import threading
import time
from dataclasses import dataclass

import pytest
from click.testing import CliRunner
from safetensors.torch import load_file
from test_on_s3 import storage

from clustertrain.checkpoints.export import export
from clustertrain.checkpoints.manifest import CheckpointFolder, names
from clustertrain.checkpoints.read import verify
from clustertrain.cli.main import main
from clustertrain.errors import StorageError
from clustertrain.storage import open_store
from clustertrain.supervise.guardian import descendants
from support.fault_proxy import FaultProxy, lost_answer, reset, status
from support.s3_servers import Versitygw
from support.whole_run import Run, books_add_up, same_weights

pytestmark = [
    pytest.mark.nightly,
    pytest.mark.timeout(900),
]  # in CI: test_endings.py, driver/test_ray_watch.py

SEED = os.environ.get("SWEEP_SEED") or time.strftime("%Y%m%d")
RUNS = 100
KILL, TERM, STOP = signal.SIGKILL, signal.SIGTERM, signal.SIGSTOP
# Those that nobody watches go on after some seconds; of the others, the watchdogs notice it.
CONTINUED = ("driver", "guardian", "command", "raylet", "spare", "server")
WITHOUT_RAY = ("rank", "driver", "guardian", "command", "loader")
WITH_RAY = (*WITHOUT_RAY, "raylet", "gcs_server", "spare")  # the ranks are forks of the spare
VICTIMS = dict.fromkeys(("local", "s3", "fsdp", "no-ray", "callback"), WITH_RAY)  # by the kind of run
VICTIMS |= {"s3": (*WITH_RAY, "server"), "no-ray": WITHOUT_RAY}
SECTIONS = {
    "args": {"step_s": 0.4},
    "train": {"epochs": 3, "batch_size": 4, "log_every": 1, "loader_workers": 1},
    "checkpoint": {"every": {"steps": 4}, "keep_last": 2, "memory_every": 1},
    "failures": {
        "retries": 9,
        "ray_start": "90s",
        "watchdog": {"first_step": "2m", "step": "20s", "evaluation": "20s"},
    },
}


@dataclass(frozen=True)
class Strike:
    """A signal to a process, some seconds after there is one of that name, or after the next checkpoint:
    few of the others come late enough for a run to resume from one."""

    victim: str
    number: signal.Signals
    after_s: float
    after_checkpoint: bool


def drawn(draw: random.Random, kind: str) -> list[Strike]:
    found = []
    for _ in range(draw.choice((1, 2))):
        victim, number = draw.choice(VICTIMS[kind]), draw.choice((KILL, TERM, STOP))
        late = draw.random() < 0.6
        found.append(Strike(victim, number, draw.uniform(0, 2 if late else 6), late))
    return found


class Looks:
    """Looks at the checkpoints while the run writes them: each that is visible is whole, or was pruned."""

    def __init__(self, shelf: CheckpointFolder) -> None:
        self._shelf, self._over = shelf, threading.Event()
        self.newest, self.torn = "", []
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._thread.start()

    def _look(self) -> None:
        while not self._over.wait(0.2):
            with contextlib.suppress(StorageError):  # of a server that is away
                for name in names(self._shelf):
                    self.newest = str(name)
                    try:
                        verify(self._shelf, name)
                    except StorageError as error:
                        if name in names(self._shelf):
                            self.torn.append(str(error))

    def end(self) -> None:
        self._over.set()
        self._thread.join()


def processes(run: Run) -> dict[str, list[int]]:
    """The living processes of a run, by the names of the victims."""
    found: dict[str, list[int]] = {"command": [run.process.pid]}
    patterns = {
        "guardian": r"-m clustertrain\.supervise\.guardian ",
        "driver": r"-m clustertrain\.driver ",
        "raylet": r"^\S*/raylet ",
        "gcs_server": r"^\S*/gcs_server ",
        "spare": r"-m clustertrain\.driver\.fork\.server ",
        "rank": r"^ray::.*RayTrainWorker",
    }
    for pid, command in run.left(0).items():
        name = next((name for name, pattern in patterns.items() if re.search(pattern, command)), None)
        if name is not None:
            found.setdefault(name, []).append(pid)
    if drivers := found.get("driver"):  # without Ray the ranks are its children, and the loaders theirs
        forks = {pid for driver in drivers for pid in descendants(driver)}
        found["driver"] = [pid for pid in drivers if pid not in forks]
        if "--no-ray" in run.process.args:
            of_ranks = {pid for fork in forks for pid in descendants(fork)}
            found["rank"] = [pid for pid in drivers if pid in forks - of_ranks]
    found["loader"] = [pid for rank in found.get("rank", []) for pid in descendants(rank)]
    return {name: pids for name, pids in found.items() if pids}


def strike(run: Run, each: Strike, draw: random.Random, looks: Looks, server=None) -> bool:
    """Wait for the victim, and strike it. False if the run ended before."""
    before = looks.newest
    while run.process.poll() is None:
        pids = [server.process.pid] if each.victim == "server" else processes(run).get(each.victim)
        if pids and (looks.newest != before or not each.after_checkpoint):
            break
        time.sleep(0.05)
    ends = time.monotonic() + each.after_s
    while time.monotonic() < ends and run.process.poll() is None:
        time.sleep(0.05)
    if run.process.poll() is not None:
        return False
    if each.victim == "server":
        _strike_server(each, server)
        run.before.add(server.process.pid)  # a new process of ours, and not of the run
        return True
    if not (pids := processes(run).get(each.victim)):
        return False
    victim = draw.choice(sorted(pids))
    with contextlib.suppress(ProcessLookupError):
        os.kill(victim, each.number)
        if each.number == STOP and each.victim in CONTINUED:
            time.sleep(3)
            os.kill(victim, signal.SIGCONT)
    return True


def _strike_server(each: Strike, server) -> None:
    """It dies and comes back, or stops for a while. After a SIGTERM it would wait for its clients."""
    os.kill(server.process.pid, STOP if each.number == STOP else KILL)
    time.sleep(3)
    if each.number == STOP:
        os.kill(server.process.pid, signal.SIGCONT)
    else:
        server.process.wait()
        server.start()


def the_end_is_right(run: Run, strikes: list[Strike], output: str) -> bool:
    """Whether the run is done. If it is not, a strike explains its exit code."""
    code = run.process.returncode
    assert run.left(20) == {}, run.left(0)
    allowed = {0}
    for each in strikes:
        if each.victim == "command" and each.number != STOP:
            allowed |= {-KILL} if each.number == KILL else {75, 130, -TERM}
        if (each.victim, each.number) == ("gcs_server", STOP):
            allowed |= {3}  # while Ray starts, nothing tells it from a slow one until failures.ray_start
    assert code in allowed, output
    if code == -KILL and run.run_dir.attempts():
        shown = CliRunner().invoke(main, ["status", str(run.job_file)])
        assert re.search(r"lost|done", shown.output), shown.output
    return code == 0


def weights(run: Run, folder) -> dict:
    path, _ = export(run.run_dir.checkpoints, run.result.checkpoint, folder / f"{run.name}.safetensors")
    return load_file(path)


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory):
    """The weights of a run that nothing disturbs, by the kind of task."""
    found = {}

    def of(task: dict) -> dict:
        key = task["task"]
        if key not in found:
            folder = tmp_path_factory.mktemp("undisturbed")
            run = Run(folder, "undisturbed", **task)
            run.start().end(0)
            found[key] = weights(run, folder)
        return found[key]

    return of


@pytest.mark.parametrize("number", range(RUNS))
@pytest.mark.usefixtures("aws_environment")
def test_a_run_that_is_struck_ends_with_the_same_bits(make_run, undisturbed, tmp_path, monkeypatch, number):
    draw = random.Random(f"{SEED}-{number}")
    kind = [*VICTIMS][number % len(VICTIMS)]
    strikes = drawn(draw, kind)
    print(f"seed {SEED}, run {number} ({kind}):", *strikes, sep="\n  ")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    sections = {**SECTIONS, "task": "faulty:Faulty"}
    if kind == "fsdp":
        train = {**SECTIONS["train"], "strategy": "fsdp"}
        sections |= {"task": "divided:Divided", "train": train}
    if kind == "callback":
        sections["task"] = "faulty:CalledBack"
    expected = undisturbed(sections)
    with contextlib.ExitStack() as stack:
        server = None
        if kind == "s3":
            server = stack.enter_context(Versitygw(tmp_path / "server"))
            bucket = server.bucket("sweep")
            proxy = stack.enter_context(FaultProxy(server.endpoint))
            weather = random.Random(f"{SEED}-{number}-weather")
            for fault in (status(503), status(500), reset(), lost_answer()):
                proxy.script(fault, when=lambda request: weather.random() < 0.02)
            sections |= {"storage": storage(bucket, endpoint=proxy.endpoint, retry_s=120.0)}
        run = make_run(f"struck-{number}", **sections)
        shelf = run.run_dir.checkpoints
        if server is not None:
            shelf = CheckpointFolder(open_store(bucket.location("runs", retry_s=5.0)), shelf.key)
        looks, left = Looks(shelf), list(strikes)
        for _ in range(4):  # the start itself, and one more for each strike that ends it
            options = ["--no-ray"] if kind == "no-ray" else []
            run.start(*options)
            while left and strike(run, left[0], draw, looks, server):
                left.pop(0)
            output, _ = run.process.communicate(timeout=400)
            print(output)
            if the_end_is_right(run, strikes, output):
                break
        looks.end()
        for event in run.events:
            if event["kind"] == "resumed":
                print("repeated steps:", event["redone_steps"], "in memory" * event["in_memory"])
        assert (run.result.state, run.result.step) == ("done", 21)
        books_add_up(run)
        assert looks.torn == []
        assert all(verify(shelf, name) for name in names(shelf))
        assert same_weights(weights(run, tmp_path), expected)
        if server is not None:
            assert bucket.uploads() == []


def test_the_sweep_sees_a_training_that_forgets_what_it_has_to_save(make_run, undisturbed):
    """Its loss depends on how often this process has computed it, which no checkpoint contains."""
    sections = {**SECTIONS, "task": "faulty:Forgetful"}
    expected = undisturbed(sections)
    run = make_run("forgetful", **sections)
    looks = Looks(run.run_dir.checkpoints)
    run.start()
    assert strike(run, Strike("rank", KILL, 0.0, after_checkpoint=True), random.Random(1), looks)
    output = run.end(0)
    looks.end()
    assert "resuming " in output
    assert (run.result.state, run.result.step) == ("done", 21)
    assert not same_weights(weights(run, run.folder), expected)
