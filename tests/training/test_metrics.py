"""Each kind of metric has the value of one process on any number of ranks; what is no metric is refused."""

from dataclasses import dataclass
from typing import Any

import pytest
import torch

from clustertrain.errors import JobError
from clustertrain.training.gathering import SampleRows
from clustertrain.training.metrics import Accuracy, Metrics
from training.own_metrics import OfTwo, Outputs, Own, order, whole
from training.ranks import ALONE
from training.tasks import evaluation_of

CPU = torch.device("cpu")


def evaluate(rank_info, task):
    """Twice: the second pass starts with the states of the first."""
    evaluation = evaluation_of(rank_info, task, task.model(), task.eval_data({}))
    assert evaluation.of_one_batch().keys() == evaluation.run(1).keys()
    return evaluation.run(1)


@pytest.mark.parametrize("task", [Own(), OfTwo()], ids=["eleven", "fewer samples than ranks"])
@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_a_metric_has_the_value_of_one_process_to_the_last_digit(ranks, world_size, task):
    inputs, classes, ids = whole(task.samples)
    outputs = Outputs(inputs[:, :3].bfloat16(), (inputs > 0, None))
    expected = task.metrics()
    for name in ("accuracy", "mean"):
        metric = expected[name]
        metric.reset()
        metric.update(outputs, {"classes": classes, "ids": ids})
        expected[name] = float(metric.compute())
    answers = ranks(world_size).results(evaluate, task)
    assert all(answer == answers[0] for answer in answers), "the same on every rank"
    values = answers[0]
    assert list(values) == ["loss", "order_checksum", "order_samples", "sums", "accuracy", "mean"]
    assert values["accuracy"] == expected["accuracy"] and values["mean"] == expected["mean"]
    checksum = sum(i * (i + 1) for i in range(task.samples))
    assert (values["order_checksum"], values["order_samples"]) == (checksum, task.samples)
    assert values["sums"] == pytest.approx(outputs.scores.double().sum().item())


@dataclass
class Masked:
    scores: torch.Tensor
    mask: torch.Tensor


def _in_pieces(rank_info):
    from clustertrain.training import gathering

    whole_bytes, gathering._CHUNK_BYTES = gathering._CHUNK_BYTES, 50
    rows = SampleRows("T", ["m"])
    for ids in torch.arange(rank_info.rank, 13, rank_info.world_size).split(2):
        value = ids.reshape(-1, 1).expand(-1, 3)
        rows.add(Masked(value.double(), value % 2 == 0), None, ids.tolist())
    try:
        return rows.of_all_ranks(rank_info, 13)
    finally:
        gathering._CHUNK_BYTES = whole_bytes


def test_many_rows_are_sent_in_pieces(ranks):
    (outputs, _), of_rank_1 = ranks(2).results(_in_pieces)
    assert torch.equal(outputs.scores, torch.arange(13).double().reshape(-1, 1).expand(-1, 3))
    assert of_rank_1 is None


def _of_other_shape(rank_info):
    rows = SampleRows("T", ["m"])
    rows.add(torch.zeros(2, 3 + rank_info.rank), torch.zeros(2), [0, 1])
    rows.of_all_ranks(rank_info, 4)


def test_shapes_that_differ_between_ranks_are_refused_on_all(ranks):
    for error in ranks(2).call(_of_other_shape):
        assert isinstance(error, JobError)
        assert "rank 0 has outputs float32 (samples, 3), targets float32 (samples,), rank 1 has" in str(error)


@pytest.mark.parametrize(
    ("outputs", "words"),
    [
        (torch.tensor(1.0), r"outputs has shape \(\), but the batch has 2 samples"),
        (torch.zeros(4, 3), r"outputs has shape \(4, 3\), but the batch has 2"),
        (
            {"scores": torch.zeros(2), "ids": (torch.zeros(2), ["a", "b"])},
            r"outputs\['ids'\]\[1\]\[0\] is str",
        ),
        (Masked(torch.zeros(2), torch.zeros(1)), r"outputs.mask has shape \(1,\)"),
    ],
)
def test_outputs_that_cannot_be_collected_are_refused_by_name(outputs, words):
    with pytest.raises(JobError, match=f"T.eval_step: {words}.*collected for 'm'.\n.*torchmetrics"):
        SampleRows("T", ["m"]).add(outputs, None, [0, 1])


def test_batches_of_other_shapes_are_refused():
    rows = SampleRows("T", ["m"])
    rows.add(torch.zeros(2, 7), None, [0, 1])
    with pytest.raises(JobError, match=r"one batch has outputs float32 \(samples, 7\), another one .*, 8\)"):
        rows.add(torch.zeros(2, 8), None, [2, 3])


class Half:
    def reset(self): ...

    def update(self, outputs, targets): ...


class ListOfSums(Half):
    sums = (1, 2)

    def compute(self): ...


@pytest.mark.parametrize(
    ("name", "metric", "words"),
    [
        (
            "half",
            Half(),
            "The metric 'half' of T is a Half, which lacks compute.\nReturn a metric of torchmetrics",
        ),
        ("number", 3.0, "is a float, which lacks reset, update, compute"),
        ("kind", Accuracy, r"'kind' of T is the class Accuracy.\nReturn an instance: Accuracy\(\)"),
        ("loss", order, "'loss' of T cannot have this name"),
    ],
)
def test_what_is_no_metric_is_refused_by_name(name, metric, words):
    with pytest.raises(JobError, match=words):
        Metrics("T", {"accuracy": Accuracy(), name: metric}, CPU)


def computed(metrics):
    of_task = Metrics("T", metrics, CPU)
    of_task.reset()
    of_task.update(torch.zeros(2, 3), torch.zeros(2), [0, 1])
    return of_task.compute(ALONE, 2)


def test_several_values_get_full_names_and_what_is_no_number_is_refused():
    values = computed({"f": lambda o, t: {"a": 1, "b": torch.tensor([2.0])}, "g": lambda o, t: 3})
    assert values == {"f_a": 1.0, "f_b": 2.0, "g": 3.0}
    with pytest.raises(JobError, match=r"'f' returns a tensor of shape \(3,\)"):
        computed({"f": lambda o, t: torch.ones(3)})
    with pytest.raises(JobError, match="'f' returns NoneType, which is not a number"):
        computed({"f": lambda o, t: None})
    with pytest.raises(JobError, match="Two values of the evaluation are called 'f_a'"):
        computed({"f": lambda o, t: {"a": 1}, "f_a": lambda o, t: 2})
    with pytest.raises(JobError, match="'f' of T has `sums` of type tuple"):
        computed({"f": ListOfSums()})


class MadeByReset:
    """Counts boxes, a different number for each sample, which cannot be sent to rank 0."""

    def reset(self):
        self.sums = torch.zeros(1)

    def update(self, outputs, targets):
        self.sums += sum(map(len, targets))

    def compute(self):
        return self.sums.item()


def test_sums_that_reset_creates_are_added_over_the_ranks():
    metrics = Metrics("Boxes", {"boxes": MadeByReset()}, CPU)
    metrics.reset()
    metrics.update([], [torch.ones(3, 4), torch.ones(0, 4)], [0, 1])
    assert metrics.compute(ALONE, samples=2) == {"boxes": 3.0}


def test_accuracy_counts_samples_and_pixels():
    metric = Accuracy()
    metric.update(torch.tensor([[0.1, 0.9], [0.9, 0.1], [0.2, 0.8]]), torch.tensor([1, 1, 1]))
    assert metric.compute() == 2 / 3
    metric.reset()
    metric.update(torch.zeros(2, 4, 5, 5), torch.zeros(2, 5, 5, dtype=torch.int64))
    assert metric.compute() == 1.0


def example(rank_info, own):
    """The task of docs/guides/metrics.md, with its function as the metric or with its object."""
    from pathlib import Path

    page = Path(__file__).parents[2].joinpath("docs", "guides", "metrics.md").read_text()
    names: dict[str, Any] = {}
    for block in page.split("```python\n")[1:]:
        exec(block.partition("```")[0], names)
    task = names["Screening"]()
    if own:
        task.metrics = lambda: {"f1": names["F1"]()}
    torch.manual_seed(5)
    values = evaluate(rank_info, task)
    torch.manual_seed(5)
    inputs, targets = task.eval_data({}).tensors
    with torch.no_grad():
        return values["f1"], names["f1"](task.model()(inputs), targets)


@pytest.mark.parametrize("own", [False, True], ids=["function", "sums"])
def test_the_example_of_the_page_is_exact_on_any_number_of_ranks(ranks, own):
    for world_size in (1, 2, 3):
        for value, of_all in ranks(world_size).results(example, own):
            assert 0 < value == of_all < 1
