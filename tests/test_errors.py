import pickle

import pytest

from clustertrain.checkpoints.manifest import CheckpointDamaged, UnknownFormat
from clustertrain.checkpoints.write import StaleWriter
from clustertrain.errors import ClusterError, ClusterTrainError, DataError, JobError, RunStopped, StorageError
from clustertrain.training.ranks.consistency import WeightsDiverged
from clustertrain.training.step.running_loss import NonFiniteLoss, NonFiniteWeights
from clustertrain.worker.scripts.script import ScriptFailed

ERRORS = [
    (ClusterTrainError("a"), 1),
    (JobError("a"), 2),
    (ClusterError("a"), 3),
    (StorageError("a"), 4),
    (DataError("a"), 4),
    (CheckpointDamaged("a"), 4),
    (UnknownFormat("a"), 4),
    (StaleWriter("a"), 4),
    (RunStopped("a", checkpointed=True), 75),
    (RunStopped("a", checkpointed=False), 130),
    (ScriptFailed("a", 7), 1),
    (NonFiniteLoss("a"), 1),
    (NonFiniteWeights("a"), 1),
    (WeightsDiverged("a"), 1),
]


@pytest.mark.parametrize(("error", "exit_code"), ERRORS, ids=lambda value: type(value).__name__)
def test_an_error_survives_the_way_from_a_worker_to_the_driver(error, exit_code):
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), str(again), vars(again)) == (type(error), str(error), vars(error))
    assert again.exit_code == exit_code
