"""The tables of options in docs/migrate.md, from the rows of options.yaml. To refresh them:

python -m clustertrain.migrate.tables docs/migrate.md
"""

from __future__ import annotations

import re
import shlex
import sys
from pathlib import Path
from typing import Any

import yaml

from clustertrain.job.yaml_reader import JobDumper
from clustertrain.migrate.finding import shown_key
from clustertrain.migrate.job_text import job_of
from clustertrain.migrate.launch import Launch
from clustertrain.migrate.launch_line import launch_in
from clustertrain.migrate.options import Option, table
from clustertrain.migrate.shell_script import ShellScript

_SHOWN = ("module", "resources", "env", "code", "image", "failures", "slurm")
_MARKED = re.compile(r"(<!-- options of ([\w. ,]+):[^>]*-->\n).*?(<!-- end of options -->)", re.DOTALL)
_COMMANDS = {  # in which the option stands
    "torch.distributed.launch": "python -m torch.distributed.launch {} train.py",
    "python": "python {} train.py",
    "container": "apptainer exec {} image.sif python train.py",
    **{name: f"{name} {{}} python train.py" for name in ("mpirun", "horovodrun")},
}


def with_tables(page: str) -> str:
    """The page with the present table between each pair of marks."""
    return _MARKED.sub(lambda mark: mark[1] + _markdown(mark[2].split(", ")) + mark[3], page)


def _markdown(names: list[str]) -> str:
    lines = [f"| {names[0]} | job file |", "|---|---|"]
    for name in names:
        for row in table(name):
            left = (
                f"`{row.shown}`"
                if row.shown
                else ", ".join(f"`{_dashed(name, each)}`" for each in row.names.split())
            )
            lines.append(f"| {left} | {_right(name, row)} |")
    return "\n".join([*lines, ""])


def _dashed(name: str, option: str) -> str:
    if name in ("metadata", "pod", "PyTorchJob", "TrainJob", "RayJob", "shell"):
        return option
    return f"-{option}" if len(option) == 1 or option in ("np",) else f"--{option}"


def _right(name: str, row: Option) -> str:
    """What the import makes of the option that the row shows, or what the row says."""
    if row.done or row.lost:
        return row.done or f"none: {row.lost}"
    if not row.shown:
        return row.meaning or f"`{shown_key(row.key)}`"
    job, base = _job(name, row.shown), _job(name, "")
    changed = {
        key: value for key, value in job.items() if base.get(key) != value and key in (row.key, *_SHOWN)
    }
    settings = [
        yaml.dump({key: value}, Dumper=JobDumper, default_flow_style=True, width=1000, sort_keys=False)
        for key, value in changed.items()
    ]
    return ", ".join(f"`{setting.strip()[1:-1]}`" for setting in settings)


def _job(name: str, shown: str) -> dict[str, Any]:
    script = ShellScript(setup=True, cluster=name in ("sbatch", "size"))
    if name in ("sbatch", "size"):
        script.read(f"#SBATCH {shown}\nsrun python train.py")
        return job_of(Launch("", tuple(script.findings)))[0]
    start = _COMMANDS.get(name, f"{name} {{}} train.py").format(shown)
    return job_of(Launch("", tuple(launch_in(shlex.split(start), 0, script.read) or ())))[0]


if __name__ == "__main__":
    path = Path(sys.argv[1])
    path.write_text(with_tables(path.read_text("utf-8")), "utf-8")
