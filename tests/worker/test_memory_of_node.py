"""Ranks in real processes, of which SIGKILL ends one: the others save the last step, and a start that resumes
from it ends with the bits of an uninterrupted one."""

from __future__ import annotations

import fcntl
import mmap
import multiprocessing
import os
import random
import signal
import threading
import time
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.serialization import set_default_mmap_options

from clustertrain import variables
from clustertrain.checkpoints.manifest import CheckpointName
from clustertrain.training import last_step as training_last_step
from clustertrain.training.loop import train
from clustertrain.training.ranks.distributed import RankInfo
from clustertrain.training.settings import SaveEvery, TrainSettings
from clustertrain.worker import last_step
from training.conftest import ranks
from training.ranks import PRELOADED
from training.tasks import Classify, MemoryRun, Outcome, run_task, same

__all__ = ["ranks"]

SETTINGS = TrainSettings(
    epochs=3, batch_size=4, accumulate=2, seed=3, log_every=3, save_every=SaveEvery(steps=50), clip_norm=1.0
)
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


class KeepingRun(MemoryRun):
    def __init__(self, rank: int, plan: Any, world_size: int, task: Killed) -> None:
        super().__init__(rank)
        self.plan, self.world_size, self.task = plan, world_size, task

    def log(self, record):
        if record["kind"] == "train":
            self.task.strike("line of the log")
        super().log(record)

    def restore(self):
        return last_step.restore(self.plan, self.rank, self.world_size) if self.plan.checkpoint else None

    def fill(self, tensors):
        last_step.fill_planned(self.plan, self.rank, tensors)

    def keep(self, kept):
        last_step.keep(self.plan, self.rank, kept)


def rank_process(rank, pipe, folder, of_all):
    """A worker: its training in a thread, and what the controller asks in the main thread."""
    world_size, plan, task, settings, fault = of_all
    os.environ[variables.MEMORY_DIR] = str(folder)
    torch.set_num_threads(1)
    if fault == "forgets buffers":
        training_last_step.torch._foreach_copy_ = lambda *args: None
    if fault == "forgets random states":
        rng = training_last_step.cpu_states()
        training_last_step.cpu_states = lambda: rng
    store = f"file://{folder}/store-{plan.restart}"
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=world_size)

    def work():
        run = KeepingRun(rank, plan, world_size, task)
        rank_info = RankInfo(rank, rank, world_size, torch.device("cpu"))
        try:
            result = train(task, settings, rank_info, run, {})
            pipe.send(Outcome(result, run, task, rank_info, settings.strategy))
        except Exception as error:  # noqa: BLE001  another rank has died
            print(f"rank {rank}: {error!r}")

    threading.Thread(target=work, daemon=True).start()
    while (asked := pipe.recv()) is not None:
        pipe.send(getattr(last_step, asked)())
    os._exit(0)


class Group:
    """One start of the ranks; it acts as the controller does."""

    def __init__(self, folder, task, settings, *, victims, restart=0, state=None, fault="", world_size):
        self.folder, self.world_size = folder, world_size
        checkpoint, mark = (None, 0) if state is None else (str(state.name), state.mark)
        ref = SimpleNamespace(attempt=1)
        plan = SimpleNamespace(ref=ref, restart=restart, checkpoint=checkpoint, kept_mark=mark)
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(PRELOADED)
        self.pipes, self.processes = [], []
        for rank in range(world_size):
            here, there = context.Pipe()
            own = task if rank in victims else type(task)(step_s=task.step_s)
            args = (rank, there, folder, (world_size, plan, own, settings, fault))
            self.processes.append(context.Process(target=rank_process, args=args))
            self.processes[-1].start()
            self.pipes.append(here)

    def wait_for_death(self, rank):
        self.processes[rank].join(ANSWER_S)
        assert self.processes[rank].exitcode == -signal.SIGKILL

    def ask(self, rank, what):
        self.pipes[rank].send(what)
        assert self.pipes[rank].poll(ANSWER_S), (rank, what)
        return self.pipes[rank].recv()

    def save(self, dead):
        """What the controller does after a death. Returns the state that the next start can use."""
        alive = [rank for rank in range(self.world_size) if rank not in dead]
        offers = {rank: offer for rank in alive if (offer := self.ask(rank, "offered")) is not None}
        for rank in {offer[0]: rank for rank, offer in offers.items()}.values():
            self.ask(rank, "save")
        self.end()
        return kept(self.folder, self.world_size)

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


def kept(folder, world_size):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(variables.MEMORY_DIR, str(folder))
        on_node = last_step.kept_on_node(1)
    ranks = range(world_size)
    found = [s for s in on_node.states if s.needed_by(ranks) <= on_node.sizes_bytes.keys()]
    return max(found, key=lambda each: each.name, default=None)


@pytest.fixture
def folder(tmp_path):
    memory = tmp_path / "memory"
    memory.mkdir(mode=0o700)
    return memory


def resumed(folder, state, task, settings, world_size):
    again = Group(
        folder,
        type(task)(),
        settings,
        victims=(),
        restart=9,  # one that no earlier group has used
        state=state,
        world_size=world_size,
    )
    return again.outcomes()


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


FSDP = replace(SETTINGS, strategy="fsdp", memory_every=1)
COPIED = replace(SETTINGS, memory_every=1)


@pytest.mark.parametrize(
    "case",
    [
        # An epoch of two ranks has 7 passes and 4 steps, of three ranks 5 and 3; it ends with an evaluation.
        (Killed("forward", 2 + 6), 2, 0, SETTINGS, {2}),  # in the second pass of step 3
        (Killed("forward", 2 + 8), 3, 1, SETTINGS, {4}),
        (Killed("before the optimizer", 2), 2, 1, SETTINGS, {1, 2}),
        (Killed("after the optimizer", 2), 3, 0, SETTINGS, {1, 2}),
        (Killed("evaluation", 6), 2, 1, SETTINGS, {4}),
        (Killed("evaluation", 6), 2, 0, SETTINGS, {4}),
        (WithCallback("forward", 2 + 8), 2, 1, SETTINGS, {4}),
        # The part of a dead rank is there.
        (Killed("forward", 1 + 6), 2, 0, FSDP, {2}),  # one pass is discarded
        (Killed("forward", 1 + 7), 2, 1, FSDP, {3}),
        (Killed("forward", 1 + 8), 3, 1, FSDP, {4}),
        (Killed("before the optimizer", 3), 2, 1, FSDP, {2}),
        (Killed("after the optimizer", 3), 3, 0, FSDP, {2}),
        (Killed("evaluation", 6), 2, 0, FSDP, {4}),
        (WithCallback("callback", 3), 2, 1, FSDP, {2}),
        (Killed("forward", 1 + 8), 2, 1, replace(FSDP, memory_every=2), {3}),  # of steps 1, 3, 5, …
        # With DDP it is copied as well.
        (Killed("forward", 2 + 6), 2, 0, COPIED, {2}),
        (Killed("after the optimizer", 3), 3, 1, COPIED, {2}),
        (Killed("forward", 6), 1, 0, COPIED, {2}),
    ],
)
def test_the_next_start_ends_with_the_same_bits(ranks, folder, case):
    task, world_size, victim, settings, steps = case
    whole = ranks(world_size).results(run_task, type(task)(), settings)
    group = Group(folder, task, settings, victims=[victim], world_size=world_size)
    group.wait_for_death(victim)
    state = group.save({victim})
    assert state is not None and state.name.step in steps
    again = resumed(folder, state, task, settings, world_size)
    check_same(whole, again, state.name.step)
    if task.where == "forward":
        assert curve(again[0], state.name.step) == curve(again[0]), "what followed the step was done"


@pytest.mark.parametrize("settings", [COPIED, FSDP], ids=["ddp", "fsdp"])
def test_copies_survive_the_death_of_all_ranks(ranks, folder, settings):
    task = Killed("forward", 2 + 8)
    whole = ranks(2).results(run_task, Killed(), settings)
    group = Group(folder, task, settings, victims=[0, 1], world_size=2)
    group.wait_for_death(0)
    group.wait_for_death(1)
    state = group.save({0, 1})
    assert state is not None and state.name.step >= 3
    check_same(whole, resumed(folder, state, task, settings, 2), state.name.step)


def test_ranks_that_hang_save_the_last_step_once_and_wait_for_each_other(folder):
    group = Group(folder, Killed("forward", 2 + 8), SETTINGS, victims=[1], world_size=3)
    group.wait_for_death(1)
    saved = folder / "1.0" / "saved"
    with saved.open("a") as held:
        fcntl.flock(held, fcntl.LOCK_EX)  # as the rank that saves
        for rank in (0, 2):
            group.pipes[rank].send("save_before_end")
        assert not group.pipes[0].poll(0.5) and not group.pipes[2].poll(0.5)
    for rank in (0, 2):
        assert group.pipes[rank].poll(ANSWER_S) and group.pipes[rank].recv() is None
    group.end()
    assert saved.read_text() == "8\n"
    assert kept(folder, 3).name == CheckpointName(4, 1, 0)


@pytest.mark.parametrize("step", [2, 3, 4], ids=["save", "line of the log", "end of an epoch"])
def test_what_follows_a_step_is_done_by_the_next_start(ranks, folder, step):
    """The others wait for the dead rank in the first exchange after the step, not in the next step."""
    settings = replace(SETTINGS, save_every=SaveEvery(steps=2))
    whole = ranks(2).results(run_task, Killed(), settings)
    group = Group(folder, Killed("after the optimizer", step), settings, victims=[1], world_size=2)
    group.wait_for_death(1)
    state = group.save({1})
    assert state is not None and state.name.step == step
    again = resumed(folder, state, Killed(), settings, 2)
    check_same(whole, again, step - 1)
    assert again[0].saves.keys() == {each for each in whole[0].saves if each >= step}


def test_a_line_that_rank_0_did_not_write_is_written_by_the_next_start(ranks, folder):
    """The other rank has done all that follows the step."""
    whole = ranks(2).results(run_task, Killed(), SETTINGS)
    group = Group(folder, Killed("line of the log", 1), SETTINGS, victims=[0], world_size=2)
    group.wait_for_death(0)
    state = group.save({0})
    assert state is not None and state.name.step == 3 and not any(state.due)
    check_same(whole, resumed(folder, state, Killed(), SETTINGS, 2), 2)


@pytest.mark.parametrize("forgets", ["buffers", "random states"])
def test_it_needs_the_own_part_of_each_rank(ranks, folder, forgets):
    task = Killed("forward", 2 + 8)
    group = Group(folder, task, SETTINGS, victims=[0], fault=f"forgets {forgets}", world_size=2)
    group.wait_for_death(0)
    again = resumed(folder, group.save({0}), task, SETTINGS, 2)
    whole = ranks(2).results(run_task, Killed(), SETTINGS)
    end = whole[0].result.step
    assert not same(again[0].state(end)["model"], whole[0].state(end)["model"])


@pytest.mark.slow
def test_a_rank_that_dies_in_a_callback_may_have_drawn_random_numbers(folder):
    """The others have completed the step, and its own part of it is not known."""
    group = Group(folder, WithCallback("callback", 4), SETTINGS, victims=[1], world_size=2)
    group.wait_for_death(1)
    time.sleep(0.5)  # the other rank goes on to the next step
    assert group.save({1}) is None


def damage_state(folder):
    (file,) = folder.glob("1.0/*/model.pt")
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)


def tear_own_part(folder):
    """As a SIGKILL does while the newest part is written."""
    with set_default_mmap_options(mmap.MAP_SHARED):
        marks = training_last_step._mapped(folder / "1.0" / "own-1")["marks"]
    marks[marks.argmax()] = 0


@pytest.mark.slow
@pytest.mark.parametrize("damage", [damage_state, tear_own_part])
def test_a_damaged_state_is_not_offered(folder, damage):
    group = Group(folder, Killed("forward", 2 + 8), SETTINGS, victims=[1], world_size=2)
    group.wait_for_death(1)
    assert group.save({1}).name == CheckpointName(4, 1, 0)
    damage(folder)
    assert kept(folder, 2) is None


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings",
    [
        pytest.param(SETTINGS, id="ddp"),
        pytest.param(COPIED, id="copied", marks=pytest.mark.nightly),  # in CI with FSDP
        pytest.param(FSDP, id="fsdp"),
    ],
)
@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.nightly) for seed in (1, 2))])
def test_a_kill_at_a_random_moment(ranks, folder, seed, settings):
    """Several starts, each killed; some end in the middle of a write, and then nothing is offered."""
    chance = random.Random(seed)
    settings = replace(settings, epochs=30)
    whole = ranks(3).results(run_task, Killed(), settings)
    resumes_from, step = None, 0
    for restart in range(5):
        group = Group(
            folder,
            Killed(step_s=0.01),
            settings,
            victims=(),
            restart=restart,
            state=resumes_from,
            world_size=3,
        )
        started = folder / f"1.{restart}" / "own-0"
        while not started.exists():
            time.sleep(0.01)
        victim = chance.randrange(3)
        time.sleep(chance.uniform(0.0, 0.3))
        group.processes[victim].kill()
        state = group.save({victim})
        if state is not None:
            assert state.name.step >= step
            resumes_from, step = state, state.name.step
    assert step > 0
    again = resumed(folder, state or kept(folder, 3), Killed(), settings, 3)
    check_same(whole, again, step)


@pytest.mark.parametrize(
    ("free", "is_offered"),
    [({}, True), ({"available_bytes": 4 * 4000 - 1}, False), ({"shm_bytes": 7999}, False)],
)
def test_a_state_is_offered_if_the_node_has_room_for_it(monkeypatch, free, is_offered):
    roomy = {"available_bytes": 1 << 30, "shm_bytes": 1 << 30, "shm_used_bytes": 0, "cgroups": ()}
    monkeypatch.setattr(last_step, "read_limits", lambda: SimpleNamespace(**roomy | free))
    state = {"model": {"weight": torch.zeros(1000)}}
    monkeypatch.setattr(last_step._kept, "last_step", SimpleNamespace(state=lambda: (2, None, state)))
    assert (last_step.offered() is not None) == is_offered


def test_the_memory_of_earlier_starts_is_freed(monkeypatch, folder):
    monkeypatch.setenv(variables.MEMORY_DIR, str(folder))
    for name in ("1.0", "1.1", "1.2", "2.0"):
        (folder / name).mkdir()
    last_step.forget_earlier(SimpleNamespace(ref=SimpleNamespace(attempt=1), restart=2))
    assert {path.name for path in folder.iterdir()} == {"1.2", "2.0"}


def test_a_folder_that_others_can_enter_is_not_used(monkeypatch, folder):
    monkeypatch.setenv(variables.MEMORY_DIR, str(folder))
    assert last_step._memory() == folder
    folder.chmod(0o2700)  # as in a pod, whose volumes have setgid
    assert last_step._memory() == folder
    folder.chmod(0o755)
    assert last_step._memory() is None
