"""A script's process, run as a rank runs it."""

from pathlib import Path

from clustertrain.worker.scripts.script import run_script
from clustertrain.worker.scripts.script_command import Program


def ran_script(program: Program, folder: Path, **options: object) -> bool:
    """Run it to its end as rank 0, without a stop; `options` are those of run_script. Whether it finished."""
    given = {"rank": 0, "environment": {}, "stop_requested": lambda: False, "grace_s": 1.0, **options}
    return run_script(program, cwd=folder, **given)
