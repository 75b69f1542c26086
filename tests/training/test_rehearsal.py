"""Each mistake of a task is found in one process, with the line of the user's file and a remedy."""

from __future__ import annotations

import inspect
import itertools
import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from clustertrain.errors import JobError
from clustertrain.training.rehearsal import rehearse
from clustertrain.training.settings import TrainSettings
from training import mistaken
from training.ranks import ALONE
from training.tasks import Plain, plain, run_task

pytestmark = pytest.mark.slow

CPU = torch.device("cpu")
SETTINGS = TrainSettings(steps=2, batch_size=32)

MISTAKES = {
    mistaken.OddShape: [
        r"OddShape.train_data\(\) raised RuntimeError: .*\[6\] at entry 0 and \[7\]",
        "one shape and one type, or override collate",
    ],
    mistaken.UnreadableSample: [r"train_data\(\) raised OSError: cannot read image 5"],
    mistaken.UnreadableEvaluation: [r"UnreadableEvaluation.eval_data\(\) raised RuntimeError: .*NoneType"],
    mistaken.OwnCollate: [r"OwnCollate.collate\(\) raised ValueError: not enough"],
    mistaken.NoData: [r"train_data\(\) raised KeyError: 'digits'", "paths of the job's `data`: none"],
    mistaken.NarrowModel: ["mat1 and mat2 shapes", r"The batch is \[float32 \(32, 6\), int64 \(32,\)\]"],
    mistaken.ThreeParts: [r"ThreeParts.loss\(\) raised ValueError: too many values", r"int64 \(32,\), int64"],
    mistaken.VectorLoss: [r"VectorLoss.loss\(\) returned float32 \(32,\)\.", "mean over the batch"],
    mistaken.LossWithOutputs: [
        r"loss\(\) returned \(float32 \(\), float32 \(32, 3\)\)\.",
        r"or \(sum, count\)",
    ],
    mistaken.NumberLoss: [r"loss\(\) returned float\.", "mean over the batch as a tensor"],
    mistaken.DetachedLoss: ["needs no gradient", "without detach"],
    mistaken.Frozen: ["without parameters that need a gradient", "leave some of them unfrozen"],
    mistaken.BrokenModel: [r"BrokenModel.model\(\) raised AttributeError: .*'classes'"],
    mistaken.Forgetful: [
        r"does not load its own state_dict\(\): .* Missing key\(s\)",
        "No start could resume",
    ],
    mistaken.OtherOptimizer: ["has 6 parameters; 6 of them are not parameters of the model"],
    mistaken.NoOptimizer: ["returned NoneType, not a torch.optim.Optimizer"],
    mistaken.ClosureOptimizer: [r"returned LBFGS, whose step\(\) needs a function", "Use another optimizer"],
    mistaken.BrokenScheduler: [r"BrokenScheduler.scheduler\(\) raised TypeError: .*step_size"],
    mistaken.MetricScheduler: ["returned ReduceLROnPlateau, which needs a metric"],
    mistaken.UnreadableScheduler: [
        r"state.scheduler.lr_lambdas.0.factors is of the type numpy.ndarray: no resume could read it"
    ],
    mistaken.Loader: ["returned a DataLoader", r"Return its data set.*sample_weights\(dataset\)"],
    mistaken.FewWeights: [r"returned shape \(3,\) for 32 samples", r"shape \(32,\)"],
    mistaken.NegativeWeight: [r"returned -0\.\d+ for sample 21", "not negative"],
    mistaken.NoWeight: ["weights whose sum is 0"],
    mistaken.WeightedStream: ["needs a map-style data set, and .* returned Stream"],
    mistaken.HalfState: [r"HalfState has no load_state_dict\(\)", "Write both"],
    mistaken.UnreadableState: [r"state\.task\.seen\.0 is of the type numpy\.ndarray"],
    mistaken.TwoValues: [
        r"eval_step\(\) raised ValueError: not enough values",
        r"Return \(mean loss, outputs",
    ],
    mistaken.BrokenMetric: [
        "The metric 'share' of BrokenMetric raised ZeroDivisionError",
        r"Outputs are float32 \(12, 3\), targets int64 \(12,\)",
    ],
}


@pytest.mark.parametrize("task", MISTAKES, ids=lambda task: task.__name__)
def test_a_mistake_is_refused_with_its_line_and_a_remedy_also_by_a_run(task):
    with pytest.raises(JobError) as refused:
        rehearse(task(), SETTINGS, CPU, {})
    text = str(refused.value)
    for words in MISTAKES[task]:
        assert re.search(words, text), text
    file = inspect.getsourcefile(mistaken)
    lines = Path(file).read_text().splitlines()
    (number,) = [i for i, line in enumerate(lines, 1) if line.endswith(f"# here: {task.__name__}")]
    assert f"{file}:{number}" in text, text
    assert len(text.splitlines()) <= 3 and "Traceback" not in text
    with pytest.raises(JobError) as refused:
        run_task(ALONE, task(), SETTINGS)
    assert str(refused.value) == text


def test_a_metric_without_outputs_is_refused_with_the_method_to_override():
    refused = r"has share, but .*returns no outputs.\nOverride eval_step"
    with pytest.raises(JobError, match=refused):
        rehearse(mistaken.SilentMetric(), SETTINGS, CPU, {})
    with pytest.raises(JobError, match=refused):
        run_task(ALONE, mistaken.SilentMetric(), SETTINGS)


@pytest.mark.parametrize(
    ("task", "names"),
    [
        (mistaken.Fine, ("loss", "accuracy")),
        (mistaken.Silent, ("loss",)),
        (mistaken.Collection, ("loss", "macro_accuracy", "macro_f1", "auroc")),
        (Plain, ()),
    ],
)
def test_the_names_of_an_evaluation_are_those_that_the_loop_logs(task, names):
    settings = replace(SETTINGS, batch_size=4)
    assert rehearse(task(), settings, CPU, {}) == names
    logged = [record.keys() for record in run_task(ALONE, task(), settings).logs if record["kind"] == "eval"]
    assert {*itertools.chain(*logged)} - {"kind", "step", "epoch"} == {*names}


def test_a_rehearsal_takes_the_batch_of_a_rank():
    settings, sizes = TrainSettings(steps=2, global_batch_size=24), []

    def loss(model, batch):
        sizes.append(len(batch[0]))
        return model(batch[0]).square().mean()

    task = plain(loss=loss)
    rehearse(task, settings, CPU, {}, world_size=3)
    assert sizes[0] == 8
    with pytest.raises(JobError, match="not a multiple of workers"):
        rehearse(task, settings, CPU, {}, world_size=5)


def best(task, metric):
    return rehearse(task, replace(SETTINGS, keep_best=metric), CPU, {})


def test_the_metric_of_the_best_checkpoint_is_one_that_is_reported():
    assert best(mistaken.Fine(), "accuracy") and best(mistaken.Fine(), "loss")
    assert best(mistaken.Collection(), "macro_f1")
    with pytest.raises(
        JobError, match=r"keep_best.metric is 'acuracy'.*: loss, accuracy.\nDid you mean 'acc"
    ):
        best(mistaken.Fine(), "acuracy")
    with pytest.raises(JobError, match=r"'macro', but .*: loss, macro_accuracy, macro_f1, auroc"):
        best(mistaken.Collection(), "macro")
    with pytest.raises(
        JobError, match=r"reports: loss.\nSilent overrides loss.* override eval_step and metrics"
    ):
        best(mistaken.Silent(), "accuracy")
    with pytest.raises(JobError, match=r"eval_data\(\) returned None.*\nReturn evaluation data, or remove"):
        best(Plain(), "loss")
