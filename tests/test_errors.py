import pickle

import pytest

from clustertrain.checkpoints.manifest import CheckpointDamaged, UnknownFormat
from clustertrain.checkpoints.write import Fenced
from clustertrain.errors import ClusterError, ClusterTrainError, DataError, JobError, RunStopped, StorageError
from clustertrain.training.ranks.consistency import WeightsDiverged
from clustertrain.training.step.running_loss import NonFiniteLoss, NonFiniteWeights
from clustertrain.worker.scripts.script import ScriptFailed

ERRORS = [
    ClusterTrainError("a"),
    JobError("a"),
    ClusterError("a"),
    StorageError("a"),
    DataError("a"),
    CheckpointDamaged("a"),
    UnknownFormat("a"),
    Fenced("a"),
    RunStopped("a", checkpointed=True),
    RunStopped("a", checkpointed=False),
    ScriptFailed("a", 7),
    NonFiniteLoss("a"),
    NonFiniteWeights("a"),
    WeightsDiverged("a"),
]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_an_error_survives_the_way_from_a_worker_to_the_driver(error):
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), str(again)) == (type(error), str(error))
    assert again.exit_code == error.exit_code
    assert vars(again) == vars(error)


@pytest.mark.parametrize(
    ("error", "code"),
    [(ClusterTrainError, 1), (JobError, 2), (ClusterError, 3), (StorageError, 4), (DataError, 4)],
)
def test_exit_codes(error, code):
    assert error("text").exit_code == code


def test_a_stop_is_75_with_a_checkpoint_and_130_without():
    assert RunStopped("a", checkpointed=True).exit_code == 75
    assert RunStopped("a", checkpointed=False).exit_code == 130
