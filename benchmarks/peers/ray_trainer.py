"""Ray's TorchTrainer as its documentation shows it, with FailureConfig."""

import tempfile
import time
from dataclasses import asdict
from pathlib import Path

import lenet
import ray.train
import ray.train.torch
import torch
from torch.utils.data import DataLoader
from training_settings import BATCH_SIZE, RANKS, Settings, settings_of_command


def train(config: dict) -> None:
    settings = Settings(**config)
    context = ray.train.get_context()
    notes = lenet.Notes(settings.notes, context.get_world_rank())
    model = ray.train.torch.prepare_model(lenet.make_model())
    optimizer = lenet.make_optimizer(model)
    data = lenet.make_data(settings.data)
    loader = ray.train.torch.prepare_data_loader(DataLoader(data, BATCH_SIZE, shuffle=True, drop_last=True))
    first = 1
    if checkpoint := ray.train.get_checkpoint():
        with checkpoint.as_directory() as folder:
            saved = torch.load(Path(folder) / "state.pt", weights_only=True)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        first = saved["step"] + 1
    for step, batch in lenet.batches(loader, settings.data, first, settings.steps):
        optimizer.zero_grad()
        lenet.loss_of(model, batch).backward()
        optimizer.step()
        notes.step(step)
        time.sleep(settings.callback_s)
        if settings.save_every and step % settings.save_every == 0:
            save(model, optimizer, step)


def save(model: torch.nn.Module, optimizer: torch.optim.Optimizer, step: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        checkpoint = None
        if ray.train.get_context().get_world_rank() == 0:
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
            torch.save(state, Path(folder) / "state.pt")
            checkpoint = ray.train.Checkpoint.from_directory(folder)
        ray.train.report({"step": step}, checkpoint=checkpoint)


if __name__ == "__main__":
    settings = settings_of_command()
    ray.init(address="local")  # not one that somebody else has started on this machine
    ray.train.torch.TorchTrainer(
        train,
        train_loop_config=asdict(settings),
        scaling_config=ray.train.ScalingConfig(num_workers=RANKS),
        run_config=ray.train.RunConfig(
            name="bench",
            storage_path=str(Path(settings.notes) / "storage"),
            failure_config=ray.train.FailureConfig(max_failures=1),
        ),
    ).fit()
