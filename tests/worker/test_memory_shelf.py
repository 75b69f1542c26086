"""Ranks in real processes, which SIGKILL ends: a start that resumes from the memory of their nodes ends with
the bits of an uninterrupted one."""

import multiprocessing
import os
import random
import resource
import signal
import time
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist

from clustertrain.checkpoints.manifest import CheckpointName, names
from clustertrain.checkpoints.save import load
from clustertrain.node import variables
from clustertrain.node.limits import read_limits
from clustertrain.training.loop import train
from clustertrain.training.ranks.distributed import RankInfo
from clustertrain.training.settings import SaveEvery, TrainSettings
from clustertrain.worker.memory_shelf import (
    is_sound,
    lacking_room,
    memory_saver,
    memory_shelf,
    names_on_node,
    node_group,
)
from clustertrain.worker.place import Place
from training.conftest import ranks
from training.ranks import PRELOADED
from training.tasks import Classify, MemoryRun, Outcome, run_task, same

__all__ = ["ranks"]

SETTINGS = TrainSettings(
    epochs=3,
    batch_size=4,
    accumulate=2,
    seed=3,
    log_every=3,
    save_every=SaveEvery(steps=50),
    memory_every=1,
    clip_norm=1.0,
)
FSDP = replace(SETTINGS, strategy="fsdp")
ANSWER_S = 60


class Killed(Classify):
    """Adam; it ends its process at the `at`-th call of a method, after the passes that settle the buckets."""

    def __init__(self, where: str = "", at: int = 0, step_s: float = 0.0) -> None:
        super().__init__()
        self.where, self.left, self.step_s = where, at, step_s

    def strike(self, where: str) -> None:
        if where == self.where:
            self.left -= 1
            if self.left == 0:
                os.kill(os.getpid(), signal.SIGKILL)

    def eval_data(self, data):
        return self.train_data(data)

    def eval_step(self, model, batch):
        self.strike("evaluation")
        x, y, _ = batch
        outputs = model(x)
        return torch.nn.functional.cross_entropy(outputs, y), outputs, y

    def loss(self, model, batch):
        time.sleep(self.step_s)
        loss = super().loss(model, batch)
        if torch.is_grad_enabled():  # not where the loss of a batch is compared with those of its halves
            self.strike("forward")
        return loss

    def optimizer(self, model):
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        optimizer.register_step_pre_hook(lambda *args: self.strike("before the optimizer"))
        optimizer.register_step_post_hook(lambda *args: self.strike("after the optimizer"))
        return optimizer


class WithCallback(Killed):
    """Draws random numbers after a step."""

    def on_step(self, step, metrics):
        self.strike("callback")
        torch.rand(step)


class NodeRun(MemoryRun):
    """Saves in the memory of its node, as a worker does."""

    def __init__(self, place, plan, is_divided):
        super().__init__(place.rank)
        self.place, self.plan, self.is_divided, self.saver = place, plan, is_divided, None

    @property
    def resumed(self):
        return memory_shelf(1).store.local_folder(f"1/{self.plan.checkpoint}")

    def restore(self):
        return load(self.resumed) if self.plan.checkpoint else None

    def fill(self, tensors):
        from clustertrain.checkpoints.shards import fill_own

        fill_own(self.resumed, tensors)

    def is_writing(self):
        return self.saver is not None and self.saver.wait(0) is not None

    def memory_lacks(self, state):
        group = node_group(self.place) if self.is_divided else None
        self.saver = memory_saver(memory_shelf(1), self.plan, self.place, group, print)
        return ""

    def save_in_memory(self, state, progress):
        if self.saver is not None:
            self.saver.save(state, progress)

    def finish(self):
        if self.saver is not None:
            self.saver.finish()


def rank_process(place, pipe, folder, of_all):
    store, plan, task, settings = of_all
    os.environ[variables.MEMORY_DIR] = str(folder / f"node-{place.node_rank}")
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{store}", rank=place.rank, world_size=place.world_size
    )
    run = NodeRun(place, plan, settings.strategy == "fsdp")
    rank_info = RankInfo(place.rank, place.local_rank, place.world_size, torch.device("cpu"))
    result = train(task, settings, rank_info, run, {})
    pipe.send(Outcome(result, run, task, rank_info, settings.strategy))
    pipe.poll(ANSWER_S)  # until all of it was received


class Group:
    """One start of the ranks, `per_node` of them on a node. `of_node`: the node of each rank."""

    def __init__(self, folder, task, settings, *, world_size, victims=(), restart=0, name=None, of_node=None):
        self.folder, self.of_node = folder, of_node or [0] * world_size
        for node in set(self.of_node):
            (folder / f"node-{node}").mkdir(mode=0o700, exist_ok=True)
        plan = SimpleNamespace(ref=SimpleNamespace(attempt=1), restart=restart, checkpoint=name and str(name))
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(PRELOADED)
        self.pipes, self.processes = [], []
        for rank, node in enumerate(self.of_node):
            here, there = context.Pipe()
            place = Place(
                rank, world_size, self.of_node[:rank].count(node), self.of_node.count(node), node, "127.0.0.1"
            )
            own = task if rank in victims else type(task)(step_s=task.step_s)
            args = (place, there, folder, (folder / f"store-{restart}", plan, own, settings))
            self.processes.append(context.Process(target=rank_process, args=args))
            self.processes[-1].start()
            self.pipes.append(here)

    def wait_for_death(self, rank):
        self.processes[rank].join(ANSWER_S)
        assert self.processes[rank].exitcode == -signal.SIGKILL
        self.end()

    def outcomes(self):
        answers = []
        for pipe in self.pipes:
            assert pipe.poll(ANSWER_S)
            answers.append(pipe.recv())
        self.end()
        return answers

    def end(self):
        for process in self.processes:
            process.kill()
            process.join()


def on_nodes(folder, function, of_node, *args):
    """What a function returns on each node."""
    found = []
    for node in sorted(set(of_node)):
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv(variables.MEMORY_DIR, str(folder / f"node-{node}"))
            own = [rank for rank, each in enumerate(of_node) if each == node]
            found.append(function(1, *(args or (own, len(of_node)))))
    return found


def newest(folder, of_node):
    """The newest checkpoint in the memory of all nodes, as the driver chooses it."""
    on_all = set.intersection(*map(set, on_nodes(folder, names_on_node, of_node)))
    sound = [name for name in on_all if None not in on_nodes(folder, is_sound, of_node, name)]
    return max(sound, default=None)


def curve(outcome, after=0):
    return [
        (each["kind"], each["step"], each["loss"])
        for each in outcome.logs
        if each["kind"] in ("train", "eval") and each["step"] > after
    ]


def check_same(whole, again, step):
    """The state at the end, random states of all ranks included, and the curve."""
    end = whole[0].result.step
    assert again[0].result == whole[0].result
    assert same(again[0].state(end), whole[0].state(end))
    assert curve(again[0], step) == curve(whole[0], step)


def resumed(folder, name, task, settings, of_node):
    start = {"world_size": len(of_node), "restart": 9, "name": name, "of_node": of_node}
    return Group(folder, type(task)(), settings, **start).outcomes()


@pytest.mark.parametrize(
    "case",
    [
        # An epoch of two ranks has 7 passes and 4 steps, of three ranks 5 and 3; it ends with an evaluation.
        (Killed("forward", 2 + 9, 0.2), [0, 0], [0], SETTINGS, 4),  # in the second pass of step 5
        (Killed("forward", 2 + 9, 0.2), [0, 0, 0], [1], SETTINGS, 5),
        (Killed("before the optimizer", 4, 0.2), [0, 1], [1], SETTINGS, 3),
        (Killed("after the optimizer", 4, 0.2), [0, 0, 1], [0], SETTINGS, 3),
        (Killed("evaluation", 6, 0.2), [0, 0], [1], SETTINGS, 4),
        (WithCallback("callback", 5, 0.2), [0, 0], [1], SETTINGS, 4),
        (Killed("forward", 9, 0.2), [0], [0], SETTINGS, 4),
        (Killed("forward", 1 + 9, 0.2), [0, 0], [0, 1], FSDP, 4),
        (Killed("after the optimizer", 4, 0.2), [0, 0, 0], [0], FSDP, 3),
        (Killed("evaluation", 6, 0.2), [0, 1], [0], FSDP, 4),
        (WithCallback("callback", 5, 0.2), [0, 1, 1], [1], FSDP, 4),
        (Killed("forward", 2 + 15, 0.2), [0, 0], [0, 1], replace(SETTINGS, memory_every=3), 7),
    ],
)
def test_the_next_start_ends_with_the_same_bits(ranks, tmp_path, case):
    task, of_node, victims, settings, completed = case
    whole = ranks(len(of_node)).results(run_task, type(task)(), settings)
    group = Group(tmp_path, task, settings, world_size=len(of_node), victims=victims, of_node=of_node)
    group.wait_for_death(victims[0])
    name = newest(tmp_path, of_node)
    assert name is not None and completed - 2 * settings.memory_every <= name.step <= completed
    others = [max(of_node) - node for node in of_node]  # Ray numbers the ranks anew at each start
    again = resumed(tmp_path, name, task, settings, of_node if settings.strategy == "fsdp" else others)
    check_same(whole, again, name.step)


@pytest.mark.slow
def test_a_rank_of_fsdp_that_moves_to_another_node_needs_the_storage(tmp_path):
    group = Group(tmp_path, Killed("forward", 1 + 9, 0.2), FSDP, world_size=2, victims=[0], of_node=[0, 1])
    group.wait_for_death(0)
    assert newest(tmp_path, [0, 1]) is not None
    assert newest(tmp_path, [1, 0]) is None


@pytest.mark.slow
def test_a_damaged_checkpoint_is_passed_over(tmp_path):
    group = Group(tmp_path, Killed("forward", 2 + 9, 0.2), SETTINGS, world_size=2, victims=[1])
    group.wait_for_death(1)
    before = newest(tmp_path, [0, 0])
    file = tmp_path / "node-0" / "1" / str(before) / "model.pt"
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)
    after = newest(tmp_path, [0, 0])
    assert after is not None and after < before


@pytest.mark.slow
def test_a_start_frees_what_it_does_not_resume_from(tmp_path):
    group = Group(tmp_path, Killed("forward", 2 + 9, 0.2), SETTINGS, world_size=2, victims=[1])
    group.wait_for_death(1)
    memory = tmp_path / "node-0"
    (memory / "0" / "of an earlier attempt").mkdir(parents=True)
    again = Group(tmp_path, Killed(step_s=0.1), SETTINGS, world_size=2, restart=1)
    again.outcomes()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(variables.MEMORY_DIR, str(memory))
        assert [name.restart for name in names(memory_shelf(1))] == [1, 1]
    assert not (memory / "0").exists()


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.nightly) for seed in (1, 2))])
@pytest.mark.parametrize("settings", [SETTINGS, FSDP], ids=["ddp", "fsdp"])
def test_a_kill_at_a_random_moment(ranks, tmp_path, seed, settings):
    """Several starts, each killed; some end in the middle of a write."""
    chance = random.Random(seed)
    settings = replace(settings, epochs=30, memory_every=None)
    whole = ranks(3).results(run_task, Killed(), settings)
    name = None
    for restart in range(5):
        group = Group(tmp_path, Killed(step_s=0.01), settings, world_size=3, restart=restart, name=name)
        ends = time.monotonic() + ANSWER_S
        while time.monotonic() < ends and not any((tmp_path / "node-0" / "1").glob(f"*-1.{restart}")):
            time.sleep(0.01)
        time.sleep(chance.uniform(0.0, 0.3))
        group.processes[chance.randrange(3)].kill()
        group.end()
        before, name = name, newest(tmp_path, [0, 0, 0])
        assert name is not None and (before is None or name > before)
    check_same(whole, resumed(tmp_path, name, Killed(), settings, [0, 0, 0]), name.step)


def test_without_a_private_folder_there_is_no_shelf(tmp_path, monkeypatch):
    monkeypatch.setenv(variables.MEMORY_DIR, str(tmp_path))
    tmp_path.chmod(0o755)
    assert memory_shelf(1) is None
    assert names_on_node(1, [0], 1) == [] and is_sound(1, CheckpointName(1, 1, 0)) is None


@pytest.mark.parametrize(
    ("free", "lacks"),
    [
        ({}, ""),
        ({"available_bytes": 3999}, "the memory of here has 3.9 KiB free, and 4 times the 1000"),
        ({"shm_used_bytes": (1 << 30) - 3999}, "/dev/shm of here has"),
        (
            {"cgroups": (SimpleNamespace(path="/c", limit_bytes=5000, used_bytes=2000),)},
            "the cgroup /c of here",
        ),
    ],
)
def test_the_smallest_room_must_be_four_times_the_checkpoint(free, lacks):
    roomy = {
        "available_bytes": 1 << 30,
        "shm_bytes": 1 << 30,
        "shm_used_bytes": 0,
        "cgroups": (),
        "host": "here",
    }
    found = lacking_room(1000, SimpleNamespace(**roomy | free))
    assert found.startswith(lacks) and bool(found) == bool(lacks), found


def test_the_use_of_a_cgroup_is_read_without_the_page_cache():
    own_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    found = [group.used_bytes for group in read_limits().cgroups if group.used_bytes is not None]
    assert all(0 <= used_bytes < 1 << 50 for used_bytes in found)
    assert not found or max(found) > own_bytes / 100
