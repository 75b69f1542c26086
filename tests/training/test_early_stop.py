"""Early stopping: all ranks end at the same evaluation, also after a resume."""

from dataclasses import replace
from functools import partial

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from clustertrain import Task
from clustertrain.errors import JobError
from clustertrain.training.early_stop import EarlyStopping
from clustertrain.training.rehearsal import rehearse
from clustertrain.training.settings import EarlyStop, EvalEvery, SaveEvery, TrainSettings
from training.ranks import ALONE
from training.tasks import Plain, run_task, same

RULE = EarlyStop("loss", "min", patience=3)
SETTINGS = TrainSettings(
    epochs=10,
    batch_size=2,
    eval_every=EvalEvery(steps=2),
    save_every=SaveEvery(steps=1),
    seed=5,
    early_stop=RULE,
)
# After 2, 4, 6, … steps: the best is that of step 10, the end is at 16.
LOSSES = [9, 7, 8, 8, 6, 6, 6.5, 6, 1]
NAN = float("nan")


class Scripted(Task):
    """Its weight is the number of steps, and its evaluation loss is read from a list at that number."""

    def __init__(self, losses):
        self.losses = losses

    def model(self):
        model = nn.Linear(1, 1, bias=False)
        nn.init.zeros_(model.weight)
        return model

    def train_data(self, data):
        return TensorDataset(torch.ones(24, 1))

    def eval_data(self, data):
        return TensorDataset(torch.ones(5, 1))

    def loss(self, model, batch):
        return -model(batch[0]).mean()

    def eval_step(self, model, batch):
        evaluations = round(model(batch[0]).mean().item()) // 2
        return torch.tensor(float(self.losses[max(evaluations - 1, 0)])), None, None

    def optimizer(self, model):
        return torch.optim.SGD(model.parameters(), lr=1.0)


def stop_at(step, calls):
    return calls == step, False


@pytest.mark.parametrize("world_size", [1, 2])
def test_a_run_ends_and_saves_after_evaluations_without_an_improvement(ranks, world_size):
    outcomes = ranks(world_size).results(run_task, Scripted(LOSSES), SETTINGS)
    assert {(o.result.step, o.result.finished) for o in outcomes} == {(16, True)}
    assert (outcomes[0].progress[-1].step, outcomes[0].progress[-1].reason) == (16, "end")
    text = outcomes[0].result.early_stop
    assert text == (
        "Early stopping at step 16: loss did not improve in 3 evaluations in a row.\n"
        "The best value (mode min) was 6 at step 10.\n"
        "To continue, raise train.early_stop.patience above 3."
    )
    _, *notes = outcomes[0].logged("note", "text")  # the first: the learning rate
    assert notes == [text]
    assert outcomes[0].result.metrics == {"loss": 6.0}


def test_a_run_that_resumes_after_any_step_ends_at_the_same_evaluation():
    whole = run_task(ALONE, Scripted(LOSSES), SETTINGS)
    for step in range(1, 17):
        resumed = run_task(ALONE, Scripted(LOSSES), SETTINGS, whole.saves[step])
        assert resumed.result == whole.result, f"killed after the save of step {step}"
        if step < 16:
            assert same(resumed.state(16), whole.state(16))


def test_a_stop_request_leaves_no_evaluation_out():
    whole = run_task(ALONE, Scripted(LOSSES), SETTINGS)
    for step in (6, 7, 16):
        stopped = run_task(ALONE, Scripted(LOSSES), SETTINGS, None, partial(stop_at, step))
        assert (stopped.result.step, stopped.result.finished) == (step, False)
        resumed = run_task(ALONE, Scripted(LOSSES), SETTINGS, stopped.saves[step])
        assert resumed.result == whole.result, f"stopped at step {step}"
        assert same(resumed.state(16), whole.state(16))
        evaluated = stopped.logged("eval", "step") + resumed.logged("eval", "step")
        assert evaluated == [2, 4, 6, 8, 10, 12, 14, 16]


def test_more_patience_continues_and_the_same_ends_at_once():
    first = run_task(ALONE, Scripted(LOSSES), SETTINGS)
    again = run_task(ALONE, Scripted(LOSSES), SETTINGS, first.saves[16])
    assert again.result == first.result and again.progress == []
    patient = replace(SETTINGS, early_stop=replace(RULE, patience=4), steps=20, epochs=None)
    whole = run_task(ALONE, Scripted([*LOSSES, 0]), patient)
    longer = run_task(ALONE, Scripted([*LOSSES, 0]), patient, first.saves[16])
    assert longer.result == whole.result and (whole.result.step, whole.result.early_stop) == (20, "")


def test_an_evaluation_only_because_the_run_ends_does_not_count():
    """With more steps there would be no evaluation at step 5."""
    settings = replace(SETTINGS, epochs=None, steps=5)
    short = run_task(ALONE, Scripted(LOSSES), settings)
    assert short.logged("eval", "step") == [2, 4, 5]
    longer = run_task(ALONE, Scripted(LOSSES), replace(settings, steps=40), short.saves[5])
    assert longer.result.step == 16


@pytest.mark.parametrize(
    ("mode", "min_delta", "values", "end"),
    [
        ("max", 0.0, [1, 2, 2, 2], 4),
        ("max", 0.5, [1, 1.25, 1.5, 1.75, 2], 3),  # 1.5 is not better by more than 0.5
        ("max", 0.5, [1, 1.25, 1.75, 2, 2.25], 5),
        ("min", 0.0, [NAN, NAN, 1], 2),
        ("min", 0.0, [NAN, 3, NAN, float("-inf"), 2], 4),
    ],
)
def test_improvements_are_finite_and_better_by_more_than_min_delta(mode, min_delta, values, end):
    assert _end(ALONE, EarlyStop("loss", mode, 2, min_delta), [values]) == end


def _end(rank_info, rule, values_of_ranks):
    """The number of evaluations after which this rank ends."""
    early_stopping = EarlyStopping(rule, rank_info, None)
    for number, value in enumerate(values_of_ranks[rank_info.rank], 1):
        early_stopping.add(number, {"loss": value})
        if early_stopping.text:
            return number
    return None


def test_rank_0_decides_for_all(ranks):
    answers = ranks(2).results(_end, replace(RULE, patience=1), [[3, 2, 2, 1], [3, 3, 2, 1]])
    assert answers == [3, 3]


def test_another_metric_starts_the_count_again():
    early_stopping = EarlyStopping(replace(RULE, patience=1), ALONE, None)
    early_stopping.add(1, {"loss": 1.0})
    early_stopping.add(2, {"loss": 2.0})
    state = {"early_stop": early_stopping.state()}
    assert EarlyStopping(replace(RULE, patience=1), ALONE, state).text
    assert not EarlyStopping(replace(RULE, patience=1, metric="accuracy"), ALONE, state).text
    assert not EarlyStopping(replace(RULE, patience=1, mode="max"), ALONE, state).text
    assert not EarlyStopping(None, ALONE, state).text


def test_a_metric_that_is_not_reported_is_refused_before_the_first_step():
    settings = replace(SETTINGS, early_stop=EarlyStop("los", "min", 1))
    refused = r"train.early_stop.metric is 'los', but .*reports: loss.\nDid you mean 'loss'"
    nothing = r"Plain.eval_data\(\) returned None.*\nReturn evaluation data, or remove train.early_stop\."
    for task, message in ((Scripted(LOSSES), refused), (Plain(), nothing)):
        with pytest.raises(JobError, match=message):
            run_task(ALONE, task, settings)
        with pytest.raises(JobError, match=message):
            rehearse(task, settings, ALONE.device, {})
