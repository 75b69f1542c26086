from ray.train import RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer


def train_func(config):
    return config


scaling = ScalingConfig(num_workers=8, use_gpu=True)
trainer = TorchTrainer(
    train_loop_per_worker=train_func,
    train_loop_config={"lr": 0.001, "epochs": 10},
    scaling_config=scaling,
    run_config=RunConfig(name="x"),
)
trainer.fit()
