"""The images of a task, checked and converted for a logger."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from clustertrain.errors import JobError
from clustertrain.training.task import Task

_CHANNELS = (1, 3)
_DIMENSIONS = 3


def images_of(task: Task, model: nn.Module) -> dict[str, torch.Tensor]:
    """Return the task's images by name: uint8 (channels, height, width), on the CPU.

    Raises:
        JobError: `Task.images` did not return images; names the first other value.
    """
    images: Any = task.images(model)
    name = f"{type(task).__name__}.images()"
    if not isinstance(images, Mapping):
        raise JobError(f"{name} returned {type(images).__name__}.\nReturn a mapping of images by name.")
    return {str(key): _as_bytes(f"The image {key!r} of {name}", image) for key, image in images.items()}


def _as_bytes(what: str, returned: Any) -> torch.Tensor:
    if not isinstance(returned, torch.Tensor):
        raise JobError(f"{what} is {type(returned).__name__}.\nReturn a tensor (channels, height, width).")
    image: torch.Tensor = returned.detach().cpu()
    if image.dim() != _DIMENSIONS or image.shape[0] not in _CHANNELS or image.numel() == 0:
        raise JobError(
            f"{what} has the shape {tuple(image.shape)}; it must be (channels, height, width) with 1 or 3 "
            "channels.\nReturn one slice of a volume, and one sample of a batch."
        )
    if image.dtype in (torch.uint8, torch.bool):
        return image.to(torch.uint8) * (255 if image.dtype is torch.bool else 1)
    if not image.is_floating_point():
        raise JobError(f"{what} has the type {image.dtype}.\nReturn uint8, bool, or floats from 0 to 1.")
    return (image.float().nan_to_num().clamp(0, 1) * 255).round().to(torch.uint8)
