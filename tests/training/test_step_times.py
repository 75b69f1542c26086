"""The parts of a step, measured on real ranks whose slow parts are known."""

import gzip
import json
import time
from types import SimpleNamespace

import pytest
import torch

from clustertrain.errors import JobError
from clustertrain.training.data.sampling import BatchSizes, Position, TrainOrder
from clustertrain.training.loop import train
from clustertrain.training.measured import step_times
from clustertrain.training.measured.step_times import StepTimes, Times
from clustertrain.training.measured.step_watch import StepWatch
from clustertrain.training.measured.stragglers import Stragglers, by_rank, straggler_text
from clustertrain.training.settings import EvalEvery, Profile, TrainSettings
from training.ranks import ALONE
from training.tasks import Classify, MemoryRun, Plain, run_task

CPU = torch.device("cpu")


def test_the_parts_of_a_step_add_up(monkeypatch):
    """Two micro-batches in each of two steps; what happens between two steps is none of the parts."""
    now = [0.0]
    monkeypatch.setattr(step_times.time, "perf_counter", lambda: now[0])

    def pass_s(seconds):
        now[0] += seconds

    times = StepTimes(CPU)

    def slow():
        for _ in range(4):
            pass_s(2.0)
            yield

    for n, _ in enumerate(times.batches(slow(), before=lambda: None)):
        pass_s(0.5)
        if n % 2:
            times.step_done()
            pass_s(100.0)  # an evaluation
    assert times.read() == Times(data_wait_s=4.0, compute_s=1.0, communication_s=0.0)
    assert times.read() == Times(0.0, 0.0, 0.0)


class FakeEvent:
    """A CUDA event on a GPU that computes 1 s between two of them, and passes none until it is waited for."""

    recorded = waited_for = 0

    def __init__(self, enable_timing):
        assert enable_timing

    def record(self):
        FakeEvent.recorded += 1
        self.number = FakeEvent.recorded

    def query(self):
        return self.number <= FakeEvent.waited_for

    def synchronize(self):
        FakeEvent.waited_for = self.number

    def elapsed_time(self, other):
        assert other.query(), "the event was not passed yet: CUDA raises an error"
        return 1000.0 * (other.number - self.number)


def test_a_gpu_is_waited_for_at_the_line_of_the_log_only(monkeypatch):
    monkeypatch.setattr(torch.cuda, "Event", FakeEvent)
    times = StepTimes(torch.device("cuda"))
    loss = torch.ones(1, requires_grad=True)
    for _ in times.batches(range(3), before=lambda: None):
        step_loss = loss * 2
        times.exchange(step_loss)
        step_loss.backward()
        times.step_done()
        assert FakeEvent.waited_for == 0
    found = times.read()
    assert (found.compute_s, found.communication_s) == (2.0, 1.0)
    assert FakeEvent.waited_for == FakeEvent.recorded == 12  # begin, computed, exchanged, end


class Uneven(Plain):
    """Rank 1 computes for 100 ms longer in each step."""

    def loss(self, model, batch):
        if torch.distributed.get_rank() == 1:
            time.sleep(0.1)
        return super().loss(model, batch)


def _uneven(rank_info):
    settings = TrainSettings(steps=9, batch_size=2, log_every=3)
    task = Uneven()
    task.tokens_per_sample = 8
    return run_task(rank_info, task, settings).logs


def test_a_slow_rank_is_named_once_and_the_others_wait_in_the_exchange(ranks):
    logs, none = ranks(2).results(_uneven)
    assert none == []
    (warning,) = [log for log in logs if log["kind"] == "warning"]
    assert warning["step"] in (6, 9)  # slow in two lines in a row
    assert (
        warning["text"].startswith("rank 1 on ") and "times the median of the other ranks" in warning["text"]
    )
    last = [log for log in logs if log["kind"] == "train"][-1]
    assert last["compute_s"] > 0.05  # the mean of both ranks
    assert last["communication_s"] > 0.02  # rank 0 waits 100 ms for rank 1
    assert last["data_wait_s"] > 0
    assert last["rank_s"][1] > last["rank_s"][0] + 0.05 and len(last["rank_s"]) == 2
    assert last["tokens_per_s"] == 8 * last["samples_per_s"]


def of(*own_s):
    return [Times(0.0, seconds, 0.0) for seconds in own_s]


def test_a_rank_is_slow_in_two_lines_in_a_row_and_is_named_once():
    stragglers = Stragglers()
    lines = [of(0.1, 0.1, 0.1), of(0.1, 0.2, 0.1), of(0.1, 0.1, 0.1), of(0.1, 0.2, 0.1), of(0.1, 0.2, 0.1)]
    assert [stragglers.new(line) for line in [*lines, lines[-1]]] == [[], [], [], [], [1], []]


@pytest.mark.parametrize("own_s", [[0.1], [0.001, 0.005], [0.1, 0.14]], ids=["one rank", "short", "near"])
def test_one_rank_short_steps_and_near_times_name_no_slow_rank(own_s):
    times, stragglers = of(*own_s), Stragglers()
    assert [stragglers.new(times) for _ in range(4)] == [[]] * 4


def test_the_warning_has_the_numbers_and_the_part_that_is_slow():
    slow = Times(0.3, 0.112, 0.0)
    text = straggler_text(1, "node7", [*of(0.217), slow, *of(0.199)])
    assert text.startswith(
        "rank 1 on node7 is slow: it takes 412 ms per step (waiting for data 300 ms, computing 112 ms), "
        "2.0 times the median of the other ranks, 208 ms.\n"
    )
    assert "train.loader_workers" in text and len(text.splitlines()) == 2
    assert "nvidia-smi" in straggler_text(0, "node7", of(0.4, 0.1))


def watch(rank_info, **settings):
    """A watch of a rank, and the notes that it logs."""
    notes = []
    train = TrainSettings(steps=1, batch_size=1, **settings)
    order = TrainOrder(train, BatchSizes(1, 1, 1), 1, 0, Position())
    made = StepWatch(Classify(), rank_info, order, None, log=lambda kind, text: notes.append(text))
    return made, notes


def _slow_ranks(rank_info, strategy):
    """Rank 1 computes for long, or (FSDP) every rank but rank 1 waits for it while it computes."""
    made, notes = watch(rank_info, strategy=strategy)
    times = Times(0.0, 0.5 if rank_info.rank == 1 else 0.1, 0.0)
    made._times = SimpleNamespace(read=lambda: times)
    for _ in range(3):
        made.figures(1.0)
    return notes


@pytest.mark.parametrize(("strategy", "named"), [("ddp", 1), ("fsdp", 0)])
def test_a_rank_that_waits_for_others_in_its_passes_is_not_called_slow(ranks, strategy, named):
    assert [len(notes) for notes in ranks(2).results(_slow_ranks, strategy)] == [named, named]


def _profiled(rank_info, folder):
    run = MemoryRun(rank_info.rank)
    run.trace = folder / f"{rank_info.rank}.gz"
    profile = Profile(steps=(3, 4))
    settings = TrainSettings(steps=6, batch_size=2, eval_every=EvalEvery(steps=2), profile=profile)
    train(Classify(), settings, rank_info, run, {})
    return run.logs


def steps_in(trace):
    with gzip.open(trace) as file:
        events = json.load(file)["traceEvents"]
    return sum(event.get("name", "").startswith("Optimizer.step") for event in events)


def test_each_rank_writes_a_profile_of_the_steps(ranks, tmp_path):
    logs, _ = ranks(2).results(_profiled, tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0.gz", "1.gz"]
    (note,) = [log for log in logs if "profile" in log.get("text", "")]
    assert (note["step"], note["profile"]) == (4, f"{tmp_path}/0.gz")
    assert f"the profile of steps 3 to 4 is {tmp_path}/0.gz; those of the other ranks" in note["text"]
    assert steps_in(tmp_path / "1.gz") == 2


def test_a_stop_within_a_profile_leaves_the_profile_of_the_steps_before(tmp_path):
    run = MemoryRun(0, asked=lambda call: (call == 4, False))
    run.trace = tmp_path / "0.gz"
    settings = TrainSettings(steps=6, batch_size=2, profile=Profile(steps=(3, 5)))
    assert not train(Plain(), settings, ALONE, run, {}).finished
    assert any("the profile of steps 3 to 4 is" in log.get("text", "") for log in run.logs)
    assert steps_in(run.trace) == 2


def test_a_profile_beyond_the_last_step_is_refused():
    settings = TrainSettings(steps=9, batch_size=2, profile=Profile(steps=(8, 10)))
    with pytest.raises(JobError, match=r"train.profile.steps is \[8, 10\], but the run has 9 steps"):
        run_task(ALONE, Plain(), settings)


def test_a_record_has_the_times_of_64_ranks_and_of_more_the_slowest_one():
    assert by_rank([0.1, 0.30000004, 0.2]) == {"rank_s": [0.1, 0.3, 0.2]}
    assert by_rank([0.1] * 64 + [0.5]) == {"slowest_rank": 64, "slowest_rank_s": 0.5}
