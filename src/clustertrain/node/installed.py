"""Whether the packages that a training needs are installed here, without importing them."""

from __future__ import annotations

from collections.abc import Iterable
from importlib.util import find_spec

_EXTRA_OF_LOGGER = {"tensorboard": "train", "mlflow": "mlflow", "wandb": "wandb"}


def missing_for_training() -> list[str]:
    """The names of those of torch and ray that are not installed; imports neither."""
    return [name for name in ("torch", "ray") if find_spec(name) is None]


def missing_of(loggers: Iterable[str]) -> list[str]:
    """The loggers whose package, which has the same name, is not installed; imports none."""
    return [name for name in loggers if find_spec(name) is None]


def how_to_install(loggers: Iterable[str]) -> str:
    extras = sorted({_EXTRA_OF_LOGGER[name] for name in loggers})
    return f"pip install 'clustertrain[{','.join(extras)}]'"
