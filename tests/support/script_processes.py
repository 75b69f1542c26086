"""A script's process, run as a rank runs it."""

from pathlib import Path

from clustertrain.worker.scripts.script import run_script
from clustertrain.worker.scripts.script_command import Program


def ran_script(program: Program, folder: Path, **options: object) -> bool:
    """Run it to its end as rank 0, without a stop; `options` are those of run_script. Whether it finished."""
    given = {
        "rank": 0,
        "environment": {},
        "code_folder": folder,
        "stop_requested": lambda: False,
        "grace_s": 1.0,
        "stop_exists": lambda: False,
        "stop_in_s": lambda: 0.0,
        "note": lambda kind, text: None,
        "printed": lambda line: None,
        "follow": lambda: None,
        **options,
    }
    return run_script(program, cwd=folder, **given)
