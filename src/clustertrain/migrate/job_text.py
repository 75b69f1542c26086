"""`Launch` → the text of a job file, with a comment for each piece of the other file."""

from __future__ import annotations

import os
import posixpath
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import yaml

from clustertrain import variables
from clustertrain.errors import JobError
from clustertrain.job.common import JOB_VERSION
from clustertrain.job.file import load_job
from clustertrain.job.values import as_name
from clustertrain.job.yaml_reader import JobDumper
from clustertrain.migrate.finding import Finding, Kind, lost, settings_of
from clustertrain.migrate.launch import Launch
from clustertrain.migrate.shape import Shape
from clustertrain.units import shortened

_ORDER = (
    *("version", "name", "script", "module", "function", "args", "resources", "env"),
    *("code", "interpreter", "image"),
)
_HEADINGS = {
    Kind.LOST: "No counterpart, so read these lines",
    Kind.KEPT: "Kept",
    Kind.DONE: "Done by clustertrain",
}
_NO_TASKS = (
    "a script that reads SLURM_PROCID, SLURM_LOCALID or SLURM_NTASKS has to read RANK, LOCAL_RANK or "
    "WORLD_SIZE; Lightning and Accelerate do"
)
_CHECKPOINTS = f"""\
# Checkpoints: the script writes them to ${{{variables.CHECKPOINT_DIR}}}, which its args may contain;
# resume_args are added at a start that finds some there."""


def job_text(launch: Launch, folder: Path = Path()) -> tuple[str, list[Finding]]:
    """The text of a job file in a folder, and what has no counterpart in it.

    Raises:
        JobError: a value is not valid in a job file.
    """
    job, added = job_of(launch, folder)
    findings = [finding for finding in (*launch.findings, *added) if finding.text]
    body = yaml.dump(
        job, Dumper=JobDumper, sort_keys=False, allow_unicode=True, default_flow_style=None, width=100
    )
    names = re.findall(r"\$\{(\w+)", body)
    try:
        load_job(job, environ={**dict.fromkeys(names, "/set-later"), **os.environ})
    except JobError as error:
        raise JobError(f"{launch.source}: a value of it is not valid in a job file\n{error}") from None
    without = [finding for finding in findings if finding.kind is Kind.LOST]
    after = [each for kind in (Kind.KEPT, Kind.DONE) for each in _comment(kind, findings)]
    script = [_CHECKPOINTS] if "function" not in job else []
    lines = [
        f"# From {shortened(launch.source, 100)}, by clustertrain import.",
        *_comment(Kind.LOST, findings),
        "",
        body,
    ]
    return "\n".join([*lines, *script, *after, ""]), without


def _comment(kind: Kind, findings: Iterable[Finding]) -> list[str]:
    lines = list(dict.fromkeys(f"#   {finding}" for finding in findings if finding.kind is kind))
    return [f"# {_HEADINGS[kind]}:", *lines] if lines else []


def job_of(launch: Launch, folder: Path = Path()) -> tuple[dict[str, Any], list[Finding]]:
    """The keys of the job, and what is found only when they are together."""
    job: dict[str, Any] = {"version": JOB_VERSION}
    for key, value in settings_of(launch.findings):
        if not key.startswith("@"):
            _put(job, key, value)
    shape, added = Shape.of(launch.findings), []
    job["resources"] = shape.resources()
    if shape.is_guess:
        why = (
            "the number of GPUs of a node is not in the file: write it as resources.workers or gpus_per_node"
        )
        added.append(lost(0, "one process for each GPU", why))
    sets_rank = any(finding.text.startswith("RANK=") for finding in launch.findings)
    if not shape.launcher and shape.all_tasks > 1 and not sets_rank and not launch.in_pods:
        added.append(lost(0, f"{shape.all_tasks} tasks of srun", _NO_TASKS))
    if shape.memory_per_cpu:
        _put(job, "slurm.memory_as", "mem-per-cpu")
    start = job.get("script") or job.get("module") or job["function"].partition(":")[0]
    job["name"] = _name(str(job.get("name") or ""), posixpath.basename(start).removesuffix(".py"))
    _place(job, folder, in_pods=launch.in_pods)
    if "script" in job and not launch.in_pods and "$" not in job.get("code", ""):
        file = folder / job.get("code", ".") / job["script"]
        if not file.is_file():
            added.append(lost(0, str(file), "the script is not here: check refuses the job until it is"))
    if "image" in job:
        what = "it needs clustertrain with torch and Ray: docs/docker.md"
        added.append(lost(0, str(job["image"]), what))
    if launch.in_pods and "code_in_image" not in job.get("kubernetes", {}):
        why = "the code is sent from here; kubernetes.code_in_image names a folder of the image"
        added.append(lost(0, start, why))
    if launch.in_pods and _default_volume(job.get("kubernetes", {}).get("volumes", [])):
        why = "it is on the default claim, clustertrain: name yours under kubernetes.volumes, or set S3"
        added.append(lost(0, "storage", why))
    rest = [key for key in job if key not in _ORDER]
    empty: tuple[Any, ...] = ({}, [], "")
    return {key: job[key] for key in (*_ORDER, *rest) if key in job and job[key] not in empty}, added


def _put(job: dict[str, Any], key: str, value: object) -> None:
    """Sets a key by its path; `[]` adds to a list."""
    *sections, name = key.split(".", 1) if key.startswith("env.") else key.split(".")
    for section in sections:
        job = job.setdefault(section, {})
    if name.endswith("[]"):
        items = value if isinstance(value, list) else [value]
        known = job.setdefault(name.removesuffix("[]"), [])
        is_order = name == "setup[]"  # set -a, source a.env, set +a, set -a …
        known.extend(item for item in items if is_order or item not in known)
    else:
        job[name] = value


def _place(job: dict[str, Any], folder: Path, *, in_pods: bool) -> None:
    """Makes the script a file below the folder of the code, and paths relative to that of the job file."""
    code, script = str(job.pop("code", ".")), job.get("script")
    if script and (posixpath.isabs(script) or posixpath.normpath(script).startswith("..")):
        whole = posixpath.normpath(posixpath.join(code, script))
        base = os.path.abspath(code) if not in_pods else code  # noqa: PTH100 - no links are followed
        below = posixpath.relpath(whole, base) if posixpath.isabs(whole) == posixpath.isabs(base) else ".."
        if below.startswith(".."):
            code, below = posixpath.split(whole)
            code = code or "."
        job["script"] = below
    elif script:
        job["script"] = posixpath.normpath(script)
    if in_pods:
        if posixpath.isabs(code):
            _put(job, "kubernetes.code_in_image", code)
        return
    for key, path in (("code", code), ("interpreter", job.get("interpreter"))):
        if path and not posixpath.isabs(path) and not path.startswith("$"):
            job[key] = os.path.relpath(path, folder)
        elif path:
            job[key] = path
    if job.get("code") == ".":
        del job["code"]


def _default_volume(volumes: list[dict[str, Any]]) -> bool:
    """Puts writable claims first: the storage is on the first volume. Without one the default is first, and
    the result is True."""
    claims = [volume for volume in volumes if "claim" in volume and "read_only" not in volume]
    default = [] if claims or not volumes else [{"mount": "/mnt/clustertrain", "claim": "clustertrain"}]
    volumes[:] = [*default, *claims, *(volume for volume in volumes if volume not in claims)]
    return not claims


def _name(*wanted: str) -> str:
    """The first text that has the letters of a name, with only these."""
    return next(filter(None, map(as_name, wanted)), "imported")
