"""Kills one rank of a run once in each phase, or stops one at each step of a start, from inside its worker
processes.

Python imports a module of this name when it starts, if PYTHONPATH leads here. A job asks for the kills with
`env: {PYTHONPATH: <this folder>, FAULTS_FOLDER: <folder of the marks>, FAULTS_RANK: "1"}`, and for the stops
without a rank; without them nothing happens. A phase that has had its fault leaves a mark, created with
O_EXCL: once over all starts.

Where only rank 0 comes by (it alone stages and saves), rank 0 kills the rank that is meant.
"""

import functools
import importlib.abc
import importlib.util
import os
import signal
import sys
from contextlib import contextmanager, suppress
from pathlib import Path

# In this order, and by which passing of the point in one process: from "step" on late enough for the resumed
# run to have committed a checkpoint of its own first. The first snapshot only makes the buffers.
PHASES = {
    "stage": 1,
    "rendezvous": 1,
    "begin": 1,
    "step": 4,
    "snapshot": 3,
    "write": 3,
    "commit": 2,
    "prune": 2,
}
STOPS = ["process", "limits", "set_up", "stage", "begin"]
_RAYS_WORKER = "ray.train.v2._internal.execution.worker_group.worker"


class Killer:
    """The state of one process: its rank, and how often it reached each point. Causes one fault at most."""

    def __init__(self, folder, victim):
        self.folder, self.victim = folder, victim
        self.rank, self.passed, self.struck = None, dict.fromkeys(PHASES, 0), False

    def register(self, rank):
        self.rank = rank
        (self.folder / f"pid-{rank}").write_text(str(os.getpid()))

    def pass_by(self, phase, by_rank, detail=""):
        """Rank `by_rank` comes to the point of a phase: strike if it is this phase's turn."""
        if self.rank != by_rank or self.struck:
            return
        self.passed[phase] += 1
        turn = next((p for p in PHASES if not (self.folder / p).exists()), None)
        if turn == phase and self.passed[phase] >= PHASES[phase]:
            self.struck = True
            mark = os.open(self.folder / phase, os.O_CREAT | os.O_EXCL | os.O_WRONLY)
            os.write(mark, detail.encode())
            os.kill(int((self.folder / f"pid-{self.victim}").read_text()), signal.SIGKILL)


def before(module, name, act):
    """Replace a function of a module, or a method of a class, by one that calls `act` first."""
    original = getattr(module, name)

    @functools.wraps(original)
    def wrapped(*args, **kwargs):
        act(*args)
        return original(*args, **kwargs)

    setattr(module, name, wrapped)


def hooks(killer):
    """For each module what is done to it once it is loaded."""
    victim = killer.victim

    def worker(module):
        set_up_process = module.set_up_process

        @functools.wraps(set_up_process)
        def prepared(*arguments):
            import ray.train

            set_up_process(*arguments)
            killer.register(ray.train.get_context().get_world_rank())

        module.set_up_process = prepared

    def tree(module):
        create = module.PosixTree.create

        @contextmanager
        def created(self, name):
            with create(self, name) as file:
                yield file
                if name != "MANIFEST.json":  # its bytes are written, and not yet on disk
                    killer.pass_by("write", 0, self.target.name)

        def synced(folder):
            if folder.suffix == ".tmp":  # the manifest is there, the name is not
                killer.pass_by("commit", 0, folder.name.lstrip("."))

        def removed(folder, **_):
            if folder.suffix == ".gone" and ".tmp." not in folder.name:  # out of sight, and no leftover
                killer.pass_by("prune", 0)

        module.PosixTree.create = created
        before(module, "fsync_folder", synced)
        before(module.shutil, "rmtree", removed)

    return {
        "clustertrain.worker.setup": worker,
        "clustertrain.staging.stage": lambda m: before(m, "fetch", lambda *_: killer.pass_by("stage", 0)),
        _RAYS_WORKER: lambda m: before(
            m.RayTrainWorker, "run_train_fn", lambda *_: killer.pass_by("begin", victim)
        ),
        "torch.distributed": lambda m: before(
            m, "init_process_group", lambda *_: killer.pass_by("rendezvous", victim)
        ),
        "clustertrain.training.step.optimization": lambda m: before(
            m.Optimization, "step", lambda *_: killer.pass_by("step", victim)
        ),
        "clustertrain.checkpoints.save": lambda m: before(
            m, "copy_to_host", lambda *_: killer.pass_by("snapshot", 0)
        ),
        "clustertrain.storage.posix_tree": tree,
    }


def stop_at(folder, point):
    """Stop this process, if it is the first to come to this point. The stops of a run follow each other."""
    turn = next((each for each in STOPS if not (folder / each).exists()), None)
    if turn == point:
        with suppress(FileExistsError):
            (folder / point).touch(exist_ok=False)
            os.kill(os.getpid(), signal.SIGSTOP)


def stops(folder):
    """As hooks."""

    def begin():
        """Stop a rank whose start came to its end: Ray Train calls those of a failed start, too, which are
        about to be killed."""
        if sys.modules["torch.distributed"].is_initialized():
            stop_at(folder, "begin")

    def rays_worker(module):
        before(module.RayTrainWorker, "get_metadata", lambda *_: stop_at(folder, "process"))
        before(module.RayTrainWorker, "run_train_fn", lambda *_: begin())

    return {
        _RAYS_WORKER: rays_worker,
        "clustertrain.node.limits": lambda m: before(m, "read_limits", lambda *_: stop_at(folder, "limits")),
        "clustertrain.worker.setup": lambda m: before(
            m, "set_up_process", lambda *_: stop_at(folder, "set_up")
        ),
        "clustertrain.staging.stage": lambda m: before(m, "fetch", lambda *_: stop_at(folder, "stage")),
    }


class Finder(importlib.abc.MetaPathFinder):
    """Finds what the finders after it find, and has a hook called once the module is loaded."""

    def __init__(self, waiting):
        self.waiting = waiting

    def find_spec(self, name, path, target=None):
        hook = self.waiting.pop(name, None)
        if hook is None:
            return None
        spec = importlib.util.find_spec(name)
        load = spec.loader.exec_module

        def exec_module(module):
            load(module)
            hook(module)

        spec.loader.exec_module = exec_module
        return spec


if "FAULTS_FOLDER" in os.environ:
    marks = Path(os.environ["FAULTS_FOLDER"])
    victim = os.environ.get("FAULTS_RANK")
    sys.meta_path.insert(0, Finder(stops(marks) if victim is None else hooks(Killer(marks, int(victim)))))
