"""`Found` → the text of a job file, with a comment for each piece that is not in it."""

from __future__ import annotations

import os
import posixpath
from pathlib import Path
from typing import Any

import yaml

from clustertrain.cli.migrate.found import Found
from clustertrain.job.common import JOB_VERSION
from clustertrain.job.values import as_name
from clustertrain.job.yaml_reader import JobDumper
from clustertrain.node import variables
from clustertrain.node.units import shortened, size_value

_ORDER = ("version", "name", "script", "module", "args", "resources", "env", "code", "interpreter")
_GUESSED = "GPUs are not requested, so each worker gets one; without GPUs remove gpus_per_worker"
_CHECKPOINTS = f"""\
# Checkpoints: the script writes them to ${{{variables.CHECKPOINT_DIR}}}, which its args may contain;
# resume_args are added at a start that finds some there."""


def job_text(found: Found, folder: Path) -> str:
    """Return the text of a job file in a folder; `check` says which of its values is not valid."""
    job = _job_of(found, folder)
    body = yaml.dump(
        job, Dumper=JobDumper, sort_keys=False, allow_unicode=True, default_flow_style=None, width=100
    )
    lines = [f"# From {shortened(found.source, 100)}, by clustertrain import."]
    if found.left_out:
        lines.append("# Not in this job file, so read these lines:")
        lines += [f"#   {piece}" for piece in dict.fromkeys(found.left_out)]
    return "\n".join([*lines, "", body, _CHECKPOINTS, ""])


def _job_of(found: Found, folder: Path) -> dict[str, Any]:
    job: dict[str, Any] = {"version": JOB_VERSION, "resources": _resources_of(found)}
    for key, value in found.keys.items():
        section, _, name = key.partition(".")
        if name:
            job.setdefault(section, {})[name] = value
        else:
            job[key] = value
    start = posixpath.basename(job.get("script", job.get("module", ""))).removesuffix(".py")
    job["name"] = as_name(job.get("name", "")) or as_name(start) or "imported"
    _place(job, folder)
    return {key: job[key] for key in dict.fromkeys((*_ORDER, *job)) if job.get(key) not in (None, [])}


def _place(job: dict[str, Any], folder: Path) -> None:
    """Make the script a file below the folder of the code, and that folder relative to the job file's."""
    code, script = str(job.pop("code", "")) or ".", job.get("script")
    if script and (posixpath.isabs(script) or posixpath.normpath(script).startswith("..")):
        code, job["script"] = posixpath.split(posixpath.join(code, script))
    code = code if posixpath.isabs(code) else os.path.relpath(code, folder)
    if code != ".":
        job["code"] = code


def _resources_of(found: Found) -> dict[str, Any]:
    """Return the section `resources`, and note in `found` what is guessed."""
    sizes = found.sizes
    nodes = sizes.get("nodes", 1)
    most = nodes[-1] if isinstance(nodes, list) else nodes
    tasks = sizes.get("node_tasks") or max(1, sizes.get("tasks", 1) // most)
    node_gpus = sizes.get("task_gpus", 0) * tasks or sizes.get("node_gpus") or sizes.get("gpus", 0) // most
    each, gpus = tasks, node_gpus // tasks
    if "launcher" in sizes:
        each = _processes(found, most, node_gpus)
        gpus = 0 if "is_cpu" in sizes else min(node_gpus, 1)
        if not node_gpus and "is_cpu" not in sizes and most * each > 1:
            gpus = 1
            found.leave_out("gpus_per_worker: 1", _GUESSED)
    section: dict[str, Any] = {"nodes": nodes} if most > 1 else {}
    if most > 1 and gpus == 1:
        section["gpus_per_node"] = each
    else:
        section["workers"] = [bound * each for bound in nodes] if isinstance(nodes, list) else most * each
        section |= {"gpus_per_worker": gpus} if gpus else {}
    cpus = sizes.get("task_cpus", 0) * tasks / each
    memory = sizes.get("node_memory", 0) / each or sizes.get("cpu_memory", 0) * (cpus or 1)
    section |= {"cpus_per_worker": int(cpus) if cpus == int(cpus) else round(cpus, 2)} if cpus else {}
    return section | ({"memory_per_worker": size_value(int(memory) // 2**20 * 2**20)} if memory else {})


def _processes(found: Found, nodes: int, node_gpus: int) -> int:
    """Return how many processes the launcher starts on each node."""
    if (total := found.sizes.get("processes")) is not None:
        return max(1, int(total) // nodes)
    each = found.sizes.get("node_processes") or found.sizes["launcher"]
    if each == "gpu" and not node_gpus:
        found.leave_out("one process for each GPU", "write their number into resources")
    return max(1, node_gpus) if each == "gpu" else int(each)
