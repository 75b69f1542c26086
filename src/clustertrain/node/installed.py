"""What is installed here: packages of a training, launchers. It imports none of them."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from functools import cache
from importlib.metadata import EntryPoints, distributions, entry_points
from importlib.util import find_spec
from pathlib import Path
from shlex import quote

_EXTRA_OF_LOGGER = {"tensorboard": "train", "mlflow": "mlflow", "wandb": "wandb"}

LAUNCHER_GROUP = "clustertrain.launchers"
"""The group of entry points in which a distribution registers a launcher (job/launcher_plugins.py)."""


@cache
def registered_launchers() -> EntryPoints:
    """Return the entry points of the launchers, for which it reads a file of each installed distribution."""
    return entry_points(group=LAUNCHER_GROUP)


def launcher_names() -> list[str]:
    """Return the names of the registered launchers; it imports none of them."""
    return sorted(set(registered_launchers().names))


def installed_packages() -> tuple[str, ...]:
    """Return the packages of this Python with their versions: `torch==2.12.0`."""
    described = (each.metadata for each in distributions())  # read once: it parses a file of each
    found = {f"{each['Name']}=={each['Version']}" for each in described if each["Name"]}
    return tuple(sorted(found, key=str.lower))


def missing_for_training() -> list[str]:
    """Return which of torch and ray are not installed, by name; imports neither."""
    return [name for name in ("torch", "ray") if find_spec(name) is None]


def missing_of(loggers: Iterable[str]) -> list[str]:
    """Return the loggers whose package, which has the same name, is not installed; imports none."""
    return [name for name in loggers if find_spec(name) is None]


def how_to_install_loggers(loggers: Iterable[str]) -> str:
    return how_to_install(*{_EXTRA_OF_LOGGER[name] for name in loggers})


def how_to_install(*extras: str) -> str:
    """Return the remedy for missing packages.

    clustertrain is on no package index, so the remedy names no command.
    """
    names = " and ".join(sorted(extras))
    return f"Install clustertrain with its extra {names} into {sys.executable}, from where this copy came."


def how_to_import_in(python: str) -> str:
    """Return the command after which a script of another Python can import clustertrain.session.

    That module needs no package. The command makes a link, which needs neither pip nor a network, and does
    not become outdated as a copy does.
    """
    folder = f"{quote(python)} -c 'import sysconfig; print(sysconfig.get_path(\"purelib\"))'"
    return f'ln -s {quote(str(Path(__file__).parents[1]))} "$({folder})"'
