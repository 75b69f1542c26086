"""What this site's users would write into every job file: the defaults of `slurm` and `kubernetes`.

~/.config/clustertrain/site.yaml, or below $XDG_CONFIG_HOME; $CLUSTERTRAIN_SITE names another one:

    slurm:
      account: physics
      partition: gpu
      python: /sw/train/bin/python
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from clustertrain.errors import JobError
from clustertrain.job import Job
from clustertrain.job_kubernetes import Kubernetes
from clustertrain.job_sections import Section
from clustertrain.job_slurm import Slurm, check_container
from clustertrain.job_values import Refused
from clustertrain.jobfile import expanded, expected_at, validated
from clustertrain.yaml_places import Place, Reader, refuse, text_of


class Site(Section):
    """A site file."""

    slurm: Slurm = Slurm()
    """Defaults of the section of that name: a key that the job file has, wins."""

    kubernetes: Kubernetes = Kubernetes()
    """Likewise."""


def site_path(environ: Mapping[str, str] = os.environ) -> Path | None:
    """The site file, or None where there is none.

    Raises:
        JobError: $CLUSTERTRAIN_SITE names a file that is not there.
    """
    if named := environ.get("CLUSTERTRAIN_SITE"):
        if not Path(named).exists():
            raise JobError(
                f"CLUSTERTRAIN_SITE names {named}, which is not there\nwrite it, or unset the variable"
            )
        return Path(named)
    folder = environ.get("XDG_CONFIG_HOME") or Path(environ.get("HOME") or Path.home(), ".config")
    path = Path(folder, "clustertrain", "site.yaml")
    return path if path.exists() else None


def with_site(job: Job, environ: Mapping[str, str] = os.environ) -> Job:
    """The job with the site file's sections wherever its own file says nothing.

    Raises:
        JobError: the site file is wrong, or its defaults and the job do not go together.
    """
    path = site_path(environ)
    if path is None:
        return job
    site = read_site(path, environ)
    merged = job.model_copy(
        update={
            "slurm": job.slurm.model_copy(update=_slurm_defaults(job, site.slurm)),
            "kubernetes": job.kubernetes.model_copy(update=_defaults(job.kubernetes, site.kubernetes)),
        }
    )
    try:
        check_container(merged.slurm, job.image)
    except Refused as error:
        raise JobError(
            f"{'.'.join(map(str, error.at))}: {error}\nthe defaults in {path} count, too"
        ) from None
    return merged


def _defaults(own: Section, site: Section) -> dict[str, Any]:
    return {key: getattr(site, key) for key in site.model_fields_set - own.model_fields_set}


def _slurm_defaults(job: Job, site: Slurm) -> dict[str, Any]:
    defaults = _defaults(job.slurm, site)
    if job.slurm.container == "none" and "container" in job.slurm.model_fields_set:
        defaults.pop("mounts", None)  # they are for the container that this job does without
    return defaults


def read_site(path: Path, environ: Mapping[str, str]) -> Site:
    """A site file, with ${NAME} replaced as in a job file.

    Raises:
        JobError: `FILE:LINE:COLUMN: what`, then the rule and the remedy.
    """

    def place(line: int, column: int) -> Place:
        return Place((line, column), f"{path}:{line}:{column}")

    document = Reader(text_of(path), place, expected_at).document(())
    if document.data is None:
        return Site()
    if not isinstance(document.data, dict):
        refuse(place(1, 1), "a site file is a mapping of keys", "for example slurm: {account: physics}")
    for key in document.data:
        if key not in Site.model_fields:
            refuse(
                document.places[key,][0],
                f"unknown key '{key}'",
                "a site file has the keys slurm and kubernetes alone",
            )
    document.data = expanded(document, environ, (), document.data)
    return validated(document, Site)


def python_on_nodes(job: Job) -> str:
    """The Python that trains: `slurm.python`; else a container's python3; else this one, if it could train.

    Raises:
        JobError: this one could not, and nothing names another.
    """
    if job.slurm.python is not None:
        return job.slurm.python
    if job.slurm.container != "none":
        return "python3"
    if missing := missing_for_training():
        raise JobError(
            f"slurm.python is not given, and {sys.executable} has no {' and no '.join(missing)}\n"
            "the nodes need a Python with clustertrain[train]\n"
            "name it under slurm.python, in the job file or for all jobs in ~/.config/clustertrain/site.yaml"
        )
    return sys.executable


def missing_for_training() -> list[str]:
    """What this Python lacks of torch and ray; looks, and imports neither."""
    return [name for name in ("torch", "ray") if find_spec(name) is None]
