"""The site file: defaults of the launchers' sections and of `scratch` for all job files of a site.

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
from typing import NewType

from clustertrain.errors import JobError
from clustertrain.job.error_messages import validated
from clustertrain.job.file import expanded, expected_at, positions_in
from clustertrain.job.launcher_plugins import WithLaunchers, launcher_sections, with_launcher_sections
from clustertrain.job.model import Job
from clustertrain.job.values import Refused, Scratch
from clustertrain.job.yaml_reader import Reader, refuse, text_of
from clustertrain.node import variables
from clustertrain.node.user_folders import home_folder

SiteJob = NewType("SiteJob", Job)
"""A job with the defaults of the site file for keys that are not in its own file."""


@with_launcher_sections
class Site(WithLaunchers):
    """A site file."""

    scratch: Scratch | None = None
    """The default of `scratch`: where each node keeps its copies of data."""


def site_path(environ: Mapping[str, str] = os.environ) -> Path | None:
    """Return the path of the site file, or None if there is none.

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
    folder = environ.get("XDG_CONFIG_HOME") or home_folder(environ) / ".config"
    path = Path(folder, "clustertrain", "site.yaml")
    return path if os.path.exists(path) else None  # the home folder may be another user's


def with_site(job: Job, environ: Mapping[str, str] = os.environ) -> SiteJob:
    """Return the job with the defaults of the site file for keys that are not in its own file.

    Raises:
        JobError: the site file is wrong, or its defaults and the job are inconsistent.
    """
    path = site_path(environ)
    if path is None:
        return SiteJob(job)
    site = read_site(path, environ)
    merged = {
        name: own.with_site(site.launcher_sections[name]) for name, own in job.launcher_sections.items()
    }
    both = job.model_copy(update={**merged, "scratch": job.scratch or site.scratch})
    try:
        both.check_sections()
    except Refused as error:
        raise JobError(
            f"{'.'.join(map(str, error.at))}: {error}\nthis includes the defaults in {path}"
        ) from None
    return SiteJob(both)


def read_site(path: Path, environ: Mapping[str, str]) -> Site:
    """Read a site file, with ${NAME} replaced as in a job file.

    Raises:
        JobError: `FILE:LINE:COLUMN: what`, then the rule and the remedy.
    """
    position = positions_in(str(path))
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
                f"a site file has only the keys {', '.join(launcher_sections())} and scratch",
            )
    document.data = expanded(document, environ, (), document.data)
    return validated(document, Site)
