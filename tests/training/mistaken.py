"""Tasks with one mistake each, and the line that the rehearsal has to name (marked `# here`)."""

import numpy as np
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset, WeightedRandomSampler

from clustertrain import Task


class Fine(Task):
    """A classifier of the kit's defaults; without a mistake."""

    def model(self):
        return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 3))

    def train_data(self, data):
        return TensorDataset(torch.randn(32, 6), torch.arange(32) % 3)

    def eval_data(self, data):
        return TensorDataset(torch.randn(12, 6), torch.arange(12).sort().values // 4)


class Samples(Dataset):
    """32 samples; those that `odd` names are another value."""

    def __init__(self, odd):
        self.odd = odd

    def __len__(self):
        return 32

    def __getitem__(self, i):
        if self.odd is None and i == 5:
            raise OSError("cannot read image 5")  # here: UnreadableSample
        return (self.odd if i == 5 and self.odd is not None else torch.zeros(6)), i % 3


class OddShape(Fine):
    def train_data(self, data):  # here: OddShape
        return Samples(torch.zeros(7))


class UnreadableSample(Fine):
    def train_data(self, data):
        return Samples(None)


class UnreadableEvaluation(Fine):
    def eval_data(self, data):  # here: UnreadableEvaluation
        return [(torch.zeros(6), 1), (torch.zeros(6), None)]


class OwnCollate(Fine):
    def collate(self, samples):
        images, classes, weights = zip(*samples, strict=True)  # here: OwnCollate
        return torch.stack(images), torch.stack(classes), torch.stack(weights)


class NoData(Fine):
    def train_data(self, data):
        return torch.load(data["digits"])  # here: NoData


class NarrowModel(Fine):
    def model(self):
        return Narrow()


class Narrow(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(5, 3)

    def forward(self, x):
        return self.head(x)  # here: NarrowModel


class ThreeParts(Fine):  # here: ThreeParts
    """The default loss takes two parts; the line of the class is the nearest to the mistake."""

    def train_data(self, data):
        return TensorDataset(torch.randn(32, 6), torch.arange(32) % 3, torch.arange(32))


class VectorLoss(Fine):
    def loss(self, model, batch):  # here: VectorLoss
        return functional.cross_entropy(model(batch[0]), batch[1], reduction="none")


class LossWithOutputs(Fine):
    def loss(self, model, batch):  # here: LossWithOutputs
        inputs, classes = batch
        outputs = model(inputs)
        return functional.cross_entropy(outputs, classes), outputs


class NumberLoss(Fine):
    def loss(self, model, batch):  # here: NumberLoss
        return super().loss(model, batch).item()


class DetachedLoss(Fine):
    def loss(self, model, batch):  # here: DetachedLoss
        return super().loss(model, batch).detach()


class Frozen(Fine):
    def model(self):  # here: Frozen
        return super().model().requires_grad_(False)


class BrokenModel(Fine):
    def model(self):
        return nn.Linear(6, self.classes)  # here: BrokenModel


class OtherOptimizer(Fine):
    def optimizer(self, model):  # here: OtherOptimizer
        return torch.optim.SGD(self.model().parameters(), lr=0.1)


class NoOptimizer(Fine):
    def optimizer(self, model):  # here: NoOptimizer
        torch.optim.SGD(model.parameters(), lr=0.1)


class ClosureOptimizer(Fine):
    def optimizer(self, model):  # here: ClosureOptimizer
        return torch.optim.LBFGS(model.parameters())


class Forgetful(Fine):
    def model(self):  # here: Forgetful
        model = super().model()
        model.register_state_dict_post_hook(lambda model, state, *_: state.popitem() and None)
        return model


class MetricScheduler(Fine):
    def scheduler(self, optimizer, total_steps):  # here: MetricScheduler
        return torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)


class BrokenScheduler(Fine):
    def scheduler(self, optimizer, total_steps):
        return torch.optim.lr_scheduler.StepLR(optimizer)  # here: BrokenScheduler


class Table:
    """A schedule with an array."""

    def __init__(self):
        self.factors = np.linspace(1, 0, 9)

    def __call__(self, step):
        return self.factors[step]


class UnreadableScheduler(Fine):
    def scheduler(self, optimizer, total_steps):  # here: UnreadableScheduler
        return torch.optim.lr_scheduler.LambdaLR(optimizer, Table())


class TwoValues(Fine):
    def eval_step(self, model, batch):  # here: TwoValues
        return self.loss(model, batch), model(batch[0])


class Metric:
    def reset(self):
        self.right = self.all = 0

    def update(self, outputs, targets):
        self.right += (outputs.argmax(1) == targets).sum()

    def compute(self):
        return self.right.item() / self.all  # here: BrokenMetric


class BrokenMetric(Fine):
    def metrics(self):
        return {"share": Metric()}


class SilentMetric(Fine):
    """Overrides the loss, but not eval_step."""

    def loss(self, model, batch):
        return functional.cross_entropy(model(batch[0]), batch[1])

    def metrics(self):
        return {"share": Metric()}


class Silent(SilentMetric):
    def metrics(self):
        return {}


class Collection(Fine):
    """A metric with several values."""

    def metrics(self):
        from torchmetrics import MetricCollection
        from torchmetrics.classification import MulticlassAccuracy, MulticlassAUROC, MulticlassF1Score

        several = MetricCollection({"f1": MulticlassF1Score(3), "accuracy": MulticlassAccuracy(3)})
        return {"macro": several, "auroc": MulticlassAUROC(3)}


class Loader(Fine):
    def train_data(self, data):  # here: Loader
        sampler = WeightedRandomSampler(torch.ones(32), 32)
        return DataLoader(super().train_data(data), batch_size=4, sampler=sampler)


class FewWeights(Fine):
    def sample_weights(self, dataset):  # here: FewWeights
        return torch.ones(3)


class NegativeWeight(Fine):
    def sample_weights(self, dataset):  # here: NegativeWeight
        return torch.linspace(2, -1, len(dataset))


class NoWeight(Fine):
    def sample_weights(self, dataset):  # here: NoWeight
        return torch.zeros(len(dataset))


class WeightedStream(Fine):
    def train_data(self, data):
        return Stream()

    def sample_weights(self, dataset):  # here: WeightedStream
        return torch.ones(32)


class Stream(IterableDataset):
    def __len__(self):
        return 32

    def __iter__(self):
        return iter([(torch.zeros(6), 1)] * 32)


class HalfState(Fine):  # here: HalfState
    """Without load_state_dict."""

    def state_dict(self):
        return {"center": torch.zeros(3)}


class UnreadableState(Fine):
    def state_dict(self):  # here: UnreadableState
        return {"seen": [np.zeros(3)]}
