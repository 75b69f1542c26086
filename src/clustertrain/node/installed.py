"""What is installed here: packages of a training, launchers. It imports none of them."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from functools import cache
from importlib.metadata import (
    Distribution,
    EntryPoints,
    PackageNotFoundError,
    distribution,
    distributions,
    entry_points,
)
from importlib.util import find_spec
from pathlib import Path
from shlex import quote
from urllib.parse import urlsplit
from urllib.request import url2pathname

_EXTRA_OF_LOGGER = {"tensorboard": "train", "mlflow": "mlflow", "wandb": "wandb"}

LAUNCHER_GROUP = "clustertrain.launchers"
"""The group of entry points in which a distribution registers a launcher (job/launcher_plugins.py)."""


@cache
def registered_launchers() -> EntryPoints:
    """The entry points of the launchers. Looking for them reads a file of each installed distribution."""
    return entry_points(group=LAUNCHER_GROUP)


def launcher_names() -> list[str]:
    """The names of the registered launchers. It imports none of them."""
    return sorted(set(registered_launchers().names))


def installed_packages() -> tuple[str, ...]:
    """The packages of this Python with their versions: `torch==2.12.0`."""
    described = (each.metadata for each in distributions())  # read once: it parses a file of each
    found = {f"{each['Name']}=={each['Version']}" for each in described if each["Name"]}
    return tuple(sorted(found, key=str.lower))


def missing_for_training() -> list[str]:
    """The names of those of torch and ray that are not installed; imports neither."""
    return [name for name in ("torch", "ray") if find_spec(name) is None]


def missing_of(loggers: Iterable[str]) -> list[str]:
    """The loggers whose package, which has the same name, is not installed; imports none."""
    return [name for name in loggers if find_spec(name) is None]


def how_to_install_loggers(loggers: Iterable[str]) -> str:
    return how_to_install(*{_EXTRA_OF_LOGGER[name] for name in loggers})


def how_to_install(*extras: str) -> str:
    """The command that adds extras of clustertrain to this Python. It repeats where this copy came from:
    clustertrain is on no package index, where anybody may take its name."""
    try:
        copy = distribution("clustertrain")
    except PackageNotFoundError:
        return f"Install the packages of {' and '.join(sorted(extras))} in clustertrain's pyproject.toml."
    wanted = _source(copy, f"[{','.join(sorted(extras))}]") or _packages(copy, extras)
    return _pip_install(wanted)


def how_to_import_in(python: str) -> str:
    """The command after which a script of another Python can import clustertrain.session, which needs no
    package. A link needs neither pip nor a network, and no copy grows old."""
    folder = f"{quote(python)} -c 'import sysconfig; print(sysconfig.get_path(\"purelib\"))'"
    return f'ln -s {quote(str(Path(__file__).parents[1]))} "$({folder})"'


def how_to_install_later() -> str:
    """What to do for a later clustertrain: the command with which this copy was installed, without its
    commit."""
    try:
        source = _source(distribution("clustertrain"), "", later=True)
    except PackageNotFoundError:
        source = []
    text = "install a later clustertrain"
    return f"{text} from where this one came: {_pip_install(source)}" if source else text


def _pip_install(wanted: Iterable[str]) -> str:
    pip = f"{quote(sys.executable)} -m pip install"
    if not any(distributions(name="pip")):  # find_spec("pip") would let setuptools replace distutils
        pip = f"uv pip install --python {quote(sys.executable)}"
    return " ".join([pip, *map(quote, wanted)])


def _source(copy: Distribution, extras: str, *, later: bool = False) -> list[str]:
    """The arguments with which pip installs this copy again, or none if the source is unknown or gone; with
    `later` the newest commit."""
    origin = json.loads(copy.read_text("direct_url.json") or "{}")
    url = origin.get("url", "")
    if vcs := origin.get("vcs_info"):
        url = f"{vcs['vcs']}+{url}" + ("" if later else f"@{vcs['commit_id']}")
    elif url.startswith("file:"):
        path = url2pathname(urlsplit(url).path)
        editable = ["-e"] if origin.get("dir_info", {}).get("editable") else []
        return [*editable, f"{path}{extras}"] if Path(path).exists() else []
    if url and (folder := origin.get("subdirectory")):
        url += f"#subdirectory={folder}"
    return [f"clustertrain{extras} @ {url}"] if url else []


def _packages(copy: Distribution, extras: Iterable[str]) -> list[str]:
    """The packages of these extras themselves."""
    required = [each.partition(";") for each in copy.requires or ()]
    return [name.strip() for name, _, marker in required if any(f"'{each}'" in marker for each in extras)]
