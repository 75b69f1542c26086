"""Ray Train's detector of hangs in NCCL is on for jobs with GPUs, and only observes.

Nothing here has a GPU: what it reports is not tested.
"""

import os

import pytest
from ray.train.torch import TorchTrainer
from ray.train.v2._internal.callbacks.nccl_ras import NCCL_RAS_ACTION_OBSERVE, NCCLRASCallback

from clustertrain.driver import __main__ as driver
from clustertrain.node.ray_settings import NCCL_HANG_DETECTOR
from support.small_job import job

__all__ = ["job"]


@pytest.mark.filterwarnings("ignore:.*:DeprecationWarning:ray.data")  # Ray Data sets what it deprecates
@pytest.mark.filterwarnings("ignore:.*:UserWarning:ray.data")
@pytest.mark.parametrize(
    ("gpus", "env", "expected"),
    [(0, {}, 0), (1, {}, 1), (1, {NCCL_HANG_DETECTOR: "0"}, 0)],
)
def test_a_job_with_gpus_has_the_detector_unless_its_env_turns_it_off(job, monkeypatch, gpus, env, expected):
    monkeypatch.setattr(os, "environ", os.environ.copy())
    driver._set_environment(job(resources={"gpus_per_worker": gpus}, env=env))
    callbacks = TorchTrainer(print)._create_default_callbacks()
    detectors = [each for each in callbacks if isinstance(each, NCCLRASCallback)]
    assert [each._action for each in detectors] == [NCCL_RAS_ACTION_OBSERVE] * expected
