"""The site file: defaults of `slurm`, `kubernetes` and `scratch` for all job files of a site.

~/.config/clustertrain/site.yaml, or below $XDG_CONFIG_HOME; $CLUSTERTRAIN_SITE selects another file:

    slurm:
      account: physics
      partition: gpu
      python: /sw/train/bin/python
    scratch: SLURM_TMPDIR
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from clustertrain import variables
from clustertrain.errors import JobError
from clustertrain.job.file import expanded, expected_at
from clustertrain.job.kubernetes import Kubernetes
from clustertrain.job.model import Job
from clustertrain.job.sections import Section
from clustertrain.job.slurm import Slurm, check_container, check_requeue
from clustertrain.job.values import Refused, Scratch
from clustertrain.job.wording import validated
from clustertrain.job.yaml_reader import Reader, TextPosition, refuse, text_of


class Site(Section):
    """A site file."""

    slurm: Slurm = Slurm()
    """Defaults of the section `slurm`; a key in the job file overrides them."""

    kubernetes: Kubernetes = Kubernetes()
    """Defaults of the section `kubernetes`; a key in the job file overrides them."""

    scratch: Scratch | None = None
    """The default of `scratch`: where each node keeps its copies of data."""


def site_path(environ: Mapping[str, str] = os.environ) -> Path | None:
    """The site file, or None if there is none.

    Raises:
        JobError: $CLUSTERTRAIN_SITE names a file that does not exist.
    """
    if named := environ.get(variables.SITE):
        if not os.path.exists(named):
            raise JobError(
                f"{variables.SITE} names {named}, which does not exist, or is in a folder that this user may "
                "not read\ncreate it, or unset the variable"
            )
        return Path(named)
    folder = environ.get("XDG_CONFIG_HOME") or Path(environ.get("HOME") or Path.home(), ".config")
    path = Path(folder, "clustertrain", "site.yaml")
    return path if os.path.exists(path) else None  # the home folder may be another user's


def with_site(job: Job, environ: Mapping[str, str] = os.environ) -> Job:
    """The job with the defaults of the site file for keys that are not in its own file.

    Raises:
        JobError: the site file is wrong, or its defaults and the job are inconsistent.
    """
    path = site_path(environ)
    if path is None:
        return job
    site = read_site(path, environ)
    section = _kubernetes_defaults(job.kubernetes, site.kubernetes)
    merged = job.model_copy(
        update={
            "slurm": job.slurm.model_copy(update=_slurm_defaults(job, site.slurm)),
            "kubernetes": job.kubernetes.model_copy(update=section),
            "scratch": job.scratch or site.scratch,
        }
    )
    try:
        check_container(merged.slurm, job.image)
        check_requeue(merged.slurm)
    except Refused as error:
        raise JobError(
            f"{'.'.join(map(str, error.at))}: {error}\nthis includes the defaults in {path}"
        ) from None
    return merged


def _defaults(own: Section, site: Section) -> dict[str, Any]:
    return {key: getattr(site, key) for key in site.model_fields_set - own.model_fields_set}


def _kubernetes_defaults(own: Kubernetes, site: Kubernetes) -> dict[str, Any]:
    both = {"labels": site.labels | own.labels, "annotations": site.annotations | own.annotations}
    return {**_defaults(own, site), **both}


def _slurm_defaults(job: Job, site: Slurm) -> dict[str, Any]:
    defaults = _defaults(job.slurm, site)
    if job.slurm.container == "none" and "container" in job.slurm.model_fields_set:
        defaults.pop("mounts", None)  # the mounts are for a container, and this job has none
    return defaults


def read_site(path: Path, environ: Mapping[str, str]) -> Site:
    """A site file, with ${NAME} replaced as in a job file.

    Raises:
        JobError: `FILE:LINE:COLUMN: what`, then the rule and the remedy.
    """

    def position(line: int, column: int) -> TextPosition:
        return TextPosition((line, column), f"{path}:{line}:{column}")

    document = Reader(text_of(path), position, expected_at).document(())
    if document.data is None:
        return Site()
    if not isinstance(document.data, dict):
        refuse(position(1, 1), "a site file is a mapping of keys", "for example slurm: {account: physics}")
    for key in document.data:
        if key not in Site.model_fields:
            refuse(
                document.positions[key,][0],
                f"unknown key '{key}'",
                "a site file has only the keys slurm, kubernetes and scratch",
            )
    document.data = expanded(document, environ, (), document.data)
    return validated(document, Site)
