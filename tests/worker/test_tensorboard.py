"""One curve over all starts of a run, read with TensorBoard's own reader."""

import io

import pytest
import torch
from PIL import Image
from tensorboard.backend.event_processing.plugin_event_multiplexer import EventMultiplexer
from tensorboard.plugins.hparams import metadata

from clustertrain.job.identity import hyperparameters
from clustertrain.worker.loggers.curve import LoggedCurve
from clustertrain.worker.loggers.logger import Subject
from support.curves import write_curve


def board(attempt, first_step, values, **sections):
    """One start of the worker group: it writes `values`, by step."""
    write_curve(attempt, {"train/loss": values}, "tensorboard", first_step=first_step, **sections)


def read(run):
    """What `tensorboard --logdir <run folder>` shows."""
    multiplexer = EventMultiplexer().AddRunsFromDirectory(run.uri)
    return multiplexer.Reload()


def points(multiplexer, name, tag):
    return {event.step: float(event.tensor_proto.float_val[0]) for event in multiplexer.Tensors(name, tag)}


def test_starts_of_all_attempts_are_one_curve_and_the_later_value_counts(run):
    board(run.attempt(1), 1, {10: 1.0, 20: 2.0, 30: 3.0})
    board(run.attempt(1), 21, {30: 30.0, 40: 40.0, 45: 45.0})  # a restart of the group
    board(run.attempt(2), 41, {50: 50.0})
    multiplexer = read(run)
    assert list(multiplexer.Runs()) == ["tensorboard"]
    assert points(multiplexer, "tensorboard", "train/loss") == {
        10: 1.0,
        20: 2.0,
        30: 30.0,
        40: 40.0,
        50: 50.0,
    }


def test_each_run_has_its_hyperparameters(run, job):
    sections = hyperparameters(
        job(args={"lr": 0.1, "widths": [8, 4], "optimizer": {"name": "sgd", "nesterov": True}})
    )
    board(run.attempt(1), 1, {10: 1.0}, **sections)
    board(run.attempt(2), 1, {10: 1.0}, **sections)
    content = read(run).SummaryMetadata("tensorboard", metadata.SESSION_START_INFO_TAG).plugin_data.content
    found = metadata.parse_session_start_info_plugin_data(content).hparams
    assert found["args.lr"].number_value == 0.1
    assert found["args.widths"].string_value == "[8,4]"
    assert found["args.optimizer.name"].string_value == "sgd"
    assert found["args.optimizer.nesterov"].string_value == "true"
    assert found["train.batch_size"].number_value == 8
    assert "train.steps" not in found


def test_images_are_shown_at_their_steps_and_a_repeated_step_replaces_its_image(run):
    black, white = (torch.full((1, 4, 6), value, dtype=torch.uint8) for value in (0, 255))
    for first_step, images in [(1, {10: black, 20: black}), (11, {20: white})]:
        curve = LoggedCurve(["tensorboard"], Subject(run.attempt(1), first_step, {}), pytest.fail)
        for step, image in images.items():
            curve.add_images(step, {"truth": image})
        curve.close(failed=False, within_s=30)
    events = read(run).Tensors("tensorboard", "eval/truth")
    shown = {}
    for event in events:
        width, height, png = event.tensor_proto.string_val[:3]
        pixels = Image.open(io.BytesIO(png)).convert("L")
        assert (int(width), int(height)) == pixels.size == (6, 4)
        shown[event.step] = set(pixels.tobytes())
    assert shown == {10: {0}, 20: {255}}
